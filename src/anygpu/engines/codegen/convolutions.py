"""Convolutions among contractions: found by the positions at which one factor is read, and computed directly.

A contraction over windows of an image reads it at h * stride + i * dilation, with h an axis of the result and i one
that is summed. However the windows were made and whatever order the axes have, that is a convolution.

A convolution reaches a program as a contraction over windows. `convolutions_in` recognises it from the positions at
which the contraction reads its first operand: a sum of an output place times a stride and a window place times a
dilation. `contract_tilings` offers the direct form beside those of a matrix product, and `convolution_kernel` fills its
template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

import msgspec

from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.vector_text import EXACT, replaced
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter
from anygpu.engines.codegen.grouping import Group
from anygpu.engines.codegen.index import ZERO, Index, flat, strides, unflat, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_builder import (
    KernelBuilder,
    TemplateKernel,
    VectorAccessor,
    load_function,
    printer,
    store_function,
)
from anygpu.engines.codegen.kernel_ir import Buffer, Function, Let, Load, Name
from anygpu.engines.codegen.lower import Lowering, Positions, Value, contract_positions
from anygpu.engines.codegen.materialise import is_row_reduction, is_short
from anygpu.engines.codegen.products import put_total, tilings_of
from anygpu.engines.codegen.target import ComputeType, Target, compute_type
from anygpu.engines.codegen.templates import convolution
from anygpu.engines.codegen.templates.convolution import ConvolutionSizes, ConvolutionTiling, ConvolutionVectors
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.primitives import (
    Contract,
    free_axes,
    product,
)

#: Rows of fewer pixels leave much of the vectors unused.
_LEAST_WIDTH = 16
#: Candidates of the form that is not the best guess.
_MOST_OTHERS = 3


class Convolution(NamedTuple):
    """A contraction as out[n, o, h, w] = sum over c, i, j of x[n, c, y, x] * weights[o, c, i, j].

    Axes of the result are p0, p1 and so on, those that are summed k0, k1 and so on.
    """

    node: int
    op: Contract
    inputs: tuple[int, int]
    #: The input that leads to x.
    side: int
    #: The value that is x, and where it is read.
    source: int
    at: Positions
    sizes: ConvolutionSizes
    #: The lengths of all axes, and which of them are n, o and c; and those of h, w, i and j, where there are any.
    lengths: Mapping[str, int]
    batch: tuple[str, ...]
    out: tuple[str, ...]
    channels: tuple[str, ...]
    height: str | None
    width: str
    down: str | None
    across: str
    #: The axes of x along which windows move.
    axis_y: int | None
    axis_x: int

    def places(self, names: Sequence[str], position: Index) -> dict[str, Index]:
        """Positions along axes that are counted as one."""
        return dict(zip(names, unflat(position, [self.lengths[name] for name in names]), strict=True))


def convolutions_in(program: Program, target: Target, roots: Sequence[int], stored: Set[int]) -> dict[int, Convolution]:
    """The stored values that the template can compute."""
    result = {}
    for root in roots:
        found = convolution_of(program, root, stored)
        if found is None or not _direct_tilings(program, target, found):
            continue
        # Without channels to share what is read, there is no gain but that of vectors.
        if is_by_pixels(found) or _is_product(program, root):
            result[root] = found
    return result


def convolution_of(program: Program, node: int, stored: Set[int]) -> Convolution | None:
    """The contraction as a convolution, if one factor is read at positions that move with the result; else None."""
    op, inputs = program.nodes[node]
    if not isinstance(op, Contract) or KIND[program.specs[node].dtype] in ("bool", "complex"):
        return None
    left, right = program.specs[inputs[0]].shape, program.specs[inputs[1]].shape
    if program.specs[node].size == 0 or product(tuple(left[axis] for axis in op.left_batch)) != 1:
        return None
    rows = len(free_axes(left, op.left, op.left_batch))
    first = len(op.left_batch)
    lengths = {f"p{axis}": length for axis, length in enumerate(program.specs[node].shape)}
    lengths |= {f"k{number}": left[axis] for number, axis in enumerate(op.left)}
    results = [name for name in lengths if name.startswith("p")]
    summed = [name for name in lengths if name.startswith("k")]
    positions = contract_positions(
        op,
        left,
        right,
        tuple(variable(name, lengths[name]) for name in results),
        tuple(variable(name, lengths[name]) for name in summed),
    )
    of_left, of_right = results[first : first + rows], results[first + rows :]
    for side, mine, others in ((0, of_left, of_right), (1, of_right, of_left)):
        way = _on_the_way_down(program, inputs[side], positions[side], stored)
        read = [_Read(each, at, _moving_axes(program.specs[each].shape, at, mine, summed, lengths)) for each, at in way]
        # Where both axes of an image are seen; of a stored one, if may be, which is read in vectors.
        best = max(reversed(read), key=lambda each: len(each.moving))
        if best.moving:
            return _convolution(program, node, side, best, mine, others, summed, lengths)
    return None


class _Spatial(NamedTuple):
    """An axis of x that is read at result * stride + summed * dilation."""

    axis: int
    result: str
    summed: str
    stride: int
    dilation: int


class _Read(NamedTuple):
    """A value, where it is read, and the axes along which windows move: none, pixels of a row, or rows and pixels."""

    source: int
    at: Positions
    moving: tuple[_Spatial, ...]


def _convolution(
    program: Program, node: int, side: int, read: _Read, mine: Sequence[str], others: Sequence[str],
    summed: Sequence[str], lengths: Mapping[str, int],
) -> Convolution:  # fmt: skip
    """The convolution with its axes named: batch, output channels, input channels, and the moving axes y and x."""
    op, inputs = program.nodes[node]
    if not isinstance(op, Contract):
        raise TypeError(f"{op} is not a contraction")
    x = read.moving[-1]
    y = read.moving[0] if len(read.moving) == 2 else None
    height, down = (y.result, y.summed) if y is not None else (None, None)
    batch = tuple(name for name in mine if name not in (height, x.result))
    channels = tuple(name for name in summed if name not in (down, x.summed))
    sizes = ConvolutionSizes(
        batch=product(tuple(lengths[name] for name in batch)),
        channels=product(tuple(lengths[name] for name in channels)),
        out_channels=product(tuple(lengths[name] for name in others)),
        height=lengths[height] if height is not None else 1,
        width=lengths[x.result],
        window=(lengths[down] if down is not None else 1, lengths[x.summed]),
        stride=(y.stride if y is not None else 1, x.stride),
        dilation=(y.dilation if y is not None else 1, x.dilation),
    )
    return Convolution(
        node=node,
        op=op,
        inputs=(inputs[0], inputs[1]),
        side=side,
        source=read.source,
        at=read.at,
        sizes=sizes,
        lengths=lengths,
        batch=batch,
        out=tuple(others),
        channels=channels,
        height=height,
        width=x.result,
        down=down,
        across=x.summed,
        axis_y=y.axis if y is not None else None,
        axis_x=x.axis,
    )


def _on_the_way_down(
    program: Program, node: int, positions: Positions, stored: Set[int]
) -> list[tuple[int, Positions]]:
    """A value and where it is read, and the same of each value that it is only a view of."""
    found = [(node, positions)]
    while node not in stored and program.nodes[node].op.is_view:
        below = _Below(program, node)
        below.value(node, positions)
        (found_below,) = below.found
        found.append(found_below)
        node, positions = found_below
    return found


class _Below(Lowering):
    """Follows a value one node down."""

    def __init__(self, program: Program, node: int) -> None:
        """Finds what a node reads and at which positions, without going further down."""
        super().__init__(program, {}, lambda node: None)
        self._node = node
        self.found: list[tuple[int, Positions]] = []

    def value(self, node: int, positions: Positions) -> Value:
        """Note the node and its positions; only the node itself is computed."""
        if node == self._node:
            return self._compute(node, positions)
        self.found.append((node, positions))
        return (Name("below", "i32"),)


def _moving_axes(
    shape: Sequence[int], at: Positions, results: Sequence[str], summed: Sequence[str], lengths: Mapping[str, int]
) -> tuple[_Spatial, ...]:
    """The axes along which windows move, if there are one or two and all others are plain ones."""
    found: list[_Spatial] = []
    for axis, position in enumerate(at):
        factors = {atom.name: factor for atom, factor in position.terms if isinstance(atom, Counter)}
        if len(factors) != len(position.terms):
            return ()
        moving = [name for name in factors if name in results]
        inside = [name for name in factors if name in summed]
        if not moving or not inside:
            continue
        if len(factors) != 2 or min(factors.values()) < 1:
            return ()
        spatial = _Spatial(axis, moving[0], inside[0], factors[moving[0]], factors[inside[0]])
        if spatial.stride > (lengths[spatial.summed] - 1) * spatial.dilation:
            # Windows that have nothing in common are the rows of a matrix.
            return ()
        found.append(spatial)
    taken = [name for each in found for name in (each.result, each.summed)]
    elsewhere = [position for axis, position in enumerate(at) if axis not in {each.axis for each in found}]
    if len(set(taken)) != len(taken) or any(position.depends_on(name) for position in elsewhere for name in taken):
        return ()
    # Pixels of a row are the nearer neighbours.
    steps = strides(shape)
    return tuple(sorted(found, key=lambda each: -steps[each.axis])) if len(found) <= 2 else ()


def is_by_pixels(found: Convolution) -> bool:
    """Whether the direct form is the best guess: neighbouring pixels lie side by side, and there are enough of them.

    Where the window is the larger image, as in the gradient of weights, the sums are long and the results few.
    """
    sizes = found.sizes
    enough = sizes.width >= _LEAST_WIDTH and sizes.height * sizes.width >= sizes.window[0] * sizes.window[1]
    return enough and found.axis_x == len(found.at) - 1


def contract_tilings(builder: KernelBuilder, group: Group, found: Convolution | None) -> list[msgspec.Struct]:
    """Candidates for a contraction in either form, the best guess first and the best of the other form next."""
    if found is None:
        return [*tilings_of(builder, group)]
    direct = _direct_tilings(builder.program, builder.target, found)
    products = tilings_of(builder, group)[:_MOST_OTHERS] if _is_product(builder.program, found.node) else []
    if is_by_pixels(found):
        return [*direct[:1], *products[:1], *direct[1:], *products[1:]]
    return [*products[:1], *direct[:1], *products[1:], *direct[1:_MOST_OTHERS]]


def _direct_tilings(program: Program, target: Target, found: Convolution) -> list[ConvolutionTiling]:
    type = compute_type(program.specs[found.node].dtype)
    return convolution.tilings(target, found.sizes, type, ConvolutionVectors(), subgroup_size=target.subgroup_size)


def _is_product(program: Program, node: int) -> bool:
    """Whether it is one for the template of matrix products, too."""
    return not is_short(program, node) and not is_row_reduction(program, node)


class _PrinterOfPairs(WGSLPrinter):
    """Declares some buffers in vectors of two, for rows that are not whole vectors of four."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.pairs: set[str] = set()

    def grain(self, buffer: Buffer) -> int:
        return 2 if buffer.name in self.pairs else super().grain(buffer)


