"""Starts the scripts that are measured, each with an environment of its own, and reads what they took."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

import anygpu
from benchmarks import short_script_supervisor
from benchmarks.short_script_program import Program

ROOT = Path(__file__).parents[1]
#: Scripts are told these where the caller is; of all else that steers anygpu they have the defaults.
PASSED_ON = ("ANYGPU_NATIVE", "ANYGPU_SOFTWARE_DEVICES")
DROPPED = ("ANYGPU_", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
#: What programs import beside anygpu's own requirements.
ALSO_IMPORTED = ("scipy",)

#: A script that takes longer than NumPy would, times this, and these seconds more, is killed.
PATIENCE_FACTOR, PATIENCE_SECONDS = 10.0, 60.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One process, from its start to its exit."""

    seconds: float
    #: User and system time, with all processes that it started.
    processor: float
    #: Of its last call.
    device: str = ""
    failed: str = ""


class _Taken(msgspec.Struct):
    """What the supervisor prints."""

    code: int
    seconds: float
    processor: float
    left_behind: int


def compile_sources() -> None:
    """As installing does: without bytecode every process would compile anygpu again, for half a second."""
    for folder in (Path(anygpu.__file__).parent, Path(__file__).parent):
        command = [sys.executable, "-m", "compileall", "-q", str(folder)]
        subprocess.run(command, env=environment(folder), check=True)


def environment(folder: Path, *, bytecode: bool = True) -> dict[str, str]:
    """With caches in the folder: those of drivers too, or no process would be the first."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED) or name in PASSED_ON}
    none = {} if bytecode else {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(folder / "no-bytecode")}
    return (
        own
        | none
        | {
            "ANYGPU_CACHE_DIR": str(folder / "anygpu"),
            "XDG_CACHE_HOME": str(folder / "drivers"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
    )


def plain_python(folder: Path) -> str:
    """The interpreter of a new virtual environment that has what `pip install anygpu` brings, as links."""
    venv.create(folder, symlinks=os.name != "nt", with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in sorted(required("anygpu", *ALSO_IMPORTED) - {"anygpu"}):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))


def required(*names: str) -> set[str]:
    """These distributions and all that they require, without extras, as far as it is installed."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requirements = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def run_script(
    program: Program, calls: int, side: str, *, folder: Path, python: str = sys.executable, bytecode: bool = True
) -> Measured:
    """Run the script once, with what earlier processes have left in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    report, errors = folder / "report.txt", folder / "errors.txt"
    report.unlink(missing_ok=True)
    limit = PATIENCE_SECONDS + PATIENCE_FACTOR * calls * program.numpy_seconds
    script = [python, "-m", "benchmarks.short_script", program.name, str(calls), str(report), side]
    supervisor = [sys.executable, "-I", "-S", short_script_supervisor.__file__, str(limit)]
    with errors.open("wb") as stderr:
        done = subprocess.run(
            [*supervisor, *script],
            cwd=folder,
            env=environment(folder, bytecode=bytecode),
            stdout=subprocess.PIPE,
            stderr=stderr,
            check=True,
        )
    taken = msgspec.json.decode(done.stdout, type=_Taken)
    failed = f"{taken.left_behind} processes were alive long after it had ended" if taken.left_behind else ""
    if taken.code != 0:
        lines = errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        failed = f"exit {taken.code}: {lines[-1]}"
    device = report.read_text(encoding="utf-8") if report.exists() else ""
    return Measured(seconds=taken.seconds, processor=taken.processor, device=device, failed=failed)
