"""Values that are not computed yet: the graph behind arrays, and how it becomes a program."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn, Protocol
from weakref import ref

import msgspec

from anygpu.array.core.device import ArrayDevice, Buffer
from anygpu.program.graph import Line, Program
from anygpu.program.graph import Recorder as GraphRecorder
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Iota,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Select,
    Slice,
    Spec,
    Unary,
)


class Value(msgspec.Struct, eq=False):
    """An immutable value: either a primitive applied to other values, or a buffer that is already on a device.

    Once it has been computed it forgets how, so that the graph behind it can go. (A msgspec struct because making one
    is most of what recording an operation costs, and theirs are made in C.)
    """

    op: Primitive | None
    inputs: tuple[Value, ...]
    spec: Spec
    #: `None` for constants, which are at home everywhere.
    place: ArrayDevice | None
    line: Line | None = None
    buffer: Buffer | None = None
    #: The array that shows this value to the user, while there is one.
    holder: ref[Any] | None = None
    #: Whether NumPy would surely have it in C order; kept when the way it was made is forgotten.
    ordered: bool = False

    @classmethod
    def on(cls, place: ArrayDevice, buffer: Buffer, spec: Spec, *, ordered: bool = True) -> Value:
        return cls(None, (), spec, place, None, buffer, None, ordered)

    @property
    def computed(self) -> bool:
        return self.op is None

    def becomes(self, buffer: Buffer, place: ArrayDevice) -> None:
        self.buffer, self.place = buffer, place
        self.op, self.inputs = None, ()


#: Cheap to do again, so their results are not kept just because the user still has a name for them.
_NOT_WORTH_KEEPING = (Constant, Iota, Broadcast, Reshape, Permute, Slice)

_NOT_THE_USER = ("anygpu.", "numpy.")


class TakesTooLong(BaseException):
    """Recording takes longer than it may. No `Exception`, so that no function that is recorded catches it."""


class Tracer(Protocol):
    """Who is told of every operation while a function is recorded."""

    def operation(self, line: Line | None) -> None:
        """An operation was recorded on that line of the user's."""

    #: Values of operations that may raise an error, whether they are used or not.
    may_raise: list[Value]

    def stop(self, reason: str) -> NoReturn:
        """The function does something that cannot be traced."""

    def layout_of(self, position: int) -> Any:
        """An array that lies in memory as that one does: the function depends on it now."""


_until: ContextVar[float | None] = ContextVar("when recording must be over", default=None)
#: Whoever records a function in this context. Set while the function runs: then its arrays look like NumPy's own.
active_tracer: ContextVar[Tracer | None] = ContextVar("who records a function", default=None)


@contextlib.contextmanager
def limited_to(seconds: float | None) -> Iterator[None]:
    """Raises `TakesTooLong` from the first operation that is recorded after so many seconds."""
    token = _until.set(None if seconds is None else time.perf_counter() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def users_line() -> Line | None:
    """The user's line on which an operation is recorded. Every operation asks."""
    until = _until.get()
    if until is not None and time.perf_counter() > until:
        raise TakesTooLong
    # The first three are this function, the recording one and the array's own method.
    line = nearest_line(sys._getframe(3))
    listening = active_tracer.get()
    if listening is not None:
        listening.operation(line)
    return line


def nearest_line(frame: FrameType | None) -> Line | None:
    """The nearest line outside of this package and of NumPy's dispatching."""
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if not name.startswith(_NOT_THE_USER):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def linearise(
    wanted: Sequence[Value], *, inputs: Sequence[Value] = (), keep_held: bool = True
) -> tuple[Program, list[Value], list[Value]]:
    """The program that computes the wanted values, its inputs, and the values that its results belong to.

    Beside what is wanted, it returns what the user holds an array of anyway: so nothing is computed twice.
    `inputs` are the program's first ones, needed or not.
    """
    order = _in_order(wanted)
    graph = GraphRecorder()
    positions: dict[int, int] = {}
    given = {id(value) for value in inputs}
    leaves = [*inputs, *(value for value in order if value.op is None and id(value) not in given)]
    for leaf in leaves:
        positions[id(leaf)] = graph.input(leaf.spec)
    kept: dict[int, Value] = {}
    for value in order:
        if value.op is None:
            continue
        value.ordered = _is_ordered(value)
        sources = [positions[id(each)] for each in value.inputs]
        position = graph.add(value.op, *sources, spec=value.spec, line=value.line)
        positions[id(value)] = position
        if (
            keep_held
            and value.holder is not None
            and not isinstance(value.op, _NOT_WORTH_KEEPING)
            and value.holder() is not None
        ):
            kept[id(value)] = value
    for value in wanted:
        kept.setdefault(id(value), value)
    # What is asked for twice is returned twice, in the order in which it was asked for.
    results = list(kept.values()) if keep_held else list(wanted)
    return graph.program([positions[id(value)] for value in results]), leaves, results


_KEEP_ORDER = (Unary, Binary, Select, Cast, Reduce, Scan, Concatenate, Reshape)


def _is_ordered(value: Value) -> bool:
    """Whether NumPy would give this result in C order, judged from inputs that have been judged before."""
    if len(value.spec.shape) < 2 or isinstance(value.op, Constant | Iota | Contract):
        return True
    if isinstance(value.op, Broadcast):
        return value.inputs[0].spec.size == 1
    return isinstance(value.op, _KEEP_ORDER) and all(each.ordered for each in value.inputs)


def is_ordered(value: Value) -> bool:
    """As NumPy would have it; `False` when that cannot be told."""
    for each in _in_order([value]):
        if each.op is not None:
            each.ordered = _is_ordered(each)
    return value.ordered


def is_portable(value: Value) -> bool:
    """Whether it is made of constants alone, so that any device can compute it."""
    return all(each.op is not None for each in _in_order([value]))


def leaves_of(wanted: Sequence[Value]) -> list[Value]:
    """What the wanted values are made of in the end: those that are there already."""
    return [value for value in _in_order(wanted) if value.op is None]


def are_needed(values: Sequence[Value], wanted: Sequence[Value]) -> bool:
    """Whether all the values are computed on the way to the wanted ones."""
    needed = {id(value) for value in _in_order(wanted)} if values else set()
    return all(id(value) in needed for value in values)


def _in_order(wanted: Sequence[Value]) -> list[Value]:
    """Every value that is needed, inputs before what uses them. Iterative: a loop may have made a very deep graph."""
    order: list[Value] = []
    seen: set[int] = set()
    stack: list[tuple[Value, bool]] = [(value, False) for value in reversed(wanted)]
    while stack:
        value, entered = stack.pop()
        if entered:
            order.append(value)
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        stack.append((value, True))
        stack.extend((each, False) for each in reversed(value.inputs) if id(each) not in seen)
    return order


def compute(wanted: Sequence[Value], place: ArrayDevice) -> None:
    """Give every wanted value its buffer on the place."""
    missing = [value for value in wanted if not value.computed]
    if not missing:
        return
    program, leaves, results = linearise(missing)
    buffers = place.run(program, [leaf.buffer for leaf in leaves])
    for value, buffer in zip(results, buffers, strict=True):
        value.becomes(buffer, place)
