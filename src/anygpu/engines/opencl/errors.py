"""pyopencl's errors as ours, by their codes."""

from __future__ import annotations

import pyopencl as cl

from anygpu.errors import AnyGPUError, DeviceLost, InvalidProgram, OutOfMemory, TooBig

#: Of the extension cl_khr_icd: the loader works, and no driver is registered with it.
PLATFORM_NOT_FOUND = -1001

_NO_MEMORY = frozenset(
    (
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_RESOURCES,
        cl.status_code.OUT_OF_HOST_MEMORY,
    )
)
_NO_KERNEL = frozenset(
    (
        cl.status_code.BUILD_PROGRAM_FAILURE,
        cl.status_code.COMPILE_PROGRAM_FAILURE,
        cl.status_code.LINK_PROGRAM_FAILURE,
        cl.status_code.INVALID_BUILD_OPTIONS,
        cl.status_code.INVALID_KERNEL_NAME,
    )
)


def is_refusal_of_a_kernel(error: BaseException) -> bool:
    return isinstance(error, cl.Error) and error.code in _NO_KERNEL


def classify(error: BaseException, device: str, limit: int | None = None) -> AnyGPUError | None:
    """One of ours; `None` for the user's own, and for what is one of ours already."""
    if isinstance(error, AnyGPUError):
        return None
    if isinstance(error, MemoryError):
        # Where memory is the host's own, Python and NumPy are the ones who cannot get it.
        return OutOfMemory(device)
    if not isinstance(error, cl.Error):
        return None
    if error.code in _NO_KERNEL:
        return InvalidProgram(f"The OpenCL compiler of {device} refuses a kernel: {error}")
    return by_code(error.code, device, limit)


def by_code(code: int, device: str, limit: int | None = None) -> AnyGPUError | None:
    if code in _NO_MEMORY:
        return OutOfMemory(device)
    if code == cl.status_code.INVALID_BUFFER_SIZE:
        return TooBig(device, None, limit)
    if code == cl.status_code.DEVICE_NOT_AVAILABLE:
        return DeviceLost(device)
    return None
