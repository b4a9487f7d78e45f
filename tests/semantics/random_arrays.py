"""Arrays of random types, layouts and values, as the text of a Python expression."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

#: Names that the text needs.
HEAD = """\
import warnings
import numpy as np
from numpy import inf, nan


def unaligned(a):
    held = np.empty(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    held[...] = a
    return held


def locked(a):
    a.flags.writeable = False
    return a
"""

FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *COMPLEX, *INTEGERS, "bool")
#: Types that native code does not have.
ODD = ("longdouble", "clongdouble", "M8[s]", "m8[s]", "object", "U4")

_SPECIAL = (
    "nan", "inf", "-inf", "0.0", "-0.0", "1.0", "-1.0", "0.5", "-0.5", "1.5", "2.5", "-2.5", "1e-07", "-1e-07", "100.0",
    "127.5", "-128.5", "255.5", "256.0", "300.0", "32767.5", "65504.0", "-65504.0", "65519.0", "65520.0", "6e-08",
    "2147483647.0", "2147483648.0", "-2147483649.0", "4294967296.0", "9.2233720368547758e+18", "1.8446744073709552e+19",
    "-9.3e+18", "3.0000000001", "0.1", "3.141592653589793", "1.5707963267948966", "710.0", "-745.0", "88.8", "-104.0",
    "11.1", "1e+30", "-3e+38",
)  # fmt: skip
#: Of each type: the largest, the smallest normal and subnormal numbers, and one beside 1.
_LIMITS = {
    "float16": ("65504.0", "-65504.0", "6.104e-05", "6e-08", "-6e-08", "1.001", "4e-05"),
    "float32": ("3.4028235e+38", "-3.4028235e+38", "1.1754944e-38", "1e-45", "-1e-45", "1.0000001", "5e-39"),
    "float64": (
        "1.7976931348623157e+308", "-1.7976931348623157e+308", "2.2250738585072014e-308", "5e-324", "-5e-324",
        "1.0000000000000002", "1e-310", "1e+200", "-1e+200",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What an argument is: an array or a NumPy scalar of a type and a shape, or one of Python's numbers."""

    dtype: str
    shape: tuple[int, ...] | None = None

    @property
    def is_array(self) -> bool:
        return self.shape is not None


def float_text(rng: random.Random, dtype: str, special: float) -> str:
    """A number of a real type that is ordinary, or a special one so often."""
    limits = _LIMITS.get(dtype, _LIMITS["float64"])
    if rng.random() < special:
        for _ in range(20):
            text = rng.choice(_SPECIAL) if rng.random() < 0.75 else rng.choice(limits)
            value = float(text)
            if dtype not in FLOATS or not np.isfinite(value) or abs(value) <= float(np.finfo(dtype).max):
                return text
    if rng.random() < 0.5:
        return repr(rng.randint(-24, 24) / rng.choice((1, 2, 8)))
    with np.errstate(all="ignore"):
        value = rng.gauss(0, rng.choice((1, 1, 3, 50)))
        return repr(float(str(np.dtype(dtype).type(value)))) if dtype in FLOATS else repr(value)


def number_text(rng: random.Random, dtype: str, special: float) -> str:
    """The text of a number that an array of the type can hold."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.choice(("True", "False"))
    if kind in "iu":
        about = np.iinfo(dtype)
        if rng.random() < special:
            power = 1 << rng.randrange(about.bits)
            options = (about.min, about.max, about.min + 1, about.max - 1, 0, 1, -1, power, power - 1, -power)
            return str(rng.choice([each for each in options if about.min <= each <= about.max]))
        return str(rng.randint(0 if kind == "u" else -9, 9))
    if kind == "c":
        part = "float32" if dtype == "complex64" else "float64"
        return f"complex({float_text(rng, part, special)}, {float_text(rng, part, special)})"
    if kind in "mM":
        return (
            repr(rng.choice(("NaT", "1970-01-01", "2020-02-29T12:00:01"))) if kind == "M" else str(rng.randint(-9, 9))
        )
    if kind == "O":
        return rng.choice(("1", "2.5", "-3", "10**20"))
    if kind == "U":
        return rng.choice(("'a'", "'bc'", "''"))
    return float_text(rng, dtype, special)


def array_text(rng: random.Random, dtype: str, shape: tuple[int, ...], special: float, layout: str = "C") -> str:
    """An array in a layout, as `LAYOUTS` names them."""
    whole = list(shape)
    after = ""
    if shape:
        if layout == "transposed":
            whole, after = whole[::-1], ".T"
        elif layout == "reversed":
            after = "[::-1]"
        elif layout == "reversed along the last axis":
            after = "[..., ::-1]"
        elif layout == "every second":
            whole[0], after = 2 * whole[0], "[::2]"
        elif layout == "every second along the last axis":
            whole[-1], after = 2 * whole[-1], "[..., ::2]"
        elif layout == "part":
            whole[0], after = whole[0] + 1, "[1:]"
    size = int(np.prod(whole, dtype=int))
    numbers = ", ".join(number_text(rng, dtype, special) for _ in range(min(size, 24)))
    name = f"np.{dtype}" if dtype in (*FLOATS, *COMPLEX, *INTEGERS) else repr(dtype)
    text = f"np.array([{numbers}], {name})"
    if size > 24:
        text = f"np.resize({text}, {tuple(whole)})"
    elif len(whole) != 1:
        text += f".reshape({tuple(whole)})"
    text += after
    if layout == "Fortran":
        return f"np.asfortranarray({text})"
    if layout == "unaligned" and dtype != "object":
        return f"unaligned({text})"
    if layout == "read-only":
        return f"locked({text})"
    if layout == "other order of bytes":
        return f"{text}.astype(np.dtype({dtype!r}).newbyteorder())"
    if layout == "one row repeated" and shape and shape[0]:
        return f"np.broadcast_to({text}[:1], {shape})"
    return text


#: Ways in which an array may lie in memory, the usual one most often.
LAYOUTS = (
    "C", "C", "C", "Fortran", "transposed", "reversed", "reversed along the last axis", "every second", "part",
    "every second along the last axis", "unaligned", "read-only", "one row repeated",
)  # fmt: skip


def argument_text(rng: random.Random, given: Given, special: float, *, plain: bool = False) -> str:
    """An argument, in any layout unless it is a plain one."""
    if given.shape is not None:
        layout = "C" if plain else rng.choice(LAYOUTS) if rng.random() < 0.97 else "other order of bytes"
        return array_text(rng, given.dtype, given.shape, special, layout)
    if given.dtype == "int":
        return str(rng.choice((0, 1, 2, 3, -1, 5) if rng.random() > special else (-129, 255, 2**31, -(2**63), 2**40)))
    if given.dtype == "float":
        return float_text(rng, "float64", special)
    if given.dtype == "complex":
        return number_text(rng, "complex128", special)
    if given.dtype == "bool":
        return rng.choice(("True", "False"))
    return f"np.{given.dtype}({number_text(rng, given.dtype, special)})"
