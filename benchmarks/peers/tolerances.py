"""Whether a tool's result is NumPy's. Loads nothing but NumPy: each tool's process imports this."""

from __future__ import annotations

from typing import Any

import numpy as np

#: How far an element may be from NumPy's, relative to the greatest one; integers have to be equal.
TOLERANCES = {"float32": 1e-4, "float64": 1e-9}
#: So large a share of the elements may be further away: where two tools round differently, comparisons and the nearest
#: of two may fall the other way.
SHARE_THAT_MAY_DIFFER = 1e-3


def share_that_differs(expected: Any, found: Any) -> float:
    """Of the elements; 1 when the shape is another one."""
    if expected.shape != found.shape:
        return 1.0
    tolerance = TOLERANCES.get(expected.dtype.name, 0.0)
    scale = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    close = np.isclose(expected, found, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return 1.0 - float(np.mean(close))
