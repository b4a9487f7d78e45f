"""Matrix products: contractions as the matmul template sees them, with what comes before and after fused in.

`product_of` sees a contraction as batch, m, n and k. The accessors load both operands at these positions and store
totals with whatever follows elementwise; `tilings_of` lists the sizes that tuning may choose from, and
`product_kernels` makes the kernel, and a second one where k is cut into parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from anygpu.base.lazy import cached_property
from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter, WGSLVectors
from anygpu.engines.codegen.elementwise import narrowed
from anygpu.engines.codegen.grouping import Group, from_order
from anygpu.engines.codegen.index import Index, flat, unflat, variable
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import (
    KernelBuilder,
    Put,
    TemplateKernel,
    VectorAccessor,
    leave_beyond,
    load_function,
    printer,
    store,
    store_function,
)
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Buffer,
    Function,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
    Variable,
)
from anygpu.engines.codegen.lower import Lowering, Value, contract_positions
from anygpu.engines.codegen.target import STORED, compute_type
from anygpu.engines.codegen.templates import matmul
from anygpu.engines.codegen.templates.matmul import Sizes, Tiling, Vectors
from anygpu.program.dtypes import ITEMSIZE
from anygpu.program.primitives import Contract, free_axes, product


class Product(NamedTuple):
    """A contraction as out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]."""

    node: int
    op: Contract
    inputs: tuple[int, int]
    sizes: Sizes
    #: The lengths of the axes behind each of the four.
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    inner: tuple[int, ...]


def product_of(builder: KernelBuilder, node: int) -> Product:
    """A contraction as a stack of matrix products, with the axes that make up each of its four sizes."""
    program = builder.program
    op, inputs = program.nodes[node]
    if not isinstance(op, Contract):
        raise TypeError(f"{op} is not a contraction")
    left, right = program.specs[inputs[0]].shape, program.specs[inputs[1]].shape
    batch = tuple(left[axis] for axis in op.left_batch)
    rows = tuple(left[axis] for axis in free_axes(left, op.left, op.left_batch))
    columns = tuple(right[axis] for axis in free_axes(right, op.right, op.right_batch))
    inner = tuple(left[axis] for axis in op.left)
    sizes = Sizes(product(batch), product(rows), product(columns), product(inner))
    return Product(node, op, (inputs[0], inputs[1]), sizes, batch, rows, columns, inner)


def tilings_of(builder: KernelBuilder, group: Group) -> list[Tiling]:
    """Candidates, the best guess first."""
    found = product_of(builder, group.members[0])
    type = compute_type(builder.program.specs[found.node].dtype)
    return matmul.tilings(builder.target, found.sizes, type, subgroup_size=builder.target.subgroup_size)


def product_kernels(
    builder: KernelBuilder, group: Group, tiling: Tiling, name: str, new_slot: Callable[[int], int]
) -> list[Kernel]:
    """The kernels of a matrix product and of what follows it elementwise.

    A product that is cut along k has a second kernel, which adds its parts.
    """
    found = product_of(builder, group.members[0])
    accessors = _Accessors(builder, group, found)
    type = compute_type(builder.program.specs[found.node].dtype)
    parts = matmul.parts(tiling, found.sizes)
    partial: Buffer | None = None
    if parts > 1:
        size = parts * builder.program.specs[found.node].size
        dtype = STORED[type]
        partial = Buffer(f"parts_{found.node}", new_slot(size * ITEMSIZE[dtype]), dtype, size)
        builder.buffers[partial.name] = partial
    kernels = [_product_kernel(builder, accessors, tiling, name, partial)]
    if partial is not None:
        kernels.append(_sum_of_parts(builder, group, found, parts, partial, f"{name}_sum"))
    return kernels


def put_total(builder: KernelBuilder, group: Group, lowering: Lowering, place: Index, total: Value) -> None:
    """An element of a product in its own type, and all that is made of it."""
    specs = builder.program.specs
    for member in group.members:
        shape = specs[member].shape
        positions = from_order(group, member, place, shape)
        if member == group.members[0]:
            value: Value = (lowering.named("result", narrowed(total[0], specs[member].dtype)),)
        else:
            value = lowering.value(member, positions)
        own_place = flat(positions, shape) if member in group.orders else place
        lowering.given[member] = (own_place, value)
        if member in builder.needed:
            store(lowering, builder, member, own_place, value)


class _Accessors:
    """The functions through which the template reads and writes."""

    def __init__(self, builder: KernelBuilder, group: Group, found: Product) -> None:
        """The positions at which operands and result of a product are reached: batch, m, n and k."""
        self.builder = builder
        self.group = group
        self.found = found
        sizes = found.sizes
        self.of_a = {"batch": sizes.batch, "m": sizes.m, "k": sizes.k}
        self.of_b = {"batch": sizes.batch, "k": sizes.k, "n": sizes.n}
        self.of_out = {"batch": sizes.batch, "m": sizes.m, "n": sizes.n}
        #: Buffers that vector accessors read or write.
        self.in_vectors: set[str] = set()

    def a(self, lowering: Lowering, at: Mapping[str, Index]) -> Value:
        """The left operand at a batch, a row m and a depth k."""
        found = self.found
        rows = unflat(at["m"], found.rows)
        positions = (*unflat(at["batch"], found.batch), *rows, *(Index(0) for _ in found.columns))
        left, _ = self._factors(positions, unflat(at["k"], found.inner))
        return lowering.value(found.inputs[0], left)

    def b(self, lowering: Lowering, at: Mapping[str, Index]) -> Value:
        """The right operand at a batch, a depth k and a column n."""
        found = self.found
        columns = unflat(at["n"], found.columns)
        positions = (*unflat(at["batch"], found.batch), *(Index(0) for _ in found.rows), *columns)
        _, right = self._factors(positions, unflat(at["k"], found.inner))
        return lowering.value(found.inputs[1], right)

    def _factors(
        self, positions: tuple[Index, ...], inner: tuple[Index, ...]
    ) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
        """The positions of both operands for a position of the result and one along the contracted axes."""
        specs, found = self.builder.program.specs, self.found
        return contract_positions(
            found.op, specs[found.inputs[0]].shape, specs[found.inputs[1]].shape, positions, inner
        )

    def out(self, lowering: Lowering, at: Mapping[str, Index], total: Value) -> None:
        """The total in its own type, and all that is made of it."""
        found = self.found
        positions = (
            *unflat(at["batch"], found.batch), *unflat(at["m"], found.rows), *unflat(at["n"], found.columns),
        )  # fmt: skip
        place = flat(positions, self.builder.program.specs[found.node].shape)
        put_total(self.builder, self.group, lowering, place, total)

    @cached_property
    def vectors(self) -> Vectors:
        """The vector accessors that can be made, tried with the narrowest vectors."""
        text = printer(self.builder.target)
        text.use(list(self.builder.buffers.values()), cuttable=False)
        if isinstance(text, WGSLPrinter):
            text.declare_in_vectors(None)
        width = WGSLVectors.width if isinstance(text, WGSLPrinter) else 2
        return Vectors(
            a_k=self._vector_load(text, "load_a_vector", "k", width) is not None,
            a_m=self._vector_load(text, "load_a_vector_m", "m", width) is not None,
            b_n=self._vector_load(text, "load_b_vector", "n", width) is not None,
            b_k=self._vector_load(text, "load_b_vector_k", "k", width) is not None,
            out_n=self._vector_store(text, width, None) is not None,
        )

    def scalar_functions(self, partial: Buffer | None) -> list[Function]:
        """Functions that load single elements of the operands and store single totals, or parts of them."""
        without = self.group.members
        type = compute_type(self.builder.program.specs[self.found.node].dtype)
        functions = [
            load_function(self.builder, "load_a", self.of_a, 0, self.a, without=without),
            load_function(self.builder, "load_b", self.of_b, 0, self.b, without=without),
        ]
        if partial is None:
            functions.append(
                store_function(
                    self.builder, "store_out", self.of_out, [type], self.out, without=without, value_name="total"
                )
            )
        else:
            lengths = {"part": partial.size // self.builder.program.specs[self.found.node].size, **self.of_out}
            functions.append(
                store_function(self.builder, "store_part", lengths, [type], self._put_part(partial), value_name="total")
            )
        return functions

    def _put_part(self, partial: Buffer) -> Callable[[Lowering, Mapping[str, Index], Value], None]:
        """A function that stores a total of one part into the buffer of parts."""
        sizes = self.found.sizes

        def put(lowering: Lowering, at: Mapping[str, Index], total: Value) -> None:
            lengths = (partial.size // (sizes.batch * sizes.m * sizes.n), sizes.batch, sizes.m, sizes.n)
            place = flat((at["part"], at["batch"], at["m"], at["n"]), lengths)
            lowering.add(Store(partial.name, place, total[0]))

        return put

    def vector_texts(self, text: Printer, tiling: Tiling, partial: Buffer | None) -> list[str]:
        """Texts of the accessors that take vectors, along the axes where both operands and the result allow it."""
        flags, width = self.vectors, tiling.vector
        wanted = [
            self._vector_load(text, "load_a_vector", "k", width) if flags.a_k else None,
            self._vector_load(text, "load_a_vector_m", "m", width) if flags.a_m else None,
            self._vector_load(text, "load_b_vector", "n", width) if flags.b_n else None,
            self._vector_load(text, "load_b_vector_k", "k", width) if flags.b_k else None,
            self._vector_store(text, width, partial) if flags.out_n else None,
        ]
        return [each for each in wanted if each is not None]

    def _vector_load(self, text: Printer, name: str, along: str, width: int) -> str | None:
        """The text of a function that loads neighbours along an axis; `None` where they cannot be loaded together."""
        of_a = name.startswith("load_a")
        accessor = VectorAccessor(self.builder, text, self.of_a if of_a else self.of_b, along, width)
        if not accessor.possible or not self._has_vectors(text):
            return None
        result = accessor.load(name, self.a if of_a else self.b, without=self.group.members, aligned=True)
        self.in_vectors |= accessor.used
        return result

    def _vector_store(self, text: Printer, width: int, partial: Buffer | None) -> str | None:
        """The text of a function that stores neighbours of the result, or of a part of it.

        `None` where they cannot be stored together.
        """
        type = compute_type(self.builder.program.specs[self.found.node].dtype)
        lengths: Mapping[str, int] = self.of_out
        name, put = "store_out_vector", cast(Put, self.out)
        if partial is not None:
            parts = partial.size // self.builder.program.specs[self.found.node].size
            lengths, name, put = {"part": parts, **self.of_out}, "store_part_vector", self._put_part(partial)
        accessor = VectorAccessor(self.builder, text, lengths, "n", width)
        if not accessor.possible or not self._has_vectors(text):
            return None
        result = accessor.store(name, type, put, without=() if partial is not None else self.group.members)
        self.in_vectors |= accessor.used
        return result

    def _has_vectors(self, text: Printer) -> bool:
        """Vectors of four in WGSL are of 32 bits each."""
        dtype = self.builder.program.specs[self.found.node].dtype
        return not isinstance(text, WGSLPrinter) or compute_type(dtype) in ("f32", "i32", "u32")


def _product_kernel(
    builder: KernelBuilder, accessors: _Accessors, tiling: Tiling, name: str, partial: Buffer | None
) -> Kernel:
    """The kernel of a product with its template's tiling. Buffers that are only read in vectors are declared so."""
    found, text = accessors.found, printer(builder.target)
    written = [builder.stored[node].buffer for node in accessors.group.members]
    written += [partial.name] if partial is not None else []
    kernel = TemplateKernel(builder, text, accessors.scalar_functions(partial), written)
    # A buffer in WGSL is read in vectors of one width only; narrower blocks load their elements one by one.
    has_accessors = tiling.vector == WGSLVectors.width if isinstance(text, WGSLPrinter) else tiling.vector > 1
    flags = accessors.vectors if has_accessors else Vectors()
    accessors.in_vectors.clear()
    if isinstance(text, WGSLPrinter):
        text.declare_in_vectors(None)
    in_vectors = accessors.vector_texts(text, tiling, partial) if has_accessors else []
    if isinstance(text, WGSLPrinter):
        text.declare_in_vectors(accessors.in_vectors)
    type = compute_type(builder.program.specs[found.node].dtype)
    template = functools.partial(matmul.text, builder.target.dialect, type, found.sizes, tiling, flags)
    work = 2.0 * found.sizes.batch * found.sizes.m * found.sizes.n * found.sizes.k
    grid, nodes = matmul.grid(found.sizes, tiling), accessors.group.members
    return kernel.filled(name, template, grid, in_vectors=in_vectors, work=work, nodes=nodes)


