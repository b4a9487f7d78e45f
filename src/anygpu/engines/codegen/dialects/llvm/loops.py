"""Loops of a nest: round by round, in lanes, and as NumPy adds.

`write` chooses the form of a loop: round by round, in vectors of lanes with a rest, or, for sums of floats along
memory, the eight running totals of NumPy's pairwise sum, so that results have the same bits. `module_text` puts the
functions of all nests together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from anygpu.engines.codegen.dialects.llvm import statements
from anygpu.engines.codegen.dialects.llvm.functions import Compiler, attributes_of
from anygpu.engines.codegen.dialects.llvm.memory import Counter, LaneMemory, Multiple, Region, stored_type
from anygpu.engines.codegen.dialects.llvm.statements import (
    LoopBound,
    NestBody,
    NestUnit,
    assigned,
    divides,
    is_light,
    read_by,
    weight,
    written_by,
)
from anygpu.engines.codegen.dialects.llvm.values import (
    I64,
    NativeTarget,
    Type,
    Value,
    Writer,
    constant,
    constants,
    i64,
    whole,
)
from anygpu.engines.codegen.kernel_ir import (
    Loop,
    Name,
)
from anygpu.engines.codegen.nests.steps import MOST_LINES, Nest, NestProgram, NestTooLarge
from anygpu.engines.codegen.target import ComputeType
from anygpu.program.dtypes import is_floating

# -- NumPy's sum along a contiguous axis, bit for bit
#
# Up to 128 numbers are added into eight partial sums, which are added in pairs, and what is left over one by one; of
# more numbers each half is added for itself, and the first half has a multiple of eight. The halves of halves wait on
# a stack.
#
# Where the block is in one lane, the eight partial sums are lanes; where it is in lanes, they are values of their
# own.


_SUMS = 8
_BLOCK = 128
#: Blocks that are added at once, where their number is known and their values are near.
_TOGETHER = 8
#: Halves that can wait: no axis is longer than 2^62.
_DEPTH = 64

#: The sums of the accumulators of a loop.
Sums = list[Value]


def write_pairwise(body: NestBody, loop: Loop, start: LoopBound, stop: LoopBound) -> None:
    """Adds to each of the loop's accumulators what the loop adds to it."""
    totals = _Pairwise(body, loop, start).sums(start, stop)
    for (name, _), total in zip(loop.sums, totals, strict=True):
        body.names[name] = body.w.binary("fadd", *body.w.fitted([body.names[name], total]))


def _halved(length: int) -> tuple[int, int]:
    half = length // 2 // _SUMS * _SUMS
    return half, length - half


def _blocks(length: int) -> list[int]:
    """The lengths of the blocks that so many numbers are cut into."""
    return [length] if length <= _BLOCK else [block for half in _halved(length) for block in _blocks(half)]


