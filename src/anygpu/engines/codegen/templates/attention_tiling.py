"""Attention: its sizes, and the tilings that measuring chooses from.

`tilings` lists the candidates for a target, the likely best first, without those that its memory, registers or loop
limits do not allow.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.engines.codegen.target import Target

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
    """The vector accessors that exist: q and k along d, v and the result along e."""

    q: bool = False
    k: bool = False
    v: bool = False
    out: bool = False


class AttentionTiling(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that tuning may change."""

    #: Queries of one invocation.
    queries: int
    #: Keys of one step, and those whose scores are computed together.
    keys: int
    key_block: int
    #: Invocations of a group, and how many hand keys and values to each other; 0 where they share memory.
    lanes: int = 1
    handed: int = 0

    @property
    def rows(self) -> int:
        """Queries of a group."""
        return self.queries * self.lanes


def tilings(target: Target, sizes: AttentionSizes) -> list[AttentionTiling]:
    """Candidates for tuning, the best guess first; none where attention is better done in several kernels."""
    if sizes.n < FEWEST_QUERIES or min(sizes.m, sizes.d, sizes.e) == 0:
        return []
    fitting = [
        each
        for each in _started(target, sizes)
        if shared_bytes(each, sizes) <= target.group_memory
        and turns(each, sizes) <= target.loop_limit
        and each.lanes <= target.group_limit
    ]
    return list(dict.fromkeys(fitting))


def _started(target: Target, sizes: AttentionSizes) -> list[AttentionTiling]:
    """Return the first tilings to try, the likely best first: each lane has a query or a few, as many as registers
    hold.

    On small subgroups keys are handed from lane to lane in place of the group's memory.
    """
    each = -(-sizes.d // 4) + -(-sizes.e // 4)
    subgroup = target.subgroup_size if target.dialect == "wgsl" and target.has("subgroups") else 0
    if subgroup in (4, 8):
        # They are the lanes of one processor, and a group's memory is no faster there than any other.
        counts = [count for count in (4, 2, 1) if count * each <= _MOST_KEPT_NEAR]
        tilings = [
            AttentionTiling(queries=count, keys=subgroup, key_block=subgroup, lanes=subgroup, handed=subgroup)
            for count in counts
        ]
        return sorted(tilings, key=lambda tiling: _rows_done(sizes, tiling) > 1.5 * max(sizes.n, subgroup))
    counts = [count for count in (1, 2) if count * each <= MOST_KEPT]
    lanes = [count for count in (64, 128, 32) if count < 2 * sizes.n or count == 32]
    return [
        AttentionTiling(queries=count, keys=keys, key_block=4, lanes=width)
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
    return 0 if tiling.handed else 16 * tiling.keys * (-(-sizes.d // 4) + -(-sizes.e // 4))


def turns(tiling: AttentionTiling, sizes: AttentionSizes) -> int:
    """The most rounds of all loops of an invocation."""
    steps = -(-sizes.m // tiling.keys)
    if tiling.handed:
        return steps
    staged = shared_bytes(tiling, sizes) // 16 // tiling.lanes + 2
    return steps * (1 + staged + tiling.keys // tiling.key_block)
