"""How an array is restored after its device was lost, or after it was evicted.

Every array on a device that can be lost has a `Lineage`: a copy on the host, or the program that produced it with the
lineages of its inputs, or a reason why there is neither. Lineages take host memory only, and that is bounded: copies by
`HostCopyCache`, the history of an array by `DEPTH` and `NODES`.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from weakref import ref

import msgspec
import numpy as np

from anygpu.base.forks import lock
from anygpu.base.typing import HostArray
from anygpu.base.units import bytes_from, readable_bytes
from anygpu.engines.numpy import lowering
from anygpu.errors import DeviceLost, InvalidOption
from anygpu.hardware import host
from anygpu.program.graph import Line, Program
from anygpu.program.primitives import Spec
from anygpu.workers.worker import Handle, Worker

MEMORY = "ANYGPU_RECOVERY_MEMORY"

_MOST_MEMORY = 1 << 30

#: Programs in sequence after which an array is copied to the host instead.
DEPTH = 64
#: Nodes of all these programs together.
NODES = 1 << 14


def default_budget() -> int:
    """Returns the host memory for copies in bytes.

    It is the environment's, or an eighth of the memory up to a limit.
    """
    text = os.environ.get(MEMORY)
    if not text:
        return min(_MOST_MEMORY, host.memory_total() // 8)
    budget = bytes_from(text)
    if budget is None:
        raise InvalidOption(f'{MEMORY} is a number of bytes such as "2GB", "512MiB" or "0"; got {text!r}.')
    return budget


# -- copies on the host


class HostCopy:
    """The values of an array in memory of its own, until they are dropped."""

    __slots__ = ("__weakref__", "_number", "_returned", "nbytes", "needed_by", "values", "why")

    def __init__(self, values: HostArray, number: int, returned: deque[int]) -> None:
        """Keeps values that are never written to.

        `number` is put into `returned` when the copy is gone, by its finalizer.
        """
        self.values: HostArray | None = values
        self.nbytes = values.nbytes
        #: The reason, once the values were dropped.
        self.why = ""
        #: Arrays that are on no device now, and are restored from this copy.
        self.needed_by: list[ref[TrackedBuffer]] = []
        self._number = number
        self._returned = returned

    @property
    def is_needed(self) -> bool:
        """Whether this copy is the only way to restore some array."""
        if self.needed_by:
            alive = [buffer for each in self.needed_by if (buffer := each()) is not None and buffer.handle is None]
            self.needed_by = [ref(buffer) for buffer in alive]
        return bool(self.needed_by)

    def __del__(self) -> None:
        # Runs on any thread at any moment, so it takes no lock: the next holder of the cache's lock does the rest.
        self._returned.append(self._number)


class HostCopyCache:
    """All host copies of a process. Beyond the budget the oldest are dropped, except those that an array depends on."""

    def __init__(self, budget: int | None = None) -> None:
        """Starts without copies; without a budget it is that of the environment, or a share of the host's memory.

        Copies are held by the arrays that they belong to, and only counted here.
        """
        self._budget = budget
        self._lock = lock()
        self._numbers = itertools.count(1)
        #: In order of creation.
        self._sizes: dict[int, int] = {}
        self._copies: dict[int, ref[HostCopy]] = {}
        self._returned: deque[int] = deque()
        self._bytes = 0

    @property
    def budget(self) -> int:
        if self._budget is None:
            self._budget = default_budget()
        return self._budget

    @property
    def bytes(self) -> int:
        """The size of all copies."""
        with self._lock:
            self._settle()
            return self._bytes

    def keep(self, values: HostArray, *, owned: bool = False) -> HostCopy | str:
        """A copy of the values, or the reason why there is none. `owned` values are immutable and not copied."""
        if values.nbytes > self.budget:
            return f"its {readable_bytes(values.nbytes)} exceed the recovery budget of {self._allowed()}"
        return self._made(values, owned=owned) or (
            f"arrays that exist nowhere else take up the recovery budget of {self._allowed()}"
        )

    def hold(self, values: HostArray) -> HostCopy | None:
        """A copy beyond the budget, for an array that is evicted; `None` if the host lacks memory."""
        if host.memory_free() < 2 * values.nbytes:
            return None
        return self._made(values, forced=True)

    def need(self, copy: HostCopy, buffer: TrackedBuffer) -> bool:
        """Keep the copy while that array is on no device. Returns whether the copy still existed."""
        with self._lock:
            if copy.values is None:
                return False
            copy.needed_by.append(ref(buffer))
            return True

    def _made(self, values: HostArray, *, owned: bool = False, forced: bool = False) -> HostCopy | None:
        """Makes a copy within the budget, for which older ones may be dropped; `None` if it cannot be made.

        With `forced` the budget may be exceeded, and `owned` values are taken as they are. The copy is made without the
        lock.
        """
        nbytes = values.nbytes
        with self._lock:
            self._settle()
            if self._bytes + nbytes > self.budget:
                self._drop_oldest(self._bytes + nbytes - self.budget)
                if self._bytes + nbytes > self.budget and not forced:
                    return None
            number = next(self._numbers)
            self._sizes[number] = nbytes
            self._bytes += nbytes
        try:
            own = values if owned else np.array(values, order="C")
        except MemoryError:
            self._returned.append(number)
            return None
        own.flags.writeable = False
        copy = HostCopy(own, number, self._returned)
        with self._lock:
            self._copies[number] = ref(copy)
        return copy

    def _drop_oldest(self, nbytes: int) -> None:
        """Drops the oldest copies that no array depends on, until so many bytes are free. The lock is held."""
        for number, reference in list(self._copies.items()):
            if nbytes <= 0:
                return
            copy = reference()
            if copy is None or copy.values is None or copy.is_needed:
                continue
            copy.values = None
            copy.why = f"its host copy was evicted for newer ones: the recovery budget is {self._allowed()}"
            self._forget(number)
            nbytes -= copy.nbytes

    def _settle(self) -> None:
        while self._returned:
            self._forget(self._returned.popleft())

    def _forget(self, number: int) -> None:
        self._bytes -= self._sizes.pop(number, 0)
        self._copies.pop(number, None)

    def _allowed(self) -> str:
        return f"{readable_bytes(self.budget)} ({MEMORY})"


# -- where arrays come from


# Every program that runs creates one of each of these; msgspec does that in C.


class Producer(msgspec.Struct, eq=False):
    """A program and the lineages of its inputs. All its results share it, so that it is rerun once for all of them."""

    program: Program
    inputs: Sequence[Lineage]
    #: In order; empty if there is only one.
    results: Sequence[ref[Lineage]] = ()


class Lineage(msgspec.Struct, eq=False, weakref=True):
    """How one array can be restored."""

    spec: Spec
    producer: Producer | None = None
    #: The index among the results of the producer.
    position: int = 0
    #: Programs to rerun in sequence, and an upper bound for the nodes in all of them.
    depth: int = 0
    nodes: int = 0
    #: An upper bound for the bytes of copies that its history keeps alive.
    held: int = 0
    #: The user's line that created it, if there is no producer.
    line: Line | None = None
    #: The user's name for it.
    name: str = ""
    #: The array, while it exists.
    array: ref[TrackedBuffer] | None = None
    #: The reason why there is neither a copy nor a producer.
    why: str = ""
    _copy: HostCopy | None = None

    @property
    def copy(self) -> HostCopy | None:
        """The copy, unless it was dropped."""
        copy = self._copy
        if copy is not None and copy.values is None:
            self.why, self._copy = copy.why, None
            return None
        return copy

    def remember(self, copy: HostCopy | str) -> None:
        """Sets the copy, or the reason why there is none."""
        if isinstance(copy, HostCopy):
            self._copy = copy
            if self.producer is None:
                self.held = copy.nbytes
        else:
            self.why = copy

    def forget(self, why: str) -> None:
        """Drop the copy and the producer."""
        self.line = self._users_line()
        self.producer = self._copy = None
        self.depth = self.nodes = self.held = 0
        self.why = why

    def cut(self) -> None:
        """Drop the producer: there is a copy, or a reason why there is none."""
        self.line = self._users_line()
        self.producer = None
        self.depth = self.nodes = 0
        self.held = self._copy.nbytes if self._copy is not None else 0

    def describe(self) -> str:
        """Returns how messages call the array: its name in a store, or the user's line that made it."""
        if self.name:
            return f"{self.name} ({self.spec})"
        line = self._users_line()
        return f"{self.spec} of {line[0]}:{line[1]}" if line is not None else str(self.spec)

    def _users_line(self) -> Line | None:
        """Returns the user's line that made the array: of its node in the producer's program, or of its upload."""
        if self.producer is None:
            return self.line
        program = self.producer.program
        return program.lines[program.outputs[self.position]]


