"""Matrix products for processors: one operand is copied to where it is read from front to end."""

from __future__ import annotations

from anygpu.codegen.syntax import indented
from anygpu.codegen.templates.matmul_lines import MatmulBody
from anygpu.codegen.templates.matmul_syntax import Lines, guarded, plus, times
from anygpu.codegen.templates.matmul_tiling import part_depth


class Panels(MatmulBody):
    """b is copied in panels, and rows pass over them in blocks."""

    def own(self) -> dict[str, Lines]:
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
