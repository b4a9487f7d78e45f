"""The answers of processes over the last minutes, in a fixed memory, and their calls as blocks on a timeline.

Everything is a ring: blocks of calls, pairs of predicted and actual seconds, samples of what changes slowly. A process
that has died keeps its history for a while, so that one can see what it did last.

First come blocks as tables of numbers, merged and laid out in rows; then `DashboardHistory`, which keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anygpu.hardware.usage import Usage
from anygpu.observe.snapshot import CallRecord, ProcessInfo, Snapshot

Table = NDArray[np.float64]

#: The columns of a block: seconds since 1970, then seconds, then counts, then numbers of names.
BEGIN, END, WAIT, MOVE, RUN, CALLS, ERRORS, FUNCTION, DEVICE = range(9)
COLUMNS = 9
#: A device's lines for blocks that overlap, at most; more are drawn over one another.
SLOTS = 3


class Placed(NamedTuple):
    """Blocks with the part of the row that is theirs: from `low` to `high`, 0 to 1."""

    blocks: Table
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def blocks_of(calls: Sequence[CallRecord], functions: Sequence[int], devices: Sequence[int]) -> Table:
    """One block a call, which begins when it stopped waiting: its moves and its run, in the end."""
    table = np.empty((len(calls), COLUMNS))
    for row, call, function, device in zip(table, calls, functions, devices, strict=True):
        move, run = max(call.move, 0.0), max(call.run, 0.0)
        # What was planned and compiled keeps no device busy, as little as what waited.
        wait = max(0.0, call.seconds - move - run)
        row[:] = (call.end - move - run, call.end, wait, move, run, 1, call.error is not None, function, device)
    return table


def merged(blocks: Table, gap: float) -> Table:
    """The blocks, with those of one function on one device that are at most `gap` seconds apart as one.

    Seconds and counts are added up; the result is in order of device, function and time.
    """
    if len(blocks) < 2:
        return blocks
    blocks = blocks[np.lexsort((blocks[:, BEGIN], blocks[:, FUNCTION], blocks[:, DEVICE]))]
    series = np.zeros(len(blocks))
    changes = (np.diff(blocks[:, FUNCTION]) != 0) | (np.diff(blocks[:, DEVICE]) != 0)
    np.cumsum(changes, out=series[1:])
    # The latest end so far of the same series: each series is put behind all the earlier ones.
    origin = blocks[:, BEGIN].min()
    length = blocks[:, END].max() - origin + gap + 1.0
    ends = np.maximum.accumulate(blocks[:, END] - origin + series * length)
    begins = blocks[:, BEGIN] - origin + series * length
    first = np.flatnonzero(np.concatenate(([True], changes | (begins[1:] - ends[:-1] > gap))))
    result = np.add.reduceat(blocks, first, axis=0)
    result[:, BEGIN] = np.minimum.reduceat(blocks[:, BEGIN], first)
    result[:, END] = np.maximum.reduceat(blocks[:, END], first)
    for name in (FUNCTION, DEVICE):
        result[:, name] = blocks[first, name]
    return result


def placed(blocks: Table) -> Placed:
    """The blocks of one row: those that overlap get lines of their own."""
    blocks = blocks[np.argsort(blocks[:, BEGIN])]
    slots: list[int] = []
    free: list[float] = []
    for begin, end in blocks[:, (BEGIN, END)].tolist():
        slot = next((slot for slot, until in enumerate(free) if until <= begin), len(free))
        if slot == SLOTS:
            slot = min(range(SLOTS), key=free.__getitem__)
        elif slot == len(free):
            free.append(end)
        free[slot] = max(end, free[slot])
        slots.append(slot)
    low = np.asarray(slots) / max(1, len(free))
    return Placed(blocks, low, low + 1 / max(1, len(free)))


def stacked(blocks: Table, begin: float, end: float, parts: int) -> Placed:
    """The blocks of one row, of which there are too many to be drawn, summed up in so many parts of the time.

    The functions of each part stand one upon the other, each as high as the share of the part that it took.
    """
    width = (end - begin) / parts
    first = np.clip(np.floor((blocks[:, BEGIN] - begin) / width), -1, parts).astype(np.int64)
    last = np.clip(np.floor((blocks[:, END] - begin) / width), -1, parts).astype(np.int64)
    # A block that is in several parts becomes one in each, with its share of everything.
    count = last - first + 1
    which = np.repeat(np.arange(len(blocks)), count)
    part = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + first[which]
    left = begin + part * width
    inside = np.minimum(blocks[which, END], left + width) - np.maximum(blocks[which, BEGIN], left)
    extent = blocks[which, END] - blocks[which, BEGIN]
    share = np.divide(inside, extent, out=np.ones(len(which)), where=extent > 0)
    kept = (part >= 0) & (part < parts) & (share > 0)
    which, part, share = which[kept], part[kept], share[kept]
    functions, function = np.unique(blocks[which, FUNCTION], return_inverse=True)
    cells = part * len(functions) + function
    summed = np.stack(
        [
            np.bincount(cells, blocks[which, column] * share, parts * len(functions))
            for column in (WAIT, MOVE, RUN, CALLS, ERRORS)
        ],
        axis=1,
    )
    used = np.flatnonzero(summed[:, 3])
    result = np.empty((len(used), COLUMNS))
    result[:, BEGIN] = begin + used // len(functions) * width
    result[:, END] = result[:, BEGIN] + width
    result[:, WAIT : ERRORS + 1] = summed[used]
    result[:, FUNCTION] = functions[used % len(functions)]
    result[:, DEVICE] = blocks[0, DEVICE]
    busy = ((summed[:, 1] + summed[:, 2]) / width).reshape(parts, len(functions))
    tops = np.cumsum(busy, axis=1)
    # Several may run at once: the row is as high as most of them did.
    most = max(1.0, float(tops.max()))
    high = (tops / most).ravel()[used]
    low = ((tops - busy) / most).ravel()[used]
    # What is hardly ever busy is still to be seen.
    return Placed(result, low, np.maximum(high, low + 0.03))


#: How long samples are kept, in seconds, and how many there are of each series at most.
KEPT_SECONDS, SAMPLES = 600.0, 1300
#: Blocks and pairs of one process.
BLOCKS, PAIRS = 20_000, 1500
#: Calls closer than this, in seconds, are one block from the beginning.
FINEST = 0.02
#: Processes that are remembered, those that have died included, and how long these are.
PROCESSES, DEAD_SECONDS = 32, 300.0
#: Names that are told apart; all others together are "other".
MOST_NAMES = 256
#: Owners of memory that are told apart.
MOST_OWNERS = 8
OTHER = "other"


class Ring:
    """The latest rows of a table of floats, in memory that is allocated once."""

    def __init__(self, rows: int, columns: int) -> None:
        self._table: NDArray[np.float64] = np.empty((rows, columns))
        self._count = 0

    def extend(self, rows: NDArray[np.float64]) -> None:
        """Adds rows, over the oldest if there is no room."""
        rows = rows[-len(self._table) :]
        where = (self._count + np.arange(len(rows))) % len(self._table)
        self._table[where] = rows
        self._count += len(rows)

    def rows(self) -> NDArray[np.float64]:
        """The oldest first."""
        room = len(self._table)
        if self._count <= room:
            return self._table[: self._count]
        first = self._count % room
        return np.concatenate((self._table[first:], self._table[:first]))

    def __len__(self) -> int:
        return min(self._count, len(self._table))


class NameNumbers:
    """Numbers for names, in the order they were met in."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.list: list[str] = []

    def number(self, name: str) -> int:
        """The number of a name; "other" has that of all names beyond `MOST_NAMES`."""
        found = self._numbers.get(name)
        if found is None:
            if len(self.list) >= MOST_NAMES:
                return self._numbers[OTHER]
            if len(self.list) == MOST_NAMES - 1:
                name = OTHER
            found = self._numbers.setdefault(name, len(self.list))
            if found == len(self.list):
                self.list.append(name)
        return found


