"""Running sums and stable sorting along rows, and binary search in what is sorted.

A row that one group can hold takes one kernel. To scan a longer one it is cut into tiles: the tiles' totals, a scan of
them (the same again, when there are many), and a scan of each tile that starts from what came before. So the sum of n
numbers is rounded about log(n) times and not n times, and elements are read twice and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from string import Template
from typing import Literal

import msgspec

from anygpu.engines.codegen.target import SYNTAX, ComputeType, Syntax, Target
from anygpu.engines.codegen.templates.stages import (
    BYTES,
    Calls,
    GroupSizes,
    RowLayout,
    Sink,
    Source,
    Stage,
    Stages,
    Temporary,
    buffers,
    carried,
    combine_text,
    fitting,
    from_accessors,
    from_buffers,
    layout,
    loaded,
    made,
    struct_bytes,
    struct_text,
    template,
    to_accessors,
    to_buffers,
)

#: The sizes to begin with.
SIZES = GroupSizes(256, 8)

# -- running sums, products, maxima and minima along rows, also of segments that flags begin
#
# A row that one group can hold takes one kernel. A longer one is cut into tiles: the tiles' totals, a scan of them (the
# same again, when there are many), and a scan of each tile that starts from what came before. So the sum of n numbers
# is rounded about log(n) times and not n times, and elements are read twice and written once.


def scan_stages(
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
    plan = layout(rows, length, fitting(target, sizes or SIZES, each, each))
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
    again = partial(scan_stages, segmented=segmented, sizes=sizes, name=f"{name}_of_totals", narrowed=narrowed)
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


# -- stable sorting along rows, and binary search in what is sorted


#: The result type of `order_key`; integers are their own keys.
KEY_TYPES: dict[ComputeType, ComputeType] = {"f32": "u32", "f64": "u64"}


def order_key(component: ComputeType, expression: str, calls: Calls) -> str:
    """An unsigned integer that sorts as the number does; integers are their own."""
    if component not in KEY_TYPES:
        return expression
    calls[f"order_key_{component}"] = ("order_key", component)
    return f"${{order_key_{component}}}({expression})"


def less_text(
    syntax: Syntax,
    components: tuple[ComputeType, ...],
    *,
    as_keys: bool = False,
    struct: str = "Value",
    name: str = "less",
) -> tuple[str, Calls]:
    """The function `less(a, b)`, by any name, over one part (real) or two (complex), and what it calls.

    With `as_keys` the parts are keys already.
    """
    calls: Calls = {}
    keys = [
        [f"{side}.part_{k}" if as_keys else order_key(each, f"{side}.part_{k}", calls) for side in "ab"]
        for k, each in enumerate(components)
    ]
    if len(components) == 1:
        body = [f"return {keys[0][0]} < {keys[0][1]};"]
    else:
        body = _complex_less(syntax, components[0], keys)
    return syntax.function(name, {"a": struct, "b": struct}, "bool", body), calls


def _complex_less(syntax: Syntax, component: ComputeType, keys: list[list[str]]) -> list[str]:
    """The body of the comparison of complex numbers, as NumPy sorts them.

    Numbers with NaN come last: first those with a NaN in the imaginary part alone, then those in the real part, then
    both.
    """
    key_type = KEY_TYPES[component]
    kind = syntax.types[key_type]
    greatest = f"{(1 << 8 * BYTES[key_type]) - 1:#x}{syntax.suffixes[key_type].lower()}"
    body = []
    for part, both in zip(("real", "imag"), keys, strict=True):
        for side, key in zip("ab", both, strict=True):
            body.append(syntax.let(f"{part}_{side}", kind, key))
    for side in "ab":
        of_real = syntax.choice(f"real_{side} == {greatest}", "2", "0")
        of_imag = syntax.choice(f"imag_{side} == {greatest}", "1", "0")
        body.append(syntax.position(f"nans_{side}", f"{of_real} + {of_imag}"))
    for one in ("nans", "real"):
        body += [f"if ({one}_a != {one}_b) {{", f"    return {one}_a < {one}_b;", "}"]
    return [*body, "return imag_a < imag_b;"]


def sort_stages(
    target: Target,
    rows: int,
    length: int,
    components: tuple[ComputeType, ...],
    *,
    positions: bool = False,
    source: Source | None = None,
    sink: Sink | None = None,
    sizes: GroupSizes | None = None,
    name: str = "sort",
) -> Stages:
    """Sorts numbers of one (real) or two (complex) components from load_0, load_1 to store_0, store_1.

    With `positions` the results are the positions that sort instead, i32 through store_0.
    """
    syntax = SYNTAX[target.dialect]
    less, calls = less_text(syntax, components, as_keys=positions)
    source = source or from_accessors(target, components)
    carried = components
    if positions:
        keys = [order_key(each, part, calls) for each, part in zip(components, source.parts, strict=True)]
        source = Source((*keys, "i"), source.reads, source.calls)
        carried = (*(KEY_TYPES.get(each, each) for each in components), "i32")
        position = f"value.part_{len(components)}"
        sink = sink or Sink((f"store_0(${{pass}}row, i, {position});",), ("out",))
    sink = sink or to_accessors(components)
    calls = {**calls, **source.calls}

    sizes = fitting(target, sizes or SIZES, struct_bytes(carried), 0)
    plan = layout(rows, length, sizes)
    common = {
        **plan.values(rows, length),
        "length": str(length),
        "helpers": f"{struct_text(syntax, carried)}\n\n{less}",
    }
    return _passes(plan, source, sink, carried, (rows, length), syntax=syntax, name=name, common=common, calls=calls)


def _passes(
    plan: RowLayout,
    source: Source,
    sink: Sink,
    carried: tuple[ComputeType, ...],
    shape: tuple[int, int],
    *,
    syntax: Syntax,
    name: str,
    common: dict[str, str],
    calls: Calls,
) -> Stages:
    """Sorts tiles from the source, then merges stretches of twice the length each time, the last ones into the sink."""
    rows, length = shape
    widths: list[int] = []
    while plan.span << len(widths) < length:
        widths.append(plan.span << len(widths))
    sets = [buffers(f"{name}_{side}", carried, rows * length) for side in ("even", "odd")[: min(len(widths), 2)]]
    constants = [Temporary(f"{name}_width_{width}", "i32", 1, width.to_bytes(4, "little")) for width in widths]
    # The merges differ only in buffers: so most of them are one kernel, which is compiled once.
    read = from_buffers(buffers("source", carried, 0), length)
    written = to_buffers(buffers("target", carried, 0), length)

    described = []
    for step in range(len(widths) + 1):
        is_first, is_last = step == 0, step == len(widths)
        came_from = source if is_first else read
        goes_to = sink if is_last else written
        names, reads, writes = {}, came_from.reads, goes_to.writes
        if not is_first:
            names[constants[step - 1].name] = "widths"
            names |= {each.name: f"source_{k}" for k, each in enumerate(sets[(step - 1) % 2])}
            reads = (*(each.name for each in sets[(step - 1) % 2]), constants[step - 1].name)
        if not is_last:
            names |= {each.name: f"target_{k}" for k, each in enumerate(sets[step % 2])}
            writes = tuple(each.name for each in sets[step % 2])
        described.append(
            Stage(
                name=f"{name}_tiles" if is_first else f"{name}_merge",
                template="sort_block" if is_first else "sort_merge",
                groups=plan.groups,
                group_size=plan.group_size,
                reads=reads,
                writes=writes,
                values={**common, "load": made(syntax, came_from.parts), "store": "\n".join(goes_to.statements)},
                calls=calls,
                names=names,
            )
        )
    return [*(each for side in sets for each in side), *constants], described


# -- binary search in a sorted line
#
# As the text of a function that any kernel can call.


def search_text(
    target: Target,
    name: str,
    components: tuple[ComputeType, ...],
    length: int,
    side: Literal["left", "right"],
    line: str = "load_line",
) -> tuple[str, Calls]:
    """The text of `name(${pass}value_0, …) -> i32` over the accessors load_line_0(${pass}i), …, and what it calls.

    The text holds the generator's placeholders `${pass}`, `${taken}`, and one for each of the calls. NaN is last in the
    order of the line, as everywhere.
    """
    syntax = SYNTAX[target.dialect]
    calls: Calls = {}
    keys = tuple(KEY_TYPES.get(each, each) for each in components)
    less, _ = less_text(syntax, components, as_keys=True, struct=f"{name}_key", name=f"{name}_less")
    given = {f"value_{k}": syntax.types[each] for k, each in enumerate(components)}

    def key(expressions: list[str]) -> str:
        parts = zip(components, expressions, strict=True)
        return made(syntax, [order_key(each, loaded(syntax, each, text), calls) for each, text in parts], f"{name}_key")

    values = {
        "name": name,
        "struct": f"{name}_key",
        "helpers": f"{struct_text(syntax, [carried(each) for each in keys], f'{name}_key')}\n\n{less}",
        "parameters": ", ".join(syntax.parameter(one, kind) for one, kind in given.items()),
        "value": key(list(given)),
        "load": key([f"{line}_{k}(${{pass}}i)" for k in range(len(components))]),
        "length": str(length),
        "further": f"{name}_less(candidate, value)" if side == "left" else f"!{name}_less(value, candidate)",
    }
    return Template(template(target.dialect, "search")).safe_substitute(values), calls
