"""Records the calls of this process while it is observed, and samples its memory and devices.

Every call leaves a note in a buffer, which takes a fraction of a microsecond. The buffer is folded into statistics when
it is full or when a summary is asked for: no thread runs for it, and its memory does not grow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from anygpu.base.interrupts import TryAcquire
from anygpu.notes import Failure, Note, Origin, Seen
from anygpu.observe.snapshot import Anomaly, Call, Fallback, call_of, fallback_of
from anygpu.observe.statistics import Statistics, Summary, batches
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
    """Records calls: it is called with each of them."""

    def __init__(self) -> None:
        now = _clock()
        #: Added to times of `time.perf_counter`, these become seconds since 1970.
        self.epoch = time.time() - now
        self._statistics = Statistics(now)
        self._folding = threading.RLock()
        #: Calls that wait to be folded: those that left a note, and others with when they ended.
        self._notes: deque[Note] = deque()
        self._others: deque[tuple[Receipt | Failure, float]] = deque()
        #: The latest folded calls in parts, each with the number of its last call.
        self._recent: deque[tuple[int, _Folded]] = deque()
        self._fallbacks: deque[Fallback] = deque(maxlen=FALLBACKS)
        #: Number of the newest call that was folded.
        self._number = 0
        self._watch = Watch()
        self._anomalies: deque[Anomaly] = deque(maxlen=ANOMALIES)
        #: Anomalies that have not been reported.
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
        """Add a sample of what the process and its devices use now."""
        with self._folding:
            self._note(self._watch.add_sample(sample, time.time()))

    def anomalies(self) -> list[Anomaly]:
        """The latest ones, the newest last."""
        self._fold()
        with self._folding:
            return list(self._anomalies)

    def take_untold(self) -> list[Anomaly]:
        """Anomalies that were found since the last call of this."""
        with self._folding:
            found = list(self._untold)
            self._untold.clear()
        return found

    def _note(self, found: list[Anomaly]) -> None:
        self._anomalies.extend(found)
        self._untold.extend(found)

    @property
    def calls(self) -> int:
        """The number of calls that have ended so far."""
        self._fold()
        return self._number

    def _fold(self, *, wait: bool = True) -> None:
        # A call may end in the middle of this on the same thread, by a signal or the garbage collector: it does not
        # wait for itself, and is folded by the next.
        with TryAcquire(self._folding, None if wait else 0.0) as acquired:
            if not acquired:
                return
            # More may come meanwhile, and only this thread takes: what is there now is taken, one by one.
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


#: Seconds between two samples while calls come.
PERIOD = 2.0

_log = logging.getLogger("anygpu.observe")


class Sampler:
    """Samples until it is closed. `told` is called with each anomaly, on the sampler's thread."""

    def __init__(
        self,
        observation: Observation,
        sample: Callable[[], Sample],
        told: Callable[[Anomaly], object] | None = None,
        period: float = PERIOD,
    ) -> None:
        self._observation = observation
        self._sample = sample
        self._told = told
        self._period = period
        self._over = threading.Event()
        self._calls = 0
        self._thread = threading.Thread(target=self._work, name="anygpu observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._period)

    def _work(self) -> None:
        while not self._over.wait(self._period):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - what is observed has to go on
                _log.exception("devices could not be sampled")

    def look(self) -> None:
        """Sample, if there were calls since the last time, and tell what was found."""
        calls = self._observation.calls
        if calls != self._calls:
            self._calls = calls
            self._observation.add_sample(self._sample())
        for anomaly in self._observation.take_untold():
            _log.warning("%s", anomaly.sentence)
            if self._told is not None:
                try:
                    self._told(anomaly)
                except Exception:  # noqa: BLE001 - the user's own
                    _log.exception("the callback for anomalies raised")
