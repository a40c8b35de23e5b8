"""Motion in time: forces, steps, drivers, results.

forces, law   forces as data, and their sum;  laws: forces at one freedom, over any scalar;
              references: motions to follow
plant, steps  a machine as a step sees it, and the fixed steps, over any scalar;  lowering: their kernels
driver        many states by fixed steps: rollout (and its gradients), ensembles
motion        the equations of one motion;  simulation, simulate: the driver of one motion
integrators   its methods by name: runge_kutta, adams (made of stages, which may be fused), implicit, radau (in O(n)),
              structure (fixed step), fixed (the methods of steps);  stiffness: when to switch methods
trajectory    the result;  quantities: by name;  recording, tables: files;  events, stops: when a motion ends
"""
