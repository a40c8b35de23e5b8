"""Motion in time: forces, steps, drivers, results.

forces, law   what acts on a machine, as data, and all of it together;  laws: at one freedom, over any scalar;
              references: motions to follow
plant, steps  what a step sees, and the steps of fixed length, over any scalar;  lowering: their kernels
driver        many states by fixed steps: rollout (and its gradients), ensembles
motion        the equations of one motion;  simulation, simulate: the driver of one motion
integrators   its methods by name: runge_kutta, adams (made of stages, which may be fused), implicit, radau (in O(n)),
              structure (fixed step), fixed (those of steps);  stiffness: when to change them
trajectory    the result;  quantities: by name;  recording, tables: files;  events, stops: where a motion ends
"""
