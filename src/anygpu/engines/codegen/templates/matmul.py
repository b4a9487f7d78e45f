"""Matrix products: out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n], in three forms that measuring chooses from.

"blocks" reads operands where they are, "tiles" shares them in a group's memory, "panels" copies one where a processor
reads it in order. The operands are reached only through accessor functions, so producers, views and windows are
fused into those; the store accessor has the epilogue.
"""

from __future__ import annotations

from typing import Unpack

from anygpu.engines.codegen.target import ComputeType, Dialect, indented
from anygpu.engines.codegen.templates.matmul_lines import (
    Blocks,
    Lines,
    MatmulBody,
    TypedSyntax,
    divided,
    guarded,
    plus,
    times,
)
from anygpu.engines.codegen.templates.matmul_tiling import (
    MatmulForm,
    Sizes,
    Tiling,
    Vectors,
    grid,
    part_depth,
    parts,
    tilings,
)
from anygpu.engines.codegen.templates.stages import Surroundings, filled

__all__ = ["Sizes", "Tiling", "Vectors", "grid", "parts", "text", "tilings"]


# -- matrix products for processors
#
# One operand is copied to where it is read from front to end.


class Panels(MatmulBody):
    """b is copied in panels, and rows pass over them in blocks."""

    def own(self) -> dict[str, Lines]:
        """The placeholders of this form: a panel of b in local memory, and rows of a where that pays."""
        tiling, syntax, width, vectors = self.tiling, self.syntax, self.width, self.tiling.vectors
        depth, numbers = tiling.stage_depth, range(tiling.rows)
        scalar = syntax.vector(1)
        memory: Lines = []
        stage_a: Lines = []
        stride = depth + max(width, 4)
        if tiling.copy_a:
            memory.append(syntax.plain.shared_array("rows_a", scalar, tiling.tile_m * stride))
            call = syntax.loaded(f"load_a(${{pass}}batch, {self.tile_row} + m, step + k)", 1)
            stage_a = [
                syntax.loop("m", "0", str(tiling.tile_m), "1"),
                *indented([syntax.loop("k", "0", "depth", "1"), f"    rows_a[m * {stride} + k] = {call};", "}"]),
                "}",
            ]
            loads = [f"rows_a[(block * {tiling.rows} + {i}) * {stride} + k]" for i in numbers]
        else:
            loads = [syntax.loaded(f"load_a(${{pass}}batch, {plus('row', i)}, step + k)", 1) for i in numbers]
        kept, resume, keep = self.kept(f"(strip * {tiling.blocks} + block)")
        memory += kept
        strip = f"(strip * {depth} + k) * {vectors}"
        return {
            "panel_b_size": [str(tiling.strips * depth * vectors)],
            "more_memory": memory,
            "stage_a": stage_a,
            "stage_b": self.panel_b(),
            "strips": [str(tiling.strips)],
            "blocks": [str(tiling.blocks)],
            "strip_column": [f"{self.tile_column} + {times('strip', tiling.columns)}"],
            "block_row": [f"{self.tile_row} + {times('block', tiling.rows)}"],
            "resume": resume,
            "load_a": [syntax.let(f"a_{i}", 1, load) for i, load in enumerate(loads)],
            # What is added to a pointer last, and is known, is a part of the instruction that loads.
            "load_b": [syntax.let(f"b_0_{j}", width, f"(panel_b + {strip})[{j}]") for j in range(vectors)],
            "multiply": self.multiply(1, {(i, 0): f"a_{i}" for i in numbers}),
            "keep": keep,
        }

    def panel_b(self) -> Lines:
        """The lines that copy a panel of b, in strips as wide as a block, so that it is read in order.

        Where b lies along k, squares are loaded and turned in registers.
        """
        tiling, syntax, width, vectors = self.tiling, self.syntax, self.width, self.tiling.vectors
        depth, across = tiling.stage_depth, tiling.strips * vectors
        lines: Lines = []
        first = "0"
        place = f"(part_of_n / {vectors} * {depth} + {{k}}) * {vectors} + part_of_n % {vectors}"
        n = f"{self.tile_column} + {times('part_of_n', width)}"
        parts_of_n = syntax.loop("part_of_n", "0", str(across), "1")
        if self.vectors.b_k and not self.vectors.b_n and width > 1:
            inner = [
                syntax.let(
                    f"read_{c}", width, syntax.loaded(f"load_b_vector_k(${{pass}}batch, step + k, {plus(n, c)})", width)
                )
                for c in range(width)
            ]
            for u in range(width):
                across_n = [syntax.component(f"read_{c}", u, width) for c in range(width)]
                inner.append(f"panel_b[{place.format(k=plus('k', u))}] = {syntax.made(across_n)};")
            first = f"depth / {width} * {width}"
            whole = [syntax.loop("k", "0", f"depth - {width - 1}", str(width)), *indented(inner), "}"]
            lines = [parts_of_n, *indented(whole), "}"]
        if self.vectors.b_n and width > 1:
            value = syntax.loaded(f"load_b_vector(${{pass}}batch, step + k, {n})", width)
        else:
            value = syntax.made(
                [syntax.loaded(f"load_b(${{pass}}batch, step + k, {plus(n, c)})", 1) for c in range(width)]
            )
        inner = [parts_of_n, f"    panel_b[{place.format(k='k')}] = {value};", "}"]
        return [*lines, syntax.loop("k", first, "depth", "1"), *indented(inner), "}"]

    def kept(self, number: str) -> tuple[Lines, Lines, Lines]:
        """Totals between two panels: the memory that keeps them, and the lines that load and store them."""
        tiling, syntax = self.tiling, self.syntax
        stores = self.stores()
        if part_depth(tiling, self.sizes) <= tiling.stage_depth:
            return [], [], stores
        count, vectors = tiling.rows * tiling.vectors, tiling.vectors
        size, kind = tiling.blocks * tiling.strips * count, syntax.vector(self.width)
        memory = syntax.plain.shared_array("kept", kind, size)
        every = [(i, j) for i in range(tiling.rows) for j in range(vectors)]
        pairs = [(f"total_{i}_{j}", f"kept[{plus('first_kept', i * vectors + j)}]") for i, j in every]
        taken = guarded([f"{total} = {place};" for total, place in pairs], [f"step > {self.first_k}"])
        put = [f"{place} = {total};" for total, place in pairs]
        more = f"step + {tiling.stage_depth} < {self.end_k}"
        return (
            [memory],
            [syntax.position("first_kept", times(number, count)), *taken],
            [f"if ({more}) {{", *indented(put), "} else {", *indented(stores), "}"],
        )


