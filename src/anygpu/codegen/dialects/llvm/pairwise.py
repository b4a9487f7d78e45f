"""NumPy's sum along a contiguous axis, bit for bit.

Up to 128 numbers are added into eight partial sums, which are added in pairs, and what is left over one by one; of more
numbers each half is added for itself, and the first half has a multiple of eight. The halves of halves wait on a stack.

Where the block is in one lane, the eight partial sums are lanes; where it is in lanes, they are values of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anygpu.codegen.dialects.llvm.index import Counter, Multiple
from anygpu.codegen.dialects.llvm.statements import Body, Bound, is_light
from anygpu.codegen.dialects.llvm.values import I64, Type, Value, constant, i64, whole
from anygpu.codegen.kernel_ir import Loop

_SUMS = 8
_BLOCK = 128
#: Blocks that are added at once, where their number is known and their values are near.
_TOGETHER = 8
#: Halves that can wait: no axis is longer than 2^62.
_DEPTH = 64

#: The sums of the accumulators of a loop.
Sums = list[Value]


def write_pairwise(body: Body, loop: Loop, start: Bound, stop: Bound) -> None:
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
    def __init__(self, body: Body, loop: Loop, start: Bound) -> None:
        self.body = body
        self.loop = loop
        self.w = body.w
        self.names = [name for name, _ in loop.sums]
        self.elems = [body.names[name].type.elem for name in self.names]
        #: Every block begins at a multiple of eight after the start.
        self.multiple = start.multiple + Multiple(_SUMS, 0)
        #: Rounds whose values are computed together.
        self.width = max(_SUMS, loop.vector * loop.unroll // _SUMS * _SUMS) if body.lanes == 1 else _SUMS

    def sums(self, start: Bound, stop: Bound) -> Sums:
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
