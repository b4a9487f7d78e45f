"""Attention in one kernel: scores, softmax and the sum of values, with never more scores than a few keys have.

Each lane has a query or a few and walks over the keys. It keeps a running maximum and sum, so the scores are never all
in memory: when a greater score comes, what was summed before is made smaller by as much. Lanes share keys and values in
the group's memory, or hand them to each other in a subgroup.
"""

from __future__ import annotations

from typing import Unpack

from anygpu.engines.codegen.target import ComputeType, Dialect, indented
from anygpu.engines.codegen.templates.attention_tiling import (
    AttentionSizes,
    AttentionTiling,
    AttentionVectors,
    BiasOf,
    Meaning,
    grid,
    shared_bytes,
    tilings,
    turns,
)
from anygpu.engines.codegen.templates.matmul_lines import Lines, TypedSyntax, guarded, plus, times
from anygpu.engines.codegen.templates.stages import Surroundings, filled

__all__ = [
    "CALLS",
    "AttentionSizes",
    "AttentionTiling",
    "AttentionVectors",
    "BiasOf",
    "Meaning",
    "grid",
    "shared_bytes",
    "text",
    "tilings",
    "turns",
]


LOG2_E = 1.4426950408889634
#: Below every score but that of what is not seen.
LOWEST = -3.402823466e38


