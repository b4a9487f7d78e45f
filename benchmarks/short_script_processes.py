"""Starts the scripts that are measured, each with an environment of its own, and reads what they took."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

import anygpu
from benchmarks import short_script_supervisor
from benchmarks.short_script_program import Program

ROOT = Path(__file__).parents[1]

#: What a user has installed, as the engines that there are beside NumPy.
INSTALLS = {
    "core": ("webgpu",),
    "opencl": ("webgpu", "opencl"),
    "all": ("webgpu", "opencl", "torch", "jax"),
}

#: A script that takes longer than NumPy would, times this, and these seconds more, is killed.
PATIENCE_FACTOR, PATIENCE_SECONDS = 10.0, 60.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One process, from its start to its exit."""

    seconds: float
    #: User and system time, with all processes that it started.
    processor: float
    #: Of each call inside of the process.
    calls: tuple[float, ...] = ()
    #: How many calls ran on each device, by their receipts.
    devices: dict[str, int] = {}
    #: The first call, counted from 1, that did not run on NumPy.
    moved_at: int | None = None
    #: Processor time in the idle time that was asked for.
    later: float | None = None
    #: Processes that had to be killed long after it had ended.
    left_behind: int = 0
    failed: str = ""


class _Taken(msgspec.Struct):
    """What the supervisor prints."""

    code: int
    seconds: float
    processor: float
    left_behind: int


class _Said(msgspec.Struct):
    """What the script reports."""

    calls: list[float]
    devices: list[str]
    later: float | None


def compile_sources() -> None:
    """As installing does: without bytecode every process would compile anygpu again, for half a second."""
    for folder in (Path(anygpu.__file__).parent, Path(__file__).parent):
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], env=environment(folder, ()), check=True)


def environment(folder: Path, engines: tuple[str, ...]) -> dict[str, str]:
    """Only these engines, and caches in the folder: those of drivers too, or no process would be the first."""
    dropped = ("ANYGPU_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    own = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return own | {
        "ANYGPU_CACHE_DIR": str(folder / "anygpu"),
        "XDG_CACHE_HOME": str(folder / "drivers"),
        "ANYGPU_ENGINES": ",".join(engines),
    }


def run_script(
    program: Program,
    calls: int,
    side: str,
    *,
    folder: Path,
    engines: tuple[str, ...],
    idle: tuple[float, float] | None = None,
) -> Measured:
    """Run the script once, with what earlier processes have left in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    report, errors = folder / "report.json", folder / "errors.txt"
    report.unlink(missing_ok=True)
    limit = PATIENCE_SECONDS + PATIENCE_FACTOR * calls * program.numpy_seconds
    script = [sys.executable, "-m", "benchmarks.short_script", program.name, str(calls), str(report), side]
    supervisor = [sys.executable, "-I", "-S", short_script_supervisor.__file__, str(limit)]
    with errors.open("wb") as stderr:
        done = subprocess.run(
            [*supervisor, *script, *map(str, idle or ())],
            cwd=ROOT,
            env=environment(folder, engines),
            stdout=subprocess.PIPE,
            stderr=stderr,
            check=True,
        )
    taken = msgspec.json.decode(done.stdout, type=_Taken)
    if taken.code != 0:
        lines = errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        return Measured(seconds=taken.seconds, processor=taken.processor, failed=f"exit {taken.code}: {lines[-1]}")
    said = msgspec.json.decode(report.read_bytes(), type=_Said)
    return Measured(
        seconds=taken.seconds,
        processor=taken.processor,
        calls=tuple(said.calls),
        devices=dict(Counter(said.devices)),
        moved_at=next((number for number, device in enumerate(said.devices, 1) if device != "numpy"), None),
        later=said.later,
        left_behind=taken.left_behind,
    )


def used_by_others() -> float | None:
    """Processor seconds of the machine since it started, without this process and its children: differences count."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _, _, interrupts, soft = map(int, first[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])
