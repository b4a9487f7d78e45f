"""Sizes are chosen by measuring, within a time, once; what is on disk is believed only when it fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from anygpu.engines.codegen.kernel import Binding, Kernel, KernelChoice, Schedule, Slot
from anygpu.engines.disk_cache import DiskCache
from anygpu.engines.tuner import VARIABLE, TunedSizes, Tuner, budget
from anygpu.errors import InvalidOption, InvalidProgram
from anygpu.testing import FakeProcessors, ManualClock


class Size(msgspec.Struct, frozen=True):
    number: int


def plan(size: int = 1, *, flops: float = 1e9, candidates: int = 4) -> Schedule:
    kernel = Kernel(
        name="sum_1", source=f"size {size}", bindings=(Binding(0, "read"),), groups=1, group_size=1, flops=flops
    )
    choice = KernelChoice("sum_1", tuple(Size(number) for number in range(1, candidates + 1)), (0,))
    return Schedule(slots=(Slot(4, "input"),), steps=(kernel,), outputs=(), choices=(choice,))


def again(chosen: Mapping[str, msgspec.Struct]) -> Schedule:
    size = chosen["sum_1"]
    assert isinstance(size, Size)
    return plan(size.number)


class Device:
    """A fake of the device's clock: seconds for each size, and how often each was run."""

    def __init__(self, seconds: dict[int, float | None], clock: ManualClock | None = None) -> None:
        self.seconds = seconds
        self.runs: list[int] = []
        self.clock = clock

    def __call__(self, schedule: Schedule, steps: tuple[int, ...]) -> float | None:
        (kernel,) = schedule.kernels
        size = int(kernel.source.split()[1])
        self.runs.append(size)
        seconds = self.seconds[size]
        if self.clock is not None and seconds is not None:
            self.clock.advance(seconds)
        if seconds == 0:
            raise InvalidProgram("this size does not compile")
        return seconds


def kept(folder: Path) -> DiskCache:
    return DiskCache(folder, "this device")


def test_the_fastest_is_chosen_and_found_again_without_measuring(tmp_path: Path) -> None:
    device = Device({1: 0.004, 2: 0.002, 3: 0.001, 4: 0.003})
    chosen = Tuner(kept(tmp_path), device).choose(plan(), again, 1.0)
    assert chosen == {"sum_1": Size(3)}
    other = Device({})
    assert Tuner(kept(tmp_path), other).choose(plan(), again, 1.0) == {"sum_1": Size(3)}
    assert other.runs == []


def test_the_first_guess_stays_unless_another_is_clearly_better(tmp_path: Path) -> None:
    device = Device({1: 0.0040, 2: 0.0039, 3: 0.0041, 4: 0.0040})
    assert Tuner(kept(tmp_path), device).choose(plan(), again, 1.0) == {}


def test_a_candidate_that_was_only_lucky_is_not_believed(tmp_path: Path) -> None:
    class Calming(Device):
        """A machine on which the first guess was slowed down by somebody else while it was measured first."""

        def __call__(self, schedule: Schedule, steps: tuple[int, ...]) -> float | None:
            seconds = super().__call__(schedule, steps)
            return seconds if seconds is None or len(self.runs) > 4 else 2 * seconds

    device = Calming({1: 0.0040, 2: 0.0045, 3: 0.0050, 4: 0.0045})
    assert Tuner(kept(tmp_path), device).choose(plan(), again, 1.0) == {}


def test_a_hopeless_candidate_is_given_up_early(tmp_path: Path) -> None:
    device = Device({1: 0.001, 2: 0.02, 3: 0.001, 4: 0.001})
    Tuner(kept(tmp_path), device).choose(plan(), again, 1.0)
    assert device.runs.count(2) < device.runs.count(1)


def test_a_size_that_the_device_refuses_is_no_candidate(tmp_path: Path) -> None:
    device = Device({1: 0.004, 2: 0, 3: 0.001, 4: 0})
    assert Tuner(kept(tmp_path), device).choose(plan(), again, 1.0) == {"sum_1": Size(3)}


