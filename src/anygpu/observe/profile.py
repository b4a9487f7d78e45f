"""A profile of a script: its records, Scalene's figures beside ours, and its tables as text and as an HTML page.

The records are the document that `anygpu profile --json` writes (`docs/reference/profile.schema.json`). The tables are
described once as columns; the terminal and the page render them. The page has no scripts and loads nothing from another
host. `profiler` makes the records.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from anygpu.base.markup import HTML, Html, Share, bar, column_table, join, legend, paragraph, table, tag
from anygpu.base.printable import encode_json
from anygpu.base.tables import Column, by_title, pick
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.errors import AnyGPUError, MissingExtra
from anygpu.observe.script import decode_source, source_lines
from anygpu.observe.statistics import breakdown
from anygpu.observe.tables import breakdown_of

SCHEMA = "anygpu.profile/1"


class ScaleneLine(msgspec.Struct, frozen=True, kw_only=True):
    """Scalene's figures of a line: percentages of the script's time, and memory."""

    python_percent: float
    native_percent: float
    system_percent: float
    peak_megabytes: float
    allocated_megabytes: float
    copied_megabytes_a_second: float

    @property
    def percent(self) -> float:
        """The share of the script's time, in all kinds of code."""
        return self.python_percent + self.native_percent + self.system_percent


class LineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's own code."""

    file: str
    line: int
    code: str
    #: Seconds of the main thread, without the lines of the user's other functions that it calls. The seconds of
    #: all lines are the script's.
    seconds: float
    #: Calls of offloaded functions that were made or submitted here, on any thread, and what they took where they ran.
    calls: int = 0
    call_seconds: float = 0.0
    devices: dict[str, float] = {}
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    recompilations: int = 0
    scalene: ScaleneLine | None = None


class FunctionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An offloaded function on one device. Calls that it makes of others are not in its seconds."""

    function: str
    device: str
    calls: int
    errors: int
    seconds: float
    phases: dict[str, float]
    #: Measured by the device's own clock, of as many calls as that was measured for; `None` if for none.
    device_seconds: float | None
    bytes_to_device: int
    bytes_to_host: int
    bytes_skipped: int
    recompilations: int
    fallbacks: int
    #: Seconds of named parts of `run`, of calls that have some: a training step's are forward, backward and optimizer.
    parts: dict[str, float] = {}
    #: Attempts that failed and were made again on the same device, as a step is that was out of memory.
    repeats: int = 0
    #: The highest of the calls for which it was measured, and what had been predicted for that call.
    peak_bytes: int | None = None
    predicted_bytes: int | None = None


class OperationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a program. Its seconds are a share of what its programs took, by estimated work."""

    operation: str
    device: str
    #: The user's line, as `file:line`.
    line: str | None
    seconds: float
    #: Runs of programs that have it.
    runs: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a script went."""

    schema: str = SCHEMA
    script: str
    arguments: tuple[str, ...]
    #: Seconds of the whole script, from its first line to its last.
    seconds: float
    exit_status: int
    #: Seconds of offloaded functions that the main thread waited for: measured, and all others sampled.
    call_seconds: float
    samples: int
    #: Seconds between two samples, on average.
    interval: float
    lines: tuple[LineProfile, ...]
    functions: tuple[FunctionProfile, ...]
    operations: tuple[OperationProfile, ...]
    #: Seconds of all calls by phase.
    phases: dict[str, float]
    #: Name and version of Scalene, if the script ran a second time under it.
    scalene: str | None = None

    @property
    def recompilations(self) -> int:
        """Compilations after the first of each function on each device."""
        return sum(each.recompilations for each in self.functions)

    def to_json(self) -> bytes:
        """The document as indented JSON, in UTF-8."""
        return msgspec.json.format(encode_json(self), indent=2)


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All calls on one device."""

    device: str
    calls: int
    seconds: float
    run: float
    moving: float
    bytes_to_device: int
    bytes_to_host: int


def by_device(profile: Profile) -> list[DeviceProfile]:
    """The calls of a profile added up by device, the longest first.

    Moving is writing to and reading from the device; seconds of calls inside of others are counted once.
    """
    found: dict[str, list[FunctionProfile]] = {}
    for each in profile.functions:
        found.setdefault(each.device, []).append(each)
    devices = [
        DeviceProfile(
            device=device,
            calls=sum(each.calls for each in functions),
            seconds=sum(each.seconds for each in functions),
            run=sum(each.phases.get("run", 0.0) for each in functions),
            moving=sum(each.phases.get("write", 0.0) + each.phases.get("read", 0.0) for each in functions),
            bytes_to_device=sum(each.bytes_to_device for each in functions),
            bytes_to_host=sum(each.bytes_to_host for each in functions),
        )
        for device, functions in found.items()
    ]
    return sorted(devices, key=lambda each: -each.seconds)


