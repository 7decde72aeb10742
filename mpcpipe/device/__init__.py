"""Kernels for GPUs and DCUs: compilers, the build cache, tiles, and the library's operations on tensors."""