class _Pairwise:
    """Writes a loop whose sums are added pairwise, in NumPy's order."""

    def __init__(self, body: NestBody, loop: Loop, start: LoopBound) -> None:
        """Sums of a loop in eight running totals, as NumPy adds; `width` elements are taken in a round."""
        self.body = body
        self.loop = loop
        self.w = body.w
        self.names = [name for name, _ in loop.sums]
        self.elems = [body.names[name].type.elem for name in self.names]
        #: Every block begins at a multiple of eight after the start.
        self.multiple = start.multiple + Multiple(_SUMS, 0)
        #: Rounds whose values are computed together.
        self.width = max(_SUMS, loop.vector * loop.unroll // _SUMS * _SUMS) if body.lanes == 1 else _SUMS

    def sums(self, start: LoopBound, stop: LoopBound) -> Sums:
        """Writes the sums from start to stop: one block, a few together, or halves on a stack."""
        length = self.w.add(stop.value, self.w.times(start.value, -1))
        known = whole(length)
        if known is not None and known <= _BLOCK:
            return self._block(start.value, length)
        if known is not None and known <= _TOGETHER * _BLOCK and self.body.lanes == 1 and is_light(self.loop.body):
            return self._together(start.value, known)
        if known is not None:
            return self._halves(start.value, length, rest=known % _SUMS != 0)
        few = self.w.compare("slt", length, i64(_SUMS))
        none = self._neutral(self.body.lanes)
        made = self.w.when(few, lambda: self._one_by_one(start.value, stop.value, none), none)
        many = self.w.compare("sge", length, i64(_SUMS))
        return self.w.when(many, lambda: self._halves(start.value, length, rest=True), made)

    def _neutral(self, lanes: int) -> Sums:
        return [constant(-0.0, Type(elem, lanes)) for elem in self.elems]

    # -- rounds

    def _added(self, at: Value, now: Sequence[Value], lanes: int, multiple: Multiple) -> Sums:
        """The accumulators after the rounds of some lanes, from a place on."""
        step = 1 if lanes > self.body.lanes else 0
        inside = self.body.inner({self.loop.variable: Counter(at, multiple, step)}, lanes)
        inside.names.update(zip(self.names, now, strict=True))
        inside.run(self.loop.body)
        return [inside.names[name] for name in self.names]

    def _one_by_one(self, start: Value, stop: Value, now: Sequence[Value]) -> Sums:
        """Add the elements from `start` to `stop` one after the other, which are too few for a round."""
        lanes = self.body.lanes

        def round_of(at: Value, carried: Sequence[Value]) -> Sums:
            return self._added(at, carried, lanes, Multiple())

        return self.w.count_loop(start, stop, 1, now, round_of)

    def _eight(self, at: Value, now: Sequence[Value]) -> Sums:
        """The partial sums, those of the first accumulator first, after eight rounds more."""
        if self.body.lanes == 1:
            return self._added(at, now, _SUMS, self.multiple)
        result = list(now)
        for number in range(_SUMS):
            multiple = self.multiple + Multiple(0, number)
            result[number::_SUMS] = self._added(
                self.w.add(at, i64(number)), result[number::_SUMS], self.body.lanes, multiple
            )
        return result

    def _several_eights(self, at: Value, now: Sequence[Value]) -> Sums:
        """The same after as many rounds as are computed together."""
        values = self._added(at, self._neutral(self.width), self.width, self.multiple)
        result = list(now)
        for first in range(0, self.width, _SUMS):
            parts = [self.w.shuffle(value, range(first, first + _SUMS)) for value in values]
            result = [self.w.binary("fadd", old, part) for old, part in zip(result, parts, strict=True)]
        return result

    def _in_pairs(self, partial: Sequence[Value]) -> Sums:
        """The total of each accumulator's eight partial sums."""
        add = self.w.binary
        if self.body.lanes > 1:
            parts = list(partial)
            while len(parts) > len(self.names):
                parts = [add("fadd", one, other) for one, other in zip(parts[::2], parts[1::2], strict=True)]
            return parts
        totals = []
        for value in partial:
            while value.type.lanes > 1:
                even, odd = (self.w.shuffle(value, range(first, value.type.lanes, 2)) for first in (0, 1))
                value = add("fadd", even, odd)
            totals.append(value)
        return totals

    # -- blocks

    def _block(self, start: Value, length: Value, rest: bool = True) -> Sums:
        """The sum of at most 128; `rest` says whether something may be left over by eight."""
        known = whole(length)
        stop = self.w.add(start, length)
        if known is not None and known < _SUMS:
            return self._one_by_one(start, stop, self._neutral(self.body.lanes))
        if known is not None:
            full, rest = self.w.add(start, i64(known // _SUMS * _SUMS)), known % _SUMS != 0
        else:
            full = self.w.add(start, self.w.binary("and", length, i64(-_SUMS))) if rest else stop
        apart = self.body.lanes > 1
        partial = self._neutral(self.body.lanes if apart else _SUMS)
        if apart:
            partial = [each for each in partial for _ in range(_SUMS)]
        at = start
        if self.width > _SUMS:
            wide = self.w.add(full, i64(1 - self.width))
            at, *partial = self._rounds(at, wide, self.width, partial, self._several_eights)
        _, *partial = self._rounds(at, full, _SUMS, partial, self._eight)
        totals = self._in_pairs(partial)
        return self._one_by_one(full, stop, totals) if rest else totals

    def _rounds(
        self,
        start: Value,
        stop: Value,
        step: int,
        now: Sequence[Value],
        write: Callable[[Value, Sequence[Value]], Sums],
    ) -> list[Value]:
        """The place that was not reached, and the partial sums."""

        def round_of(at: Value, carried: Sequence[Value]) -> list[Value]:
            made = write(at, carried[1:])
            return [self.w.add(at, i64(step)), *made]

        first, last = whole(start), whole(stop)
        if first is not None and last is not None and last - first <= step:
            return round_of(start, [start, *now]) if last > first else [start, *now]
        return self.w.count_loop(start, stop, step, [start, *now], round_of)

    def _together(self, start: Value, length: int) -> Sums:
        """The sum of a few blocks: all of them are added at once, for one addition would wait for the one before."""
        lengths = _blocks(length)
        firsts = [sum(lengths[:number]) for number in range(len(lengths))]
        least = min(lengths) // _SUMS * _SUMS
        width = len(self.names)

        def next_of(number: int, at: Value, now: Sequence[Value]) -> Sums:
            return self._eight(self.w.add(at, i64(firsts[number])), now[number * width : (number + 1) * width])

        def all_blocks(at: Value, now: Sequence[Value]) -> Sums:
            return [value for number in range(len(lengths)) for value in next_of(number, at, now)]

        stop = self.w.add(start, i64(least))
        _, *partial = self._rounds(start, stop, _SUMS, self._neutral(_SUMS) * len(lengths), all_blocks)
        totals: list[Sums] = []
        for number, each in enumerate(lengths):
            full = each // _SUMS * _SUMS
            for at in range(least, full, _SUMS):
                place = self.w.add(start, i64(at))
                partial[number * width : (number + 1) * width] = next_of(number, place, partial)
            sums = self._in_pairs(partial[number * width : (number + 1) * width])
            first, last = (self.w.add(start, i64(firsts[number] + place)) for place in (full, each))
            totals.append(self._one_by_one(first, last, sums))
        return self._added_up(length, totals)

    def _added_up(self, length: int, totals: list[Sums]) -> Sums:
        """The sums of blocks as halves of halves; they are taken from the front of the list."""
        if length <= _BLOCK:
            return totals.pop(0)
        one, other = (self._added_up(each, totals) for each in _halved(length))
        return [self.w.binary("fadd", a, b) for a, b in zip(one, other, strict=True)]

    def _halves(self, start: Value, length: Value, rest: bool) -> Sums:
        """The sum of any number from eight on."""
        w, pointer = self.w, Type("ptr")
        rights = w.fresh("rights")
        w.first.append(f"  {rights} = alloca [{_DEPTH} x i64], align 8")
        types = [Type(elem, self.body.lanes) for elem in self.elems]
        lefts = [w.fresh("lefts") for _ in types]
        w.first += [f"  {name} = alloca [{_DEPTH} x {type}]" for name, type in zip(lefts, types, strict=True)]

        def place(array: str, type: Type, depth: Value) -> str:
            return w.op(f"getelementptr {type}, ptr {array}, {depth}", pointer).text

        # Below all that waits there is something that is never taken.
        w.add_line(f"store i64 1, ptr {rights}, align 8")

        def descend(now: Sequence[Value]) -> tuple[Sequence[Value], Value]:
            left, depth = now
            half = w.binary("and", w.binary("lshr", left, i64(1)), i64(-_SUMS))
            deeper = w.add(depth, i64(1))
            w.add_line(f"store {w.binary('sub', left, half)}, ptr {place(rights, I64, deeper)}, align 8")
            return [half, deeper], w.compare("sgt", half, i64(_BLOCK))

        def ascend(now: Sequence[Value]) -> tuple[Sequence[Value], Value]:
            depth, *sums = now
            waiting = [
                w.new(f"load {type}, ptr {place(name, type, depth)}", type)
                for name, type in zip(lefts, types, strict=True)
            ]
            sums = [w.binary("fadd", one, other) for one, other in zip(waiting, sums, strict=True)]
            above = w.add(depth, i64(-1))
            right = w.new(f"load i64, ptr {place(rights, I64, above)}, align 8", I64)
            return [above, *sums], w.compare("eq", right, i64(0))

        def round_of(now: Sequence[Value]) -> tuple[Sequence[Value], Value]:
            at, left, depth, *_ = now
            left, depth = w.while_loop([left, depth], descend, w.compare("sgt", left, i64(_BLOCK)))
            sums = self._block(at, left, rest)
            right = w.new(f"load i64, ptr {place(rights, I64, depth)}, align 8", I64)
            depth, *sums = w.while_loop([depth, *sums], ascend, w.compare("eq", right, i64(0)))
            right = w.new(f"load i64, ptr {place(rights, I64, depth)}, align 8", I64)
            w.add_line(f"store i64 0, ptr {place(rights, I64, depth)}, align 8")
            for name, type, value in zip(lefts, types, sums, strict=True):
                w.add_line(f"store {value}, ptr {place(name, type, depth)}")
            return [w.add(at, left), right, depth, *sums], w.compare("ne", depth, i64(0))

        none = self._neutral(self.body.lanes)
        return w.while_loop([start, length, i64(0), *none], round_of)[3:]


# -- loops of a nest: round by round, in lanes, and as NumPy adds
#
# A loop in lanes does `vector * unroll` rounds at once. What is left over at the end is done in one of these ways:
#
# - nothing is left over, as far as bounds are known to be multiples; - the last vector is moved back so that it ends
# with the loop, and repeats some rounds: where that changes nothing, for the loop reads nothing that it writes.
# Accumulators take only what is new. The last vector has code of its own where that is short, and the others need no
# mask then; - narrower vectors where the number of rounds is known, and else one by one.


#: Statements of all rounds of a loop in lanes that is written as its rounds.
_WRITTEN_OUT = 16
#: Numbers of metadata below are the module's own.
_FIRST_NODE = 10


def _as_it_is(body: NestBody) -> str:
    """Says of a loop that it is not to be unrolled or made of vectors: that is done already."""
    name = f"!{_FIRST_NODE + sum(each.startswith('!') for each in body.w.declared)}"
    body.w.declared[name] = f"{name} = distinct !{{{name}, !2, !3}}"
    return f", !llvm.loop {name}"


def write(body: NestBody, loop: Loop) -> None:
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


def _serial(body: NestBody, loop: Loop, start: LoopBound, stop: LoopBound, hint: str = "") -> None:
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


def _known(body: NestBody, loop: Loop, start: LoopBound, rounds: int, lanes: int) -> None:
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
        here = LoopBound(i64(full), Multiple(0, full))
        full += lanes * loop.step
        rest -= lanes
        _in_lanes(body, loop, here, i64(full), lanes)


def _unknown(body: NestBody, loop: Loop, start: LoopBound, stop: LoopBound, lanes: int) -> None:
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
    _serial(body, loop, LoopBound(full, start.multiple + Multiple(width, 0)), stop, _as_it_is(body))


def _type(bound: object) -> ComputeType:
    return bound.type if isinstance(bound, Name) else "i32"


def _not_before(body: NestBody, at: Value, place: Value, step: int, lanes: int) -> Value:
    """The lanes of a vector at `place` that are not before `at`."""
    moved = body.w.convert("trunc", body.w.binary("sub", at, place), "i32")
    return body.w.compare("sge", constants([step * lane for lane in range(lanes)], "i32"), body.w.fit(moved, lanes))


def _in_lanes(
    body: NestBody,
    loop: Loop,
    start: LoopBound,
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
    carried = [statements.spread(compiler, fn, body.names[name], lanes) for name, fn, _ in sums]
    multiple = Multiple() if latest is not None else start.multiple + Multiple(width, 0)

    def taken(new: Sequence[Value], old: Sequence[Value], mask: Value) -> list[Value]:
        """Accumulators with the lanes of a mask. What a minimum or its like takes twice is taken once."""
        both = zip(sums, new, old, strict=True)
        return [w.select(mask, one, other) if fn in statements.NEUTRAL else one for (_, fn, _), one, other in both]

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
        body.names[name] = statements.folded(compiler, fn, value, type)


_NODES = """
!0 = !{}
!1 = !{!"branch_weights", i32 1, i32 2000}
!2 = !{!"llvm.loop.unroll.disable"}
!3 = !{!"llvm.loop.vectorize.enable", i1 false}
"""


def module_text(nests: NestProgram, target: NativeTarget, *, noted: int | None = None) -> str:
    """Return the text of a module with a function `void <name>(ptr buffers, i64 begin, i64 end, i64 part)` for each
    nest.

    `buffers` is the table of the slots' addresses. `begin` is a multiple of the nest's grain, and `end` is one as well
    or the nest's count. What a nest notes (`RESULT` and others) becomes bits of entry `noted` of the table, if that is
    given. Raises `NestTooLarge` where that is more than LLVM should be given.
    """
    declared: dict[str, str] = {}
    defined: list[str] = []
    lines = 0
    for step in nests.steps:
        if isinstance(step, Nest):
            defined.append(_nest(step, nests, target, declared, noted))
            lines += defined[-1].count("\n")
            if lines > MOST_LINES:
                raise NestTooLarge(f"its loops have more than {MOST_LINES:,} instructions")
    head = f'target triple = "{target.triple}"\ntarget datalayout = "{target.data_layout}"\n'
    return "\n\n".join([head, *declared.values(), *defined, _NODES])


def _nest(nest: Nest, nests: NestProgram, target: NativeTarget, declared: dict[str, str], noted: int | None) -> str:
    """The function of one nest as LLVM IR: its arguments, the range of its rows, and its body."""
    w = Writer(declared)
    compiler = Compiler(w, target)
    written = written_by(nest.body)
    slots = {each.slot for each in nest.buffers if each.name in written}
    written |= {each.name for each in nest.buffers if each.slot in slots}
    regions: dict[str, Region] = {}
    for buffer in nest.buffers:
        pointer = _table_entry(w, buffer.name, buffer.slot)
        watched = noted is not None and is_floating(buffer.dtype) and nests.slots[buffer.slot].role == "output"
        is_written = buffer.name in written
        regions[buffer.name] = Region(pointer, buffer.dtype, buffer.size, not is_written, watched)
    for scratch in nest.scratch:
        elem = stored_type(scratch.dtype, target.halves)
        pointer = f"%{scratch.name}.data"
        w.first.append(f"  {pointer} = alloca [{scratch.size} x {elem}], align 64")
        regions[scratch.name] = Region(pointer, scratch.dtype, scratch.size, constant=False)
    if "status" not in regions and nests.status is not None:
        regions["status"] = Region(_table_entry(w, "status", nests.status), "uint32", len(nests.checks), constant=False)
    fewest = nest.count - (nest.parts - 1) * nest.grain
    unit = NestUnit(w, compiler, LaneMemory(w, compiler, regions, notes=noted is not None), fewest, write)
    grain, common = nest.grain, gcd(nest.grain, nest.count)
    counters = {
        "begin": Counter(Value("%begin", I64), Multiple(grain, 0)),
        "end": Counter(Value("%end", I64), Multiple(common, 0)),
        "part": Counter(Value("%part", I64)),
    }
    NestBody(unit, counters, {}).run(nest.body)
    if noted is not None and (found := unit.memory.noted()) is not None:
        w.add_line(f"br {w.compare('ne', found, constant(0, I64))}, label %noted, label %done")
        w.lines.append("noted:")
        w.add_line(f"%noted.at = getelementptr ptr, ptr %buffers, i64 {noted}")
        w.add_line(f"%noted.before = atomicrmw or ptr %noted.at, {found} monotonic")
        w.add_line("br label %done")
        w.lines.append("done:")
    # Never inlined: a nest takes what it only reads for invariable, and the caller has other nests that write it.
    attributes = f"noinline nounwind {attributes_of(target)}"
    return w.text(f"void @{nest.name}(ptr noalias %buffers, i64 %begin, i64 %end, i64 %part) {attributes}")


def _table_entry(w: Writer, name: str, slot: int) -> str:
    """The address of a slot, loaded at the very beginning."""
    w.first.append(f"  %{name}.at = getelementptr ptr, ptr %buffers, i64 {slot}")
    w.first.append(f"  %{name}.data = load ptr, ptr %{name}.at, align 8, !invariant.load !0")
    return f"%{name}.data"
