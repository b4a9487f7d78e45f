"""The unrolled lines of a matmul kernel: what the placeholders of its template become.

`TypedSyntax` spells vectors of one type. `MatmulBody` has what all forms share: places of tiles, totals, stores and
loads of both operands; `Blocks` is the form without shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anygpu.engines.codegen.target import SYNTAX, UNSIGNED, ComputeType, Dialect, Syntax, indented
from anygpu.engines.codegen.templates.matmul_tiling import Sizes, Tiling, Vectors, part_depth, parts

# -- lines of templates that are unrolled
#
# Numbers of one type, and vectors of them, in one dialect.


Lines = list[str]


class TypedSyntax(msgspec.Struct, frozen=True):
    """The syntax of a dialect for the compute type that a template works in."""

    dialect: Dialect
    type: ComputeType

    @property
    def plain(self) -> Syntax:
        return SYNTAX[self.dialect]

    @property
    def wgsl(self) -> bool:
        return self.dialect == "wgsl"

    @property
    def computed(self) -> ComputeType:
        """The type of totals. Signed overflow is undefined in C, so OpenCL kernels compute in unsigned numbers."""
        return self.type if self.wgsl else UNSIGNED.get(self.type, self.type)

    @property
    def calls_in_a_row(self) -> int:
        """More calls of a store accessor than this are made in a loop: each is the whole epilogue once more.

        A loop over registers is written out by the compilers of WGSL in any case, and costs more than the calls do.
        """
        return 64 if self.wgsl else 16

    def vector(self, width: int) -> str:
        return self.plain.vector(self.computed, width)

    def let(self, name: str, width: int, value: str) -> str:
        return self.plain.let(name, self.vector(width), value)

    def position(self, name: str, value: str) -> str:
        return self.plain.position(name, value)

    def zero(self, name: str, width: int) -> str:
        kind = self.vector(width)
        return self.plain.variable(name, kind, f"{kind}()" if self.wgsl else "0")

    def loop(self, name: str, first: str, end: str, step: str) -> str:
        return self.plain.loop(name, first, f"< {end}", "++" if step == "1" else f" += {step}")

    def component(self, value: str, number: int, width: int) -> str:
        """One component of a vector; a vector of one is itself."""
        if width == 1:
            return value
        return f"{value}[{number}]" if self.wgsl else self.plain.component(value, number)

    def all(self, value: str, width: int) -> str:
        """The same number in all components."""
        return value if width == 1 else self.plain.construct(self.vector(width), [value])

    def made(self, values: Sequence[str]) -> str:
        return values[0] if len(values) == 1 else self.plain.construct(self.vector(len(values)), values)

    def loaded(self, value: str, width: int) -> str:
        """The value of an accessor, in the type of totals."""
        return value if self.computed == self.type else f"as_{self.vector(width)}({value})"

    def stored(self, value: str, width: int) -> str:
        """A total, in the type that an accessor takes."""
        return value if self.computed == self.type else f"as_{self.plain.vector(self.type, width)}({value})"

    def multiply_add(self, total: str, a: str, b: str) -> str:
        """WGSL leaves it to the driver whether a product is rounded before it is added, and few drivers choose well."""
        if self.wgsl and self.type == "f32":
            return f"{total} = fma({a}, {b}, {total});"
        return f"{total} += {a} * {b};"


def plus(name: str, number: int) -> str:
    """`name + number`, without what adds nothing."""
    return f"{name} {'-' if number < 0 else '+'} {abs(number)}" if number else name


def times(name: str, number: int) -> str:
    return name if number == 1 else f"{name} * {number}"


def divided(name: str, number: int) -> str:
    return name if number == 1 else f"{name} / {number}"


def guarded(lines: Lines, conditions: Lines, steps: int = 1) -> Lines:
    """The lines inside of a condition, or bare ones where there is none."""
    if not conditions:
        return lines
    return [f"if ({' && '.join(conditions)}) {{", *indented(lines, steps), "}"]


# -- the unrolled lines of a matmul kernel
#
# What the placeholders of its template become.


class MatmulBody:
    """The base of all forms."""

    def __init__(self, syntax: TypedSyntax, sizes: Sizes, tiling: Tiling, vectors: Vectors) -> None:
        """The lines that all forms share. `split` says that k is cut into parts, which a second kernel adds."""
        self.syntax, self.sizes, self.tiling, self.vectors = syntax, sizes, tiling, vectors
        self.split = parts(tiling, sizes) > 1
        self.first_k = "first_k" if self.split else "0"
        self.end_k = "end_k" if self.split else str(sizes.k)
        self.width = tiling.vector
        # Vectors of WGSL begin at multiples of their width, and its accessor is only there when all of them do.
        self.out_n = vectors.out_n and self.width > 1
        #: Whether a tile that was moved to the edge may have stored only a part of a vector before.
        self.straddles = self.out_n and sizes.n % self.width != 0

    def values(self) -> dict[str, Lines]:
        """The placeholders of the template, those of the form included."""
        tiling, sizes = self.tiling, self.sizes
        product = f"[{sizes.m}, {sizes.k}] @ [{sizes.k}, {sizes.n}]"
        values = {
            "title": [f"{product}, {sizes.batch} times" if sizes.batch > 1 else product],
            "rows": [str(tiling.rows)],
            "columns": [str(tiling.columns)],
            "place": self.place(),
            "totals": self.totals(),
            "first_k": [self.first_k],
            "end_k": [self.end_k],
            "vector": [self.syntax.vector(self.width)],
            "width": [str(self.width)],
            "tile_rows": [str(tiling.tile_m)],
            "tile_columns": [str(tiling.tile_n)],
            "stage_depth": [str(tiling.stage_depth)],
        }
        return {**values, **self.own()}

    def own(self) -> dict[str, Lines]:
        """The placeholders that only this form has."""
        raise NotImplementedError

    # Where a group and an invocation work.

    def place(self) -> Lines:
        """The position of the group's tile and of the lane's block in it, and the part of k where that is cut.

        Last tiles are moved back to the edge, so that every tile is whole; what they share with others is stored once.
        """
        syntax, tiling, sizes = self.syntax, self.tiling, self.sizes
        tiles_m, tiles_n = -(-sizes.m // tiling.tile_m), -(-sizes.n // tiling.tile_n)
        lines = []
        if self.split:
            depth = part_depth(tiling, sizes)
            lines += [
                syntax.position("part", f"group / {sizes.batch * tiles_m * tiles_n}"),
                syntax.position("first_k", times("part", depth)),
                syntax.position("end_k", f"min(first_k + {depth}, {sizes.k})"),
            ]
        each = tiles_m * tiles_n
        group = f"group % {sizes.batch * each}" if self.split and sizes.batch > 1 else "group"
        lines.append(syntax.position("batch", divided(group, each) if sizes.batch > 1 else "0"))
        whole = sizes.batch == 1 and not self.split
        # Neighbouring groups have the same rows, or else the same columns: what they have in common stays in a cache.
        slow, fast = ("first_column", tiles_n), ("first_row", tiles_m)
        if not tiling.down:
            slow, fast = fast, slow
        numbers = {fast[0]: f"group % {fast[1]}" if fast[1] > 1 else "0"}
        number = divided("group", fast[1]) if whole else f"{divided('group', fast[1])} % {slow[1]}"
        numbers[slow[0]] = number if slow[1] > 1 else "0"
        for name, size in (("first_row", tiling.tile_m), ("first_column", tiling.tile_n)):
            lines.append(syntax.position(name, times(numbers[name], size) if numbers[name] != "0" else "0"))
        moved_m, moved_n = sizes.m % tiling.tile_m, sizes.n % tiling.tile_n
        if moved_m or moved_n:
            lines.append("// The last tiles end at the edge: what they have in common with others is not stored again.")
        tile_row, tile_column = "first_row", "first_column"
        if moved_m:
            tile_row = "tile_row"
            lines.append(syntax.position("tile_row", f"min(first_row, {sizes.m - tiling.tile_m})"))
        if moved_n:
            tile_column = "tile_column"
            lines.append(syntax.position("tile_column", f"min(first_column, {sizes.n - tiling.tile_n})"))
        self.tile_row, self.tile_column = tile_row, tile_column
        down = f" + lane / {tiling.lanes_n} * {tiling.rows}" if tiling.lanes_m > 1 else ""
        lane = f"lane % {tiling.lanes_n}" if tiling.lanes_m > 1 else "lane"
        aside = f" + {times(lane, self.width)}" if tiling.lanes_n > 1 else ""
        if tiling.handed:
            lines.append(syntax.position("neighbour", f"i32(place_in_subgroup % {tiling.handed}u)"))
        return [*lines, syntax.position("row", f"{tile_row}{down}"), syntax.position("column", f"{tile_column}{aside}")]

    def column(self, j: int) -> str:
        """The first column of vector `j` of an invocation: neighbours have neighbouring vectors."""
        return plus("column", j * self.tiling.lanes_n * self.width)

    # Totals, and what becomes of them.

    def totals(self) -> Lines:
        every = ((i, j) for i in range(self.tiling.rows) for j in range(self.tiling.vectors))
        return [self.syntax.zero(f"total_{i}_{j}", self.width) for i, j in every]

    def stores(self) -> Lines:
        """The lines that store the block: one by one, or in a loop where there would be too many calls in a row."""
        tiling, syntax = self.tiling, self.syntax
        count = tiling.rows * tiling.vectors
        lines = []
        if not self.straddles and count * (1 if self.out_n else self.width) <= syntax.calls_in_a_row:
            for i in range(tiling.rows):
                for j in range(tiling.vectors):
                    lines += self.store(plus("row", i), self.column(j), f"total_{i}_{j}")
            return lines
        kind = syntax.vector(self.width)
        lines.append(syntax.plain.array("totals", kind, count))
        every = ((i, j) for i in range(tiling.rows) for j in range(tiling.vectors))
        lines += [f"totals[{i * tiling.vectors + j}] = total_{i}_{j};" for i, j in every]
        lines.append(syntax.loop("i", "0", str(count), "1"))
        row = "row + i" if tiling.vectors == 1 else f"row + i / {tiling.vectors}"
        column = "column" if tiling.vectors == 1 else f"column + i % {tiling.vectors} * {tiling.lanes_n * self.width}"
        inner = [syntax.position("stored_row", row), syntax.position("stored_column", column)]
        inner.append(syntax.let("total", self.width, "totals[i]"))
        return [*lines, *indented([*inner, *self.store("stored_row", "stored_column", "total")]), "}"]

    def store(self, row: str, column: str, total: str) -> Lines:
        """One vector of totals, but for what another tile stores."""
        syntax = self.syntax
        target = "store_part" if self.split else "store_out"
        before = "${pass}part, batch" if self.split else "${pass}batch"
        guards = [f"{row} >= first_row"] if self.sizes.m % self.tiling.tile_m else []
        beside = self.sizes.n % self.tiling.tile_n != 0
        if self.out_n or self.width == 1:
            end = "_vector" if self.out_n else ""
            call = f"{target}{end}({before}, {row}, {column}, {syntax.stored(total, self.width)});"
            inside = [f"{column} >= first_column"] if beside else []
            if not self.straddles:
                return guarded([call], guards + inside)
            rest = self.rest(f"{target}({before}, {row}, ", column, total)
            return guarded([*guarded([call], inside)[:-1], "} else {", *indented(rest), "}"], guards)
        lines = []
        for c in range(self.width):
            place = f"{column} + {c}"
            value = syntax.stored(syntax.component(total, c, self.width), 1)
            call = f"{target}({before}, {row}, {place}, {value});"
            lines += guarded([call], [f"{place} >= first_column"] if beside else [])
        return guarded(lines, guards)

    def rest(self, call: str, column: str, total: str) -> Lines:
        """The components of a vector that no other tile stores, one by one. Vectors begin anywhere in OpenCL only."""
        syntax = self.syntax
        return [
            f"{syntax.vector(1)} components[{self.width}];",
            f"vstore{self.width}({total}, 0, components);",
            syntax.loop("c", f"first_column - {column}", str(self.width), "1"),
            f"    {call}{column} + c, {syntax.stored('components[c]', 1)});",
            "}",
        ]

    def multiply(self, depth: int, a: dict[tuple[int, int], str]) -> Lines:
        """Row by row, so that a row's totals stay in registers over all its k."""
        syntax, lines = self.syntax, []
        for i in range(self.tiling.rows):
            for u in range(depth):
                factor = syntax.all(a[i, u], self.width)
                if self.tiling.vectors > 1 and self.width > 1:
                    lines.append(syntax.let(f"a_{i}_{u}_all", self.width, factor))
                    factor = f"a_{i}_{u}_all"
                lines += [
                    syntax.multiply_add(f"total_{i}_{j}", factor, f"b_{u}_{j}") for j in range(self.tiling.vectors)
                ]
        return lines

    # Operands where they are.

    def direct_a(self, depth: int) -> tuple[Lines, dict[tuple[int, int], str]]:
        """The lines that load `depth` columns of a, and the expression of each element by row and depth."""
        syntax, rows, width = self.syntax, self.tiling.rows, self.width
        lines: Lines = []
        elements: dict[tuple[int, int], str] = {}
        if width > 1 and self.vectors.a_k and depth % width == 0:
            for i in range(rows):
                for q in range(0, depth, width):
                    call = f"load_a_vector(${{pass}}batch, {plus('row', i)}, {plus('k', q)})"
                    lines.append(syntax.let(f"a_{i}_{q}", width, syntax.loaded(call, width)))
                    elements |= {(i, q + c): syntax.component(f"a_{i}_{q}", c, width) for c in range(width)}
        elif width > 1 and self.vectors.a_m and rows % width == 0:
            for u in range(depth):
                for i in range(0, rows, width):
                    call = f"load_a_vector_m(${{pass}}batch, {plus('row', i)}, {plus('k', u)})"
                    lines.append(syntax.let(f"a_{i}_{u}", width, syntax.loaded(call, width)))
                    elements |= {(i + c, u): syntax.component(f"a_{i}_{u}", c, width) for c in range(width)}
        else:
            for i in range(rows):
                for u in range(depth):
                    call = f"load_a(${{pass}}batch, {plus('row', i)}, {plus('k', u)})"
                    lines.append(syntax.let(f"a_{i}_{u}", 1, syntax.loaded(call, 1)))
                    elements[i, u] = f"a_{i}_{u}"
        return lines, elements

    def broadcast_a(self, depth: int) -> tuple[Lines, dict[tuple[int, int], str]]:
        """Each lane of a subgroup loads different rows of a, and broadcasts them to the others."""
        syntax, rows, width, handed = self.syntax, self.tiling.rows, self.width, self.tiling.handed
        if rows < handed:
            return self.broadcast_along_k(depth)
        lines: Lines = []
        elements: dict[tuple[int, int], str] = {}

        def of_lane(value: str, lane: int) -> str:
            return f"subgroupBroadcast({value}, {lane}u)"

        if self.vectors.a_k and depth % width == 0 and width > 1:
            for q in range(0, depth, width):
                for i in range(0, rows, handed):
                    call = f"load_a_vector(${{pass}}batch, {plus('row', i)} + neighbour, {plus('k', q)})"
                    lines.append(syntax.let(f"a_{i}_{q}", width, call))
                    for lane in range(handed):
                        for c in range(width):
                            elements[i + lane, q + c] = of_lane(syntax.component(f"a_{i}_{q}", c, width), lane)
        elif self.vectors.a_m and rows % (handed * width) == 0 and width > 1:
            for u in range(depth):
                for i in range(0, rows, handed * width):
                    call = f"load_a_vector_m(${{pass}}batch, {plus('row', i)} + neighbour * {width}, {plus('k', u)})"
                    lines.append(syntax.let(f"a_{i}_{u}", width, call))
                    for lane in range(handed):
                        for c in range(width):
                            elements[i + lane * width + c, u] = of_lane(syntax.component(f"a_{i}_{u}", c, width), lane)
        else:
            for u in range(depth):
                for i in range(0, rows, handed):
                    call = f"load_a(${{pass}}batch, {plus('row', i)} + neighbour, {plus('k', u)})"
                    lines.append(syntax.let(f"a_{i}_{u}", 1, call))
                    elements |= {(i + lane, u): of_lane(f"a_{i}_{u}", lane) for lane in range(handed)}
        return lines, elements

    def broadcast_along_k(self, depth: int) -> tuple[Lines, dict[tuple[int, int], str]]:
        """With fewer rows than lanes, each lane loads a different k."""
        syntax, rows, width, handed = self.syntax, self.tiling.rows, self.width, self.tiling.handed
        if depth % handed:
            return self.direct_a(depth)
        lines: Lines = []
        elements: dict[tuple[int, int], str] = {}
        each = width if self.vectors.a_k and width > 1 and depth % (handed * width) == 0 else 1
        load = "load_a_vector" if each > 1 else "load_a"
        for i in range(rows):
            for q in range(0, depth, handed * each):
                k = f"{plus('k', q)} + {times('neighbour', each)}"
                lines.append(syntax.let(f"a_{i}_{q}", each, f"{load}(${{pass}}batch, {plus('row', i)}, {k})"))
                for lane in range(handed):
                    for c in range(each):
                        value = syntax.component(f"a_{i}_{q}", c, each)
                        elements[i, q + lane * each + c] = f"subgroupBroadcast({value}, {lane}u)"
        return lines, elements

    def direct_b(self, depth: int) -> Lines:
        """The lines that load `depth` rows of b as vectors, turned from vectors along k where b lies that way."""
        syntax, width = self.syntax, self.width
        lines = []
        for j in range(self.tiling.vectors):
            if self.vectors.b_k and not self.vectors.b_n and depth % width == 0 and width > 1:
                for q in range(0, depth, width):
                    for c in range(width):
                        call = f"load_b_vector_k(${{pass}}batch, {plus('k', q)}, {self.column(j)} + {c})"
                        lines.append(syntax.let(f"b_{q}_{j}_along_{c}", width, syntax.loaded(call, width)))
                    for u in range(width):
                        across = [syntax.component(f"b_{q}_{j}_along_{c}", u, width) for c in range(width)]
                        lines.append(syntax.let(f"b_{q + u}_{j}", width, syntax.made(across)))
                continue
            lines += [self.row_of_b(u, j) for u in range(depth)]
        return lines

    def row_of_b(self, u: int, j: int) -> str:
        """The line that loads one vector of b along n."""
        syntax, width, k = self.syntax, self.width, plus("k", u)
        if self.vectors.b_n and width > 1:
            value = syntax.loaded(f"load_b_vector(${{pass}}batch, {k}, {self.column(j)})", width)
        else:
            columns = [plus(self.column(j), c) for c in range(width)]
            value = syntax.made([syntax.loaded(f"load_b(${{pass}}batch, {k}, {n})", 1) for n in columns])
        return syntax.let(f"b_{u}_{j}", width, value)


