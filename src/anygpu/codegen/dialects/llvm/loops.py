"""Loops of a nest: round by round, in lanes, and as NumPy adds.

A loop in lanes does `vector * unroll` rounds at once. What is left over at the end is done in one of these ways:

- nothing is left over, as far as bounds are known to be multiples;
- the last vector is moved back so that it ends with the loop, and repeats some rounds: where that changes nothing, for
  the loop reads nothing that it writes. Accumulators take only what is new. The last vector has code of its own where
  that is short, and the others need no mask then;
- narrower vectors where the number of rounds is known, and else one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.dialects.llvm import expressions
from anygpu.codegen.dialects.llvm.index import Counter, Multiple
from anygpu.codegen.dialects.llvm.pairwise import write_pairwise
from anygpu.codegen.dialects.llvm.statements import (
    Body,
    Bound,
    assigned,
    divides,
    is_light,
    read_by,
    weight,
    written_by,
)
from anygpu.codegen.dialects.llvm.values import Value, constants, i64, whole
from anygpu.codegen.kernel_ir import Loop, Name
from anygpu.codegen.target import ComputeType

#: Statements of all rounds of a loop in lanes that is written as its rounds.
_WRITTEN_OUT = 16
#: Numbers of metadata below are the module's own.
_FIRST_NODE = 10


def _as_it_is(body: Body) -> str:
    """Says of a loop that it is not to be unrolled or made of vectors: that is done already."""
    name = f"!{_FIRST_NODE + sum(each.startswith('!') for each in body.w.declared)}"
    body.w.declared[name] = f"{name} = distinct !{{{name}, !2, !3}}"
    return f", !llvm.loop {name}"


def write(body: Body, loop: Loop) -> None:
    """Writes a loop; afterwards the names that it assigns to have their new values."""
    start, stop = body.bound(loop.start), body.bound(loop.stop)
    if start.known is not None and stop.known is not None and start.known >= stop.known:
        return
    if loop.pairwise:
        write_pairwise(body, loop, start, stop)
        return
    lanes = loop.vector * loop.unroll if body.lanes == 1 else 1
    rounds = None
    if start.known is not None and stop.known is not None:
        rounds = -(-(stop.known - start.known) // loop.step)
        lanes = min(lanes, 1 << (rounds.bit_length() - 1))
    if lanes == 1:
        _serial(body, loop, start, stop)
    elif rounds is not None:
        _known(body, loop, start, rounds, lanes)
    else:
        _unknown(body, loop, start, stop, lanes)


def _serial(body: Body, loop: Loop, start: Bound, stop: Bound, hint: str = "") -> None:
    """Round by round, in the lanes of the block around it."""
    names = [name for name in assigned(loop.body) if name in body.names]
    multiple = start.multiple + Multiple(loop.step, 0)

    def round_of(counter: Value, now: Sequence[Value]) -> list[Value]:
        inside = body.inner({loop.variable: Counter(counter, _exactly(counter, multiple))})
        inside.names.update(zip(names, now, strict=True))
        inside.run(loop.body)
        return [inside.names[name] for name in names]

    carried = [body.w.fit(body.names[name], body.lanes) for name in names]
    made = body.w.count_loop(start.value, stop.value, loop.step, carried, round_of, hint)
    body.names.update(zip(names, made, strict=True))


def _exactly(counter: Value, multiple: Multiple) -> Multiple:
    """A counter that is known is a multiple of itself."""
    known = whole(counter)
    return multiple if known is None else Multiple(0, known)


def _may_repeat(loop: Loop) -> bool:
    """Whether rounds may be done twice."""
    return not read_by(loop.body) & written_by(loop.body)


def _known(body: Body, loop: Loop, start: Bound, rounds: int, lanes: int) -> None:
    """Of a known number of rounds, from a known one on."""
    first = start.known or 0
    rest = rounds % lanes
    full, end = first + (rounds - rest) * loop.step, first + rounds * loop.step
    if rest and _may_repeat(loop) and not divides(loop.body, loop.variable):
        last = end - lanes * loop.step
        if not loop.sums or not is_light(loop.body):
            _in_lanes(body, loop, start, i64(end), lanes, latest=i64(last))
            return
        mask = constants([lane >= lanes - rest for lane in range(lanes)], "i1")
        _in_lanes(body, loop, start, i64(full), lanes, after=(i64(last), mask))
        return
    _in_lanes(body, loop, start, i64(full), lanes)
    while rest:
        lanes = 1 << (rest.bit_length() - 1)
        here = Bound(i64(full), Multiple(0, full))
        full += lanes * loop.step
        rest -= lanes
        _in_lanes(body, loop, here, i64(full), lanes)


def _unknown(body: Body, loop: Loop, start: Bound, stop: Bound, lanes: int) -> None:
    """Of a number of rounds that is known when it runs."""
    w, width = body.w, lanes * loop.step
    difference = stop.multiple + start.multiple.times(-1)
    if difference.modulo(width) == 0:
        _in_lanes(body, loop, start, stop.value, lanes)
        return
    whole_range = loop.start == Name("begin", _type(loop.start)) and loop.stop == Name("end", _type(loop.stop))
    many = whole_range and body.unit.fewest >= width
    if many and _may_repeat(loop) and not divides(loop.body, loop.variable):
        _in_lanes(body, loop, start, stop.value, lanes, latest=w.add(stop.value, i64(-width)))
        return
    distance = w.maximum(w.binary("sub", stop.value, start.value), i64(0))
    over = w.binary("urem", distance, i64(width))
    full = w.binary("sub", w.add(start.value, distance), over)
    _in_lanes(body, loop, start, full, lanes)
    _serial(body, loop, Bound(full, start.multiple + Multiple(width, 0)), stop, _as_it_is(body))


def _type(bound: object) -> ComputeType:
    return bound.type if isinstance(bound, Name) else "i32"


def _not_before(body: Body, at: Value, place: Value, step: int, lanes: int) -> Value:
    """The lanes of a vector at `place` that are not before `at`."""
    moved = body.w.convert("trunc", body.w.binary("sub", at, place), "i32")
    return body.w.compare("sge", constants([step * lane for lane in range(lanes)], "i32"), body.w.fit(moved, lanes))


def _in_lanes(
    body: Body,
    loop: Loop,
    start: Bound,
    stop: Value,
    lanes: int,
    *,
    latest: Value | None = None,
    after: tuple[Value, Value] | None = None,
) -> None:
    """Vectors from `start` to `stop`, none of them after `latest`; then one more at `after`, in the lanes of a mask."""
    w, width = body.w, lanes * loop.step
    compiler = body.unit.compiler
    types = assigned(loop.body)
    sums = [(name, fn, types[name]) for name, fn in loop.sums]
    carried = [expressions.spread(compiler, fn, body.names[name], lanes) for name, fn, _ in sums]
    multiple = Multiple() if latest is not None else start.multiple + Multiple(width, 0)

    def taken(new: Sequence[Value], old: Sequence[Value], mask: Value) -> list[Value]:
        """Accumulators with the lanes of a mask. What a minimum or its like takes twice is taken once."""
        both = zip(sums, new, old, strict=True)
        return [w.select(mask, one, other) if fn in expressions.NEUTRAL else one for (_, fn, _), one, other in both]

    def vector_at(at: Value, multiple: Multiple, now: Sequence[Value]) -> list[Value]:
        place = at if latest is None else w.minimum(at, latest)
        counter = Counter(place, _exactly(place, multiple), loop.step if lanes > 1 else 0)
        inside = body.inner({loop.variable: counter}, lanes)
        inside.names.update((name, value) for (name, _, _), value in zip(sums, now, strict=True))
        inside.run(loop.body)
        made = [inside.names[name] for name, _, _ in sums]
        return taken(made, now, _not_before(body, at, place, loop.step, lanes)) if latest is not None and sums else made

    made = w.count_loop(
        start.value,
        stop,
        width,
        carried,
        lambda counter, now: vector_at(counter, multiple, now),
        _as_it_is(body),
        most=max(1, _WRITTEN_OUT // weight(loop.body)),
    )
    if after is not None:
        place, mask = after
        made = taken(vector_at(place, Multiple(), made), made, mask)
    for (name, fn, type), value in zip(sums, made, strict=True):
        body.names[name] = expressions.folded(compiler, fn, value, type)