def test_no_new_candidate_is_tried_when_the_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    device = Device(dict.fromkeys((1, 2, 3, 4), 0.4), clock)
    Tuner(kept(tmp_path), device, clock).choose(plan(), again, 1.0)
    assert set(device.runs) == {1, 2}
    assert Tuner(kept(tmp_path / "other"), Device({}), clock).choose(plan(), again, 0.0) == {}


def test_small_kernels_and_devices_without_a_clock_keep_the_first_guess(tmp_path: Path) -> None:
    device = Device({})
    assert Tuner(kept(tmp_path), device).choose(plan(flops=1e3), again, 1.0) == {}
    assert device.runs == []
    assert Tuner(kept(tmp_path), Device({1: None})).choose(plan(), again, 1.0) == {}


@pytest.mark.parametrize(
    "wrong",
    [TunedSizes(7, "Size(number=8)", 0.1, 3), TunedSizes(2, "Size(number=99)", 0.1, 3), TunedSizes(-1, "", 0.1, 0)],
)
def test_what_is_on_disk_and_does_not_fit_is_measured_again(tmp_path: Path, wrong: TunedSizes) -> None:
    kept(tmp_path).put_record("tuning", "size 1", wrong)
    device = Device({1: 0.004, 2: 0.001, 3: 0.004, 4: 0.004})
    assert Tuner(kept(tmp_path), device).choose(plan(), again, 1.0) == {"sum_1": Size(2)}


# -- on a busy machine


class Machine:
    """A device that is the processor: on a busy machine some sizes are slowed down more than others."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.processors = FakeProcessors(self.clock)
        self.folder = folder
        self.runs = 0
        self.tuner = self.process()

    def process(self) -> Tuner:
        return Tuner(kept(self.folder), self.measure, self.clock, self.processors)

    def measure(self, schedule: Schedule, steps: tuple[int, ...]) -> float:
        self.runs += 1
        calm, busy = {1: (4e-3, 4e-3), 2: (1e-3, 9e-3), 3: (5e-3, 2e-3), 4: (5e-3, 9e-3)}[
            int(schedule.kernels[0].source.split()[1])
        ]
        seconds = busy if self.processors.busy else calm
        self.clock.advance(seconds)
        return seconds

    def choose(self) -> dict[str, msgspec.Struct]:
        return self.tuner.choose(plan(), again, 2.0)


def test_sizes_of_a_busy_machine_are_used_and_found_again_by_the_next_process(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.processors.busy = 0.6
    assert machine.choose() == {"sum_1": Size(3)}
    machine.tuner, machine.processors.busy = machine.process(), 0.0
    assert machine.choose() == {"sum_1": Size(2)}
    machine.tuner, before = machine.process(), machine.runs
    assert machine.choose() == {"sum_1": Size(2)}, "and it is kept for the next process"
    assert machine.runs == before


def test_where_the_processors_are_not_the_device_it_does_not_matter_how_busy_they_are(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.processors.busy = 0.6
    machine.tuner = Tuner(kept(tmp_path), machine.measure, machine.clock)
    assert machine.choose() == {"sum_1": Size(3)}
    machine.tuner, before = machine.process(), machine.runs
    assert machine.choose() == {"sum_1": Size(3)}
    assert machine.runs == before


def test_what_an_earlier_version_kept_from_a_busy_machine_is_found_again(tmp_path: Path) -> None:
    kept(tmp_path).put_record("tuning", "size 1", TunedSizes(2, "Size(number=3)", 0.1, 3, disturbed=True))
    assert Machine(tmp_path).choose() == {"sum_1": Size(2)}


def test_what_an_earlier_version_kept_is_not_doubted(tmp_path: Path) -> None:
    class Old(msgspec.Struct, frozen=True):
        candidate: int
        sizes: str
        seconds: float
        measured: int

    kept(tmp_path).put_record("tuning", "size 1", Old(2, "Size(number=3)", 0.1, 3))
    tuner = Tuner(kept(tmp_path), Device({}))
    assert tuner.choose(plan(), again, 1.0) == {"sum_1": Size(3)}


def test_the_budget_is_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert budget() > 0
    monkeypatch.setenv(VARIABLE, "0.25")
    assert budget() == 0.25
    for wrong in ("-1", "soon", "inf", "nan"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(InvalidOption, match=VARIABLE):
            budget()
