"""What is going on in this process: statistics, metrics, traces, and a look from outside. It decides nothing.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings

from anygpu.errors import AnyGPUError
from anygpu.observe.answering import Answering
from anygpu.observe.observation import Observation
from anygpu.observe.snapshot_of import Describing
from anygpu.observe.statistics import Summary
from anygpu.receipts import Origin, Seen, observers

_current: Observation | None = None
_answering: Answering | None = None
_starting = threading.Lock()


def start() -> Observation:
    """Observe this process from now on, and answer those of this user who ask. A second call changes nothing."""
    global _current
    with _starting:
        if _current is None:
            _current = Observation()
            observers.append(_current)
            _answer(_current)
        return _current


def stop() -> None:
    """Observe it no longer, and forget what was seen."""
    global _current, _answering
    with _starting:
        if _current is not None:
            observers.remove(_current)
            _current = None
        if _answering is not None:
            _answering.close()
            _answering = None


def statistics() -> Summary:
    """What calls have taken since `start()`, by function and device."""
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def _answer(observation: Observation) -> None:
    """Nothing that is wrong with the folder where processes meet keeps a process from its work."""
    global _answering
    try:
        _answering = Answering(Describing(observation).take)
    except (AnyGPUError, OSError, RuntimeError) as error:
        warnings.warn(f"anygpu top cannot look at this process: {error}", RuntimeWarning, stacklevel=3)


def _end() -> None:
    if _answering is not None:
        _answering.close()


def _start_in_child(seen: Seen, origin: Origin | None) -> None:
    """The first call of a forked child: it is observed as its parent was, from here on, and answers for itself."""
    global _current
    with _starting:
        if _start_in_child not in observers:
            return
        _current = Observation()
        observers[observers.index(_start_in_child)] = _current
        _answer(_current)
    _current(seen, origin)


def _forked() -> None:
    """Called in a forked child. What its parent has seen is the parent's, and so is the socket."""
    global _current, _answering, _starting
    _starting = threading.Lock()
    answering, _answering = _answering, None
    if answering is not None:
        answering.close()
    if _current is not None and _current in observers:
        observers[observers.index(_current)] = _start_in_child
    _current = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
