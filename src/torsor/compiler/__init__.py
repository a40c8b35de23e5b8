"""From an algorithm and a model to intermediate code.

request   what is to be computed, and when code is unrolled;  store: what has been made for a model
frames    a model re-expressed so that placements are screws and axes are z (fewer operations)
tape      expressions recorded as a list of operations, each computed once
trace     an algorithm and a model -> tapes: unrolled over one model, or one per pass and joint type
language  what code is written with in any language;  loops: the loops over bodies, written with that
abi       what loops are told of a model;  packing: where they put the entries of a matrix
counts    exact operation counts
"""
