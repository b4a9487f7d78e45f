"""Which tensors leave the device or the host when there is not room for all, and which are prefetched."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal
from weakref import ReferenceType, WeakMethod, ref

import msgspec

from anygpu.base.interrupts import whole
from anygpu.errors import AnyGPUError
from anygpu.store.entry import NamedEntry, StoreKey

# -- which tensors leave the device or the host, when there is not room for all: a pure function of what is where
#
# A content is on the device, in the host's memory, or both; it is *backed* where a file or shared memory has the same
# bytes, so that it needs neither. Contents that are pinned, leased or in use are never moved.


#: speed: stay on the device as long as there is room, with copies on the host, so that leaving costs nothing.
#: memory: one copy only, wherever it is. balanced: copies that happen to exist are kept until the room is needed.
StoreMode = Literal["speed", "memory", "balanced"]

#: leave_device: the device's copy goes, there is another. to_host, to_disk: it is written there first, and then goes.
#: drop_host: the host's copy goes, there is another. host_to_disk: it is written to disk first.
TierStep = Literal["leave_device", "to_host", "to_disk", "drop_host", "host_to_disk"]


class TierItem(msgspec.Struct):
    """The facts about one content."""

    key: int
    nbytes: int
    #: Rises with every use.
    used: int
    on_device: bool
    on_host: bool
    backed: bool = False
    #: Pinned, leased, or in use: stays on the device if it is there.
    fixed: bool = False


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The byte limit of each tier; `None` for no limit."""

    device: int | None = None
    host: int | None = None
    #: Whether there is a folder to write to.
    disk: bool = False


class TierMove(msgspec.Struct, frozen=True):
    """One move of a content between tiers."""

    key: int
    step: TierStep


class TierFull(Exception):
    """Contents that cannot leave occupy the room that is needed. `tier` is the full one."""

    def __init__(self, tier: Literal["device", "host"], missing: int) -> None:
        super().__init__(f"{missing} bytes are missing: {tier}")
        self.tier = tier
        self.missing = missing


def room_on_device(items: Iterable[TierItem], need: int, budgets: Budgets) -> list[TierMove]:
    """The moves, in order, after which `need` more bytes are within the budget of the device; raises `NoRoom`."""
    state = _State(items, budgets)
    state.free_device(need)
    return state.moves


def room_on_host(items: Iterable[TierItem], need: int, budgets: Budgets) -> list[TierMove]:
    """The same for the host's memory."""
    state = _State(items, budgets)
    state.free_host(need)
    return state.moves


def keeps_host_copy(mode: StoreMode) -> bool:
    """Whether a content that was brought to the device keeps its host copy."""
    return mode != "memory"


def makes_host_copy(mode: StoreMode) -> bool:
    """Whether a new content is copied to the host at once, so that it can leave the device at no cost later."""
    return mode == "speed"


def tidied(items: Iterable[TierItem], since: int, budgets: Budgets, mode: StoreMode) -> list[TierMove]:
    """The moves of `optimise()` for contents that were not used after `since`.

    memory: it leaves the device, and the host too where there is a disk, and there is one copy of everything.
    balanced: it leaves the device where that costs nothing, and what stays there keeps no second copy.
    speed: nothing, unless a tier is over its budget.
    """
    state = _State(items, budgets)
    for item in sorted(state.items.values(), key=lambda item: item.used):
        idle = item.used <= since and not item.fixed
        copies = item.on_host or item.backed
        if mode == "memory":
            if item.on_device and idle and item.nbytes:
                state.leave_device(item, gently=True)
            if item.on_host and (item.on_device or item.backed or (idle and budgets.disk)):
                state.drop_host(item)
        elif mode == "balanced":
            if item.on_device and idle and copies and item.nbytes:
                state.leave_device(item, gently=True)
            elif item.on_host and (item.on_device or item.backed) and item.used <= since:
                state.drop_host(item)
    for free in (state.free_device, state.free_host):
        # What is fixed may be over the budget since; the rest is as far down as it can be.
        try:
            free(0)
        except TierFull:
            continue
    return state.moves


