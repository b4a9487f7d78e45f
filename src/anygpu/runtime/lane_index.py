"""The lanes of a scheduler, and which of them are free soonest: an answer that costs the same for many as for few."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
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
        self._free: OrderedDict[str, None] = OrderedDict()
        #: The others by the time at which they are expected to be free, and where each is in that order.
        self._busy: list[tuple[float, str]] = []
        self._until: dict[str, float] = {}
        #: In order, so that the same events always give the same answers.
        self._changed: dict[str, None] = {}
        #: Lanes that are busy, and whose position in that order is not up to date.
        self._moved: dict[str, None] = {}

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
        self._note_changes()
        names = list(islice(self._free, most))
        if len(names) < len(self._free):
            for name in names:
                self._free.move_to_end(name)
        return names

    def waiting(self, now: float, others: Mapping[str, float] = _NOTHING, *, without: str | None = None) -> Waiting:
        """For each device, the seconds until a task that comes now would begin; 0 for the lane `without`.

        `others` are devices that are busy with something else than tasks of these lanes.
        """
        return Waiting(self, now, others, without)

    def soonest(self, most: int, now: float) -> list[str]:
        """So many devices that are free now, or those that will be first if none is."""
        self._note_changes()
        if self._free:
            return list(islice(self._free, most))
        self._sort_busy(now)
        first = self._busy[:most]
        # One that should be free and is not takes longer than was expected: it moves back.
        self._moved.update((name, None) for until, name in first if until < now)
        return [name for _, name in first]

    def _note_changes(self) -> None:
        """Which lanes are free now."""
        for name in self._changed:
            lane = self._lanes[name]
            if lane.running or lane.backlog > 0:
                self._free.pop(name, None)
                self._moved[name] = None
            else:
                self._moved.pop(name, None)
                if name in self._until:
                    self._remove(name)
                self._free.setdefault(name)
        self._changed.clear()

    def _sort_busy(self, now: float) -> None:
        for name in self._moved:
            lane = self._lanes[name]
            until = now + lane.waiting(now) + lane.backlog / lane.width
            if name in self._until:
                self._remove(name)
            insort(self._busy, (until, name))
            self._until[name] = until
        self._moved.clear()

    def _remove(self, name: str) -> None:
        del self._busy[bisect_left(self._busy, (self._until.pop(name), name))]


class Waiting(WaitingTimes):
    """How long each device is busy, at one moment."""

    __slots__ = ("_index", "_now", "_others", "_without")

    def __init__(self, index: LaneIndex[Any], now: float, others: Mapping[str, float], without: str | None) -> None:
        self._index = index
        self._now = now
        self._others = others
        self._without = without

    def get(self, name: str, default: float = 0.0, /) -> float:
        """Of a candidate that is split across devices, the one that is busy longest counts."""
        if name == self._without:
            return 0.0
        lane = self._index.find(name)
        if lane is None:
            if "+" in name:
                return max([self.get(device) for device in name.split("+")])
            seconds = 0.0
        elif lane.running:
            seconds = lane.waiting(self._now) + lane.backlog / lane.width
        else:
            seconds = lane.backlog / lane.width
        return max(seconds, self._others.get(name, 0.0)) if self._others else seconds

    def soonest(self, most: int) -> Iterable[str]:
        return self._index.soonest(most, self._now)
