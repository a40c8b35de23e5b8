"""From an algorithm and a model to intermediate code.

request   what to compute, and when to unroll the code;  store: the programs made for a model
frames    a model re-expressed so that placements are screws and axes are on z (fewer operations)
tape      expressions recorded as a list of operations, each computed once
trace     an algorithm and a model -> tapes: unrolled over one model, or one per pass and joint type
derivatives  from the code of an algorithm to that of its jvp and vjp: straight line;  loop_derivatives: loops
language  the interface to a target language;  loops: the loops over bodies, written through that interface
abi       the model data that loops read;  packing: where loops store the entries of a matrix
counts    exact operation counts
"""
