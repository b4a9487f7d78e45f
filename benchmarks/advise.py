"""Whether advice is right: `python -m benchmarks.advise [planted|scripts] [--only NAME] [--json] [--check]`.

Planted: twenty scripts with one mistake each, marked at its line, and the same twenty corrected. The mistake must be
found at its line, the corrected script must have no finding, and must take less time: both run without us, in turns.

Scripts: ten examples and ten further scripts of plain NumPy. Their output and exit code must be the same with and
without `anygpu advise`, and what it predicts is compared with what each device takes when it is forced.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.observe.advising.judging import FunctionAdvice, Report
from benchmarks.report import Figure, options_parser, publish, say

ROOT = Path(__file__).parents[1]
PLANTED = ROOT / "tests" / "observe" / "advice_scripts" / "planted"
FIXED = PLANTED.with_name("fixed")
SCRIPTS = Path(__file__).with_name("advise_scripts")
#: The functions of the examples that are called, as often as it takes to be worth a look.
EXAMPLES = {
    "kmeans": "kmeans_step",
    "pca": "pca",
    "black_scholes": "black_scholes",
    "nbody": "nbody_step",
    "edges": "edges",
    "mandelbrot": "mandelbrot",
    "fft_filter": "low_pass",
    "softmax_regression": "training_step",
    "kalman": "kalman",
    "life": "life",
}
_EXAMPLE = """
import numpy as np

from examples.{name} import {function}, inputs

given = inputs(np.random.default_rng(0))
for _ in range(20):
    result = {function}(*given)
for each in result if isinstance(result, tuple | list) else [result]:
    print(np.asarray(each).shape, np.asarray(each).sum())
"""

#: Devices whose times differ by less are in no order.
CLEAR = 2.0
#: Gains and losses that are smaller are neither.
NEAR = 1.4
#: A correction helps if the whole script, with its start, takes this part of its time or less.
CLEARLY = 0.97
#: Runs of each script, of which the best counts.
RUNS = 2

_MARK = re.compile(r"# finding: ([\w-]+)")


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    found: bool
    told: tuple[str, ...]
    clean: bool
    same_output: bool
    #: Wall and processor seconds of the script with its mistake, and without.
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def helps(self) -> bool:
        return self.after[0] < CLEARLY * self.before[0]


def expected(script: Path) -> tuple[str, str]:
    """The kind and the line that are marked."""
    for number, line in enumerate(script.read_text().splitlines(), 1):
        if found := _MARK.search(line):
            return found[1], f"{script}:{number}"
    raise ValueError(f"{script} has no mark")


def advised(script: Path, *, measure: bool = False) -> tuple[bytes, int, Report]:
    """What a script prints under `anygpu advise`, its exit code, and the report."""
    code = (
        "import sys; from pathlib import Path; from anygpu.cli.scripts import run_and_report; "
        "code, report = run_and_report(sys.argv[1], [], measure=sys.argv[3] == 'True'); "
        "Path(sys.argv[2]).write_bytes(report.to_json()); sys.exit(code)"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-c", code, str(script), str(path), str(measure)]
        done = subprocess.run(command, env=_environment(), capture_output=True, check=False)
        if not path.exists():
            raise RuntimeError(done.stderr.decode())
        return done.stdout, done.returncode, Report.from_json(path.read_bytes())


def plain(script: Path) -> tuple[bytes, int, float, float]:
    """What a script prints without us, its exit code, and its wall and processor seconds."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(script)], env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return printed, process.returncode, time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


# -- planted mistakes


def planted(only: str | None) -> Iterator[Planted]:
    for script in sorted(PLANTED.glob("*.py")):
        if only is not None and script.stem != only:
            continue
        fixed = FIXED / script.name
        kind, line = expected(script)
        _, _, report = advised(script)
        _, _, without = advised(fixed)
        runs = [(plain(script), plain(fixed)) for _ in range(RUNS)]
        before = min(one[2] for one, _ in runs), min(one[3] for one, _ in runs)
        after = min(two[2] for _, two in runs), min(two[3] for _, two in runs)
        result = Planted(
            name=script.stem,
            found=any(each.kind == kind and each.line == line for each in report.findings),
            told=tuple(f"{each.kind} {each.line}" for each in (*report.findings, *without.findings)),
            clean=not without.findings,
            same_output=runs[0][0][0] == runs[0][1][0],
            before=before,
            after=after,
        )
        words = [
            "found" if result.found else f"MISSED ({kind})",
            "clean"
            if result.clean
            else f"NOT CLEAN {[(each.kind, each.line, each.cost) for each in without.findings]}",
            f"{before[0]:.2f} s → {after[0]:.2f} s, processor {before[1]:.2f} s → {after[1]:.2f} s",
            "" if result.helps else "DOES NOT HELP",
            "" if result.same_output else f"OTHER OUTPUT {runs[0][0][0]!r} {runs[0][1][0]!r}",
        ]
        say(f"{script.stem:<22} {', '.join(filter(None, words))}")
        yield result


