"""All that is known of one line of `anygpu top`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from anygpu.base.printable import printable
from anygpu.cli.top.pages import Page, Row, bytes_, compact, percent, seconds_
from anygpu.observe.looking import Look
from anygpu.observe.statistics import CallStatistics, Quantiles


def details(page: Page, row: Row, looks: Sequence[Look]) -> Text:
    """Every column by its name, and of a function everything that was counted."""
    found = Text()
    found.append(f"{page.title}\n\n", style="bold")
    # What is said below in more detail is not said here.
    of_function = page.title in ("Functions", "Steps")
    most = 5 if of_function else len(page.columns)
    for column, cell in list(zip(page.columns, row.cells, strict=True))[:most]:
        _line(found, column.name.lower(), cell.text)
    for look in looks:
        if str(look.process.pid) != row.name[0] or look.snapshot is None:
            continue
        _line(found, "command", look.snapshot.process.command)
        _line(found, "anygpu", look.snapshot.process.version)
        if look.trouble:
            _line(found, "trouble", look.trouble)
        if of_function:
            for each in look.snapshot.statistics.calls:
                if (each.function, each.device) == row.name[1:]:
                    _function(found, each)
            for fallback in look.snapshot.fallbacks[-5:]:
                if fallback.function == row.name[1]:
                    _line(found, "fallback", f"{fallback.device}: {fallback.reason}")
    found.append("\nEsc closes this.", style="dim")
    return found


def _function(found: Text, calls: CallStatistics) -> None:
    found.append("\nSeconds\n", style="bold")
    for name, quantiles in (("five minutes", calls.lately), ("since the start", calls.seconds)):
        _line(found, name, _quantiles(quantiles))
    total = sum(calls.phases.values())
    found.append("\nPhases\n", style="bold")
    for phase, seconds in sorted(calls.phases.items(), key=lambda item: -item[1]):
        if seconds > 0:
            _line(found, phase, _share(seconds, total))
        if phase == "run":
            for part, of_it in sorted(calls.parts.items(), key=lambda item: -item[1]):
                _line(found, f"  {part}", _share(of_it, total))
    found.append("\nCounted\n", style="bold")
    if calls.peak_bytes is not None or calls.predicted_bytes is not None:
        _line(found, "memory", _memory(calls))
    _line(found, "bytes", f"{bytes_(calls.bytes_to_device)} to the device, {bytes_(calls.bytes_to_host)} back, "
          f"{bytes_(calls.bytes_skipped)} were there already")  # fmt: skip
    _line(found, "compilations", compact(calls.compilations))
    _line(
        found, "fallbacks", f"{compact(calls.fallbacks)} calls, {compact(calls.host_operations)} operations on the host"
    )
    if calls.repeats:
        _line(found, "repeats", f"{compact(calls.repeats)} attempts failed and were made again on the same device")
    if calls.seconds_of_predicted:
        of_them = f"{seconds_(calls.predicted_seconds)} predicted, {seconds_(calls.seconds_of_predicted)} taken"
        _line(found, "prediction", of_them)
    for error, times in sorted(calls.errors.items(), key=lambda item: -item[1]):
        _line(found, "error", f"{compact(times)} × {error}")


def _share(seconds: float, total: float) -> str:
    return f"{seconds_(seconds):>9}  {percent(seconds / total if total else 0.0):>6}"


def _memory(calls: CallStatistics) -> str:
    peak = "the peak is not known" if calls.peak_bytes is None else f"{bytes_(calls.peak_bytes)} at most at once"
    return peak if calls.predicted_bytes is None else f"{peak}, {bytes_(calls.predicted_bytes)} predicted"


def _quantiles(seconds: Quantiles) -> str:
    if seconds.p50 is None or seconds.p90 is None or seconds.p99 is None:
        return "no calls"
    parts = (("p50", seconds.p50), ("p90", seconds.p90), ("p99", seconds.p99), ("longest", seconds.most))
    return ", ".join(f"{name} {seconds_(value)}" for name, value in parts) + f"; {compact(seconds.count)} calls"


def _line(found: Text, name: str, value: str) -> None:
    # The names of a step's parts are the user's.
    found.append(f"  {printable(name):<16} ", style="bold").append(f"{printable(value)}\n")