class _State:
    """Tiers as they will be after the moves so far."""

    def __init__(self, items: Iterable[TierItem], budgets: Budgets) -> None:
        self.items = {item.key: msgspec.structs.replace(item) for item in items}
        self.budgets = budgets
        self.moves: list[TierMove] = []

    def _oldest(self) -> Iterator[TierItem]:
        return iter(sorted(self.items.values(), key=lambda item: item.used))

    def free_device(self, need: int) -> None:
        """Move contents off the device until `need` bytes fit.

        Raises `TierFull` if those that may leave do not suffice.
        """
        budget = self.budgets.device
        if budget is None:
            return
        missing = sum(item.nbytes for item in self.items.values() if item.on_device) + need - budget
        if need > budget or missing > sum(
            item.nbytes for item in self.items.values() if item.on_device and not item.fixed
        ):
            raise TierFull("device", missing)
        for item in self._oldest():
            if missing <= 0:
                return
            if item.on_device and not item.fixed and item.nbytes:
                self.leave_device(item)
                missing -= item.nbytes
        if missing > 0:
            raise TierFull("device", missing)

    def leave_device(self, item: TierItem, *, gently: bool = False) -> None:
        """`gently`: not if there is nowhere to go."""
        if item.on_host or item.backed:
            self.moves.append(TierMove(item.key, "leave_device"))
        else:
            try:
                self.free_host(item.nbytes)
                self.moves.append(TierMove(item.key, "to_host"))
                item.on_host = True
            except TierFull:
                if not self.budgets.disk:
                    if gently:
                        return
                    raise
                self.moves.append(TierMove(item.key, "to_disk"))
                item.backed = True
        item.on_device = False

    def free_host(self, need: int) -> None:
        """Move contents from the host to disk until `need` bytes fit. Raises `TierFull` if that cannot be."""
        budget = self.budgets.host
        if budget is None:
            return
        held = sum(item.nbytes for item in self.items.values() if item.on_host)
        missing = held + need - budget
        # Nothing is moved in vain.
        movable = sum(
            item.nbytes
            for item in self.items.values()
            if item.on_host and (item.on_device or item.backed or self.budgets.disk)
        )
        if missing > movable or need > budget:
            raise TierFull("host", missing)
        # Second copies first, and then the oldest.
        for spare in (True, False):
            for item in self._oldest():
                if missing <= 0:
                    return
                if item.on_host and item.nbytes and (item.on_device or item.backed or not spare):
                    self.drop_host(item)
                    missing -= item.nbytes

    def drop_host(self, item: TierItem) -> None:
        """Takes a content off the host: dropped if the device or disk has it, and else written to disk."""
        if item.on_device or item.backed:
            self.moves.append(TierMove(item.key, "drop_host"))
        else:
            self.moves.append(TierMove(item.key, "host_to_disk"))
            item.backed = True
        item.on_host = False


# -- prefetching: a thread brings tensors to the device before they are used, and ends when there are none
#
# It also learns which tensor follows which: an evicted tensor that usually comes next is brought while the device
# computes with the one before. Whether that helps depends on the device (not on one that shares the cores of the host),
# so both ways are timed, and the better one is used.


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
        """Starts with prefetching, and without times of either way."""
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

    def __init__(self, bring: Callable[[NamedEntry], None]) -> None:
        """`bring` is a method of the store, which is held weakly."""
        self._bring = WeakMethod(bring)
        self._last: StoreKey | None = None
        #: By name, the tensor that followed it last, and how many times in a row. Released tensors do not stay here.
        self._next: dict[StoreKey, tuple[ReferenceType[NamedEntry], int]] = {}
        self._worth = PrefetchTrial()
        self._over = False
        self.forked()

    def forked(self) -> None:
        """Also called in a forked child, which has no threads."""
        self._changed = threading.Condition()
        self._wanted: deque[NamedEntry] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    @whole
    def fetch(self, entries: Sequence[NamedEntry]) -> None:
        """Adds tensors to the requests, and starts the daemon thread for the first ones. Does not wait."""
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

    def observe(self, entry: NamedEntry, *, came_back: bool) -> None:
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
        """Drops all requests, and joins the thread unless it is the caller's own."""
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
        """The thread: brings wanted tensors to the device one by one, and ends when none has come for a while."""
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


def _forget(
    following: dict[StoreKey, tuple[ReferenceType[NamedEntry], int]], name: StoreKey, gone: ReferenceType[NamedEntry]
) -> None:
    """A tensor was released. Called in whichever thread let go of it last."""
    if (known := following.get(name)) is not None and known[0] is gone:
        following.pop(name, None)
