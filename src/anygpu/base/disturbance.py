"""How far a measured time may be believed: whether something else had the processors meanwhile.

Noise only ever adds to a time. So one that was measured while the machine was calm stands; one that was *disturbed* is
kept as long as there is no other, is known to be doubtful, and is measured again when the machine is calm. Everything
that learns from times goes by this: sizes of kernels, calibrations, batches and the choice of a device.

A thread that could run and does not waits in the run queue of the system. What our own threads have waited there, by
what they have had of the processors, says how busy the machine is for us, whoever it is that keeps it busy: a share of
0.1 is usual when several threads of ours take turns, and 0.5 means that everything takes twice as long.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Of the time in which threads could have run, the share that they waited for a processor: more is a busy machine.
MOST_LOST = 0.4
#: A wait that is less of the time that was measured has hardly changed that.
LEAST_WAITING = 0.1
#: The best of several repeats is believed if the next best took at most so many times as long.
MOST_SPREAD = 1.5

#: A reading looks at every thread, some 13 µs each, so short calls share one: readings are so many seconds apart, or so
#: many times what one takes.
INTERVAL, RARELY = 0.1, 300.0
#: What has taken less is judged by the last interval: there is too little of it to tell.
TELLING = 0.02


class Reading(NamedTuple):
    """What the threads of this process have had up to a moment, in seconds."""

    #: By the clock.
    seconds: float
    #: On a processor.
    processor: float
    #: In the run queue; `None` where the system does not tell.
    waiting: float | None


class Conditions(NamedTuple):
    """Under which conditions something was measured."""

    seconds: float
    processor: float
    waiting: float | None
    #: What the next best of its repeats took, by what the best one took; `None` if it was not repeated.
    spread: float | None = None

    @property
    def lost(self) -> float:
        """The share of the time in which threads could have run that they waited for a processor."""
        if not self.waiting:
            return 0.0
        return self.waiting / (self.waiting + self.processor)

    @property
    def disturbed(self) -> bool:
        """Whether the time is doubtful: something else had the processors, or repeats took very different times."""
        if self.waiting is not None and self.waiting > LEAST_WAITING * self.seconds and self.lost > MOST_LOST:
            return True
        return self.spread is not None and self.spread > MOST_SPREAD


def conditions(before: Reading, after: Reading, repeats: Sequence[float] = ()) -> Conditions:
    """Those between two readings, of something whose repeats took so long."""
    waiting = None
    if before.waiting is not None and after.waiting is not None:
        # Threads that have ended are not in the later reading.
        waiting = max(0.0, after.waiting - before.waiting)
    processor = max(0.0, after.processor - before.processor)
    return Conditions(max(0.0, after.seconds - before.seconds), processor, waiting, spread(repeats))


def spread(repeats: Sequence[float]) -> float | None:
    """What the next best took, by what the best did; `None` for fewer than two."""
    if len(repeats) < 2:
        return None
    best, second = sorted(repeats)[:2]
    return second / best if best > 0 else 1.0 if second <= 0 else float("inf")


def read_processors(child: int | None = None, *, processes: str = "/proc") -> Reading:
    """What the threads of this process have had, and those of a child. Only Linux says how long they have waited."""
    now = time.perf_counter()
    ran = waited = 0
    known = False
    for process in ("self",) if child is None else ("self", str(child)):
        threads = f"{processes}/{process}/task"
        try:
            names = os.listdir(threads) if sys.platform == "linux" else []
        except OSError:
            names = []
        for name in names:
            try:
                # Without a buffer, because that takes half of the time.
                file = os.open(f"{threads}/{name}/schedstat", os.O_RDONLY)
                try:
                    processor, waiting, _ = os.read(file, 96).split()
                finally:
                    os.close(file)
                ran, waited, known = ran + int(processor), waited + int(waiting), True
            except (OSError, ValueError):  # it has ended since, or the system keeps no such figures
                continue
    return Reading(now, ran / 1e9, waited / 1e9) if known else Reading(now, time.process_time(), None)


class DisturbanceWatch:
    """Says of one measurement after the other whether it was disturbed. Any thread may ask.

    There is no lock: two threads that read at once learn the same.
    """

    def __init__(self, read: Callable[[], Reading] = read_processors) -> None:
        """Takes no reading yet: `read` is asked when the first measurement begins."""
        self._read = read
        self._last: Reading | None = None
        self._interval = INTERVAL
        #: Whether the last interval was disturbed.
        self._was_disturbed = False

    def begin(self, now: float) -> Reading:
        """Something begins now, by the clock of the readings."""
        last = self._last
        if last is None or not 0 <= now - last.seconds < self._interval:
            # Nothing may have been measured since the last reading, so what was between says nothing.
            return self._take()
        return last

    def end(self, begun: Reading, now: float) -> bool:
        """It has ended: whether it was disturbed."""
        if now - begun.seconds < TELLING:
            return self._was_disturbed
        last = self._last
        if last is not None and last is not begun and now - last.seconds < TELLING:
            return self._was_disturbed  # another thread has just looked
        self._was_disturbed = conditions(begun, self._take()).disturbed
        return self._was_disturbed

    @property
    def is_calm(self) -> bool:
        """Whether the last interval was not disturbed."""
        return not self._was_disturbed

    def since_last(self, now: float) -> bool:
        """Whether what has happened since the last reading was disturbed, without calls that were looked at."""
        return self.end(self._last, now) if self._last is not None else False

    def _take(self) -> Reading:
        """Takes a reading, and keeps later ones so far apart that they take a small share of the time."""
        begin = time.perf_counter()
        reading = self._read()
        self._interval = max(INTERVAL, RARELY * (time.perf_counter() - begin))
        self._last = reading
        return reading
