"""Values inside of loop nests: `Lowering`, with what a processor does differently.

Short sums are written out, positions along rows are chosen instead of values, values of a row or a band of rows are
read from scratch, and every place where a padding or a concatenation changes its mind is remembered: loops are cut
there, and within a piece nothing is left to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from anygpu.engines.codegen import reductions
from anygpu.engines.codegen.index import ZERO, Clamped, Index, clamped, constant, flat, reshaped
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Choose,
    Expr,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
)
from anygpu.engines.codegen.lower import Lowering, Positions, RuleOf, Scope, Stored, Value, contract_positions
from anygpu.engines.codegen.nests import steps
from anygpu.engines.codegen.nests.steps import Scratch, TooMany, Written
from anygpu.engines.codegen.target import COMPUTE, components, part_of
from anygpu.program.dtypes import KIND, DType, is_integer
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Contract,
    Flip,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Slice,
    Update,
    product,
)

#: Sums of no more terms are written out: lanes go along another axis, and each term keeps its own registers.
SHORT = 16

#: Elementwise nodes that Python may follow by recursion.
_LONG_CHAIN = 32


class LoopCandidate(msgspec.Struct, frozen=True):
    """One of the positions that may be chosen: where `along` is from `low` to `high`, both included."""

    place: Index
    along: Index
    low: int
    high: int


class Local(msgspec.Struct, frozen=True):
    """A value of one row, or of a band of rows, in scratch. `origin` is the element that stands first in it."""

    scratch: str
    dtype: DType
    origin: Index


class Spread:
    """Values of columns, repeated for as many rows as lanes see at once: computed once, before the loop over rows."""

    def __init__(self, filler: NestLowering, lane: Index) -> None:
        """Values that are the same for all rows, repeated for several rows side by side in scratch memory.

        `filler` computes them before the loop over rows, one for each `lane`.
        """
        self.lane = lane
        self.length = lane.high + 1
        (atom,) = [atom for atom, _ in lane.terms if isinstance(atom, Counter)]
        self._name = atom.name
        self._filler = filler
        filler.lane = atom.name
        self._scope = Scope([atom.name])
        filler.scopes.append(self._scope)
        self._known: dict[tuple[int, Positions], str] = {}
        self.scratch: list[Scratch] = []

    def holds(self, program: Program, node: int, positions: Positions) -> bool:
        """Return whether a value depends on the column alone, and takes something to make."""
        op = program.nodes[node].op
        if not (op.is_elementwise or node in self._filler.stored):
            return False
        of_lane = any(position.depends_on(self._name) for position in positions)
        return of_lane and not any(position.depends_on("row") for position in positions)

    def value(self, lowering: NestLowering, node: int, positions: Positions) -> Value:
        """Return the value from scratch memory, which is filled when it is first asked for."""
        spec = lowering.program.specs[node]
        count, dtype = components(spec.dtype), part_of(spec.dtype)
        if (node, positions) not in self._known:
            name = lowering.unique(f"spread_{node}")
            self._known[node, positions] = name
            self.scratch.append(Scratch(name, dtype, count * self.length))
            for number, part in enumerate(self._filler.value(node, positions)):
                self._filler.add(Store(name, self.lane * count + number, part))
        name = self._known[node, positions]
        return tuple(
            lowering.named(f"{name}_value", Load(name, self.lane * count + number, COMPUTE[dtype]))
            for number in range(count)
        )

    def statements(self) -> list[Statement]:
        """Return what fills the arrays."""
        if not self.scratch:
            return []
        filling = Loop(self._name, Literal(0, "i64"), self.length, 1, tuple(self._scope.statements))
        return [*self._filler.scopes[0].statements, filling]


def _looked_at(value: Expr, condition: Expr | None = None) -> Expr:
    """Wrap a value to set the status flag where `condition` holds (default: where it is not finite)."""
    if isinstance(value, Literal) and condition is None:
        return value
    return Apply("noted", (value,) if condition is None else (value, condition), value.type)


def is_computed(op: Primitive) -> bool:
    """Return whether an operation computes its values; all others read them elsewhere."""
    return op.is_elementwise or isinstance(op, Contract | Reduce)


class NestLowering(Lowering):
    """The statements of one nest while they are being written."""

    def __init__(
        self,
        program: Program,
        stored: Mapping[int, Stored],
        rule_of: RuleOf,
        *,
        taken: Sequence[str] = (),
        ranks: Sequence[int] = (),
        written: Written,
        noted: Collection[int] = (),
    ) -> None:
        """Write the statements of a nest for a processor.

        `noted` are nodes whose results are checked for overflow and NaN; `written` limits the size of the generated
        code.
        """
        super().__init__(program, stored, rule_of, taken=taken)
        #: Nodes that are checked, because NumPy may warn about them.
        self._noted = noted
        self._written = written
        #: Stored values that can be read; finished passes add theirs.
        self.stored: dict[int, Stored] = dict(stored)
        #: The buffers of values that are not in scratch.
        self.buffers: Mapping[int, Stored] = stored
        #: The order in which nodes can be computed.
        self._ranks = ranks
        self._chains: dict[int, list[int]] = {}
        #: The loop variable whose neighbours are lanes.
        self.lane = ""
        self.local: dict[int, Local] = {}
        #: For each loop variable the values before which a padding or concatenation decides differently.
        self.cuts: dict[str, set[int]] = {}
        #: Matrices that are also stored with their axes swapped.
        self.turned: Mapping[int, Stored] = {}
        #: If short rows are done together, the values that all of them share.
        self.spread: Spread | None = None
        #: The most values that may be computed, where there is a limit, and how often each node was.
        self.most = 0
        self._times: dict[int, int] = {}
        self._computed = 0
        #: Whether this is never printed, and only finds out where loops are cut and which values are read.
        self.only_for_cuts = False
        #: Stored values that were read, and where.
        self.reads: list[tuple[int, Positions]] = []
        #: Names of chosen positions, by the block that they are in.
        self._places: dict[tuple[Scope, Expr], str] = {}
        #: For each of these names what it may be, and from where to where the position is then that it is chosen by.
        self.chosen: dict[str, list[LoopCandidate]] = {}

    def share_names(self, other: NestLowering) -> None:
        """Share the counter of names with another lowering that writes into the same nest."""
        other._taken = self._taken

    # -- values

    def value(self, node: int, positions: Positions) -> Value:
        """Return the value; compute long chains of elementwise functions from their start, without recursion."""
        shape = self._shape(node)
        if 1 in shape:
            positions = tuple(ZERO if n == 1 else position for n, position in zip(shape, positions, strict=True))
        if self.spread is not None and self.spread.holds(self.program, node, positions):
            return self.spread.value(self, node, positions)
        own = self.program.nodes[node].op.is_elementwise and node not in self.stored
        if own and not any((node, positions) in scope.known for scope in self.scopes):
            for each in self._chain(node):
                super().value(each, positions)
        return super().value(node, positions)

    def _chain(self, node: int) -> list[int]:
        """Return the elementwise nodes that lead to a node through nothing else, in order; none where they are few."""
        if node not in self._chains:
            found, waiting = {node}, [node]
            while waiting:
                for source in self.program.nodes[waiting.pop()].inputs:
                    if source in found or source in self.stored:
                        continue
                    if self.program.nodes[source].op.is_elementwise:
                        found.add(source)
                        waiting.append(source)
            chain = sorted(found, key=lambda each: self._ranks[each] if self._ranks else each)
            self._chains[node] = chain[:-1] if len(chain) > _LONG_CHAIN else []
        return self._chains[node]

    def _compute(self, node: int, positions: Positions) -> Value:
        """Return the value by the node's rule, counted.

        Raises `TooMany`, with the node that was computed most often, beyond `most` computations.
        """
        self._written.add_one()
        op = self.program.nodes[node].op
        if self.most and node not in self.stored and is_computed(op):
            self._times[node] = self._times.get(node, 0) + 1
            self._computed += 1
            if self._computed > self.most:
                raise TooMany(max(self._times, key=lambda each: self._times[each]))
        return super()._compute(node, positions)

    def _function(self, node: int, op: Primitive, operands: Sequence[Value]) -> Value:
        """Apply an elementwise function; for noted nodes, flag integers that wrap and results that are not finite."""
        if node not in self._noted:
            return super()._function(node, op, operands)
        source = self.program.specs[self.program.nodes[node].inputs[0]].dtype
        dtype = self.program.specs[node].dtype
        if isinstance(op, Cast) and is_integer(dtype):
            ((value,),) = operands
            return super()._function(node, op, [(_looked_at(value, steps.beyond(value, dtype)),)])
        result = super()._function(node, op, operands)
        if isinstance(op, Binary) and is_integer(source):
            (one,), (other,) = operands
            return (_looked_at(result[0], steps.wraps(op.fn, one, other, dtype)),)
        return tuple(_looked_at(each) for each in result)

    # -- storage

    def _loaded(self, node: int, positions: Positions) -> Value:
        """Load a value from memory; flag a noted one that is not finite, unless it is checked where it is made."""
        value = self._read(node, positions)
        op = self.program.nodes[node].op
        if node not in self._noted or op.is_elementwise or isinstance(op, Reduce):
            return value
        return tuple(self.named(f"seen_{node}", _looked_at(each)) for each in value)

    def _read(self, node: int, positions: Positions) -> Value:
        """Return the value from scratch of the nest, from the buffer, or from a transposed copy.

        A transposed copy is read where it lies along the lanes and the original does not.
        """
        self.reads.append((node, positions))
        local = self.local.get(node)
        spec = self.program.specs[node]
        if local is None and node in self.turned:
            across = flat(positions[::-1], spec.shape[::-1])
            if flat(positions, spec.shape).steps_with(self.lane) not in (0, 1) and across.steps_with(self.lane) == 1:
                name = self.turned[node].buffer
                return (self.named(f"{name}_value", Load(name, across, COMPUTE[self.turned[node].dtype])),)
        if local is None:
            return super()._loaded(node, positions)
        count = components(spec.dtype)
        place = flat(positions, spec.shape) - local.origin
        return tuple(
            self.named(f"{local.scratch}_value", Load(local.scratch, place * count + number, COMPUTE[local.dtype]))
            for number in range(count)
        )

    def store(self, node: int, positions: Positions, value: Value) -> None:
        """Store a value into the buffer or the scratch of a node."""
        spec = self.program.specs[node]
        count = components(spec.dtype)
        place = flat(positions, spec.shape)
        if node in self.local:
            name, place = self.local[node].scratch, place - self.local[node].origin
        else:
            name = self.buffers[node].buffer
        for number, part in enumerate(value):
            self.add(Store(name, place * count + number, part))

    # -- places where loops are cut

    def _cut(self, position: Index, at: int) -> None:
        """Note where a position passes `at`, so that its loop can be cut there."""
        if not position.low < at <= position.high or len(position.terms) != 1:
            return
        atom, factor = position.terms[0]
        rest = at - position.constant
        if isinstance(atom, Clamped) and factor == 1:
            self._cut(atom.of, rest)
        elif isinstance(atom, Counter) and atom.meaning is None:
            first = -(-rest // factor) if factor > 0 else rest // factor + 1
            self.cuts.setdefault(atom.name, set()).add(first)

    def _pad(self, op: Pad, inputs: tuple[int, ...], positions: Positions) -> Value:
        """Return the padded value; loops are cut where the padding begins and ends."""
        for position, low, length in zip(positions, op.low, self._shape(inputs[0]), strict=True):
            self._cut(position, low)
            self._cut(position, low + length)
        return super()._pad(op, inputs, positions)

    def _update(self, node: int, op: Update, inputs: tuple[int, ...], positions: Positions) -> Value:
        """Return the updated value; loops are cut where the update begins and ends."""
        for position, start, step, count in zip(positions, op.starts, op.steps, self._shape(inputs[1]), strict=True):
            self._cut(position, start)
            self._cut(position, start + (count - 1) * step + 1)
        return super()._update(node, op, inputs, positions)

    def _concatenate(self, op: Concatenate, inputs: tuple[int, ...], positions: Positions) -> Value:
        """Return the value of a concatenation. Loops are cut where one piece ends, so that no lane has to choose."""
        along = positions[op.axis]
        if not (self.lane and along.depends_on(self.lane)):
            chosen = self._chosen_positions(op, inputs, positions)
            if chosen is not None:
                return self.value(*chosen)
        begin = 0
        for source in inputs:
            self._cut(along, begin)
            begin += self._shape(source)[op.axis]
        alike = self._longest_of_alike(op, inputs, positions) if self.only_for_cuts else None
        return super()._concatenate(op, inputs, positions) if alike is None else self.value(*alike)

    def _parts_of(
        self, op: Concatenate, inputs: tuple[int, ...], positions: Positions
    ) -> list[tuple[int, int, int, Positions]]:
        """Return the parts that a position may be in: start, length, the value that the part shows, and the place in
        it.
        """
        along = positions[op.axis]
        found: list[tuple[int, int, int, Positions]] = []
        begin = 0
        for source in inputs:
            length = self._shape(source)[op.axis]
            if length and along.low < begin + length and along.high >= begin:
                moved = list(positions)
                moved[op.axis] = along - begin
                found.append((begin, length, *self._looked_through(source, tuple(moved))))
            begin += length
        return found

    def _longest_of_alike(
        self, op: Concatenate, inputs: tuple[int, ...], positions: Positions
    ) -> tuple[int, Positions] | None:
        """Return the longest part and its positions, if all parts show the same rows of one value; else `None`."""
        found = self._parts_of(op, inputs, positions)
        if not found:
            return None
        _, _, base, places = max(found, key=lambda part: part[1])
        for _, _, other, elsewhere in found:
            alike = other == base and all(
                one == two or (one.depends_on(self.lane) and not _beside(two, self.lane))
                for one, two in zip(places, elsewhere, strict=True)
            )
            if not alike:
                return None
        shape = self._shape(base)
        return base, tuple(clamped(each, n) for each, n in zip(places, shape, strict=True))

    def _chosen_positions(
        self, op: Concatenate, inputs: tuple[int, ...], positions: Positions
    ) -> tuple[int, Positions] | None:
        """Return the value and the chosen positions if all parts are views of one value, as for edges and rolls.

        A row's position is chosen once; choosing values would read all of them.
        """
        along = positions[op.axis]
        found = [(begin, base, places) for begin, _, base, places in self._parts_of(op, inputs, positions)]
        if not found or any(base != found[0][1] for _, base, _ in found):
            return None
        base = found[0][1]
        chosen: list[Index] = []
        for axis, length in enumerate(self._shape(base)):
            candidates = [(first, places[axis]) for first, _, places in found]
            if all(each == candidates[0][1] for _, each in candidates):
                chosen.append(candidates[0][1])
                continue
            place: Expr = Position(candidates[0][1])
            for first, each in candidates[1:]:
                begun = Apply("greater_equal", (Position(along), Literal(first, "i32")), "bool")
                place = Choose(begun, Position(each), place)
            name, index = self._named_position((along, *(each for _, each in candidates)), place, length)
            ends = [first for first, _ in candidates[1:]] + [along.high + 1]
            self.chosen[name] = [
                LoopCandidate(each, along, max(first, along.low), end - 1)
                for (first, each), end in zip(candidates, ends, strict=True)
            ]
            chosen.append(index)
        return base, tuple(chosen)

    def _named_position(self, of: Positions, place: Expr, length: int) -> tuple[str, Index]:
        """Return a computed position as a variable, declared in the block where its operands are known."""
        home = self.scopes[self._home(of)]
        name = self._places.get((home, place))
        if name is None:
            name = self._places[home, place] = self.unique("place")
            home.statements.append(Let(name, place))
            home.variables.add(name)
        return name, Index(0, [(Counter(name, 0, length - 1), 1)])

    def _looked_through(self, node: int, positions: Positions) -> tuple[int, Positions]:
        """Return the value that a chain of views shows, and the position in it."""
        while node not in self.stored:
            op, inputs = self.program.nodes[node]
            match op:
                case Permute():
                    positions = tuple(positions[op.axes.index(axis)] for axis in range(len(op.axes)))
                case Slice():
                    moved = zip(positions, op.starts, op.steps, strict=True)
                    positions = tuple(position * step + start for position, start, step in moved)
                case Flip():
                    lengths = zip(positions, self._shape(node), strict=True)
                    positions = tuple(
                        constant(length - 1) - position if axis in op.axes else position
                        for axis, (position, length) in enumerate(lengths)
                    )
                case Broadcast():
                    shape = self._shape(inputs[0])
                    tail = positions[len(positions) - len(shape) :]
                    positions = tuple(constant(0) if n == 1 else p for n, p in zip(shape, tail, strict=True))
                case Reshape() if min((each.low for each in positions), default=0) >= 0:
                    positions = reshaped(positions, op.shape, self._shape(inputs[0]))
                case _:
                    break
            node = inputs[0]
        return node, positions

    # -- short sums

    def namer(self, node: int) -> reductions.Namer:
        """Return a function that names the values a node is computed from."""
        return self._namer(node)

    def looped(
        self, node: int, fn: ReduceFunction, shape: Sequence[int], axes: Sequence[int], source: int,
        positions: Positions,
    ) -> Value:  # fmt: skip
        """Return a reduction within the nest.

        Up to `SHORT` elements are written out, in the order in which NumPy adds them; more are a loop.
        """
        lengths = tuple(shape[axis] for axis in axes)
        if not 0 < product(lengths) <= SHORT:
            return super().looped(node, fn, shape, axes, source, positions)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        terms: list[Value] = []
        for number in range(product(lengths)):
            along = dict(zip(kept, positions, strict=True))
            along |= dict(zip(axes, written_out(number, lengths), strict=True))
            terms.append(self.value(source, tuple(along[axis] for axis in range(len(shape)))))
        last = max((axis for axis in kept if shape[axis] > 1), default=-1)
        in_order = all(axis > last for axis in axes if shape[axis] > 1)
        return self._combined(node, fn, self.program.specs[source].dtype, terms, as_neighbours=in_order)

    def _contract(self, node: int, op: Contract, inputs: tuple[int, ...], positions: Positions) -> Value:
        """Return a product of matrices: up to `SHORT` terms are written out, more are a loop."""
        left, right = self._shape(inputs[0]), self._shape(inputs[1])
        lengths = tuple(left[axis] for axis in op.left)
        if not 0 < product(lengths) <= SHORT:
            return super()._contract(node, op, inputs, positions)
        dtype = self.program.specs[node].dtype
        terms: list[Value] = []
        for number in range(product(lengths)):
            one, other = contract_positions(op, left, right, positions, written_out(number, lengths))
            terms.append(self.product(node, dtype, self.value(inputs[0], one), self.value(inputs[1], other)))
        return self._combined(node, "any" if dtype == "bool" else "sum", dtype, terms)

    def _combined(
        self, node: int, fn: ReduceFunction, dtype: DType, terms: Sequence[Value], *, as_neighbours: bool = False
    ) -> Value:
        """Combine terms one after the other; sums of neighbours as NumPy adds them: eight at once, then the rest."""
        if fn in ("argmax", "argmin"):
            return self._first_extreme(node, fn, dtype, [term[0] for term in terms])

        def both(one: Value, other: Value) -> Value:
            values = reductions.combined(fn, dtype, one, other, self._namer(node))
            return tuple(self.named(f"{fn}_{node}", each) for each in values)

        left = list(terms)
        if as_neighbours and fn == "sum" and len(left) >= 8 and KIND[dtype] == "float":
            states, left = left[:8], left[8:]
            while len(left) >= 8:
                states, left = [both(*pair) for pair in zip(states, left[:8], strict=True)], left[8:]
            while len(states) > 1:
                states = [both(*pair) for pair in zip(states[::2], states[1::2], strict=True)]
            left = states + left
        total = left[0]
        for each in left[1:]:
            total = both(total, each)
        return self.end(node, fn, dtype, total)

    def _first_extreme(self, node: int, fn: ReduceFunction, dtype: DType, terms: Sequence[Expr]) -> Value:
        """Return the position of the first extreme, or of the first NaN: later ones must exceed it."""
        best: Expr = terms[0]
        place: Expr = Literal(0, "i32")
        for number, term in enumerate(terms[1:], 1):
            stays: Expr = Apply("less_equal" if fn == "argmax" else "greater_equal", (term, best), "bool")
            if KIND[dtype] == "float":
                stays = Apply("bitwise_or", (stays, Apply("isnan", (best,), "bool")), "bool")
            kept = self.named(f"stays_{node}", stays)
            best = self.named(f"best_{node}", Choose(kept, best, term))
            place = self.named(f"{fn}_{node}", Choose(kept, place, Literal(number, "i32")))
        return (self.named(f"result_{node}", Apply("cast_i64", (place,), "i64")),)

    def end(self, node: int, fn: ReduceFunction, dtype: DType, state: Value) -> Value:
        """Return the result of a reduction; flag a noted one that is not finite."""
        result = super().end(node, fn, dtype, state)
        if node not in self._noted:
            return result
        return tuple(self.named(f"seen_{node}", _looked_at(each)) for each in result)

    def begin_running(self, node: int, fn: ReduceFunction, dtype: DType) -> tuple[Name, ...]:
        """Return the state of a running total: a sum begins with its first value, whose zero may be negative."""
        state = self.begin(node, fn, dtype, lambda index: ())
        if fn == "sum" and KIND[dtype] == "float":
            self.assign(node, state, tuple(Literal(-0.0, each.type) for each in state))
        return state

    # -- loops

    def loop(
        self,
        name: str,
        low: int,
        high: int,
        body: Callable[[Index], None],
        *,
        start: Expr | None = None,
        stop: Expr | None = None,
        step: int = 1,
        vector: int = 1,
        unroll: int = 1,
        sums: tuple[tuple[str, str], ...] = (),
        pairwise: bool = False,
    ) -> None:
        """Return a loop whose variable is at least `low` and less than `high`, from `start` to `stop` if given."""
        if high <= low:
            return
        if high - low == 1 and start is None and stop is None:
            body(constant(low))
            return
        outer, self.lane = self.lane, name if vector > 1 or pairwise else self.lane
        with self.inside(name) as scope:
            # A variable even where it has but one value: what is read in the loop may be written in it before.
            body(Index(0, [(Counter(name, low, high - 1), 1)]))
        self.lane = outer
        self.add(
            Loop(
                name,
                Literal(low, "i64") if start is None else start,
                high if stop is None else stop,
                step,
                tuple(scope.statements),
                sums=sums,
                vector=vector,
                unroll=unroll,
                pairwise=pairwise,
            )
        )


def _beside(index: Index, lane: str) -> bool:
    """Return whether a position depends on anything but the lane."""
    return any(not (isinstance(atom, Counter) and atom.name == lane) for atom, _ in index.terms)


def ranged(name: str, low: int, high: int) -> Index:
    """Return a variable from `low` to before `high`."""
    return Index(0, [(Counter(name, low, high - 1), 1)]) if high - low > 1 else constant(low)


def written_out(number: int, lengths: Sequence[int]) -> tuple[Index, ...]:
    """Return the positions of one element, by its number in C order."""
    result: list[Index] = []
    for length in reversed(lengths):
        number, along = divmod(number, length)
        result.append(constant(along))
    return tuple(reversed(result))


def indices_in(statements: Sequence[Statement]) -> list[Index]:
    """Return all positions that statements read, write or compute with."""
    found: list[Index] = []

    def look(expr: Expr | int) -> None:
        match expr:
            case Load() | Position():
                found.append(expr.index)
            case Apply():
                for each in expr.args:
                    look(each)
            case Choose():
                look(expr.condition)
                look(expr.yes)
                look(expr.no)

    def walk(statement: Statement) -> None:
        match statement:
            case Store():
                found.append(statement.index)
                look(statement.value)
            case Loop():
                look(statement.start)
                look(statement.stop)
                for each in statement.body:
                    walk(each)
            case _:
                for field in ("value", "condition"):
                    inner = getattr(statement, field, None)
                    if inner is not None:
                        look(inner)

    for each in statements:
        walk(each)
    return found


__all__ = ["SHORT", "Local", "LoopCandidate", "NestLowering", "indices_in", "is_computed", "ranged", "written_out"]
