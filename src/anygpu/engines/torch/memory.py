"""The memory of a device as torch sees it: measuring it, and errors that say there is none left."""

from __future__ import annotations

import sys
from typing import Protocol

import torch

from anygpu.hardware.resident_memory import HostMeter

# -- how torch says that memory has run out: by a type where it has one, else by words in a RuntimeError


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


# -- measuring memory: the most that was taken at once, and how much more could be
#
# Work is measured around it: `begin()`, the work, `peak()`. What a meter cannot know is `None`.


class Meter(Protocol):
    """The memory of one device, as this process uses it."""

    def begin(self) -> None:
        """From now on, look for the peak anew."""
        ...

    def now(self) -> int | None:
        """Bytes that are taken now."""
        ...

    def peak(self) -> int | None:
        """The most bytes that were taken at once since `begin`, what was taken before included."""
        ...

    def free(self) -> int | None:
        """Bytes that could be taken now, beside what is."""
        ...


def meter_for(device: torch.device) -> Meter:
    """The meter of a device; one that knows nothing where torch has no figures."""
    if device.type == "cuda":
        return CudaMeter(device)
    if device.type == "cpu" and sys.platform == "linux":
        return HostMeter()
    return NoMeter()


class NoMeter:
    """Where nothing can be measured."""

    def begin(self) -> None:
        pass

    def now(self) -> int | None:
        return None

    def peak(self) -> int | None:
        return None

    def free(self) -> int | None:
        return None


class CudaMeter:
    """A card's memory, from the statistics of torch's own allocator. Never run on a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def now(self) -> int | None:
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self._device))

    def free(self) -> int | None:
        """Free bytes of the driver and of torch's reserve, less what the user withheld from torch."""
        free, total = torch.cuda.mem_get_info(self._device)
        allocated = int(torch.cuda.memory_allocated(self._device))
        unused = int(torch.cuda.memory_reserved(self._device)) - allocated
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        allowed = total if fraction is None else int(total * fraction(self._device)) - allocated
        return max(0, min(int(free) + unused, allowed))
