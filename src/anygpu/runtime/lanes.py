"""Lanes: one per device, with its threads, the tasks that they run, and which lane is free soonest.

`Job` is a task in the queue. `LaneLoad` is what a device has to do, without a thread, so that a simulation can use it;
`Lane` adds the threads. `LaneIndex` has all lanes of a scheduler, and finds those that are free soonest among hundreds.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from anygpu.agreement.trust import Modes
from anygpu.array.core.array import Array
from anygpu.array.core.structure import flatten
from anygpu.base import events
from anygpu.calls.options import NaNs
from anygpu.errors import NotANumber
from anygpu.placement.call import Call
from anygpu.placement.plan.candidate_history import DeviceChoice, WaitingTimes
from anygpu.placement.retry import LockedTask
from anygpu.receipts.notes import Failure, Origin
from anygpu.receipts.receipt import Attempt, Receipt
from anygpu.runtime.future import Future

# -- A task in the queue: a call, the future that its caller holds, and what was asked of both


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Job:
    """One submitted call: its arguments and options, and where and how often it was tried."""

    number: int
    call: Call
    future: Future
    life: LockedTask
    _: dataclasses.KW_ONLY
    priority: int
    tenant: str
    submitted: float
    #: Its deadline on the monotonic clock.
    until: float | None
    nan: NaNs
    idempotent: bool
    #: Bytes of its arguments, and of its results where they are known.
    nbytes: int
    #: The receipt lists that were active where it was submitted.
    receipt_sinks: tuple[list[Receipt], ...]
    #: The user's own line where it was submitted.
    line: tuple[str, int]
    #: NumPy's floating-point modes where it was submitted, unless they were the defaults.
    modes: Modes | None = None
    #: Where it was submitted, for those who observe it.
    origin: Origin | None = None
    #: Jobs of one kind can become one launch.
    kind: Hashable = dataclasses.field(init=False)
    #: Called with its return value and whether it succeeded, before its caller gets it.
    witness: Callable[[Any, bool], None] | None = None
    #: Seconds spent on tracing it and evaluating devices before it was queued.
    planning: float = 0.0
    #: The lane that it waits for, and the predicted seconds there.
    lane: str = ""
    seconds: float = 0.0
    started: float = 0.0
    #: Whether a lane has taken it from the queue and not started it yet.
    taken: bool = False
    #: Whether it has ever started.
    begun: bool = False
    #: How often a worker was lost before the task had begun there.
    withdrawals: int = 0
    #: The bytes charged to its lane while it runs.
    held_bytes: int = 0
    #: Where it runs, or would run now.
    choice: DeviceChoice | None = None
    #: Where it must run after a failure.
    forced: DeviceChoice | None = None
    attempts: tuple[Attempt, ...] = ()

    def __post_init__(self) -> None:
        # A job that must run alone has a kind of its own, which is not the job itself: that would keep its arguments
        # until the garbage collector comes.
        self.kind = _kind(self.call) if self.call.cacheable and self.modes is None else object()

    @property
    def name(self) -> str:
        return self.call.site.task

    def fail(self, error: BaseException) -> None:
        """Raise the error where the result is awaited."""
        if events.calls:
            now = time.perf_counter()
            began = self.origin.time if self.origin is not None else now
            device = self.choice.candidate if self.choice is not None else "numpy"
            events.calls.tell(Failure(self.name, device, type(error).__name__, began, now), self.origin)
        self.future.set_exception(error)

    def alone(self) -> None:
        """Keep it out of batches from now on."""
        self.kind = object()

    def check(self, value: Any) -> None:
        """Raises `NotANumber` for a NaN in the result, if the caller asked for that."""
        if self.nan == "allow":
            return
        for leaf in flatten(value)[0]:
            if isinstance(leaf, np.ndarray | np.generic | Array | float | complex):
                values = np.asarray(leaf)
                if values.dtype.kind not in "fc":
                    continue
                found = np.isnan(values)
                if found.any():
                    position = np.unravel_index(int(np.argmax(found)), found.shape)
                    raise NotANumber(self.name, tuple(int(each) for each in position))


def _kind(call: Call) -> Hashable:
    """Calls of opaque tasks may differ in their rows."""
    return call.site if call.site.options.engine is None else call.form.form


# -- lanes: one per device, with the threads that take tasks from the queue and run them there


#: Seconds after which an idle lane looks again while tasks wait for other lanes: one of those may be stuck.
LOOK_AGAIN = 0.05
#: With more lanes than this, each looks less often: all of them together look as often as so many would.
LOOKING = 64

#: For a backlog shorter than this many seconds no other thread is woken.
_MOMENT = 2e-3

#: Not a device: the lane that traces functions whose caller has excluded NumPy.
PLANNING = "planning"


class LaneLoad:
    """The tasks that run on one device or wait for it. No thread, no clock; the scheduler's lock guards it.

    What runs its tasks is woken by `notify` and `start`: threads here, events in a simulation.
    """

    def __init__(self, name: str, width: int) -> None:
        """Makes the load of a device that runs up to `width` tasks at once.

        `backlog` is the predicted seconds of the tasks that wait for it, and `used_bytes` the predicted memory of those
        that run. `running` has the tasks of each thread and when they began, by the thread's number.
        """
        self.name = name
        #: Maximum number of threads: one for a device, several for NumPy.
        self.width = width
        self.started = 0
        self.idle = 0
        #: Idle threads that sleep until they are woken.
        self.asleep = 0
        #: By thread, the running jobs and their start time.
        self.running: dict[int, tuple[list[Job], float]] = {}
        #: Predicted seconds of the tasks that wait for this lane.
        self.backlog = 0.0
        #: Predicted bytes of the running tasks.
        self.used_bytes = 0
        self.done = 0
        self.failed = 0
        #: Launches of several tasks at once, and the tasks in them.
        self.batches = 0
        self.batched = 0
        self.busy_seconds = 0.0
        self.ended = False
        #: Threads that wait for other tasks.
        self.blocked = 0
        #: Queued tasks of this lane that a lane thread waits for, in order.
        self.awaited: dict[Job, None] = {}

    def notify(self) -> None:
        """Let one idle thread look for a task."""
        raise NotImplementedError

    def start(self) -> None:
        """Start one more thread, which looks for a task."""
        raise NotImplementedError

    def wake(self, now: float | None = None) -> None:
        """Wake a thread for a new task, unless a running one will be free within `_MOMENT`."""
        if now is not None and self.backlog < _MOMENT and self._soon_free(now):
            return
        if self.idle:
            self.notify()
        elif self.started < self.width and not self.ended:
            self.start()

    def rouse(self, *, also_polling: bool = False) -> None:
        """Tasks wait for another lane, which is busy: let one thread of this lane poll the queue.

        One that polls the queue anyway is left alone, unless it may be long until it does.
        """
        if not self.started:
            self.wake()
        elif self.idle and (also_polling or self.asleep == self.idle):
            self.notify()

    def account(self, seconds: float, *, succeeded: bool) -> None:
        """Counts a task that has ended, and the seconds that it took here."""
        self.busy_seconds += seconds
        if succeeded:
            self.done += 1
        else:
            self.failed += 1

    @property
    def active(self) -> int:
        """Threads that run something, and do not wait for other tasks."""
        return len(self.running) - self.blocked

    def _soon_free(self, now: float) -> bool:
        """Whether a running thread will finish a short task shortly; if it hangs, an idle one looks again soon."""
        if self.idle <= self.asleep:
            return False
        return any(
            now - began < _MOMENT and jobs[0].call.site.host.skip_planning > 0 and len(jobs) * jobs[0].seconds < _MOMENT
            for jobs, began in self.running.values()
        )

    def patience(self, lanes: int, *, look_again: bool) -> float | None:
        """The seconds that an idle thread waits, being one of so many lanes; `None` until it is woken."""
        return LOOK_AGAIN * max(1.0, lanes / LOOKING) if look_again or self.running else None

    def waiting(self, now: float) -> float:
        """Estimated seconds until a thread of this lane is free."""
        if self.idle or self.active < self.width:
            return 0.0
        shortest = math.inf
        for jobs, began in self.running.values():
            elapsed = now - began
            predicted = jobs[0].seconds if len(jobs) == 1 else sum([job.seconds for job in jobs])
            # A task that exceeds its prediction may take as long again.
            shortest = min(shortest, max(predicted - elapsed, elapsed / 2))
        return shortest


class Lane(LaneLoad):
    """One device and the threads that use it. The scheduler's lock guards all of it."""

    def __init__(self, name: str, width: int, lock: Any, work: Callable[[Lane], None]) -> None:
        """Makes the lane of a device without any thread; `work` is what each of its threads runs.

        `lock` is the scheduler's, on which threads of the lane sleep until they are woken.
        """
        super().__init__(name, width)
        self.wakened = threading.Condition(lock)
        self.threads: list[threading.Thread] = []
        self._work = work
        #: The threads that were started in place of blocked ones.
        self.spare: set[threading.Thread] = set()
        #: A second thread, which has the arguments of the next large task uploaded while one runs.
        self.ahead: threading.Thread | None = None

    def notify(self) -> None:
        self.wakened.notify()

    def start(self) -> None:
        """Starts one more daemon thread of the lane, which ends with the lane and not before."""
        thread = threading.Thread(
            target=self._work, args=(self,), name=f"anygpu-{self.name}-{len(self.threads)}", daemon=True
        )
        thread.start()
        self.threads.append(thread)
        self.started += 1

    def wait(self, lanes: int, *, look_again: bool) -> None:
        """Wait for a task; there are so many lanes."""
        seconds = self.patience(lanes, look_again=look_again)
        if seconds is not None:
            self.wakened.wait(seconds)
        else:
            self.asleep += 1
            self.wakened.wait()
            self.asleep -= 1


