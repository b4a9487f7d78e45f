"""The types of values, and which type two of them have together.

A dtype is its name. The rules are NumPy's (a test compares every pair), so that ordinary NumPy code keeps its meaning;
the Array API's table is a part of them.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Literal, get_args

DType = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
DTYPES: tuple[DType, ...] = get_args(DType)

Kind = Literal["bool", "signed", "unsigned", "float", "complex"]

SIGNED: tuple[DType, ...] = ("int8", "int16", "int32", "int64")
UNSIGNED: tuple[DType, ...] = ("uint8", "uint16", "uint32", "uint64")
FLOATS: tuple[DType, ...] = ("float16", "bfloat16", "float32", "float64")
COMPLEX: tuple[DType, ...] = ("complex64", "complex128")

KIND: dict[DType, Kind] = {
    "bool": "bool",
    **dict.fromkeys(SIGNED, "signed"),
    **dict.fromkeys(UNSIGNED, "unsigned"),
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys(COMPLEX, "complex"),
}
ITEMSIZE: dict[DType, int] = {
    name: 1 if name == "bool" else 2 if name == "bfloat16" else int(name.strip("abcdefghijklmnopqrstuvwxyz")) // 8
    for name in DTYPES
}

#: The type of a real or imaginary part.
REAL_PART: dict[DType, DType] = {"complex64": "float32", "complex128": "float64"}
COMPLEX_OF: dict[DType, DType] = {"float16": "complex64", "bfloat16": "complex64", "float32": "complex64"}

#: The 32-bit type for each 64-bit one.
NARROWER: dict[DType, DType] = {
    "float64": "float32",
    "complex128": "complex64",
    "int64": "int32",
    "uint64": "uint32",
}


#: What `struct` calls each type; a complex number is two of its parts. It has none for bfloat16.
FORMATS: dict[str, str] = {
    **{"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q"},
    **{"uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"},
    **{"float16": "e", "float32": "f", "float64": "d", "complex64": "ff", "complex128": "dd"},
}


def number_from(data: bytes, dtype: DType) -> bool | int | float | complex:
    """The number whose bytes these are, as Python has it. `bfloat16` has no such form."""
    parts = struct.unpack("=" + FORMATS[dtype], data)
    return complex(*parts) if len(parts) == 2 else parts[0]


def bytes_of(value: bool | int | float, dtype: DType) -> bytes:
    """The bytes of a real number that the type can hold."""
    number = value if dtype == "bool" or is_integer(dtype) else float(value)
    return struct.pack("=" + FORMATS[dtype], *((number, 0.0) if dtype in COMPLEX else (number,)))


def is_integer(dtype: DType) -> bool:
    return KIND[dtype] in ("signed", "unsigned")


def is_floating(dtype: DType) -> bool:
    """Real floating point; complex types are not."""
    return KIND[dtype] == "float"


def is_inexact(dtype: DType) -> bool:
    return KIND[dtype] in ("float", "complex")


@cache
def promote(one: DType, other: DType) -> DType:
    """The smallest type that holds the values of both, as NumPy has it."""
    if one == other:
        return one
    pair = {KIND[one], KIND[other]}
    if "bool" in pair:
        return other if KIND[one] == "bool" else one
    if "complex" in pair:
        double = any(dtype in ("complex128", "float64") or _bits_as_float(dtype) > 24 for dtype in (one, other))
        return "complex128" if double else "complex64"
    if "float" in pair:
        return _float_for(one, other)
    if pair == {"signed", "unsigned"}:
        signed, unsigned = (one, other) if KIND[one] == "signed" else (other, one)
        bits = max(ITEMSIZE[signed], 2 * ITEMSIZE[unsigned]) * 8
        return f"int{bits}" if bits <= 64 else "float64"  # type: ignore[return-value]
    return one if ITEMSIZE[one] >= ITEMSIZE[other] else other


def promote_all(*dtypes: DType) -> DType:
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = promote(result, dtype)
    return result


def default_float(dtype: DType) -> DType:
    """The type of `sqrt` and the like for a type that is not floating point: NumPy's float16, 32 or 64."""
    if is_inexact(dtype):
        return dtype
    return "float16" if ITEMSIZE[dtype] == 1 else "float32" if ITEMSIZE[dtype] == 2 else "float64"


def can_cast_safely(source: DType, target: DType) -> bool:
    return promote(source, target) == target


def holds_every_value(wide: DType, narrow: DType) -> bool:
    """Whether casting to the wide type and back gives the same values. (NumPy also calls int64 to float64 safe.)"""
    if is_integer(narrow) and is_inexact(wide) and ITEMSIZE[narrow] == 8:
        return False
    return can_cast_safely(narrow, wide)


def _bits_as_float(dtype: DType) -> int:
    """The bits that a float needs to hold every value of an integer type."""
    if not is_integer(dtype):
        return 0
    return 8 * ITEMSIZE[dtype]


def _float_for(one: DType, other: DType) -> DType:
    """The float that two types have in common, one of them a float: as wide as NumPy makes it.

    float16 and bfloat16 meet in float32.
    """
    floats = [dtype for dtype in (one, other) if is_floating(dtype)]
    if len(floats) == 2:
        if set(floats) == {"float16", "bfloat16"}:
            return "float32"
        return one if ITEMSIZE[one] >= ITEMSIZE[other] else other
    integer = other if floats[0] == one else one
    needed: DType = "float16" if ITEMSIZE[integer] == 1 else "float32" if ITEMSIZE[integer] == 2 else "float64"
    if floats[0] == "bfloat16":
        return "bfloat16" if ITEMSIZE[integer] == 1 else needed
    return floats[0] if ITEMSIZE[floats[0]] >= ITEMSIZE[needed] else needed