class CountSample(msgspec.Struct, frozen=True):
    """Counts of one process at a moment, from whose differences rates are made."""

    time: float
    #: Counts since it is observed.
    calls: int
    errors: int
    fallbacks: int
    batches: int
    batched: int
    waiting: int
    backlog: float
    processor_seconds: float


class DeviceSample(msgspec.Struct, frozen=True):
    """Readings of a card at a moment; NaN for what is not known."""

    time: float
    load: float
    memory: float
    memory_total: float
    temperature: float
    power: float


class ProcessHistory:
    """The history of one process: its latest answer, its calls as blocks, and samples of its counts."""

    def __init__(self, latest: Snapshot) -> None:
        self.latest = latest
        #: When it last answered, by the clock of whoever asks it.
        self.answered = 0.0
        self.alive = True
        #: It did not answer when it was last asked.
        self.silent = False
        self.newest = 0
        #: Calls that had left the process' own ring before they were asked for.
        self.missed = 0
        self.blocks = Ring(BLOCKS, COLUMNS)
        #: Predicted seconds, actual ones, function, device.
        self.pairs = Ring(PAIRS, 4)
        self.samples: deque[CountSample] = deque(maxlen=SAMPLES)

    @property
    def process(self) -> ProcessInfo:
        return self.latest.process


