"""The queue of tasks: priorities that age, fair shares between tenants, limits, and kinds for batching.

The queue has no clock, thread or lock of its own: the caller must hold a lock and pass the time. Within a tenant the
order is decided by priority and age, between tenants by the device time that each has used.

All orders are sorted lists, not heaps: a removed entry is gone at once, the first few can be inspected without taking
them out, and at these sizes moving some pointers costs less than one comparison in Python.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count
from math import isfinite
from typing import Generic, Protocol, TypeVar

import msgspec

from anygpu.errors import InvalidOption, QueueFull, QuotaExceeded

# -- tenants: the users of one runtime, each with a share and limits


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One user of a runtime. Limits that are left out do not apply."""

    name: str
    #: Its share of device time while tenants compete, relative to the other shares.
    share: float = 1.0
    #: Limit for the argument bytes of its waiting and running tasks.
    bytes: int | None = None
    #: Limit for its waiting tasks.
    queued: int | None = None

    def __post_init__(self) -> None:
        """Raises `InvalidOption` for a name, share or limit that cannot be one."""
        if type(self.name) is not str or not self.name:
            raise InvalidOption(f"a tenant's name is a non-empty string; got {self.name!r}.")
        if type(self.share) not in (int, float) or not (self.share > 0 and math.isfinite(self.share)):
            raise InvalidOption(f"the share of the tenant {self.name!r} is a number above 0; got {self.share!r}.")
        for what, limit in (("bytes", self.bytes), ("queued", self.queued)):
            if limit is not None and (type(limit) is not int or limit < 0):
                raise InvalidOption(
                    f"the limit {what}= of the tenant {self.name!r} is a whole number, at least 0, or None; "
                    f"got {limit!r}."
                )


#: Priorities are whole numbers from this ...
LEAST = 0
#: ... to this; the higher goes first.
MOST = 10

#: Heads that one `take` tries by default. A head is the first task of a tenant and a kind.
LOOK = 32
#: The fraction of the queue that is reserved for the named tenants, by their shares: a tenant that floods the queue
#: must not keep the others out of it.
RESERVED = 0.25

#: Entries taken from the beginning of a list before the rest is moved up.
_MOVE_UP = 32
#: Unnamed tenants that are remembered before idle ones are forgotten.
_FORGET_AT = 64


class Queued(Protocol):
    """The fields of a task that the queue reads. Only `kind` may change, and only while the task is not waiting."""

    @property
    def kind(self) -> Hashable:
        """Tasks of one kind can be one launch, so a device that can take one of them can take them all."""

    @property
    def tenant(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Queued)
Ranked = TypeVar("Ranked")


def check_priority(priority: int) -> None:
    """Raises `InvalidOption` unless it is a whole number within the bounds."""
    if type(priority) is not int or not LEAST <= priority <= MOST:
        raise InvalidOption(f"a priority is a whole number from {LEAST} to {MOST}; got {priority!r}.")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Entry(Generic[T]):
    """A task that is waiting or was taken."""

    item: T
    line: _TenantQueue[T]
    nbytes: int
    submitted: float
    #: Its time of submission, moved by its priority; then the order of submission.
    order: float
    sequence: int
    #: The group it waits in; None once it is taken.
    group: _Group[T] | None = None


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Kind(Generic[T]):
    """The waiting tasks of one kind."""

    key: Hashable
    groups: dict[str, _Group[T]] = dataclasses.field(default_factory=dict)
    waiting: int = 0


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Group(Generic[T]):
    """The waiting tasks of one kind and one tenant, in order. Entries before `start` have been taken."""

    kind: _Kind[T]
    line: _TenantQueue[T]
    #: Sorted; those before `start` are dropped in bulk.
    entries: list[tuple[float, int, _Entry[T]]] = dataclasses.field(default_factory=list)
    start: int = 0

    @property
    def first(self) -> T:
        return self.entries[self.start][2].item


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _TenantQueue(Generic[T]):
    """A tenant's tasks, and its virtual time."""

    tenant: Tenant
    #: Device seconds it was charged, divided by its share; raised to the queue's virtual time after it was idle. The
    #: least of the waiting tenants is next.
    virtual: float
    #: Breaks ties in virtual time: the tenant served least recently goes first.
    turn: int
    #: Places of the whole queue that are reserved for it.
    reserved: int
    waiting: int = 0
    #: Its tasks that are waiting or taken, and their bytes.
    open_tasks: int = 0
    nbytes: int = 0
    #: Its groups, ordered by their first tasks.
    heads: list[tuple[float, int, _Group[T]]] = dataclasses.field(default_factory=list)
    cursors: dict[Hashable, tuple[float, int]] = dataclasses.field(default_factory=dict)
    limited: bool = dataclasses.field(init=False)
    #: The lower bound for corrections of the virtual time.
    floor: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.limited = self.tenant.bytes is not None or self.tenant.queued is not None
        self.floor = self.virtual


