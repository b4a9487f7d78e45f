"""The small computation that a device must get right before it is offered to anyone.

`y = x·x + 3·x` over an odd number of elements, so that kernels which round sizes up are caught, and on whole numbers
that every dtype holds exactly, so that the check is equality and needs no tolerance.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from anygpu.base.typing import HostArray

VerifiedType = Literal["float32", "int32", "float16", "float64", "int64"]

#: Every device must compute these.
ALWAYS: tuple[VerifiedType, ...] = ("float32", "int32")

#: With `--deep`, a device must also compute what its features promise.
BY_FEATURE: dict[str, VerifiedType] = {"f16": "float16", "f64": "float64", "i64": "int64"}

SIZE = 1021


def types_to_verify(features: tuple[str, ...], *, deep: bool) -> tuple[VerifiedType, ...]:
    if not deep:
        return ALWAYS
    return ALWAYS + tuple(dtype for feature, dtype in BY_FEATURE.items() if feature in features)


def inputs(dtype: VerifiedType) -> HostArray:
    # float16 holds whole numbers exactly only up to 2048, so the values stay small; the period is not a power of two.
    return (np.arange(SIZE) % 67 - 33).astype(dtype)


def expected(dtype: VerifiedType) -> HostArray:
    values = inputs(dtype)
    return np.asarray(values * values + np.asarray(3, dtype) * values)


def mistake(dtype: VerifiedType, result: HostArray) -> str | None:
    """`None` when the result is right, otherwise a sentence on the first thing that is wrong."""
    wanted = expected(dtype)
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return f"{dtype}: got {result.dtype} of shape {result.shape} instead of {wanted.dtype} of shape {wanted.shape}"
    wrong = np.flatnonzero(result != wanted)
    if len(wrong) == 0:
        return None
    first = int(wrong[0])
    example = f"[{first}] is {result[first]} instead of {wanted[first]}"
    return f"{dtype}: {len(wrong)} of {SIZE} values are wrong; {example}"
