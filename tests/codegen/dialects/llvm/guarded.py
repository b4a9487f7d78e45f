"""Arrays that end, or begin, at memory that may not be touched: a read or a write beyond ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from anygpu.base.typing import HostArray

_libc = ctypes.CDLL(None, use_errno=True)


def guarded(array: HostArray, *, at_end: bool = True) -> HostArray:
    """A copy of the array right before a protected page, or right after one."""
    page = mmap.PAGESIZE
    room = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for protected in (address, address + page + room):
        if _libc.mprotect(ctypes.c_void_p(protected), ctypes.c_size_t(page), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    start = page + (room - array.nbytes if at_end else 0)
    result = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
    result[...] = array
    return result
