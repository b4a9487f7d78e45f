"""Warnings that are given while a function is traced, such as that of `np.mean` for an empty constant.

The call gives the same warnings. Filters that show a warning once for each line hide the second one. Where a filter
shows each warning, the trace ends instead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.base.warning_filters import SHOWS_EACH, action_of

#: The code that Python and C run to show a warning.
_SHOW = getattr(getattr(warnings, "_showwarnmsg", None), "__code__", None)


@contextmanager
def shown_once(tracer: AbstractDevice) -> Iterator[None]:
    """End the trace where it would show a warning that the call shows as well.

    A hook of `sys.setprofile` sees that in this thread only; other filters, or another hook of `warnings`, would
    change what other threads show. Where a profiler has set its own hook, a warning may be shown twice.
    """
    found: Any = warnings.filters
    if _SHOW is None or sys.getprofile() is not None or not any(each[0] in SHOWS_EACH for each in found):
        yield
        return

    def stop_at_warnings(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _SHOW:
            given: Any = frame.f_locals[_SHOW.co_varnames[0]]
            if action_of(given.category, str(given.message), None, given.lineno) in SHOWS_EACH:
                tracer.stop("it gives a warning", (given.filename, given.lineno))

    sys.setprofile(stop_at_warnings)
    try:
        yield
    finally:
        sys.setprofile(None)