# -- scripts that do not know anygpu


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One function: what was predicted, and what was measured."""

    script: str
    function: str
    predicted: str
    #: The measured time of what advice chooses, beside that of the best.
    regret: float
    right: bool
    concordant: int
    pairs: int


def compare(predicted: FunctionAdvice, measured: FunctionAdvice, script: str) -> Judged | None:
    """`None` for functions that no device runs."""
    times = {each.device: each.seconds for each in measured.estimates if each.seconds is not None}
    guesses = {each.device: each.seconds for each in predicted.estimates if each.seconds is not None}
    if not times or not guesses:
        return None
    times["numpy"], guesses["numpy"] = measured.numpy_seconds, predicted.numpy_seconds
    chosen = predicted.device or "numpy" if predicted.verdict in ("gains", "nested") else "numpy"
    best = min(times.values())
    others = min(seconds for device, seconds in times.items() if device != "numpy")
    gain = times["numpy"] / others
    says_gain = chosen != "numpy"
    right = (gain > 1) == says_gain or 1 / NEAR < gain < NEAR
    names = [each for each in times if each in guesses]
    clear = [
        (one, two) for one in names for two in names if one < two and not 1 / CLEAR < times[one] / times[two] < CLEAR
    ]
    same = sum((times[one] < times[two]) == (guesses[one] < guesses[two]) for one, two in clear)
    return Judged(
        script=script,
        function=predicted.name,
        predicted=predicted.verdict,
        regret=times.get(chosen, float("inf")) / best,
        right=right,
        concordant=same,
        pairs=len(clear),
    )


def scripts(only: str | None) -> Iterator[tuple[str, bool, list[Judged]]]:
    """Of each script its name, whether its output stayed the same, and its functions."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, function in EXAMPLES.items():
            path = Path(folder) / f"example_{name}.py"
            path.write_text(_EXAMPLE.format(name=name, function=function))
            files.append(path)
        files += sorted(SCRIPTS.glob("*.py"))
        for script in files:
            if only is not None and script.stem != only:
                continue
            printed, code, _, _ = plain(script)
            shown, left, report = advised(script)
            _, _, tried = advised(script, measure=True)
            by_name = {each.name: each for each in tried.functions}
            judged = [
                found
                for each in report.functions
                if each.name in by_name and (found := compare(each, by_name[each.name], script.stem)) is not None
            ]
            same = (printed, code) == (shown, left)
            say(f"{script.stem:<24} {'same output' if same else f'OTHER OUTPUT {printed!r} {shown!r}'}")
            for each in report.functions:
                say(f"    {each.name}: {each.verdict}: {each.sentence}")
                measured = by_name.get(each.name)
                if measured is not None and measured.estimates:
                    times = ", ".join(
                        f"{one.device} {readable_seconds(one.seconds)}" for one in measured.estimates if one.seconds
                    )
                    say(f"        measured: NumPy {readable_seconds(measured.numpy_seconds)}, {times}")
            for found in judged:
                say(
                    f"    {found.function}: {'right' if found.right else 'WRONG'}, {found.regret:.2f} times the best, "
                    f"{found.concordant} of {found.pairs} pairs in order"
                )
            yield script.stem, same, judged


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("part", nargs="?", choices=("planted", "scripts"))
    parser.add_argument("--only", help="one script")
    options = parser.parse_args()
    figures: list[Figure] = []
    if options.part != "scripts":
        results = list(planted(options.only))
        figures += [
            Figure(name="scripts with a mistake", value=len(results), unit=""),
            Figure(
                name="mistakes not found at their line", value=sum(not each.found for each in results), unit="", bound=1
            ),
            Figure(
                name="findings in corrected scripts", value=sum(not each.clean for each in results), unit="", bound=0.5
            ),
            Figure(
                name="corrections that do not help", value=sum(not each.helps for each in results), unit="", bound=0.5
            ),
        ]
    if options.part != "planted":
        seen = list(scripts(options.only))
        functions = [each for _, _, judged in seen for each in judged]
        pairs = sum(each.pairs for each in functions)
        wrong = sum(not each.right for each in functions)
        figures += [
            Figure(name="scripts of plain NumPy", value=len(seen), unit=""),
            Figure(name="scripts with another output", value=sum(not same for _, same, _ in seen), unit="", bound=0.5),
            Figure(name="functions compared", value=len(functions), unit=""),
            Figure(name="functions judged wrongly", value=100 * wrong / max(1, len(functions)), unit="%", bound=10),
            Figure(
                name="pairs of devices out of order",
                value=100 * (pairs - sum(each.concordant for each in functions)) / max(1, pairs),
                unit="%",
                bound=15,
            ),
        ]
    publish(figures, options)


if __name__ == "__main__":
    main()
