"""The buffer of an array that waits, for code in C: NumPy's own array gives it.

From Python 3.12 on `__buffer__` does this. Python 3.11 asks the type itself, which only C can answer: its slot gets a
function that asks NumPy's array in the place of ours. Whoever asked then holds a buffer of NumPy's array.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

#: Where `tp_as_buffer` is in a type of CPython 3.11, on machines of 64 bits: behind the header and 17 pointers.
_TP_AS_BUFFER = 160

_Getter = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


def _get_buffer(array: Any, view: int, flags: int) -> int:
    try:
        value = array._handed_out("its buffer is needed")
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(value), ctypes.c_void_p(view), ctypes.c_int(flags))
    except BaseException:  # noqa: BLE001 - nothing can be raised through C here
        ctypes.c_void_p.from_address(view + ctypes.sizeof(ctypes.c_void_p)).value = None  # its owner: nobody
        return -1
    return 0


_getter = _Getter(_get_buffer)


def give_buffers(kind: type[Any]) -> None:
    """Let arrays of this class have a buffer."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 12) or sys.maxsize < 2**32:
        return
    table = ctypes.c_void_p.from_address(id(kind) + _TP_AS_BUFFER)
    assert table.value is not None, "every class of Python's has one"
    ctypes.c_void_p.from_address(table.value).value = ctypes.cast(_getter, ctypes.c_void_p).value