# -- scalene's view of a script, beside ours: the processor's time and the memory of each line
#
# The script runs a second time for it, because Scalene slows down what it looks at, and our seconds should be those of
# a script at full speed. What it prints then is dropped.


#: The oldest whose options and figures are those that are used here.
_OLDEST = (2, 4)


class _Line(msgspec.Struct):
    """The fields of a line that are read; Scalene has more."""

    lineno: int
    line: str = ""
    n_cpu_percent_python: float = 0.0
    n_cpu_percent_c: float = 0.0
    n_sys_percent: float = 0.0
    n_peak_mb: float = 0.0
    n_malloc_mb: float = 0.0
    n_copy_mb_s: float = 0.0


class _File(msgspec.Struct):
    lines: list[_Line] = []


class _Document(msgspec.Struct):
    files: dict[str, _File] = {}


class ScaleneFailed(AnyGPUError):
    """Scalene has left no profile."""


def version() -> str:
    """The version of Scalene. Raises `MissingExtra` if it is not there, or too old."""
    try:
        found = importlib.metadata.version("scalene")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra("scalene", "profile") from None
    if tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) < _OLDEST:
        raise MissingExtra("scalene 2.4 or newer", "profile")
    return found


def run_scalene(script: str, arguments: Sequence[str]) -> dict[tuple[str, int], tuple[ScaleneLine, str]]:
    """Runs the script under Scalene, and returns its figures by file and line, with the line's text.

    Blocks until the script has ended; its output is dropped and its standard input is empty. Only lines that took time
    or memory are there. Raises `ScaleneFailed` if no profile was written.
    """
    with tempfile.TemporaryDirectory(prefix="anygpu-scalene-") as folder:
        out = Path(folder) / "profile.json"
        options = ["--no-stacks", "--no-async", "--memory", "--cpu-percent-threshold", "0.1", "-o", str(out)]
        command = [sys.executable, "-m", "scalene", "run", *options, script, "---", *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        if not out.exists():
            said = done.stderr.decode(errors="replace").strip().splitlines()
            why = said[-1] if said else f"it ended with status {done.returncode}"
            raise ScaleneFailed(f"Scalene has left no profile of {script}: {why}. Profile without --scalene.")
        return read_scalene(out.read_bytes())


def read_scalene(data: bytes) -> dict[tuple[str, int], tuple[ScaleneLine, str]]:
    """The lines of Scalene's JSON document, by file and line. Raises `ScaleneFailed` if it cannot be read."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.MsgspecError as error:
        raise ScaleneFailed(f"Scalene has written what we cannot read: {error}. Profile without --scalene.") from None
    found: dict[tuple[str, int], tuple[ScaleneLine, str]] = {}
    for file, content in document.files.items():
        for line in content.lines:
            seen = ScaleneLine(
                python_percent=line.n_cpu_percent_python,
                native_percent=line.n_cpu_percent_c,
                system_percent=line.n_sys_percent,
                peak_megabytes=line.n_peak_mb,
                allocated_megabytes=line.n_malloc_mb,
                copied_megabytes_a_second=line.n_copy_mb_s,
            )
            if seen.percent or seen.peak_megabytes or seen.allocated_megabytes:
                found[file, line.lineno] = seen, line.line
    return found


def joined(profile: Profile, lines: dict[tuple[str, int], tuple[ScaleneLine, str]], name: str) -> Profile:
    """The profile with Scalene's figures beside its lines, and the lines that only Scalene has seen.

    Files are compared by their resolved paths. The lines that are added have 0 seconds of ours. `name` is Scalene's
    name with its version.
    """
    left = {(_resolved(file), number): each for (file, number), each in lines.items()}
    both = []
    for each in profile.lines:
        seen = left.pop((_resolved(each.file), each.line), None)
        both.append(msgspec.structs.replace(each, scalene=None if seen is None else seen[0]))
    both += [
        LineProfile(file=file, line=number, code=code.strip()[:300], seconds=0.0, scalene=seen)
        for (file, number), (seen, code) in sorted(left.items())
    ]
    return msgspec.structs.replace(profile, lines=tuple(both), scalene=name)


def _resolved(file: str) -> str:
    return str(Path(file).resolve())


#: Lines of a file around those that took time, and files and lines that are shown.
_AROUND, _MOST_FILES, _MOST_LINES = 3, 10, 40
_MOST_STEPS = 10
_COLOURS = ("#5b8ff9", "#61ddaa", "#f6bd16", "#e8684a", "#7262fd", "#78d3f8", "#9661bc", "#a0a7b4", "#c9cdd4")

#: Zeros and what is not known are left out.
PAGE = HTML._replace(unknown="")

# -- the tables, which the terminal shows too


def _phases(count: int) -> Callable[[FunctionProfile], str]:
    """A function that names the longest `count` phases of a row, with their times."""

    def longest(each: FunctionProfile) -> str:
        found = sorted(each.phases.items(), key=lambda item: -item[1])[:count]
        return ", ".join(f"{name} {readable_seconds(took)}" for name, took in found if took >= 5e-7)

    return longest


def _remarks(each: FunctionProfile) -> str:
    """The counts of errors, fallbacks and repeats of a function that are not 0, in words."""
    counts = (each.errors, "raised"), (each.fallbacks, "fallbacks"), (each.repeats, "repeated")
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def line_columns(profile: Profile) -> dict[str, Column[LineProfile]]:
    """The columns of lines by title; percentages are those of the profile's seconds.

    Those of Scalene are left out if it did not run.
    """

    def percent(line: LineProfile) -> str:
        return f"{100 * line.seconds / profile.seconds:.1f}" if profile.seconds else ""

    columns: list[Column[LineProfile]] = [
        Column("seconds", lambda line: line.seconds, "seconds"),
        Column("%", percent, "id"),
        Column("calls", lambda line: line.calls or None, "count"),
        Column("moved", lambda line: line.bytes_to_device + line.bytes_to_host if line.calls else None, "bytes"),
        Column("Scalene: CPU", lambda line: f"{line.scalene.percent:.1f} %" if line.scalene else None, "id"),
        Column("peak memory", _scalene_peak, "id"),
        Column("line", lambda line: f"{Path(line.file).name}:{line.line}"),
        Column("code", lambda line: line.code),
        Column("ran on", lambda line: ", ".join(sorted(line.devices, key=lambda name: -line.devices[name]))),
    ]
    if profile.scalene is None:
        del columns[4:6]
    return by_title(*columns)


def _scalene_peak(line: LineProfile) -> str | None:
    """The peak memory that Scalene has seen on a line, from a megabyte on."""
    if line.scalene is None or line.scalene.peak_megabytes < 1:
        return None
    return f"{line.scalene.peak_megabytes:.0f} MB"


FUNCTIONS: dict[str, Column[FunctionProfile]] = by_title(
    Column("seconds", lambda each: each.seconds, "seconds"),
    Column("calls", lambda each: each.calls, "count"),
    Column("each", lambda each: each.seconds / each.calls, "seconds"),
    Column("moved", lambda each: (each.bytes_to_device + each.bytes_to_host) or None, "bytes"),
    Column("to device", lambda each: each.bytes_to_device, "bytes"),
    Column("to host", lambda each: each.bytes_to_host, "bytes"),
    Column("recompiled", lambda each: each.recompilations or None, "count"),
    Column("again", lambda each: each.repeats or None, "count"),
    Column("raised", lambda each: each.errors or None, "count"),
    Column("peak", lambda each: each.peak_bytes, "bytes"),
    Column("predicted", lambda each: each.predicted_bytes, "bytes"),
    Column("function", lambda each: each.function),
    Column("device", lambda each: each.device),
    Column("most of it in", _phases(3)),
    Column("where its time goes", lambda each: breakdown_of(each.phases, each.parts), "prose"),
    Column("remarks", _remarks),
)
DEVICES: tuple[Column[DeviceProfile], ...] = (
    Column("seconds", lambda each: each.seconds, "seconds"),
    Column("calls", lambda each: each.calls, "count"),
    Column("running", lambda each: each.run, "seconds"),
    Column("moving data", lambda each: each.moving, "seconds"),
    Column("to device", lambda each: each.bytes_to_device, "bytes"),
    Column("to host", lambda each: each.bytes_to_host, "bytes"),
    Column("device", lambda each: each.device),
)
OPERATIONS: tuple[Column[OperationProfile], ...] = (
    Column("seconds", lambda each: each.seconds, "seconds"),
    Column("runs", lambda each: each.runs, "count"),
    Column("operation", lambda each: each.operation),
    Column("device", lambda each: each.device),
    Column("line", lambda each: None if each.line is None else Path(each.line).name),
)


def summary(profile: Profile) -> str:
    """Where the time went, in a sentence or two."""
    calls = sum(each.calls for each in profile.functions)
    took = readable_seconds(profile.seconds)
    if not calls:
        return f"It took {took}, and called no offloaded function."
    moved = sum(each.bytes_to_device + each.bytes_to_host for each in profile.functions)
    return (
        f"It took {took}. Its main thread spent {readable_seconds(profile.call_seconds)} of them in offloaded "
        f"functions, which were called {calls:,} times, moved {readable_bytes(moved)} and were compiled again "
        f"{_times(profile.recompilations, 'time')}."
    )


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# -- the page

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
code { font: 12.5px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.s { display: block; background: linear-gradient(var(--bar), var(--bar)) right / var(--w) 100% no-repeat; }
.dim { color: var(--dim); }
svg.bar { display: block; width: 100%; height: 22px; border-radius: 4px; margin: 8px 0; }
.legend { list-style: none; margin: 0; padding: 0; }
.legend li { display: inline-block; margin-right: 16px; white-space: nowrap; }
.legend .swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.source td { border: 0; padding: 0 8px; }
.wide { overflow-x: auto; }
"""


def to_html(profile: Profile) -> str:
    """The whole page as one HTML document.

    Everything that comes from the script is escaped, and the page's content security policy allows styles only.
    """
    parts = [_head(profile), _all_phases(profile), *_steps(profile), _lines(profile), _functions(profile)]
    parts += [_devices(profile), _operations(profile), *_sources(profile)]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', f'Profile of {Path(profile.script).name}')}<style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _section(title: str, about: str, *content: Html) -> Html:
    """A heading, a paragraph about it unless it is empty, and the content."""
    return join((tag("h2", title), paragraph(about) if about else "", *content))


def _share(seconds: float, whole: float) -> Html:
    """Seconds with their share of the whole behind them."""
    percent = min(100.0, max(0.0, 100 * seconds / whole if whole else 0.0))
    return tag("span", readable_seconds(seconds), class_="s", style=f"--w:{percent:.1f}%")


def _seconds(whole: float) -> Column[Any]:
    """The column of seconds with bars that show each as a share of `whole`."""
    return Column("seconds", lambda each: _share(each.seconds, whole), "seconds")


def _head(profile: Profile) -> Html:
    """The command, the summary of the profile, and the exit status if it is not 0."""
    command = " ".join((profile.script, *profile.arguments))
    status = "" if profile.exit_status == 0 else f" It ended with status {profile.exit_status}."
    return join((tag("h1", command), paragraph(summary(profile) + status)))


def _lines(profile: Profile) -> Html:
    """The table of lines, longest first, with code, calls and devices.

    Lines below a thousandth of the time are left out unless calls were made there or Scalene saw something.
    """
    shown = [
        line
        for line in profile.lines[:_MOST_LINES]
        if line.seconds >= 0.001 * profile.seconds or line.calls or (line.scalene and line.scalene.percent >= 1)
    ]
    about = (
        "What the main thread spent on each line; they add up to the whole. Calls of offloaded functions are measured, "
        f"everything else was sampled {profile.samples:,} times."
    )
    if profile.scalene is not None:
        about += f" {profile.scalene} looked at a second run."
    known = line_columns(profile)
    known["seconds"] = _seconds(profile.seconds)
    known["code"] = known["code"]._replace(value=lambda line: tag("code", line.code))
    if profile.scalene is not None:
        known["Scalene: CPU"] = known["Scalene: CPU"]._replace(value=_scalene_cell)
    return _section("Lines", about, column_table(tuple(known.values()), shown, "Lines", PAGE))


def _scalene_cell(line: LineProfile) -> Html | None:
    """Scalene's share of a line, with its parts (Python, native, system) as a tooltip."""
    if line.scalene is None:
        return None
    seen = line.scalene
    about = (
        f"{seen.python_percent:.1f} % Python, {seen.native_percent:.1f} % native, {seen.system_percent:.1f} % system"
    )
    return tag("span", f"{seen.percent:.1f} %", title=about)


def _all_phases(profile: Profile) -> Html:
    if not sum(profile.phases.values()):
        return Html("")
    return _section("Phases of all calls", "", _bar(profile.phases.items()))


def _bar(named: Iterable[tuple[str, float]], calls: int = 1) -> Html:
    """Seconds by name as a bar, and below it the seconds of each for one of `calls` calls.

    Parts below a thousandth of the whole are left out.
    """
    named = list(named)
    whole = sum(seconds for _, seconds in named)
    shares = [
        Share(name, seconds, readable_seconds(seconds / calls), _COLOURS[place % len(_COLOURS)])
        for place, (name, seconds) in enumerate(named)
        if seconds >= 0.001 * whole
    ]
    return join((bar(shares, whole), legend(shares)))


def _steps(profile: Profile) -> list[Html]:
    """A section for each function whose calls have parts, such as a training step; ten at most."""
    return [
        _section(
            f"Steps of {each.function} on {each.device}",
            _about_steps(each),
            _bar(breakdown(each.phases, each.parts), each.calls),
        )
        for each in profile.functions
        if each.parts
    ][:_MOST_STEPS]


def _about_steps(each: FunctionProfile) -> str:
    """The number, average time, memory and failures of a function's steps, in sentences."""
    said = (
        f"{_times(each.calls, 'step')} of {readable_seconds(each.seconds / each.calls)} on average, divided as below."
    )
    if each.peak_bytes is not None:
        predicted = f" ({readable_bytes(each.predicted_bytes)} predicted)" if each.predicted_bytes is not None else ""
        said += f" At most {readable_bytes(each.peak_bytes)} of memory at once{predicted}."
    if each.repeats:
        said += f" {_times(each.repeats, 'attempt')} failed and {'was' if each.repeats == 1 else 'were'} made again."
    return said + (f" {_times(each.errors, 'step')} raised." if each.errors else "")


def _functions(profile: Profile) -> Html:
    """The table of offloaded functions by device."""
    titles = ("calls", "each", "to device", "to host", "recompiled", "function", "device", "most of it in", "remarks")
    about = "Without the calls of other offloaded functions inside of them."
    return _by_seconds("Functions", about, pick(FUNCTIONS, *titles), profile.functions, 100)


def _devices(profile: Profile) -> Html:
    return _by_seconds("Devices", "", DEVICES[1:], by_device(profile))


def _operations(profile: Profile) -> Html:
    """The table of operations; their seconds are shares of their program's by estimated work."""
    about = (
        "What programs took on devices is measured; how it divides among their operations is estimated by their work."
    )
    return _by_seconds("Operations", about, OPERATIONS[1:], profile.operations, 40)


def _by_seconds(
    title: str, about: str, columns: Sequence[Column[Any]], rows: Sequence[Any], most: int | None = None
) -> Html:
    """A section with a table, whose first column has seconds as shares of all rows'; empty HTML without rows."""
    if not rows:
        return Html("")
    seconds = _seconds(sum(each.seconds for each in rows))
    return _section(title, about, column_table((seconds, *columns), rows[:most], title, PAGE))


def _sources(profile: Profile) -> list[Html]:
    """The sources of the files that took most time, ten at most."""
    files: dict[str, dict[int, LineProfile]] = {}
    for each in profile.lines:
        files.setdefault(each.file, {})[each.line] = each
    longest = sorted(files, key=lambda file: -sum(each.seconds for each in files[file].values()))
    return [_source(file, files[file], profile.seconds) for file in longest[:_MOST_FILES]]


def _source(file: str, lines: Mapping[int, LineProfile], whole: float) -> Html:
    """The lines of a file around those of the profile, each with its share of the time.

    Empty HTML if the file is gone or cannot be decoded.
    """
    try:
        texts = source_lines(decode_source(Path(file).read_bytes())[0])
    except (OSError, ValueError, SyntaxError):  # it is gone or no source, or its name is no name of a file
        return Html("")
    wanted = {near for number in lines for near in range(number - _AROUND, number + _AROUND + 1)}
    rows: list[tuple[object, ...]] = []
    for number, text in enumerate(texts, 1):
        if number not in wanted:
            continue
        if rows and number - 1 not in wanted:
            rows.append(("", "", tag("code", "⋮", class_="dim")))
        seconds = lines[number].seconds if number in lines else 0.0
        took = _share(seconds, whole) if seconds >= 1e-4 else ""
        code = tag("code", text.rstrip()[:300].expandtabs(4))
        rows.append((took, tag("span", number, class_="dim"), code))
    label = f"Source of {Path(file).name}"
    return _section(Path(file).name, "", table(("", "", ""), rows, label, (0, 1), "source"))