def result_lineages(program: Program, inputs: Sequence[Lineage]) -> list[Lineage]:
    """The lineages of a program's results. On the path of every program that runs."""
    depth = held = 0
    nodes = len(program.nodes)
    for lineage in inputs:
        nodes += lineage.nodes
        held += lineage.held
        if lineage.depth > depth:
            depth = lineage.depth
    producer = Producer(program, inputs)
    specs, outputs = program.specs, program.outputs
    if len(outputs) == 1:
        return [Lineage(specs[outputs[0]], producer, 0, depth + 1, nodes, held)]
    lineages = [Lineage(specs[output], producer, at, depth + 1, nodes, held) for at, output in enumerate(outputs)]
    producer.results = [ref(lineage) for lineage in lineages]
    return lineages


#: A lineage with its producer; `None` where its ancestors are not needed.
Step = tuple[Lineage, Producer | None]


def recount(lineage: Lineage) -> None:
    """Recompute the bounds: an ancestor of several programs was counted for each of them.

    Copies of arrays that are still alive do not count: they exist in any case.
    """
    if lineage.producer is None:
        return
    order = topological_order([lineage], lambda _: False)
    producers = {id(producer): producer for _, producer in order if producer is not None}
    lineage.nodes = sum(len(producer.program.nodes) for producer in producers.values())
    copies = [each.copy for each, _ in order if each.array is None or each.array() is None]
    lineage.held = sum(copy.nbytes for copy in copies if copy is not None)


