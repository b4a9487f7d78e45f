"""What one process has seen of its own calls since it is observed.

Every call leaves a note in a buffer, which takes a fraction of a microsecond. The buffer is folded into statistics when
it is full or when somebody asks: no thread runs for it, and its memory does not grow.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from anygpu.observe.calls import Call, Fallback, call_of, fallback_of
from anygpu.observe.findings import Anomaly
from anygpu.observe.statistics import Statistics, Summary
from anygpu.observe.watching import Sample, Watch
from anygpu.receipts import Origin, Receipt, Seen

#: Calls that wait to be folded. Folding many at once is cheaper for each.
BUFFERED = 512
#: Calls that are remembered one by one, and those that did not run where they were meant to.
RECENT, FALLBACKS = 1000, 100
#: Anomalies that are remembered.
ANOMALIES = 100

_clock = time.perf_counter


class Observation:
    """Of the calls of this process. It is called with each of them."""

    def __init__(self) -> None:
        now = _clock()
        #: Added to times of `time.perf_counter`, these become seconds since 1970.
        self.epoch = time.time() - now
        self._statistics = Statistics(now)
        self._folding = threading.Lock()
        self._pending: deque[tuple[Seen, float]] = deque()
        self._recent: deque[tuple[Seen, float]] = deque(maxlen=RECENT)
        self._fallbacks: deque[Fallback] = deque(maxlen=FALLBACKS)
        #: Of the newest call that was folded.
        self._number = 0
        self._watch = Watch()
        self._anomalies: deque[Anomaly] = deque(maxlen=ANOMALIES)
        #: Those that nobody has been told of.
        self._untold: deque[Anomaly] = deque(maxlen=ANOMALIES)

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        pending = self._pending
        # Of all but receipts, the last field is when the call ended.
        pending.append((seen, _clock() if type(seen) is Receipt else seen[-1]))  # type: ignore[index]
        if len(pending) >= BUFFERED:
            self._fold(wait=False)

    def summary(self) -> Summary:
        """Counts, sums and quantiles up to now."""
        self._fold()
        with self._folding:
            return self._statistics.summary(_clock())

    def recent(self, since: int = 0) -> list[Call]:
        """The latest calls whose number is higher, about in the order they ended in."""
        self._fold()
        with self._folding:
            latest, newest = list(self._recent), self._number
        first = newest - len(latest) + 1
        return [
            call_of(seen, end + self.epoch, number)
            for number, (seen, end) in enumerate(latest, first)
            if number > since
        ]

    def fallbacks(self) -> list[Fallback]:
        """The latest calls that did not run where they were first meant to."""
        self._fold()
        with self._folding:
            return list(self._fallbacks)

    def add_sample(self, sample: Sample) -> None:
        """What the process and its devices use now."""
        with self._folding:
            self._note(self._watch.add_sample(sample, time.time()))

    def anomalies(self) -> list[Anomaly]:
        """The latest ones, the newest last."""
        self._fold()
        with self._folding:
            return list(self._anomalies)

    def take_untold(self) -> list[Anomaly]:
        """Those that have been found since the last time that this was called."""
        with self._folding:
            found = list(self._untold)
            self._untold.clear()
        return found

    def _note(self, found: list[Anomaly]) -> None:
        self._anomalies.extend(found)
        self._untold.extend(found)

    @property
    def calls(self) -> int:
        """How many have ended so far."""
        self._fold()
        return self._number

    def _fold(self, *, wait: bool = True) -> None:
        # A call may end in the middle of this on the same thread, by a signal or the garbage collector: it does not
        # wait for itself, and is folded by the next.
        if not self._folding.acquire(blocking=wait):
            return
        try:
            # Others may append meanwhile, and nobody else takes: what is there now is taken, one by one.
            take = self._pending.popleft
            seen = [take() for _ in range(len(self._pending))]
            self._statistics.add(seen)
            self._recent.extend(seen)
            self._number += len(seen)
            for one, end in seen:
                if type(one) is Receipt and (one.host_operations or len(one.attempts) > 1):
                    found = fallback_of(one, end + self.epoch)
                    if found is not None:
                        self._fallbacks.append(found)
            self._note(self._watch.add_calls(seen, time.time()))
        finally:
            self._folding.release()
