"""Arrays that are more than their numbers: masked ones, matrices, records, tables with labels. What they mean is lost
when only their numbers are taken, so they are refused instead."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.errors import InvalidOption

#: Libraries whose arrays have labels, units or masks beside their numbers, with what gives the numbers alone.
_LABELLED = {"pandas": "x.to_numpy()", "xarray": "x.to_numpy()", "polars": "x.to_numpy()", "astropy": "x.value"}


def require_plain(x: Any, what: str) -> None:
    """Raises for what is not an ordinary array, or something that becomes one."""
    kind = type(x)
    if kind is np.ndarray or kind is np.memmap:
        return
    if isinstance(x, np.ma.MaskedArray):
        advice = "x.filled(value), or x.data without the mask"
    elif isinstance(x, np.ndarray):
        advice = "np.asarray(x), if the numbers are all that is meant"
    else:
        advice = _LABELLED.get(kind.__module__.partition(".")[0], "")
    if advice:
        raise InvalidOption(
            f"{what} takes ordinary arrays, and a {kind.__name__} is more than its numbers. Pass {advice}."
        )
