"""How torch says that memory has run out: by a type where it has one, else by words in a RuntimeError."""

from __future__ import annotations

import torch

_WORDS = (
    # Its allocator on the CPU, before the number of bytes: on Linux and macOS, and on Windows.
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    # C++, from any library.
    "std::bad_alloc",
    # oneDNN, which allocates kernels and scratch by itself, and gives no other reason. It also says so of a primitive
    # that it does not have; then smaller steps fail likewise, and the error that ends them quotes it.
    "could not create a primitive",
    "could not create a memory",
    # Apple's Metal; CUDA's driver, and the handles and workspaces of cuBLAS and cuDNN (never seen on a card).
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, or Python, has found no memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
