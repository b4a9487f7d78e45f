"""Calibrations: measured through a worker, within their time, and kept on disk."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines import Isolation, tuner
from anygpu.engines.catalogue import catalogue
from anygpu.engines.protocol import Lack, Memory, tuning_limited_to
from anygpu.errors import DeviceLost, InvalidOption, OutOfMemory
from anygpu.hardware.device import Device
from anygpu.placement import calibrate as calibrate_module
from anygpu.placement.calibrate import calibrate, calibration_folder, recalled, remember
from anygpu.placement.plan.calibration import Calibration, Curve, Transfer, amount_of, assumed
from anygpu.placement.plan.microbenchmarks import trials
from anygpu.placement.plan.predicting import predict, structure_of
from anygpu.program.graph import Program, node_cost
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import Phases
from anygpu.testing import FakeProcessors, ManualClock
from anygpu.workers.worker import Ran, Worker, open_worker

DEVICE = Device(
    id="webgpu:0",
    engine="webgpu",
    kind="cpu",
    form="software",
    name="a device of nobody",
    state="verified",
    api="Vulkan",
    driver="7.1",
    memory_total=1 << 30,
    memory_free=1 << 30,
    unknown=dict.fromkeys(("compute_capability", "load", "uuid", "pci"), "it is not real"),
)


FUNCTION = 2e-9


def truth(**changes: Any) -> Calibration:
    """A device with speeds of its own: nothing is as `assumed` has it."""
    rates = {
        kind: curve.points[-1][0] / curve.points[-1][1] * (0.5 + 0.05 * number)
        for number, (kind, curve) in enumerate(assumed(DEVICE).rates.items())
    }
    # A function alone takes its own time and that of memory.
    rates["transcendental"] = 1 / (8 / rates["elementwise"] + FUNCTION)
    usual = Calibration(
        device=DEVICE.id,
        source="measured",
        launch=3e-4,
        kernel=4e-5,
        write=Transfer(8e-5, 5e9),
        read=Transfer(5e-5, 4e9),
        rates={kind: Curve(((1.0, 1 / rate), (1e9, 1e9 / rate))) for kind, rate in rates.items()},
        wide=6.0,
        compile=0.02,
        fuses=True,
        open=0.5,
        addition=0.04,
        function=FUNCTION,
    )
    return msgspec.structs.replace(usual, **changes)


class Resting:
    """An array on a device that is not there."""

    generation = 1

    def __init__(self, spec: Spec) -> None:
        self.spec = spec


def seconds_on(speed: Calibration, program: Program) -> float:
    """A simple device: one kernel after the other, or elementwise operations in the kernel of the first of them."""
    memory = speed.rates["elementwise"]
    costs = [node_cost(program, position) for position in range(len(program))]
    work = [(at, cost) for at, cost in enumerate(costs) if cost.bytes_written]
    fused = speed.fuses and len(program.outputs) == 1 and len({cost.kind for _, cost in work}) == 1
    total = speed.launch
    for number, (position, cost) in enumerate(work):
        spec = program.specs[position]
        alone = speed.rates[cost.kind].seconds(amount_of(cost))
        if fused and number and cost.kind == "elementwise":
            total += alone * speed.addition
        elif fused and number and cost.kind == "transcendental":
            total += speed.function * spec.size if speed.function is not None else alone
        else:
            if spec.dtype == "float64":
                traffic = memory.seconds(8 * spec.size) if speed.fuses else 0.0
                alone = (alone - traffic) * speed.wide + 2 * traffic
            total += max(alone, speed.kernel)
    return total


class SimpleWorker:
    """Stands for a device of known speed: every call takes exactly its time, on a clock of its own."""

    isolation: Isolation = "thread"
    generation = 1
    alive = True
    ended = None
    device = DEVICE

    def __init__(self, speed: Calibration, *, disturbed: Iterator[float] | None = None, counts: bool = True) -> None:
        self.speed = speed
        self.clock = ManualClock()
        self.lacking: set[str] = set()
        self.failing: Callable[[Program], Exception | None] = lambda program: None
        self.ran: list[Program] = []
        self._disturbed = disturbed
        self._counts = counts
        self._compiled: set[str] = set()

    def supports(self, program: Program) -> list[Lack]:
        return [Lack(0, "it is not there") for node in program.nodes if node.op.operation_class in self.lacking]

    def prepare(self, program: Program) -> float:
        assert tuner.budget() == 0, "nobody looks for sizes of kernels while a clock runs"
        seconds = self._kernels(program) * self.speed.compile if program.key not in self._compiled else 0.0
        self._compiled.add(program.key)
        self.clock.advance(seconds)
        return seconds

    def run(
        self,
        program: Program,
        arguments: Sequence[Any],
        *,
        keep: bool = False,
        timeout: float | None = None,
        wait: bool = True,
        timed: bool = False,
        starting: Callable[[], None] | None = None,
    ) -> Ran:
        assert wait
        assert not timed, "the device's own clock is not what a caller waits for"
        assert program.key in self._compiled
        error = self.failing(program)
        if error is not None:
            raise error
        self.ran.append(program)
        resident = sum(each.spec.nbytes for each in arguments if isinstance(each, Resting))
        seconds = seconds_on(self.speed, program)
        seconds += self.speed.write.seconds(sum(spec.nbytes for spec in program.inputs) - resident)
        seconds += 0.0 if keep else self.speed.read.seconds(sum(spec.nbytes for spec in program.results))
        self.clock.advance(seconds * (next(self._disturbed) if self._disturbed is not None else 1.0))
        kernels = self._kernels(program) if self._counts else None
        unknown = {} if self._counts else {"kernels": "it does not count"}
        return Ran([], Phases(), 0, 0, 0, None, None, kernels, None, (), unknown)

    def _kernels(self, program: Program) -> int:
        return len(structure_of(program, fuses=self.speed.fuses).kernels)

    def upload(self, values: HostArray) -> Resting:
        return Resting(Spec(values.shape, values.dtype.name))  # type: ignore[arg-type]

    def download(self, handle: Any) -> HostArray:
        raise NotImplementedError

    def native(self, handle: Any) -> Any:
        raise NotImplementedError

    def adopt(self, array: Any) -> Any:
        raise NotImplementedError

    def memory(self) -> Memory:
        raise NotImplementedError

    def reclaim(self) -> int:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def calibrated(worker: SimpleWorker, seconds: float = 60.0) -> Calibration:
    return calibrate(worker, seconds=seconds, clock=worker.clock, read=FakeProcessors(worker.clock))


def check_same_speed(found: Calibration, wanted: Calibration, *, within: float = 0.05) -> None:
    assert found.launch == pytest.approx(wanted.launch, rel=within)
    assert found.kernel == pytest.approx(wanted.kernel, rel=within)
    for one, other in ((found.write, wanted.write), (found.read, wanted.read)):
        assert one.latency == pytest.approx(other.latency, rel=within)
        assert one.bytes_per_second == pytest.approx(other.bytes_per_second, rel=within)
    for kind, curve in wanted.rates.items():
        largest = found.rates[kind].points[-1][0]
        assert found.rates[kind].seconds(largest) == pytest.approx(curve.seconds(largest), rel=within), kind
    assert found.wide == pytest.approx(wanted.wide, rel=within)
    assert found.compile == pytest.approx(wanted.compile, rel=within)
    assert found.fuses == wanted.fuses


class TestKnownSpeeds:
    def test_the_speeds_that_go_in_come_out(self) -> None:
        worker = SimpleWorker(truth())
        found = calibrated(worker)
        check_same_speed(found, truth())
        assert found.addition == pytest.approx(0.04, rel=0.1)
        assert found.function == pytest.approx(FUNCTION, rel=0.05)
        assert set(found.measured) == set(assumed(DEVICE).rates)

    def test_without_counting_kernels_and_without_fusing(self) -> None:
        for fuses in (True, False):
            wanted = truth(fuses=fuses, kernel=2e-6, launch=1e-5)
            check_same_speed(calibrated(SimpleWorker(wanted, counts=False)), wanted)

    @pytest.mark.parametrize("fuses", [True, False])
    def test_what_it_predicts_is_what_the_trials_took(self, fuses: bool) -> None:
        speed = truth(fuses=fuses)
        found = calibrated(SimpleWorker(speed))
        for trial in trials(1.5):
            if trial.operation == "creation" or trial.aspect == "compile":
                continue  # Ranges are made where they are used; and no fusing of different operations is imitated here.
            got = predict(trial.program, found, resident_bytes=1 << 40, keep=True).seconds
            assert got == pytest.approx(seconds_on(speed, trial.program), rel=0.15), trial.name

    def test_noise_only_adds_and_is_left_out(self) -> None:
        """Two calls of three are disturbed, each by another factor."""
        noise = itertools.cycle((1.0, 1.4, 2.7, 1.0, 1.2, 1.9, 5.0))
        check_same_speed(calibrated(SimpleWorker(truth(), disturbed=noise)), truth(), within=0.15)


class TestItsTime:
    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 3.0])
    @pytest.mark.parametrize("slower", [0.01, 1.0, 30.0])
    def test_it_ends_in_time(self, seconds: float, slower: float) -> None:
        rates = {
            kind: Curve(tuple((amount, time * slower) for amount, time in curve.points))
            for kind, curve in truth().rates.items()
        }
        worker = SimpleWorker(truth(rates=rates))
        found = calibrated(worker, seconds)
        longest = max((seconds_on(worker.speed, program) for program in worker.ran), default=0.0)
        # Nobody knows what a program takes before it has been run once.
        assert worker.clock() <= seconds + 2 * longest + 2 * worker.speed.compile
        assert found.source == "measured"

    def test_the_more_time_the_more_is_measured(self) -> None:
        few, more = (set(calibrated(SimpleWorker(truth()), seconds).measured) for seconds in (0.2, 2.0))
        assert {"elementwise"} <= few < more

    def test_what_there_is_no_time_for_is_scaled(self) -> None:
        slow = {
            kind: Curve(tuple((amount, 5 * time) for amount, time in curve.points))
            for kind, curve in assumed(DEVICE).rates.items()
        }
        found = calibrated(SimpleWorker(truth(rates=slow)), 0.5)
        for kind in set(slow) - set(found.measured):
            assert found.rates[kind].seconds(1e6) == pytest.approx(slow[kind].seconds(1e6), rel=0.3)
        assert len(found.measured) < len(slow)

    def test_no_time_at_all(self) -> None:
        assert calibrated(SimpleWorker(truth()), 1e-9) == assumed(DEVICE)
        with pytest.raises(InvalidOption, match="more than 0; got 0"):
            calibrated(SimpleWorker(truth()), 0.0)

    def test_who_opened_it_says_what_that_took(self) -> None:
        worker = SimpleWorker(truth())
        assert calibrate(worker, seconds=1.0, clock=worker.clock, opening=0.25).open == 0.25


class TestTrouble:
    def test_what_the_device_lacks_is_not_run(self) -> None:
        worker = SimpleWorker(truth())
        worker.lacking = {"linear", "fourier"}
        found = calibrated(worker)
        assert not {"linear", "fourier"} & set(found.measured)
        assert not any(worker.supports(program) for program in worker.ran)

    def test_what_does_not_fit_is_left_out(self) -> None:
        worker = SimpleWorker(truth())
        worker.failing = lambda program: OutOfMemory(DEVICE.id) if program.results[0].nbytes > 1 << 23 else None
        found = calibrated(worker)
        assert set(found.measured) == set(assumed(DEVICE).rates)
        assert found.rates["elementwise"].seconds(5e7) == pytest.approx(truth().rates["elementwise"].seconds(5e7), 0.1)

    def test_a_device_that_is_lost_is_no_matter_of_speed(self) -> None:
        worker = SimpleWorker(truth())
        worker.failing = lambda program: DeviceLost(DEVICE.id) if len(worker.ran) > 10 else None
        with pytest.raises(DeviceLost):
            calibrated(worker)


class TestBusyMachines:
    def test_a_calibration_on_a_busy_machine_says_so(self) -> None:
        worker = SimpleWorker(truth())
        found = calibrate(worker, seconds=5.0, clock=worker.clock, read=FakeProcessors(worker.clock, 0.6))
        assert found.disturbed
        assert not calibrated(SimpleWorker(truth())).disturbed

    def test_runs_that_stay_different_say_so_too(self) -> None:
        noise = [1.6**number for number in range(25)]
        random.Random(1).shuffle(noise)
        assert calibrated(SimpleWorker(truth(), disturbed=itertools.cycle(noise))).disturbed


class TestKept:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
        monkeypatch.delenv("ANYGPU_ISOLATION", raising=False)
        return tmp_path

    def test_it_is_recalled(self, folder: Path) -> None:
        assert recalled(DEVICE) is None
        remember(truth(), DEVICE)
        assert recalled(DEVICE) == truth()
        assert calibration_folder() == folder / "calibrations"

    def test_a_busy_machine_does_not_replace_what_a_calm_one_said(self) -> None:
        busy = msgspec.structs.replace(truth(launch=1.0), disturbed=True)
        remember(busy, DEVICE)
        assert recalled(DEVICE) == busy, "better than nothing, and known to be doubtful"
        remember(truth(), DEVICE)
        remember(busy, DEVICE)
        assert recalled(DEVICE) == truth()

    def test_what_an_earlier_version_kept_is_recalled(self) -> None:
        old = {name: value for name, value in msgspec.to_builtins(truth()).items() if name != "disturbed"}
        calibrate_module._kept(DEVICE).put_record("calibration", calibrate_module._key(DEVICE, None), old)
        assert recalled(DEVICE) == truth()

    @pytest.mark.parametrize(
        "change",
        [{"driver": "7.2"}, {"name": "another"}, {"api": "Metal"}, {"id": "webgpu:1"}, {"features": ("f64",)}],
        ids=lambda change: next(iter(change)),
    )
    def test_not_for_another_device(self, change: dict[str, Any]) -> None:
        remember(truth(), DEVICE)
        assert recalled(msgspec.structs.replace(DEVICE, **change)) is None

    def test_not_for_another_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remember(truth(), DEVICE)
        assert recalled(DEVICE, isolation="process") == truth(), "where it lives by default"
        assert recalled(DEVICE, isolation="thread") is None
        monkeypatch.setenv("ANYGPU_ISOLATION", "thread")
        assert recalled(DEVICE) is None

    def test_not_after_an_update_or_with_other_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        remember(truth(), DEVICE)
        with monkeypatch.context() as patched:
            patched.setattr("anygpu.engines.disk_cache.version_of", lambda name: "99.0")
            assert recalled(DEVICE) is None
        with monkeypatch.context() as patched:
            patched.setattr("anygpu.placement.calibrate.usable_processors", lambda: 1024)
            assert recalled(DEVICE) is None
        assert recalled(DEVICE) == truth()

    def test_a_torn_or_foreign_file_is_none(self) -> None:
        remember(truth(), DEVICE)
        (path,) = calibration_folder().iterdir()
        whole = path.read_bytes()
        for content in (whole[:-5], whole[:10], b"", b"{}", bytes(len(whole))):
            path.write_bytes(content)
            assert recalled(DEVICE) is None
        remember(truth(), DEVICE)
        assert recalled(DEVICE) == truth()

    def test_a_folder_that_cannot_be_written(self, folder: Path) -> None:
        (folder / "calibrations").write_text("a file is in the way")
        remember(truth(), DEVICE)
        assert recalled(DEVICE) is None


def opened(engine: str, home: Isolation) -> Worker:
    """A real device: where llvmpipe or PoCL is missing, these tests fail."""
    from anygpu.engines.catalogue import load

    (entry,) = (each for each in catalogue() if each.name == engine)
    device = next(item for item in load(entry).discover() if isinstance(item, Device))
    return open_worker(entry, device, isolation=home)


class TestRealDevices:
    def test_numpy_is_measured_as_it_is_called(self) -> None:
        worker = opened("numpy", "thread")
        found = calibrate(worker, seconds=60.0)
        assert found.source == "measured"
        assert not found.fuses
        assert found.launch < 1e-3
        assert found.kernel < 1e-3
        assert found.write.seconds(1e8) < 1e-5, "nothing moves"
        assert {"elementwise", "reduce", "transcendental"} <= set(found.measured)
        worker.close()

    @pytest.mark.full
    @pytest.mark.parametrize(("engine", "home"), [("opencl", "thread"), ("webgpu", "process")])
    def test_kernels_are_not_tuned_meanwhile(
        self, engine: str, home: Isolation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
        monkeypatch.setenv("ANYGPU_TUNING_SECONDS", "30")
        worker = opened(engine, home)
        # The most important comes first; on busy cores one kernel of PoCL may take a second to compile.
        found = calibrate(worker, seconds=12.0)
        worker.close()
        assert not list(tmp_path.glob("**/tuning-*"))
        assert found.source == "measured"
        assert found.fuses
        assert "elementwise" in found.measured
        assert 0 < found.launch < 0.1
        assert found.write.latency > 0


def test_a_limit_of_tuning_holds_in_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_TUNING_SECONDS", "5")
    assert tuner.budget() == 5
    with tuning_limited_to(1.0):
        assert tuner.budget() == 1
        with tuning_limited_to(9.0):
            assert tuner.budget() == 5, "the user's own limit holds all the same"
    assert tuner.budget() == 5
