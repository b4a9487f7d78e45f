"""Reductions of many rows: each part of a nest has its own totals, and a nest after it combines them in order."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen import reductions
from anygpu.codegen.index import Index, unflat
from anygpu.codegen.index import Variable as Counter
from anygpu.codegen.kernel_ir import Expr, Load, Name, Store
from anygpu.codegen.lower import Value
from anygpu.codegen.nests.lowering import NestLowering
from anygpu.codegen.nests.roots import Root
from anygpu.codegen.nests.steps import Nest, Scratch
from anygpu.codegen.nests.storage import Storage
from anygpu.codegen.target import ComputeType
from anygpu.codegen.types import STORED, components, compute_type
from anygpu.program.dtypes import DType


def total_dtype(type: ComputeType) -> DType:
    """The type in which a total waits to be combined: as wide as it is computed."""
    return "bool" if type == "bool" else STORED[type]


class Total:
    """The results of a reduction over the rows of a nest, while they grow: variables, or an array of columns."""

    def __init__(self, storage: Storage, root: Root, parts: int, *, in_array: bool, copies: int = 1) -> None:
        """`copies` are the rows that lanes see at once: each has its own totals, which are combined in the end."""
        self.storage = storage
        self.root = root
        self.parts = parts
        self.dtype: DType = storage.program.specs[root.source].dtype
        self.type = compute_type(self.dtype)
        self.count = components(self.dtype)
        self.size = storage.program.specs[root.node].size
        self.scratch = f"total_{root.node}" if in_array else ""
        self.copies = copies
        self.states: list[tuple[Name, ...]] = []
        if parts > 1:
            self.buffer = f"parts_{root.node}"
            storage.new_buffer(self.buffer, total_dtype(self.type), parts * self.size * self.count)

    @property
    def arrays(self) -> list[Scratch]:
        size = self.size * self.count * self.copies
        return [Scratch(self.scratch, total_dtype(self.type), size)] if self.scratch else []

    @property
    def sums(self) -> tuple[tuple[str, str], ...]:
        """Accumulators, as loops with lanes know them."""
        fn = reductions.FUNCTIONS[self.root.fn]
        return tuple((name.name, fn) for state in self.states for name in state)

    @property
    def _identity(self) -> tuple[Expr, ...]:
        return reductions.identity(self.root.fn, self.dtype) or ()

    def begin(self, lowering: NestLowering, vector: int) -> None:
        """Nothing yet."""
        if not self.scratch:
            self.states = [
                lowering.begin(self.root.node, self.root.fn, self.dtype, lambda index: ()) for _ in range(self.size)
            ]
            return

        def clear(index: Index) -> None:
            for number, value in enumerate(self._identity):
                lowering.add(Store(self.scratch, index * self.count + number, value))

        size = self.size * self.copies
        lowering.loop("column", 0, size, clear, vector=vector if size >= vector else 1)

    def take(self, lowering: NestLowering, number: int, value: Value) -> None:
        """One more value of one result, which is a variable."""
        state = self.states[number]
        lowering.take(self.root.node, self.root.fn, self.dtype, state, value, state[0])

    def take_column(self, lowering: NestLowering, column: Index, values: Sequence[Value]) -> None:
        """One more value of each of some rows, in order, for a column."""
        state: Value = self.loaded(lowering, self.scratch, column)
        for value in values:
            state = self.both(lowering, state, value)
        for number, part in enumerate(state):
            lowering.add(Store(self.scratch, column * self.count + number, part))

    def both(self, lowering: NestLowering, one: Value, other: Value) -> Value:
        node = self.root.node
        combined = reductions.combined(self.root.fn, self.dtype, one, other, lowering.namer(node))
        return tuple(lowering.named(f"{self.root.fn}_{node}", each) for each in combined)

    def loaded(self, lowering: NestLowering, buffer: str, place: Index) -> Value:
        return tuple(
            lowering.named(f"{buffer}_value", Load(buffer, place * self.count + number, self.type))
            for number in range(self.count)
        )

    def end(self, lowering: NestLowering, vector: int) -> None:
        """The results; or what a part has of them, for the nest that combines the parts."""

        def stored(index: Index, state: Value) -> None:
            if self.parts == 1:
                self.finish(lowering, index, state)
                return
            part = Index(0, [(Counter("part", 0, self.parts - 1), 1)])
            for number, value in enumerate(state):
                lowering.add(Store(self.buffer, (part * self.size + index) * self.count + number, value))

        for number, state in enumerate(self.states):
            stored(Index(number), state)
        if self.scratch:
            lowering.loop(
                "column",
                0,
                self.size,
                lambda index: stored(index, self._all_copies(lowering, index)),
                vector=vector if self.size >= vector else 1,
            )

    def _all_copies(self, lowering: NestLowering, column: Index) -> Value:
        state = self.loaded(lowering, self.scratch, column)
        for copy in range(1, self.copies):
            state = self.both(lowering, state, self.loaded(lowering, self.scratch, column + copy * self.size))
        return state

    def finish(self, lowering: NestLowering, index: Index, state: Value) -> None:
        node = self.root.node
        shape = self.storage.program.specs[node].shape
        lowering.store(node, unflat(index, shape), lowering.end(node, self.root.fn, self.dtype, state))

    def combine(self, lowering: NestLowering, vector: int) -> None:
        """All parts, one after the other."""

        def column(index: Index) -> None:
            state = lowering.begin(self.root.node, self.root.fn, self.dtype, lambda first: ())

            def part(number: Index) -> None:
                value = self.loaded(lowering, self.buffer, number * self.size + index)
                lowering.take(self.root.node, self.root.fn, self.dtype, state, value, state[0])

            lowering.loop(lowering.unique("number"), 0, self.parts, part)
            self.finish(lowering, index, state)

        lowering.loop("column", 0, self.size, column, vector=vector if self.size >= vector else 1)


def combining_nest(storage: Storage, totals: Sequence[Total], name: str, vector: int) -> Nest | None:
    """What the parts of a nest have found, combined; `None` when there was but one."""
    waiting = [total for total in totals if total.parts > 1]
    if not waiting:
        return None
    lowering = storage.lowering([total.root.node for total in waiting])
    for total in waiting:
        total.combine(lowering, vector)
    return storage.nest(f"{name}_combined", lowering.statements)
