"""NumPy's inner loops by address, for native code that has to give NumPy's last bits.

A ufunc has a table of loops, and NumPy takes the first one for the types of its operands. Before native code calls a
loop, the assumed layout of the ufunc object is checked, and the loop must give the ufunc's results on a few numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from anygpu.errors import CannotCompile
from anygpu.program.exactness import Rounding
from anygpu.program.functions import FUNCTIONS

#: The offsets of a ufunc's fields, after the header of the object.
_NARGS, _FUNCTIONS, _DATA, _NTYPES, _TYPES = 8, 16, 24, 32, 48
#: More numbers than any vector has lanes, and not a multiple of that.
_COUNT = 83
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


def mark_of_numpy() -> tuple[str, tuple[str, ...]]:
    """Return what NumPy's last bits depend on: its version, and the processor features that it uses."""
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    return np.__version__, tuple(sorted(name for name, is_used in features.items() if is_used))


@cache
def rounding() -> Rounding:
    """Return how native code rounds beside this NumPy: "complex" if products and magnitudes agree too, else "real".

    NumPy's complex products leave one product of each part unrounded, and its magnitudes leave a square, where the
    processor has fused multiply-add. Other versions of NumPy may not.
    """
    numbers = 1 + np.arange(4 * _COUNT) * 0.6180339887498949 % 1
    for dtype in ("complex64", "complex128"):
        real, imag = numbers.reshape(2, 2, _COUNT)
        if not _is_fused(*(real + 1j * imag).astype(dtype)):
            return "real"
    return "complex"


def _is_fused(one: Any, other: Any) -> bool:
    """Return whether NumPy's products and magnitudes have the bits of those in `builtins.cl`."""
    number = one.real.dtype.type

    def fused(a: Any, b: Any, c: Any) -> Any:
        """Return a · b + c, rounded once: a double is exact for 24 bits, and Python integers for more."""
        if number is np.float32:
            return np.float32(float(a) * float(b) + float(c))
        (x, of_x), (y, of_y), (z, of_z) = (float(each).as_integer_ratio() for each in (a, b, c))
        return (x * y * of_z + z * of_x * of_y) / (of_x * of_y * of_z)

    products, lengths = one * other, np.abs(one)
    for x, y, product, length in zip(one, other, products, lengths, strict=True):
        real, imag = fused(x.real, y.real, -(x.imag * y.imag)), fused(x.real, y.imag, x.imag * y.real)
        larger, smaller = max(x.real, x.imag), min(x.real, x.imag)
        ratio = smaller / larger
        if (product.real, product.imag) != (real, imag) or length != larger * np.sqrt(fused(ratio, ratio, 1.0)):
            return False
    return True


def loop_symbols(names: Iterable[str]) -> dict[str, int]:
    """Return the addresses of loops such as "numpy.exp.float64", and of their data. Raises `CannotCompile`."""
    found: dict[str, int] = {}
    for name in names:
        _, fn, dtype = name.split(".")
        found[name], found[f"{name}.data"] = _loop(fn, dtype)
    return found


@cache
def _loop(fn: str, dtype: str) -> tuple[int, int]:
    """Return the addresses of the loop of a function, and of its data."""
    ufunc: Any = getattr(np, FUNCTIONS[fn].numpy_name)
    at = id(ufunc) + object.__basicsize__
    count, ntypes = _number(at + _NARGS), _number(at + _NTYPES)
    if (count, ntypes) != (ufunc.nargs, ufunc.ntypes):
        raise CannotCompile("cpu", f"np.{ufunc.__name__} is not laid out as other versions of NumPy have it")
    kinds = ctypes.string_at(_address(at + _TYPES), count * ntypes)
    wanted = bytes([np.dtype(dtype).num]) * count
    for number in range(ntypes):
        if kinds[number * count : (number + 1) * count] == wanted:
            loop = _address(_address(at + _FUNCTIONS) + 8 * number), _address(_address(at + _DATA) + 8 * number)
            if _gives_the_same(ufunc, dtype, *loop):
                return loop
            break
    raise CannotCompile("cpu", f"np.{ufunc.__name__} has no loop of its own for {dtype}")


def _gives_the_same(ufunc: Any, dtype: str, loop: int, data: int) -> bool:
    """Return whether a loop, called as native code calls it, has the ufunc's bits."""
    given = [np.linspace(0.1, 0.9 + number, _COUNT, dtype=dtype) for number in range(ufunc.nin)]
    result = np.empty(_COUNT, dtype)
    arrays = [*given, result]
    places = (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))
    lengths, steps = (
        (ctypes.c_ssize_t * 1)(_COUNT),
        (ctypes.c_ssize_t * len(arrays))(*(each.itemsize for each in arrays)),
    )
    _LOOP(loop)(ctypes.addressof(places), ctypes.addressof(lengths), ctypes.addressof(steps), data)
    with np.errstate(all="ignore"):
        expected = ufunc(*given)
    return bool(expected.tobytes() == result.tobytes())


def _number(address: int) -> int:
    return ctypes.c_int.from_address(address).value


def _address(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
