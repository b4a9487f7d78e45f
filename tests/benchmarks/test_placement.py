"""The placement grid: its workloads are right on real devices, its judgement and its pictures do what they say."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks import placement, plots, sampling
from benchmarks.cells import (
    Automatic,
    Cell,
    Fixed,
    Grid,
    Measured,
    Prediction,
    Timing,
    crossover,
    figures_of,
    line_of,
    middle,
    power_of_ten,
)
from benchmarks.report import this_machine
from benchmarks.workloads import SIZES, WORKLOADS, Workload

ROOT = Path(__file__).parents[2]


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, best=seconds, median=seconds, samples=3)


def measured(numpy: float = 1e-3, automatic: float = 1e-3, first: float = 5e-3, **devices: float) -> Measured:
    return Measured(
        numpy=timing(numpy),
        numpy_five=5 * numpy,
        fixed=tuple(Fixed(device=name, timing=timing(seconds)) for name, seconds in devices.items()),
        automatic=Automatic(
            timing=timing(automatic),
            devices={"jax": 3, "numpy": 1},
            first_five=(first / 5,) * 5,
            predictions=(
                Prediction("jax", 1.5e-3, 1e-3),
                Prediction("jax", 1.1e-3, 1e-3),
                Prediction("jax", 4e-3, 1e-3),
            ),
        ),
    )


def cell(size: int, *measurements: Measured, workload: str = "sort") -> Cell:
    return Cell(workload=workload, size=size, elements=size, measurements=measurements)


def grid(*cells: Cell) -> Grid:
    return Grid(
        machine=this_machine(), devices=("numpy", "jax", "opencl"), cells=cells, figures=tuple(figures_of(cells))
    )


# -- workloads


def test_the_grid_is_as_large_as_it_was_promised() -> None:
    assert len(WORKLOADS) >= 20
    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS)
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (100, 10_000_000, 6)
    from_examples = {
        stage.__module__ for each in WORKLOADS for stage in each.stages if stage.__module__[:8] == "examples"
    }
    # Those that show how to run things are not what is run.
    others = {"__init__", "compare", "fleet", "multimodal", "observed_service", "sentences", "service", "serving"}
    others |= {"stream_large_file", "train_small_memory", "vision_transformer"}
    written = {path.stem for path in (ROOT / "examples").glob("*.py")} - others
    assert from_examples == {f"examples.{name}" for name in written}


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_arguments_are_of_about_the_size_that_was_asked_for(workload: Workload) -> None:
    for size in (100, 1000, 100_000):
        arguments = workload.make(size, np.random.default_rng(0))
        again = workload.make(size, np.random.default_rng(0))
        assert all(np.array_equal(a, b) for a, b in zip(arguments, again, strict=True))
        largest = max(each.size for each in arguments)
        if workload.name == "n-body step":
            assert arguments[-1].size ** 2 == pytest.approx(size, rel=0.2)
        elif workload.name != "training step" or size > 1000:
            assert size / 4 <= largest <= 1.5 * size


#: These are compiled for half a minute; tests of the examples have them.
LONG_TO_COMPILE = ("Kalman filter", "game of life", "Mandelbrot set")


@pytest.mark.sampled(gate=13)
@pytest.mark.parametrize("workload", [each for each in WORKLOADS if each.name not in LONG_TO_COMPILE], ids=str)
def test_every_workload_is_right_on_opencl(workload: Workload) -> None:
    pytest.importorskip("pyopencl")
    arguments = workload.make(100, np.random.default_rng(0))
    expected = placement.on_host(workload.function(*arguments))
    call, fixed = placement.prepare("opencl", workload, arguments, expected)
    # What PoCL lacks is refused before anything runs.
    assert call is not None or fixed.note.startswith("Unsupported"), fixed.note


def test_what_is_left_out_says_why() -> None:
    for workload in WORKLOADS:
        assert bool(workload.largest) == bool(workload.why_largest)
        assert workload.left_out(100) is None
        assert workload.left_out(SIZES[-1]) == (workload.why_largest or None)


def test_stages_follow_each_other() -> None:
    workload = Workload(name="two", stages=(lambda x: x + 1, lambda x: x * 2), make=lambda size, rng: (np.ones(size),))
    assert workload.function(3) == 8


# -- measuring


def test_the_faster_half_counts() -> None:
    assert Timing.of([4.0, 1.0, 100.0, 2.0]) == Timing(seconds=1.5, best=1.0, median=3.0, samples=4)
    assert Timing.of([3.0]).seconds == 3.0


def test_sides_are_measured_in_turns() -> None:
    order: list[str] = []
    sides = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    turns: list[str] = []
    timings = sampling.in_turns(sides, seconds=0.0, after_turn=turns.append)
    assert sorted(turns) == ["a"] * sampling.FEWEST_ROUNDS + ["b"] * sampling.FEWEST_ROUNDS
    assert timings["a"].samples >= sampling.FEWEST_ROUNDS
    assert sampling.calls_for(1.0) == 1
    assert sampling.calls_for(1e-9) == sampling.MOST_CALLS


def test_who_is_far_behind_is_measured_once() -> None:
    values = np.ones(3_000_000)
    turns: list[str] = []
    sides = {"fast": lambda: None, "slow": lambda: np.sort(values)}
    sampling.in_turns(sides, seconds=0.0, after_turn=turns.append)
    assert turns.count("slow") == 1


def test_a_wrong_result_is_noticed_and_a_rounded_one_is_not() -> None:
    numbers = np.linspace(1, 2, 10_000)
    placement.require_agreement((numbers,), (numbers.astype(np.float32),))
    few = numbers.copy()
    few[:5] = 9
    placement.require_agreement(numbers, few)
    many = numbers.copy()
    many[:50] = 9
    for wrong in (many, numbers[:-1], (numbers, numbers), numbers * np.nan):
        with pytest.raises(placement.Disagrees):
            placement.require_agreement(numbers, wrong)


def test_devices_without_a_chance_are_not_forced() -> None:
    plain, growing = WORKLOADS[0], next(each for each in WORKLOADS if each.grows)
    slow = Fixed(device="jax", timing=timing(2.0), first=9.0)
    assert placement.hopeless(plain, None, 10, 1.0) is None
    assert "less work" in str(placement.hopeless(plain, slow, 10, 1.0))
    assert placement.hopeless(plain, slow, 10, 3.0) is None
    assert "first call" in str(placement.hopeless(growing, slow, 10, 3.0))
    assert placement.hopeless(plain, Fixed(device="jax", note="it lacks float64"), 10, 1.0) == "it lacks float64"


# -- judging


def test_totals_are_those_of_the_issue() -> None:
    cells = [
        cell(100, measured(numpy=1e-5, automatic=2e-5, first=5e-5, jax=1e-3)),
        cell(10_000, measured(numpy=1e-2, automatic=5e-3, first=6e-2, jax=4e-3)),
        Cell(workload="sort", size=1_000_000, left_out="it takes too long"),
        Cell(workload="sort", size=10_000_000, failed="KeyError: 'numpy'"),
    ]
    found = {figure.name: figure for figure in figures_of(cells)}
    assert found["cells"].value == 2
    assert found["cells that failed"].share > 1
    regret = found["regret: automatic / best fixed, total"]
    assert regret.value == pytest.approx((2e-5 + 5e-3) / (1e-5 + 4e-3))
    assert regret.bound == 1.05
    assert found["worst against NumPy: sort, 10²"].value == pytest.approx(2)
    assert found["worst first five calls: sort, 10⁴"].value == pytest.approx(1.2)
    assert found["most beyond NumPy below 20 µs: sort, 10²"].value == pytest.approx(10)
    assert found["median error of predictions"].value == pytest.approx(0.5)
    assert "left out: it takes too long" in line_of(cells[2])
    assert "FAILED: KeyError" in line_of(cells[3])


def test_predictions_of_native_code_are_judged_by_a_factor() -> None:
    found = measured(cpu=1e-3)
    timed = [
        msgspec.structs.replace(found, fixed=(msgspec.structs.replace(found.fixed[0], predicted=predicted),))
        for predicted in (0.6e-3, 1.9e-3, 2.1e-3, None)
    ]
    figures = {figure.name: figure for figure in figures_of([cell(100, each) for each in timed])}
    assert figures["cpu: predictions beyond 2×, of 3"].value == pytest.approx(100 / 3)
    assert figures["cpu: predictions beyond 2×, of 3"].share > 1


def test_the_middle_measurement_counts_and_of_two_the_worse() -> None:
    good, bad, worse = (measured(automatic=seconds) for seconds in (1e-3, 1.2e-3, 1.4e-3))
    assert middle([good, worse, bad]) == bad
    assert middle([good, bad]) == bad
    assert good.exceeds == []
    assert bad.exceeds == ["1.20× NumPy"]
    assert "measured 3 times: all bounds met | 1.40× NumPy | 1.20× NumPy" in line_of(cell(100, good, worse, bad))


def test_only_what_weighs_in_the_total_is_measured_again_for_it() -> None:
    assert measured(numpy=2e-3, automatic=1.5e-3, jax=1e-3).exceeds == []
    assert measured(numpy=2e-2, automatic=1.5e-2, first=1e-1, jax=1e-2).exceeds == ["1.50× the best fixed"]
    assert measured(numpy=2e-2, automatic=1e-2, first=1e-1).doubtful
    assert not measured(numpy=2e-2, automatic=1.9e-2, first=1e-1).doubtful
    assert placement.near(measured(numpy=1e-3, jax=5e-3, opencl=1.5e-3, torch=3e-3)) == ["jax", "opencl"]


def test_a_crossover_lies_where_the_lines_meet() -> None:
    numpy: list[tuple[float, float]] = [(100, 1e-6), (10_000, 1e-4), (1_000_000, 1e-2)]
    found = crossover("jax", numpy, [(100, 1e-5), (10_000, 1e-5), (1_000_000, 1e-3)])
    assert found is not None
    assert found.size == pytest.approx(1000)
    assert found.seconds == pytest.approx(1e-5)
    assert crossover("jax", numpy, [(100, 1e-7), (10_000, 1.0)]) is None
    always = crossover("jax", numpy, [(100, 1e-7), (10_000, 1e-5)])
    assert always is not None
    assert always.from_the_start
    assert power_of_ten(10_000_000) == "10⁷"
    assert power_of_ten(50) == "50"


# -- what is written


def test_a_saved_run_is_read_and_drawn_again(tmp_path: Path) -> None:
    saved, picture = tmp_path / "run.json", tmp_path / "grid.svg"
    cells = [
        cell(size, measured(numpy=size * 1e-8, automatic=size * 1e-8, first=size * 5e-8, jax=1e-4 + size * 1e-9))
        for size in SIZES
    ]
    saved.write_bytes(msgspec.json.encode(grid(*cells, cell(100, measured(), workload="x < y & z"))))
    command = [sys.executable, "-m", "benchmarks.placement", "--from", str(saved), "--plot", str(picture), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("worst: regret")
    for file in (picture, tmp_path / "grid-predicted.svg"):
        root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
        words = " ".join(root.itertext())
        assert "10⁷" in words or "predicted" in words
    words = " ".join(ElementTree.fromstring(picture.read_text(encoding="utf-8")).itertext())
    assert "x < y & z" in words
    assert "jax from 11k" in words


def test_pictures_keep_inside_their_frame() -> None:
    whole = grid(
        *[cell(size, measured(numpy=size * 1e-8, jax=1e-4), workload=each.name) for each in WORKLOADS for size in SIZES]
    )
    for text in (plots.grid_picture(whole), plots.predictions_picture(whole)):
        root = ElementTree.fromstring(text)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for x, y in _positions(root):
            assert -1 <= x <= width + 1
            assert -1 <= y <= height + 1


def _positions(root: Any) -> list[tuple[float, float]]:
    found = []
    for element in root.iter():
        for pair in element.attrib.get("points", "").split():
            x, y = pair.split(",")
            found.append((float(x), float(y)))
        if "cx" in element.attrib:
            found.append((float(element.attrib["cx"]), float(element.attrib["cy"])))
        elif "x" in element.attrib:
            found.append((float(element.attrib["x"]), float(element.attrib["y"])))
    assert all(math.isfinite(value) for pair in found for value in pair)
    return found


def test_a_run_without_predictions_is_drawn_as_such() -> None:
    assert "no predictions" in plots.predictions_picture(grid(Cell(workload="sort", size=100, left_out="too long")))


def test_one_cell_is_measured_for_real() -> None:
    bench = placement.Bench(["numpy"], seconds=0.0)
    found = bench.cell(WORKLOADS[0], 1000)
    assert not found.failed
    assert found.measured is not None
    assert found.measured.automatic is not None
    assert found.measured.automatic.device == "numpy"
    assert len(found.measured.automatic.first_five) == 5
    assert found.measured.best_fixed[0] == "numpy"
    assert len(bench.again(found, WORKLOADS[0]).measurements) == 2
