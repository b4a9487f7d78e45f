"""Short scripts: their programs run on NumPy, a whole process is measured with all it starts, and bounds are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import short_script, short_script_supervisor
from benchmarks.short_script import EVERY, OFFLOAD, PLAIN
from benchmarks.short_script_cells import Cell, figures_of, rows_of
from benchmarks.short_script_processes import environment, plain_python, required, run_script
from benchmarks.short_script_program import CALLS, Program
from benchmarks.short_scripts import chosen, parser

BY_NAME = {each.name: each for each in EVERY}


def cell(numpy: float = 1.0, offload: float = 1.0, processor: float = 1.0, **changes: Any) -> Cell:
    given: dict[str, Any] = {"program": "heat", "calls": 30, "install": "plain", "process": 1, "recorded": True}
    return Cell(
        numpy_rounds=(numpy,),
        offload_rounds=(offload,),
        numpy_processor_rounds=(1.0,),
        processor_rounds=(processor,),
        **given | changes,
    )


def missed(cell: Cell) -> list[str]:
    return [limit.bound for limit in cell.missed]


# -- programs


def test_there_are_programs_of_every_kind() -> None:
    assert len(BY_NAME) == len(EVERY) == 48
    tags = set[str]().union(*(each.tags for each in EVERY))
    assert {"small", "loop", "in place", "float64", "random", "numpy", "device", "newcomer", "unrecorded"} <= tags


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("program", EVERY, ids=lambda program: program.name)
def test_a_program_runs_on_numpy_and_its_seed_is_all_it_depends_on(program: Program) -> None:
    first, again = ([str(each) for each in program.make_args(1)] for _ in range(2))
    if program.name != "small_network":  # its first argument is an object
        assert first == again
    short_script.run(program, 2, program.function)


def test_scripts_call_as_often_as_eight_seconds_allow() -> None:
    assert BY_NAME["dot"].calls() == CALLS
    assert BY_NAME["haversine"].calls() == CALLS[:3]
    assert BY_NAME["haversine"].calls((3, 1000)) == (3,)


def test_a_script_may_give_its_result_to_the_next_call() -> None:
    seen: list[int] = []
    counting = Program("count", seen.append, lambda seed: (seed,), 0, frozenset(), lambda before, _: (before[0] + 1,))
    short_script.run(counting, 3, seen.append)
    assert seen == [0, 1, 2]
    short_script.run(counting._replace(following=None), 3, seen.append)
    assert seen[3:] == [0, 1, 0]


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


@pytest.mark.parametrize("side", [PLAIN, OFFLOAD])
def test_a_tiny_script_is_measured_for_real(side: str, tmp_path: Path) -> None:
    taken = run_script(BY_NAME["dot"], 2, side, folder=tmp_path)
    assert taken.failed == ""
    assert taken.device == "numpy"
    assert min(taken.seconds, taken.processor) > 0


def test_a_script_that_fails_says_so(tmp_path: Path) -> None:
    taken = run_script(BY_NAME["dot"]._replace(name="nothing"), 2, PLAIN, folder=tmp_path)
    assert taken.failed.startswith("exit 1: ")


def test_a_plain_install_has_what_anygpu_requires_and_no_more(tmp_path: Path) -> None:
    assert {"numpy", "msgspec"} <= required("anygpu")
    assert not {"torch", "jax", "pytest"} & required("anygpu")
    code = "import anygpu, importlib.util as u; print(*(u.find_spec(each) is not None for each in ('wgpu', 'torch')))"
    command = [plain_python(tmp_path / "plain"), "-c", code]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_scripts_are_told_nothing_but_what_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "jax")
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    given = environment(tmp_path, bytecode=False)
    assert "ANYGPU_ENGINES" not in given
    assert given["ANYGPU_NATIVE"] == "off"
    assert given["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in environment(tmp_path)


# -- judging


def test_a_process_may_take_a_twentieth_and_thirty_milliseconds_more_than_numpy() -> None:
    assert missed(cell(offload=1.079)) == []
    assert missed(cell(offload=1.081)) == ["wall time"]
    assert missed(cell(numpy=0.1, offload=0.134)) == []


def test_processor_time_is_bounded() -> None:
    assert missed(cell(processor=1.84)) == []
    assert missed(cell(processor=1.86)) == ["processor time"]


def test_the_middle_round_counts() -> None:
    slow = cell(offload=5.0)
    both = slow.with_round(cell(offload=1.0, device="cpu")).with_round(cell(offload=1.01))
    assert both.offload_rounds == (5.0, 1.0, 1.01)
    assert missed(both) == []


def test_totals_are_of_recorded_programs_by_what_numpy_takes() -> None:
    cells = [
        cell(numpy=4.0, offload=1.0),
        cell(numpy=2.0, offload=2.0),
        cell(numpy=1.0, offload=0.9),
        cell(numpy=1.0, offload=0.4, process=2),
        cell(numpy=9.0, offload=9.0, recorded=False),
        cell(numpy=9.0, offload=9.0, bytecode=False),
        cell(numpy=0.4, offload=0.4),
    ]
    found = {figure.name: figure for figure in figures_of(cells)}
    assert found["NumPy takes 2 s and more: first process / NumPy, total of 2"].share == pytest.approx(1.0)
    assert found["NumPy takes 0.5 to 2 s: first process / NumPy, total of 1"].share > 1
    assert found["NumPy takes 0.5 to 2 s: second process / NumPy, total of 1"].share == pytest.approx(0.8)
    assert len([name for name in found if "total" in name]) == 3


def test_a_script_that_fails_is_a_miss() -> None:
    found = figures_of([cell(offload=0.2)], ["heat × 30: exit 1"])
    assert max(found, key=lambda figure: figure.share).name == "scripts that failed"


def test_processes_stand_beside_each_other_in_the_table() -> None:
    lines = rows_of([cell(offload=5.0), cell(process=2), cell(process=3), cell(install="every")])
    assert len(lines) == 2
    assert "first wall time (5.00 > 1.08)" in lines[0]
    assert "MISSED" not in lines[1]


# -- options


def test_programs_are_chosen_by_name_or_tag() -> None:
    programs, calls, installs = chosen(parser().parse_args(["--only", "newcomer", "--calls", "1", "3"]))
    assert len(programs) == 9
    assert calls == [1, 3]
    assert len(installs) == 4
    assert [each.name for each in chosen(parser().parse_args(["--only", "heat"]))[0]] == ["heat"]
    assert len(chosen(parser().parse_args(["--quick"]))[0]) == 4
    with pytest.raises(SystemExit, match="no program none"):
        chosen(parser().parse_args(["--only", "none"]))
