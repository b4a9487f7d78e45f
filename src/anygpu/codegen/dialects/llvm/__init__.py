"""LLVM IR with explicit vector lanes: loop nests (`anygpu.codegen.nests`) as text, without a library of LLVM's."""
