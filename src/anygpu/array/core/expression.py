"""Values that are not computed yet: the graph behind arrays, and how it becomes a program.

A `Value` is a node of the graph. `linearise` makes a program of the nodes behind some values, `program_of` finds one
that was made before, and `compute` runs it. The context variable `active_tracer` is set while a function is traced.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any, NoReturn, Protocol
from weakref import ref

import msgspec
import numpy as np

from anygpu.array.core.device import ArrayDevice, Buffer, with_event
from anygpu.base import events
from anygpu.program.graph import Line, Program
from anygpu.program.graph import Recorder as GraphRecorder
from anygpu.program.ops.elementwise import Elementwise
from anygpu.program.ops.movement import Movement
from anygpu.program.primitives import (
    Attend,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Custom,
    Gather,
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
    Update,
    Windows,
)


class Value(msgspec.Struct, eq=False):
    """An immutable value: either a primitive applied to other values, or a buffer that is already on a device.

    Once it has been computed, `op` and `inputs` are dropped, so that the graph behind it is freed. (It is a msgspec
    struct because constructing one is most of the cost of recording an operation, and theirs are made in C.)
    """

    op: Primitive | None
    inputs: tuple[Value, ...]
    spec: Spec
    #: `None` for constants, which every device has.
    device: ArrayDevice | None
    line: Line | None = None
    buffer: Buffer | None = None
    #: The array that shows this value to the user, while there is one.
    holder: ref[Any] | None = None
    #: Whether NumPy's result would surely be in C order. Kept when `op` and `inputs` are dropped.
    ordered: bool = False

    @classmethod
    def on(cls, device: ArrayDevice, buffer: Buffer, spec: Spec, *, ordered: bool = True) -> Value:
        """A value that a device has already."""
        return cls(None, (), spec, device, None, buffer, None, ordered)

    @property
    def computed(self) -> bool:
        """Whether a device has it already."""
        return self.op is None

    def becomes(self, buffer: Buffer, device: ArrayDevice) -> None:
        """Replace the operation by what it computed."""
        self.buffer, self.device = buffer, device
        self.op, self.inputs = None, ()


#: Cheap to recompute, so their results are not kept only because the user still holds the array.
_NOT_WORTH_KEEPING = (Constant, Iota, Broadcast, Reshape, Permute, Slice)

_NOT_THE_USER = ("anygpu.", "numpy.")


class TakesTooLong(BaseException):
    """Tracing exceeded its time limit. Not an `Exception`, so that the traced function does not catch it."""


class Tracer(Protocol):
    """Observes every operation while a function is traced, and can end the trace."""

    def operation(self, line: Line | None) -> None:
        """An operation was recorded on that line of the user's."""

    #: Values of operations that may raise an error, whether they are used or not.
    may_raise: list[Value]

    #: Values of all arrays that were made, whether they are used or not.
    shown: list[Value]

    #: Whether NumPy may warn under any modes of the caller: of empty slices, or under the function's own `np.errstate`.
    warns_anyway: bool

    #: The first error that a function of this package raised in the place of NumPy's.
    raised: Exception | None

    def stop(self, reason: str) -> NoReturn:
        """End the trace: the function does something that cannot be traced."""

    def layout_of(self, position: int) -> Any:
        """An array with the memory layout of that input; the trace depends on the layout from now on."""


def note_error(error: Exception) -> None:
    """Tell the trace, if there is one, of an error that leaves this package: its message is not NumPy's.

    A function that catches it might act on a message that NumPy does not give, so it is not traced.
    """
    tracer = active_tracer.get()
    if tracer is not None and tracer.raised is None:
        tracer.raised = error


_until: ContextVar[float | None] = ContextVar("deadline of the trace", default=None)
#: The trace in this context, if there is one. While it is set, arrays look like NumPy's own.
active_tracer: ContextVar[Tracer | None] = ContextVar("active tracer", default=None)


