"""Whether each call runs where it is fastest: `python -m benchmarks.placement [--json] [--check] [--plot FILE.svg]`.

Thirty-three workloads at six sizes. Each cell is measured with NumPy called directly, with native code (`cpu`) forced,
and automatic, in turns in one run; with --engines also on devices that are this processor in disguise. First, before
anything was compiled for it, come the first five calls of the offloaded function. Arguments are the same arrays in
every call. A cell that misses a bound is measured again, three times at most, and its middle measurement counts.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.errors import AnyGPUError
from benchmarks.cells import (
    HEADER,
    Automatic,
    Cell,
    Fixed,
    Grid,
    Measured,
    Prediction,
    figures_of,
    line_of,
)
from benchmarks.report import options_parser, this_machine
from benchmarks.sampling import Call, in_turns, seconds_of
from benchmarks.workloads import SIZES, WORKLOADS, Workload

#: A size at which one call of NumPy takes longer is left out.
LONGEST_CALL = 3.0
#: A device whose first call would take longer, by what it took on a tenth, is not forced.
LONGEST_FIRST_CALL = 20.0
#: How often a cell is measured at most.
MEASUREMENTS = 3
PREDICTIONS = 5
#: Nobody waits longer for what is tried in the background.
LONGEST_TRIALS = 30.0
#: How often five calls of NumPy are timed, for a fair idea of what they take.
FIVES = 3
#: Automatic is settled when so many calls in a row ran on the same device; after so many calls nobody waits for that.
SAME_DEVICE, MOST_SETTLING = 6, 20
#: It has so many seconds for that at least, and calls have this from one to the next: native code is compiled beside.
SETTLING_SECONDS, SETTLING_PACE = 1.0, 0.02
#: What is forced, and what automatic may choose.
ENGINES = "numpy,cpu"

#: Of `--quick`: one of each kind, at three sizes.
QUICK = ("chain of 1", "chain of 16", "softmax", "matmul, square", "sort", "pipeline of two", "k-means step")
QUICK_SIZES = (100, 10_000, 1_000_000)

#: So many of the elements may differ: a comparison may fall the other way where two engines round differently.
SHARE_THAT_MAY_DIFFER = 1e-3
TOLERANCE = 2e-3


class Disagrees(Exception):
    """A device gave another result than NumPy: its time means nothing."""


class Offloaded:
    """A workload's stages, each offloaded for itself; what is between them stays where it is."""

    def __init__(self, workload: Workload, **options: Any) -> None:
        import anygpu as ag

        self.stages: list[Callable[..., Any]] = [ag.offload(**options)(stage) for stage in workload.stages]
        # Our own arrays come back as such, so what one stage leaves on a device the next one finds there.
        self._wrap: Callable[..., Any] | None = ag.asarray if len(self.stages) > 1 else None

    def predicted(self, device: str, arguments: Sequence[Any]) -> float | None:
        """Seconds of a call that nothing but calibration and other programs tell; `None` for several stages."""
        if len(self.stages) > 1:
            return None
        stage: Any = self.stages[0]
        candidate = stage.explain(*arguments).candidate(device)
        return candidate.seconds if candidate is not None and candidate.basis == "predicted" else None

    def __call__(self, *arguments: Any) -> Any:
        if self._wrap is None:
            return self.stages[0](*arguments)
        first, *others = self.stages
        value = first(*[self._wrap(each) for each in arguments])
        for stage in others:
            value = stage(value)
        return on_host(value)


def on_host(value: Any) -> Any:
    return tuple(map(on_host, value)) if isinstance(value, tuple | list) else np.asarray(value)


def require_agreement(expected: Any, got: Any) -> None:
    """Raise `Disagrees` unless nearly all elements are equal within tolerance."""
    wanted, found = [_flat(each) for each in (expected, got)]
    if len(wanted) != len(found):
        raise Disagrees(f"it gave {len(found)} results instead of {len(wanted)}")
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape:
            raise Disagrees(f"a result has the shape {b.shape} instead of {a.shape}")
        scale = float(np.max(np.abs(a), initial=1.0))
        wrong = a.size - np.count_nonzero(np.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))
        if wrong > max(1, SHARE_THAT_MAY_DIFFER * a.size):
            raise Disagrees(f"{wrong} of {a.size} elements differ from NumPy's")


def _flat(value: Any) -> list[Any]:
    return [np.asarray(each) for each in (value if isinstance(value, tuple | list) else [value])]


