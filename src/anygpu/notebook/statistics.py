"""Statistics of calls and of stores as HTML."""

from __future__ import annotations

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.notebook.markup import Share, bar, framed, legend, pairs, paragraph, table, tag
from anygpu.notebook.receipts import shares_of
from anygpu.observe.statistics import CallStatistics, Summary
from anygpu.receipts import Phases
from anygpu.store.report import Statistics

#: Rows of a table; those that took longest come first.
MOST_ROWS = 50


def summary_html(summary: Summary) -> str:
    if not summary.observed or not summary.calls:
        return framed("Statistics", paragraph(str(summary)))
    longest = max(each.seconds.total for each in summary.calls)
    shown = summary.calls[:MOST_ROWS]
    head = ("function", "device", "calls", "errors", "fallbacks", "total", "p50", "p90", "p99", "moved", "phases")
    hidden = len(summary.calls) - len(shown)
    names = {share.name: share for each in shown for share in shares_of(Phases(**each.phases))}
    return framed(
        "Statistics",
        paragraph(f"Calls in {readable_seconds(summary.seconds)}"),
        table(head, [_row(each, longest) for each in shown], "Calls by function and device", range(2, 10)),
        legend([Share(each.name, 0.0, "", each.colour) for each in names.values()]),
        paragraph(f"{hidden:,} more rows are not shown; print(ag.statistics()) has them.") if hidden else "",
    )


def store_html(statistics: Statistics) -> str:
    limits = ((statistics.budget, "on the device"), (statistics.host_budget, "on the host"))
    budgets = ", ".join(f"{readable_bytes(limit)} {where}" for limit, where in limits if limit is not None)
    facts: list[tuple[str, object]] = [
        ("tensors", f"{statistics.tensors:,} in {statistics.contents:,} contents"),
        (
            f"on {statistics.device}",
            f"{readable_bytes(statistics.device_bytes)}, at most {readable_bytes(statistics.peak_device_bytes)} so far",
        ),
        ("on the host", readable_bytes(statistics.host_bytes)),
        ("on disk", readable_bytes(statistics.disk_bytes)),
        ("shared", readable_bytes(statistics.bytes_saved)),
        ("budget", budgets or "none"),
        ("mode", statistics.mode),
        ("leases, pinned", f"{statistics.leases:,}, {statistics.pinned:,}"),
        ("left the device, came back", f"{statistics.evictions:,}, {statistics.returns:,}"),
    ]
    copies = [
        (kind.replace("_", " "), f"{each.count:,}", readable_bytes(each.bytes))
        for kind, each in statistics.copies.items()
    ]
    owners = [(name, f"{each.tensors:,}", readable_bytes(each.bytes)) for name, each in statistics.by_owner.items()]
    return framed(
        f"Store {statistics.name}",
        paragraph(tag("b", f"Store {statistics.name}")),
        pairs(facts, "Facts of the store"),
        table(("copies", "number", "bytes"), copies, "Copies", (1, 2)),
        table(("owner", "tensors", "bytes"), owners[:MOST_ROWS], "Owners", (1, 2)) if owners else "",
    )


def _row(each: CallStatistics, longest: float) -> tuple[object, ...]:
    times = (each.seconds.total, each.seconds.p50, each.seconds.p90, each.seconds.p99)
    errors = sum(each.errors.values())
    named = ", ".join(f"{name} × {count:,}" for name, count in each.errors.items())
    return (
        tag("b", each.function),
        each.device,
        f"{each.calls:,}",
        tag("span", f"{errors:,}", class_="bad", title=named) if errors else "0",
        f"{each.fallbacks:,}",
        *(readable_seconds(time or 0.0) for time in times),
        readable_bytes(each.bytes_to_device + each.bytes_to_host),
        bar(shares_of(Phases(**each.phases)), longest),
    )
