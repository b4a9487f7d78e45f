"""The values of the table, by type."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.dtypes import ITEMSIZE, KIND, REAL_PART, DType

#: NumPy itself has no bfloat16.
TYPES: tuple[DType, ...] = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def special_values(dtype: DType) -> HostArray:
    """Zeros, ones, limits, what is not finite, subnormals, ties of rounding, large arguments of periodic functions."""
    match KIND[dtype]:
        case "bool":
            return np.array([False, True])
        case "signed" | "unsigned":
            return _whole(dtype)
        case "float":
            return _floats(dtype)
    parts = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, -0.5, 2.5, 1.5, -3, 30.25], REAL_PART[dtype])
    return _complex(dtype, parts)


def few_values(dtype: DType) -> HostArray:
    """Those that compilers fold most eagerly, the first ones most: for what costs a kernel each, or for each pair."""
    match KIND[dtype]:
        case "signed" | "unsigned":
            limits = np.iinfo(dtype)
            signed = KIND[dtype] == "signed"
            numbers = [0, -1 if signed else limits.max, 8 * ITEMSIZE[dtype], limits.min if signed else 1]
            numbers += [-2, limits.max, 1] if signed else []
            return np.array([*numbers, 2, 3, 8 * ITEMSIZE[dtype] - 1], dtype)
        case "float":
            facts = np.finfo(dtype)
            return np.array([0.0, -0.0, np.inf, np.nan, -1, 1, -np.inf, 0.5, 2, -3, facts.max, facts.tiny], dtype)
        case "complex":
            return _complex(dtype, np.array([0.0, -0.0, 1, np.inf, np.nan], REAL_PART[dtype]))
    return special_values(dtype)


def pair_values(dtype: DType) -> HostArray:
    """Those that are taken in every pair."""
    if KIND[dtype] == "complex":
        return _complex(dtype, np.array([0.0, -0.0, 1, -2.5, np.inf, -np.inf, np.nan], REAL_PART[dtype]))
    return special_values(dtype)


def summands(dtype: DType) -> HostArray:
    """Those whose sums and products are the same in every order, apart from rounding."""
    if KIND[dtype] not in ("float", "complex"):
        return special_values(dtype)
    parts = np.array([0.0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan], REAL_PART.get(dtype, dtype))
    return parts if KIND[dtype] == "float" else _complex(dtype, parts[[0, 1, 2, 4, 5, 7]])


def _whole(dtype: DType) -> HostArray:
    limits, bits = np.iinfo(dtype), 8 * ITEMSIZE[dtype]
    numbers = [0, 1, 2, 3, 7, 10, 42, bits - 1, bits, bits + 1, 100, 1 << bits // 2 - 1, 1 << bits // 2]
    numbers += [limits.max // 3 + 1, limits.max - 1, limits.max]
    if KIND[dtype] == "signed":
        numbers += [-1, -2, -3, -7, -bits, -100, -(1 << bits // 2 - 1), limits.min // 3 - 1, limits.min + 1, limits.min]
    else:
        numbers += [limits.max // 2, limits.max // 2 + 1]
    return np.array(sorted(set(numbers)), dtype)


def _floats(dtype: DType) -> HostArray:
    facts = np.finfo(dtype)
    parts: list[Any] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        -2.5,
        2.0,
        3.0,
        -3.0,
        0.25,
        10.0,
    ]
    parts += [np.pi, -np.pi / 2, 0.1, 7.25, -100.0, 1e-3, 2048.5, -30000.0]
    parts += [facts.max, -facts.max, facts.tiny, -facts.tiny, facts.smallest_subnormal, -facts.tiny / 2]
    parts += [facts.eps, 1 + facts.eps, 1 - facts.eps / 2]
    if dtype != "float16":
        parts += [1e8, -1e9, 3e9, 2.0**24 - 1, 8388607.5, 2.0**31, 2.0**63, 1e30]
    if dtype == "float64":
        parts += [1e17, 2.0**53 - 1, 4503599627370495.5, 1e300]
    return np.array(parts, dtype)


def _complex(dtype: DType, parts: HostArray) -> HostArray:
    """Every pair, made without arithmetic, in which an infinity times 0 would be NaN."""
    result = np.empty((len(parts), len(parts)), dtype)
    result.real, result.imag = parts[:, None], parts[None, :]
    return result.ravel()


def pairs(x: HostArray, y: HostArray) -> tuple[HostArray, HostArray]:
    """Every pair as two vectors."""
    return np.repeat(x, len(y)), np.tile(y, len(x))
