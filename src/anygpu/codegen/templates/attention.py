"""Attention in one kernel: scores, softmax and the sum of values, with never more scores than a few keys have.

The greatest score so far is kept for every query; when a greater one comes, what was summed before is made smaller by
as much. "vectors" is for processors: queries are the components of long vectors. "lanes" is for wide machines: queries
are invocations, which share keys and values in the group's memory, or hand them to each other in a subgroup.
"""

from __future__ import annotations

from typing import Literal, Unpack

import msgspec

from anygpu.codegen.target import ComputeType, Dialect, Target
from anygpu.codegen.templates.matmul_words import Lines, Words, guarded, indented, plus, times
from anygpu.codegen.templates.stages import Surroundings, filled

Form = Literal["vectors", "lanes"]
#: What is added to scores: nothing, a number for each key, or one for each query and key.
BiasOf = Literal["none", "keys", "all"]

#: Queries and totals that one invocation of a wide machine keeps, in vectors of four: more do not fit its registers.
MOST_KEPT = 64
#: The same where an invocation is a lane of a processor, whose registers are near memory anyway.
_MOST_KEPT_NEAR = 128
_LOG2_E = 1.4426950408889634
#: Below every score but that of what is not seen.
_LOWEST = -3.402823466e38
#: Fewer queries are no work for vectors of them.
FEWEST_QUERIES = 4


class Sizes(msgspec.Struct, frozen=True):
    """Lengths of the axes: n queries of d numbers, m keys of d and values of e."""

    batch: int
    n: int
    m: int
    d: int
    e: int


class Meaning(msgspec.Struct, frozen=True):
    scale: float
    causal: bool
    bias: BiasOf = "none"


class Vectors(msgspec.Struct, frozen=True):
    """Which accessors of vectors there are: q and k along d, v and the result along e, the bias along queries."""

    q: bool = False
    k: bool = False
    v: bool = False
    out: bool = False
    bias: bool = False