@contextlib.contextmanager
def limited_to(seconds: float | None) -> Iterator[None]:
    """Raise `TakesTooLong` from the first operation that is recorded after this time."""
    token = _until.set(None if seconds is None else time.perf_counter() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def users_line() -> Line | None:
    """The user's line on which an operation is recorded; it is called for every operation, three frames below the user.

    The tracer hears of the operation here. Raises `TakesTooLong` after the deadline of `limited_to`.
    """
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
    """The file and line of the nearest frame outside of this package and NumPy; `None` if there is none."""
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

    Beside what is wanted, with `keep_held` it returns what the user still holds an array of: so nothing is computed
    twice. `inputs` are the program's first ones, needed or not; the other inputs are the computed values that it starts
    from.
    """
    order = in_order(wanted)
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
    # A value that is wanted twice is returned twice, in the order of `wanted`.
    results = list(kept.values()) if keep_held else list(wanted)
    return graph.program([positions[id(value)] for value in results]), leaves, results


#: Programs that were made of recorded operations, by what they were made of: a loop makes the same one each time.
#: Beside each program, whether NumPy would give its results in C order.
_MADE: dict[tuple[Any, ...], tuple[Program, tuple[bool, ...]]] = {}
_MOST_MADE = 256


#: Programs with more data than that are made anew: to compare the data takes as long, and it would be kept.
_MOST_DATA = 1024
_WITH_MORE = (Constant, Attend, Custom)


def _beyond_equality(op: Primitive) -> tuple[str, ...] | None:
    """The parts of an operation that `==` does not tell apart, such as zeros of both signs; `None` if it has too much
    data.
    """
    if type(op) is Constant:
        return () if len(op.data) <= _MOST_DATA else None
    if type(op) is Attend:
        return (repr(op.scale),)
    return tuple([repr(each.value) for each in op.scalars]) if type(op) is Custom else ()


def program_of(wanted: Sequence[Value]) -> tuple[Program, list[Value], list[Value]]:
    """`linearise` of what is wanted; operations that were recorded before, on the same lines, give the same program
    object.

    Whatever is kept for a program by its identity (its key, a prepared launch) is then found at once. The last
    `_MOST_MADE` programs are kept.
    """
    order = in_order(wanted)
    positions: dict[int, int] = {}
    leaves: list[Value] = []
    results: list[Value] = []
    # Flat, because it is hashed each time. Operations, specs and lines are no integers, so it can be read in one way.
    parts: list[Any] = []
    for value in order:
        if value.op is None:
            positions[id(value)] = len(positions)
            leaves.append(value)
            parts.append(value.spec)
            parts.append(value.ordered)
    for value in order:
        op = value.op
        if op is None:
            continue
        if type(op) in _WITH_MORE:
            more = _beyond_equality(op)
            if more is None:
                return linearise(wanted)
            parts.append(more)
        parts.append(op)
        parts += [positions[id(each)] for each in value.inputs]
        positions[id(value)] = len(positions)
        parts.append(value.line)
        holder = value.holder
        if holder is not None and type(op) not in _NOT_WORTH_KEEPING and holder() is not None:
            results.append(value)
            parts.append(None)
    for value in wanted:
        parts.append(positions[id(value)])
        if not any(value is each for each in results):
            results.append(value)
    key = tuple(parts)
    known = _MADE.get(key)
    if known is None:
        expected = results
        program, leaves, results = linearise(wanted)
        if len(_MADE) >= _MOST_MADE:
            _MADE.clear()
        # Others, if the garbage collector has taken an array meanwhile.
        if list(map(id, results)) == list(map(id, expected)):
            _MADE[key] = program, tuple([value.ordered for value in results])
        return program, leaves, results
    program, ordered = known
    for value, is_ordered_now in zip(results, ordered, strict=True):
        value.ordered = is_ordered_now
    return program, leaves, results


_KEEP_ORDER = (Unary, Binary, Select, Cast, Reduce, Scan, Concatenate, Reshape)


def _is_ordered(value: Value) -> bool:
    """Whether NumPy would give this result in C order, judged from inputs that have been judged before."""
    if len(value.spec.shape) < 2 or isinstance(value.op, Constant | Iota | Contract):
        return True
    if isinstance(value.op, Broadcast):
        return value.inputs[0].spec.size == 1
    return isinstance(value.op, _KEEP_ORDER) and all(each.ordered for each in value.inputs)


def is_ordered(value: Value) -> bool:
    """Whether NumPy would give this value in C order; `False` when that is unknown."""
    for each in in_order([value]):
        if each.op is not None:
            each.ordered = _is_ordered(each)
    return value.ordered


def is_portable(value: Value) -> bool:
    """Whether it is made of constants alone, so that any device can compute it."""
    return all(each.op is not None for each in in_order([value]))


def leaves_of(wanted: Sequence[Value]) -> list[Value]:
    """The computed values that the wanted ones are made of."""
    return [value for value in in_order(wanted) if value.op is None]


def unused(values: Sequence[Value], wanted: Sequence[Value], chosen: Callable[[Value], bool]) -> list[Value]:
    """Return the last `chosen` values, among these and their operands, on which nothing wanted depends."""
    needed = {id(value) for value in in_order(wanted)}
    found: list[Value] = []
    for value in reversed(in_order(values)):
        if id(value) not in needed and chosen(value):
            found.append(value)
            needed |= {id(each) for each in in_order([value])}
    return found


def cut_away(wanted: Sequence[Value], chosen: Callable[[Value], bool]) -> list[Value]:
    """Return the elements of the last `chosen` values that are cut away on the way to what is wanted.

    They are a few parts of each value, which may include used elements; large parts are replaced by the whole value.
    """
    whole = {id(value) for value in wanted}
    used: dict[int, list[Slice]] = {}
    found: list[Value] = []
    for value in reversed(in_order(wanted)):
        op, is_whole = value.op, id(value) in whole
        if op is None or not value.spec.size:
            continue
        if not is_whole:
            rest = _around(used.get(id(value), ()), value.spec)
            is_whole = not rest
            if rest and chosen(value):
                found += _parts_of(value, rest)
                is_whole = True
        for number, each in enumerate(value.inputs):
            if isinstance(op, Slice):
                if is_whole:
                    used.setdefault(id(each), []).append(op)
            elif isinstance(op, Windows) or (isinstance(op, Gather | Update) and number == 0):
                continue
            elif is_whole or not isinstance(op, Elementwise | Movement):
                whole.add(id(each))
    return found


#: A box of elements: for each axis, the start and the stop.
_Box = tuple[tuple[int, int], ...]
#: The most boxes: as many as surround a part in three dimensions.
_MOST_PARTS = 6
#: The share of a value (one in this many elements) that takes longer than another loop.
_LARGE = 64


def _around(parts: Sequence[Slice], spec: Spec) -> list[_Box]:
    """Return a few boxes with all elements that are in none of the parts; they may include others."""
    left: list[_Box] = [tuple((0, length) for length in spec.shape)]
    boxes = [tuple(zip(part.starts, part.stops, strict=True)) for part in parts if set(part.steps) <= {1}]
    for box in sorted(boxes, key=_size, reverse=True):
        rest = [each for one in left for each in _without(one, box)]
        left = rest if len(rest) <= _MOST_PARTS else left
    return _joined(left, spec.size // _LARGE)


def _without(box: _Box, part: _Box) -> list[_Box]:
    """Return the rest of a box without a part, as boxes."""
    inner = tuple((max(a, start), min(b, stop)) for (a, b), (start, stop) in zip(box, part, strict=True))
    if not _size(inner):
        return [box]
    found = []
    for axis, (start, stop) in enumerate(inner):
        begin, end = box[axis]
        sides = [each for each in ((begin, start), (stop, end)) if each[0] < each[1]]
        found += [(*inner[:axis], side, *box[axis + 1 :]) for side in sides]
    return found


def _joined(boxes: Sequence[_Box], most: int) -> list[_Box]:
    """Join boxes if their common box has at most `most` elements: each box takes a loop of its own."""
    found: list[_Box] = []
    for box in boxes:
        for number, other in enumerate(found):
            both = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))
            if _size(both) <= most:
                found[number] = both
                break
        else:
            found.append(box)
    return found


def _size(box: _Box) -> int:
    return math.prod(max(0, stop - start) for start, stop in box)


def _parts_of(value: Value, boxes: Sequence[_Box]) -> list[Value]:
    """Return these parts of a value, or the whole value if they are most of it."""
    if 2 * sum(map(_size, boxes)) > value.spec.size:
        return [value]
    slices = [Slice(tuple(a for a, _ in box), tuple(b for _, b in box), (1,) * len(box)) for box in boxes]
    return [Value(each, (value,), each.infer(value.spec), value.device, value.line) for each in slices]


def are_needed(values: Sequence[Value], wanted: Sequence[Value]) -> bool:
    """Whether all the values are computed on the way to the wanted ones."""
    needed = {id(value) for value in in_order(wanted)} if values else set()
    return all(id(value) in needed for value in values)


def in_order(wanted: Sequence[Value]) -> list[Value]:
    """Return every value that is needed, operands first; without recursion, as a loop may make a very deep graph."""
    order: list[Value] = []
    seen: set[int] = set()
    #: A value in a tuple has been met already, and all that it needs stands before it.
    stack: list[Value | tuple[Value]] = list(reversed(wanted))
    while stack:
        value = stack.pop()
        if type(value) is tuple:
            order.append(value[0])
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        inputs = value.inputs  # type: ignore[union-attr]
        if not inputs:
            order.append(value)  # type: ignore[arg-type]
            continue
        stack.append((value,))  # type: ignore[arg-type]
        stack += [each for each in reversed(inputs) if id(each) not in seen]
    return order


def compute(wanted: Sequence[Value], device: ArrayDevice) -> None:
    """Compute every wanted value on the device, in one program; those that are computed already are left alone.

    Values drop the graph behind them then. Values that the user holds arrays of are computed on the way.
    """
    missing = [value for value in wanted if not value.computed]
    if not missing:
        return
    if device.device == "numpy" and all(type(value.op) is Constant for value in missing):
        _upload_constants(missing, device)
        return
    program, leaves, results = program_of(missing)
    given = [leaf.buffer for leaf in leaves]
    buffers = with_event("run", device, program, given) if events.array_work else device.run(program, given)
    for value, buffer in zip(results, buffers, strict=True):
        value.becomes(buffer, device)


def _upload_constants(values: Sequence[Value], device: ArrayDevice) -> None:
    """Upload constants, which need no program: for the most part numbers that functions have returned."""
    for value in values:
        op = value.op
        if isinstance(op, Constant):  # else it was given twice
            value.ordered = True
            value.becomes(device.upload(np.frombuffer(op.data, op.dtype).reshape(op.shape)), device)
