"""What wgpu's errors mean: by type where the library tells them apart, else by the one table of its words."""

from __future__ import annotations

import wgpu

from anygpu.errors import AnyGPUError, DeviceLost, OutOfMemory

#: wgpu reports these two as validation errors with nothing but words; the tests provoke both for real.
WORDS_FOR_LOST = ("Parent device is lost",)
WORDS_FOR_OUT_OF_MEMORY = ("Not enough memory left",)


def classify(error: BaseException, device: str, *, requested: int | None = None) -> AnyGPUError | None:
    """One of ours, or `None` when it says nothing about the device."""
    if isinstance(error, AnyGPUError):
        return None
    # Python's own and NumPy's as well: what comes from the device or goes there passes through memory of the host.
    if isinstance(error, wgpu.GPUOutOfMemoryError | MemoryError):
        return OutOfMemory(device, requested)
    if isinstance(error, wgpu.GPUError):
        words = str(error)
        if any(known in words for known in WORDS_FOR_LOST):
            return DeviceLost(device)
        if any(known in words for known in WORDS_FOR_OUT_OF_MEMORY):
            return OutOfMemory(device, requested)
    return None


def innermost(error: BaseException) -> str:
    """The library's message without the lines that only say that there is one."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "\n".join(line for line in lines if line and line not in ("Validation Error", "Caused by:"))