class Tiling(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that tuning may change."""

    form: Form
    #: Queries of one invocation: so many vectors of `vector`, or so many single ones.
    queries: int
    vector: int = 1
    #: Keys of one step, and those whose scores are computed together.
    keys: int
    key_block: int
    #: "vectors": numbers of a value that are summed together.
    value_block: int = 4
    #: "lanes": invocations of a group, and how many hand keys and values to each other; 0 where they share memory.
    lanes: int = 1
    handed: int = 0

    @property
    def rows(self) -> int:
        """Queries of a group."""
        return self.queries * self.vector * self.lanes


def tilings(target: Target, sizes: Sizes) -> list[Tiling]:
    """Candidates for tuning, the best guess first; none where attention is better done in several kernels."""
    if sizes.n < FEWEST_QUERIES or min(sizes.m, sizes.d, sizes.e) == 0:
        return []
    found = _for_processors(target, sizes) if target.scalar_invocations else _for_wide_machines(target, sizes)
    fitting = [
        each
        for each in found
        if shared_bytes(each, sizes) <= target.group_memory
        and turns(each, sizes) <= target.loop_limit
        and each.lanes <= target.group_limit
    ]
    return list(dict.fromkeys(fitting))


def _for_processors(target: Target, sizes: Sizes) -> list[Tiling]:
    if target.dialect != "opencl":
        return []
    width = max(target.vector_width, 1)
    while width > sizes.n:
        width //= 2

    def tiling(vectors: int, keys: int, key_block: int, value_block: int) -> Tiling:
        return Tiling(
            form="vectors", queries=vectors, vector=width, keys=keys, key_block=key_block, value_block=value_block
        )

    found = [
        tiling(4, 64, 4, 4),
        tiling(2, 64, 8, 8),
        tiling(2, 128, 8, 8),
        tiling(4, 256, 4, 4),
        tiling(2, 512, 8, 8),
        tiling(1, 64, 16, 16),
        tiling(1, 512, 16, 16),
    ]
    # Some groups for every thread, and little that is done twice because queries do not fill the last of them.
    most = max(sizes.n // width, 1)
    enough = [each for each in found if each.queries <= most]
    return sorted(enough, key=lambda each: (groups_of(sizes, each) < 16, _rows_done(sizes, each) > 1.2 * sizes.n))


def _for_wide_machines(target: Target, sizes: Sizes) -> list[Tiling]:
    each = -(-sizes.d // 4) + -(-sizes.e // 4)
    subgroup = target.subgroup_size if target.dialect == "wgsl" and target.has("subgroups") else 0
    if subgroup in (4, 8):
        # They are the lanes of one processor, and a group's memory is no faster there than any other.
        counts = [count for count in (4, 2, 1) if count * each <= _MOST_KEPT_NEAR]
        tilings = [
            Tiling(form="lanes", queries=count, keys=subgroup, key_block=subgroup, lanes=subgroup, handed=subgroup)
            for count in counts
        ]
        return sorted(tilings, key=lambda tiling: _rows_done(sizes, tiling) > 1.5 * max(sizes.n, subgroup))
    counts = [count for count in (1, 2) if count * each <= MOST_KEPT]
    lanes = [count for count in (64, 128, 32) if count < 2 * sizes.n or count == 32]
    return [
        Tiling(form="lanes", queries=count, keys=keys, key_block=4, lanes=width)
        for count in counts
        for keys in (32, 16)
        for width in lanes
    ]


def _rows_done(sizes: Sizes, tiling: Tiling) -> int:
    return -(-sizes.n // tiling.rows) * tiling.rows


def groups_of(sizes: Sizes, tiling: Tiling) -> int:
    return sizes.batch * -(-sizes.n // tiling.rows)


def grid(sizes: Sizes, tiling: Tiling) -> tuple[int, int]:
    """Groups, and invocations in each."""
    return groups_of(sizes, tiling), tiling.lanes


def shared_bytes(tiling: Tiling, sizes: Sizes) -> int:
    """What a group needs of the memory that its invocations share."""
    if tiling.form == "vectors":
        return 4 * tiling.rows * (sizes.d + sizes.e + tiling.keys)
    return 0 if tiling.handed else 16 * tiling.keys * (-(-sizes.d // 4) + -(-sizes.e // 4))


def turns(tiling: Tiling, sizes: Sizes) -> int:
    """How often an invocation goes round its loops, at most."""
    steps = -(-sizes.m // tiling.keys)
    if tiling.form == "vectors":
        blocks = -(-tiling.keys // tiling.key_block) * sizes.d + -(-sizes.e // tiling.value_block) * tiling.keys
        return steps * (blocks + 2 * tiling.keys) + 2 * tiling.rows * (sizes.d + sizes.e)
    if tiling.handed:
        return steps
    staged = shared_bytes(tiling, sizes) // 16 // tiling.lanes + 2
    return steps * (1 + staged + tiling.keys // tiling.key_block)


def text(
    dialect: Dialect,
    sizes: Sizes,
    meaning: Meaning,
    tiling: Tiling,
    vectors: Vectors,
    *,
    calls: dict[str, str],
    exp2: str = "",
    **around: Unpack[Surroundings],
) -> str:
    """The kernel.

    `calls` has the names of functions, as in `CALLS`; `exp2` that of the dialect's own function where it is trusted.
    """
    words = Words(dialect, "f32")
    kernel: _Kernel = _InVectors(words, sizes, meaning, tiling, vectors)
    if tiling.form == "lanes":
        kernel = _InLanes(words, sizes, meaning, tiling, vectors, exp2)
    return filled(dialect, f"attention_{tiling.form}", kernel.values(), grid(sizes, tiling)[1], around, calls)


CALLS: dict[str, tuple[str, ComputeType]] = {"nan": ("nan", "f32"), "infinity": ("infinity", "f32")}


class _Kernel:
    """What both forms have in common."""

    def __init__(self, words: Words, sizes: Sizes, meaning: Meaning, tiling: Tiling, vectors: Vectors) -> None:
        self.words, self.sizes, self.meaning, self.tiling, self.vectors = words, sizes, meaning, tiling, vectors
        self.blocks = -(-sizes.n // tiling.rows)
        #: How many keys more than its own number a query sees.
        self.ahead = sizes.m - sizes.n

    def values(self) -> dict[str, Lines]:
        sizes, tiling = self.sizes, self.tiling
        kind = "causal attention" if self.meaning.causal else "attention"
        return {
            "title": [f"{kind}, {sizes.batch} times: [{sizes.n}, {sizes.d}] to [{sizes.m}, {sizes.d}, {sizes.e}]"],
            "rows": [str(tiling.rows)],
            "queries": [str(tiling.queries)],
            "keys": [str(tiling.keys)],
            "blocks": [str(self.blocks)],
            "end": ["end" if self.meaning.causal else str(sizes.m)],
            "last_key": self.last_key(),
            **self.own(),
        }

    def own(self) -> dict[str, Lines]:
        raise NotImplementedError

    def last_key(self) -> Lines:
        """Where the keys end that somebody in the group sees."""
        if not self.meaning.causal:
            return []
        return [self.words.position("end", f"min({self.sizes.m}, {plus('first_row', self.tiling.rows + self.ahead)})")]

    @property
    def scale(self) -> str:
        """Scores are logarithms of weights to the base of two."""
        return self.number(self.meaning.scale * _LOG2_E)

    def number(self, value: float) -> str:
        return repr(float(value)) if self.words.wgsl else f"{float(value)!r}f"

    @property
    def may_see_nothing(self) -> bool:
        """Whether there may be a query all of whose weights are zero."""
        return self.meaning.bias != "none" or (self.meaning.causal and self.ahead < 0)


class _InVectors(_Kernel):
    """Queries are the components of vectors. The last group has the last queries, and stores only its own."""

    def own(self) -> dict[str, Lines]:
        sizes, tiling = self.sizes, self.tiling
        vectors = tiling.queries
        kind = self.words.vector(tiling.vector)
        return {
            "vector": [kind],
            "integers": [kind.replace("float", "int")],
            "vectors": [str(vectors)],
            "key_block": [str(tiling.key_block)],
            "queries_size": [str(sizes.d * vectors)],
            "totals_size": [str(sizes.e * vectors)],
            "weights_size": [str(tiling.keys * vectors)],
            "row": [self.words.position("row", self.first_row())],
            "load_queries": self.load_queries(),
            "scores": self.scores(tiling.key_block),
            "scores_rest": self.scores_rest(),
            "add_values": self.add_values(),
            "store": self.store(),
        }

    def first_row(self) -> str:
        moved = self.sizes.n % self.tiling.rows
        return f"min(first_row, {self.sizes.n - self.tiling.rows})" if moved else "first_row"

    def load_queries(self) -> Lines:
        rows = self.tiling.rows
        place = f"((__local float *)queries)[d * {rows} + r]"
        return [
            f"for (int r = 0; r < {rows}; r++) {{",
            f"    for (int d = 0; d < {self.sizes.d}; d++) {{",
            f"        {place} = load_q(${{pass}}batch, row + r, d) * {self.scale};",
            "    }",
            "}",
        ]

    def scores(self, block: int) -> Lines:
        """Of so many keys: all products along d, then what is added to them, and what is not seen."""
        kind, vectors = self.words.vector(self.tiling.vector), self.tiling.queries
        each = ["#pragma unroll", f"for (int a = 0; a < {block}; a++) {{"]
        inner = ["#pragma unroll", f"for (int j = 0; j < {vectors}; j++) {{"]
        lines = [
            f"{kind} score[{block}][{vectors}];",
            *each,
            *indented([*inner, "    score[a][j] = 0.0f;", "}"]),
            "}",
            f"for (int d = 0; d < {self.sizes.d}; d++) {{",
            *indented(
                [
                    *each,
                    f"    const {kind} key = ({kind})(load_k(${{pass}}batch, step + i + a, d));",
                    *indented([*inner, f"    score[a][j] += key * queries[d * {vectors} + j];", "}"]),
                    "}",
                ]
            ),
            "}",
        ]
        if self.meaning.bias != "none":
            bias = f"{self.bias('step + i + a')} * {self.number(_LOG2_E)}"
            add = [*inner, f"    score[a][j] += {bias};", "}"]
            lines += [*each, *indented(add), "}"]
        if self.meaning.causal:
            hidden = f"({self.whole_numbers()} + ({plus(f'row + j * {self.tiling.vector}', self.ahead)}))"
            seen = f"select(score[a][j], ({kind})(-INFINITY), step + i + a > {hidden})"
            mask = [*each, *indented([*inner, f"    score[a][j] = {seen};", "}"]), "}"]
            lines += guarded(mask, [f"step + i + {block - 1} > {plus('row', self.ahead)}"])
        keep = [
            f"    weights[(i + a) * {vectors} + j] = score[a][j];",
            "    now[j] = fmax(now[j], score[a][j]);",
        ]
        return [*lines, *each, *indented([*inner, *keep, "}"]), "}"]

    def whole_numbers(self) -> str:
        width = self.tiling.vector
        return f"(int{width})({', '.join(map(str, range(width)))})" if width > 1 else "0"

    def bias(self, key: str) -> str:
        kind, width = self.words.vector(self.tiling.vector), self.tiling.vector
        if self.meaning.bias == "keys":
            return f"({kind})(load_bias(${{pass}}batch, 0, {key}))"
        if self.vectors.bias:
            return f"load_bias_vector(${{pass}}batch, row + j * {width}, {key})"
        return self.words.made([f"load_bias(${{pass}}batch, row + j * {width} + {c}, {key})" for c in range(width)])

    def scores_rest(self) -> Lines:
        """Keys that are no whole block."""
        if not self.meaning.causal and self.sizes.m % self.tiling.key_block == 0:
            return []
        return ["for (; i < count; i++) {", *indented(self.scores(1)), "}"]

    def add_values(self) -> Lines:
        e, block = self.sizes.e, min(self.tiling.value_block, self.sizes.e)
        lines = [f"for (int e = 0; e <= {e - block}; e += {block}) {{", *indented(self.add_block(block)), "}"]
        if e % block:
            lines += ["{", *indented([f"const int e = {e - e % block};", *self.add_block(e % block)]), "}"]
        return lines

    def add_block(self, block: int) -> Lines:
        kind, vectors = self.words.vector(self.tiling.vector), self.tiling.queries
        each = ["#pragma unroll", f"for (int a = 0; a < {block}; a++) {{"]
        inner = ["#pragma unroll", f"for (int j = 0; j < {vectors}; j++) {{"]
        place = f"totals[(e + a) * {vectors} + j]"
        return [
            f"{kind} total[{block}][{vectors}];",
            *each,
            *indented([*inner, f"    total[a][j] = {place} * factor[j];", "}"]),
            "}",
            "for (i = 0; i < count; i++) {",
            *indented(
                [
                    *each,
                    f"    const {kind} value = ({kind})(load_v(${{pass}}batch, step + i, e + a));",
                    *indented([*inner, f"    total[a][j] += value * weights[i * {vectors} + j];", "}"]),
                    "}",
                ]
            ),
            "}",
            *each,
            *indented([*inner, f"    {place} = total[a][j];", "}"]),
            "}",
        ]

    def store(self) -> Lines:
        rows, vectors = self.tiling.rows, self.tiling.queries
        moved = self.sizes.n % rows
        return [
            f"for (int j = 0; j < {vectors}; j++) {{",
            "    sum[j] = 1.0f / sum[j];",
            f"    for (int e = 0; e < {self.sizes.e}; e++) {{",
            f"        totals[e * {vectors} + j] *= sum[j];",
            "    }",
            "}",
            f"for (int r = {'first_row - row' if moved else '0'}; r < {rows}; r++) {{",
            f"    for (int e = 0; e < {self.sizes.e}; e++) {{",
            f"        store_out(${{pass}}batch, row + r, e, ((__local float *)totals)[e * {rows} + r]);",
            "    }",
            "}",
        ]


class _InLanes(_Kernel):
    """Queries are invocations. What is beyond the last query does the same as that one, and stores nothing."""

    def __init__(
        self, words: Words, sizes: Sizes, meaning: Meaning, tiling: Tiling, vectors: Vectors, exp2: str
    ) -> None:
        super().__init__(words, sizes, meaning, tiling, vectors)
        self.along_d, self.along_e = -(-sizes.d // 4), -(-sizes.e // 4)
        self.chunk = tiling.key_block
        self.exp2 = exp2
        #: Whether a step may have fewer keys.
        self.ragged = sizes.m % tiling.keys != 0

    def own(self) -> dict[str, Lines]:
        builtins = ["@builtin(subgroup_invocation_id) place_in_subgroup: u32,"] if self.tiling.handed else []
        return {
            "chunk": [str(self.chunk)],
            "builtins": builtins,
            "shared": self.shared(),
            "weight": self.weight(),
            "place": self.place(),
            "load_queries": self.load_queries(),
            "begin": self.begin(),
            "stage": self.stage(),
            "chunks": self.chunks(),
            "store": self.store(),
        }

    def weight(self) -> Lines:
        """The device's own function, where that was found to be good."""
        if self.exp2:
            return [f"return {self.exp2}(x);"]
        factors = ("1.339887440e-3", "9.618437358e-3", "5.550332471e-2", "2.402264791e-1", "6.931472029e-1", "1.0")
        return [
            "let n = round(max(x, -127.0));",
            "let r = x - n;",
            "var p = 1.535336188e-4;",
            *(f"p = fma(p, r, {factor});" for factor in factors),
            "return select(p * bitcast<f32>((i32(n) + 127) << 23u), 0.0, x < -126.0);",
        ]

    def weight_of(self, x: str) -> str:
        return f"weight({x})" if self.words.wgsl else f"exp2({x})"

    @property
    def each(self) -> range:
        return range(self.tiling.queries)

    def shared(self) -> Lines:
        if self.tiling.handed:
            return []
        sizes = {"tile_k": self.tiling.keys * self.along_d, "tile_v": self.tiling.keys * self.along_e}
        kind = self.words.vector(4)
        if self.words.wgsl:
            return [f"var<workgroup> {name}: array<{kind}, {size}>;" for name, size in sizes.items()]
        return [f"__local {kind} {name}[{size}];" for name, size in sizes.items()]

    def place(self) -> Lines:
        words, tiling, n = self.words, self.tiling, self.sizes.n
        lines = [
            words.position("batch", f"group / {self.blocks}"),
            words.position("first_row", times(f"group % {self.blocks}", tiling.rows)),
        ]
        for j in self.each:
            row = plus("first_row + lane", j * tiling.lanes)
            lines.append(words.position(f"row_{j}", f"min({row}, {n - 1})" if n % tiling.rows else row))
        if tiling.handed:
            lines.append(words.position("neighbour", f"i32(place_in_subgroup % {tiling.handed}u)"))
        return lines

    def loaded(self, name: str, row: str, first: int, length: int, in_vectors: bool) -> str:
        """Four numbers of a row; beyond its end they are zeros."""
        if in_vectors and first + 4 <= length:
            return f"load_{name}_vector(${{pass}}batch, {row}, {first})"
        calls = [
            f"load_{name}(${{pass}}batch, {row}, {c})" if c < length else self.number(0)
            for c in range(first, first + 4)
        ]
        return self.words.made(calls)

    def load_queries(self) -> Lines:
        words, lines = self.words, list[str]()
        for j in self.each:
            for part in range(self.along_d):
                value = self.loaded("q", f"row_{j}", 4 * part, self.sizes.d, self.vectors.q)
                lines.append(words.let(f"q_{j}_{part}", 4, f"{value} * {self.scale}"))
        return lines

    def begin(self) -> Lines:
        lines = list[str]()
        for j in self.each:
            lines += [self.words.zero(f"total_{j}_{part}", 4) for part in range(self.along_e)]
            lines += self.variables({f"greatest_{j}": self.number(_LOWEST), f"sum_{j}": self.number(0)})
        return lines

    def variables(self, values: dict[str, str]) -> Lines:
        return [f"{'var' if self.words.wgsl else 'float'} {name} = {value};" for name, value in values.items()]

    def stage(self) -> Lines:
        """Keys and values of one step, read by all of the group together."""
        if self.tiling.handed:
            return []
        words, tiling, sizes = self.words, self.tiling, self.sizes
        barrier = "workgroupBarrier();" if words.wgsl else "barrier(CLK_LOCAL_MEM_FENCE);"
        lines = [barrier]
        of_both = (("k", self.along_d, sizes.d, self.vectors.k), ("v", self.along_e, sizes.e, self.vectors.v))
        for name, along, length, in_vectors in of_both:
            key = f"step + slot / {along}" if along > 1 else "step + slot"
            key = f"min({key}, {sizes.m - 1})" if self.ragged else key
            inner = [words.position("key", key)]
            if along == 1:
                value = self.loaded(name, "key", 0, length, in_vectors)
            else:
                inner.append(words.position("first", f"slot % {along} * 4"))
                value = self.staged(name, length, in_vectors)
            inner.append(f"tile_{name}[slot] = {value};")
            lines += [words.loop("slot", "lane", str(tiling.keys * along), str(tiling.lanes)), *indented(inner), "}"]
        return [*lines, barrier]

    def staged(self, name: str, length: int, in_vectors: bool) -> str:
        if in_vectors and length % 4 == 0:
            return f"load_{name}_vector(${{pass}}batch, key, first)"
        calls = []
        for c in range(4):
            place = plus("first", c)
            call = f"load_{name}(${{pass}}batch, key, min({place}, {length - 1}))"
            if c > (length - 1) % 4:
                call = self.chosen(self.number(0), call, f"{place} < {length}")
            calls.append(call)
        return self.words.made(calls)

    def chosen(self, no: str, yes: str, condition: str) -> str:
        if self.words.wgsl:
            return f"select({no}, {yes}, {condition})"
        return f"({condition} ? {yes} : {no})"

    def chunks(self) -> Lines:
        if self.tiling.handed:
            return [self.words.position("key", "step"), *self.one_chunk()]
        end = f"min({self.tiling.keys}, {'end' if self.meaning.causal else self.sizes.m} - step)"
        count = end if self.ragged or self.meaning.causal else str(self.tiling.keys)
        inner = [self.words.position("key", "step + chunk"), *self.one_chunk()]
        return [self.words.loop("chunk", "0", count, str(self.chunk)), *indented(inner), "}"]

    def one_chunk(self) -> Lines:
        return [*self.scores(), *self.weights(), *self.add_values()]

    def source(self, name: str, part: int, x: int) -> str:
        """Four numbers of key or value `x` of a chunk."""
        if self.tiling.handed:
            return f"subgroupBroadcast({name}_{part}, {x}u)"
        along = self.along_d if name == "k" else self.along_e
        return f"tile_{name}[{plus(times(f'(chunk + {x})' if x else 'chunk', along), part)}]"

    def handed(self, name: str, part: int) -> Lines:
        """What this lane has for its neighbours."""
        if not self.tiling.handed:
            return []
        length, in_vectors = (self.sizes.d, self.vectors.k) if name == "k" else (self.sizes.e, self.vectors.v)
        value = self.loaded(name, self.own_key, 4 * part, length, in_vectors)
        return [self.words.let(f"{name}_{part}", 4, value)]

    @property
    def own_key(self) -> str:
        """The key that this lane reads for its neighbours."""
        return f"min(key + neighbour, {self.sizes.m - 1})" if self.ragged else "key + neighbour"

    def scores(self) -> Lines:
        words, lines = self.words, list[str]()
        for x in range(self.chunk):
            lines += self.variables({f"score_{j}_{x}": self.number(0) for j in self.each})
        for part in range(self.along_d):
            lines += self.handed("k", part)
            count = min(4, self.sizes.d - 4 * part)
            for x in range(self.chunk):
                lines.append(words.let(f"k_{part}_of_{x}", 4, self.source("k", part, x)))
                for j in self.each:
                    lines += [
                        words.multiply_add(
                            f"score_{j}_{x}",
                            words.component(f"q_{j}_{part}", c, 4),
                            words.component(f"k_{part}_of_{x}", c, 4),
                        )
                        for c in range(count)
                    ]
        return lines

    def weights(self) -> Lines:
        words, lines = self.words, list[str]()
        maximum = "max" if words.wgsl else "fmax"
        if self.meaning.bias == "keys" and self.tiling.handed:
            lines.append(words.let("bias", 1, f"load_bias(${{pass}}batch, 0, {self.own_key})"))
        for j in self.each:
            for x in range(self.chunk):
                score, key = f"score_{j}_{x}", plus("key", x)
                if self.meaning.bias != "none":
                    lines.append(f"{score} += {self.bias(j, x)} * {self.number(_LOG2_E)};")
                hidden = ""
                if self.meaning.causal:
                    hidden = f"{key} > {plus(f'row_{j}', self.ahead)}"
                elif self.ragged or self.sizes.m % self.chunk:
                    hidden = f"{key} >= {self.sizes.m}"
                if hidden:
                    lines.append(f"{score} = {self.chosen(score, '-${infinity}()', hidden)};")
            lines += self.variables({f"now_{j}": f"greatest_{j}"})
            lines += [f"now_{j} = {maximum}(now_{j}, score_{j}_{x});" for x in range(self.chunk)]
            lines.append(words.let(f"factor_{j}", 1, self.weight_of(f"greatest_{j} - now_{j}")))
            lines += [f"greatest_{j} = now_{j};", f"sum_{j} *= factor_{j};"]
            for x in range(self.chunk):
                lines.append(words.let(f"weight_{j}_{x}", 1, self.weight_of(f"score_{j}_{x} - now_{j}")))
                lines.append(f"sum_{j} += weight_{j}_{x};")
        return lines

    def bias(self, j: int, x: int) -> str:
        if self.meaning.bias == "keys" and self.tiling.handed:
            return f"subgroupBroadcast(bias, {x}u)"
        key = plus("key", x)
        key = f"min({key}, {self.sizes.m - 1})" if self.ragged else key
        return f"load_bias(${{pass}}batch, {'0' if self.meaning.bias == 'keys' else f'row_{j}'}, {key})"

    def add_values(self) -> Lines:
        words, lines = self.words, list[str]()
        for part in range(self.along_e):
            lines += self.handed("v", part)
            lines += [f"total_{j}_{part} *= factor_{j};" for j in self.each]
            for x in range(self.chunk):
                lines.append(words.let(f"v_{part}_of_{x}", 4, self.source("v", part, x)))
                for j in self.each:
                    share = words.all(f"weight_{j}_{x}", 4)
                    lines.append(words.multiply_add(f"total_{j}_{part}", share, f"v_{part}_of_{x}"))
        return lines

    def store(self) -> Lines:
        words, lines = self.words, list[str]()
        for j in self.each:
            inner = [words.let(f"share_{j}", 1, self.seen(j, f"{self.number(1)} / sum_{j}"))]
            for part in range(self.along_e):
                value = f"total_{j}_{part} * share_{j}"
                if self.vectors.out and 4 * part + 4 <= self.sizes.e:
                    inner.append(f"store_out_vector(${{pass}}batch, row_{j}, {4 * part}, {value});")
                    continue
                inner.append(words.let(f"result_{j}_{part}", 4, value))
                for c in range(min(4, self.sizes.e - 4 * part)):
                    number = words.component(f"result_{j}_{part}", c, 4)
                    inner.append(f"store_out(${{pass}}batch, row_{j}, {4 * part + c}, {number});")
            row = plus("first_row + lane", j * self.tiling.lanes)
            lines += guarded(inner, [f"{row} < {self.sizes.n}"]) if self.sizes.n % self.tiling.rows else inner
        return lines

    def seen(self, j: int, share: str) -> str:
        """Drivers may divide by zero as they like."""
        return self.chosen(share, "${nan}()", f"sum_{j} == 0.0") if self.may_see_nothing else share
