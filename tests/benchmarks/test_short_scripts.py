"""Short scripts: their programs run on NumPy, a whole process is measured with all it starts, and bounds are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks import short_script_supervisor, short_scripts
from benchmarks.short_script_cells import (
    AGAINST_NUMPY,
    LATER,
    NOT_FASTER,
    PROCESSOR,
    Cell,
    Failure,
    Idle,
    figures_of,
    misses,
    rows_of,
)
from benchmarks.short_script_program import CALLS, Program
from benchmarks.short_scripts import EVERY, Survey, chosen, parser


def cell(**changes: Any) -> Cell:
    given: dict[str, Any] = {
        "program": "heat",
        "calls": 30,
        "install": "core",
        "process": 2,
        "numpy": 1.0,
        "numpy_processor": 1.2,
        "offload": 1.0,
        "processor": 1.4,
        "numpy_call": 0.03,
    }
    return Cell(**given | changes)


def kinds(*cells: Cell) -> list[str]:
    return [miss.bound for miss in misses(cells)]


# -- programs


def test_there_are_programs_of_every_kind() -> None:
    assert len(EVERY) == 30
    assert len({each.name for each in EVERY}) == 30
    tags = set[str]().union(*(each.tags for each in EVERY))
    assert {"small", "loop", "in place", "float64", "random", "numpy", "device"} <= tags


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("program", EVERY, ids=lambda program: program.name)
def test_a_program_runs_on_numpy_and_its_seed_is_all_it_depends_on(program: Program) -> None:
    first, again = ([str(each) for each in program.make_args(1)] for _ in range(2))
    if program.name != "small_network":  # its first argument is an object
        assert first == again
    program.function(*program.make_args(0))


def test_only_short_functions_are_called_a_thousand_times() -> None:
    by_name = {each.name: each for each in EVERY}
    assert by_name["gamma_correction"].calls() == CALLS
    assert by_name["heat"].calls() == CALLS[:-1]
    assert by_name["heat"].calls((3, 1000)) == (3,)


# -- measuring


def test_a_process_that_outlives_the_command_counts() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    command = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}], start_new_session=True)"
    supervisor = [sys.executable, "-I", "-S", short_script_supervisor.__file__]
    done = subprocess.run([*supervisor, "60", sys.executable, "-c", command], capture_output=True, check=True)
    taken = json.loads(done.stdout)
    assert taken["code"] == taken["left_behind"] == 0
    assert taken["processor"] > 0.5


def test_a_command_that_takes_too_long_is_killed() -> None:
    supervisor = [sys.executable, "-I", "-S", short_script_supervisor.__file__]
    endless = [sys.executable, "-c", "while True: pass"]
    done = subprocess.run([*supervisor, "0.2", *endless], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["code"] == -9


@pytest.mark.full
def test_a_tiny_script_is_measured_for_real() -> None:
    tiny = next(each for each in EVERY if each.name == "dot")
    found = short_scripts.run([tiny], [2], ["core"], rounds=1, idle=(0.0, 0.1))
    assert not found.failures
    assert [each.process for each in found.cells] == [1, 2, 3]
    for each in found.cells:
        assert each.devices == {"numpy": 2}
        assert each.moved_at is None
        assert min(each.numpy, each.numpy_processor, each.offload, each.processor) > 0
    assert [each.install for each in found.idle] == ["core"]
    written = short_scripts.report(found)
    assert written.splitlines()[-1] == str(found.figures[-1])
    assert "dot" in written


def test_the_best_device_is_one_that_beats_numpy() -> None:
    survey = Survey(0.010, {"webgpu": 0.020, "opencl": 0.004, "jax": 0.002})
    assert survey.best_of(("webgpu",)) is None
    assert survey.best_of(("webgpu", "opencl", "torch")) == "opencl"
    assert survey.best_of(("webgpu", "opencl", "torch", "jax")) == "jax"


# -- judging


def test_a_process_may_take_a_tenth_and_fifty_milliseconds_more_than_numpy() -> None:
    assert kinds(cell(offload=1.149)) == []
    assert kinds(cell(offload=1.151)) == [AGAINST_NUMPY]
    assert kinds(cell(offload=1.151, process=1)) == [AGAINST_NUMPY]
    assert kinds(cell(numpy=0.1, offload=0.159)) == []


def test_a_program_with_a_faster_device_is_faster_with_enough_calls() -> None:
    slow: dict[str, Any] = {"offload": 1.01, "device": "opencl", "device_call": 0.015}
    assert kinds(cell(**slow)) == [NOT_FASTER]
    assert kinds(cell(**slow | {"offload": 0.99})) == []
    assert kinds(cell(**slow | {"process": 1})) == []
    assert kinds(cell(**slow | {"calls": 10})) == []
    # Less than twice as fast: nothing is asked of it by itself.
    assert kinds(cell(**slow | {"device_call": 0.016})) == []


def test_processor_time_is_bounded_in_a_first_process() -> None:
    assert kinds(cell(process=1, processor=3.79)) == []
    assert kinds(cell(process=1, processor=3.81)) == [PROCESSOR]
    assert kinds(cell(process=2, processor=3.81)) == []


def test_nothing_may_go_on_a_second_after_the_last_call() -> None:
    quiet, busy = (Idle(program="heat", calls=10, install="core", seconds=seconds) for seconds in (0.02, 0.03))
    assert misses([], [quiet]) == []
    assert [miss.bound for miss in misses([], [quiet, busy])] == [LATER]


def test_totals_are_of_later_processes_and_of_each_install() -> None:
    cells = [
        cell(process=1, offload=9.0),
        cell(process=2, offload=0.9, device="opencl", device_call=0.02, forced=0.5),
        cell(process=3, offload=0.7, device="opencl", device_call=0.02, forced=0.5),
        cell(process=2, offload=1.1, install="all", device="jax", device_call=0.02, forced=2.0),
    ]
    found = {figure.name: figure for figure in figures_of(cells, [], [])}
    assert found["core: later processes / the best of each cell, total"].value == pytest.approx(1.6)
    assert found["core: later processes / the best of each cell, total"].bound == 1.15
    assert found["all: later processes / the best of each cell, total"].value == pytest.approx(1.1)
    worst = found["against NumPy, worst: heat × 30, core, first process"]
    assert worst.value == 9.0
    assert worst.bound == pytest.approx(1.15)
    assert found["against NumPy: cells that miss it, of 4"].value == 1


def test_a_script_that_fails_is_a_miss() -> None:
    found = figures_of([cell()], [], [Failure(script="heat × 30", reason="exit 1")])
    assert max(found, key=lambda figure: figure.share).name == "scripts that failed"


def test_processes_stand_beside_each_other_in_the_table() -> None:
    lines = rows_of([cell(process=1, offload=5.0), cell(process=2), cell(process=3), cell(install="all")])
    assert len(lines) == 3
    assert "first against NumPy (5.00 > 1.15)" in lines[1]
    assert "against NumPy" not in lines[2]


# -- options


def test_programs_are_chosen_by_name_or_tag() -> None:
    options = parser().parse_args(["--programs", "heat,numpy", "--calls", "1,10", "--installs", "core"])
    programs, calls, installs, rounds = chosen(options)
    assert {each.name for each in programs} > {"heat", "dot"}
    assert (calls, installs, rounds) == ([1, 10], ["core"], 3)
    assert chosen(parser().parse_args(["--quick"]))[3] == 1


@pytest.mark.parametrize("given", [["--programs", "none"], ["--installs", "none"], ["--calls", "none"]])
def test_what_there_is_not_is_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit, match="none"):
        chosen(parser().parse_args(given))
