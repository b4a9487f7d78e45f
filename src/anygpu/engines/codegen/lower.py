"""Values at positions: how nodes of a program become expressions of a kernel.

`Lowering.value(node, positions)` asks for one element of a node. Movement only changes the positions that are asked
for further down, elementwise functions ask at the same ones, and what is stored already is loaded. Every value gets a
name in the innermost loop whose variable it depends on, so nothing is computed more often than it must be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from anygpu.engines.codegen import complexes, elementwise, reductions
from anygpu.engines.codegen.elementwise import converted
from anygpu.engines.codegen.index import ZERO, Index, clamped, constant, flat, reshaped, unflat, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Call,
    Choose,
    Expr,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Report,
    Statement,
    Store,
    Variable,
)
from anygpu.engines.codegen.target import COMPUTE, ComputeType, components, compute_type, part_of
from anygpu.program.dtypes import ITEMSIZE, KIND, DType, number_from
from anygpu.program.functions import ReduceFunction
from anygpu.program.graph import Program, value_names
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Gather,
    Iota,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scatter,
    Search,
    Select,
    Slice,
    Spec,
    Unary,
    Update,
    Windows,
    free_axes,
    product,
)

Value = tuple[Expr, ...]
Positions = tuple[Index, ...]


class Stored(msgspec.Struct, frozen=True):
    """The storage of a node's values: a buffer of elements of a real type."""

    buffer: str
    dtype: DType


class RowCache:
    """A value of every element of a row that is written in the first loop that computes it, and read in later ones."""

    def __init__(self, buffer: str, type: ComputeType, shape: tuple[int, ...], column_of: Callable[[], Index]) -> None:
        """A row of a value in the group's memory.

        `column_of` gives the position within the row at this place in the kernel.
        """
        self.buffer = buffer
        self.type = type
        self.shape = shape
        #: The index of the buffer's element for the current row and column.
        self.column_of = column_of
        self.used = False
        self.written = False

    def place(self, positions: Positions) -> Index:
        return flat(positions, self.shape)

    def holds(self, positions: Positions) -> bool:
        return self.place(positions) == self.column_of()


class NotInKernel(Exception):
    """A value is asked for at a position where this kernel does not have it."""


class Scope:
    """A block of statements, the variables that it introduces, and the values that have been named in it."""

    def __init__(self, variables: Sequence[str] = ()) -> None:
        """The statements of one loop's body, and the values that are known inside of it."""
        self.variables = set(variables)
        self.statements: list[Statement] = []
        self.known: dict[tuple[int, Positions], Value] = {}
        #: For gathers, and the positions of their indices, the places that those stand for.
        self.places: dict[tuple[int, Positions], Index] = {}


#: Asked to check positions at run time: check number for a node's rule, or `None` when it cannot be broken.
RuleOf = Callable[[int], int | None]