class Blocks(MatmulBody):
    """Operands are read where they are."""

    def own(self) -> dict[str, Lines]:
        """The placeholders of this form: a loop over k in steps of the depth, and one over the rest."""
        tiling, syntax, k = self.tiling, self.syntax, self.sizes.k
        handed = ["@builtin(subgroup_invocation_id) place_in_subgroup: u32,"] if tiling.handed else []
        values: dict[str, Lines] = {"builtins": handed, "multiply": [], "tail": [], "stores": self.stores()}
        depth, tail = tiling.depth, k % tiling.depth
        if k >= depth:
            end = self.end_k
            if tail:
                # Only the last part has a rest.
                end = f"end_k - {depth - 1}" if self.split else str(k - tail)
            values["multiply"] += [
                syntax.loop("k", self.first_k, end, str(depth)),
                *indented(self.turn(depth)),
                "}",
            ]
        if tail:
            first = str(k - tail)
            if self.split:
                first = f"max(first_k, {k - tail})"
            values["tail"] = [syntax.loop("k", first, self.end_k, "1"), *indented(self.turn(1)), "}"]
        return values

    def turn(self, depth: int) -> Lines:
        """The lines of one step along k: loads of both operands, and the products.

        With few rows on a subgroup each row of b is used at once, so that fewer registers are needed.
        """
        lines, a = self.broadcast_a(depth) if self.tiling.handed else self.direct_a(depth)
        rows, vectors = range(self.tiling.rows), range(self.tiling.vectors)
        if not (len(rows) < self.tiling.handed and (self.vectors.b_n or not self.vectors.b_k)):
            return [*lines, *self.direct_b(depth), *self.multiply(depth, a)]
        # A turn is long here: what it reads is used at once, and needs no register any longer.
        for u in range(depth):
            lines += [self.row_of_b(u, j) for j in vectors]
            for i in rows:
                factor = self.syntax.all(a[i, u], self.width)
                lines += [self.syntax.multiply_add(f"total_{i}_{j}", factor, f"b_{u}_{j}") for j in vectors]
        return lines
