"""Chooses the values of a program that are stored: everything else is computed inside of the kernels that use it.

`chosen` decides it, in this order: results, what only kernels of their own can do and long sums; then values that would
be computed again and again, reads that would tangle a kernel, and kernels that would grow too large. The other
functions are the questions that this and grouping ask of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd

from anygpu.engines.codegen.custom.lowering import stored_under
from anygpu.engines.codegen.lower import single_value
from anygpu.engines.codegen.target import Target, components, is_narrow
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.ops.custom import Custom
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import (
    Concatenate,
    Constant,
    Contract,
    Gather,
    Input,
    Iota,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scatter,
    Search,
    Unary,
    free_axes,
    product,
)

#: Relative costs of one element: arithmetic is 1.
_MEMORY = 3.0
_FUNCTION = 20.0
_CHEAP = ("add", "subtract", "multiply", "negative", "abs", "minimum", "maximum", "copysign", "real", "imag", "conj")
_MIDDLING = ("divide", "sqrt", "reciprocal", "floor", "ceil", "trunc", "rint", "remainder", "floor_divide", "sign")

#: What is saved by storing is more than this part of what its readers do anyway.
_LITTLE = 0.1

#: Columns from which a vector times a matrix is done in blocks of columns.
_WIDE_MATRIX = 256
_NEAR_BYTES = 4 << 20

#: The most that unpacking a number of a few bits may cost, again for every tile that reads it.
_UNPACKING = 40.0

#: Rows, or columns, for which a tile of a matrix product asks only once.
_SHARED = 32

#: Loops that one invocation does on the way to another value are no longer than this.
SHORT_LOOP = 32
#: Kernels of more nodes take too long to compile.
MOST_NODES = 160
#: Each reshaping of what was moved about before doubles the length of positions, or worse.
MOST_TANGLES = 3


def chosen(program: Program, target: Target, parts_of: Callable[[int], int]) -> list[int]:
    """The nodes to store, in order. Inputs, and constants that a kernel spells as a number, are none of them.

    `parts_of` tells into how many parts the rows of a reduction would be cut.
    """
    return _Choice(program, target, parts_of).roots()


class _Choice:
    """Chooses the values of a program that are stored in memory."""

    def __init__(self, program: Program, target: Target, parts_of: Callable[[int], int]) -> None:
        """Note the uses of each node, and which nodes results depend on. `parts_of` tells how rows are cut."""
        self.program = program
        self.parts_of = parts_of
        self.target = target
        self.uses: list[list[int]] = [[] for _ in program.nodes]
        for position, node in enumerate(program.nodes):
            for source in node.inputs:
                self.uses[source].append(position)
        self.live = _live(program)
        self.stored: set[int] = set()

    def roots(self) -> list[int]:
        """The nodes to store, in order.

        These are results, heavy operations and long sums with what they need whole, and what would otherwise be
        computed too often, in tangled ways, or in kernels that grow too large. Values without elements are left out.
        """
        nodes = self.program.nodes
        for position, (op, inputs) in enumerate(nodes):
            if not self.live[position]:
                continue
            if is_heavy(self.program, position) or (
                isinstance(op, Reduce | Contract) and not is_short(self.program, position)
            ):
                self.stored.add(position)
            if isinstance(op, Search):
                self._store(inputs[0])
            if isinstance(op, Custom):
                for source in inputs:
                    self._store(stored_under(self.program, source))
            if isinstance(op, Concatenate) and len(inputs) > 2:
                self.stored.add(position)
        for output in self.program.outputs:
            self._store(output)
        self._store_what_is_repeated()
        self._store_what_is_tangled()
        self._store_where_kernels_grow_too_large()
        return sorted(each for each in self.stored if self.program.specs[each].size)

    def _store(self, position: int) -> None:
        if not isinstance(self.program.nodes[position].op, Input):
            self.stored.add(position)

    def _store_what_is_repeated(self) -> None:
        """A value that several kernels need, or one kernel at several positions, is stored when that is cheaper."""
        specs = self.program.specs
        costs, loops = self._costs(), self._loops()
        evaluations: list[dict[int, float]] = [{} for _ in specs]
        for position in range(len(specs) - 1, self.program.input_count - 1, -1):
            if not self.live[position]:
                continue
            for use in self.uses[position]:
                if not self.live[use]:
                    continue
                op = self.program.nodes[use].op
                shifting = op.is_shifting
                if use in self.stored:
                    seen = {use: self._asked_by(use, position, loops=loops[position])}
                else:
                    seen = evaluations[use]
                if isinstance(op, Gather) and position == self.program.nodes[use].inputs[1]:
                    seen = {root: times / self._sharing(use) for root, times in seen.items()}
                if isinstance(op, Reduce | Contract) and use not in self.stored:
                    seen = {root: times * inner_length(self.program, use) for root, times in seen.items()}
                for root, times in seen.items():
                    before = evaluations[position].get(root, 0.0)
                    evaluations[position][root] = before + times if shifting else max(before, times)
            # A node that only repeats elements is never stored: it would be larger than its operand.
            if position in self.stored or _is_repeating(self.program.nodes[position].op):
                continue
            if self._stays_in_its_row(position, evaluations[position]):
                continue
            if costs[position] <= _UNPACKING and self._is_unpacked_for_products(position, evaluations[position]):
                continue
            total, size = sum(evaluations[position].values()), specs[position].size
            saved = (total - size) * costs[position]
            work = _MEMORY * sum(specs[root].size for root in evaluations[position])
            if saved > max(_MEMORY * (size + total), _LITTLE * work) and costs[position] > 2:
                self.stored.add(position)

    def _sharing(self, gather: int) -> int:
        """How many neighbours that one invocation moves are at the same index: those along the axes behind it."""
        op, inputs = self.program.nodes[gather]
        if not isinstance(op, Gather):
            return 1
        shape = self.program.specs[inputs[0]].shape
        return gcd(product(shape[op.axis + 1 :]), 4)

    def _stays_in_its_row(self, position: int, roots: Mapping[int, float]) -> bool:
        """Whether those who need it are reductions of its rows and what is made of them: they will be one kernel."""
        size = self.program.specs[position].size
        reductions = [root for root in roots if isinstance(self.program.nodes[root].op, Reduce)]
        others = [root for root in roots if root not in reductions]
        if not reductions or any(self.parts_of(root) > 1 for root in reductions):
            return False
        return all(times == size for times in roots.values()) and all(
            self._depends_on(other, reductions[-1]) or self._depends_on(other, reductions[0]) for other in others
        )

    def _is_unpacked_for_products(self, position: int, roots: Mapping[int, float]) -> bool:
        """Whether it is what a few bits stand for, as the weights of a model: products read these, and never a copy."""
        if not all(isinstance(self.program.nodes[root].op, Contract) for root in roots):
            return False
        return is_unpacked(self.program, position)

    def _depends_on(self, node: int, other: int) -> bool:
        """Whether a node needs another one, directly or through others."""
        waiting, seen = [node], set[int]()
        while waiting:
            current = waiting.pop()
            if current == other:
                return True
            for source in self.program.nodes[current].inputs:
                if source >= other and source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return False

    def _asked_by(self, use: int, position: int, *, loops: bool) -> float:
        """The number of elements that a stored node reads of an input.

        The tiles of a matrix product share what they have asked for. A value that takes a loop to make is counted as if
        they did not: which tiles it will be is not known yet, and a loop inside of theirs slows all of them.
        """
        op, inputs = self.program.nodes[use]
        size = self.program.specs[position].size
        if isinstance(op, Contract):
            left, right = (self.program.specs[each].shape for each in inputs)
            rows, columns = matrix_sizes(op, left, right)
            times = max(columns if position == inputs[0] else 0, rows if position == inputs[1] else 0)
            shared = 1 if loops or is_row_reduction(self.program, use, self.target) else _SHARED
            return size * max(1.0, times / shared)
        if isinstance(op, Attend) and position in inputs[1:3]:
            # Every group of queries asks for all keys and values.
            return size * max(1.0, self.program.specs[use].shape[-2] / _SHARED)
        if not (op.has_own_kernels or isinstance(op, Reduce)):
            return self.program.specs[use].size
        return size

    def _loops(self) -> list[bool]:
        """For each node, whether computing one element of it takes a loop: a sum that is not stored."""
        loops: list[bool] = []
        for position, (op, inputs) in enumerate(self.program.nodes):
            below = any(loops[source] for source in inputs if source not in self.stored)
            loops.append(below or (isinstance(op, Reduce | Contract) and inner_length(self.program, position) > 1))
        return loops

    def _costs(self) -> list[float]:
        """The cost of one element of each node, with everything below it that is not stored."""
        costs: list[float] = []
        for position, (op, inputs) in enumerate(self.program.nodes):
            inner = sum(0.0 if source in self.stored else costs[source] for source in inputs)
            if isinstance(op, Reduce | Contract):
                inner *= inner_length(self.program, position)
            own = own_cost(op) * components(self.program.specs[position].dtype) ** 2
            costs.append(min(own + inner, 1e9))
        return costs

    def _store_what_is_tangled(self) -> None:
        """Stores values between repeated permutes and reshapes, whose indices would grow without end."""
        tangles: list[int] = []
        moved: list[bool] = []
        for position, (op, inputs) in enumerate(self.program.nodes):
            below = [source for source in inputs if source not in self.stored]
            count = max((tangles[source] for source in below), default=0)
            was_moved = any(moved[source] for source in below)
            if isinstance(op, Reshape) and was_moved:
                count, was_moved = count + 1, False
            if count > MOST_TANGLES and self.live[position]:
                self._store(position)
            tangles.append(count)
            moved.append(was_moved or op.is_shifting)

    def _store_where_kernels_grow_too_large(self) -> None:
        """Limits the buffers and the length of a kernel."""
        most = self.target.bindings - 3
        leaves: list[frozenset[int]] = []
        sizes: list[int] = []
        for position, (op, inputs) in enumerate(self.program.nodes):
            given = isinstance(op, Input) or (isinstance(op, Constant) and single_value(op) is None)
            if given or self._comes_in_pieces(position):
                leaves.append(frozenset((position,)))
                sizes.append(0)
                continue
            below = list(dict.fromkeys(inputs))

            def seen(source: int) -> frozenset[int]:
                return frozenset((source,)) if source in self.stored else leaves[source]

            while True:
                together = frozenset().union(*(seen(source) for source in below)) if below else frozenset()
                count = 1 + sum(sizes[source] for source in below if source not in self.stored)
                open_ones = [source for source in below if source not in self.stored and sizes[source] > 0]
                if (len(together) <= most and count <= MOST_NODES) or not open_ones:
                    break
                self.stored.add(max(open_ones, key=lambda source: (len(leaves[source]), sizes[source])))
            leaves.append(together)
            sizes.append(0 if position in self.stored else count)

    def _comes_in_pieces(self, position: int) -> bool:
        """A stored concatenation has a kernel for each of its parts, unless they share words."""
        if position not in self.stored or not isinstance(self.program.nodes[position].op, Concatenate):
            return False
        shares_words = is_narrow(self.program.specs[position].dtype, self.target)
        return not shares_words or position not in self.program.outputs


def is_heavy(program: Program, position: int) -> bool:
    """Whether a node has kernels of its own. A scatter of nothing is what it is put into."""
    op, inputs = program.nodes[position]
    return op.has_own_kernels and not (isinstance(op, Scatter) and program.specs[inputs[1]].size == 0)


def is_short(program: Program, position: int) -> bool:
    """Whether a reduction or an inner product is done by one invocation on the way to something else."""
    op, inputs = program.nodes[position]
    length = inner_length(program, position)
    if length == 0:
        return True
    if isinstance(op, Reduce):
        return length <= 4
    if isinstance(op, Contract):
        rows, columns = matrix_sizes(op, program.specs[inputs[0]].shape, program.specs[inputs[1]].shape)
        return length <= SHORT_LOOP and min(rows, columns) <= 4 and length * min(rows, columns) <= 2 * SHORT_LOOP
    return False


def is_row_reduction(program: Program, root: int, target: Target | None = None) -> bool:
    """Return whether an operation is a reduction, or a product of a matrix and a vector: one sum for each result.

    On a processor, which is a target with narrow subgroups, a vector times a wide matrix is better done as products of
    matrices are: down many columns at once.
    """
    op, inputs = program.nodes[root]
    if not isinstance(op, Reduce | Contract) or is_short(program, root):
        return False
    if isinstance(op, Reduce):
        return True
    if KIND[program.specs[root].dtype] in ("bool", "complex"):
        return True
    rows, columns = matrix_sizes(op, program.specs[inputs[0]].shape, program.specs[inputs[1]].shape)
    near = target is not None and 0 < target.subgroup_size <= 8
    if near and rows <= 2 and columns >= _WIDE_MATRIX and _has_rows_of_columns(program, op, inputs[1]):
        # Down all of a large matrix, every row would be on another page of memory.
        return not (is_unpacked(program, inputs[1]) or bytes_below(program, inputs[1]) <= _NEAR_BYTES)
    return min(rows, columns) <= 2


def is_unpacked(program: Program, node: int) -> bool:
    """Whether a value is made of clearly fewer bytes than it has."""
    return 4 * bytes_below(program, node) <= 3 * program.specs[node].nbytes


def bytes_below(program: Program, node: int) -> int:
    """The bytes that are read to compute a value from what is stored."""
    total, waiting, seen = 0, [node], set[int]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        op, inputs = program.nodes[current]
        if not inputs or (op.has_own_kernels or isinstance(op, Reduce | Contract)):
            total += 0 if isinstance(op, Iota) else program.specs[current].nbytes
        else:
            waiting.extend(inputs)
    return total


def _has_rows_of_columns(program: Program, op: Contract, right: int) -> bool:
    """Whether neighbours in the second factor belong to different columns of the product, as far as shapes tell."""
    axes = op.right
    while isinstance(moved := program.nodes[right].op, Permute):
        right = program.nodes[right].inputs[0]
        axes = tuple(moved.axes[axis] for axis in axes)
    shape = program.specs[right].shape
    return next((axis for axis in range(len(shape) - 1, -1, -1) if shape[axis] > 1), -1) not in axes


def matrix_sizes(op: Contract, left: Sequence[int], right: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the product, without the batch."""
    rows = free_axes(tuple(left), op.left, op.left_batch)
    columns = free_axes(tuple(right), op.right, op.right_batch)
    return product(tuple(left[axis] for axis in rows)), product(tuple(right[axis] for axis in columns))


