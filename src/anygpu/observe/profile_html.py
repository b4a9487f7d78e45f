"""A profile as one HTML file: without scripts, and without anything from another host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from anygpu.base.printable import printable
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.observe.profile_records import FunctionProfile, LineProfile, Profile, by_device
from anygpu.observe.script import decode_source, source_lines
from anygpu.observe.statistics import breakdown

#: Lines of a file around those that took time, and files that are shown.
_AROUND, _MOST_FILES, _MOST_LINES = 3, 10, 40
_MOST_STEPS = 10

_COLOURS = ("#5b8ff9", "#61ddaa", "#f6bd16", "#e8684a", "#7262fd", "#78d3f8", "#9661bc", "#a0a7b4", "#c9cdd4")

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #667080; --back: #fff; --line: #e3e6ea; --bar: #cfe0ff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e2e6eb; --dim: #939daa; --back: #15181c; --line: #2c3138; --bar: #26406e; }
}
* { box-sizing: border-box; }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
       max-width: 1180px; padding: 24px; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 32px 0 4px; }
p { margin: 4px 0 10px; color: var(--dim); max-width: 80ch; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--dim); border-bottom: 1px solid var(--line); padding: 3px 8px; }
td { padding: 3px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.c { font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
td.s { background: linear-gradient(var(--bar), var(--bar)) right / var(--w) 100% no-repeat; }
.dim { color: var(--dim); }
.phases { display: flex; height: 22px; border-radius: 4px; overflow: hidden; margin: 8px 0; }
.legend span { display: inline-block; margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.source td { border: 0; padding: 0 8px; }
.wide { overflow-x: auto; }
"""


