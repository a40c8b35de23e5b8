"""From intermediate code to something that runs.

cpu       programs for NumPy arrays, through LLVM: llvm (vectors of states), llvm_arrays (the arrays of a call),
          llvm_entry (blocks of states), elementary (sine, cosine, logarithm), codegen (object code), elf (a linker),
          gufunc (an address as a NumPy function);  pointwise: a function of a few numbers, applied to arrays
cuda      kernels for NVIDIA GPUs (cuda_prelude);  gpu: programs for CuPy, PyTorch and JAX arrays
c_language   C, for both CUDA and C99
cache     machine code and small results on disk
"""
