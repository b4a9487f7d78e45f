"""LLVM IR with explicit vector lanes: loop nests (`codegen.nests`) as text, without a library of LLVM's."""
