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

#: The actions of filters that show a warning each time.
_EACH_TIME = ("always", "all")
#: The code that Python and C run to show a warning.
_SHOW = getattr(getattr(warnings, "_showwarnmsg", None), "__code__", None)


@contextmanager
def shown_once(tracer: AbstractDevice) -> Iterator[None]:
    """End the trace where it would show a warning that the call shows as well.

    A hook of `sys.setprofile` sees that in this thread only; other filters, or another hook of `warnings`, would
    change what other threads show. Where a profiler has set its own hook, a warning may be shown twice.
    """
    found: Any = warnings.filters
    if _SHOW is None or sys.getprofile() is not None or not any(each[0] in _EACH_TIME for each in found):
        yield
        return

    def stop_at_warnings(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is _SHOW:
            message: Any = frame.f_locals.get("msg")
            if _is_shown_each_time(message):
                tracer.stop("it gives a warning", (message.filename, message.lineno))

    sys.setprofile(stop_at_warnings)
    try:
        yield
    finally:
        sys.setprofile(None)


def _is_shown_each_time(message: Any) -> bool:
    """Return whether the first filter for a warning shows it each time; `False` where it depends on the module."""
    found: Any = warnings.filters
    for action, text, category, module, line in found:
        if issubclass(message.category, category) and (not line or line == message.lineno):
            if module is not None:
                return False
            if text is None or text.match(str(message.message)):
                return action in _EACH_TIME
    return False
