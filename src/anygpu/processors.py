"""The processors that this process may use, and whether it leaves one idle."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

#: So much of a processor has to be idle: a call on one thread also uses others for a moment.
_SPARE = 0.75


def usable_processors(cgroup: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The processors that this process may use, as far as it or its container is limited."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # No Linux, or no limit. And `open`, because loading `pathlib` takes longer than a first call may.
    with contextlib.suppress(OSError, ValueError), open(cgroup) as file:
        quota, period = map(int, file.read().split())
        return max(1, min(found, quota // period))
    return found


class ProcessorUse:
    """How many processors this process uses on average, of those that it may use."""

    def __init__(
        self,
        processors: int,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._processors = processors
        self._clock, self._processor_clock = clock, processor_clock
        self._began, self._began_with = clock(), processor_clock()

    def has_spare(self) -> bool:
        """Whether one is idle most of the time, as it is beside calls on one thread."""
        seconds = self._clock() - self._began
        used = self._processor_clock() - self._began_with
        return seconds > 0 and self._processors - used / seconds >= _SPARE
