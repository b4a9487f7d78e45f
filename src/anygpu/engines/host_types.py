"""The types and the errors of programs as NumPy has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.codegen.kernel import MINUS_ONE, Check
from anygpu.errors import KernelOutOfBounds, Unsupported
from anygpu.program.dtypes import DTYPES, DType


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy has no bfloat16 of its own, only with the package ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        instead = "Cast to float32 on the device first, or import ml_dtypes."
        raise Unsupported(dtype, "NumPy without ml_dtypes", instead=instead) from None


#: Types in the host's byte order. NumPy makes up the name of a type each time it is asked.
HOST_DTYPES: dict[np.dtype[Any], DType] = {np.dtype(name): name for name in DTYPES if name != "bfloat16"}


def dtype_name(dtype: np.dtype[Any]) -> DType:
    known = HOST_DTYPES.get(dtype)
    return known if known is not None else dtype.name  # type: ignore[return-value]


# -- rules that only values can break, as kernels and nests report them: see `codegen.kernel.Check`


def raise_broken(checks: Sequence[Check], status: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Raise for the first rule that is broken by the words of the status, if one is."""
    for check in checks:
        word = int(status.view(np.uint32)[check.number])
        if word:
            raise broken_rule(check, word)


def broken_rule(check: Check, word: int) -> Exception:
    """What NumPy raises for the same mistake."""
    if check.error == "negative_power":
        return ValueError("integers to negative integer powers are not allowed; convert the base to float first.")
    if check.error == "kernel":
        index = (word - 1 + check.length) % (1 << 32)
        return KernelOutOfBounds(
            check.kernel, check.buffer, index if index < 1 << 31 else index - (1 << 32), check.length
        )
    value = -1 if word == MINUS_ONE else word - 1 if word <= 1 << 31 else word - 1 - (1 << 32)
    return IndexError(f"index {value} is out of bounds for an axis with size {check.length}.")
