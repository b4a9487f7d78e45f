"""The records of a profile."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from anygpu.base.printable import encode_json
from anygpu.errors import AnyGPUError, MissingExtra

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
        return sum(each.recompilations for each in self.functions)

    def to_json(self) -> bytes:
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
    """The longest first."""
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
    """Scalene's figures of each line that took time or memory, and the line."""
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
    """The profile with what Scalene says of its lines, and the lines that only Scalene has seen."""
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
