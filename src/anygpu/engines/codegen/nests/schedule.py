"""A program for a processor: rewritten for loops, and its values in nests and host steps over slots.

`rewritten` spells out what loops do better in another form, such as small matrix products and squares. `nests` plans,
gives memory to what is stored, and makes the steps; where that grows too large it tries again with a nest for each
value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from anygpu.engines.codegen.kernel import Output, identifier
from anygpu.engines.codegen.lower import NotInKernel, single_value
from anygpu.engines.codegen.nests.flat import flat_nest, scan_nest, tree_nests
from anygpu.engines.codegen.nests.layout import NestStorage, is_numpy_sum
from anygpu.engines.codegen.nests.lowering import SHORT
from anygpu.engines.codegen.nests.plan import NestGroup, NestPlan, planned
from anygpu.engines.codegen.nests.roots import is_given, is_host_step
from anygpu.engines.codegen.nests.rows import rows_nest
from anygpu.engines.codegen.nests.scatter import scatter_nests
from anygpu.engines.codegen.nests.steps import HostStep, NestProgram, Step, Written, host_cost
from anygpu.program.dtypes import KIND, is_floating
from anygpu.program.graph import Node, Program
from anygpu.program.ops.along_axis import search_by_gathers, sorts_before
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Cast,
    Constant,
    Contract,
    Gather,
    Input,
    Iota,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Search,
    Select,
    Slice,
    Sort,
    Spec,
    Unary,
    free_axes,
    product,
)
from anygpu.program.transforms import Writer

# -- rewriting nodes in terms of others that loops do better; nodes keep their numbers, and new ones come after them


#: Elements of a product that is a few sums over many rows, and no matter of BLAS.
_FEW = 64
_MANY = 1024
_SUMMED = ("float32", "float64", "int32", "int64", "uint32", "uint64")


def rewritten(program: Program) -> tuple[Program, Collection[int]]:
    """The program with searches, positions of extremes and small products as what loops do better.

    With it come the gathers whose positions are wrong where something is not sorted.
    """
    writer = _Writer(program)
    for node, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, Reduce) and op.fn in ("argmax", "argmin"):
            (axis,) = op.axes
            spec = program.specs[inputs[0]]
            if spec.shape[axis] > SHORT and KIND[spec.dtype] != "complex":
                writer.nodes[node] = writer.position_of_extreme(op, inputs[0])
        elif isinstance(op, Contract) and _is_few_sums(program, node):
            writer.nodes[node] = writer.few_sums(op, inputs)
        elif isinstance(op, Contract) and _is_with_vectors(program, node):
            writer.nodes[node] = writer.sums_of_rows(op, inputs)
        elif isinstance(op, Search) and not is_host_step(program, node):
            writer.nodes[node] = writer.search(op, *inputs)
        elif (
            isinstance(op, Binary) and op.fn in ("less", "less_equal") and (limit := _limit(program, node)) is not None
        ):
            writer.nodes[node] = writer.square_below(op, program.nodes[inputs[0]].inputs[0], limit)
    return writer.program(), writer.searches


def _is_few_sums(program: Program, node: int) -> bool:
    """Whether a product sums up many rows into few numbers, and a factor would have to be stored for BLAS alone."""
    op, inputs = program.nodes[node]
    if not isinstance(op, Contract) or op.left_batch or program.specs[node].dtype not in ("float32", "float64"):
        return False
    length = product(tuple(program.specs[inputs[0]].shape[axis] for axis in op.left))
    if program.specs[node].size > _FEW or length < _MANY:
        return False
    first = [
        not is_given(program, source) or axes == tuple(range(len(axes)))
        for source, axes in zip(inputs, (op.left, op.right), strict=True)
    ]
    computed = [program.nodes[source].op.is_elementwise for source in inputs]
    return all(first) and any(computed)


def _is_with_vectors(program: Program, node: int) -> bool:
    """Whether a product is of a matrix and a vector, or of pairs of vectors, along the last axis: sums of rows.

    NumPy does pairs one after the other; and these sums go on to be fused with what comes next.
    """
    op, inputs = program.nodes[node]
    if not isinstance(op, Contract) or program.specs[node].dtype not in _SUMMED:
        return False
    shapes = [program.specs[source].shape for source in inputs]
    free = [
        product(tuple(shape[axis] for axis in free_axes(shape, axes, batch)))
        for shape, axes, batch in zip(shapes, (op.left, op.right), (op.left_batch, op.right_batch), strict=True)
    ]
    last = [
        axes == tuple(range(len(shape) - len(axes), len(shape)))
        for shape, axes in zip(shapes, (op.left, op.right), strict=True)
    ]
    length = product(tuple(shapes[0][axis] for axis in op.left))
    return length > SHORT and free[1] == 1 and last[0] and (last[1] or not op.right_batch)


def _limit(program: Program, node: int) -> float | None:
    """The number that the magnitude of a complex number is tested against, where it may as well be its square."""
    _, (left, right) = program.nodes[node]
    magnitude, (bound, sources) = program.nodes[left].op, program.nodes[right]
    while isinstance(bound, Broadcast | Reshape):
        bound, sources = program.nodes[sources[0]]
    if not (isinstance(magnitude, Unary) and magnitude.fn == "abs" and isinstance(bound, Constant)):
        return None
    if magnitude.last_bits == "numpy":
        return None  # whose lowering does the same without losing a bit
    if program.specs[program.nodes[left].inputs[0]].dtype != "complex128":
        return None
    value = single_value(bound)
    return float(value) if isinstance(value, int | float) and 1e-100 < value < 1e100 else None


def last_square(limit: float, *, inclusive: bool) -> float:
    """The greatest number whose root, rounded, is not more than the limit, or less than it."""

    def below(square: float) -> bool:
        root = math.sqrt(square)
        return root <= limit if inclusive else root < limit

    square = limit * limit
    while not below(square):
        square = math.nextafter(square, 0.0)
    while below(math.nextafter(square, math.inf)):
        square = math.nextafter(square, math.inf)
    return square


class _Writer(Writer):
    """A program that is being changed: nodes are appended, and the old ones keep their positions."""

    def __init__(self, program: Program) -> None:
        """Begin with all nodes of a program."""
        self._old = program
        self.nodes = list(program.nodes)
        self.specs = list(program.specs)
        #: The gathers that read outside of a line which is not sorted.
        self.searches: set[int] = set()

    def program(self) -> Program:
        """The changed program, or the old one where nothing was added."""
        if len(self.nodes) == len(self._old.nodes):
            return self._old
        lines = (*self._old.lines, *(None for _ in self.nodes[len(self._old.nodes) :]))
        return Program.trusted(tuple(self.nodes), self._old.outputs, tuple(self.specs), lines)

    def add(self, op: Primitive, *inputs: int) -> int:
        """Append a node; returns its position."""
        self.nodes.append(Node(op, inputs))
        self.specs.append(op.infer(*(self.specs[each] for each in inputs)))
        return len(self.nodes) - 1

    def spec(self, position: int) -> Spec:
        return self.specs[position]

    def search(self, op: Search, line: int, values: int) -> Node:
        """A binary search whose steps are written out, as in the loops of what makes the values and uses the places.

        Where the line is not sorted, the first step reads outside of it, which is reported.
        """
        (length,), shape = self.specs[line].shape, self.specs[values].shape
        origin = None
        if length > 1 and not isinstance(self.nodes[line].op, Sort):
            one, next_one = (self.add(Slice((at,), (length - 1 + at,), (1,)), line) for at in (0, 1))
            falls = self.add(Reduce("any", (0,)), sorts_before(self, next_one, one))
            begin = self.add(Select(), falls, self.full((), "int32", -length), self.full((), "int32", 0))
            origin = self.add(Broadcast(shape), begin) if shape else begin
        elements: list[int] = []

        def element_at(position: int) -> int:
            elements.append(self.add(Gather(0), line, position))
            return elements[-1]

        found = search_by_gathers(op, self, length, values, element_at, origin)
        if origin is not None:
            self.searches.add(elements[0])
        return Node(Cast("int64"), (found,))

    def position_of_extreme(self, op: Reduce, x: int) -> Node:
        """The first position of the extreme: where a value equals it, or is NaN, as the extreme is then."""
        shape, dtype = self.specs[x]
        (axis,) = op.axes
        along = tuple(length if each == axis else 1 for each, length in enumerate(shape))
        across = tuple(1 if each == axis else length for each, length in enumerate(shape))
        extreme = self.add(Reduce("max" if op.fn == "argmax" else "min", op.axes), x)
        spread = self.add(Broadcast(shape), self.add(Reshape(across), extreme))
        found = self.add(Binary("equal"), x, spread)
        if is_floating(dtype):
            found = self.add(Binary("bitwise_or"), found, self.add(Unary("isnan"), x))
        counted = self.add(Reshape(along), self.add(Iota(shape[axis], "int32")))
        positions = self.add(Broadcast(shape), counted)
        beyond = self.full(shape, "int32", shape[axis])
        chosen = self.add(Select(), found, positions, beyond)
        return Node(Cast("int64"), (self.add(Reduce("min", op.axes), chosen),))

    def square_below(self, op: Binary, z: int, limit: float) -> Node:
        """A magnitude below a limit, without the root: worth 5 times where points are tested for escape."""
        shape = self.specs[z].shape
        parts = [self.add(Unary(fn), z) for fn in ("real", "imag")]
        squares = [self.add(Binary("multiply"), part, part) for part in parts]
        square = self.add(Binary("add"), *squares)
        bound = self.full(shape, "float64", last_square(limit, inclusive=op.fn == "less_equal"))
        return Node(Binary("less_equal"), (square, bound))

    def sums_of_rows(self, op: Contract, inputs: tuple[int, ...]) -> Node:
        """The sum along the last axes of products with a vector, which is the same for all rows of a batch."""
        x, y = inputs
        shape, other = self.specs[x].shape, self.specs[y].shape
        rows = free_axes(shape, op.left, op.left_batch)
        order = (*op.left_batch, *rows, *op.left)
        left = x if order == tuple(range(len(order))) else self.add(Permute(order), x)
        free = free_axes(other, op.right, op.right_batch)
        turned = (*op.right_batch, *free, *op.right)
        right = y if turned == tuple(range(len(turned))) else self.add(Permute(turned), y)
        batch = [shape[axis] for axis in op.left_batch]
        summed = [shape[axis] for axis in op.left]
        whole = tuple(shape[axis] for axis in order)
        spread = self.add(Reshape((*batch, *(1 for _ in rows), *summed)), right)
        products = self.add(Binary("multiply"), left, self.add(Broadcast(whole), spread))
        axes = tuple(range(len(batch) + len(rows), len(whole)))
        total = self.add(Reduce("sum", axes), products)
        ends = tuple(other[axis] for axis in free)
        return Node(Reshape((*batch, *(shape[axis] for axis in rows), *ends)), (total,))

    def few_sums(self, op: Contract, inputs: tuple[int, ...]) -> Node:
        """The sum, over the contracted axes in front, of the products of what is left."""
        factors = []
        for source, axes in zip(inputs, (op.left, op.right), strict=True):
            free = free_axes(self.specs[source].shape, axes)
            order = (*axes, *free)
            turned = source if order == tuple(range(len(order))) else self.add(Permute(order), source)
            factors.append((turned, [self.specs[source].shape[axis] for axis in free]))
        (one, rows), (other, columns) = factors
        summed = [self.specs[inputs[0]].shape[axis] for axis in op.left]
        shape = (*summed, *rows, *columns)
        left = self.add(Broadcast(shape), self.add(Reshape((*summed, *rows, *(1 for _ in columns))), one))
        right = self.add(Broadcast(shape), self.add(Reshape((*summed, *(1 for _ in rows), *columns)), other))
        products = self.add(Binary("multiply"), left, right)
        return Node(Reduce("sum", tuple(range(len(summed)))), (products,))


# -- scheduling


def nests(program: Program, *, vector_bytes: int = 64) -> NestProgram:
    """The steps of a program, for registers of so many bytes. Raises `TooLarge` where they would be too long."""
    written = Written(len(program.nodes))
    try:
        return _scheduled(program, vector_bytes, written, apart=False)
    except (NotInKernel, RecursionError):
        # A value turned out not to be where its reader wanted it: then all of them go through memory.
        return _scheduled(program, vector_bytes, written, apart=True)


def _scheduled(program: Program, vector_bytes: int, written: Written, *, apart: bool) -> NestProgram:
    """The nests and host steps of a program, with their memory.

    Views that are results are made from the value behind them. With `apart` every value has a nest of its own, which is
    the way out where sharing grows too large.
    """
    program, searches = rewritten(program)
    program, results = _with_results(program)
    bases = [_base(program, result) for result in results]
    plan = planned(program, tuple(dict.fromkeys(bases)), written, apart=apart)
    storage = NestStorage(program, written, plan.ranks, searches)
    for node in sorted(plan.in_memory()):
        storage.declare(node, "output" if node in bases else "temporary")
    steps = [made for step in plan.steps for made in _steps(storage, plan, step, vector_bytes)]
    outputs = tuple(
        Output(storage.slot_of[base], program.specs[result]) for base, result in zip(bases, results, strict=True)
    )
    return NestProgram(
        slots=tuple(storage.slots),
        steps=tuple(steps),
        outputs=outputs,
        status=storage.status,
        checks=tuple(storage.checks),
    )


def _steps(storage: NestStorage, plan: NestPlan, step: NestGroup | int, vector_bytes: int) -> Sequence[Step]:
    """The steps of one group or host step.

    There are none for values without elements, and two nests where totals of parts are combined.
    """
    program = storage.program
    if isinstance(step, int):
        if program.specs[step].size == 0:
            return []
        sources = tuple(storage.slot_of[source] for source in program.nodes[step].inputs)
        return [HostStep(node=step, sources=sources, slot=storage.slot_of[step], cost=host_cost(program, step))]
    last = step.members[-1].root.node
    name = f"{identifier(program.nodes[last].op.name)}_{last}"
    root = step.members[-1].root
    if step.rows == 0 and root.kind == "all" and is_numpy_sum(program, root):
        return tree_nests(storage, root, name, vector_bytes)
    if step.rows == 0 and root.kind == "scan":
        return [scan_nest(storage, root, name, vector_bytes)]
    if root.kind == "scatter":
        return scatter_nests(storage, root, name, vector_bytes)
    if step.rows:
        return rows_nest(storage, step, name, vector_bytes, plan.needed(step))
    return flat_nest(storage, step, name, vector_bytes)


def _with_results(program: Program) -> tuple[Program, list[int]]:
    """A result that is an input or a constant is copied; nothing else is: nodes keep their numbers."""
    nodes, specs, results = list(program.nodes), list(program.specs), []
    for output in program.outputs:
        base = _base(program, output)
        if isinstance(program.nodes[base].op, Input | Constant):
            nodes.append(Node(Reshape(program.specs[output].shape), (output,)))
            specs.append(program.specs[output])
            results.append(len(nodes) - 1)
        else:
            results.append(output)
    lines = (*program.lines, *(None for _ in nodes[len(program.nodes) :]))
    return Program.trusted(tuple(nodes), tuple(results), tuple(specs), lines), results


def _base(program: Program, node: int) -> int:
    """The value that a result is another shape of."""
    while isinstance(program.nodes[node].op, Reshape):
        source = program.nodes[node].inputs[0]
        if isinstance(program.nodes[source].op, Input | Constant):
            return node
        node = source
    return node
