"""The types of programs as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.errors import Unsupported
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
