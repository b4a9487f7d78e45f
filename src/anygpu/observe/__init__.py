"""What is going on in this process: statistics, metrics, traces, and a look from outside. It decides nothing.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from anygpu.observe.findings import Advice, Anomaly
from anygpu.observe.observation import Observation
from anygpu.observe.sampling import Sampler
from anygpu.observe.statistics import Summary
from anygpu.receipts import observers

if TYPE_CHECKING:
    from anygpu.observe.advising.advisor import Advisor

_current: Observation | None = None
_sampler: Sampler | None = None
_advisor: Advisor | None = None
_starting = threading.Lock()


def start(*, on_anomaly: Callable[[Anomaly], object] | None = None, advice: bool = False) -> None:
    """Observe this process from now on. A second call changes nothing.

    What is not as it was, such as a function that became slower, is logged as a warning of "anygpu.observe"; a callback
    is called with it, on a thread of its own. With `advice=True` calls and arrays are also looked at line by line: this
    takes as long as copying what goes to devices; `advice()` says what was found.
    """
    global _current, _sampler, _advisor
    from anygpu.observe.process import sample

    with _starting:
        if _current is None:
            _current = Observation()
            _sampler = Sampler(_current, sample, on_anomaly)
            observers.append(_current)
        if advice and _advisor is None:
            from anygpu.observe.advising.advisor import Advisor

            _advisor = Advisor()
            _advisor.start()


def stop() -> None:
    """Observe it no longer, and forget what was seen."""
    global _current, _sampler, _advisor
    with _starting:
        sampler = _sampler
        if _current is not None:
            observers.remove(_current)
        if _advisor is not None:
            _advisor.stop()
        _current = _sampler = _advisor = None
    if sampler is not None:
        sampler.close()


def statistics() -> Summary:
    """What calls have taken since `start()`, by function and device."""
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def advice() -> list[Advice]:
    """What to change in the program, the most expensive first; needs `start(advice=True)` before the calls."""
    advisor = _advisor
    return [] if advisor is None else advisor.advice()


def _forked() -> None:
    """A forked child is a process of its own, without threads: it is observed from its beginning if its parent was."""
    global _current, _sampler, _starting
    _starting = threading.Lock()
    if _current is None:
        return
    observers.remove(_current)
    _current = _sampler = None
    start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
