"""What compiled code has to know of CPython and NumPy: where functions and objects are, and what an array looks like.

NumPy promises the layout of an array's fields and the places in its table of functions to every extension that was
compiled for it. Here that promise is tried out on some arrays before any code relies on it; where it does not hold (on
another Python than CPython, for one), programs are called through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np

#: Bytes of an object before the fields of its type. The last eight are the type.
HEADER = object.__basicsize__
#: Where the fields of an array are after that, and their types in LLVM IR.
FIELDS = {"data": ("ptr", 0), "nd": ("i32", 8), "dims": ("ptr", 16), "descr": ("ptr", 40), "flags": ("i32", 48)}
#: C_CONTIGUOUS and ALIGNED.
USABLE_FLAGS = 0x1 | 0x100

#: Places in NumPy's table of functions.
_TABLE = {"np_new": 93, "np_set_handler": 304, "np_get_handler": 305}
_DEFAULT_HANDLER = 306
_PYTHON = (
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyList_New",
    "PyLong_FromLong",
    "PyList_SetItem",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
)


@cache
def array_symbols() -> dict[str, int] | None:
    """The addresses that compiled calls refer to; `None` where arrays are not what they should be."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    with contextlib.suppress(AttributeError, ValueError):
        if not all(map(_is_as_expected, _samples())):
            return None
        table = _function_table()
        found = {name: _word(table + 8 * place) for name, place in _TABLE.items()}
        found["np_default_handler"] = _word(_word(table + 8 * _DEFAULT_HANDLER))
        for name in _PYTHON:
            found[name] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
        found["np_ndarray"] = id(np.ndarray)
        found["py_not_implemented"] = id(NotImplemented)
        if all(found.values()) and _makes_arrays(found["np_new"]):
            return found
    return None


def _samples() -> list[Any]:
    read_only = np.zeros(5, np.int8)
    read_only.flags.writeable = False
    return [
        np.zeros((3, 4)),
        np.zeros((2, 3, 4), np.float32)[:, ::2],
        np.asfortranarray(np.zeros((3, 4), np.int64)),
        np.array(1, np.complex64),
        np.frombuffer(bytes(17), np.uint8)[1:].view(np.uint16),
        read_only,
    ]


def _is_as_expected(array: Any) -> bool:
    """Whether the fields of an array are where they should be."""
    at = id(array) + HEADER
    ndim = ctypes.c_int32.from_address(at + FIELDS["nd"][1]).value
    flags = ctypes.c_int32.from_address(at + FIELDS["flags"][1]).value
    expected = array.flags.num
    return (
        _word(at - 8) == id(np.ndarray)
        and _word(at + FIELDS["data"][1]) == array.ctypes.data
        and ndim == array.ndim
        and tuple(_word(_word(at + FIELDS["dims"][1]) + 8 * axis) for axis in range(ndim)) == array.shape
        and _word(at + FIELDS["descr"][1]) == id(array.dtype)
        and flags & 0x507 == expected & 0x507
        and bool(flags & 1) == array.flags.c_contiguous
        and bool(flags & 0x100) == array.flags.aligned
    )


def _makes_arrays(address: int) -> bool:
    """Whether the function makes what it is asked for."""
    new = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2,
        ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    )(address)  # fmt: skip
    dims = (ctypes.c_int64 * 2)(3, 5)
    made = new(np.ndarray, 2, ctypes.addressof(dims), np.dtype("float32").num, None, None, 0, 0, None)
    usual = np.empty((3, 5), np.float32)
    same = type(made) is np.ndarray and made.shape == (3, 5) and made.dtype is usual.dtype
    return same and made.flags.num == usual.flags.num and sys.getrefcount(made) == sys.getrefcount(usual)


def _function_table() -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = pointer(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    return table


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