def to_html(profile: Profile) -> str:
    """The whole page. Everything that comes from the script is escaped."""
    title = f"Profile of {Path(profile.script).name}"
    parts = [_head(profile), _phases(profile), _steps(profile), _lines(profile), _functions(profile)]
    parts += [_devices(profile), _operations(profile), _sources(profile)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    """Escaped, and without what is no character: half of a pair of surrogates, or a control character."""
    return escape(printable(text, most=10_000))


def _head(profile: Profile) -> str:
    command = " ".join((profile.script, *profile.arguments))
    status = "" if profile.exit_status == 0 else f" It ended with status {profile.exit_status}."
    return f"<h1>{_text(command)}</h1><p>{_text(summary(profile))}{status}</p>"


def summary(profile: Profile) -> str:
    """Where the time went, in a sentence or two."""
    calls = sum(each.calls for each in profile.functions)
    took = readable_seconds(profile.seconds)
    if not calls:
        return f"It took {took}, and called no offloaded function."
    moved = sum(each.bytes_to_device + each.bytes_to_host for each in profile.functions)
    again = profile.recompilations
    return (
        f"It took {took}. Its main thread spent {readable_seconds(profile.call_seconds)} of them in offloaded "
        f"functions, which were called {calls:,} times, moved {readable_bytes(moved)} and were compiled again "
        f"{again:,} {'time' if again == 1 else 'times'}."
    )


def _table(head: Sequence[str], numbers: int, rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table whose first `numbers` columns are right-aligned; the cells are HTML, some with a class of their own."""
    names = "".join(
        f'<th class="n">{escape(name)}</th>' if place < numbers else f"<th>{escape(name)}</th>"
        for place, name in enumerate(head)
    )
    body = "".join(
        "<tr>"
        + "".join(
            cell
            if cell.startswith("<td")
            else (f'<td class="n">{cell}</td>' if place < numbers else f"<td>{cell}</td>")
            for place, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in rows
    )
    header = f"<thead><tr>{names}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table class="{kind}">{header}<tbody>{body}</tbody></table></div>'


def _share(seconds: float, whole: float) -> str:
    percent = 100 * seconds / whole if whole else 0.0
    return f'<td class="n s" style="--w:{min(100.0, max(0.0, percent)):.1f}%">{readable_seconds(seconds)}</td>'


def _lines(profile: Profile) -> str:
    head = ["seconds", "%", "calls", "moved", "line", "code", "ran on"]
    if profile.scalene is not None:
        head[4:4] = ["Scalene: CPU", "peak memory"]
    rows = []
    for each in profile.lines[:_MOST_LINES]:
        if (
            each.seconds < 0.001 * profile.seconds
            and not each.calls
            and (each.scalene is None or each.scalene.percent < 1)
        ):
            continue
        row = [
            _share(each.seconds, profile.seconds),
            f"{100 * each.seconds / profile.seconds:.1f}" if profile.seconds else "",
            f"{each.calls:,}" if each.calls else "",
            readable_bytes(each.bytes_to_device + each.bytes_to_host) if each.calls else "",
            _text(f"{Path(each.file).name}:{each.line}"),
            f'<td class="c">{_text(each.code)}</td>',
            _text(", ".join(sorted(each.devices, key=lambda name: -each.devices[name]))),
        ]
        if profile.scalene is not None:
            row[4:4] = _scalene_cells(each)
        rows.append(row)
    about = (
        "What the main thread spent on each line; they add up to the whole. Calls of offloaded functions are measured, "
        f"everything else was sampled {profile.samples:,} times."
    )
    if profile.scalene is not None:
        about += f" {profile.scalene} looked at a second run."
    return f"<h2>Lines</h2><p>{_text(about)}</p>" + _table(head, 4 if profile.scalene is None else 6, rows)


def _scalene_cells(line: LineProfile) -> list[str]:
    if line.scalene is None:
        return ["", ""]
    seen = line.scalene
    about = (
        f"{seen.python_percent:.1f} % Python, {seen.native_percent:.1f} % native, {seen.system_percent:.1f} % system"
    )
    peak = f"{seen.peak_megabytes:.0f} MB" if seen.peak_megabytes >= 1 else ""
    return [f'<td class="n" title="{escape(about)}">{seen.percent:.1f} %</td>', peak]


def _phases(profile: Profile) -> str:
    if not sum(profile.phases.values()):
        return ""
    return "<h2>Phases of all calls</h2>" + _bar(profile.phases.items())


def _bar(named: Iterable[tuple[str, float]], calls: int = 1) -> str:
    """Seconds by name beside each other, and what they are below; of each of so many calls."""
    named = list(named)
    whole = sum(seconds for _, seconds in named)
    bars, legend = [], []
    for place, (name, seconds) in enumerate(named):
        if seconds < 0.001 * whole:
            continue
        colour, said = _COLOURS[place % len(_COLOURS)], _text(name)
        bars.append(f'<div style="width:{100 * seconds / whole:.2f}%;background:{colour}" title="{said}"></div>')
        legend.append(f'<span><i style="background:{colour}"></i>{said} {readable_seconds(seconds / calls)}</span>')
    return f'<div class="phases">{"".join(bars)}</div><div class="legend">{"".join(legend)}</div>'


def _steps(profile: Profile) -> str:
    """Calls that have parts, such as those of a training step."""
    shown = [each for each in profile.functions if each.parts][:_MOST_STEPS]
    return "".join(
        f"<h2>Steps of {_text(each.function)} on {_text(each.device)}</h2><p>{_text(_about_steps(each))}</p>"
        + _bar(breakdown(each.phases, each.parts), each.calls)
        for each in shown
    )


def _about_steps(each: FunctionProfile) -> str:
    said = (
        f"{_times(each.calls, 'step')} of {readable_seconds(each.seconds / each.calls)} on average, divided as below."
    )
    if each.peak_bytes is not None:
        predicted = f" ({readable_bytes(each.predicted_bytes)} predicted)" if each.predicted_bytes is not None else ""
        said += f" At most {readable_bytes(each.peak_bytes)} of memory at once{predicted}."
    if each.repeats:
        said += f" {_times(each.repeats, 'attempt')} failed and {'was' if each.repeats == 1 else 'were'} made again."
    return said + (f" {_times(each.errors, 'step')} raised." if each.errors else "")


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _functions(profile: Profile) -> str:
    if not profile.functions:
        return ""
    whole = sum(each.seconds for each in profile.functions)
    rows = []
    for each in profile.functions[:100]:
        longest = sorted(each.phases.items(), key=lambda item: -item[1])[:3]
        counts = (each.errors, "raised"), (each.fallbacks, "fallbacks"), (each.repeats, "repeated")
        remarks = ", ".join(f"{count:,} {what}" for count, what in counts if count)
        rows.append(
            [
                _share(each.seconds, whole),
                f"{each.calls:,}",
                readable_seconds(each.seconds / each.calls),
                readable_bytes(each.bytes_to_device),
                readable_bytes(each.bytes_to_host),
                f"{each.recompilations:,}" if each.recompilations else "",
                _text(each.function),
                _text(each.device),
                _text(", ".join(f"{name} {readable_seconds(took)}" for name, took in longest if took >= 5e-7)),
                remarks,
            ]
        )
    head = ["seconds", "calls", "each", "to device", "to host", "recompiled", "function", "device", "most of it in", ""]
    return "<h2>Functions</h2><p>Without the calls of other offloaded functions inside of them.</p>" + _table(
        head, 6, rows
    )


def _devices(profile: Profile) -> str:
    devices = by_device(profile)
    if not devices:
        return ""
    whole = sum(each.seconds for each in devices)
    rows = [
        [
            _share(each.seconds, whole),
            f"{each.calls:,}",
            readable_seconds(each.run),
            readable_seconds(each.moving),
            readable_bytes(each.bytes_to_device),
            readable_bytes(each.bytes_to_host),
            _text(each.device),
        ]
        for each in devices
    ]
    head = ["seconds", "calls", "running", "moving data", "to device", "to host", "device"]
    return "<h2>Devices</h2>" + _table(head, 6, rows)


def _operations(profile: Profile) -> str:
    if not profile.operations:
        return ""
    whole = sum(each.seconds for each in profile.operations)
    rows = [
        [
            _share(each.seconds, whole),
            f"{each.runs:,}",
            _text(each.operation),
            _text(each.device),
            _text("" if each.line is None else Path(each.line).name),
        ]
        for each in profile.operations[:40]
    ]
    about = (
        "What programs took on devices is measured; how it divides among their operations is estimated by their work."
    )
    return f"<h2>Operations</h2><p>{about}</p>" + _table(["seconds", "runs", "operation", "device", "line"], 2, rows)


def _sources(profile: Profile) -> str:
    files: dict[str, dict[int, LineProfile]] = {}
    for each in profile.lines:
        files.setdefault(each.file, {})[each.line] = each
    longest = sorted(files, key=lambda file: -sum(each.seconds for each in files[file].values()))
    return "".join(_source(file, files[file], profile.seconds) for file in longest[:_MOST_FILES])


def _source(file: str, lines: dict[int, LineProfile], whole: float) -> str:
    try:
        texts = source_lines(decode_source(Path(file).read_bytes())[0])
    except (OSError, ValueError, SyntaxError):  # it is gone or no source, or its name is no name of a file
        return ""
    wanted = {near for number in lines for near in range(number - _AROUND, number + _AROUND + 1)}
    rows, last = [], 0
    for number, text in enumerate(texts, 1):
        if number not in wanted:
            continue
        if last and number > last + 1:
            rows.append(["", "", '<td class="c dim">⋮</td>'])
        last = number
        line = lines.get(number)
        shown = _share(line.seconds, whole) if line is not None and line.seconds >= 1e-4 else ""
        rows.append(
            [
                shown,
                f'<span class="dim">{number}</span>',
                f'<td class="c">{_text(text.rstrip()[:300].expandtabs(4))}</td>',
            ]
        )
    return f"<h2>{_text(Path(file).name)}</h2>" + _table(["", "", ""], 2, rows, "source")