# -- the lanes of a scheduler, and which of them are free soonest: an answer that costs the same for many as for few


LaneType = TypeVar("LaneType", bound=LaneLoad)

_NOTHING: Mapping[str, float] = {}


class LaneIndex(Generic[LaneType]):
    """All lanes, made when they are first needed. The caller must hold the scheduler's lock.

    The order is only a hint, brought up to date when it is asked for: what a lane's tasks take is always asked of the
    lane itself.
    """

    def __init__(self, make: Callable[[str], LaneType]) -> None:
        """Makes an empty index; `make` makes the lane of a name when it is first needed.

        Free lanes are kept in turn, busy ones by when they will be free. Both are brought up to date when they are
        asked for, from the names that have changed since.
        """
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

    def waiting(
        self, now: float, others: Mapping[str, float] = _NOTHING, *, without: str | None = None
    ) -> LaneWaitingTimes:
        """Returns for each device the seconds until a task that comes now would begin; 0 for the lane `without`.

        `others` are devices that are busy with something else than tasks of these lanes.
        """
        return LaneWaitingTimes(self, now, others, without)

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
        """Puts each lane whose load has changed at its place by when it will be free, as predicted."""
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


class LaneWaitingTimes(WaitingTimes):
    """How long each device is busy, at one moment."""

    __slots__ = ("_index", "_now", "_others", "_without")

    def __init__(self, index: LaneIndex[Any], now: float, others: Mapping[str, float], without: str | None) -> None:
        """Keeps what is needed to tell waiting times at `now`; each is computed when it is asked for.

        `others` are the seconds for which devices are busy outside of this runtime; `without` is the lane that asks.
        """
        self._index = index
        self._now = now
        self._others = others
        self._without = without

    def get(self, name: str, default: float = 0.0, /) -> float:
        """Return seconds until a device is free."""
        if name == self._without:
            return 0.0
        lane = self._index.find(name)
        if lane is None:
            seconds = 0.0
        elif lane.running:
            seconds = lane.waiting(self._now) + lane.backlog / lane.width
        else:
            seconds = lane.backlog / lane.width
        return max(seconds, self._others.get(name, 0.0)) if self._others else seconds

    def soonest(self, most: int) -> Iterable[str]:
        return self._index.soonest(most, self._now)
