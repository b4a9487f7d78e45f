"""WGSL, OpenCL C and LLVM IR: three ways to print what is to be computed."""
