"""The compiler: the steps of an algorithm, run on symbols, become SIMD machine code.

    frames   a model re-expressed so that placements are screws and axes are z (fewer operations)
    tape     expressions recorded as a list of operations, each computed once
    trace    an algorithm and a model -> tapes: unrolled over one robot, or one a pass and joint type
    language the walk that writes a tape in any language: order, multiply-adds
    llvm     LLVM IR on vectors of states; `elementary`: sine, cosine, logarithm
    loops    the code of an algorithm as a kernel: one straight line, or loops over the bodies of a model
    entry    a kernel between the arrays of a call: blocks of states, rows turned into lanes
    data     what a kernel is told of a model and of its arrays; `packing`: where it puts the entries of a matrix
    build    an algorithm and a model -> all of the above; operation counts
    machine  LLVM IR -> object code;  image: object code -> an address to call;  cache: what is kept on disk
    gufunc   an address -> a NumPy generalised ufunc
    program  what users hold: `compile(model, function) -> Program`
    segments  one long chain cut into segments, a lane each
    pointwise   a function of a few numbers as a gufunc over many
    c_language  C as CUDA and C99 share it
    cuda     the same tapes as CUDA C (`cuda_language`); `gpu`: programs for arrays on a GPU
    c        the same tapes as plain C99 (`torsor.exports` writes the files)
"""
