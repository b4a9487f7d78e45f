"""NumPy's inner loops by address, for native code that has to give NumPy's last bits.

A ufunc has a table of loops, and NumPy takes the first one for the types of its operands. Before native code calls a
loop, the assumed layout of the ufunc object is checked, and the loop must give the ufunc's results on a few numbers.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from anygpu.errors import CannotCompile
from anygpu.program.exactness import Rounding
from anygpu.program.functions import FUNCTIONS
from anygpu.program.graph import Node, Program
from anygpu.program.ops.elementwise import BitwiseBinary
from anygpu.program.primitives import Binary

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


# -- a loop whose steps are known
#
# NumPy has no hypot of its own: its loop calls the C library's for one pair after the other. glibc's hypotf takes the
# root of the sum of the squares as double (sysdeps/ieee754/flt-32/e_hypotf.c). The squares are exact then, so each
# processor has the same bits, with fused instructions or without.


#: Pairs whose exact length rounds to another float than its double does, up and down.
_ROUNDED_TWICE = (
    ("0x1.febea6p+0", "0x1.ff5f3ap-12"),
    ("0x1.93e35ap+0", "0x1.c6be12p-12"),
    ("0x1.516996p+0", "0x1.9fa366p-12"),
    ("0x1.90d690p+0", "0x1.c505b0p-12"),
    ("0x1.8802f0p+0", "0x1.c001aep-12"),
    ("0x1.af3350p+0", "0x1.d5dddap-12"),
)
_EXTREME = (0.0, -0.0, 1.0, -3.0, 1e-45, 2e-39, 3e38, -3e38, np.inf, -np.inf, np.nan)


def with_steps(program: Program) -> Program:
    """Return the program with known steps of NumPy's loops in place of calls to them."""
    if not any(_has_steps(program, node) for node in program.nodes) or not _is_rooted_as_double():
        return program
    nodes = [
        Node(BitwiseBinary("hypot", "steps"), node.inputs) if _has_steps(program, node) else node
        for node in program.nodes
    ]
    return Program.trusted(tuple(nodes), program.outputs, program.specs, program.lines)


def _has_steps(program: Program, node: Node) -> bool:
    is_length = isinstance(node.op, Binary) and node.op.fn == "hypot" and node.op.last_bits == "numpy"
    return is_length and program.specs[node.inputs[0]].dtype == "float32"


@cache
def _is_rooted_as_double() -> bool:
    """Return whether NumPy's lengths are those of glibc, which has rounded them so in every known version."""
    if sys.platform != "linux" or not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
        return False
    numbers = 1 + np.arange(2 * _COUNT) * 0.6180339887498949 % 1
    twice = np.array([[float.fromhex(each) for each in pair] for pair in _ROUNDED_TWICE]).T
    extreme = np.array([(x, y) for x in _EXTREME for y in _EXTREME]).T
    x, y = np.concatenate([numbers.reshape(2, _COUNT), twice, extreme], axis=1).astype(np.float32)
    with np.errstate(all="ignore"):
        length = np.sqrt(x.astype(np.float64) ** 2 + y.astype(np.float64) ** 2).astype(np.float32)
        length[np.isinf(x) | np.isinf(y)] = np.inf
        return np.array_equal(np.hypot(x, y), length, equal_nan=True)


def _number(address: int) -> int:
    return ctypes.c_int.from_address(address).value


def _address(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
