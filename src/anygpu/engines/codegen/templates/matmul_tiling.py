"""Tilings of a matrix product: the numbers that tuning may change, and candidates for a target.

A `Tiling` has the block of one lane, the lanes of a group and the depth of a step. `tilings` lists candidates by the
kind of device, without those that its memory or loop limits do not allow; `parts` says into how many pieces k is cut.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.engines.codegen.target import ComputeType, Target
from anygpu.engines.codegen.templates.stages import BYTES

MatmulForm = Literal["blocks", "tiles"]


class Sizes(msgspec.Struct, frozen=True):
    """Lengths of the axes; all are literals in the text."""

    batch: int
    m: int
    n: int
    k: int


class Vectors(msgspec.Struct, frozen=True):
    """The vector accessors that exist: a along k or m, b along n or k, and the result along n.

    Vectors begin at positions that are multiples of their width wherever the length of their axis is such a multiple,
    so a buffer of whole vectors can be read when it is.
    """

    a_k: bool = False
    a_m: bool = False
    b_n: bool = False
    b_k: bool = False
    out_n: bool = False


class Tiling(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that tuning may change."""

    form: MatmulForm
    #: The block of totals of one invocation: rows, and vectors of `vector` columns.
    rows: int
    vectors: int
    vector: int
    #: The depth of one round of the innermost loop.
    depth: int = 1
    #: Invocations of a group along m and n.
    lanes_m: int = 1
    lanes_n: int = 1
    #: The depth that is shared at a time.
    stage_depth: int = 0
    #: "blocks": through how many lanes of a subgroup a is read, which hand values to each other.
    handed: int = 0
    #: Whether neighbouring groups are below each other, and not beside.
    down: bool = False
    #: Into how many sums the sum over k is split.
    parts: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.vector

    @property
    def tile_m(self) -> int:
        return self.rows * self.lanes_m

    @property
    def tile_n(self) -> int:
        return self.columns * self.lanes_n

    @property
    def group_size(self) -> int:
        return self.lanes_m * self.lanes_n

    @property
    def unit(self) -> int:
        """The depth of a part is a multiple of this."""
        return self.stage_depth or self.depth


