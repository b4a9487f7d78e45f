"""What is going on in this process: statistics, metrics, traces, and a look from outside. It decides nothing.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable

from anygpu.errors import AnyGPUError
from anygpu.observe.answering import Answering
from anygpu.observe.findings import Anomaly
from anygpu.observe.observation import Observation
from anygpu.observe.sampling import Sampler
from anygpu.observe.snapshot_of import Describing
from anygpu.observe.statistics import Summary
from anygpu.receipts import Origin, Seen, observers

_current: Observation | None = None
_sampler: Sampler | None = None
_answering: Answering | None = None
_told: Callable[[Anomaly], object] | None = None
_starting = threading.Lock()


def start(*, on_anomaly: Callable[[Anomaly], object] | None = None) -> None:
    """Observe this process from now on, and answer those of this user who ask. A second call changes nothing.

    What is not as it was, such as a function that became slower, is logged as a warning of "anygpu.observe"; a callback
    is called with it, on a thread of its own.
    """
    global _told
    with _starting:
        if _current is None:
            _told = on_anomaly
            observers.append(_begin())


def stop() -> None:
    """Observe it no longer, and forget what was seen."""
    global _current, _sampler, _answering
    with _starting:
        if _current is not None:
            observers.remove(_current)
        sampler, answering = _sampler, _answering
        _current = _sampler = _answering = None
    if sampler is not None:
        sampler.close()
    if answering is not None:
        answering.close()


def summary() -> Summary:
    """What calls have taken since `start()`, by function and device."""
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def _begin() -> Observation:
    """The caller holds the lock, and lets the observation see calls."""
    global _current, _sampler
    _current = Observation()
    describing = Describing(_current)
    _sampler = Sampler(_current, describing.sample, _told)
    _answer(describing)
    return _current


def _answer(describing: Describing) -> None:
    """Nothing that is wrong with the folder where processes meet keeps a process from its work."""
    global _answering
    try:
        _answering = Answering(describing.take)
    except (AnyGPUError, OSError, RuntimeError) as error:
        warnings.warn(f"anygpu top cannot look at this process: {error}", RuntimeWarning, stacklevel=4)


def _end() -> None:
    if _answering is not None:
        _answering.close()


def _start_in_child(seen: Seen, origin: Origin | None) -> None:
    """The first call of a forked child: it is observed as its parent was, from here on, and answers for itself."""
    with _starting:
        if _start_in_child not in observers:
            return
        begun = _begin()
        observers[observers.index(_start_in_child)] = begun
    begun(seen, origin)


def _forked() -> None:
    """Called in a forked child. What its parent has seen is the parent's, and so are its threads and the socket."""
    global _current, _sampler, _answering, _starting
    _starting = threading.Lock()
    answering, _answering, _sampler = _answering, None, None
    if answering is not None:
        answering.close()
    if _current is not None and _current in observers:
        observers[observers.index(_current)] = _start_in_child
    _current = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
