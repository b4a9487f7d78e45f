"""Differences between versions of NumPy: functions of arrays behave as in the version that is installed."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

_VERSION = tuple(int(part) for part in re.findall(r"\d+", np.__version__)[:2])

#: From 2.5 on, `np.cross` takes only vectors of three components; before, it warns about those of two.
CROSSES_PLANES = _VERSION < (2, 5)
#: From 2.5 on, `np.fix` warns that it is deprecated.
FIX_WARNS = _VERSION >= (2, 5)


@cache
def has_real_eigenvalues() -> bool:
    """Return whether `eig` and `eigvals` of a real matrix return real numbers when all eigenvalues are real.

    NumPy does so before 2.5.
    """
    return np.linalg.eigvals(np.ones((1, 1))).dtype.kind == "f"
