"""What is going on in this process: statistics, metrics, traces, and a look from outside. It decides nothing.

Nothing here runs unless it is asked for: `start()`, `ANYGPU_OBSERVE=1`, or one of the commands.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from anygpu.observe.observation import Observation
from anygpu.observe.statistics import Summary
from anygpu.receipts import observers

if TYPE_CHECKING:
    from anygpu.observe.recording import Recording

_current: Observation | None = None
_starting = threading.Lock()


def start() -> Observation:
    """Observe this process from now on. A second call changes nothing."""
    global _current
    with _starting:
        if _current is None:
            _current = Observation()
            observers.append(_current)
        return _current


def stop() -> None:
    """Observe it no longer, and forget what was seen."""
    global _current
    with _starting:
        if _current is not None:
            observers.remove(_current)
            _current = None


def statistics() -> Summary:
    """What calls have taken since `start()`, by function and device."""
    current = _current
    return Summary(seconds=0.0, calls=(), observed=False) if current is None else current.summary()


def trace(path: str | os.PathLike[str], *, limit: int | str = "100MB") -> Recording:
    """Record the calls inside of a `with` block to a file that ui.perfetto.dev and chrome://tracing open.

    The file is at most as large as `limit`; what finds no room is counted, and said at the end. It is written when the
    block ends, also if that raises.
    """
    from anygpu.observe.recording import Recording

    return Recording(path, limit)
