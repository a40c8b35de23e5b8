"""The compiler: the steps of an algorithm, run on symbols, become SIMD machine code.

    frames   a model re-expressed so that placements are screws and axes are z (fewer operations)
    tape     expressions recorded as a list of operations, each computed once
    trace    an algorithm and a model -> tapes: unrolled over one robot, or one a pass and joint type
    llvm     tapes -> LLVM IR: vectors of states, sine and cosine, loops over bodies
    machine  LLVM IR -> object code -> callable address; the cache on disk
    gufunc   an address -> a NumPy generalised ufunc
    program  what users hold: `compile(model, function) -> Program`
"""
