"""What one process has seen of its own calls since it is observed.

Every call leaves a note in a buffer, which takes a fraction of a microsecond. The buffer is folded into statistics when
it is full or when somebody asks: no thread runs for it, and its memory does not grow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from anygpu.observe.calls import Call, Fallback, call_of, fallback_of
from anygpu.observe.statistics import Statistics, Summary
from anygpu.receipts import Origin, Receipt, Seen

#: Calls that wait to be folded. Folding many at once is cheaper for each.
BUFFERED = 512
#: Calls that are remembered one by one, and those that did not run where they were meant to.
RECENT, FALLBACKS = 1000, 100

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
        #: Called with calls as they are folded, on the thread of whoever has them folded.
        self.followers: list[Callable[[Sequence[tuple[Seen, float]]], None]] = []

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

    def summary_and_histograms(self, bounds: Sequence[float]) -> tuple[Summary, dict[tuple[str, str], list[int]]]:
        """Both of the same calls: by function and device, how many took at most so many seconds, for each bound."""
        self._fold()
        with self._folding:
            return self._statistics.summary(_clock()), self._statistics.histograms(bounds)

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
            for follower in self.followers:
                follower(seen)
        finally:
            self._folding.release()
