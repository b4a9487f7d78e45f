"""Attention: its sizes, the ways to cut it that measuring chooses from, and the lines that all ways share."""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.engines.codegen.target import Target
from anygpu.engines.codegen.templates.matmul_lines import Lines, TypedSyntax, plus

AttentionForm = Literal["vectors", "lanes"]
#: The bias of scores: none, a number for each key, or one for each query and key.
BiasOf = Literal["none", "keys", "all"]

#: Queries and totals that one invocation of a wide machine keeps, in vectors of four: more do not fit its registers.
MOST_KEPT = 64
#: The same where an invocation is a lane of a processor, whose registers are near memory anyway.
_MOST_KEPT_NEAR = 128
#: Fewer queries are no work for vectors of them.
FEWEST_QUERIES = 4


class AttentionSizes(msgspec.Struct, frozen=True):
    """Lengths of the axes: n queries of d numbers, m keys of d and values of e."""

    batch: int
    n: int
    m: int
    d: int
    e: int


class Meaning(msgspec.Struct, frozen=True):
    """The parameters of one attention: scale, causal mask and kind of bias."""

    scale: float
    causal: bool
    bias: BiasOf = "none"


class AttentionVectors(msgspec.Struct, frozen=True):
    """The vector accessors that exist: q and k along d, v and the result along e, the bias along queries."""

    q: bool = False
    k: bool = False
    v: bool = False
    out: bool = False
    bias: bool = False


class AttentionTiling(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that tuning may change."""

    form: AttentionForm
    #: Queries of one invocation, in vectors of `vector` or single ones.
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


def tilings(target: Target, sizes: AttentionSizes) -> list[AttentionTiling]:
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


def _for_processors(target: Target, sizes: AttentionSizes) -> list[AttentionTiling]:
    """Tilings for OpenCL on processors, the likely best first: a vector holds a column of queries.

    Those with fewer than 16 groups, or with many rows done twice, come last.
    """
    if target.dialect != "opencl":
        return []
    width = max(target.vector_width, 1)
    while width > sizes.n:
        width //= 2

    def tiling(vectors: int, keys: int, key_block: int, value_block: int) -> AttentionTiling:
        return AttentionTiling(
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


def _for_wide_machines(target: Target, sizes: AttentionSizes) -> list[AttentionTiling]:
    """Tilings for GPUs, the likely best first: each lane has a query or a few, as many as registers hold.

    On small subgroups keys are handed from lane to lane in place of the group's memory.
    """
    each = -(-sizes.d // 4) + -(-sizes.e // 4)
    subgroup = target.subgroup_size if target.dialect == "wgsl" and target.has("subgroups") else 0
    if subgroup in (4, 8):
        # They are the lanes of one processor, and a group's memory is no faster there than any other.
        counts = [count for count in (4, 2, 1) if count * each <= _MOST_KEPT_NEAR]
        tilings = [
            AttentionTiling(
                form="lanes", queries=count, keys=subgroup, key_block=subgroup, lanes=subgroup, handed=subgroup
            )
            for count in counts
        ]
        return sorted(tilings, key=lambda tiling: _rows_done(sizes, tiling) > 1.5 * max(sizes.n, subgroup))
    counts = [count for count in (1, 2) if count * each <= MOST_KEPT]
    lanes = [count for count in (64, 128, 32) if count < 2 * sizes.n or count == 32]
    return [
        AttentionTiling(form="lanes", queries=count, keys=keys, key_block=4, lanes=width)
        for count in counts
        for keys in (32, 16)
        for width in lanes
    ]


def _rows_done(sizes: AttentionSizes, tiling: AttentionTiling) -> int:
    return -(-sizes.n // tiling.rows) * tiling.rows


def groups_of(sizes: AttentionSizes, tiling: AttentionTiling) -> int:
    return sizes.batch * -(-sizes.n // tiling.rows)


def grid(sizes: AttentionSizes, tiling: AttentionTiling) -> tuple[int, int]:
    """Groups, and invocations in each."""
    return groups_of(sizes, tiling), tiling.lanes


def shared_bytes(tiling: AttentionTiling, sizes: AttentionSizes) -> int:
    """Bytes of shared memory that a group needs."""
    if tiling.form == "vectors":
        return 4 * tiling.rows * (sizes.d + sizes.e + tiling.keys)
    return 0 if tiling.handed else 16 * tiling.keys * (-(-sizes.d // 4) + -(-sizes.e // 4))


def turns(tiling: AttentionTiling, sizes: AttentionSizes) -> int:
    """The most rounds of all loops of an invocation."""
    steps = -(-sizes.m // tiling.keys)
    if tiling.form == "vectors":
        blocks = -(-tiling.keys // tiling.key_block) * sizes.d + -(-sizes.e // tiling.value_block) * tiling.keys
        return steps * (blocks + 2 * tiling.keys) + 2 * tiling.rows * (sizes.d + sizes.e)
    if tiling.handed:
        return steps
    staged = shared_bytes(tiling, sizes) // 16 // tiling.lanes + 2
    return steps * (1 + staged + tiling.keys // tiling.key_block)


# -- the lines that both forms of attention share


LOG2_E = 1.4426950408889634
#: Below every score but that of what is not seen.
LOWEST = -3.402823466e38


class AttentionKernel:
    """The base of both forms."""

    def __init__(
        self,
        syntax: TypedSyntax,
        sizes: AttentionSizes,
        meaning: Meaning,
        tiling: AttentionTiling,
        vectors: AttentionVectors,
    ) -> None:
        """The kernel of one attention.

        `ahead` is how many more keys than queries there are, which a causal mask shifts by.
        """
        self.syntax, self.sizes, self.meaning, self.tiling, self.vectors = syntax, sizes, meaning, tiling, vectors
        self.blocks = -(-sizes.n // tiling.rows)
        #: Query i attends to the keys up to i + ahead.
        self.ahead = sizes.m - sizes.n

    def values(self) -> dict[str, Lines]:
        """The placeholders of the template, those of the form included."""
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