class Lowering:
    """The statements of one kernel, or of one function of it, while they are being written."""

    def __init__(
        self, program: Program, stored: Mapping[int, Stored], rule_of: RuleOf, *, taken: Sequence[str] = ()
    ) -> None:
        """Statements that compute nodes of a program at positions.

        `stored` has what is loaded from memory, `rule_of` the rules that are checked, and `taken` names that must not
        be used.
        """
        self.program = program
        self.stored = stored
        self.rule_of = rule_of
        self.scopes = [Scope()]
        self._taken: dict[str, int] = dict.fromkeys(taken, 1)
        #: Results that this kernel has already, for the row it works on; asked for elsewhere, they are not here.
        self.of_row: dict[int, Value] = {}
        self.row: Index = ZERO
        #: Results that this kernel has at one position in C order, and nowhere else.
        self.given: dict[int, tuple[Index, Value]] = {}
        #: Values that a loop leaves in a buffer for the loops after it.
        self.kept: dict[int, RowCache] = {}
        self.searches: dict[int, str] = {}
        self._definitions: dict[str, Expr] = {}

    # -- writing

    @property
    def statements(self) -> list[Statement]:
        return self.scopes[-1].statements

    def add(self, statement: Statement) -> None:
        self.scopes[-1].statements.append(statement)

    def unique(self, hint: str) -> str:
        """A name like the hint that nothing else has."""
        count = self._taken.get(hint, 0)
        self._taken[hint] = count + 1
        return hint if count == 0 else self.unique(f"{hint}_{count + 1}")

    def named(self, hint: str, value: Expr, scope: Scope | None = None) -> Expr:
        """A name for a value, unless it is as short as a name."""
        if isinstance(value, Name | Literal):
            return value
        name = self.unique(hint)
        (scope or self.scopes[-1]).statements.append(Let(name, value))
        self._definitions[name] = value
        return Name(name, value.type)

    def _made_by(self, value: Expr) -> Apply | None:
        made = self._definitions.get(value.name) if isinstance(value, Name) else value
        return made if isinstance(made, Apply) else None

    @contextmanager
    def inside(self, *variables: str) -> Iterator[Scope]:
        """A new block; what it needs from outside is written before it."""
        scope = Scope(variables)
        self.scopes.append(scope)
        try:
            yield scope
        finally:
            self.scopes.remove(scope)

    def _home(self, positions: Positions) -> int:
        """The innermost block that one of the positions depends on."""
        for number in range(len(self.scopes) - 1, 0, -1):
            names = self.scopes[number].variables
            if any(position.depends_on(name) for position in positions for name in names):
                return number
        return 0

    # -- values

    def value(self, node: int, positions: Positions) -> Value:
        """The components of a node's value at positions, computed at most once in every scope that can see it.

        It is computed in the outermost scope that knows the positions' variables, so what does not change in a loop
        stands before it. Raises `NotInKernel` for values of a row at another row.
        """
        key = (node, positions)
        for scope in reversed(self.scopes):
            if key in scope.known:
                return scope.known[key]
        if node in self.given or node in self.of_row:
            place, known = self.given[node] if node in self.given else (self.row, self.of_row[node])
            if flat(positions, self.program.specs[node].shape) != place:
                raise NotInKernel(node)
            return known
        home = self._home(positions)
        inner = self.scopes[home + 1 :]
        self.scopes = self.scopes[: home + 1]
        try:
            kept = self.kept.get(node)
            if kept is not None and kept.written and kept.holds(positions):
                result: Value = (self.named(f"kept_{node}", Load(kept.buffer, kept.place(positions), kept.type)),)
            else:
                result = self._compute(node, positions)
                if kept is not None and kept.holds(positions):
                    self.add(Store(kept.buffer, kept.place(positions), result[0]))
                    kept.used = True
            self.scopes[home].known[key] = result
        finally:
            self.scopes += inner
        return result

    def _compute(self, node: int, positions: Positions) -> Value:
        """The value by the node's own rule. Raises `NotInKernel` for operations that need kernels of their own."""
        op, inputs = self.program.nodes[node]
        spec = self.program.specs[node]
        if node in self.stored:
            return self._loaded(node, positions)
        at = self.value
        match op:
            case Constant():
                return literal_of(op, positions)
            case Iota():
                at_once = positions[0].is_constant
                number = Literal(positions[0].constant, "i32") if at_once else Position(positions[0])
                whole = elementwise.cast(number, "int32", part_of(op.dtype))
                return (whole,) if components(op.dtype) == 1 else (whole, Literal(0, compute_type(op.dtype)))
            case Unary() | Binary() | Select() | Cast():
                operands = [at(source, positions) for source in inputs]
                result = self._function(node, op, operands)
                return tuple(self.named(f"{op.name}_{node}", each) for each in result)
            case Reshape():
                return at(inputs[0], reshaped(positions, op.shape, self._shape(inputs[0])))
            case Permute():
                return at(inputs[0], tuple(positions[op.axes.index(axis)] for axis in range(len(op.axes))))
            case Broadcast():
                shape = self._shape(inputs[0])
                tail = positions[len(positions) - len(shape) :]
                return at(inputs[0], tuple(ZERO if n == 1 else p for n, p in zip(shape, tail, strict=True)))
            case Slice():
                moved = zip(positions, op.starts, op.steps, strict=True)
                return at(inputs[0], tuple(position * step + start for position, start, step in moved))
            case Flip():
                ends = [constant(length - 1) - position for position, length in zip(positions, spec.shape, strict=True)]
                flipped = (ends[axis] if axis in op.axes else position for axis, position in enumerate(positions))
                return at(inputs[0], tuple(flipped))
            case Windows():
                *outer, inner = positions
                outer[op.axis] = outer[op.axis] * op.step + inner
                return at(inputs[0], tuple(outer))
            case Pad():
                return self._pad(op, inputs, positions)
            case Concatenate():
                return self._concatenate(op, inputs, positions)
            case Update():
                return self._update(node, op, inputs, positions)
            case Gather():
                return self._gather(node, op, inputs, positions)
            case Scatter() if self.program.specs[inputs[1]].size == 0:
                return at(inputs[0], positions)
            case Search() if self.program.specs[inputs[0]].size == 0:
                return (Literal(0, "i64"),)
            case Search():
                wanted = at(inputs[1], positions)
                numbers = tuple(converted(each, "u32") if each.type == "bool" else each for each in wanted)
                found = Call(self.searches[node], numbers, "i32")
                return (self.named(f"place_{node}", converted(found, "i64")),)
            case Reduce():
                return self.looped(node, op.fn, self._shape(inputs[0]), op.axes, inputs[0], positions)
            case Contract():
                return self._contract(node, op, inputs, positions)
        raise NotInKernel(node)

    def _shape(self, node: int) -> tuple[int, ...]:
        return self.program.specs[node].shape

    def _loaded(self, node: int, positions: Positions) -> Value:
        """The value from memory: one load for each component. A bool that is stored as a number is compared with 0."""
        spec, stored = self.program.specs[node], self.stored[node]
        place = flat(positions, spec.shape)
        count = components(spec.dtype)
        result: list[Expr] = []
        for number in range(count):
            value: Expr = Load(stored.buffer, place * count + number, COMPUTE[stored.dtype])
            suffix = ("", "_re", "_im")[number + (count == 2)]
            value = self.named(f"{stored.buffer}_value{suffix}", value)
            if spec.dtype == "bool" and stored.dtype != "bool":
                value = self.named(f"{stored.buffer}_holds", Apply("not_equal", (value, Literal(0, "u32")), "bool"))
            result.append(value)
        return tuple(result)

    # -- functions

    def _function(self, node: int, op: Primitive, operands: Sequence[Value]) -> Value:
        """An elementwise function of operands, by its real or complex formula.

        Raises `NotInKernel` for other primitives.
        """
        _, inputs = self.program.nodes[node]
        dtype = self.program.specs[inputs[0]].dtype
        name = self._namer(node)
        match op:
            case Unary() | Binary() if op.last_bits == "numpy" and KIND[dtype] == "complex":
                return complexes.as_numpy(op.fn, tuple((each[0], each[1]) for each in operands))
            case Unary() | Binary() if op.last_bits in ("numpy", "steps"):
                kind = "numpy." if op.last_bits == "numpy" else "numpys_"
                type = operands[0][0].type
                return (Apply(f"{kind}{op.fn}", tuple(operand[0] for operand in operands), type),)
            case Unary():
                if KIND[dtype] == "complex":
                    return complexes.unary(op.fn, (operands[0][0], operands[0][1]), name)
                return (elementwise.unary(op.fn, dtype, operands[0][0], self._made_by),)
            case Binary(fn="complex"):
                return (operands[0][0], operands[1][0])
            case Binary():
                if KIND[dtype] == "complex":
                    x, y = operands
                    return complexes.binary(op.fn, (x[0], x[1]), (y[0], y[1]), name, self._made_by)
                if op.fn == "power" and KIND[dtype] == "signed":
                    self._refuse_negative(node, operands[1][0])
                return (elementwise.binary(op.fn, dtype, operands[0][0], operands[1][0], self._made_by),)
            case Select():
                condition, yes, no = operands
                return tuple(Choose(condition[0], one, other) for one, other in zip(yes, no, strict=True))
            case Cast():
                return cast(operands[0], dtype, op.dtype)
        raise NotInKernel(node)

    def _namer(self, node: int) -> reductions.Namer:
        """A function that gives an expression a name of the node's, in a statement of its own."""

        def name(hint: str, value: Expr) -> Name:
            result = self.unique(f"{hint}_{node}")
            self.add(Let(result, value))
            self._definitions[result] = value
            return Name(result, value.type)

        return name

    def _refuse_negative(self, node: int, exponent: Expr) -> None:
        """Report a negative exponent, where it can occur."""
        rule = self.rule_of(node)
        if rule is not None:
            negative = Apply("less", (exponent, Literal(0, exponent.type)), "bool")
            self.add(Report(rule, negative, Literal(0, "i32")))

    # -- movement that chooses

    def _pad(self, op: Pad, inputs: tuple[int, ...], positions: Positions) -> Value:
        """The value inside of the original, and the padding elsewhere.

        Positions are clamped before they are read, so nothing outside of memory is touched. Tests that ranges answer
        are left out.
        """
        shape = self._shape(inputs[0])
        outside_value = self.value(inputs[1], ())
        if product(shape) == 0:
            return outside_value
        moved = [position - low for position, low in zip(positions, op.low, strict=True)]
        inside = self._all_inside(moved, shape)
        if inside is None:
            return self.value(inputs[0], tuple(moved))
        held = self.named("inside", inside)
        values = self.value(inputs[0], tuple(clamped(each, n) for each, n in zip(moved, shape, strict=True)))
        pairs = zip(values, outside_value, strict=True)
        return tuple(self.named("padded", Choose(held, one, other)) for one, other in pairs)

    def _all_inside(self, positions: Sequence[Index], shape: Sequence[int]) -> Expr | None:
        """Whether positions are inside of a shape; `None` when they surely are."""
        tests: list[Expr] = []
        for position, length in zip(positions, shape, strict=True):
            if position.low < 0:
                tests.append(Apply("greater_equal", (Position(position), Literal(0, "i32")), "bool"))
            if position.high >= length:
                tests.append(Apply("less", (Position(position), Literal(length, "i32")), "bool"))
        return _all_of(tests)

    def _concatenate(self, op: Concatenate, inputs: tuple[int, ...], positions: Positions) -> Value:
        """The last part whose begin is not after the position: chosen from the back, so that one test each will do."""
        parts: list[tuple[int, int]] = []
        begin = 0
        for source in inputs:
            length = self._shape(source)[op.axis]
            along = positions[op.axis]
            if length and along.low < begin + length and along.high >= begin:
                parts.append((source, begin))
            begin += length
        result: Value | None = None
        for source, first in parts:
            moved = list(positions)
            moved[op.axis] = clamped(positions[op.axis] - first, self._shape(source)[op.axis])
            value = self.value(source, tuple(moved))
            if result is None:
                result = value
            else:
                begun = Apply("greater_equal", (Position(positions[op.axis]), Literal(first, "i32")), "bool")
                held = self.named("begun", begun)
                pairs = zip(value, result, strict=True)
                result = tuple(self.named("joined", Choose(held, one, other)) for one, other in pairs)
        if result is None:
            raise NotInKernel(inputs[0])
        return result

    def _update(self, node: int, op: Update, inputs: tuple[int, ...], positions: Positions) -> Value:
        """The new value where an update has written one, and the old one elsewhere."""
        shape = self._shape(inputs[1])
        old = self.value(inputs[0], positions)
        if product(shape) == 0:
            return old
        tests: list[Expr] = []
        moved: list[Index] = []
        for position, start, step, count in zip(positions, op.starts, op.steps, shape, strict=True):
            along = position - start
            last = (count - 1) * step
            if along.low < 0:
                tests.append(Apply("greater_equal", (Position(along), Literal(0, "i32")), "bool"))
            if along.high > last:
                tests.append(Apply("less_equal", (Position(along), Literal(last, "i32")), "bool"))
            safe = clamped(along, last + 1)
            if step > 1 and safe % step != ZERO:
                tests.append(Apply("equal", (Position(safe % step), Literal(0, "i32")), "bool"))
            moved.append(safe // step)
        new = self.value(inputs[1], tuple(moved))
        inside = _all_of(tests)
        if inside is None:
            return new
        held = self.named(f"replaced_{node}", inside)
        return tuple(self.named(f"update_{node}", Choose(held, a, b)) for a, b in zip(new, old, strict=True))

    def _gather(self, node: int, op: Gather, inputs: tuple[int, ...], positions: Positions) -> Value:
        """The value at a position that an index names.

        The index is checked once, also where it is used for many elements.
        """
        shape, index_shape = self._shape(inputs[0]), self._shape(inputs[1])
        extra = len(index_shape) - op.batch
        at_index = (*positions[: op.batch], *positions[op.axis : op.axis + extra])
        wanted = self.value(inputs[1], at_index)[0]
        place = self._place_once(node, at_index, lambda: self.checked_position(node, wanted, shape[op.axis]))
        moved = (*positions[: op.axis], place, *positions[op.axis + extra :])
        return self.value(inputs[0], moved)

    def _place_once(self, node: int, at_index: Positions, make: Callable[[], Index]) -> Index:
        """The place that an index stands for, made where the index itself is: once for all that is read there."""
        home = self._home(at_index)
        inner = self.scopes[home + 1 :]
        self.scopes = self.scopes[: home + 1]
        try:
            places = self.scopes[home].places
            if (node, at_index) not in places:
                places[node, at_index] = make()
            return places[node, at_index]
        finally:
            self.scopes += inner

    def checked_position(self, node: int, wanted: Expr, length: int) -> Index:
        """An index that was computed, as a position that is surely inside; a wrong one is reported."""
        rule = self.rule_of(node)
        if rule is not None:
            self.add(Report(rule, is_outside(wanted, length), converted(wanted, "i32")))
        if length == 1:
            return ZERO
        bounded: Expr = converted(wanted, "i32")
        if rule is not None:
            low = Apply("maximum", (bounded, Literal(0, "i32")), "i32")
            bounded = Apply("minimum", (low, Literal(length - 1, "i32")), "i32")
        name = self.unique(f"at_{node}")
        self.add(Let(name, bounded))
        self.scopes[-1].variables.add(name)
        return Index(0, [(Counter(name, 0, length - 1), 1)])

    # -- loops

    def looped(
        self, node: int, fn: ReduceFunction, shape: Sequence[int], axes: Sequence[int], source: int,
        positions: Positions,
    ) -> Value:  # fmt: skip
        """A reduction by a loop of this invocation alone."""
        dtype = self.program.specs[source].dtype
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        lengths = [shape[axis] for axis in axes]

        def element(number: Index) -> Value:
            along = dict(zip(kept, positions, strict=True)) | dict(zip(axes, unflat(number, lengths), strict=True))
            return self.value(source, tuple(along[axis] for axis in range(len(shape))))

        return self.accumulated(node, fn, dtype, product(tuple(lengths)), element)

    def accumulated(
        self, node: int, fn: ReduceFunction, dtype: DType, length: int, element: Callable[[Index], Value]
    ) -> Value:
        """A reduction of `length` elements in a loop, from its identity or from the first element where it has none."""
        if length == 0:
            return reductions.finished(fn, dtype, reductions.identity(fn, dtype) or ())
        state = self.begin(node, fn, dtype, element)
        counter = self.unique(f"k_{node}")
        first = 0 if reductions.identity(fn, dtype) is not None else 1
        with self.inside(counter) as scope:
            self.take(node, fn, dtype, state, element(variable(counter, length)), Position(variable(counter, length)))
        if length > first:
            self.add(Loop(counter, Literal(first, "i32"), length, 1, tuple(scope.statements)))
        return self.end(node, fn, dtype, state)

    def begin(self, node: int, fn: ReduceFunction, dtype: DType, element: Callable[[Index], Value]) -> tuple[Name, ...]:
        """Variables that carry the state of a reduction, at its start."""
        start = reductions.identity(fn, dtype)
        if start is None:
            start = element(ZERO)
            if fn in ("argmax", "argmin"):
                start = (*start, Literal(0, "i32"))
        types = reductions.state_types(fn, dtype)
        state = []
        for number, (value, type) in enumerate(zip(start, types, strict=True)):
            name = self.unique(f"{fn}_{node}" if number == 0 else f"{fn}_{node}_{number}")
            self.add(Variable(name, value))
            state.append(Name(name, type))
        return tuple(state)

    def take(
        self, node: int, fn: ReduceFunction, dtype: DType, state: tuple[Name, ...], value: Value, at: Expr
    ) -> None:
        """One more value."""
        other = (*value, at) if fn in ("argmax", "argmin") else value
        self.assign(node, state, reductions.combined(fn, dtype, state, other, self._namer(node)))

    def assign(self, node: int, state: Sequence[Name], values: Sequence[Expr]) -> None:
        """All at once: no new value may see another one."""
        if len(state) > 1:
            values = [self.named(f"next_{node}", value) for value in values]
        for name, value in zip(state, values, strict=True):
            self.add(Assign(name.name, value))

    def end(self, node: int, fn: ReduceFunction, dtype: DType, state: Value) -> Value:
        return tuple(self.named(f"result_{node}", each) for each in reductions.finished(fn, dtype, state))

    def _contract(self, node: int, op: Contract, inputs: tuple[int, ...], positions: Positions) -> Value:
        """A short inner product, by a loop of this invocation alone."""
        lengths = [self._shape(inputs[0])[axis] for axis in op.left]
        dtype = self.program.specs[node].dtype

        def element(number: Index) -> Value:
            one, other = self.factors(op, inputs, positions, unflat(number, lengths))
            return self.product(node, dtype, one, other)

        return self.accumulated(node, "any" if dtype == "bool" else "sum", dtype, product(tuple(lengths)), element)

    def factors(
        self, op: Contract, inputs: tuple[int, ...], positions: Positions, inner: Positions
    ) -> tuple[Value, Value]:
        """Both factors of one term of a contraction."""
        left, right = contract_positions(op, self._shape(inputs[0]), self._shape(inputs[1]), positions, inner)
        return self.value(inputs[0], left), self.value(inputs[1], right)

    def product(self, node: int, dtype: DType, one: Value, other: Value) -> Value:
        """The product of two factors, not rounded: sums of narrow types are kept in the wider one."""
        if KIND[dtype] == "complex":
            return complexes.binary("multiply", (one[0], one[1]), (other[0], other[1]), self._namer(node))
        fn = "bitwise_and" if dtype == "bool" else "multiply"
        return (Apply(fn, (one[0], other[0]), one[0].type),)


def contract_positions(
    op: Contract, left: Sequence[int], right: Sequence[int], positions: Positions, inner: Positions
) -> tuple[Positions, Positions]:
    """The positions of both factors, for a result at `positions` and the summed positions `inner`."""
    rows = free_axes(tuple(left), op.left, op.left_batch)
    columns = free_axes(tuple(right), op.right, op.right_batch)
    batch = len(op.left_batch)
    of_left = dict(zip(op.left_batch, positions[:batch], strict=True))
    of_left |= dict(zip(rows, positions[batch : batch + len(rows)], strict=True))
    of_left |= dict(zip(op.left, inner, strict=True))
    of_right = dict(zip(op.right_batch, positions[:batch], strict=True))
    of_right |= dict(zip(columns, positions[batch + len(rows) :], strict=True))
    of_right |= dict(zip(op.right, inner, strict=True))
    return tuple(of_left[axis] for axis in range(len(left))), tuple(of_right[axis] for axis in range(len(right)))


def is_outside(wanted: Expr, length: int) -> Expr:
    """Whether an index is not a position of an axis, judged in its own type."""
    type = wanted.type
    limit = {"i32": (1 << 31) - 1, "u32": (1 << 32) - 1, "i64": (1 << 63) - 1, "u64": (1 << 64) - 1}[type]
    above: Expr = Literal(False, "bool")
    if length <= limit:
        above = Apply("greater_equal", (wanted, Literal(length, type)), "bool")
    if type in ("u32", "u64"):
        return above
    return Apply("bitwise_or", (Apply("less", (wanted, Literal(0, type)), "bool"), above), "bool")


def _all_of(tests: Sequence[Expr]) -> Expr | None:
    """The conjunction of tests; `None` for none."""
    result: Expr | None = None
    for test in tests:
        result = test if result is None else Apply("bitwise_and", (result, test), "bool")
    return result


def cast(value: Value, source: DType, dtype: DType) -> Value:
    """Casts as `astype` does: a complex number becomes its real part."""
    if KIND[source] == "complex" and dtype == "bool":
        tests = [Apply("not_equal", (part, Literal(0, part.type)), "bool") for part in value]
        return (Apply("bitwise_or", (tests[0], tests[1]), "bool"),)
    parts = value[: components(dtype)]
    result = tuple(elementwise.cast(part, part_of(source), part_of(dtype)) for part in parts)
    if components(dtype) == 2 and len(result) == 1:
        return (*result, Literal(0, compute_type(dtype), given=True))
    return result


#: Buffers of inputs are called by the input's name, with this in front: the name alone is for its values.
INPUT = "input_"


def buffer_names(program: Program) -> list[str]:
    names = value_names(program)
    return [f"{INPUT}{name}" for name in names[: program.input_count]] + names[program.input_count :]


def single_value(op: Constant) -> bool | int | float | complex | None:
    """The value of a constant that is the same everywhere."""
    if op.dtype == "bfloat16" or not op.data:
        return None
    size = ITEMSIZE[op.dtype]
    item = op.data[:size]
    return number_from(item, op.dtype) if item * (len(op.data) // size) == op.data else None


def surely_not_negative(program: Program, position: int) -> bool:
    """Whether it is a constant, repeated or not, of 0 or more."""
    op, inputs = program.nodes[position]
    while isinstance(op, Broadcast | Reshape):
        op, inputs = program.nodes[inputs[0]]
    value = single_value(op) if isinstance(op, Constant) else None
    return value is not None and not isinstance(value, complex) and value >= 0


def is_general_power(program: Program, node: int) -> bool:
    """Whether a power is of complex numbers, and its exponent is not a whole number of the program.

    NumPy's own rules for infinities and NaN there are those of its C library, which no kernel follows.
    """
    base, exponent = program.nodes[node].inputs
    if KIND[program.specs[base].dtype] != "complex":
        return False
    op = program.nodes[exponent].op
    while isinstance(op, Broadcast | Reshape):
        exponent = program.nodes[exponent].inputs[0]
        op = program.nodes[exponent].op
    value = single_value(op) if isinstance(op, Constant) else None
    whole = complexes.WHOLE_LIMIT
    return value is None or value.imag != 0 or not float(value.real).is_integer() or abs(value.real) > whole


def literal_of(op: Constant, positions: Positions) -> Value:
    """A constant of one element as literals, one for each component. Raises `NotInKernel` for arrays."""
    if op.dtype == "bfloat16" and len(op.data) == 2:
        return (Literal(struct.unpack("=f", b"\0\0" + op.data)[0], "f32", given=True),)
    value = single_value(op)
    if value is None:
        raise NotInKernel(op)
    type = compute_type(op.dtype)
    if components(op.dtype) == 2:
        return tuple(Literal(float(each), type, given=True) for each in (value.real, value.imag))
    assert not isinstance(value, complex)
    return (Literal(value, type, given=True),)


def spec_of_parts(spec: Spec) -> tuple[DType, int]:
    """The real elements that a value is stored as: their type, and how many."""
    return part_of(spec.dtype), spec.size * components(spec.dtype)