def hopeless(workload: Workload, earlier: Fixed | None, growth: float, numpy_now: float) -> str | None:
    """Why a device need not be forced at this size, by what it took at a smaller one; `None` when it has to be."""
    if earlier is None:
        return None
    if earlier.timing is None:
        return earlier.note
    # Compilers take more than twice as long for twice as much.
    expected = (earlier.first or 0.0) * growth**1.5
    if workload.grows and expected > LONGEST_FIRST_CALL:
        return f"its first call would take about {readable_seconds(expected)}: the program grows with the size"
    if earlier.timing.seconds > 1.0 and earlier.timing.seconds > numpy_now:
        return f"it took {readable_seconds(earlier.timing.seconds)} for less work than NumPy has done now"
    return None


def prepare(device: str, workload: Workload, arguments: Sequence[Any], expected: Any) -> tuple[Call | None, Fixed]:
    """A call that has to use one device, checked against NumPy's result; or the reason why there is none."""
    offloaded = Offloaded(workload, on=device, fallback="raise")
    call = functools.partial(offloaded, *arguments)
    try:
        predicted = offloaded.predicted(device, arguments)
        begin = time.perf_counter()
        got = call()
        first = time.perf_counter() - begin
        require_agreement(expected, got)
    except AnyGPUError as error:
        return None, Fixed(device=device, note=f"{type(error).__name__}: {error}")
    except Disagrees as wrong:
        return None, Fixed(device=device, note=str(wrong))
    return call, Fixed(device=device, first=first, predicted=predicted)


class Bench:
    """Measures cells, and remembers of each workload what its smaller sizes took."""

    def __init__(self, devices: Iterable[str], *, seconds: float) -> None:
        self.devices = [device for device in devices if device != "numpy"]
        self.seconds = seconds
        self._earlier: dict[tuple[str, str], tuple[int, Fixed]] = {}
        self._numpy: dict[str, tuple[int, float]] = {}

    def cell(self, workload: Workload, size: int) -> Cell:
        reason = workload.left_out(size) or self._too_long(workload, size)
        if reason:
            return Cell(workload=workload.name, size=size, left_out=reason)
        arguments = workload.make(size, np.random.default_rng(0))
        cell = Cell(workload=workload.name, size=size, elements=sum(each.size for each in arguments))
        return self._measured(cell, workload, arguments)

    def again(self, cell: Cell, workload: Workload) -> Cell:
        """The cell with one more measurement."""
        return self._measured(cell, workload, workload.make(cell.size, np.random.default_rng(0)))

    def _measured(self, cell: Cell, workload: Workload, arguments: Sequence[Any]) -> Cell:
        before = cell.measurements[0] if cell.measurements else None
        try:
            measured = self.measure(workload, cell.size, arguments, before)
        except Exception as error:  # noqa: BLE001 - a bug anywhere in the library is a finding, not the end of the run
            traceback.print_exc()
            return msgspec.structs.replace(cell, failed=f"{type(error).__name__}: {error}")
        return msgspec.structs.replace(cell, measurements=(*cell.measurements, measured))

    def _too_long(self, workload: Workload, size: int) -> str | None:
        if workload.name not in self._numpy:
            return None
        smaller, seconds = self._numpy[workload.name]
        # Work grows at least with the size; what is cached at the smaller one makes it grow more, not less.
        if size > smaller and seconds * size / smaller > LONGEST_CALL:
            return f"a call of NumPy would take more than {LONGEST_CALL:g} s"
        return None

    def measure(
        self, workload: Workload, size: int, arguments: Sequence[Any], before: Measured | None = None
    ) -> Measured:
        """Once more, of devices only those that came near the best `before`: the others cannot be what was missed."""
        direct = functools.partial(workload.function, *arguments)
        expected = on_host(direct())
        five = statistics.median(sum(first_calls(direct)) for _ in range(FIVES))
        self._numpy[workload.name] = size, five / 5

        offloaded = Offloaded(workload)
        automatic = functools.partial(offloaded, *arguments)
        first_five = first_calls(automatic)
        settle()
        settling = until_settled(automatic)
        require_agreement(expected, automatic())

        sides: dict[str, Call] = {"numpy": direct, "automatic": automatic}
        forced = {each.device: each for each in before.fixed} if before else {}
        for device in near(before) if before else self.devices:
            smaller, earlier = self._earlier.get((workload.name, device), (size, None))
            note = hopeless(workload, earlier, size / smaller, five / 5) if smaller < size else None
            if note:
                forced[device] = Fixed(device=device, note=note)
                continue
            call, forced[device] = prepare(device, workload, arguments, expected)
            if call is not None:
                sides[device] = call

        used: Counter[str] = Counter()

        def count(name: str) -> None:
            if name == "automatic":
                used.update(receipt.device for receipt in receipts_of(automatic))

        timings = in_turns(sides, seconds=self.seconds, always=("numpy", "automatic"), after_turn=count)
        for device, each in forced.items():
            if device in timings:
                forced[device] = msgspec.structs.replace(each, timing=timings[device])
            self._earlier[workload.name, device] = size, forced[device]
        return Measured(
            numpy=timings["numpy"],
            numpy_five=five,
            fixed=tuple(forced.values()),
            automatic=Automatic(
                timing=timings["automatic"],
                devices=dict(used),
                first_five=first_five,
                settling=settling,
                predictions=predictions(automatic),
            ),
        )