# -- matrix products whose groups share tiles of both operands


class Tiles(MatmulBody):
    """Operands are read into the group's memory, by all of its invocations together."""

    def own(self) -> dict[str, Lines]:
        """The placeholders of this form: tiles of both operands in the group's memory.

        Rows of a's tile are one vector longer than needed, so that lanes do not meet in one bank.
        """
        tiling, syntax, width = self.tiling, self.syntax, self.width
        along = tiling.stage_depth // width
        stride = along + 1
        across = tiling.tile_n // width
        load_a: Lines = []
        a: dict[tuple[int, int], str] = {}
        for i in range(tiling.rows):
            load_a.append(
                syntax.let(f"a_{i}", width, f"tile_a[{plus('row_of_tile', i * stride)} + {divided('k', width)}]")
            )
            a |= {(i, u): syntax.component(f"a_{i}", u, width) for u in range(width)}
        load_b = []
        for u in range(width):
            for j in range(tiling.vectors):
                place = plus("column_of_tile", u * across + j * tiling.lanes_n)
                load_b.append(syntax.let(f"b_{u}_{j}", width, f"tile_b[{times('k', across)} + {place}]"))
        down = f"lane / {tiling.lanes_n} * {tiling.rows * stride}" if tiling.lanes_m > 1 else "0"
        lane = f"lane % {tiling.lanes_n}" if tiling.lanes_m > 1 else "lane"
        return {
            "place_in_tiles": [syntax.position("row_of_tile", down), syntax.position("column_of_tile", lane)],
            "tile_a_size": [str(tiling.tile_m * stride)],
            "tile_b_size": [str(tiling.stage_depth * across)],
            "stage_a": self.stage_a(along, stride),
            "stage_b": self.stage_b(across),
            "load_a": load_a,
            "load_b": load_b,
            "multiply": self.multiply(width, a),
            "stores": self.stores(),
        }

    def stage_a(self, along: int, stride: int) -> Lines:
        """The lines by which all lanes together load a tile of a, in vectors along k or turned from vectors along m."""
        tiling, syntax, width, row = self.tiling, self.syntax, self.width, self.tile_row
        whole = width > 1 and self.sizes.k % width == 0
        if whole and self.vectors.a_m and not self.vectors.a_k and tiling.tile_m % width == 0:
            inner = [
                syntax.position("m", times(f"slot % {tiling.tile_m // width}", width)),
                syntax.position("part_of_k", f"slot / {tiling.tile_m // width}"),
                syntax.position("k", f"step + {times('part_of_k', width)}"),
            ]
            loads = [f"load_a_vector_m(${{pass}}batch, {row} + m, {plus('k', c)})" for c in range(width)]
            inner += self.turned(loads, [f"tile_a[({plus('m', c)}) * {stride} + part_of_k]" for c in range(width)])
            return self.rounds(tiling.tile_m // width * along, inner)
        inner = [
            syntax.position("m", f"slot / {along}" if along > 1 else "slot"),
            syntax.position("part_of_k", f"slot % {along}" if along > 1 else "0"),
            syntax.position("k", f"step + {times('part_of_k', width)}"),
        ]
        place = f"tile_a[m * {stride} + part_of_k]"
        if whole and self.vectors.a_k:
            call = syntax.loaded(f"load_a_vector(${{pass}}batch, {row} + m, k)", width)
            inner += self.whole(place, call)
        else:
            values = [self.scalar(f"load_a(${{pass}}batch, {row} + m, ", plus("k", c), ")") for c in range(width)]
            inner.append(f"{place} = {syntax.made(values)};")
        return self.rounds(tiling.tile_m * along, inner)

    def stage_b(self, across: int) -> Lines:
        """The lines by which all lanes together load a tile of b, in vectors along n or turned from vectors along k."""
        tiling, syntax, width, column = self.tiling, self.syntax, self.width, self.tile_column
        if width > 1 and self.sizes.k % width == 0 and self.vectors.b_k and not self.vectors.b_n:
            along = tiling.stage_depth // width
            inner = [
                syntax.position("part_of_n", f"slot / {along}"),
                syntax.position("depth", times(f"slot % {along}", width)),
                syntax.position("k", "step + depth"),
                syntax.position("n", f"{column} + {times('part_of_n', width)}"),
            ]
            loads = [f"load_b_vector_k(${{pass}}batch, k, {plus('n', c)})" for c in range(width)]
            inner += self.turned(loads, [f"tile_b[({plus('depth', c)}) * {across} + part_of_n]" for c in range(width)])
            return self.rounds(along * across, inner)
        inner = [
            syntax.position("k", f"step + slot / {across}"),
            syntax.position("n", f"{column} + {times(f'slot % {across}', width)}"),
        ]
        if self.vectors.b_n and width > 1:
            inner += self.whole("tile_b[slot]", syntax.loaded("load_b_vector(${pass}batch, k, n)", width))
        else:
            values = [self.scalar("load_b(${pass}batch, ", "k", f", {plus('n', c)})") for c in range(width)]
            inner.append(f"tile_b[slot] = {syntax.made(values)};")
        return self.rounds(tiling.stage_depth * across, inner)

    def rounds(self, count: int, inner: Lines) -> Lines:
        """`inner` for every slot of a tile, shared among the group. Few rounds are written out, to overlap."""
        syntax, size = self.syntax, self.tiling.group_size
        lines = []
        if count > 8 * size:
            return [syntax.loop("slot", "lane", str(count), str(size)), *indented(inner), "}"]
        for first in range(0, count, size):
            block = ["{", *indented([syntax.position("slot", plus("lane", first)), *inner]), "}"]
            lines += block if first + size <= count else guarded(block[1:-1], [f"{plus('lane', first)} < {count}"], 0)
        return lines

    @property
    def ragged(self) -> bool:
        return self.sizes.k % self.tiling.stage_depth != 0

    def whole(self, place: str, call: str) -> Lines:
        """A vector that is inside or outside of the operand as a whole. Outside are zeros."""
        if not self.ragged:
            return [f"{place} = {call};"]
        return [
            self.syntax.zero("loaded", self.width),
            *guarded([f"loaded = {call};"], [f"k < {self.end_k}"]),
            f"{place} = loaded;",
        ]

    def turned(self, calls: Lines, places: Lines) -> Lines:
        """A square of vectors, read one way and written the other."""
        syntax, width, numbers = self.syntax, self.width, range(self.width)
        if self.ragged:
            lines = [syntax.zero(f"read_{c}", width) for c in numbers]
            loads = [f"read_{c} = {syntax.loaded(call, width)};" for c, call in enumerate(calls)]
            lines += guarded(loads, [f"k < {self.end_k}"])
        else:
            lines = [syntax.let(f"read_{c}", width, syntax.loaded(call, width)) for c, call in enumerate(calls)]
        for u, place in enumerate(places):
            lines.append(f"{place} = {syntax.made([syntax.component(f'read_{c}', u, width) for c in numbers])};")
        return lines

    def scalar(self, before: str, k: str, after: str) -> str:
        """The load of one element, or 0 where the last tile reaches beyond k."""
        syntax = self.syntax
        if not self.ragged:
            return syntax.loaded(f"{before}{k}{after}", 1)
        # WGSL computes both sides of a choice, so the one that is not chosen must be inside of the operand too.
        place, zero = (f"min({k}, {self.end_k} - 1)", f"{syntax.type}()") if syntax.wgsl else (k, "0")
        return syntax.plain.choice(f"{k} < {self.end_k}", syntax.loaded(f"{before}{place}{after}", 1), zero)


# -- matrix products
#
# Out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n], in three forms that measuring chooses from.
#
# "blocks" reads operands where they are, "tiles" shares them in a group's memory, "panels" copies one where a
# processor reads it in order. The operands are reached only through accessor functions, so producers, views and
# windows are fused into those; the store accessor has the epilogue.


_KERNELS: dict[MatmulForm, type[MatmulBody]] = {"blocks": Blocks, "tiles": Tiles, "panels": Panels}


def text(
    dialect: Dialect,
    type: ComputeType,
    sizes: Sizes,
    tiling: Tiling,
    vectors: Vectors,
    **around: Unpack[Surroundings],
) -> str:
    """The kernel. `tiling` is one of `tilings`; its tile is not larger than the result."""
    kernel = _KERNELS[tiling.form](TypedSyntax(dialect, type), sizes, tiling, vectors)
    return filled(dialect, f"matmul_{tiling.form}", kernel.values(), grid(sizes, tiling)[1], around)
