"""Profiles ten scripts: do the seconds of lines add up, are the hot lines found, and does Scalene name the same ones?

    python -m benchmarks.profile [--check] [--scalene] [SCRIPT…]
    python -m benchmarks.profile --cost

Bounds, with --check: sums within 5 %; the line that says "hot" is the first of every script; with --scalene, Scalene's
first line is among our first three, and ours among its first three.

--cost measures what a quiet call takes more while it is recorded in a trace or profiled, and what a sample takes, in
one process with it off and on in turns. It has no bounds: both are off unless somebody asks for them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import msgspec

from anygpu.observe import trace
from anygpu.observe.profile import LineProfile, Profile
from anygpu.observe.profiler import LineSampler, Profiler, UsersFiles
from benchmarks.observe import quiet, seconds_of

FOLDER = Path(__file__).parent / "profile_scripts"
SCRIPTS = tuple(sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__"))
MOST_OFF = 0.05
#: Calls that are timed together, and in one turn: what was buffered is written among them, and samples are taken.
_AT_ONCE, _CALLS = 4096, 8 * 4096
_TURNS = 10


def profile_of(script: Path, *, scalene: bool = False) -> Profile:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile.json"
        options = ["--json", str(out), *(["--scalene"] if scalene else [])]
        command = [sys.executable, "-m", "anygpu", "profile", *options, str(script)]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        return msgspec.json.decode(out.read_bytes(), type=Profile)


def hot_line(script: Path) -> int:
    lines = script.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("# hot"))


def sum_error(profile: Profile) -> float:
    """How far the sum of lines is from the whole, as a part of it."""
    return abs(sum(each.seconds for each in profile.lines) / profile.seconds - 1)


def first_lines(profile: Profile) -> list[int]:
    """Ours, the longest first."""
    return [each.line for each in sorted(profile.lines, key=lambda line: -line.seconds) if each.seconds]


def first_of_scalene(profile: Profile) -> list[int]:
    def percent(line: LineProfile) -> float:
        return line.scalene.percent if line.scalene is not None else 0.0

    return [each.line for each in sorted(profile.lines, key=lambda line: -percent(line)) if percent(each)]


# -- what it costs


def off_and_on(measure: Callable[[], float], on: Callable[[], AbstractContextManager[object]]) -> tuple[float, float]:
    """The best of each, in turns."""
    measure()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_TURNS):
        for which, around in zip(times, (nullcontext, on), strict=True):
            with around():
                which.append(measure())
    return min(times[0]), min(times[1])


def quiet_call() -> float:
    return seconds_of(quiet, _CALLS, _AT_ONCE)


@contextmanager
def _profiled() -> Iterator[None]:
    profiler = Profiler(__file__)
    with profiler:
        yield
    profiler.finish((), 0)


def cost_of_a_sample() -> float:
    """Seconds that a script waits for each sample of it, by what the same work in Python takes more."""
    samplers: list[LineSampler] = []

    def sampled() -> LineSampler:
        samplers.append(LineSampler(UsersFiles(__file__), lambda: 0.0, time.perf_counter))
        return samplers[-1]

    def squares(_: object) -> object:
        return sum(number * number for number in range(1_000_000))

    # Blocks of some ten samples: shorter ones may have had one less.
    off, on = off_and_on(lambda: seconds_of(squares, 10, 1), sampled)
    return (on - off) / (on * max(each.samples / each.seconds for each in samplers))


def show_costs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        off, on = off_and_on(quiet_call, lambda: trace(path, limit="1GB"))
        with trace(path, limit="1GB") as recording:
            quiet_call()
        size = path.stat().st_size / recording.calls
    _say(
        f"quiet call: {off * 1e6:.2f} µs; in a trace: {(on - off) * 1e6:.1f} µs more, and {size:.0f} bytes of its file"
    )
    off, on = off_and_on(quiet_call, _profiled)
    _say(f"quiet call: {off * 1e6:.2f} µs; profiled: {(on - off) * 1e6:.1f} µs more")
    _say(f"a sample of a script that computes in Python: {cost_of_a_sample() * 1e6:.0f} µs")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", help="names of scripts; all ten by default")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is not met")
    parser.add_argument("--scalene", action="store_true", help="run each under Scalene, too, which takes minutes")
    parser.add_argument("--cost", action="store_true", help="only measure what a call takes more")
    given = parser.parse_args()
    if given.cost:
        show_costs()
        return 0
    failures = []
    _say(f"{'script':16} {'seconds':>8} {'lines off':>10} {'samples':>8}  hot  ours       Scalene")
    for script in SCRIPTS:
        if given.scripts and script.stem not in given.scripts:
            continue
        profile = profile_of(script, scalene=given.scalene)
        ours, theirs, hot = first_lines(profile)[:3], first_of_scalene(profile)[:3], hot_line(script)
        off = sum_error(profile)
        shown = ",".join(map(str, ours)), ",".join(map(str, theirs))
        figures = f"{profile.seconds:8.2f} {off:10.2%} {profile.samples:8,}"
        _say(f"{script.stem:16} {figures}  {hot:3}  {shown[0]:10} {shown[1]}")
        if off > MOST_OFF:
            failures.append(f"{script.stem}: lines are {off:.1%} off")
        if ours[0] != hot:
            failures.append(f"{script.stem}: the hot line is {hot}, and line {ours[0]} was found")
        if given.scalene and (not theirs or theirs[0] not in ours or ours[0] not in theirs):
            failures.append(f"{script.stem}: Scalene names other lines")
    for failure in failures:
        _say(failure)
    return 1 if failures and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