def _sum_of_parts(
    builder: KernelBuilder, group: Group, found: Product, parts: int, partial: Buffer, name: str
) -> Kernel:
    """The sums over parts of k, added up; and what is made of them."""
    program = builder.program
    size = program.specs[found.node].size
    type = compute_type(program.specs[found.node].dtype)
    group_size = min(64, builder.target.group_limit, max(1, 1 << (size - 1).bit_length()))
    groups = -(-size // group_size)
    lowering = builder.lowering(group.members)
    lowering.scopes[0].variables.add("i")
    place = variable("i", size)
    total = lowering.unique("total")
    lowering.add(Variable(total, Literal(0, type)))
    counter = lowering.unique("part")
    load = Load(partial.name, variable(counter, parts) * size + place, type)
    body = (Assign(total, Apply("add", (Name(total, type), load), type)),)
    lowering.add(Loop(counter, Literal(0, "i32"), parts, 1, body))
    accessors = _Accessors(builder, group, found)
    b, m, n = unflat(place, (found.sizes.batch, found.sizes.m, found.sizes.n))
    accessors.out(lowering, {"batch": b, "m": m, "n": n}, (Name(total, type),))
    number = variable("group", groups) * group_size + variable("lane", group_size)
    statements: list[Statement] = [Let("i", Position(number))]
    if size % group_size:
        statements.append(leave_beyond("i", size))
    return builder.kernel(
        name,
        [*statements, *lowering.statements],
        groups=groups,
        group_size=group_size,
        written=[builder.stored[node].buffer for node in group.members if node in builder.needed],
        work=float(size * parts),
        bytes_moved=float(partial.nbytes),
    )
