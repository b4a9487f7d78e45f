"""Convolutions, computed directly: every invocation keeps a block of channels and pixels, and reads what these share.

out[n, o, h, w] is the sum over c, i, j of x[n, c, h * stride + i * dilation, w * stride + j * dilation] *
weights[o, c, i, j], with pixels side by side in vectors. Where channels lie side by side, a matrix product over windows
does as well.
"""

from __future__ import annotations

import itertools
from typing import Literal, Unpack

import msgspec

from anygpu.engines.codegen.target import ComputeType, Dialect, Target, indented
from anygpu.engines.codegen.templates.matmul_lines import Lines, TypedSyntax, guarded, plus, times
from anygpu.engines.codegen.templates.stages import BYTES, Surroundings, filled

#: Windows of more weights than this are walked in loops.
_UNROLLED = 25


class ConvolutionSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths, all literals in the text. `height` and `width` are the result's."""

    batch: int
    channels: int
    out_channels: int
    height: int
    width: int
    window: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)


class ConvolutionVectors(msgspec.Struct, frozen=True):
    """The vector accessors that exist: of x from anywhere or from aligned places only, and of the result.

    Aligned vectors have `width` pixels (those from anywhere as many as the tiling's vectors), and begin where
    x + phase is a multiple of the width, in every row: a row that is padded by one pixel has phase width - 1. They then
    begin before the first place, or end behind the last, by less than their width.
    """

    x: Literal["none", "aligned", "anywhere"] = "none"
    out: bool = False
    width: int = 4
    phase: int = 0


