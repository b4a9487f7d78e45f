"""What each primitive means in plain NumPy, written without the engine that interprets programs with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.program.dtypes import KIND, DType
from anygpu.program.functions import FUNCTIONS

_UNARY: dict[str, Callable[[HostArray], Any]] = {
    "erf": lambda x: np.array([math.erf(each) for each in x.ravel().tolist()]).reshape(x.shape).astype(x.dtype),
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "mantissa": lambda x: np.frexp(x)[0],
    "exponent": lambda x: np.frexp(x)[1],
}


def unary_reference(fn: str) -> Callable[[HostArray], Any]:
    found = _UNARY.get(fn)
    return found if found is not None else getattr(np, FUNCTIONS[fn].numpy_name)


def binary_reference(fn: str) -> Callable[[HostArray, HostArray], Any]:
    if fn == "complex":
        return _complex
    return getattr(np, FUNCTIONS[fn].numpy_name)  # type: ignore[no-any-return]


def _complex(x: HostArray, y: HostArray) -> HostArray:
    result = np.empty(x.shape, np.complex128 if x.dtype == np.float64 else np.complex64)
    result.real, result.imag = x, y
    return result


def cast_reference(target: DType) -> Callable[[HostArray], Any]:
    def cast(x: HostArray) -> HostArray:
        real = x.dtype.kind == "c" and KIND[target] not in ("complex", "bool")
        return np.asarray(x.real if real else x).astype(target)

    return cast


def scan_reference(fn: str) -> Callable[[HostArray], Any]:
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[fn]
    return lambda x: ufunc.accumulate(x, axis=1, dtype=x.dtype)
