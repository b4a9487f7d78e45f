"""The lanes of a scheduler, and which of them are free soonest: an answer that costs the same for many as for few."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from anygpu.plan.choosing import WaitingTimes
from anygpu.runtime.lanes import LaneLoad

LaneType = TypeVar("LaneType", bound=LaneLoad)

_NOTHING: Mapping[str, float] = {}


class LaneIndex(Generic[LaneType]):
    """All lanes, made when they are first needed. The caller must hold the scheduler's lock.

    The order is only a hint, brought up to date when it is asked for: what a lane's tasks take is always asked of the
    lane itself.
    """

    def __init__(self, make: Callable[[str], LaneType]) -> None:
        self._make = make
        self._lanes: dict[str, LaneType] = {}
        #: Devices that nothing runs on or waits for, the longest free first; also those without a lane yet.
        self._free: dict[str, None] = {}
        #: The others by the time at which they are expected to be free, and where each is in that order.
        self._busy: list[tuple[float, str]] = []
        self._until: dict[str, float] = {}
        #: In order, so that the same events always give the same answers.
        self._changed: dict[str, None] = {}

    def __getitem__(self, name: str) -> LaneType:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._make(name)
            self._changed[name] = None
        return lane

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[LaneType]:
        return iter(self._lanes.values())

    def find(self, name: str) -> LaneType | None:
        return self._lanes.get(name)

    def expect(self, devices: Iterable[str]) -> None:
        """There may be tasks for these devices: those without a lane count as free."""
        for name in devices:
            if name not in self._lanes:
                self._free.setdefault(name)

    def changed(self, lane: LaneLoad) -> None:
        """Something began or ended there, or waits for it."""
        self._changed[lane.name] = None

    def free(self, most: int) -> list[str]:
        """So many devices that are free, in turn: those that were named go to the end."""
        if self._changed:
            self._sort_in(None)
        names = list(islice(self._free, most))
        if len(names) < len(self._free):
            for name in names:
                del self._free[name]
                self._free[name] = None
        return names

    def waiting(self, now: float, others: Mapping[str, float] = _NOTHING, *, without: str | None = None) -> Waiting:
        """For each device, the seconds until a task that comes now would begin; 0 for the lane `without`.

        `others` are devices that are busy with something else than tasks of these lanes.
        """
        return Waiting(self, now, others, without)

    def seconds(self, name: str, now: float) -> float:
        lane = self._lanes.get(name)
        if lane is None or not (lane.running or lane.backlog > 0):
            return 0.0
        return lane.waiting(now) + lane.backlog / lane.width

    def soonest(self, most: int, now: float) -> list[str]:
        """So many devices that are free now, or those that will be first if none is."""
        if self._changed:
            self._sort_in(now)
        if self._free:
            return list(islice(self._free, most))
        first = self._busy[:most]
        # One that should be free and is not takes longer than was expected: it moves back.
        self._changed.update((name, None) for until, name in first if until < now)
        return [name for _, name in first]

    def _sort_in(self, now: float | None) -> None:
        """Put lanes that have changed where they belong. Without the time, those that are busy are left for later."""
        later: dict[str, None] = {}
        for name in self._changed:
            lane, old = self._lanes[name], self._until.get(name)
            if not (lane.running or lane.backlog > 0):
                if old is not None:
                    self._remove(name, old)
                self._free.setdefault(name)
                continue
            self._free.pop(name, None)
            if now is None:
                later[name] = None
                continue
            until = now + self.seconds(name, now)
            if old != until:
                if old is not None:
                    self._remove(name, old)
                insort(self._busy, (until, name))
                self._until[name] = until
        self._changed = later

    def _remove(self, name: str, until: float) -> None:
        del self._busy[bisect_left(self._busy, (until, name))]
        del self._until[name]


class Waiting(WaitingTimes):
    """How long each device is busy, at one moment."""

    __slots__ = ("_index", "_now", "_others", "_without")

    def __init__(self, index: LaneIndex[Any], now: float, others: Mapping[str, float], without: str | None) -> None:
        self._index = index
        self._now = now
        self._others = others
        self._without = without

    def get(self, name: str, default: float = 0.0, /) -> float:
        if name == self._without:
            return 0.0
        seconds = self._index.seconds(name, self._now)
        return max(seconds, self._others.get(name, 0.0)) if self._others else seconds

    def soonest(self, most: int) -> Iterable[str]:
        return self._index.soonest(most, self._now)
