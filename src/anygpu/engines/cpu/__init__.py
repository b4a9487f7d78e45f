"""The processor: programs as native code, made by LLVM, on the caller's own arrays."""