class TaskQueue(Generic[T]):
    """Tasks that wait for a device, in the order in which they should run.

    Within a tenant: a task gains one level of priority for every `ageing` seconds that it waits. All tasks age at the
    same speed, so the order never changes: it is `submitted - priority * ageing`, then the order of submission. Hence
    no task starves: a task of priority p waits behind one of priority q > p only if that was submitted at most
    (q - p) * ageing seconds later. With priorities from 0 to 10, no task of its tenant that is submitted more than
    10 * ageing seconds later overtakes it, so it waits at most that long plus the time that a full queue takes.

    Between tenants: start-time fair queueing. The tenant with the least virtual time goes first: the device seconds it
    was charged, divided by its share. A tenant that was idle returns at the virtual time of the tenant served last, so
    it has neither credit nor debt. A tenant that waits for a device of its own keeps its claim. On one device the
    virtual times of two waiting tenants never differ by more than what is charged for one `take`, divided by the share.

    At most `most` tasks wait, and a quarter of these places is reserved for the named tenants, by their shares. A
    tenant that is not named has a share of 1 and no limits of its own.
    """

    def __init__(self, *, most: int = 1000, ageing: float = 0.5, tenants: Iterable[Tenant] = ()) -> None:
        """Makes a queue for `most` tasks, a share of which is reserved for the tenants that are named.

        `ageing` is the waiting time in seconds that outweighs one step of priority. Raises `InvalidOption`.
        """
        if type(most) is not int or most < 1:
            raise InvalidOption(f"a queue has room for a whole number of tasks, at least 1; got {most!r}.")
        if not (ageing > 0 and isfinite(ageing)):
            raise InvalidOption(f"ageing is a number of seconds, more than 0; got {ageing!r}.")
        self.most = most
        self.ageing = ageing
        self._entries: dict[int, _Entry[T]] = {}
        self._waiting = 0
        self._kinds: dict[Hashable, _Kind[T]] = {}
        self._sequence = count()
        self._turns = count()
        self._virtual = 0.0
        #: Tenants with waiting tasks, by virtual time.
        self._order: list[tuple[float, int, _TenantQueue[T]]] = []
        self._cursors: dict[Hashable, tuple[float, int]] = {}
        self._lines: dict[str, _TenantQueue[T]] = {}
        named = tuple(tenants)
        for each in named:
            if not isinstance(each, Tenant):
                raise InvalidOption(f'tenants are such as Tenant(name="guests", share=2); got {each!r}.')
        shares = sum(each.share for each in named)
        for each in named:
            if each.name in self._lines:
                raise InvalidOption(f"two tenants have the name {each.name!r}.")
            reserved = int(most * RESERVED * each.share / shares)
            if each.queued is not None:
                reserved = min(reserved, each.queued)
            self._lines[each.name] = _TenantQueue(each, 0.0, next(self._turns), reserved)
        self._named = frozenset(self._lines)
        #: Reserved places that are not used yet.
        self._reserved = sum(line.reserved for line in self._lines.values())
        self._forget_at = len(self._named) + _FORGET_AT

    # -- in and out

    def push(self, item: T, now: float, *, again: bool = False) -> None:
        """Add a task. Raises `QueueFull` or `QuotaExceeded`, and then the task is not added.

        `again`: the task was taken before, and failed. It returns to its old position, and no limit applies.
        """
        entry = self._entries.get(id(item))
        if entry is None:
            entry = self._admit(item, now, again)
        elif not again:
            raise InvalidOption(f"{item!r} is in the queue already, or was taken and is not finished.")
        elif entry.group is not None:
            return
        self._wait(entry)

    def check(self, item: T, more: int = 0) -> None:
        """Raises what `push` would raise after `more` other tasks. Changes nothing, so it needs no lock."""
        self.check_room(more)
        line = self._lines.get(item.tenant)
        if line is not None:
            self._check_limits(line, item.nbytes)

    def surely_takes(self, item: T, more: int = 0) -> bool:
        """Whether `push` is certain to accept it after `more` other tasks. Needs no lock."""
        line = self._lines.get(item.tenant)
        return (line is None or not line.limited) and self._waiting + self._reserved + more < self.most

    def check_room(self, more: int = 0) -> None:
        """Raises `QueueFull` if no task could be pushed after `more` others. Needs no lock."""
        if self._waiting + more >= self.most:
            raise QueueFull(self.most)

    def check_quotas(self, item: T) -> None:
        """Raises `QuotaExceeded` if the item exceeds the quotas of its tenant."""
        line = self._lines.get(item.tenant)
        if line is not None and line.limited:
            self._check_quotas(line, item.nbytes)

    def take(
        self,
        now: float,
        fits: Callable[[T], bool],
        *,
        most: int | Callable[[T, int], int] = 1,
        look: int | None = LOOK,
        by: Hashable = None,
    ) -> list[T]:
        """The first task that fits, and with it others of its kind, up to `most` in all; nothing if none fits.

        `most` may be a function of that task and of how many of its kind wait. Tasks of the same tenant come first,
        then those of other tenants, in order. Each counts as taken until `finished`, and is charged to its own tenant.

        `fits` is called with the first task of each tenant and kind (a head), and its answer holds for the rest. At
        most `look` heads are tried; None means all. If there are more, half of the calls go to the first heads and half
        to others in rotation: tasks that cannot run here hide those that can for a few calls only. `by` identifies the
        caller, which has a rotation of its own. (`now` is unused: the order does not change with time.)
        """
        order = self._order
        if not order:
            return []
        # At least two heads per tenant: its first, and one of the rotation.
        looks = 2 * self._waiting if look is None else max(look, 4)
        lines = order if len(order) <= looks // 2 else _sample(order, looks // 2, self._cursors, by)
        lines_left = len(lines)
        for _, _, line in lines:
            part = looks // lines_left
            heads = (
                line.heads if look is None or len(line.heads) <= part else _sample(line.heads, part, line.cursors, by)
            )
            for _, _, group in heads:
                if fits(group.entries[group.start][2].item):
                    return self._take(group, fits, most)
            looks -= len(heads)
            lines_left -= 1
        return []

    def take_this(self, item: T) -> bool:
        """Take this task out of turn, if it is waiting: a running task depends on it."""
        entry = self._entries.get(id(item))
        if entry is None or entry.group is None:
            return False
        self._withdraw(entry, entry.group)
        return True

    def remove(self, item: T) -> bool:
        """Remove it if it is waiting: it was cancelled or has expired. Returns whether it was waiting."""
        if not self.take_this(item):
            return False
        self._forget(self._entries[id(item)])
        return True

    def finished(self, item: T) -> None:
        """Remove it, waiting or taken: it no longer counts against its tenant's bytes. Idempotent."""
        entry = self._entries.get(id(item))
        if entry is not None:
            if entry.group is not None:
                self._withdraw(entry, entry.group)
            self._forget(entry)

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge device seconds that the tenant has used or will use; negative to correct an earlier charge."""
        line = self._line_of(tenant)
        virtual = max(line.virtual + seconds / line.tenant.share, line.floor)
        if line.waiting:
            self._move(line, virtual, line.turn)
        else:
            line.virtual = virtual

    # -- what is in it

    def __len__(self) -> int:
        """The number of waiting tasks."""
        return self._waiting

    def __iter__(self) -> Iterator[T]:
        """The waiting tasks, in order of submission."""
        return iter([entry.item for entry in self._entries.values() if entry.group is not None])

    def waiting(self, tenant: str) -> int:
        """The number of waiting tasks of a tenant."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.waiting

    def bytes_of(self, tenant: str) -> int:
        """Bytes of a tenant's tasks that are waiting, or taken and not finished."""
        line = self._lines.get(tenant)
        return 0 if line is None else line.nbytes

    def count(self, kind: Hashable) -> int:
        """The number of waiting tasks of a kind."""
        found = self._kinds.get(kind)
        return 0 if found is None else found.waiting

    def kinds(self) -> dict[Hashable, int]:
        """The number of waiting tasks by kind."""
        return {key: kind.waiting for key, kind in self._kinds.items()}

    def oldest(self, now: float) -> float | None:
        """The age of the oldest waiting task in seconds; None if there is none."""
        for entry in self._entries.values():
            if entry.group is not None:
                return now - entry.submitted
        return None

    # -- coming

    def _admit(self, item: T, now: float, again: bool) -> _Entry[T]:
        """Makes the entry of a task and counts it against its tenant; raises if a limit would be exceeded.

        With `again` no limit applies, as the task was accepted before.
        """
        priority, nbytes = item.priority, item.nbytes
        check_priority(priority)
        if nbytes < 0:
            raise InvalidOption(f"a task cannot take {nbytes} bytes.")
        if not self._entries:
            self._begin()
        line = self._line_of(item.tenant)
        if not again and (line.limited or self._waiting + self._reserved >= self.most):
            self._check_limits(line, nbytes)
        entry = _Entry(item, line, nbytes, now, now - priority * self.ageing, next(self._sequence))
        self._entries[id(item)] = entry
        line.open_tasks += 1
        line.nbytes += nbytes
        return entry

    def _check_limits(self, line: _TenantQueue[T], nbytes: int) -> None:
        """Raises `QueueFull` or `QuotaExceeded` if the tenant may add no task of that size.

        Places that are reserved for other tenants count as taken, beyond this tenant's own.
        """
        if self._waiting >= self.most:
            raise QueueFull(self.most)
        self._check_quotas(line, nbytes)
        if line.waiting >= line.reserved and self._waiting + self._reserved >= self.most:
            raise QueueFull(self.most - self._reserved, self._reserved)

    def _check_quotas(self, line: _TenantQueue[T], nbytes: int) -> None:
        """Raises `QuotaExceeded` if one more task would exceed the tenant's own limits."""
        tenant = line.tenant
        if tenant.queued is not None and line.waiting >= tenant.queued:
            raise QuotaExceeded(tenant.name, "queued tasks", tenant.queued)
        if tenant.bytes is not None and line.nbytes + nbytes > tenant.bytes:
            raise QuotaExceeded(tenant.name, "bytes", tenant.bytes)

    def _begin(self) -> None:
        """The queue is empty: all tenants start equal, whichever of them used an idle machine before."""
        self._virtual = max((line.virtual for line in self._lines.values()), default=self._virtual)
        if len(self._lines) > len(self._named) + _FORGET_AT:
            self._sweep()

    def _wait(self, entry: _Entry[T]) -> None:
        """Insert it into its group, its tenant's queue and the order of tenants."""
        line, key = entry.line, entry.item.kind
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(key)
        name = line.tenant.name
        group = kind.groups.get(name)
        rank = (entry.order, entry.sequence, entry)
        if group is None:
            group = kind.groups[name] = _Group(kind, line)
            group.entries.append(rank)
            insort(line.heads, (entry.order, entry.sequence, group))
        elif rank > group.entries[-1]:
            group.entries.append(rank)
        else:
            head = group.entries[group.start]
            insort(group.entries, rank, group.start)
            if rank < head:
                del line.heads[bisect_left(line.heads, head[:2])]
                insort(line.heads, (entry.order, entry.sequence, group))
        entry.group = group
        kind.waiting += 1
        self._waiting += 1
        if line.waiting < line.reserved:
            self._reserved -= 1
        line.waiting += 1
        if line.waiting == 1:
            line.floor = self._virtual
            line.virtual = max(line.virtual, self._virtual)
            insort(self._order, (line.virtual, line.turn, line))

    # -- going

    def _take(self, group: _Group[T], fits: Callable[[T], bool], most: int | Callable[[T, int], int]) -> list[T]:
        """Takes the first task of a group, and up to `most` of its kind.

        Those of its tenant come first, then others in turn. The queue's virtual time follows the tenant that is served.
        Other tenants whose tasks come along keep their turn, unless it was theirs anyway.
        """
        line, kind = group.line, group.kind
        if callable(most):
            most = most(group.first, kind.waiting)
        if line.virtual > self._virtual:
            self._virtual = line.virtual
        taken: list[T] = []
        self._take_from(group, max(1, most), taken)
        if line.waiting:
            self._move(line, line.virtual, next(self._turns))
        else:
            line.turn = next(self._turns)
        if len(taken) < most and kind.waiting:
            for other in sorted(kind.groups.values(), key=lambda each: (each.line.virtual, each.line.turn)):
                if other is not group and fits(other.first):
                    if self._order[0][2] is other.line:  # it is this tenant's turn as well
                        self._virtual = max(self._virtual, other.line.virtual)
                    self._take_from(other, most - len(taken), taken)
                    if len(taken) >= most:
                        break
        return taken

    def _take_from(self, group: _Group[T], most: int, taken: list[T]) -> None:
        """Take the first tasks of a group."""
        heads, entries, start = group.line.heads, group.entries, group.start
        end = min(start + most, len(entries))
        del heads[bisect_left(heads, entries[start][:2])]
        for _, _, entry in entries[start:end]:
            entry.group = None
            taken.append(entry.item)
        if end < len(entries):
            head = entries[end]
            insort(heads, (head[0], head[1], group))
        group.start = end
        self._went(group, end - start)
        if end >= _MOVE_UP and 2 * end >= len(entries):
            del entries[:end]
            group.start = 0

    def _withdraw(self, entry: _Entry[T], group: _Group[T]) -> None:
        """Remove it from its group, at any position."""
        heads, entries = group.line.heads, group.entries
        rank = (entry.order, entry.sequence)
        index = bisect_left(entries, rank, group.start)
        del entries[index]
        if index == group.start:
            del heads[bisect_left(heads, rank)]
            if index < len(entries):
                head = entries[index]
                insort(heads, (head[0], head[1], group))
        entry.group = None
        self._went(group, 1)

    def _went(self, group: _Group[T], number: int) -> None:
        """Account for `number` tasks of a group that have stopped waiting."""
        line, kind = group.line, group.kind
        self._waiting -= number
        kind.waiting -= number
        if group.start == len(group.entries):
            del kind.groups[line.tenant.name]
            if not kind.waiting:
                del self._kinds[kind.key]
        line.waiting -= number
        if line.waiting < line.reserved:
            self._reserved += min(number, line.reserved - line.waiting)
        if not line.waiting:
            del self._order[bisect_left(self._order, (line.virtual, line.turn))]

    def _forget(self, entry: _Entry[T]) -> None:
        """Drops a finished entry, and its bytes from its tenant's."""
        del self._entries[id(entry.item)]
        del entry.item  # a group may hold the taken entry for a while; the task's arguments must not stay with it
        entry.line.open_tasks -= 1
        entry.line.nbytes -= entry.nbytes

    # -- tenants

    def _move(self, line: _TenantQueue[T], virtual: float, turn: int) -> None:
        """Change the position of a tenant in the order of waiting tenants."""
        order = self._order
        if len(order) == 1:
            order[0] = (virtual, turn, line)
        else:
            del order[bisect_left(order, (line.virtual, line.turn))]
            insort(order, (virtual, turn, line))
        line.virtual, line.turn = virtual, turn

    def _line_of(self, name: str) -> _TenantQueue[T]:
        """The queue of a tenant; one that was not named is made, after forgetting old ones if there are too many."""
        known = self._lines.get(name)
        if known is not None:
            return known
        if len(self._lines) >= self._forget_at:
            self._sweep()
        line: _TenantQueue[T] = _TenantQueue(Tenant(name=name), self._virtual, next(self._turns), 0)
        self._lines[name] = line
        return line

    def _sweep(self) -> None:
        """Forget unnamed tenants that would return as if they were new."""
        idle = [
            name
            for name, line in self._lines.items()
            if not line.open_tasks and line.virtual <= self._virtual and name not in self._named
        ]
        for name in idle:
            del self._lines[name]
        self._forget_at = 2 * len(self._lines) + _FORGET_AT


def _sample(
    ranked: list[tuple[float, int, Ranked]], number: int, cursors: dict[Hashable, tuple[float, int]], by: Hashable
) -> list[tuple[float, int, Ranked]]:
    """The first half of `number` entries, and a second half that rotates through the others."""
    first = (number + 1) // 2
    cursor = cursors.pop(by, None)
    begin = first if cursor is None else bisect_left(ranked, cursor, first)
    if begin == len(ranked):
        begin = first
    end = begin + number - first
    if end < len(ranked):
        cursors[by] = ranked[end][:2]
    return ranked[:first] + ranked[begin:end]