def first_calls(call: Call) -> tuple[float, ...]:
    """Five calls one by one, when nothing of them is in the caches of the processor."""
    gc.collect()
    return tuple(seconds_of(call) for _ in range(5))


def until_settled(call: Call) -> tuple[float, ...]:
    """Calls, each with what it started in the background, until several of them in a row ran on the same device."""
    seconds: list[float] = []
    devices: list[str] = []
    begin = time.perf_counter()
    while True:
        seconds.append(seconds_of(call))
        receipt = last_receipt()
        devices.append(receipt.device if receipt is not None else "?")
        settle()
        same = len(devices) >= SAME_DEVICE and len(set(devices[-SAME_DEVICE:])) == 1 and sum(seconds) > 5 * seconds[-1]
        if (same or len(seconds) >= MOST_SETTLING) and time.perf_counter() - begin > SETTLING_SECONDS:
            return tuple(seconds)
        time.sleep(max(0.0, SETTLING_PACE - seconds[-1]))


def near(measured: Measured) -> list[str]:
    """The devices that came near the best one, and what automatic chose."""
    limit = 2 * measured.best_fixed[1]
    chosen = measured.automatic.device if measured.automatic else ""
    return [
        each.device
        for each in measured.fixed
        if each.timing is not None and (each.timing.seconds < limit or each.device == chosen)
    ]


def predictions(call: Call) -> tuple[Prediction, ...]:
    """What receipts say was predicted, and what the call then took; of a pipeline, all its stages together."""
    found = []
    for _ in range(PREDICTIONS):
        stages = receipts_of(call)
        predicted = [receipt.predicted_seconds for receipt in stages]
        if stages and all(predicted):
            found.append(Prediction(stages[-1].device, sum(predicted), sum(receipt.seconds for receipt in stages)))
    return tuple(found)


def receipts_of(call: Call) -> list[Any]:
    import anygpu as ag

    with ag.collect_receipts() as collected:
        call()
    return list(collected)


def last_receipt() -> Any:
    import anygpu as ag

    return ag.last_receipt()


def settle() -> None:
    """Wait until what was tried in the background has ended."""
    from anygpu.placement.planner import default

    if not default().settle(LONGEST_TRIALS):
        say(f"    trials in the background took longer than {LONGEST_TRIALS:g} s")


def calibrate() -> tuple[str, ...]:
    """Every verified device, opened and calibrated, as in a program that has run before; numpy comes first."""
    import anygpu as ag
    from anygpu.placement.planner import default

    devices = sorted(ag.devices(), key=lambda device: device.engine != "numpy")
    for device in devices:
        begin = time.perf_counter()
        default().calibrate(device)
        say(f"{device.id} opened and calibrated in {readable_seconds(time.perf_counter() - begin)}")
    return tuple(device.id for device in devices)


