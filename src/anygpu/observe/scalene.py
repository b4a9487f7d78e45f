"""Scalene's view of a script, beside ours: the processor's time and the memory of each line.

The script runs a second time for it, because Scalene slows down what it looks at, and our seconds should be those of a
script at full speed. What it prints then is dropped.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from anygpu.errors import AnyGPUError, MissingExtra
from anygpu.observe.profile_records import LineProfile, Profile, ScaleneLine

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