def part_depth(tiling: Tiling, sizes: Sizes) -> int:
    """The depth of one part; the last may have less."""
    if tiling.parts == 1:
        return sizes.k
    return max(_rounded_up(-(-sizes.k // tiling.parts), tiling.unit), 1)


def parts(tiling: Tiling, sizes: Sizes) -> int:
    """More than 1 when `store_part` gets partial sums that are still to be added."""
    return -(-sizes.k // part_depth(tiling, sizes)) if tiling.parts > 1 and sizes.k else 1


def grid(sizes: Sizes, tiling: Tiling) -> tuple[int, int]:
    """Groups, and invocations in each."""
    tiles = -(-sizes.m // tiling.tile_m) * -(-sizes.n // tiling.tile_n)
    return parts(tiling, sizes) * sizes.batch * tiles, tiling.group_size


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def tilings(target: Target, sizes: Sizes, type: ComputeType, *, subgroup_size: int | None = None) -> list[Tiling]:
    """Candidates for tuning, the best guess first. All of them are right.

    `subgroup_size` is the target's when it is not given.
    """
    if subgroup_size is None:
        subgroup_size = target.subgroup_size
    width = 4 if BYTES[type] == 4 else 2
    found: list[Tiling] = []
    for start in _started(sizes, width, subgroup_size if target.has("subgroups") else 0):
        tiling = _within_loops(_fitted(start, sizes), sizes, target.loop_limit)
        fits = tiling.group_size <= target.group_limit and shared_bytes(tiling, type) <= target.group_memory
        if fits and tiling not in found:
            found.append(tiling)
    return found


def shared_bytes(tiling: Tiling, type: ComputeType) -> int:
    """Bytes of shared memory that a group needs."""
    each = BYTES[type]
    if tiling.form == "blocks":
        return 0
    across = tiling.stage_depth * tiling.tile_n * each
    return across + tiling.tile_m * (tiling.stage_depth + tiling.vector) * each


def turns(tiling: Tiling, sizes: Sizes) -> int:
    """The most rounds of all loops of an invocation."""
    k = part_depth(tiling, sizes)
    stores = tiling.rows * tiling.vectors
    if tiling.form == "blocks":
        return k // tiling.depth + k % tiling.depth + stores
    steps = -(-k // tiling.stage_depth)
    slots = tiling.stage_depth * (tiling.tile_m + tiling.tile_n) // tiling.vector
    return steps * (1 + tiling.stage_depth // tiling.vector + slots // tiling.group_size) + stores


#: Tiles that a group shares: rows, vectors, lanes down and across, and the depth of a stage.
_TILES = (
    (8, 2, 16, 16, 8),
    (8, 2, 8, 8, 16),
    (4, 2, 8, 16, 16),
    (4, 1, 16, 16, 16),
    (4, 1, 8, 8, 32),
    (2, 1, 8, 8, 16),
)
#: Blocks that each lane keeps: rows, vectors, lanes down and across.
_BLOCKS = ((8, 2, 8, 8), (4, 1, 8, 8), (16, 2, 1, 8), (8, 2, 1, 8), (2, 1, 4, 16))


def _block(width: int, rows: int, count: int, lanes_m: int, lanes_n: int, handed: int = 0) -> Tiling:
    """Totals in registers as vectors of `width`; subgroups of `handed` lanes hand rows of a to each other."""
    return Tiling(
        form="blocks",
        rows=rows,
        vectors=count,
        vector=width,
        depth=4,
        lanes_m=lanes_m,
        lanes_n=lanes_n,
        handed=handed,
        down=handed > 0,
    )


def _handed_shapes(sizes: Sizes, subgroup_size: int) -> list[tuple[int, int, int, int]]:
    """Blocks whose lanes hand rows of a to each other; none where subgroups are too small for that."""
    size = subgroup_size
    if size < 8:
        return []
    if sizes.m < size:
        return [(size, count, 1, size) for count in (1, 2)]
    # All totals that stay in registers; wide groups, whose subgroups find rows of a in the nearest cache.
    shapes = [(32, 1, 128), (32, 1, 32), (16, 2, size), (32, 1, size), (16, 1, 32), (64, 1, 64)]
    return [
        (rows, count, 1, lanes)
        for rows, count, lanes in shapes
        if rows % size == 0 and lanes % size == 0 and (rows < 64 or size == 64)
    ]


def _started(sizes: Sizes, width: int, subgroup_size: int) -> list[Tiling]:
    """Return the first tilings to try, the best guess first: the largest that leave enough groups for a device."""
    tiles = [
        Tiling(
            form="tiles",
            rows=rows,
            vectors=count,
            vector=width,
            depth=width,
            lanes_m=lanes_m,
            lanes_n=lanes_n,
            stage_depth=depth,
        )
        for rows, count, lanes_m, lanes_n, depth in _TILES
    ]
    blocks = [_block(width, *shape) for shape in _BLOCKS]
    if sizes.k == 0:
        return blocks[1:2]
    handed = [_block(width, *shape, subgroup_size) for shape in _handed_shapes(sizes, subgroup_size)]
    # The largest tile that leaves enough groups to keep a wide machine busy.
    enough = 64
    guesses = [each for each in tiles if grid(sizes, _fitted(each, sizes))[0] >= enough] or tiles[-1:]
    first = guesses[0]
    groups = grid(sizes, _fitted(first, sizes))[0]
    split = []
    if groups < enough and sizes.k >= 512:
        most = max(min(enough // max(groups, 1), sizes.k // 128), 1)
        split = [
            msgspec.structs.replace(each, parts=count)
            for each in (first, blocks[1])
            for count in sorted({most, max(most // 4, 2)}, reverse=True)
            if count > 1
        ]
    rest = [each for each in tiles if each != first]
    # Where few invocations run together they are the lanes of one processor, and a group's memory is no faster than
    # any other.
    if 0 < subgroup_size <= 8:
        few = sizes.m < subgroup_size
        return [*handed, *split, first, *rest, *blocks] if few else [*split, *handed, first, *rest, *blocks]
    return [*split, first, *handed, *rest, *blocks]


def _fitted(tiling: Tiling, sizes: Sizes) -> Tiling:
    """With tiles that are not larger than the result, and steps that are not longer than k."""
    rows, lanes_m = tiling.rows, tiling.lanes_m
    while lanes_m > 1 and rows * lanes_m > sizes.m:
        lanes_m //= 2
    rows = max(min(rows, sizes.m), 1)
    if tiling.handed and rows > tiling.handed:
        rows -= rows % tiling.handed
    vector, count, lanes_n = tiling.vector, tiling.vectors, tiling.lanes_n
    while vector > 1 and vector > sizes.n:
        vector //= 2
    count = max(min(count, sizes.n // vector), 1)
    while lanes_n > 1 and vector * count * lanes_n > sizes.n:
        lanes_n //= 2
    stage = tiling.stage_depth
    if tiling.form == "tiles":
        stage = _rounded_up(min(stage, max(sizes.k, 1)), vector)
    depth = vector if tiling.form == "tiles" else max(min(tiling.depth, sizes.k), 1)
    handed = tiling.handed if lanes_n % max(tiling.handed, 1) == 0 else 0
    if rows < handed:
        # Then lanes hand along k what each of them has read.
        depth = handed * vector if sizes.k >= handed * vector else depth
        handed = handed if sizes.k >= handed * vector else 0
    return msgspec.structs.replace(
        tiling,
        rows=rows,
        lanes_m=lanes_m,
        vector=vector,
        vectors=count,
        lanes_n=lanes_n,
        stage_depth=stage,
        depth=depth,
        handed=handed,
    )


def _within_loops(tiling: Tiling, sizes: Sizes, limit: int) -> Tiling:
    """With k split into as many parts as it takes to go round few enough times."""
    while turns(tiling, sizes) > limit and part_depth(tiling, sizes) > tiling.unit:
        tiling = msgspec.structs.replace(tiling, parts=tiling.parts * 2)
    return tiling
