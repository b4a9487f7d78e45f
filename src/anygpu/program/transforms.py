"""Smaller programs with the same meaning.

Only what is always exact is done: arithmetic is left alone, as even `x + 0` is not `x` when `x` is -0.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anygpu.program.dtypes import ITEMSIZE, KIND, DType, can_cast_safely, is_inexact, is_integer
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import (
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Flip,
    Input,
    Iota,
    Pad,
    Permute,
    Primitive,
    Reshape,
    Select,
    Slice,
    Spec,
    Unary,
    Update,
)

#: Computes one primitive on constants given as spec and bytes; `None` when it cannot, and then the node stays.
Evaluate = Callable[[Primitive, list[tuple[Spec, bytes]]], bytes | None]

#: A result of more bytes than this stays a computation: folding must not make a program big.
FOLDED_BYTES = 256
#: Values on the way to a folded one may be larger, as they are not kept.
INTERMEDIATE_BYTES = 1 << 16


def simplified(program: Program, evaluate: Evaluate | None = None) -> Program:
    """All of these transforms, again and again until nothing changes."""
    while True:
        smaller = without_identities(program)
        if evaluate is not None:
            smaller = with_constants_folded(smaller, evaluate)
        smaller = without_dead_code(smaller)
        if smaller == program:
            return program
        program = smaller


def without_dead_code(program: Program) -> Program:
    """Without the nodes that no output needs. All inputs stay, needed or not, so that callers need not change."""
    alive = [isinstance(node.op, Input) for node in program.nodes]
    for output in program.outputs:
        alive[output] = True
    for position in range(len(program.nodes) - 1, -1, -1):
        if alive[position]:
            for source in program.nodes[position].inputs:
                alive[source] = True
    if all(alive):
        return program
    recorder = Recorder()
    moved: dict[int, int] = {}
    for position in range(len(program.nodes)):
        if alive[position]:
            moved[position] = _copy(
                recorder, program, position, [moved[each] for each in program.nodes[position].inputs]
            )
    return recorder.program([moved[output] for output in program.outputs])


def with_common_subexpressions_merged(program: Program) -> Program:
    """Each computation once; a recorder sees to that."""
    recorder = Recorder()
    moved: list[int] = []
    for position, node in enumerate(program.nodes):
        moved.append(_copy(recorder, program, position, [moved[each] for each in node.inputs]))
    return recorder.program([moved[output] for output in program.outputs])


def with_constants_folded(program: Program, evaluate: Evaluate, *, limit: int = FOLDED_BYTES) -> Program:
    """What depends on constants only is computed now, where the result has no more than `limit` bytes.

    Whoever gives `evaluate` decides how it is rounded: with NumPy's, a folded `sin` is NumPy's on every engine.
    """
    recorder = Recorder()
    moved: list[int] = []
    known: dict[int, bytes] = {}
    for position, (op, inputs) in enumerate(program.nodes):
        spec = program.specs[position]
        if isinstance(op, Constant):
            known[position] = op.data
        elif not isinstance(op, Input) and spec.nbytes <= INTERMEDIATE_BYTES and all(each in known for each in inputs):
            data = evaluate(op, [(program.specs[each], known[each]) for each in inputs])
            if data is not None:
                known[position] = data
        # A count or a repetition is shorter to say than its values are.
        if position in known and spec.nbytes <= limit and not isinstance(op, Constant | Iota | Broadcast):
            constant = Constant(*spec, known[position])
            moved.append(recorder.add(constant, spec=spec, line=program.lines[position]))
        else:
            moved.append(_copy(recorder, program, position, [moved[each] for each in inputs]))
    return without_dead_code(recorder.program([moved[output] for output in program.outputs]))


def without_identities(program: Program) -> Program:
    """Without what has no effect, such as a cast to the same type, and with one movement for two of a kind."""
    recorder = Recorder()
    moved: list[int] = []
    made: Made = {}
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, Input):
            moved.append(recorder.input(program.specs[position]))
            continue
        sources = [moved[each] for each in inputs]
        found = _simpler(op, sources, recorder, made)
        while isinstance(found, tuple):
            op, sources = found
            found = _simpler(op, sources, recorder, made)
        if found is None:
            found = recorder.add(op, *sources, line=program.lines[position])
            made[found] = (op, tuple(sources))
        moved.append(found)
    return recorder.program([moved[output] for output in program.outputs])


def _copy(recorder: Recorder, program: Program, position: int, sources: Sequence[int]) -> int:
    op, spec = program.nodes[position].op, program.specs[position]
    if isinstance(op, Input):
        return recorder.input(spec)
    return recorder.add(op, *sources, spec=spec, line=program.lines[position])


Made = dict[int, tuple[Primitive, tuple[int, ...]]]
#: The position of an equal value, or a simpler primitive on other inputs, or `None`: it is as simple as it gets.
Simpler = int | tuple[Primitive, list[int]] | None


def _simpler(op: Primitive, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    rule = _IDENTITIES.get(type(op))
    return rule(op, sources, recorder, made) if rule is not None else None


def _cast(op: Cast, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    if recorder.spec(x).dtype == op.dtype:
        return x
    before, first = made.get(x, (None, ()))
    if isinstance(before, Cast):
        original = recorder.spec(first[0]).dtype
        if original == op.dtype and holds_every_value(before.dtype, original):
            return first[0]
    return None


def holds_every_value(wide: DType, narrow: DType) -> bool:
    """Whether casting to the wide type and back gives the same values. (NumPy also calls int64 to float64 safe.)"""
    if is_integer(narrow) and is_inexact(wide) and ITEMSIZE[narrow] == 8:
        return False
    return can_cast_safely(narrow, wide)


def _reshape(op: Reshape, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    if recorder.spec(x).shape == op.shape:
        return x
    before, first = made.get(x, (None, ()))
    return (op, list(first)) if isinstance(before, Reshape) else None


def _permute(op: Permute, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    if op.axes == tuple(range(len(op.axes))):
        return x
    before, first = made.get(x, (None, ()))
    if isinstance(before, Permute):
        return Permute(tuple(before.axes[axis] for axis in op.axes)), list(first)
    return None


def _broadcast(op: Broadcast, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    if recorder.spec(x).shape == op.shape:
        return x
    before, first = made.get(x, (None, ()))
    return (op, list(first)) if isinstance(before, Broadcast) else None


def _flip(op: Flip, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    shape = recorder.spec(x).shape
    axes = tuple(sorted(axis for axis in op.axes if shape[axis] > 1))
    if not axes:
        return x
    before, first = made.get(x, (None, ()))
    if isinstance(before, Flip):
        return Flip(tuple(sorted(set(axes) ^ set(before.axes)))), list(first)
    return (Flip(axes), sources) if axes != op.axes else None


def _slice(op: Slice, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    (x,) = sources
    if op.infer(recorder.spec(x)).shape == recorder.spec(x).shape:
        return x
    before, first = made.get(x, (None, ()))
    if not isinstance(before, Slice):
        return None
    starts, stops, steps = [], [], []
    for axis, length in enumerate(op.infer(recorder.spec(x)).shape):
        start = before.starts[axis] + op.starts[axis] * before.steps[axis]
        step = before.steps[axis] * op.steps[axis]
        # The last element that is wanted is inside; an empty stretch may begin at the very end.
        start = min(start, before.stops[axis])
        starts.append(start)
        stops.append(start + (length - 1) * step + 1 if length else start)
        steps.append(step)
    return Slice(tuple(starts), tuple(stops), tuple(steps)), list(first)


def _pad(op: Pad, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    return None if any(op.low) or any(op.high) else sources[0]


def _concatenate(op: Concatenate, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    filled = [each for each in sources if recorder.spec(each).shape[op.axis]]
    if len(filled) <= 1:
        return (filled or sources)[0]
    return (op, filled) if len(filled) < len(sources) else None


def _update(op: Update, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    x, new = (recorder.spec(each) for each in sources)
    if new.size == 0:
        return sources[0]
    return sources[1] if new.shape == x.shape else None


def _select(op: Select, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    return sources[1] if sources[1] == sources[2] else None


def _unary(op: Unary, sources: list[int], recorder: Recorder, made: Made) -> Simpler:
    """Functions that undo themselves; changing the sign twice rounds nothing."""
    before, first = made.get(sources[0], (None, ()))
    if op.fn in ("negative", "invert", "conj") and before == op:
        return first[0]
    if op.fn == "abs" and KIND[recorder.spec(sources[0]).dtype] == "unsigned":
        return sources[0]
    return None


_IDENTITIES: dict[type[Primitive], Callable[[Any, list[int], Recorder, Made], Simpler]] = {
    Cast: _cast,
    Reshape: _reshape,
    Permute: _permute,
    Broadcast: _broadcast,
    Flip: _flip,
    Slice: _slice,
    Pad: _pad,
    Concatenate: _concatenate,
    Update: _update,
    Select: _select,
    Unary: _unary,
}
