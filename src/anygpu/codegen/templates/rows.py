"""Distributes rows over groups: several short rows to one group, or a long row to many groups, tile by tile."""

from __future__ import annotations

import msgspec

from anygpu.codegen.syntax import SYNTAX
from anygpu.codegen.target import ComputeType, Target
from anygpu.codegen.templates.stages import Sink, Sizes, Source, Temporary
from anygpu.codegen.templates.values import Calls, carried, loaded, stored


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    group_size: int
    #: Elements that one invocation handles in sequence.
    items: int
    #: Invocations for one row; a power of two, as are the rows of a group.
    lanes: int
    rows_per_group: int
    #: Groups that share one row.
    tiles: int
    groups: int

    @property
    def span(self) -> int:
        """Elements of one row in one group."""
        return self.lanes * self.items

    def values(self, rows: int, length: int) -> dict[str, str]:
        """The placeholders that templates over rows have in common."""
        numbers = {
            "items": self.items,
            "slots": self.group_size * self.items,
            "tiles": self.tiles,
            "rows_per_group": self.rows_per_group,
            "span": self.span,
            "lanes": self.lanes,
            "last_row": rows - 1,
            "last": length - 1,
        }
        return {name: str(number) for name, number in numbers.items()}


def layout(rows: int, length: int, sizes: Sizes) -> Layout:
    """Rows that fit into a group are never cut, and groups are no larger than what there is to do."""
    if length > sizes.group_size * sizes.items:
        tiles = -(-length // (sizes.group_size * sizes.items))
        return Layout(
            group_size=sizes.group_size,
            items=sizes.items,
            lanes=sizes.group_size,
            rows_per_group=1,
            tiles=tiles,
            groups=rows * tiles,
        )
    lanes = power_of_two(-(-length // sizes.items))
    rows_per_group = min(sizes.group_size // lanes, power_of_two(rows))
    return Layout(
        group_size=lanes * rows_per_group,
        items=-(-length // lanes),
        lanes=lanes,
        rows_per_group=rows_per_group,
        tiles=1,
        groups=-(-rows // rows_per_group),
    )


def fitting(target: Target, sizes: Sizes, bytes_for: int, bytes_for_lane: int, reserve: int = 64) -> Sizes:
    """Sizes that fit into shared memory: fewer items, and fewer invocations when even four items do not fit."""
    group_size = min(sizes.group_size, target.group_limit)
    room = target.group_memory - reserve
    while group_size > 32 and room < group_size * (min(4, sizes.items) * bytes_for + bytes_for_lane):
        group_size //= 2
    fits = (room // group_size - bytes_for_lane) // bytes_for
    return Sizes(group_size, max(1, min(sizes.items, fits)))


def power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def from_accessors(target: Target, components: tuple[ComputeType, ...]) -> Source:
    parts = [loaded(SYNTAX[target.dialect], each, f"load_{k}(${{pass}}row, i)") for k, each in enumerate(components)]
    return Source(tuple(parts), ("in",))


def to_accessors(components: tuple[ComputeType, ...], first: int = 0) -> Sink:
    """Stores the components from `first` on; those before it are only carried."""
    statements = [
        f"store_{k}(${{pass}}row, i, {stored(each, f'value.part_{k}')});"
        for k, each in enumerate(components)
        if k >= first
    ]
    return Sink(tuple(statements), ("out",))


def buffers(name: str, components: tuple[ComputeType, ...], size: int) -> list[Temporary]:
    return [Temporary(f"{name}_{k}", carried(each), size) for k, each in enumerate(components)]


def from_buffers(temporaries: list[Temporary], row_length: int, calls: Calls | None = None) -> Source:
    names = tuple(each.name for each in temporaries)
    return Source(tuple(f"{name}[row * {row_length} + i]" for name in names), names, calls or {})


def to_buffers(temporaries: list[Temporary], row_length: int) -> Sink:
    names = tuple(each.name for each in temporaries)
    return Sink(tuple(f"{name}[row * {row_length} + i] = value.part_{k};" for k, name in enumerate(names)), names)