class _Kernel:
    """The lines of one kernel. A lane beyond the last query does the same as the last one, and stores nothing."""

    def __init__(
        self,
        syntax: TypedSyntax,
        sizes: AttentionSizes,
        meaning: Meaning,
        tiling: AttentionTiling,
        vectors: AttentionVectors,
        exp2: str,
    ) -> None:
        """The kernel of one attention. `exp2` is the name of the library's function.

        `ahead` is how many more keys than queries there are, which a causal mask shifts by.
        """
        self.syntax, self.sizes, self.meaning, self.tiling, self.vectors = syntax, sizes, meaning, tiling, vectors
        self.blocks = -(-sizes.n // tiling.rows)
        #: Query i attends to the keys up to i + ahead.
        self.ahead = sizes.m - sizes.n
        self.along_d, self.along_e = -(-sizes.d // 4), -(-sizes.e // 4)
        self.chunk = tiling.key_block
        self.exp2 = exp2
        #: Whether a step may have fewer keys.
        self.ragged = sizes.m % tiling.keys != 0

    def values(self) -> dict[str, Lines]:
        """The placeholders of the template."""
        sizes, tiling = self.sizes, self.tiling
        kind = "causal attention" if self.meaning.causal else "attention"
        builtins = ["@builtin(subgroup_invocation_id) place_in_subgroup: u32,"] if tiling.handed else []
        return {
            "title": [f"{kind}, {sizes.batch} times: [{sizes.n}, {sizes.d}] to [{sizes.m}, {sizes.d}, {sizes.e}]"],
            "queries": [str(tiling.queries)],
            "keys": [str(tiling.keys)],
            "end": ["end" if self.meaning.causal else str(sizes.m)],
            "last_key": self.last_key(),
            "chunk": [str(self.chunk)],
            "builtins": builtins,
            "helpers": ["", *self.shared(), "", *self.weight()] if self.syntax.wgsl else [],
            "shared": [] if self.syntax.wgsl else self.shared(),
            "place": self.place(),
            "load_queries": self.load_queries(),
            "begin": self.begin(),
            "stage": self.stage(),
            "chunks": self.chunks(),
            "store": self.store(),
        }

    def last_key(self) -> Lines:
        """Declares the end of the keys that any query of the group attends to."""
        if not self.meaning.causal:
            return []
        return [self.syntax.position("end", f"min({self.sizes.m}, {plus('first_row', self.tiling.rows + self.ahead)})")]

    @property
    def scale(self) -> str:
        """Scores are logarithms of weights to the base of two."""
        return self.number(self.meaning.scale * LOG2_E)

    def number(self, value: float) -> str:
        return repr(float(value)) if self.syntax.wgsl else f"{float(value)!r}f"

    @property
    def may_see_nothing(self) -> bool:
        """Whether there may be a query all of whose weights are zero."""
        return self.meaning.bias != "none" or (self.meaning.causal and self.ahead < 0)

    def weight(self) -> Lines:
        """A function 2^x: the device's own, where that was found to be good."""
        head = [
            "// 2^x of numbers that are not positive. What is not a number stays what it is.",
            "fn weight(x: f32) -> f32 {",
        ]
        if self.exp2:
            return [*head, f"    return {self.exp2}(x);", "}"]
        factors = ("1.339887440e-3", "9.618437358e-3", "5.550332471e-2", "2.402264791e-1", "6.931472029e-1", "1.0")
        return [
            *head,
            "    let n = round(max(x, -127.0));",
            "    let r = x - n;",
            "    var p = 1.535336188e-4;",
            *(f"    p = fma(p, r, {factor});" for factor in factors),
            "    return select(p * bitcast<f32>((i32(n) + 127) << 23u), 0.0, x < -126.0);",
            "}",
        ]

    def weight_of(self, x: str) -> str:
        return f"weight({x})" if self.syntax.wgsl else f"exp2({x})"

    @property
    def each(self) -> range:
        return range(self.tiling.queries)

    def shared(self) -> Lines:
        """The group's memory for keys and values; none where lanes hand them to each other."""
        if self.tiling.handed:
            return []
        sizes = {"tile_k": self.tiling.keys * self.along_d, "tile_v": self.tiling.keys * self.along_e}
        kind = self.syntax.vector(4)
        return [self.syntax.plain.shared_array(name, kind, size) for name, size in sizes.items()]

    def place(self) -> Lines:
        """The rows of the queries that a lane has, none beyond the last one."""
        syntax, tiling, n = self.syntax, self.tiling, self.sizes.n
        lines = [
            syntax.position("batch", f"group / {self.blocks}"),
            syntax.position("first_row", times(f"group % {self.blocks}", tiling.rows)),
        ]
        for j in self.each:
            row = plus("first_row + lane", j * tiling.lanes)
            lines.append(syntax.position(f"row_{j}", f"min({row}, {n - 1})" if n % tiling.rows else row))
        if tiling.handed:
            lines.append(syntax.position("neighbour", f"i32(place_in_subgroup % {tiling.handed}u)"))
        return lines

    def loaded(self, name: str, row: str, first: int, length: int, in_vectors: bool) -> str:
        """Four numbers of a row; beyond its end they are zeros."""
        if in_vectors and first + 4 <= length:
            return f"load_{name}_vector(${{pass}}batch, {row}, {first})"
        calls = [
            f"load_{name}(${{pass}}batch, {row}, {c})" if c < length else self.number(0)
            for c in range(first, first + 4)
        ]
        return self.syntax.made(calls)

    def load_queries(self) -> Lines:
        """Load the lane's queries into registers, scaled, four numbers to a vector."""
        syntax, lines = self.syntax, list[str]()
        for j in self.each:
            for part in range(self.along_d):
                value = self.loaded("q", f"row_{j}", 4 * part, self.sizes.d, self.vectors.q)
                lines.append(syntax.let(f"q_{j}_{part}", 4, f"{value} * {self.scale}"))
        return lines

    def begin(self) -> Lines:
        """Totals and sums at 0, and the greatest score at the lowest number."""
        lines = list[str]()
        for j in self.each:
            lines += [self.syntax.zero(f"total_{j}_{part}", 4) for part in range(self.along_e)]
            lines += self.variables({f"greatest_{j}": self.number(LOWEST), f"sum_{j}": self.number(0)})
        return lines

    def variables(self, values: dict[str, str]) -> Lines:
        return [self.syntax.plain.variable(name, self.syntax.vector(1), value) for name, value in values.items()]

    def stage(self) -> Lines:
        """Keys and values of one step, read by all of the group together."""
        if self.tiling.handed:
            return []
        syntax, tiling, sizes = self.syntax, self.tiling, self.sizes
        lines = [syntax.plain.barrier]
        of_both = (("k", self.along_d, sizes.d, self.vectors.k), ("v", self.along_e, sizes.e, self.vectors.v))
        for name, along, length, in_vectors in of_both:
            key = f"step + slot / {along}" if along > 1 else "step + slot"
            key = f"min({key}, {sizes.m - 1})" if self.ragged else key
            inner = [syntax.position("key", key)]
            if along == 1:
                value = self.loaded(name, "key", 0, length, in_vectors)
            else:
                inner.append(syntax.position("first", f"slot % {along} * 4"))
                value = self.staged(name, length, in_vectors)
            inner.append(f"tile_{name}[slot] = {value};")
            lines += [syntax.loop("slot", "lane", str(tiling.keys * along), str(tiling.lanes)), *indented(inner), "}"]
        return [*lines, syntax.plain.barrier]

    def staged(self, name: str, length: int, in_vectors: bool) -> str:
        """Four numbers of a key or value for the group's memory; zeros where they are beyond the width."""
        if in_vectors and length % 4 == 0:
            return f"load_{name}_vector(${{pass}}batch, key, first)"
        calls = []
        for c in range(4):
            place = plus("first", c)
            call = f"load_{name}(${{pass}}batch, key, min({place}, {length - 1}))"
            if c > (length - 1) % 4:
                call = self.syntax.plain.choice(f"{place} < {length}", call, self.number(0))
            calls.append(call)
        return self.syntax.made(calls)

    def chunks(self) -> Lines:
        """The loop over chunks of the keys that are in the group's memory; a subgroup's keys are a single chunk."""
        if self.tiling.handed:
            return [self.syntax.position("key", "step"), *self.one_chunk()]
        end = f"min({self.tiling.keys}, {'end' if self.meaning.causal else self.sizes.m} - step)"
        count = end if self.ragged or self.meaning.causal else str(self.tiling.keys)
        inner = [self.syntax.position("key", "step + chunk"), *self.one_chunk()]
        return [self.syntax.loop("chunk", "0", count, str(self.chunk)), *indented(inner), "}"]

    def one_chunk(self) -> Lines:
        return [*self.scores(), *self.weights(), *self.add_values()]

    def source(self, name: str, part: int, x: int) -> str:
        """Four numbers of key or value `x` of a chunk."""
        if self.tiling.handed:
            return f"subgroupBroadcast({name}_{part}, {x}u)"
        along = self.along_d if name == "k" else self.along_e
        return f"tile_{name}[{plus(times(f'(chunk + {x})' if x else 'chunk', along), part)}]"

    def handed(self, name: str, part: int) -> Lines:
        """The vector that this lane loads and broadcasts."""
        if not self.tiling.handed:
            return []
        length, in_vectors = (self.sizes.d, self.vectors.k) if name == "k" else (self.sizes.e, self.vectors.v)
        value = self.loaded(name, self.own_key, 4 * part, length, in_vectors)
        return [self.syntax.let(f"{name}_{part}", 4, value)]

    @property
    def own_key(self) -> str:
        """The key that this lane reads for its neighbours."""
        return f"min(key + neighbour, {self.sizes.m - 1})" if self.ragged else "key + neighbour"

    def scores(self) -> Lines:
        """The scores of a chunk of keys for each query of the lane, in base-2 logarithms."""
        syntax, lines = self.syntax, list[str]()
        for x in range(self.chunk):
            lines += self.variables({f"score_{j}_{x}": self.number(0) for j in self.each})
        for part in range(self.along_d):
            lines += self.handed("k", part)
            count = min(4, self.sizes.d - 4 * part)
            for x in range(self.chunk):
                lines.append(syntax.let(f"k_{part}_of_{x}", 4, self.source("k", part, x)))
                for j in self.each:
                    lines += [
                        syntax.multiply_add(
                            f"score_{j}_{x}",
                            syntax.component(f"q_{j}_{part}", c, 4),
                            syntax.component(f"k_{part}_of_{x}", c, 4),
                        )
                        for c in range(count)
                    ]
        return lines

    def weights(self) -> Lines:
        """The weights of a chunk's scores, and the factor by which earlier totals shrink when a new maximum is found.

        Hidden and missing keys have the score -inf. This is the running form of softmax, which never overflows.
        """
        syntax, lines = self.syntax, list[str]()
        maximum = "max" if syntax.wgsl else "fmax"
        if self.meaning.bias == "keys" and self.tiling.handed:
            lines.append(syntax.let("bias", 1, f"load_bias(${{pass}}batch, 0, {self.own_key})"))
        for j in self.each:
            for x in range(self.chunk):
                score, key = f"score_{j}_{x}", plus("key", x)
                if self.meaning.bias != "none":
                    lines.append(f"{score} += {self.bias(j, x)} * {self.number(LOG2_E)};")
                hidden = ""
                if self.meaning.causal:
                    hidden = f"{key} > {plus(f'row_{j}', self.ahead)}"
                elif self.ragged or self.sizes.m % self.chunk:
                    hidden = f"{key} >= {self.sizes.m}"
                if hidden:
                    lines.append(f"{score} = {syntax.plain.choice(hidden, '-${infinity}()', score)};")
            lines += self.variables({f"now_{j}": f"greatest_{j}"})
            lines += [f"now_{j} = {maximum}(now_{j}, score_{j}_{x});" for x in range(self.chunk)]
            lines.append(syntax.let(f"factor_{j}", 1, self.weight_of(f"greatest_{j} - now_{j}")))
            lines += [f"greatest_{j} = now_{j};", f"sum_{j} *= factor_{j};"]
            for x in range(self.chunk):
                lines.append(syntax.let(f"weight_{j}_{x}", 1, self.weight_of(f"score_{j}_{x} - now_{j}")))
                lines.append(f"sum_{j} += weight_{j}_{x};")
        return lines

    def bias(self, j: int, x: int) -> str:
        """The bias of a query and a key."""
        if self.meaning.bias == "keys" and self.tiling.handed:
            return f"subgroupBroadcast(bias, {x}u)"
        key = plus("key", x)
        key = f"min({key}, {self.sizes.m - 1})" if self.ragged else key
        return f"load_bias(${{pass}}batch, {'0' if self.meaning.bias == 'keys' else f'row_{j}'}, {key})"

    def add_values(self) -> Lines:
        """Add a chunk's values to the totals, by their weights, after the totals were scaled to the new maximum."""
        syntax, lines = self.syntax, list[str]()
        for part in range(self.along_e):
            lines += self.handed("v", part)
            lines += [f"total_{j}_{part} *= factor_{j};" for j in self.each]
            for x in range(self.chunk):
                lines.append(syntax.let(f"v_{part}_of_{x}", 4, self.source("v", part, x)))
                for j in self.each:
                    share = syntax.all(f"weight_{j}_{x}", 4)
                    lines.append(syntax.multiply_add(f"total_{j}_{part}", share, f"v_{part}_of_{x}"))
        return lines

    def store(self) -> Lines:
        """Divide the totals by the sums of weights, and store them.

        Lanes without a query of their own store nothing.
        """
        syntax, lines = self.syntax, list[str]()
        for j in self.each:
            inner = [syntax.let(f"share_{j}", 1, self.seen(j, f"{self.number(1)} / sum_{j}"))]
            for part in range(self.along_e):
                value = f"total_{j}_{part} * share_{j}"
                if self.vectors.out and 4 * part + 4 <= self.sizes.e:
                    inner.append(f"store_out_vector(${{pass}}batch, row_{j}, {4 * part}, {value});")
                    continue
                inner.append(syntax.let(f"result_{j}_{part}", 4, value))
                for c in range(min(4, self.sizes.e - 4 * part)):
                    number = syntax.component(f"result_{j}_{part}", c, 4)
                    inner.append(f"store_out(${{pass}}batch, row_{j}, {4 * part + c}, {number});")
            row = plus("first_row + lane", j * self.tiling.lanes)
            lines += guarded(inner, [f"{row} < {self.sizes.n}"]) if self.sizes.n % self.tiling.rows else inner
        return lines

    def seen(self, j: int, share: str) -> str:
        """Drivers may divide by zero as they like."""
        if not self.may_see_nothing:
            return share
        return self.syntax.plain.choice(f"sum_{j} == {self.number(0)}", "${nan}()", share)


def text(
    dialect: Dialect,
    sizes: AttentionSizes,
    meaning: Meaning,
    tiling: AttentionTiling,
    vectors: AttentionVectors,
    *,
    calls: dict[str, str],
    exp2: str = "",
    **around: Unpack[Surroundings],
) -> str:
    """The kernel.

    `calls` has the names of functions, as in `CALLS`; `exp2` that of the dialect's own function where it is trusted.
    """
    syntax = TypedSyntax(dialect, "f32")
    kernel = _Kernel(syntax, sizes, meaning, tiling, vectors, exp2)
    return filled(dialect, "attention", kernel.values(), grid(sizes, tiling)[1], around, calls)


CALLS: dict[str, tuple[str, ComputeType]] = {"nan": ("nan", "f32"), "infinity": ("infinity", "f32")}
