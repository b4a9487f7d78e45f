"""Running sums, products, maxima and minima along rows, also of segments that flags begin.

A row that one group can hold takes one kernel. A longer one is cut into tiles: the tiles' totals, a scan of them (the
same again, when there are many), and a scan of each tile that starts from what came before. So the sum of n numbers is
rounded about log(n) times and not n times, and elements are read twice and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from anygpu.engines.codegen.target import SYNTAX, ComputeType, Syntax, Target
from anygpu.engines.codegen.templates.stages import (
    GroupSizes,
    Sink,
    Source,
    Stage,
    Stages,
    buffers,
    combine_text,
    fitting,
    from_accessors,
    from_buffers,
    layout,
    made,
    struct_bytes,
    struct_text,
    to_accessors,
    to_buffers,
)


def starting_sizes(target: Target) -> GroupSizes:
    return GroupSizes(32, 64) if target.scalar_invocations else GroupSizes(256, 8)


def stages(
    target: Target,
    rows: int,
    length: int,
    fn: str,
    components: tuple[ComputeType, ...],
    *,
    segmented: bool = False,
    source: Source | None = None,
    sink: Sink | None = None,
    sizes: GroupSizes | None = None,
    name: str = "scan",
    narrowed: str | None = None,
) -> Stages:
    """The inclusive scan by `fn`, one of "sum", "prod", "max", "min", of a real or complex (two components) number.

    Segmented, component 0 is a flag (bool or u32) that is true where a segment begins, and is not stored: the results
    are component 1 and following. Without a source and a sink, values come from load_0, load_1, … and go to store_0, ….
    """
    syntax = SYNTAX[target.dialect]
    source = source or from_accessors(target, components)
    sink = sink or to_accessors(components, 1 if segmented else 0)
    each = struct_bytes(components)
    plan = layout(rows, length, fitting(target, sizes or starting_sizes(target), each, each))
    combine, calls = combine_text(syntax, fn, components, segmented=segmented, narrowed=narrowed)
    stage = partial(Stage, group_size=plan.group_size, calls={**calls, **source.calls})
    values = {
        **plan.values(rows, length),
        "helpers": f"{struct_text(syntax, components)}\n\n{combine}",
        "load": made(syntax, source.parts),
        "store": "\n".join(sink.statements),
        "carry": "",
    }
    scanning = stage(
        name=name, template="scan", groups=plan.groups, reads=source.reads, writes=sink.writes, values=values
    )
    if plan.tiles == 1:
        return [], [scanning]

    inner = plan.tiles - 1
    totals = buffers(f"{name}_totals", components, rows * inner)
    carries = buffers(f"{name}_carries", components, rows * inner)
    stores = "\n".join(f"{each.name}[group] = value.part_{k};" for k, each in enumerate(totals))
    summing = stage(
        name=f"{name}_totals",
        template="scan_totals",
        groups=rows * inner,
        reads=source.reads,
        writes=tuple(each.name for each in totals),
        values={**values, "totals_of_row": str(inner), "store": stores},
    )
    again = partial(stages, segmented=segmented, sizes=sizes, name=f"{name}_of_totals", narrowed=narrowed)
    read, written = from_buffers(totals, inner), to_buffers(carries, inner)
    further, between = again(target, rows, inner, fn, components, source=read, sink=written)
    names = tuple(each.name for each in carries)
    carrying = {**values, "carry": _carry_text(syntax, names, inner)}
    scanning = msgspec.structs.replace(scanning, reads=(*source.reads, *names), values=carrying)
    return [*totals, *carries, *further], [summing, *between, scanning]


def _carry_text(syntax: Syntax, carries: Sequence[str], inner: int) -> str:
    """Combines the carry of the tile with the total before the lane."""
    carried = made(syntax, [f"{name}[before_tile]" for name in carries])
    lines = [
        "if (tile > 0) {",
        f"    {syntax.position('before_tile', f'first_row * {inner} + tile - 1')}",
        f"    {syntax.let('carried', 'Value', carried)}",
        "    if (begins) {",
        "        before = carried;",
        "    } else {",
        "        before = combine(carried, before);",
        "    }",
        "    begins = false;",
        "}",
    ]
    return "\n".join(lines)
