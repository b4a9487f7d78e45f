"""The types of programs as NumPy has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.errors import Unsupported
from anygpu.program.dtypes import DType


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy has no bfloat16 of its own, only with the package ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        instead = "Cast to float32 on the device first, or import ml_dtypes."
        raise Unsupported(dtype, "NumPy without ml_dtypes", instead=instead) from None