def topological_order(wanted: Iterable[Lineage], is_available: Callable[[Lineage], bool]) -> list[Step]:
    """The wanted lineages and their ancestors, inputs before results; ancestors of available ones are left out.

    Iterative, because histories are long.
    """
    order: list[Step] = []
    seen: set[int] = set()
    stack: list[tuple[Lineage, Producer | None, bool]] = [(lineage, None, False) for lineage in wanted]
    while stack:
        lineage, producer, entered = stack.pop()
        if entered:
            order.append((lineage, producer))
            continue
        if id(lineage) in seen:
            continue
        seen.add(id(lineage))
        producer = None if is_available(lineage) else lineage.producer
        stack.append((lineage, producer, True))
        if producer is not None:
            stack.extend((each, None, False) for each in producer.inputs if id(each) not in seen)
    return order


def has_copy(lineage: Lineage) -> bool:
    return lineage.copy is not None


def missing_ancestors(order: Sequence[Step], is_available: Callable[[Lineage], bool]) -> dict[int, Lineage | None]:
    """Returns by id of each lineage the first ancestor that cannot be restored, or `None`."""
    missing: dict[int, Lineage | None] = {}
    for lineage, producer in order:
        found: Lineage | None = None
        if producer is not None:
            ancestors = (missing[id(each)] for each in producer.inputs)
            found = next((each for each in ancestors if each is not None), None)
        elif not is_available(lineage):
            found = lineage
        missing[id(lineage)] = found
    return missing


def describe_loss(lineage: Lineage, missing: Lineage) -> str:
    """A clause: why the array of a lineage cannot be restored."""
    why = missing.why or "no copy of it was kept"
    return why if missing is lineage else f"it was computed from {missing.describe()}: {why}"


class BufferOwner(Protocol):
    """The device that a buffer belongs to."""

    def handle_for(self, buffer: TrackedBuffer) -> Handle: ...