class DashboardHistory:
    """The history of all processes. For one thread at a time; what it returns is not changed later.

    Times are in seconds since 1970, given by whoever adds.
    """

    def __init__(self) -> None:
        self.processes: dict[int, ProcessHistory] = {}
        self.functions = NameNumbers()
        self.devices = NameNumbers()
        self.usage: dict[str, Usage] = {}
        self.device_samples: dict[str, deque[DeviceSample]] = {}
        #: Bytes by process, device and owner.
        self.memory: deque[tuple[float, dict[tuple[int, str, str], int]]] = deque(maxlen=SAMPLES)
        #: One more with each look.
        self.version = 0

    def since(self) -> dict[int, int]:
        """The newest call that is known of each process."""
        return {pid: each.newest for pid, each in self.processes.items() if each.alive}

    def add(self, looks: Mapping[int, Snapshot | None], now: float) -> None:
        """Add the answers of all processes that exist, `None` for silent ones; those that are missing have ended."""
        snapshots = {pid: snapshot for pid, snapshot in looks.items() if snapshot is not None}
        for pid, snapshot in snapshots.items():
            self._add_process(pid, snapshot, now)
        for pid, each in self.processes.items():
            each.alive = pid in looks
            each.silent = pid not in snapshots
        self._add_usage(snapshots, now)
        self._add_memory(snapshots, now)
        self._forget(now)
        self.version += 1

    def _add_process(self, pid: int, snapshot: Snapshot, now: float) -> None:
        """Adds the answer of one process; a new process with the number of an old one begins a new history."""
        known = self.processes.get(pid)
        if known is None or known.process.since != snapshot.process.since:
            # The id may be that of one that has died.
            known = self.processes[pid] = ProcessHistory(snapshot)
        known.latest, known.answered = snapshot, now
        calls = [call for call in snapshot.calls if call.number > known.newest]
        if calls:
            if known.newest:
                known.missed += max(0, calls[0].number - known.newest - 1)
            known.newest = calls[-1].number
            self._add_calls(known, calls)
        known.samples.append(_sample(snapshot))

    def _add_calls(self, known: ProcessHistory, calls: list[CallRecord]) -> None:
        """Adds single calls as merged blocks, and their predictions where they have one."""
        functions = [self.functions.number(call.function) for call in calls]
        devices = [self.devices.number(call.device) for call in calls]
        known.blocks.extend(merged(blocks_of(calls, functions, devices), FINEST))
        pairs = [
            (call.predicted, call.seconds, function, device)
            for call, function, device in zip(calls, functions, devices, strict=True)
            if call.predicted is not None and call.predicted > 0 and call.error is None
        ]
        if pairs:
            known.pairs.extend(np.asarray(pairs, float))

    def _add_usage(self, snapshots: Mapping[int, Snapshot], now: float) -> None:
        """Adds the readings of devices, summed over processes for software and once for a card."""
        found: dict[str, list[Usage]] = {}
        for snapshot in snapshots.values():
            for device, usage in snapshot.usage.items():
                found.setdefault(device, []).append(usage)
        for device, looks in found.items():
            # All processes see the same card, and each its own worker of a device that is software.
            self.usage[device] = looks[-1]
            own = looks if looks[-1].source == "worker" else looks[-1:]
            self.device_samples.setdefault(device, deque(maxlen=SAMPLES)).append(_device_sample(own, now))

    def _add_memory(self, snapshots: Mapping[int, Snapshot], now: float) -> None:
        """Adds the bytes that each owner holds on each device; those of small owners are summed up."""
        held: dict[tuple[int, str, str], int] = {}
        for pid, snapshot in snapshots.items():
            for device, memory in snapshot.memory.items():
                owners = dict(sorted(memory.by_owner.items(), key=lambda each: -each[1])[:MOST_OWNERS])
                rest = memory.bytes - sum(owners.values())
                for owner, count in owners.items():
                    held[pid, device, owner] = count
                if rest > 0:
                    held[pid, device, OTHER if owners else "not named"] = rest
        self.memory.append((now, held))

    def _forget(self, now: float) -> None:
        """Drops processes that died long ago or are too many, and devices without readings."""

        def old(each: ProcessHistory) -> bool:
            return not each.alive and now - each.answered > DEAD_SECONDS

        for pid in [pid for pid, each in self.processes.items() if old(each)]:
            del self.processes[pid]
        while len(self.processes) > PROCESSES:
            # Those that have died go first, then those that have been silent longest.
            del self.processes[
                min(self.processes, key=lambda pid: (self.processes[pid].alive, self.processes[pid].answered))
            ]
        for device, samples in list(self.device_samples.items()):
            if now - samples[-1].time > KEPT_SECONDS:
                del self.device_samples[device]
                self.usage.pop(device, None)