def inner_length(program: Program, position: int) -> int:
    """How many elements a reduction or contraction adds for each of its results."""
    op, inputs = program.nodes[position]
    shape = program.specs[inputs[0]].shape
    return product(tuple(shape[axis] for axis in summed_axes(op)))


def summed_axes(op: Primitive) -> tuple[int, ...]:
    """The axes of the first operand along which elements are added."""
    return op.axes if isinstance(op, Reduce) else op.left if isinstance(op, Contract) else ()


def own_cost(op: Primitive) -> float:
    """What an operation costs for one element, in simple operations; views and constants cost nothing."""
    if op.is_view or isinstance(op, Constant | Iota):
        return 0.0
    if op.is_elementwise:
        fn = getattr(op, "fn", "add")
        return 1.0 if fn in _CHEAP else 4.0 if fn in _MIDDLING else _FUNCTION if isinstance(op, Unary) else 4.0
    if isinstance(op, Search):
        return 4 * _FUNCTION
    return _MEMORY


def _is_repeating(op: Primitive) -> bool:
    """Whether it is cheaper to do again than to read."""
    return op.is_repeating or isinstance(op, Constant | Iota)


def _live(program: Program) -> list[bool]:
    """For each node whether a result depends on it."""
    live = [False] * len(program.nodes)
    for output in program.outputs:
        live[output] = True
    for position in range(len(program.nodes) - 1, -1, -1):
        if live[position]:
            for source in program.nodes[position].inputs:
                live[source] = True
    return live
