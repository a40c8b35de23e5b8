"""The public functions on arrays.

functions    forward and inverse dynamics, mass matrices, kinematics, energies; `compile`
derivatives  `vjp` and `jvp` of those functions
jacobians    derivatives as matrices, and the torque regressor;  linear: linear systems near a state
identification   inertial parameters, which of them can be known, and which a motion reveals
calls        how they run: checks, programs, explanations;  methods: which algorithm does the work
accuracy     comparisons with the articulated sweeps
factor       M = W W^T and random velocities;  task_space: the dynamics as a frame feels them
closed_forms the equations of motion as explicit matrices;  symbolic: the same in symbols;  fixman: relaxed constraints
"""