def say(line: str) -> None:
    """Beside the report, so that a long run shows how far it is."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def chosen(options: argparse.Namespace) -> tuple[list[Workload], list[int]]:
    names: Sequence[str] = QUICK if options.quick else [each.name for each in WORKLOADS]
    wanted = options.only.lower() if options.only else ""
    workloads = [each for each in WORKLOADS if (each.name in names or wanted) and wanted in each.name.lower()]
    if not workloads:
        raise SystemExit(f"No workload's name contains {options.only!r}: {', '.join(each.name for each in WORKLOADS)}.")
    return workloads, options.sizes or list(QUICK_SIZES if options.quick else SIZES)


def run(options: argparse.Namespace) -> Grid:
    begin = time.perf_counter()
    workloads, sizes = chosen(options)
    devices = calibrate()
    bench = Bench(devices, seconds=options.seconds)
    cells: dict[tuple[str, int], Cell] = {}
    gc.collect()
    # The libraries' own objects stay as they are: looking through them takes longer than most calls.
    gc.freeze()
    say(HEADER)
    try:
        for workload in workloads:
            for size in sizes:
                cell = cells[workload.name, size] = bench.cell(workload, size)
                say(line_of(cell))
        measure_again(bench, cells, {each.name: each for each in workloads}, begin + 60 * options.minutes)
    except KeyboardInterrupt:
        say("Stopped: what has been measured is reported.")
    return Grid(
        machine=this_machine(),
        devices=devices,
        cells=tuple(cells.values()),
        figures=tuple(figures_of(list(cells.values()))),
        seconds=time.perf_counter() - begin,
    )


def measure_again(
    bench: Bench, cells: dict[tuple[str, int], Cell], workloads: Mapping[str, Workload], end: float
) -> None:
    """Cells that missed a bound or are doubtful, in passes: a burst of other work then hits one of three at most."""
    missed = [
        place
        for place, cell in cells.items()
        if cell.measured is not None and (cell.measured.exceeds or cell.measured.doubtful)
    ]
    for _ in range(MEASUREMENTS - 1):
        for place in missed:
            if time.perf_counter() > end:
                say("The time is over: not every cell that missed a bound was measured again.")
                return
            cells[place] = bench.again(cells[place], workloads[place[0]])
            say(line_of(cells[place]))


def report(grid: Grid) -> str:
    machine = grid.machine
    lines = [HEADER, *map(line_of, grid.cells), "", *map(str, grid.figures)]
    again = sum(len(cell.measurements) > 1 for cell in grid.cells)
    notes = Counter(each.note for cell in grid.cells if cell.measured for each in cell.measured.fixed if each.note)
    lines += [f"not forced, {count} times: {note}" for note, count in notes.most_common(8)]
    lines += [
        f"{again} cells missed a bound at first, or were too good to be true, and were measured again;"
        " the middle measurement counts.",
        f"devices: {', '.join(grid.devices)}; {readable_seconds(grid.seconds)} in all",
        f"on {machine.processor}, {machine.cores} cores, {readable_bytes(machine.memory)}, {machine.system}, "
        f"Python {machine.python}",
    ]
    return "\n".join(lines)


def draw(grid: Grid, file: Path) -> None:
    from benchmarks.plots import grid_picture, predictions_picture

    file.write_text(grid_picture(grid), encoding="utf-8")
    predicted = file.with_name(f"{file.stem}-predicted{file.suffix}")
    predicted.write_text(predictions_picture(grid), encoding="utf-8")
    say(f"drawn: {file} and {predicted}")


def parser() -> argparse.ArgumentParser:
    parser = options_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--engines",
        metavar="A,B",
        default=os.environ.get("ANYGPU_ENGINES", ENGINES),
        help=f"instead of {ENGINES}; of these, automatic also chooses devices that are this processor in disguise",
    )
    parser.add_argument("--quick", action="store_true", help=f"only {len(QUICK)} workloads at {len(QUICK_SIZES)} sizes")
    parser.add_argument("--only", metavar="NAME", help="workloads whose name contains this")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N", help="elements, instead of 10² to 10⁷")
    parser.add_argument("--seconds", type=float, default=0.25, help="how long each side of a cell is repeated")
    parser.add_argument("--minutes", type=float, default=12.0, help="after so long no cell is measured again")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it, and FILE-predicted.svg beside it")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE.json", help="of an earlier --json: measure nothing"
    )
    parser.add_argument("--warm", action="store_true", help="use what earlier processes have kept, instead of nothing")
    return parser


def main() -> None:
    options = parser().parse_args()
    os.environ["ANYGPU_ENGINES"] = options.engines
    if set(options.engines.split(",")) - set(ENGINES.split(",")):
        os.environ.setdefault("ANYGPU_SOFTWARE_DEVICES", "on")
    if options.source:
        grid = msgspec.json.decode(options.source.read_bytes(), type=Grid)
        grid = msgspec.structs.replace(grid, figures=tuple(figures_of(grid.cells)))
    elif options.warm or "ANYGPU_CACHE_DIR" in os.environ:
        grid = run(options)
    else:
        with tempfile.TemporaryDirectory(prefix="anygpu-placement-", ignore_cleanup_errors=True) as folder:
            os.environ["ANYGPU_CACHE_DIR"] = folder
            grid = run(options)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(grid)).decode() + "\n")
    else:
        sys.stdout.write(report(grid) + "\n")
    if options.plot:
        draw(grid, options.plot)
    if options.check:
        worst = max(grid.figures, key=lambda figure: figure.share)
        sys.stdout.write(f"worst: {worst}\n")
        sys.exit(1 if worst.share > 1 else 0)


if __name__ == "__main__":
    main()