class TrackedBuffer(msgspec.Struct, eq=False, weakref=True):
    """An array on a device that can be lost: its current handle, and its lineage."""

    #: `None` while it is on no device: it was lost or evicted.
    handle: Handle | None
    lineage: Lineage
    owner: BufferOwner
    #: The generation of the worker that held it last.
    generation: int
    #: The time of the last use, on a clock that ticks with every use of any array.
    used: int

    @property
    def spec(self) -> Spec:
        return self.lineage.spec

    def ensure_resident(self) -> Handle:
        """The handle of the array on its device, after restoring it if necessary."""
        return self.owner.handle_for(self)

    def __repr__(self) -> str:
        return f"<{self.handle!r}>" if self.handle is not None else f"<{self.spec}, on no device now>"


# -- reports


class LostArray(NamedTuple):
    """An array that cannot be restored."""

    description: str
    nbytes: int
    reason: str


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has died, and what became of the arrays on it."""

    device: str
    #: The generation of the worker that died.
    generation: int
    why: str
    #: Arrays that will be uploaded again when they are used, and arrays that will be recomputed.
    restorable_from_copy: int = 0
    recomputable: int = 0
    lost: tuple[LostArray, ...] = ()

    def __str__(self) -> str:
        """Returns one line: the worker, why it died, and how many of its arrays can be restored or are lost."""
        what = [
            f"{count} arrays {become}"
            for count, become in (
                (self.restorable_from_copy, "have a copy"),
                (self.recomputable, "can be computed again"),
                (len(self.lost), f"are lost: {', '.join(each.description for each in self.lost[:3])}"),
            )
            if count
        ]
        on_it = f"; of what was on it {', '.join(what)}" if what else ""
        return f"{self.device}, generation {self.generation} ({self.why or 'cause unknown'}){on_it}"


class Evicted(msgspec.Struct, frozen=True):
    """Arrays that were evicted from a device. They are restored when they are used."""

    arrays: int = 0
    bytes: int = 0


# -- restoring arrays, after their device was lost or after they were evicted: on the device, or on the host


class Restoration:
    """One restoration: uploads and computes everything that the wanted arrays need, each thing once."""

    def __init__(self, worker: Worker, wanted: Sequence[TrackedBuffer], now: int) -> None:
        """`now` becomes `TrackedBuffer.used` of the wanted arrays."""
        self._worker = worker
        self._wanted = wanted
        self._now = now
        #: By the id of its lineage: what is on the device, and what is on the host.
        self._held: dict[int, Handle] = {}
        self._values: dict[int, HostArray] = {}

    def carry_out(self) -> dict[int, Handle]:
        """The handles of all wanted arrays. Raises `DeviceLost` for an array that cannot be restored."""
        order = topological_order([buffer.lineage for buffer in self._wanted], self._is_available)
        _require(order, self._wanted, self._is_available, self._worker.device.id)
        uses = _uses(order, self._wanted)
        done: set[int] = set()
        for lineage, producer in order:
            if producer is None and id(lineage) in self._values:
                self._restored(lineage, self._worker.upload(self._values.pop(id(lineage))))
            elif producer is not None and id(producer) not in done:
                done.add(id(producer))
                self._compute(lineage, producer, uses)
        for buffer in self._wanted:
            buffer.used = self._now
        return self._held

    def _is_available(self, lineage: Lineage) -> bool:
        """Whether it is on the device, or has a copy, which is held from now on."""
        if id(lineage) in self._held or id(lineage) in self._values:
            return True
        buffer = lineage.array() if lineage.array is not None else None
        handle = buffer.handle if buffer is not None else None
        if handle is not None and handle.generation == self._worker.generation:
            self._held[id(lineage)] = handle
            return True
        copy = lineage.copy
        values = copy.values if copy is not None else None
        if values is not None:
            self._values[id(lineage)] = values
        return values is not None

    def _compute(self, wanted: Lineage, producer: Producer, uses: dict[int, int]) -> None:
        """Runs a producer again on the worker. Inputs that nothing else needs are released at once."""
        given = [self._held[id(source)] for source in producer.inputs]
        ran = self._worker.run(producer.program, given, keep=True, wait=False)
        for source in producer.inputs:
            uses[id(source)] -= 1
            if not uses[id(source)]:
                self._held.pop(id(source), None)
        lineages = [each() for each in producer.results] or [wanted]
        for lineage, handle in zip(lineages, ran.results, strict=True):
            if lineage is not None:
                self._restored(lineage, handle, needed=id(lineage) in uses)

    def _restored(self, lineage: Lineage, handle: Handle, *, needed: bool = True) -> None:
        """Record that it is on the device again, also for the array that the user holds."""
        if needed:
            self._held[id(lineage)] = handle
        buffer = lineage.array() if lineage.array is not None else None
        if buffer is not None and (buffer.handle is None or buffer.handle.generation != handle.generation):
            buffer.handle, buffer.generation = handle, handle.generation


class HostRestoration:
    """The restoration of arrays whose device cannot be opened any more: NumPy computes what has no copy."""

    def __init__(self, device: str, wanted: Sequence[TrackedBuffer]) -> None:
        """Restores the wanted arrays on the host; `programs` collects what NumPy has computed for it."""
        self._device = device
        self._wanted = wanted
        #: By the id of its lineage.
        self._values: dict[int, HostArray] = {}
        #: The programs that were run again.
        self.programs: list[Program] = []

    def carry_out(self) -> list[HostArray]:
        """The values of all wanted arrays. Raises `DeviceLost` for an array that cannot be restored."""
        order = topological_order([buffer.lineage for buffer in self._wanted], self._is_available)
        _require(order, self._wanted, self._is_available, self._device)
        uses = _uses(order, self._wanted)
        for lineage, producer in order:
            # Another result of the same program may have been computed with it.
            if producer is not None and id(lineage) not in self._values:
                self._compute(lineage, producer, uses)
        return [self._values[id(buffer.lineage)] for buffer in self._wanted]

    def _is_available(self, lineage: Lineage) -> bool:
        """Whether it has a copy, which is held from now on."""
        copy = lineage.copy
        values = copy.values if copy is not None else None
        if values is not None:
            self._values[id(lineage)] = values
        return id(lineage) in self._values

    def _compute(self, wanted: Lineage, producer: Producer, uses: dict[int, int]) -> None:
        """Runs a producer again by NumPy; raises `DeviceLost` for bfloat16, which NumPy does not have."""
        if any(spec.dtype == "bfloat16" for spec in producer.program.specs):
            detail = f"{wanted.describe()} cannot be restored: NumPy has no bfloat16"
            raise DeviceLost(self._device, detail=detail)
        self.programs.append(producer.program)
        results = lowering.run(producer.program, [self._values[id(source)] for source in producer.inputs])
        for source in producer.inputs:
            uses[id(source)] -= 1
            if not uses[id(source)]:
                self._values.pop(id(source), None)
        lineages = [each() for each in producer.results] or [wanted]
        for lineage, values in zip(lineages, results, strict=True):
            if lineage is not None and id(lineage) in uses:
                self._values[id(lineage)] = values


def _require(
    order: Sequence[Step], wanted: Sequence[TrackedBuffer], is_available: Callable[[Lineage], bool], device: str
) -> None:
    """Raise `DeviceLost` for the first array that cannot be restored."""
    missing = missing_ancestors(order, is_available)
    for buffer in wanted:
        cause = missing[id(buffer.lineage)]
        if cause is not None:
            why = describe_loss(buffer.lineage, cause)
            detail = f"{buffer.lineage.describe()} cannot be restored: {why}"
            raise DeviceLost(device, detail=detail, generation=buffer.generation)


def _uses(order: Sequence[Step], wanted: Sequence[TrackedBuffer]) -> dict[int, int]:
    """How often each lineage is still needed, so that it can be released afterwards."""
    uses: dict[int, int] = {}
    producers = {id(producer): producer for _, producer in order if producer is not None}
    inputs = [source for producer in producers.values() for source in producer.inputs]
    for lineage in (*inputs, *(buffer.lineage for buffer in wanted)):
        uses[id(lineage)] = uses.get(id(lineage), 0) + 1
    return uses
