"""Prefetching: a thread brings tensors to the device before they are used, and ends when there are none.

It also learns which tensor follows which: an evicted tensor that usually comes next is brought while the device
computes with the one before. Whether that helps depends on the device (not on one that shares the cores of the host),
so both ways are timed, and the better one is used.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import ReferenceType, WeakMethod, ref

from anygpu.base.interrupts import whole
from anygpu.errors import AnyGPUError
from anygpu.store.entry import Entry, Key

#: Times that one tensor has to follow another before it is prefetched.
_SEEN = 2
#: Seconds that an idle thread waits for more work.
_IDLE_SECONDS = 2.0
#: Uses of evicted tensors in one timed window, windows per way, and windows for which a verdict holds.
_WINDOW = 16
_TRIALS = 2
_VERDICT_LASTS = 64


class PrefetchTrial:
    """Decides whether to prefetch: both ways are timed in turn, and the faster one is used for a while."""

    def __init__(self) -> None:
        self._times: dict[bool, list[float]] = {True: [], False: []}
        self._began: float | None = None
        self._uses = 0
        self._windows_left = 0
        #: The way in use.
        self.ahead = True

    def used(self, now: float) -> None:
        """Record the use of a tensor that was evicted before."""
        if self._began is None:
            self._began = now
        self._uses += 1
        if self._uses <= _WINDOW:
            return
        taken = now - self._began
        self._began, self._uses = now, 1
        if self._windows_left:
            self._windows_left -= 1
            return
        times = self._times
        times[self.ahead].append(taken)
        if min(map(len, times.values())) < _TRIALS:
            self.ahead = not self.ahead
            return
        self.ahead = min(times[True]) < min(times[False])
        self._windows_left = _VERDICT_LASTS
        for each in times.values():
            each.clear()


class Prefetcher:
    """Brings tensors to the device, in the order of requests."""

    def __init__(self, bring: Callable[[Entry], None]) -> None:
        """`bring` is a method of the store, which is held weakly."""
        self._bring = WeakMethod(bring)
        self._last: Key | None = None
        #: By name, the tensor that followed it last, and how many times in a row. Released tensors do not stay here.
        self._next: dict[Key, tuple[ReferenceType[Entry], int]] = {}
        self._worth = PrefetchTrial()
        self._over = False
        self.forked()

    def forked(self) -> None:
        """Also called in a forked child, which has no threads."""
        self._changed = threading.Condition()
        self._wanted: deque[Entry] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    @whole
    def fetch(self, entries: Sequence[Entry]) -> None:
        with self._changed:
            if self._over:
                return
            self._wanted.extend(entries)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="anygpu-prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @whole
    def wait(self) -> None:
        """Wait until all requests are done or have failed."""
        with self._changed:
            while (self._wanted or self._busy) and self._thread is not None:
                self._changed.wait()

    def observe(self, entry: Entry, *, came_back: bool) -> None:
        """Record a use of the tensor; `came_back` if it had been evicted."""
        last, self._last = self._last, entry.key
        if came_back:
            self._worth.used(time.perf_counter())
        if last is None or last == entry.key:
            return
        known, times = self._next.get(last, (None, 0))
        if known is None or known() is not entry:
            known, times = ref(entry, partial(_forget, self._next, last)), 0
        self._next[last] = (known, times + 1)
        following = self._next.get(entry.key)
        if following is None or following[1] < _SEEN or not self._worth.ahead:
            return
        follower = following[0]()
        if follower is None or follower.released:
            return
        if not follower.content.on_device and not follower.content.moving:
            self.fetch([follower])

    @whole
    def close(self) -> None:
        with self._changed:
            self._over = True
            self._wanted.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._next.clear()
        self._last = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if not self._wanted and not self._over:
                    self._changed.wait(_IDLE_SECONDS)
                if not self._wanted or self._over:
                    self._thread = None
                    self._changed.notify_all()
                    return
                entry = self._wanted.popleft()
                self._busy = True
            bring = self._bring()
            if bring is not None:
                # A tensor that does not fit, or was released, raises its error where it is used.
                with contextlib.suppress(AnyGPUError):
                    bring(entry)
            del bring, entry


def _forget(following: dict[Key, tuple[ReferenceType[Entry], int]], name: Key, gone: ReferenceType[Entry]) -> None:
    """A tensor was released. Called in whichever thread let go of it last."""
    if (known := following.get(name)) is not None and known[0] is gone:
        following.pop(name, None)
