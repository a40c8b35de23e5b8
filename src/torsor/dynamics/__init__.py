"""The public functions on arrays.

functions    forward and inverse dynamics, mass matrices, kinematics, energies; `compile`
derivatives  `vjp` and `jvp` of those functions
jacobians    derivatives as matrices, and the torque regressor;  linear: linear systems near a state
identification   inertial parameters: which can be known, and their estimation from a motion
calls        how functions run: checks, programs, explanations;  methods: the choice of the algorithm
accuracy     comparisons with the articulated sweeps
factor       M = W W^T and random velocities;  task_space: the dynamics at frames
closed_forms the equations of motion as explicit matrices;  symbolic: the same in symbols;  fixman: relaxed constraints
"""
