"""What an advisor concludes from calls: every mistake is found at its line, and ordinary programs have none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu import observe
from anygpu.array.core.device import ArrayWork
from anygpu.base import events
from anygpu.observe.advising.advisor import Advisor
from anygpu.observe.advising.findings import KINDS, MOST, MOST_LINES, findings
from anygpu.receipts.receipt import Attempt, HostOperation, Phases, Receipt
from benchmarks.advise import FIXED, PLANTED, advised, expected

LINE = ("script.py", 7)
UNKNOWN = dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), "not asked for")


def receipt(
    device: str = "opencl:0", *, reason: str = "it is fast.", failures: tuple[Attempt, ...] = (), **given: Any
) -> Receipt:
    host = given.pop("host_operations", ())
    to_device, to_host = given.pop("to_device", 0), given.pop("to_host", 0)
    phases = Phases(**given)
    return Receipt(
        task="score",
        device=device,
        kind="cpu",
        reason=reason,
        phases=phases,
        attempts=(*failures, Attempt(device=device, phases=phases)),
        bytes_to_device=to_device,
        bytes_to_host=to_host,
        host_operations=host,
        unknown=UNKNOWN,
    )


def score(x: Any, *others: Any) -> Any:
    return np.tanh(x) * 2.0


def kinds_of(advisor: Advisor, seconds: float = 1.0) -> list[str]:
    return [each.kind for each in findings(advisor.lines, seconds)]


def seen(made: Callable[[int], tuple[Receipt, tuple[Any, ...], Any]], count: int) -> Advisor:
    """An advisor that has seen so many calls from one line."""
    advisor = Advisor()
    for number in range(count):
        note, arguments, value = made(number)
        advisor.see_call(note, (score, arguments, {}, value), LINE)
    for line in advisor.lines.values():
        line.tasks = line.alone.count = 0  # as calls, and not as tasks
    return advisor


BIG = np.zeros((300, 300), np.float32)


def test_small_calls_from_one_line_are_a_loop() -> None:
    row = np.zeros(64, np.float32)
    advisor = seen(lambda n: (receipt(run=0.001), (row.copy(),), row.copy()), 60)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, found.line, round(found.cost, 3)) == ("python-loop", "script.py:7", 0.059)
    assert "60 times" in found.finding
    assert "anygpu.map" in found.instead


def test_steps_that_need_each_other_belong_into_the_function() -> None:
    states = [np.zeros(64, np.float32) for _ in range(61)]
    advisor = seen(lambda n: (receipt(run=0.001), (states[n],), states[n + 1]), 60)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, "Put the loop into the function" in found.instead) == ("python-loop", True)


def test_few_calls_and_large_ones_are_no_loop() -> None:
    row = np.zeros(64, np.float32)
    assert kinds_of(seen(lambda n: (receipt(run=0.001), (row.copy(),), row.copy()), 30)) == []
    assert kinds_of(seen(lambda n: (receipt(run=0.001), (BIG.copy(),), BIG.copy()), 60)) == []


def test_the_same_values_that_go_to_the_device_again_are_found_whoever_holds_them() -> None:
    moved: dict[str, Any] = {"write": 0.02, "run": 0.001, "to_device": BIG.nbytes}
    advisor = seen(lambda n: (receipt(**moved), (BIG.copy(),), np.float32(n)), 5)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, round(found.cost, 3)) == ("upload-again", 0.08)


def test_an_array_that_is_written_to_between_calls_is_not_the_same() -> None:
    moved: dict[str, Any] = {"write": 0.02, "run": 0.001, "to_device": BIG.nbytes}
    assert kinds_of(seen(lambda n: (receipt(**moved), (BIG + n,), np.float32(n)), 5)) == []


def test_results_that_go_back_are_read_back() -> None:
    states = [BIG + n for n in range(6)]
    moved: dict[str, Any] = {"write": 0.02, "read": 0.03, "to_device": BIG.nbytes, "to_host": BIG.nbytes}
    advisor = seen(lambda n: (receipt(**moved), (states[n],), states[n + 1]), 5)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, round(found.cost, 2)) == ("read-back", 0.2)


def test_on_numpy_nothing_is_uploaded_or_read_back() -> None:
    states = [BIG + n for n in range(6)]
    assert kinds_of(seen(lambda n: (receipt("numpy", run=0.05), (states[n],), states[n + 1]), 5)) == []


def test_attempts_that_fail_and_operations_of_the_host_are_fallbacks() -> None:
    failed = Attempt(device="webgpu:0", phases=Phases(other=0.05), error="DeviceLost", message="it is gone")
    advisor = seen(lambda n: (receipt("numpy", run=0.01, failures=(failed,)), (BIG + n,), BIG), 3)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, round(found.cost, 2), "DeviceLost: it is gone" in found.finding) == ("fallback", 0.15, True)
    operation = HostOperation(operation="sort", reason="it has none", line="deep.py:3", bytes_moved=100_000_000)
    advisor = seen(lambda n: (receipt(run=0.2, host_operations=(operation,)), (BIG + n,), BIG), 3)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, found.line) == ("fallback", "deep.py:3")


def test_new_kinds_of_arguments_that_are_compiled_each_time_are_found() -> None:
    advisor = seen(lambda n: (receipt(compile=0.05, run=0.01), (np.zeros((7 * n) % 29 + 300),), BIG), 10)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, round(found.cost, 2)) == ("recompile", 0.45)


def test_parts_of_one_array_are_tiny_batches() -> None:
    whole = np.zeros(100_000, np.float32)
    advisor = seen(lambda n: (receipt(run=0.001), (whole[n * 100 : n * 100 + 100],), BIG[0]), 40)
    assert kinds_of(advisor) == ["tiny-batch"]


def test_a_first_call_that_opens_a_device_for_seconds_hides_nothing() -> None:
    whole = np.zeros(100_000, np.float32)
    advisor = seen(lambda n: (receipt(run=0.001 if n else 3.0), (whole[n * 100 : n * 100 + 100],), BIG[0]), 100)
    (found,) = findings(advisor.lines, 4.0)
    assert (found.kind, round(found.cost, 3)) == ("tiny-batch", 0.098)


def test_64_bits_by_accident_are_blamed_on_the_argument_or_on_the_line_inside() -> None:
    wide = np.zeros(300)
    advisor = seen(lambda n: (receipt(run=0.1), (BIG + n, wide), BIG.astype(np.float64)), 4)
    (found,) = findings(advisor.lines, 1.0)
    assert (found.kind, "float64[300]" in found.finding) == ("float64", True)

    def inside(x: Any) -> Any:
        return x * np.hanning(300)

    advisor = Advisor()
    for n in range(4):
        advisor.see_call(receipt(run=0.1), (inside, (BIG + n,), {}, BIG.astype(np.float64)), LINE)
    (found,) = findings(advisor.lines, 1.0)
    assert found.line == f"{__file__}:{inside.__code__.co_firstlineno + 1}"


def test_what_costs_little_is_not_told() -> None:
    row = np.zeros(64, np.float32)
    assert kinds_of(seen(lambda n: (receipt(run=0.0001), (row.copy(),), row.copy()), 60)) == []
    assert kinds_of(seen(lambda n: (receipt(run=0.001), (row.copy(),), row.copy()), 60), 10.0) == []


def test_memory_is_bounded() -> None:
    advisor = Advisor()
    for n in range(MOST_LINES + 50):
        array = np.zeros(2000 + n, np.float32)
        made = receipt(write=1e-6, to_device=array.nbytes)  # too short for its program to be looked at
        advisor.see_call(made, (score, (array,), {}, array), ("script.py", n))
        advisor.see_call(made, (score, (array,), {}, array), ("script.py", 0))
    assert len(advisor.lines) == MOST_LINES
    assert max(len(line.kinds) for line in advisor.lines.values()) <= MOST
    assert max(len(line.uploads) for line in advisor.lines.values()) <= MOST


def test_arrays_that_are_uploaded_read_back_and_asked_for_values() -> None:
    advisor = Advisor()
    for _ in range(4):
        advisor.see_array(ArrayWork("upload", "opencl:0", BIG, 0.05))
    assert kinds_of(advisor) == ["upload-again"]
    advisor = Advisor()
    for n in range(4):
        advisor.see_array(ArrayWork("download", "opencl:0", BIG, 0.05))
        advisor.see_array(ArrayWork("upload", "opencl:0", BIG + n, 0.05))
    assert kinds_of(advisor) == ["read-back"]


# -- as users meet it


@pytest.fixture
def observed() -> Iterator[None]:
    observe.start(advice=True)
    yield
    observe.stop()


def test_nothing_is_seen_unless_advice_was_asked_for() -> None:
    observe.start()
    try:
        assert (events.returned, events.array_work, events.host_operations) == ([], [], [])
        assert observe.advice() == []
    finally:
        observe.stop()


@pytest.mark.usefixtures("observed")
def test_the_line_is_that_of_the_user() -> None:
    small = ag.offload(lambda x: x + 1.0)
    for _ in range(5):
        small(np.zeros(3))
    x = ag.asarray(np.zeros(4000, np.float32), device="opencl")
    for _ in range(3):
        np.asarray(x * 2.0)
    advisor = observe._advisor
    assert advisor is not None
    lines = {place.number: line for place, line in advisor.lines.items() if place.file == __file__}
    assert sorted(line.calls for line in lines.values()) == [0, 3, 5]
    observe.stop()
    assert (events.returned, events.array_work, events.host_operations) == ([], [], [])


def test_importing_anygpu_loads_nothing_of_it() -> None:
    code = "import sys, anygpu; sys.exit(any(name.startswith('anygpu.observe') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_kind_has_its_section_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "advice.md").read_text()
    for kind in KINDS:
        assert f"({kind})=" in page


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "loop_rows",
        pytest.param("branch_function", marks=pytest.mark.long),
        pytest.param("tiny_slices", marks=pytest.mark.long),
        pytest.param("upload_in_loop", marks=pytest.mark.long),
    ],
)
def test_a_planted_mistake_is_found_at_its_line_and_nothing_once_it_is_corrected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All twenty, on all engines: `python -m benchmarks.advise planted`."""
    monkeypatch.setenv("ANYGPU_ENGINES", "opencl")
    script = PLANTED / f"{name}.py"
    _, code, report = advised(script)
    assert (code, report.uses_anygpu) == (0, True)
    assert expected(script) in [(each.kind, each.line) for each in report.findings]
    assert advised(FIXED / f"{name}.py")[2].findings == ()
