"""Programs with the same meaning: smaller ones, and in another precision.

`simplified` is what engines call: constants folded, identities and dead code removed. Precisions follow. `vmap`, at the
end, gives a program a new leading axis, by the rule of each primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from anygpu.errors import InvalidOption
from anygpu.program import primitives as p
from anygpu.program.dtypes import NARROWER, DType, bytes_of
from anygpu.program.functions import BinaryFunction, UnaryFunction
from anygpu.program.graph import Line, Node, Program, Recorder
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.ops.elementwise import Cast
from anygpu.program.ops.movement import Broadcast
from anygpu.program.ops.source import Constant, Input, Iota, converted
from anygpu.program.primitive import Made, Primitive, Shape, Spec

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
    """Values that depend on constants only are computed now, where the result has no more than `limit` bytes.

    The caller's `evaluate` decides how it is rounded: with NumPy's, a folded `sin` is NumPy's on every engine.
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
        found = op.simpler(sources, recorder, made)
        while isinstance(found, tuple):
            op, sources = found
            found = op.simpler(sources, recorder, made)
        if found is None:
            found = recorder.add(op, *sources, line=program.lines[position])
            made[found] = (op, tuple(sources))
        moved.append(found)
    return recorder.program([moved[output] for output in program.outputs])


def _copy(recorder: Recorder, program: Program, position: int, sources: Sequence[int]) -> int:
    """Record a node again with other sources, keeping its spec and the user's line; returns the new position."""
    op, spec = program.nodes[position].op, program.specs[position]
    if isinstance(op, Input):
        return recorder.input(spec)
    return recorder.add(op, *sources, spec=spec, line=program.lines[position])


# -- a program in another precision
#
# In single precision on request alone, in double precision to judge results by.


def in_single_precision(program: Program) -> Program:
    """The same program on 32-bit numbers, from its inputs to its results.

    Positions that a primitive itself gives in int64 (as `argmax` does) are narrowed right behind it.
    """
    if any(isinstance(op, Custom) and any(each.dtype in NARROWER for each in op.parameters) for op, _ in program.nodes):
        program = with_references(program, None)
    nodes: list[Node] = []
    numbers: list[int] = []
    lines = []
    for position, (op, inputs) in enumerate(program.nodes):
        numbers.append(len(nodes))
        nodes.append(Node(op.in_single_precision(), tuple(numbers[source] for source in inputs)))
        lines.append(program.lines[position])
        given = program.specs[position].dtype
        if given in NARROWER and op.gives_positions:
            numbers[-1] = len(nodes)
            nodes.append(Node(Cast(NARROWER[given]), (len(nodes) - 1,)))
            lines.append(program.lines[position])
    return Program(nodes, [numbers[output] for output in program.outputs], lines=lines)


#: What narrow floats become in double precision.
WIDER: dict[DType, DType] = {
    "float16": "float64",
    "float32": "float64",
    "complex64": "complex128",
}


def in_double_precision(program: Program) -> Program | None:
    """The same program with all its floats in 64 bits; `None` for one with a kernel of the user's own.

    What it gives is nearer to the exact result than what floats of 32 bits give, by many digits.
    """
    if any(isinstance(op, Custom) for op, _ in program.nodes):
        return None
    nodes = [Node(_in_double_precision(op), inputs) for op, inputs in program.nodes]
    return Program(nodes, list(program.outputs), lines=list(program.lines))


def _in_double_precision(op: Primitive) -> Primitive:
    """The same primitive in the wider type, where its type is an attribute: inputs, constants, counts and casts."""
    wide = WIDER.get(getattr(op, "dtype", "bool"))
    if wide is None:
        return op
    if isinstance(op, Input):
        return Input(op.shape, wide)
    if isinstance(op, Constant):
        return Constant(op.shape, wide, converted(op.data, op.dtype, wide))
    if isinstance(op, Iota):
        return Iota(op.length, wide)
    return Cast(wide) if isinstance(op, Cast) else op


# -- many calls of one program as one: the program with a new leading axis, for its inputs and its results
#
# Each primitive has one rule, `Primitive.batched`. A rule sees which inputs carry the new axis, always in front, and
# gives a result that has it in front; what does not depend on the new axis stays as it is until something needs it.


def vmap(program: Program, batched: Sequence[bool], size: int) -> Program:
    """The program for `size` calls at once.

    Inputs marked True have a new leading axis of length `size`, the others are the same for all calls. Every result
    has the new axis, also one that is the same for all.
    """
    if len(batched) != program.input_count:
        raise InvalidOption(f"vmap: {len(batched)} marks for a program of {program.input_count} inputs.")
    if size < 0:
        raise InvalidOption(f"vmap: {size} is not a number of calls.")
    # What a user's kernel does with one more axis is known only of its reference.
    program = with_references(program, None)
    stack = Stack(size)
    values: list[Batched] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, p.Input):
            shape = (size, *op.shape) if batched[position] else op.shape
            values.append(Batched(stack.recorder.input(Spec(shape, op.dtype)), bool(batched[position])))
            continue
        stack.line = program.lines[position]
        given = [values[each] for each in inputs]
        if any(each.stacked for each in given):
            values.append(Batched(op.batched(stack, *given), True))
        else:
            values.append(Batched(stack.add(op, *(each.position for each in given)), False))
    return stack.recorder.program([stack.lifted(values[output]) for output in program.outputs])


class Batched(NamedTuple):
    """A value of the new program."""

    position: int
    #: Whether it has the new axis.
    stacked: bool


class Writer:
    """Adds nodes to a program, with what rules need again and again."""

    def add(self, op: Primitive, *inputs: int) -> int:
        """Add a node; its position."""
        raise NotImplementedError

    def spec(self, position: int) -> Spec:
        """The spec of a node that was added."""
        raise NotImplementedError

    def unary(self, fn: UnaryFunction, x: int) -> int:
        return self.add(p.Unary(fn), x)

    def binary(self, fn: BinaryFunction, x: int, y: int) -> int:
        return self.add(p.Binary(fn), x, y)

    def full(self, shape: Shape, dtype: DType, number: float) -> int:
        """One real number, repeated to a shape."""
        constant = self.add(p.Constant((), dtype, bytes_of(number, dtype)))
        return self.add(p.Broadcast(shape), constant) if shape else constant


class Stack(Writer):
    """Records the program of all calls together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.recorder = Recorder()
        self.line: Line | None = None

    def add(self, op: Primitive, *inputs: int) -> int:
        return self.recorder.add(op, *inputs, line=self.line)

    def spec(self, position: int) -> Spec:
        return self.recorder.spec(position)

    def same_for_all(self, op: Primitive) -> Batched:
        """A value without inputs, which no call changes."""
        return Batched(self.add(op), False)

    def shape(self, value: Batched) -> Shape:
        """The shape without the new axis."""
        shape = self.recorder.spec(value.position).shape
        return shape[1:] if value.stacked else shape

    def dtype(self, value: Batched) -> DType:
        return self.recorder.spec(value.position).dtype

    def lifted(self, value: Batched) -> int:
        """With the new axis, repeated along it if need be."""
        if value.stacked:
            return value.position
        return self.add(p.Broadcast((self.size, *self.shape(value))), value.position)

    def to_front(self, position: int, axis: int) -> int:
        """The value with one axis moved to the front, where the new axis of a batch always is."""
        if axis == 0:
            return position
        others = [each for each in range(len(self.recorder.spec(position).shape)) if each != axis]
        return self.add(p.Permute((axis, *others)), position)
