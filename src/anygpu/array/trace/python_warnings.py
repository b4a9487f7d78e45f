"""Warnings that Python code gives while a function is traced, such as `np.mean` of an empty constant.

The call gives the same warnings. Filters that show a warning once for each line hide the second one. Under filters that
show every warning, a trace ends where it would give one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from anygpu.array.core.abstract_device import AbstractDevice

#: The actions of filters that show a warning each time.
_EACH_TIME = ("always", "all")


@contextmanager
def shown_once(tracer: AbstractDevice) -> Iterator[None]:
    """End the trace where `warnings.warn` is called, if filters may show each warning.

    A hook of `sys.setprofile` sees the call in this thread only; other filters, or another hook of `warnings`, would
    change what other threads show. Where a profiler has set its own hook, a warning may be shown twice.
    """
    found: Any = warnings.filters
    if sys.getprofile() is not None or not any(each[0] in _EACH_TIME for each in found):
        yield
        return

    def stop_at_warnings(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called is warnings.warn:
            tracer.stop("it gives a warning")

    sys.setprofile(stop_at_warnings)
    try:
        yield
    finally:
        sys.setprofile(None)