class _Accessors:
    """The functions through which the template reads and writes."""

    def __init__(self, builder: KernelBuilder, group: Group, found: Convolution) -> None:
        """The lengths of the positions at which input, weights and result of a convolution are reached.

        `high` and `wide` are the part of the input that windows with stride and dilation look at.
        """
        self.builder = builder
        self.group = group
        self.found = found
        self.type: ComputeType = compute_type(builder.program.specs[found.node].dtype)
        sizes = found.sizes
        high, wide = (
            (length - 1) * stride + (window - 1) * dilation + 1
            for length, stride, window, dilation in zip(
                (sizes.height, sizes.width), sizes.stride, sizes.window, sizes.dilation, strict=True
            )
        )
        self.of_x = {"n": sizes.batch, "c": sizes.channels, "y": high, "x": wide}
        self.of_w = {"o": sizes.out_channels, "c": sizes.channels, "i": sizes.window[0], "j": sizes.window[1]}
        self.of_out = {"n": sizes.batch, "o": sizes.out_channels, "h": sizes.height, "w": sizes.width}

    def x(self, lowering: Lowering, at: Mapping[str, Index]) -> Value:
        """The input at batch n, channel c and a place that moves with the pixel, lowered to an expression."""
        found = self.found
        known = found.places(found.batch, at["n"]) | found.places(found.channels, at["c"])
        positions = []
        for axis, position in enumerate(found.at):
            if axis == found.axis_x:
                positions.append(at["x"] + position.constant)
            elif axis == found.axis_y:
                positions.append(at["y"] + position.constant)
            else:
                positions.append(replaced(position, known))
        return lowering.value(found.source, tuple(positions))

    def w(self, lowering: Lowering, at: Mapping[str, Index]) -> Value:
        """The weight of output channel o, channel c and the taps i and j, lowered to an expression."""
        found = self.found
        known = found.places(found.out, at["o"]) | found.places(found.channels, at["c"])
        known |= {found.across: at["j"]} | ({found.down: at["i"]} if found.down is not None else {})
        specs = self.builder.program.specs
        count = len(specs[found.node].shape)
        factors = contract_positions(
            found.op,
            specs[found.inputs[0]].shape,
            specs[found.inputs[1]].shape,
            tuple(known.get(f"p{axis}", ZERO) for axis in range(count)),
            tuple(known[f"k{number}"] for number in range(len(found.op.left))),
        )
        side = 1 - found.side
        return lowering.value(found.inputs[side], factors[side])

    def out(self, lowering: Lowering, at: Mapping[str, Index], total: Value) -> None:
        """Store a total at its place in the result, with whatever follows in the same group of operations."""
        found = self.found
        known = found.places(found.batch, at["n"]) | found.places(found.out, at["o"])
        known |= {found.width: at["w"]} | ({found.height: at["h"]} if found.height is not None else {})
        shape = self.builder.program.specs[found.node].shape
        place = flat([known.get(f"p{axis}", ZERO) for axis in range(len(shape))], shape)
        put_total(self.builder, self.group, lowering, place, total)

    def functions(self) -> list[Function]:
        """The functions through which the template reads the input and the weights and stores the result."""
        without = self.group.members
        return [
            load_function(self.builder, "load_x", self.of_x, 0, self.x, without=without),
            load_function(self.builder, "load_w", self.of_w, 0, self.w, without=without),
            store_function(
                self.builder, "store_out", self.of_out, [self.type], self.out, without=without, value_name="total"
            ),
        ]

    def in_vectors(self, text: Printer, width: int) -> tuple[ConvolutionVectors, list[str]]:
        """The vector accessors that can be made, and their texts. Buffers are declared in vectors for them."""
        if isinstance(text, _PrinterOfPairs):
            return self._in_wgsl_vectors(text, width)
        x = VectorAccessor(self.builder, text, self.of_x, "x", width)
        load = x.load("load_x_vector", self.x, without=self.group.members) if x.possible else None
        out = VectorAccessor(self.builder, text, self.of_out, "w", width)
        put = out.store("store_out_vector", self.type, self.out, without=self.group.members) if out.possible else None
        flags = ConvolutionVectors(x="none" if load is None else "anywhere", out=put is not None)
        return flags, [each for each in (load, put) if each is not None]

    def _in_wgsl_vectors(self, text: _PrinterOfPairs, width: int) -> tuple[ConvolutionVectors, list[str]]:
        """A buffer of vectors has no others, so they begin at multiples of their width."""
        if self.type not in ("f32", "i32", "u32"):
            return ConvolutionVectors(), []
        text.declare_in_vectors(None)
        declared: set[str] = set()
        texts: list[str] = []
        aligned = self._aligned(text, width)
        if aligned is not None:
            index, buffer, read = aligned
            phase = index.constant % read
            strip = Index(-phase, [(Counter("strip", 0, self.of_x["x"]), read)])
            place = text.position(replaced(index, {"x": strip}) // read)
            first = text.syntax.position("strip", f"{f'(x + {phase})' if phase else 'x'} / {read}")
            kind = text.syntax.vector(self.type, read)
            positions = dict.fromkeys(self.of_x, "i32")
            texts.append(text.function("load_x_vector", positions, kind, [first, f"return {buffer.name}[{place}];"]))
            declared.add(buffer.name)
            if read == 2:
                text.pairs.add(buffer.name)
        out = VectorAccessor(self.builder, text, self.of_out, "w", width)
        put = out.store("store_out_vector", self.type, self.out, without=self.group.members) if out.possible else None
        if put is not None:
            texts.append(put)
            declared |= out.used
        text.declare_in_vectors(declared)
        if aligned is None:
            return ConvolutionVectors(out=put is not None), texts
        return ConvolutionVectors(x="aligned", out=put is not None, width=read, phase=phase), texts

    def _aligned(self, text: WGSLPrinter, width: int) -> tuple[Index, Buffer, int] | None:
        """The index at which x is read, its buffer, and the elements that may be read at once in every row."""
        function = load_function(self.builder, "load_x", self.of_x, 0, self.x, without=self.group.members)
        match function.body:
            case (Let(name=name, value=Load() as load),) if function.result == Name(name, load.type):
                buffer = self.builder.buffers[load.buffer]
            case _:
                return None
        if buffer.dtype not in EXACT or buffer.has_offset or buffer.atomic or text.windows(buffer) > 1:
            return None
        factors = {atom.name if isinstance(atom, Counter) else "": factor for atom, factor in load.index.terms}
        if "" in factors or factors.pop("x", 0) != 1:
            return None
        for read in (4, 2):
            whole = buffer.size % read == 0 and self.found.sizes.width % read == 0 and width % read == 0
            if whole and all(factor % read == 0 for factor in factors.values()):
                return load.index, buffer, read
        return None


def convolution_kernel(
    builder: KernelBuilder, group: Group, found: Convolution, tiling: ConvolutionTiling, name: str
) -> Kernel:
    """The kernel of a group that begins with a convolution: the template filled with this tiling."""
    dialect, sizes = builder.target.dialect, found.sizes
    accessors = _Accessors(builder, group, found)
    text = _PrinterOfPairs(builder.target) if dialect == "wgsl" else printer(builder.target)
    written = [builder.stored[node].buffer for node in group.members]
    kernel = TemplateKernel(builder, text, accessors.functions(), written)
    flags, in_vectors = accessors.in_vectors(text, tiling.vector) if tiling.vector > 1 else (ConvolutionVectors(), [])
    template = partial(convolution.text, dialect, accessors.type, sizes, tiling, flags)
    work = 2.0 * builder.program.specs[found.node].size * sizes.channels * sizes.window[0] * sizes.window[1]
    grid = convolution.grid(sizes, tiling)
    return kernel.filled(name, template, grid, in_vectors=in_vectors, work=work, nodes=group.members)
