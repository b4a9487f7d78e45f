"""Matrix products: out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n], in two forms that measuring chooses from.

"blocks" reads operands where they are, "tiles" shares them in a group's memory. The operands are reached only through
accessor functions, so producers, views and windows are fused into those; the store accessor has the epilogue.
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
    parts,
    tilings,
)
from anygpu.engines.codegen.templates.stages import Surroundings, filled

__all__ = ["Sizes", "Tiling", "Vectors", "grid", "parts", "text", "tilings"]


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
# Out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n], in two forms that measuring chooses from.
#
# "blocks" reads operands where they are, "tiles" shares them in a group's memory. The operands are reached only through
# accessor functions, so producers, views and windows are fused into those; the store accessor has the epilogue.


_KERNELS: dict[MatmulForm, type[MatmulBody]] = {"blocks": Blocks, "tiles": Tiles}


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
