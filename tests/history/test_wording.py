"""What is known, in words."""

from __future__ import annotations

import msgspec
import pytest

from anygpu.placement.history.history import (
    age_text,
    agreement_text,
    consequence,
    counted,
    habit_text,
    latest_by_device,
    measured_text,
    memory_text,
)
from anygpu.placement.history.records import Habit, Peak, Timing

NOW = 1_800_000_000.0
NUMPY = Timing(
    program="0" * 32, device="numpy", stamp="1" * 32, seconds=0.1, calls=41, compile=None, agreed=False,
    disagreed=None, when=NOW - 3 * 86_400,
)  # fmt: skip
GPU = msgspec.structs.replace(NUMPY, device="webgpu:0", seconds=0.025, calls=1, compile=2.0, agreed=True, when=NOW)
HABIT = Habit(
    function="2" * 32, name="m.score", signature="3" * 32, program="0" * 32, processes=4, calls=120, seconds=3.1,
    when=NOW - 7200,
)  # fmt: skip


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (-1e9, "just now"),
        (0, "just now"),
        (59, "just now"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (86_399, "23 hours ago"),
        (86_400, "1 day ago"),
        (3 * 86_400 + 5, "3 days ago"),
        (1000 * 86_400, "1,000 days ago"),
    ],
)
def test_how_long_ago(age: float, text: str) -> None:
    assert age_text(NOW - age, NOW) == text


def test_where_a_time_comes_from() -> None:
    assert measured_text(NUMPY, NOW) == "measured 3 days ago, 41 calls"
    assert measured_text(GPU, NOW) == "measured just now, 1 call"
    unknown = msgspec.structs.replace(GPU, seconds=None)
    assert measured_text(unknown, NOW) == "never measured; compiled or compared just now"
    assert counted(2, "process") == "2 processes"
    assert habit_text(HABIT, NOW) == "a process makes 120 calls that take 3.1 s; 4 processes, the last 2 hours ago"


def test_whether_results_can_be_relied_on() -> None:
    wrong = msgspec.structs.replace(GPU, agreed=False, disagreed=NOW - 86_400)
    assert agreement_text(NUMPY, NOW) == "is what other devices are compared with"
    assert agreement_text(GPU, NOW) == "agreed with NumPy"
    assert agreement_text(wrong, NOW) == "disagreed with NumPy 1 day ago"
    assert agreement_text(msgspec.structs.replace(GPU, agreed=False), NOW) == "was not compared with NumPy"


def test_memory_of_an_opaque_task() -> None:
    opaque = msgspec.structs.replace(GPU, peaks=(Peak(0, 1 << 20), Peak(1, 2 << 20), Peak(1000, 38 << 20)))
    assert memory_text(opaque) == "1.0 MiB, 2.0 MiB for 1 row, 38.0 MiB for 1,000 rows"
    assert memory_text(opaque, all_rows=False) == "38.0 MiB for 1,000 rows"
    assert agreement_text(opaque, NOW) == "is an opaque task, which is not compared with NumPy"
    wrong = msgspec.structs.replace(opaque, disagreed=NOW)
    assert agreement_text(wrong, NOW) == "had other results in one launch than in separate calls just now"
    assert consequence(opaque, [opaque], HABIT) == "Calls with other rows are predicted from that."


def test_of_each_device_the_latest_counts_and_the_fastest_is_first() -> None:
    older = msgspec.structs.replace(GPU, stamp="4" * 32, seconds=0.001, when=NOW - 9)
    unknown = msgspec.structs.replace(GPU, device="opencl:0", seconds=None)
    assert latest_by_device([unknown, NUMPY, older, GPU]) == (GPU, NUMPY, unknown)


def test_what_follows() -> None:
    both = [GPU, NUMPY]
    assert consequence(GPU, both, HABIT) == "It is 4 times as fast as numpy."
    assert consequence(NUMPY, both, HABIT) == "A device is faster."
    assert consequence(NUMPY, [NUMPY], HABIT) == "No device is known to be faster."
    assert "nothing to compare" in consequence(GPU, [GPU], HABIT)
    unchecked = msgspec.structs.replace(GPU, agreed=False)
    assert consequence(unchecked, both, HABIT).endswith("have to be compared with NumPy's before they are used.")
    slow = msgspec.structs.replace(GPU, seconds=1.0)
    assert consequence(slow, [slow, NUMPY], HABIT) == "It is slower than numpy, which takes 100 ms."
    dear = msgspec.structs.replace(GPU, compile=31.0)
    assert consequence(dear, both, HABIT) == (
        "It is 4 times as fast as numpy, but compiling pays only after 414 calls, and a process makes 120 calls."
    )
    assert "measured" in consequence(msgspec.structs.replace(GPU, seconds=None), both, HABIT)
