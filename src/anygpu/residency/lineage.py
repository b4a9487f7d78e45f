"""How arrays can be had again that were on a device which was lost, or that had to make room on it.

Every array on a device that can be lost has an `Lineage`: a copy on the host, or the program that made it with the
origins of what it was made of, or a reason why there is neither. Origins are in the host's memory alone. What they
cost is bounded: copies by `HostCopyCache`, and the history of an array by `DEPTH` and `NODES`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol
from weakref import ref

import msgspec
import numpy as np

from anygpu._typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.hardware import host
from anygpu.program.graph import Line, Program
from anygpu.program.primitives import Spec
from anygpu.units import bytes_from, readable_bytes
from anygpu.workers.worker import Handle

MEMORY = "ANYGPU_RECOVERY_MEMORY"

_MOST_MEMORY = 1 << 30

#: Programs one after the other, after which an array is copied to the host instead.
DEPTH = 64
#: Of all these programs together.
NODES = 1 << 14


def default_budget() -> int:
    """The most bytes of the host's memory for copies, as the variable says."""
    text = os.environ.get(MEMORY)
    if not text:
        return min(_MOST_MEMORY, host.memory_total() // 8)
    budget = bytes_from(text)
    if budget is None:
        raise InvalidOption(f'{MEMORY} is a number of bytes such as "2GB", "512MiB" or "0"; got {text!r}.')
    return budget


# -- copies on the host


class HostCopy:
    """The values of an array in memory that nobody else has, until they are dropped."""

    __slots__ = ("__weakref__", "_number", "_returned", "nbytes", "needed_by", "values", "why")

    def __init__(self, values: HostArray, number: int, returned: deque[int]) -> None:
        self.values: HostArray | None = values
        self.nbytes = values.nbytes
        #: Why it was dropped.
        self.why = ""
        #: Arrays that are on no device now, and are had again with the help of this.
        self.needed_by: list[ref[TrackedBuffer]] = []
        self._number = number
        self._returned = returned

    @property
    def is_needed(self) -> bool:
        """Whether an array is nowhere else."""
        if self.needed_by:
            alive = [kept for each in self.needed_by if (kept := each()) is not None and kept.handle is None]
            self.needed_by = [ref(kept) for kept in alive]
        return bool(self.needed_by)

    def __del__(self) -> None:
        # On any thread, at any moment: whoever has the lock, or takes it next, does the rest.
        self._returned.append(self._number)


class HostCopyCache:
    """All copies of a process. Beyond the budget the oldest are dropped, unless an array is nowhere else."""

    def __init__(self, budget: int | None = None) -> None:
        self._budget = budget
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        #: In the order in which they were made.
        self._sizes: dict[int, int] = {}
        self._copies: dict[int, ref[HostCopy]] = {}
        self._returned: deque[int] = deque()
        self._bytes = 0

    def forked(self) -> None:
        """In a process that was forked from ours."""
        self._lock = threading.Lock()

    @property
    def budget(self) -> int:
        if self._budget is None:
            self._budget = default_budget()
        return self._budget

    @property
    def bytes(self) -> int:
        """What all copies take now."""
        with self._lock:
            self._settle()
            return self._bytes

    def keep(self, values: HostArray, *, owned: bool = False) -> HostCopy | str:
        """A copy of the values, or why there can be none. `owned` ones are the copy: nobody writes to them."""
        if values.nbytes > self.budget:
            return f"it has {readable_bytes(values.nbytes)}, and copies on the host may take {self._allowed()}"
        return self._made(values, owned=owned) or (
            f"copies on the host may take {self._allowed()}, and those of arrays that are nowhere else take it all"
        )

    def hold(self, values: HostArray) -> HostCopy | None:
        """A copy whatever the budget says, for an array that leaves its device; none if the host has no room."""
        if host.memory_free() < 2 * values.nbytes:
            return None
        return self._made(values, forced=True)

    def need(self, copy: HostCopy, kept: TrackedBuffer) -> bool:
        """Keep the copy as long as that array is on no device. Whether it was still there."""
        with self._lock:
            if copy.values is None:
                return False
            copy.needed_by.append(ref(kept))
            return True

    def _made(self, values: HostArray, *, owned: bool = False, forced: bool = False) -> HostCopy | None:
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
        for number, reference in list(self._copies.items()):
            if nbytes <= 0:
                return
            copy = reference()
            if copy is None or copy.values is None or copy.is_needed:
                continue
            copy.values = None
            copy.why = f"its copy on the host was dropped for newer ones: they may take {self._allowed()}"
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


# Every program that runs makes one of each of these: msgspec makes them in C.


class Producer(msgspec.Struct, eq=False):
    """A program and what it was run on. All its results share it, so that it is run once for all of them."""

    program: Program
    inputs: Sequence[Lineage]
    #: In their order; empty if there is only one.
    results: Sequence[ref[Lineage]] = ()


class Lineage(msgspec.Struct, eq=False, weakref=True):
    """How one array can be had again."""

    spec: Spec
    recipe: Producer | None = None
    #: Among the results of the recipe.
    position: int = 0
    #: Programs that would have to be run one after the other, and at most so many nodes in all of them.
    depth: int = 0
    nodes: int = 0
    #: At most so many bytes of copies are held by its history.
    held: int = 0
    #: Where it was made, if there is no recipe to tell.
    line: Line | None = None
    #: What its user calls it.
    name: str = ""
    #: The array, while there is one.
    array: ref[TrackedBuffer] | None = None
    #: Why there is neither a copy nor a recipe.
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
        if isinstance(copy, HostCopy):
            self._copy = copy
            if self.recipe is None:
                self.held = copy.nbytes
        else:
            self.why = copy

    def forget(self, why: str) -> None:
        """There shall be neither a copy nor a recipe."""
        self.line = self._users_line()
        self.recipe = self._copy = None
        self.depth = self.nodes = self.held = 0
        self.why = why

    def cut(self) -> None:
        """Forget how it was made: there is a copy, or a reason why there is none."""
        self.line = self._users_line()
        self.recipe = None
        self.depth = self.nodes = 0
        self.held = self._copy.nbytes if self._copy is not None else 0

    def describe(self) -> str:
        if self.name:
            return f"{self.name} ({self.spec})"
        line = self._users_line()
        return f"{self.spec} of {line[0]}:{line[1]}" if line is not None else str(self.spec)

    def _users_line(self) -> Line | None:
        if self.recipe is None:
            return self.line
        program = self.recipe.program
        return program.lines[program.outputs[self.position]]


def made_by(program: Program, inputs: Sequence[Lineage]) -> list[Lineage]:
    """The origins of a program's results. Called for every program that runs."""
    depth = held = 0
    nodes = len(program.nodes)
    for origin in inputs:
        nodes += origin.nodes
        held += origin.held
        if origin.depth > depth:
            depth = origin.depth
    recipe = Producer(program, inputs)
    specs, outputs = program.specs, program.outputs
    if len(outputs) == 1:
        return [Lineage(specs[outputs[0]], recipe, 0, depth + 1, nodes, held)]
    origins = [Lineage(specs[output], recipe, at, depth + 1, nodes, held) for at, output in enumerate(outputs)]
    recipe.results = [ref(origin) for origin in origins]
    return origins


#: An origin with what it is made by; `None` where nothing is looked for behind it.
Step = tuple[Lineage, Producer | None]


def recount(origin: Lineage) -> None:
    """Count anew: what several programs use was counted for each of them.

    Copies of arrays that somebody still has are not counted: they would be there anyway.
    """
    if origin.recipe is None:
        return
    order = in_order([origin], lambda _: False)
    recipes = {id(recipe): recipe for _, recipe in order if recipe is not None}
    origin.nodes = sum(len(recipe.program.nodes) for recipe in recipes.values())
    copies = [each.copy for each, _ in order if each.array is None or each.array() is None]
    origin.held = sum(copy.nbytes for copy in copies if copy is not None)


def in_order(wanted: Iterable[Lineage], is_there: Callable[[Lineage], bool]) -> list[Step]:
    """Everything that is needed to have the wanted ones again, inputs before what is made of them.

    Nothing is looked for behind what is there. Iterative, as histories are long.
    """
    order: list[Step] = []
    seen: set[int] = set()
    stack: list[tuple[Lineage, Producer | None, bool]] = [(origin, None, False) for origin in wanted]
    while stack:
        origin, recipe, entered = stack.pop()
        if entered:
            order.append((origin, recipe))
            continue
        if id(origin) in seen:
            continue
        seen.add(id(origin))
        recipe = None if is_there(origin) else origin.recipe
        stack.append((origin, recipe, True))
        if recipe is not None:
            stack.extend((each, None, False) for each in recipe.inputs if id(each) not in seen)
    return order


def has_copy(origin: Lineage) -> bool:
    return origin.copy is not None


def what_is_missing(order: Sequence[Step], is_there: Callable[[Lineage], bool]) -> dict[int, Lineage | None]:
    """For each origin, by its id: the first one behind it that cannot be had again, or none."""
    missing: dict[int, Lineage | None] = {}
    for origin, recipe in order:
        found: Lineage | None = None
        if recipe is not None:
            behind = (missing[id(each)] for each in recipe.inputs)
            found = next((each for each in behind if each is not None), None)
        elif not is_there(origin):
            found = origin
        missing[id(origin)] = found
    return missing


def why_lost(origin: Lineage, missing: Lineage) -> str:
    """A clause: why the array of an origin cannot be had again."""
    why = missing.why or "nothing was kept of it"
    return why if missing is origin else f"it was computed from {missing.describe()}, and of that {why}"


class Lends(Protocol):
    """Where an array is at home."""

    def lend(self, buffer: TrackedBuffer) -> Handle: ...


class TrackedBuffer(msgspec.Struct, eq=False, weakref=True):
    """An array on a device that can be lost: where it is now, and how it can be had again."""

    #: `None` while it is on no device: it was lost with one, or had to make room.
    handle: Handle | None
    origin: Lineage
    place: Lends
    #: Of the worker that it was on last.
    generation: int
    #: Rises with every use of any array.
    used: int

    @property
    def spec(self) -> Spec:
        return self.origin.spec

    def live(self) -> Handle:
        """The array on its device, brought back there if it has to be."""
        return self.place.lend(self)

    def __repr__(self) -> str:
        return f"<{self.handle!r}>" if self.handle is not None else f"<{self.spec}, on no device now>"


# -- what is told about it


class LostArray(NamedTuple):
    """An array that cannot be had again."""

    description: str
    nbytes: int
    reason: str


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has died, and what became of the arrays on it."""

    device: str
    #: Of the worker that died.
    generation: int
    why: str
    #: Arrays that are uploaded again when they are used, and those that are computed again.
    restorable_from_copy: int = 0
    recomputable: int = 0
    lost: tuple[LostArray, ...] = ()

    def __str__(self) -> str:
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
        return f"{self.device}, generation {self.generation} ({self.why or 'nobody knows why'}){on_it}"


class Evicted(msgspec.Struct, frozen=True):
    """What has left a device. It comes back when it is used."""

    arrays: int = 0
    bytes: int = 0
