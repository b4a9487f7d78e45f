"""Nests of one loop: lanes and parts go along the same axis, or along several that are one."""

from __future__ import annotations

from itertools import product as product_of

from anygpu.codegen.index import Index
from anygpu.codegen.kernel_ir import Apply, Expr, Literal, Name
from anygpu.codegen.nests.costs import Estimate, combined, cost_of, grain_of, lanes_of
from anygpu.codegen.nests.plan import Group
from anygpu.codegen.nests.roots import MOST_CHANNELS, Domain, Root, merged, pieces, shifted
from anygpu.codegen.nests.steps import Nest
from anygpu.codegen.nests.storage import Storage
from anygpu.codegen.nests.totals import Total, combining_nest
from anygpu.program.dtypes import KIND
from anygpu.program.primitives import product

BEGIN, END = Name("begin", "i64"), Name("end", "i64")

#: Accumulators that fit into registers beside what is computed.
_MANY_ACCUMULATORS = 8


def flat_nest(storage: Storage, group: Group, name: str, vector_bytes: int) -> list[Nest]:
    """Every element of the members by itself, all of them in one pass; reductions in parts."""
    roots = [member.root for member in sorted(group.members, key=lambda each: each.phase)]
    count = product(roots[0].lanes)
    estimate = combined([times(root.estimate, len(root.begins) * len(root.ends)) for root in roots])
    vector, unroll = lanes_of(estimate, vector_bytes)
    grain = grain_of(estimate.of_lanes(vector_bytes), count, vector * unroll)
    domains = {root.node: _lanes(root) for root in roots}
    totals = {
        root.node: Total(storage, root, -(-count // grain), in_array=False) for root in roots if root.kind != "map"
    }
    lowering = storage.lowering([root.node for root in roots])
    for total in totals.values():
        total.begin(lowering, vector)
    sums = tuple(each for total in totals.values() for each in total.sums)
    if len(sums) > _MANY_ACCUMULATORS or any(len(root.ends) > MOST_CHANNELS for root in roots):
        unroll = 1
    if not all(has_lanes(storage, root) for root in roots):
        vector = 1

    def element(index: Index) -> None:
        for root in roots:
            domain = domains[root.node]
            lanes = domain.positions((index,) if domain.runs else ())
            for begin, (number, end) in product_of(root.begins, enumerate(root.ends)):
                positions = (*begin, *lanes, *end)
                value = lowering.value(root.source, positions)
                if root.node in totals:
                    totals[root.node].take(lowering, number if root.kind == "column" else 0, value)
                elif root.node in storage.stored:
                    lowering.store(root.node, positions, value)

    cuts = {
        cut for root in roots if domains[root.node].runs for cut in domains[root.node].cuts_of(0, _cuts_behind(root))
    }
    for low, high in pieces(0, count, cuts):
        start, stop = clipped(low, high, count) if count > 1 else (None, None)
        wide = vector if high - low >= vector else 1
        lowering.loop(
            "i", low, high, element, start=start, stop=stop, vector=wide, unroll=unroll if wide > 1 else 1, sums=sums
        )
    for total in totals.values():
        total.end(lowering, vector)
    nest = storage.nest(name, lowering.statements, count=count, grain=grain, cost=cost_of(storage, roots))
    last = combining_nest(storage, list(totals.values()), name, vector)
    return [nest] if last is None else [nest, last]


def _lanes(root: Root) -> Domain:
    """The axes that are one loop."""
    return merged(root.lanes, [shifted(form, root.head) for form in root.forms], _cuts_behind(root))


def _cuts_behind(root: Root) -> dict[int, set[int]]:
    """Cuts of the axes behind those that are written out."""
    return {axis - root.head: cuts for axis, cuts in root.cuts.items() if axis >= root.head}


def has_lanes(storage: Storage, root: Root) -> bool:
    """Whether lanes can have accumulators of their own, and be combined in the end."""
    complex = KIND[storage.program.specs[root.source].dtype] == "complex"
    return root.kind == "map" or not complex or root.fn == "sum"


def times(estimate: Estimate, number: int) -> Estimate:
    return Estimate(estimate.operations * number, estimate.functions * number, estimate.width, estimate.live * number)


def clipped(low: int, high: int, count: int) -> tuple[Expr, Expr]:
    """The bounds of a piece of a loop that goes from `begin` to `end`."""
    start = Apply("maximum", (BEGIN, Literal(low, "i64")), "i64") if low else BEGIN
    stop = Apply("minimum", (END, Literal(high, "i64")), "i64") if high < count else END
    return start, stop
