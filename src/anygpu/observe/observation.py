"""What one process has seen of its own calls since it is observed.

Every call leaves a note in a buffer, which takes a fraction of a microsecond. The buffer is folded into statistics when
it is full or when somebody asks: no thread runs for it, and its memory does not grow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from anygpu.base.interrupts import TryAcquire
from anygpu.notes import Failure, Note, Origin, Seen
from anygpu.observe.batch import batches
from anygpu.observe.calls import Call, Fallback, call_of, fallback_of
from anygpu.observe.findings import Anomaly
from anygpu.observe.statistics import Statistics, Summary
from anygpu.observe.watching import Sample, Watch
from anygpu.receipts import Receipt

#: Calls that wait to be folded. Folding many at once is cheaper for each.
BUFFERED = 512
#: Calls that are remembered one by one, and those that did not run where they were meant to.
RECENT, FALLBACKS = 1000, 100
#: Anomalies that are remembered.
ANOMALIES = 100

_clock = time.perf_counter

_Folded = tuple[list[Note], list[tuple[Receipt | Failure, float]]]


class Observation:
    """Of the calls of this process. It is called with each of them."""

    def __init__(self) -> None:
        now = _clock()
        #: Added to times of `time.perf_counter`, these become seconds since 1970.
        self.epoch = time.time() - now
        self._statistics = Statistics(now)
        self._folding = threading.RLock()
        #: Calls that wait to be folded: those that left a note, and others with when they ended.
        self._notes: deque[Note] = deque()
        self._others: deque[tuple[Receipt | Failure, float]] = deque()
        #: Of what was folded, the latest parts, each with the number of its last call.
        self._recent: deque[tuple[int, _Folded]] = deque()
        self._fallbacks: deque[Fallback] = deque(maxlen=FALLBACKS)
        #: Of the newest call that was folded.
        self._number = 0
        self._watch = Watch()
        self._anomalies: deque[Anomaly] = deque(maxlen=ANOMALIES)
        #: Those that nobody has been told of.
        self._untold: deque[Anomaly] = deque(maxlen=ANOMALIES)

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        # For every call, also of functions that take a microsecond.
        if type(seen) is tuple:
            notes = self._notes
            notes.append(seen)  # type: ignore[arg-type]
            if len(notes) >= BUFFERED:
                self._fold(wait=False)
        else:
            one: Receipt | Failure = seen  # type: ignore[assignment]
            self._others.append((one, _clock()))
            if len(self._others) >= BUFFERED:
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
            parts = list(self._recent)
        found: list[Call] = []
        for number, (notes, others) in parts:
            ended: list[tuple[Seen, float]] = [(note, note[3]) for note in notes]
            ended += others
            ended.sort(key=_end)
            first = number - len(ended) + 1
            found += [
                call_of(seen, end + self.epoch, each) for each, (seen, end) in enumerate(ended, first) if each > since
            ]
        return found[-RECENT:]

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
        with TryAcquire(self._folding, None if wait else 0.0) as acquired:
            if not acquired:
                return
            # More may come meanwhile, and nobody else takes: what is there now is taken, one by one.
            take_note, take_other = self._notes.popleft, self._others.popleft
            notes = [take_note() for _ in range(len(self._notes))]
            others = [take_other() for _ in range(len(self._others))]
            if not notes and not others:
                return
            seen = batches(notes, others)
            self._statistics.add(seen)
            self._note(self._watch.add_calls(seen, time.time()))
            self._number += len(notes) + len(others)
            self._recent.append((self._number, (notes[-RECENT:], others[-RECENT:])))
            while self._number - self._recent[0][0] >= RECENT:
                self._recent.popleft()
            for one, end in others:
                if isinstance(one, Receipt):
                    found = fallback_of(one, end + self.epoch)
                    if found is not None:
                        self._fallbacks.append(found)


def _end(ended: tuple[Seen, float]) -> float:
    return ended[1]