class ConvolutionTiling(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that tuning may change."""

    #: The block of totals of one invocation: output channels, rows, and vectors of `vector` columns.
    channels: int
    rows: int
    vectors: int
    vector: int
    #: Invocations of a group along the rows and columns of the result.
    lanes_h: int = 1
    lanes_w: int = 1
    #: Lanes of a subgroup that read different weights and hand them to each other; 0 when each reads all.
    handed: int = 0

    @property
    def tile_h(self) -> int:
        return self.rows * self.lanes_h

    @property
    def columns(self) -> int:
        return self.vectors * self.vector

    @property
    def tile_w(self) -> int:
        return self.columns * self.lanes_w

    @property
    def group_size(self) -> int:
        return self.lanes_h * self.lanes_w


def grid(sizes: ConvolutionSizes, tiling: ConvolutionTiling) -> tuple[int, int]:
    """Groups, and invocations in each."""
    over_channels, down, across = _tiles(sizes, tiling)
    return sizes.batch * over_channels * down * across, tiling.group_size


def tilings(
    target: Target,
    sizes: ConvolutionSizes,
    type: ComputeType,
    vectors: ConvolutionVectors,
    *,
    subgroup_size: int | None = None,
) -> list[ConvolutionTiling]:
    """Candidates for tuning, the best guess first; none where an invocation would have to go round too often.

    `subgroup_size` is the target's when it is not given.
    """
    if subgroup_size is None:
        subgroup_size = target.subgroup_size
    few = sizes.out_channels < 4
    width = 4 if BYTES[type] == 4 else 2
    size = subgroup_size if target.has("subgroups") and subgroup_size >= 8 else 0
    shapes = [(8, 2, 1), (4, 4, 1), (4, 2, 1), (8, 1, 1), (4, 2, 2), (16, 1, 1)]
    if few:
        shapes = [(3, 4, 1), (3, 2, 1), (3, 4, 2), (3, 8, 1), (3, 1, 1)]
    started = [
        ConvolutionTiling(channels=o, rows=h, vectors=w, vector=width, lanes_h=8, lanes_w=8, handed=handed)
        for handed in ([size, 0] if size else [0])
        for o, h, w in shapes
    ]
    if size and not few:
        # Many channels keep the weights' share of reading low; long rows of lanes share what the edges need.
        wide = [(16, 2, 1, 1, 32), (8, 4, 1, 8, 8), (16, 2, 1, 8, 8)]
        started[:0] = [
            ConvolutionTiling(channels=o, rows=h, vectors=w, vector=width, lanes_h=down, lanes_w=across, handed=size)
            for o, h, w, down, across in wide
        ]
    found = []
    for start in started:
        tiling = _fitted(start, sizes)
        if (
            tiling not in found
            and tiling.group_size <= target.group_limit
            and _turns(tiling, sizes) <= target.loop_limit
        ):
            found.append(tiling)
    return found


def text(
    dialect: Dialect,
    type: ComputeType,
    sizes: ConvolutionSizes,
    tiling: ConvolutionTiling,
    vectors: ConvolutionVectors,
    **around: Unpack[Surroundings],
) -> str:
    """The kernel. `tiling` is one of `tilings`; its tile is not larger than the result."""
    kernel = _Kernel(TypedSyntax(dialect, type), sizes, tiling, vectors)
    return filled(dialect, "convolution", kernel.values(), grid(sizes, tiling)[1], around)


class _Kernel:
    """The lines that one kernel's placeholders become."""

    def __init__(
        self, syntax: TypedSyntax, sizes: ConvolutionSizes, tiling: ConvolutionTiling, vectors: ConvolutionVectors
    ) -> None:
        """The kernel of one convolution. Which loads and stores can be vectors is found from the sizes.

        `again_*` says along which axes the last tile overlaps the one before it.
        """
        self.syntax, self.sizes, self.tiling, self.vectors = syntax, sizes, tiling, vectors
        self.width = tiling.vector
        whole = self.width > 1 and sizes.width % self.width == 0
        self.out = vectors.out and whole
        self.anywhere = vectors.x == "anywhere" and self.width > 1 and sizes.stride[1] == 1
        # Tiles begin at multiples of their vectors, or where the last one that ends at the edge does.
        begins = vectors.width > 1 and self.width % vectors.width == 0 and sizes.width % vectors.width == 0
        self.aligned = vectors.x == "aligned" and begins and sizes.stride[1] == 1 and _walk(sizes) != "places"
        # The last tiles are moved back to end at the edge: along these axes they overlap with others.
        self.again_o = sizes.out_channels % tiling.channels != 0
        self.again_h = sizes.height % tiling.tile_h != 0
        self.again_w = sizes.width % tiling.tile_w != 0

    def values(self) -> dict[str, Lines]:
        """The placeholders of the template."""
        sizes, tiling = self.sizes, self.tiling
        handed = ["@builtin(subgroup_invocation_id) place_in_subgroup: u32,"] if tiling.handed else []
        return {
            "title": [
                f"[{sizes.batch}, {sizes.channels} -> {sizes.out_channels}, {sizes.height}, {sizes.width}], "
                f"{sizes.window[0]} x {sizes.window[1]}"
            ],
            "channels": [str(tiling.channels)],
            "rows": [str(tiling.rows)],
            "columns": [str(tiling.columns)],
            "input_channels": [str(sizes.channels)],
            "builtins": handed,
            "place": self.place(),
            "totals": [self.syntax.zero(self.total(*each), self.width) for each in self.block()],
            "multiply": self.multiply(),
            "stores": self.stores(),
        }

    def block(self) -> list[tuple[int, int, int]]:
        """Channel, row and vector of every total of an invocation."""
        tiling = self.tiling
        return [(o, r, v) for o in range(tiling.channels) for r in range(tiling.rows) for v in range(tiling.vectors)]

    @staticmethod
    def total(o: int, r: int, v: int) -> str:
        return f"total_{o}_{r}_{v}"

    def place(self) -> Lines:
        """The position of the lane's block in the result: image, channels, rows and columns.

        Last tiles are moved back to the edge, so that every tile is whole.
        """
        syntax, sizes, tiling = self.syntax, self.sizes, self.tiling
        over_channels, down, across = _tiles(sizes, tiling)

        def number(after: int, count: int, whole: bool = False) -> str:
            divided = f"group / {after}" if after > 1 else "group"
            if count == 1:
                return "0"
            return divided if whole else f"{divided} % {count}"

        lines = [
            syntax.position("n", number(over_channels * down * across, sizes.batch, whole=True)),
            syntax.position("first_o", times(number(down * across, over_channels), tiling.channels)),
            syntax.position("first_h", times(number(across, down), tiling.tile_h)),
            syntax.position("first_w", times(number(1, across), tiling.tile_w)),
        ]
        if self.again_o or self.again_h or self.again_w:
            lines.append("// The last tiles end at the edge: what they have in common with others is not stored again.")
        o = f"min(first_o, {sizes.out_channels - tiling.channels})" if self.again_o else "first_o"
        h = f"min(first_h, {sizes.height - tiling.tile_h})" if self.again_h else "first_h"
        w = f"min(first_w, {sizes.width - tiling.tile_w})" if self.again_w else "first_w"
        lane_h = f"lane / {tiling.lanes_w}" if tiling.lanes_w > 1 else "lane"
        lane_w = f"lane % {tiling.lanes_w}" if tiling.lanes_h > 1 else "lane"
        if tiling.lanes_h > 1:
            h = f"{h} + {times(lane_h, tiling.rows)}"
        if tiling.lanes_w > 1:
            w = f"{w} + {times(lane_w, tiling.columns)}"
        lines += [syntax.position("o", o), syntax.position("h", h), syntax.position("w", w)]
        if tiling.handed:
            lines.append(syntax.position("neighbour", f"i32(place_in_subgroup % {tiling.handed}u)"))
        return lines

    # Sums

    def multiply(self) -> Lines:
        """One input channel: all of its window, or a loop over the window's rows, or over all of its places."""
        syntax, (high, wide) = self.syntax, self.sizes.window
        walk = _walk(self.sizes)
        if walk == "none":
            return self.window(list(range(high)), list(range(wide)))
        down = syntax.loop("i", "0", str(high), "1")
        if walk == "rows":
            return [down, *indented(self.window([0], list(range(wide)))), "}"]
        inner = [syntax.loop("j", "0", str(wide), "1"), *indented(self.window([0], [0])), "}"]
        return [down, *indented(inner), "}"]

    def window(self, down: list[int], across: list[int]) -> Lines:
        """The places of the window that are written out. A row of x serves all rows of the result that need it."""
        syntax, tiling, sizes = self.syntax, self.tiling, self.sizes
        stride, dilation = sizes.stride[0], sizes.dilation[0]
        weights, weight = self.weights(down, across)
        lines = list(weights)
        for y in sorted({r * stride + i * dilation for r in range(tiling.rows) for i in down}):
            uses = [(r, i) for r in range(tiling.rows) for i in down if r * stride + i * dilation == y]
            known: set[str] = set()
            # Vectors from anywhere are read just before their use, which leaves more registers to the totals.
            for columns in [[j] for j in across] if self.anywhere else [across]:
                loads, x = self.row_of_x(y, columns)
                lines += [line for line in loads if line not in known]
                known |= set(loads)
                for o, (r, i), j in itertools.product(range(tiling.channels), uses, columns):
                    factor = syntax.all(weight[o, i, j], self.width)
                    if tiling.vectors > 1:
                        name = f"w_{o}_{i}_{j}_for_{r}"
                        lines.append(syntax.let(name, self.width, factor))
                        factor = name
                    totals = [self.total(o, r, v) for v in range(tiling.vectors)]
                    lines += [syntax.multiply_add(total, factor, x[v, j]) for v, total in enumerate(totals)]
        return lines

    def position_y(self, y: int) -> str:
        """The row of the input at a distance from the block's first one."""
        above = times("h", self.sizes.stride[0])
        if _walk(self.sizes) != "none":
            above = f"{above} + {times('i', self.sizes.dilation[0])}"
        return plus(above, y)

    def position_x(self, x: int) -> str:
        """The column of the input at a distance from the block's first one."""
        left = times("w", self.sizes.stride[1])
        if _walk(self.sizes) == "places":
            left = f"{left} + {times('j', self.sizes.dilation[1])}"
        return plus(left, x)

    def row_of_x(self, y: int, across: list[int]) -> tuple[Lines, dict[tuple[int, int], str]]:
        """Row `y` of what the block sees: for every vector and column of the window its pixels."""
        syntax, width, (_, stride), (_, dilation) = self.syntax, self.width, self.sizes.stride, self.sizes.dilation
        before = f"${{pass}}n, c, {self.position_y(y)}"
        lines: Lines = []
        found: dict[tuple[int, int], str] = {}
        places = [(v, j, v * width * stride + j * dilation) for v in range(self.tiling.vectors) for j in across]
        if self.anywhere:
            for x in sorted({first for _, _, first in places}):
                call = f"load_x_vector({before}, {self.position_x(x)})"
                lines.append(syntax.let(f"x_{y}_{x}", width, syntax.loaded(call, width)))
            return lines, {(v, j): f"x_{y}_{x}" for v, j, x in places}
        needed = sorted({first + c * stride for _, _, first in places for c in range(width)})
        pixels: dict[int, str] = {}
        whole: set[int] = set()
        if self.aligned:
            phase, read = self.vectors.phase, self.vectors.width
            for first in sorted({(x + phase) // read * read - phase for x in needed}):
                name = f"x_{y}_{first}" if first >= 0 else f"x_{y}_before_{-first}"
                call = f"load_x_vector({before}, {self.position_x(first)})"
                lines.append(syntax.let(name, read, syntax.loaded(call, read)))
                pixels |= {first + c: syntax.component(name, c, read) for c in range(read)}
                if read == width:
                    whole.add(first)
        else:
            for x in needed:
                call = f"load_x({before}, {self.position_x(x)})"
                lines.append(syntax.let(f"x_{y}_{x}", 1, syntax.loaded(call, 1)))
                pixels[x] = f"x_{y}_{x}"
        for v, j, first in places:
            if first in whole:
                found[v, j] = f"x_{y}_{first}"
            elif width == 1:
                found[v, j] = pixels[first]
            else:
                made = syntax.made([pixels[first + c * stride] for c in range(width)])
                name = f"x_{y}_{v}_from_{j}"
                lines.append(syntax.let(name, width, made))
                found[v, j] = name
        return lines, found

    def weights(self, down: list[int], across: list[int]) -> tuple[Lines, dict[tuple[int, int, int], str]]:
        """The lines that load the block's weights, and the expression of each by channel and place in the window.

        On a subgroup each lane loads some of them and hands them to the others.
        """
        syntax, tiling = self.syntax, self.tiling
        walk = _walk(self.sizes)
        every = [(o, i, j) for o in range(tiling.channels) for i in down for j in across]
        lines: Lines = []
        found: dict[tuple[int, int, int], str] = {}
        if not tiling.handed:
            for o, i, j in every:
                place = f"{'i' if walk != 'none' else i}, {'j' if walk == 'places' else j}"
                call = syntax.loaded(f"load_w(${{pass}}{plus('o', o)}, c, {place})", 1)
                found[o, i, j] = call
                if not self.anywhere:
                    found[o, i, j] = f"w_{o}_{i}_{j}"
                    lines.append(syntax.let(f"w_{o}_{i}_{j}", 1, call))
            return lines, found
        per_channel, wide = len(down) * len(across), len(across)
        for first in range(0, len(every), tiling.handed):
            name, place = f"weights_{first}", f"place_{first}"
            past = first + tiling.handed > len(every)
            value = f"min({plus('neighbour', first)}, {len(every) - 1})" if past else plus("neighbour", first)
            lines.append(syntax.position(place, value))
            down_it = "i" if walk != "none" else f"{place} % {per_channel} / {wide}"
            along_it = "j" if walk == "places" else f"{place} % {wide}"
            call = f"load_w(${{pass}}o + {place} / {per_channel}, c, {down_it}, {along_it})"
            lines.append(syntax.let(name, 1, call))
            for lane, each in enumerate(every[first : first + tiling.handed]):
                found[each] = f"subgroupBroadcast({name}, {lane}u)"
        return lines, found

    # Results

    def stores(self) -> Lines:
        """The lines that store the block: one by one, or in a loop where there would be too many calls in a row."""
        syntax, tiling, block = self.syntax, self.tiling, self.block()
        if len(block) * (1 if self.out else self.width) <= syntax.calls_in_a_row:
            lines = []
            for o, r, v in block:
                lines += self.store(plus("o", o), plus("h", r), plus("w", v * self.width), self.total(o, r, v))
            return lines
        kind = syntax.vector(self.width)
        lines = [syntax.plain.array("totals", kind, len(block))]
        lines += [f"totals[{number}] = {self.total(*each)};" for number, each in enumerate(block)]
        per_channel = tiling.rows * tiling.vectors
        inner = [
            syntax.position("stored_o", f"o + number / {per_channel}"),
            syntax.position("stored_h", f"h + number % {per_channel} / {tiling.vectors}"),
            syntax.position("stored_w", f"w + {times(f'number % {tiling.vectors}', self.width)}"),
            syntax.let("total", self.width, "totals[number]"),
            *self.store("stored_o", "stored_h", "stored_w", "total"),
        ]
        return [*lines, syntax.loop("number", "0", str(len(block)), "1"), *indented(inner), "}"]

    def store(self, o: str, h: str, w: str, total: str) -> Lines:
        """The lines that store one total, unless an overlapping tile stores it as well."""
        syntax = self.syntax
        guards = [f"{o} >= first_o"] if self.again_o else []
        guards += [f"{h} >= first_h"] if self.again_h else []
        if self.out or self.width == 1:
            end = "_vector" if self.out else ""
            call = f"store_out{end}(${{pass}}n, {o}, {h}, {w}, {syntax.stored(total, self.width)});"
            return guarded([call], guards + ([f"{w} >= first_w"] if self.again_w else []))
        lines = []
        for c in range(self.width):
            value = syntax.stored(syntax.component(total, c, self.width), 1)
            call = f"store_out(${{pass}}n, {o}, {h}, {plus(w, c)}, {value});"
            lines += guarded([call], [f"{plus(w, c)} >= first_w"] if self.again_w else [])
        return guarded(lines, guards)


def _walk(sizes: ConvolutionSizes) -> Literal["none", "rows", "places"]:
    """The part of the window that is walked in loops."""
    high, wide = sizes.window
    if high * wide <= _UNROLLED:
        return "none"
    return "rows" if wide <= _UNROLLED // 2 else "places"


def _turns(tiling: ConvolutionTiling, sizes: ConvolutionSizes) -> int:
    """How many turns the kernel's loops take, for limits of loops."""
    high, wide = sizes.window
    each = {"none": 1, "rows": 1 + high, "places": 1 + high + high * wide}[_walk(sizes)]
    return sizes.channels * each + tiling.channels * tiling.rows * tiling.vectors


def _tiles(sizes: ConvolutionSizes, tiling: ConvolutionTiling) -> tuple[int, int, int]:
    """The numbers of tiles over the channels, down and across."""
    return (
        -(-sizes.out_channels // tiling.channels),
        -(-sizes.height // tiling.tile_h),
        -(-sizes.width // tiling.tile_w),
    )


def _fitted(tiling: ConvolutionTiling, sizes: ConvolutionSizes) -> ConvolutionTiling:
    """With tiles that are not larger than the result, and not much of them done twice."""
    channels = min(tiling.channels, sizes.out_channels)
    # Loops over the window's rows leave nothing that several rows of the result could share.
    rows = min(tiling.rows, sizes.height) if _walk(sizes) == "none" else 1
    lanes_h, lanes_w, vector = tiling.lanes_h, tiling.lanes_w, tiling.vector
    while lanes_h > 1 and rows * lanes_h > sizes.height:
        lanes_h //= 2
    while vector > 1 and vector > sizes.width:
        vector //= 2
    counts = range(1, max(min(tiling.vectors, sizes.width // vector), 1) + 1)
    count = min(reversed(counts), key=lambda each: -(-sizes.width // (vector * each)) * vector * each)
    while lanes_w > 1 and vector * count * lanes_w > sizes.width:
        lanes_w //= 2
    handed = tiling.handed if lanes_h * lanes_w % max(tiling.handed, 1) == 0 else 0
    return ConvolutionTiling(
        channels=channels,
        rows=rows,
        vectors=count,
        vector=vector,
        lanes_h=lanes_h,
        lanes_w=lanes_w,
        handed=handed,
    )