def _sample(snapshot: Snapshot) -> CountSample:
    """The counts of a snapshot, from whose differences rates are made."""
    calls = snapshot.statistics.calls
    runtime = snapshot.runtime
    lanes = () if runtime is None else runtime.lanes
    return CountSample(
        time=snapshot.time,
        calls=sum(each.calls for each in calls),
        errors=sum(sum(each.errors.values()) for each in calls),
        fallbacks=sum(each.fallbacks for each in calls),
        batches=sum(lane.batches for lane in lanes),
        batched=sum(lane.batched for lane in lanes),
        waiting=0 if runtime is None else runtime.waiting,
        backlog=sum(lane.backlog_seconds for lane in lanes),
        processor_seconds=snapshot.process.processor_seconds,
    )


def _device_sample(looks: Iterable[Usage], now: float) -> DeviceSample:
    """The readings of a device, loads and memory summed over the processes; NaN for what is not known."""
    looks = list(looks)

    def total(values: Iterable[float | None]) -> float:
        known = [value for value in values if value is not None]
        return sum(known) if known else np.nan

    return DeviceSample(
        time=now,
        # Not `min`, for which 1 is less than what is not a number.
        load=float(np.minimum(1.0, total(look.load for look in looks))),
        memory=total(look.memory_used for look in looks),
        memory_total=_number(looks[-1].memory_total),
        temperature=_number(looks[-1].temperature),
        power=_number(looks[-1].power),
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else value
