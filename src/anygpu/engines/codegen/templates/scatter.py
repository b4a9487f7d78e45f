"""Updates put into an array at positions along one axis, also where several updates meet in one element.

Four ways, each with one answer whatever the order in which a device works:
- indices that are surely distinct: a copy, and every update writes its own element;
- 32-bit integers added or compared: by atomic operations, which are exact in any order;
- many updates of few places: stretches of the updates are each brought into a copy of the axis, and the copies joined;
- all else: for each place along the axis the number of its latest update, and then every element of the result is
  written once, in order. For "set" the latest is the greatest position; otherwise the indices are sorted, the updates
  of one place are scanned together, and the latest has their total.
"""

from __future__ import annotations

import msgspec

from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect, Syntax, Target
from anygpu.engines.codegen.templates import sort
from anygpu.engines.codegen.templates.stages import (
    Calls,
    Sink,
    Source,
    Stage,
    Stages,
    Temporary,
    carried,
    combine_text,
    from_accessors,
    loaded,
    made,
    stored,
    struct_text,
    to_accessors,
)

#: The scan that totals the updates of one place.
TOTALS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
#: The most copies of the axis, so that joining them stays short, and the fewest lanes that must have work.
MOST_COPIES = 1024
FEWEST_LANES = 32
_ATOMICS: dict[Dialect, dict[str, str]] = {
    "wgsl": {"add": "atomicAdd", "maximum": "atomicMax", "minimum": "atomicMin"},
    "opencl": {"add": "atomic_add", "maximum": "atomic_max", "minimum": "atomic_min"},
}


class ScatterLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The array is batch × before × axis × after, the indices batch × positions, the updates as the array but with
    the positions in place of the axis."""

    batch: int
    before: int
    axis: int
    after: int
    positions: int

    @property
    def rows(self) -> int:
        return self.batch * self.before


def stages(
    target: Target,
    fn: str,
    layout: ScatterLayout,
    components: tuple[ComputeType, ...],
    index_type: ComputeType = "i32",
    *,
    distinct: bool = False,
    scattered_stores: bool = True,
    group_size: int | None = None,
    name: str = "scatter",
) -> Stages:
    """Scatter by `fn`: "set", "add", "multiply", "maximum" or "minimum".

    Accessors see arrays as rows batch × before: load_0, … (end "x") and store_0, … (end "out") at
    (row, position along the axis * after + position after it); load_update_0, … (end "updates") likewise; load_index
    (end "indices") of type `index_type` at (batch, position); and report(index), which writes to the end "status".
    `scattered_stores=False` says that elements of the result share machine words, so that it must be written in order.
    """
    writer = _Writer(target, fn, layout, components, index_type, name, group_size)
    if distinct and scattered_stores:
        return writer.directly()
    atomic = len(components) == 1 and carried(components[0]) in ("i32", "u32") and fn in _ATOMICS[target.dialect]
    if atomic:
        return writer.by_atomics()
    copies = 0 if fn == "set" else writer.copies()
    if copies:
        return writer.in_copies(copies)
    return writer.latest() if fn == "set" else writer.totals()


def _outside(syntax: Syntax, index_type: ComputeType, length: int) -> str:
    """The condition that an index is outside of its axis."""
    # C converts the length by itself; WGSL does not.
    beyond = f"index >= {syntax.cast(index_type, str(length)) if syntax.dialect == 'wgsl' else length}"
    return f"index < 0 || {beyond}" if index_type in ("i32", "i64") else beyond


class _Writer:
    """The stages of one scatter."""

    def __init__(
        self,
        target: Target,
        fn: str,
        layout: ScatterLayout,
        components: tuple[ComputeType, ...],
        index_type: ComputeType,
        name: str,
        group_size: int | None,
    ) -> None:
        """The stages of a scatter by `fn`. Components are those of the array's type; indices are of `index_type`."""
        self.target, self.syntax = target, SYNTAX[target.dialect]
        self.fn, self.layout, self.components, self.index_type, self.name = fn, layout, components, index_type, name
        self.group_size = group_size or min(256, target.group_limit)
        self.row_length = layout.axis * layout.after
        self.struct = struct_text(self.syntax, components)
        self.original = Source(from_accessors(target, components).parts, ("x",))
        self.result = to_accessors(components)

    def each(
        self,
        name: str,
        template: str,
        count: int,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        values: dict[str, str],
    ) -> Stage:
        """A stage with an invocation for each of `count` elements."""
        return Stage(
            name=f"{self.name}_{name}",
            template=template,
            groups=-(-count // self.group_size),
            group_size=self.group_size,
            reads=reads,
            writes=writes,
            values={"count": str(count), "helpers": self.struct, **values},
        )

    def fill(
        self,
        name: str,
        count: int,
        source: Source,
        sink: Sink,
        components: tuple[ComputeType, ...],
        row_length: int | None = None,
    ) -> Stage:
        """A stage that copies or fills elements, from a source to a sink."""
        values = {
            "helpers": struct_text(self.syntax, components),
            "row_length": str(row_length or self.row_length),
            "load": made(self.syntax, source.parts),
            "store": "\n".join(sink.statements),
        }
        return self.each(name, "scatter_fill", count, source.reads, sink.writes, values)

    def cleared(self, latest: str) -> Stage:
        """A stage that clears the table of latest updates."""
        count = self.layout.batch * self.layout.axis
        return self.fill(
            "clear", count, Source(("0",), ()), Sink((f"{latest}[number] = value.part_0;",), (latest,)), ("i32",)
        )

    def updates(
        self, name: str, reads: tuple[str, ...], writes: tuple[str, ...], apply: str, *, once: bool, left_out: str = ""
    ) -> Stage:
        """Over all updates, or `once` for each index."""
        after = 1 if once else self.layout.after
        rows = self.layout.batch if once else self.layout.rows
        values = {
            "row_length": str(self.layout.positions * after),
            "rows_of_batch": str(1 if once else self.layout.before),
            "after": str(after),
            "index_type": self.syntax.types[self.index_type],
            "outside": _outside(self.syntax, self.index_type, self.layout.axis),
            "apply": apply,
            "left_out": left_out,
        }
        count = rows * self.layout.positions * after
        return self.each(name, "scatter_updates", count, ("indices", *reads), (*writes, "status"), values)

    def update(self, row: str, i: str) -> list[str]:
        """The expressions of an update's components."""
        return [
            loaded(self.syntax, each, f"load_update_{k}(${{pass}}{row}, {i})") for k, each in enumerate(self.components)
        ]

    def write(self, latest: str, updated: list[str], reads: tuple[str, ...], *, combined: bool) -> Stage:
        """The stage that stores every element: the update that `latest` names for it, or the original.

        With `combined` an update is combined with the original by the function.
        """
        helpers, new = self.struct, made(self.syntax, updated)
        calls: Calls = {}
        if combined:
            combine, calls = combine_text(self.syntax, TOTALS[self.fn], self.components)
            helpers, new = f"{helpers}\n\n{combine}", f"combine({made(self.syntax, self.original.parts)}, {new})"
        values = {
            "helpers": helpers,
            "row_length": str(self.row_length),
            "before": str(self.layout.before),
            "axis": str(self.layout.axis),
            "after": str(self.layout.after),
            "latest": latest,
            "load": made(self.syntax, self.original.parts),
            "updated": new,
            "store": "\n".join(self.result.statements),
        }
        count = self.layout.rows * self.row_length
        stage = self.each("write", "scatter_write", count, ("x", latest, *reads), ("out",), values)
        return msgspec.structs.replace(stage, calls=calls)

    def directly(self) -> Stages:
        """Copy the array, then apply the updates to the result; for updates that never meet."""
        copied = self.fill("copy", self.layout.rows * self.row_length, self.original, self.result, self.components)
        new = self.update("row", "i")
        helpers = self.struct
        calls: Calls = {}
        lines = []
        value = made(self.syntax, new)
        if self.fn != "set":
            combine, calls = combine_text(self.syntax, TOTALS[self.fn], self.components)
            helpers = f"{helpers}\n\n{combine}"
            old = [part.replace("row, i)", "row, place)") for part in self.original.parts]
            value = f"combine({made(self.syntax, old)}, {value})"
        lines.append(self.syntax.let("value", "Value", value))
        lines += [
            f"store_{k}(${{pass}}row, place, {stored(each, f'value.part_{k}')});"
            for k, each in enumerate(self.components)
        ]
        reads = ("updates",) if self.fn == "set" else ("updates", "x")
        written = self.updates("updates", reads, ("out",), "\n".join(lines), once=False)
        values = {**written.values, "helpers": helpers}
        return [], [copied, msgspec.structs.replace(written, values=values, calls=calls)]

    def by_atomics(self) -> Stages:
        """Apply the updates by atomic operations on a copy. Their order is any, so this is for integers alone."""
        kind = carried(self.components[0])
        count = self.layout.rows * self.row_length
        sums = f"{self.name}_sums"
        (new,) = self.update("row", "i")
        apply = f"{_ATOMICS[self.target.dialect][self.fn]}(&{sums}[row * {self.row_length} + place], {new});"
        changed = self.updates("updates", ("updates", sums), (sums,), apply, once=False)
        return [Temporary(sums, kind, count)], [
            self.fill(
                "start", count, self.original, Sink((f"{sums}[number] = value.part_0;",), (sums,)), self.components
            ),
            msgspec.structs.replace(changed, atomics=(sums,)),
            self.fill("finish", count, Source((f"{sums}[number]",), (sums,)), self.result, self.components),
        ]

    def copies(self) -> int:
        """The number of copies of the axis that pays: together no larger than the updates, and work for many lanes."""
        at = self.layout
        copies = min(at.positions // at.axis, MOST_COPIES)
        if copies * at.rows * at.after < FEWEST_LANES or -(-at.positions // copies) > self.target.loop_limit // 4:
            return 0
        return copies

    def in_copies(self, copies: int) -> Stages:
        """Apply stretches of the updates to copies of the axis, and combine these in order: always the same result."""
        at = self.layout
        columns = at.rows * at.after
        combine, calls = combine_text(self.syntax, TOTALS[self.fn], self.components)
        parts = [
            Temporary(f"{self.name}_part_{k}", carried(each), copies * columns * at.axis)
            for k, each in enumerate(self.components)
        ]
        names = tuple(each.name for each in parts)
        common = {
            "helpers": f"{self.struct}\n\n{combine}",
            "axis": str(at.axis),
            "after": str(at.after),
            "columns": str(columns),
            "part": made(self.syntax, [f"{name}[place]" for name in names]),
        }
        # A maximum or minimum may meet the element itself as often as it likes; a sum and a product begin with nothing.
        if self.fn in ("maximum", "minimum"):
            there = f"row % {columns} / {at.after}, i * {at.after} + row % {columns} % {at.after})"
            start = Source(tuple(part.replace("row, i)", there) for part in self.original.parts), ("x",))
        else:
            neutral = ("1" if self.fn == "multiply" else "0", *("0" for _ in self.components[1:]))
            kinds = [self.syntax.types[each] for each in self.components]
            start = Source(tuple(self.syntax.cast(*each) for each in zip(kinds, neutral, strict=True)), ())
        sink = Sink(tuple(f"{name}[number] = value.part_{k};" for k, name in enumerate(names)), names)
        started = self.fill("start", parts[0].size, start, sink, self.components, at.axis)
        stretch = -(-at.positions // copies)
        brought = self.each(
            "parts",
            "scatter_parts",
            copies * columns,
            ("indices", "updates", *names),
            (*names, "status"),
            {
                **common,
                "before": str(at.before),
                "positions": str(at.positions),
                "stretch": str(stretch),
                "index_type": self.syntax.types[self.index_type],
                "outside": _outside(self.syntax, self.index_type, at.axis),
                "load": made(self.syntax, self.update("row", "i")),
                "store": "\n".join(f"{name}[place] = value.part_{k};" for k, name in enumerate(names)),
            },
        )
        joined = self.each(
            "join",
            "scatter_join",
            at.rows * self.row_length,
            ("x", *names),
            ("out",),
            {
                **common,
                "row_length": str(self.row_length),
                "copies": str(copies),
                "load": made(self.syntax, self.original.parts),
                "store": "\n".join(self.result.statements),
            },
        )
        return parts, [started, *(msgspec.structs.replace(each, calls=calls) for each in (brought, joined))]

    def latest(self) -> Stages:
        """For "set": find the last update of each element by an atomic maximum, and store that."""
        latest = f"{self.name}_latest"
        greatest = _ATOMICS[self.target.dialect]["maximum"]
        apply = f"{greatest}(&{latest}[row * {self.layout.axis} + place], i + 1);"
        marked = self.updates("mark", (latest,), (latest,), apply, once=True)
        after = self.layout.after
        updated = self.update("row", f"update * {after} + i % {after}")
        return [Temporary(latest, "i32", self.layout.batch * self.layout.axis)], [
            self.cleared(latest),
            msgspec.structs.replace(marked, atomics=(latest,)),
            self.write(latest, updated, ("updates",), combined=False),
        ]

    def totals(self) -> Stages:
        """Sort the updates by their element, scan their totals, and combine each total with the original.

        This keeps the order of updates, whatever their number, at the price of a sort.
        """
        at, name = self.layout, self.name
        count = at.batch * at.positions
        latest, unsorted, places, order = (f"{name}_{each}" for each in ("latest", "unsorted", "places", "order"))
        temporaries = [Temporary(latest, "i32", at.batch * at.axis)]
        temporaries += [Temporary(each, "i32", count) for each in (unsorted, places, order)]
        noted = self.updates(
            "indices",
            (),
            (unsorted,),
            f"{unsorted}[number] = place;",
            once=True,
            left_out=f"{unsorted}[number] = {at.axis};",
        )
        here = f"row * {at.positions} + i"
        sorting = sort.sort_stages(
            self.target,
            at.batch,
            at.positions,
            ("i32",),
            positions=True,
            source=Source((f"{unsorted}[{here}]",), (unsorted,)),
            sink=Sink((f"{places}[{here}] = value.part_0;", f"{order}[{here}] = value.part_1;"), (places, order)),
            name=f"{name}_sort",
        )
        ends = self.each(
            "ends",
            "scatter_ends",
            count,
            (places,),
            (latest,),
            {"positions": str(at.positions), "axis": str(at.axis), "places": places, "latest": latest},
        )
        totals, (held, scanning) = self._scanned(places, order)
        names = tuple(each.name for each in totals)
        total = [f"{each}[(row * {at.after} + i % {at.after}) * {at.positions} + update]" for each in names]
        written = self.write(latest, total, names, combined=True)
        described = [self.cleared(latest), noted, *sorting[1], ends, *scanning, written]
        return [*temporaries, *totals, *sorting[0], *held], described

    def _scanned(self, places: str, order: str) -> tuple[list[Temporary], Stages]:
        """Running totals of the updates of each place, in the sorted order; and the stages that compute them."""
        at, name = self.layout, self.name
        # One row of the scan for each element before and after the axis.
        columns = at.rows * at.after
        totals = [
            Temporary(f"{name}_total_{k}", carried(each), columns * at.positions)
            for k, each in enumerate(self.components)
        ]
        sorted_i = f"row / {at.before * at.after} * {at.positions} + i"
        begins = f"i == 0 || {places}[{sorted_i}] != {places}[{sorted_i} - 1]"
        source = Source(
            (
                loaded(self.syntax, "bool", begins),
                *self.update(f"row / {at.after}", f"{order}[{sorted_i}] * {at.after} + row % {at.after}"),
            ),
            ("updates", places, order),
        )
        sink = Sink(
            tuple(f"{each.name}[row * {at.positions} + i] = value.part_{k + 1};" for k, each in enumerate(totals)),
            tuple(each.name for each in totals),
        )
        return totals, sort.scan_stages(
            self.target,
            columns,
            at.positions,
            TOTALS[self.fn],
            ("u32", *self.components),
            segmented=True,
            source=source,
            sink=sink,
            name=f"{name}_scan",
        )
