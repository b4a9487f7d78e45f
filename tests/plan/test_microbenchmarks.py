"""Which programs are tried, and what their times say of a device."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.engines.numpy import lowering
from anygpu.engines.numpy.lowering import NumpyEngine
from anygpu.hardware.device import Device
from anygpu.placement.plan.calibration import Calibration, amount_of, assumed
from anygpu.placement.plan.microbenchmarks import (
    CHAIN,
    FUNCTIONS,
    KERNELS,
    BenchmarkTrial,
    Measurement,
    fit,
    trials,
    values,
)
from anygpu.placement.plan.predicting import predict
from anygpu.program.graph import OperationClass, program_cost

DEVICE = Device(
    id="webgpu:0",
    engine="webgpu",
    kind="cpu",
    form="software",
    name="a device of nobody",
    state="verified",
    api="Vulkan",
    memory_total=1 << 30,
    memory_free=1 << 30,
    unknown=dict.fromkeys(("driver", "compute_capability", "load", "uuid", "pci"), "it is not real"),
)
ALL = trials()
RATES = [trial for trial in ALL if trial.aspect == "rate"]
MEASURABLE = set(get_args(OperationClass)) - {"input"}


def named(name: str, *, wide: bool = False) -> BenchmarkTrial:
    (found,) = (trial for trial in ALL if trial.name == name and (trial.aspect == "wide") == wide)
    return found


def measured(name: str, seconds: float, kernels: int | None = None, *, wide: bool = False) -> Measurement:
    return Measurement(trial=named(name, wide=wide), seconds=seconds, kernels=kernels)


class TestTrials:
    def test_every_class_has_three_sizes(self) -> None:
        for kind in MEASURABLE:
            amounts = [trial.amount for trial in RATES if trial.operation == kind]
            assert len(set(amounts)) == len(amounts) >= 3 or kind == "creation"

    def test_the_amounts_are_those_of_the_program(self) -> None:
        for trial in RATES:
            assert trial.operation is not None
            costs = program_cost(trial.program).by_kind
            assert trial.amount == amount_of(costs[trial.operation])

    def test_every_class_is_assumed_of_every_device_too(self) -> None:
        assert set(assumed(DEVICE).rates) == MEASURABLE

    def test_the_most_important_come_first(self) -> None:
        first = [(trial.aspect, trial.operation) for trial in ALL[:9]]
        assert first[0] == ("launch", None)
        for wanted in ("elementwise", "contraction", "transcendental", "reduce"):
            assert ("rate", wanted) in first
        assert {"write", "read"} <= {aspect for aspect, _ in first}

    def test_names_and_aspects_tell_them_apart(self) -> None:
        assert len({(trial.name, trial.aspect) for trial in ALL}) == len(ALL)

    def test_few_programs_serve_many_trials(self) -> None:
        """To compile is what takes the time."""
        assert len({trial.program.key for trial in ALL}) <= len(ALL) - 8

    @pytest.mark.parametrize("trial", [each for each in ALL if each.amount < 1e6], ids=lambda each: each.name)
    def test_their_values_are_such_that_nothing_goes_wrong(self, trial: BenchmarkTrial) -> None:
        for result in lowering.run(trial.program, values(trial)):
            assert np.isfinite(result).all()

    def test_positions_reach_everything(self) -> None:
        _, positions = values(named("indexing 131136"))
        assert sorted(positions) == list(range(len(positions)))

    def test_each_number_is_another_program_for_the_compiler(self) -> None:
        keys = {trial.program.key for number in (1.25, 1.5) for trial in trials(number) if trial.aspect == "compile"}
        assert len(keys) == 2


class TestFit:
    def test_nothing_measured_is_what_is_assumed(self) -> None:
        assert fit(DEVICE, []) == assumed(DEVICE)
        assert fit(DEVICE, [], opening=1.5).open == 1.5

    def test_a_launch(self) -> None:
        found = fit(DEVICE, [measured("launch", 4e-4, 1), measured("kernels", 2e-5 * (KERNELS - 1), KERNELS)])
        assert found.source == "measured"
        assert found.kernel == pytest.approx(2e-5)
        assert found.launch + found.kernel == pytest.approx(4e-4), "a call has a kernel"

    def test_one_more_operation_where_nothing_is_fused(self) -> None:
        found = fit(DEVICE, [measured("launch", 5e-6), measured("steps", 7e-6, CHAIN), measured("kernels", 5e-6)])
        assert not found.fuses
        assert found.kernel == pytest.approx(1e-6)

    def test_transfers(self) -> None:
        sizes = [trial for trial in ALL if trial.aspect == "write"]
        times = [Measurement(trial=trial, seconds=1e-4 + trial.amount / 4e9) for trial in sizes]
        found = fit(DEVICE, times).write
        assert found.latency == pytest.approx(1e-4, rel=0.01)
        assert found.bytes_per_second == pytest.approx(4e9, rel=0.01)
        assert fit(DEVICE, times).read == assumed(DEVICE).read
        large = fit(DEVICE, times[-1:]).write
        assert large.latency == assumed(DEVICE).write.latency, "one alone does not tell which part of it is latency"
        assert large.bytes_per_second == pytest.approx(4e9, rel=0.05)

    def test_noise_that_hides_a_transfer(self) -> None:
        hidden = [Measurement(trial=trial, seconds=0.0) for trial in ALL if trial.aspect == "write"]
        assert 0 < fit(DEVICE, hidden).write.latency < assumed(DEVICE).write.latency

    def test_a_device_that_moves_nothing(self) -> None:
        still = [Measurement(trial=trial, seconds=0.0) for trial in ALL if trial.aspect in ("write", "read")]
        (numpy,) = NumpyEngine().discover()
        assert isinstance(numpy, Device)
        assert fit(numpy, still).read.seconds(1e9) < 1e-5
        usual = assumed(DEVICE).read.seconds(1e9)
        assert usual / 25 < fit(DEVICE, still).read.seconds(1e9) < usual, "elsewhere that is noise"

    def test_whether_it_fuses_by_the_number_of_kernels(self) -> None:
        one = [measured("launch", 1e-4, 1), measured("elementwise 1048640", 1e-3, 1)]
        assert fit(DEVICE, [*one, measured("chain", 9e-3, 1)]).fuses
        assert not fit(DEVICE, [*one, measured("chain", 2e-3, CHAIN)]).fuses

    def test_whether_it_fuses_by_the_time(self) -> None:
        one = [measured("launch", 1e-4), measured("elementwise 1048640", 1.1e-3)]
        fused = fit(DEVICE, [*one, measured("chain", 1.8e-3)])
        assert fused.fuses
        assert fused.addition == pytest.approx(0.1, rel=0.1)
        assert not fit(DEVICE, [*one, measured("chain", 8e-3)]).fuses

    def test_a_function_inside_of_a_kernel(self) -> None:
        one = [measured("launch", 1e-4, 1), measured("transcendental 1048640", 3e-3, 1)]
        found = fit(DEVICE, [*one, measured("functions", 3e-3 + (FUNCTIONS - 1) * 2e-3, 1)])
        assert found.function == pytest.approx(2e-3 / 1_048_640)
        assert fit(DEVICE, one).function is None

    def test_wide(self) -> None:
        launch = [measured("launch", 1e-9), measured("steps", 1e-9, CHAIN)]
        pair = [measured("transcendental 1048640", 1e-3), measured("transcendental 1048640", 4e-3, wide=True)]
        assert fit(DEVICE, launch + pair).wide == pytest.approx(4.0, rel=1e-3)
        assert fit(DEVICE, launch + pair[1:]).wide == assumed(DEVICE).wide

    def test_wide_where_functions_are_fused(self) -> None:
        """Twice the time for memory is no part of it."""
        memory = 1_048_640 * 12 / 4e9
        times = [measured("launch", 1e-9), measured("elementwise 1048640", memory)]
        times += [measured("transcendental 1048640", 1e-3 + memory * 8 / 12)]
        times += [measured("transcendental 1048640", 4e-3 + memory * 16 / 12, wide=True)]
        assert fit(DEVICE, times).wide == pytest.approx(4.0, rel=0.05)

    def test_of_several_runs_the_best_counts(self) -> None:
        once = [measured("launch", 1e-4), measured("elementwise 1048640", 1.1e-3)]
        assert fit(DEVICE, [*once, measured("elementwise 1048640", 9e-3)]) == fit(DEVICE, once)

    def test_what_was_not_measured_follows_its_neighbours(self) -> None:
        """Three times as slow as assumed where memory counts, ten times where arithmetic does."""
        before = assumed(DEVICE)
        times = [measured("launch", 1e-9)]
        for name, slower in (("elementwise 1048640", 3), ("reduce 1048640", 3), ("contraction 256", 10)):
            trial = named(name)
            assert trial.operation is not None
            times.append(measured(name, slower * before.rates[trial.operation].seconds(trial.amount)))
        found = fit(DEVICE, times)
        for kind, slower in (("scan", 3), ("indexing", 3), ("sort", 10), ("fourier", 10)):
            ratio = found.rates[kind].seconds(1e7) / before.rates[kind].seconds(1e7)  # type: ignore[index]
            assert ratio == pytest.approx(slower, rel=0.01)
        assert found.measured == ("elementwise", "reduce", "contraction")

    def test_a_small_amount_alone_says_nothing_of_large_ones(self) -> None:
        before = assumed(DEVICE)
        found = fit(DEVICE, [measured("launch", 1e-4), measured("sort 1024", 1e-2)])
        assert found.rates["sort"].seconds(1e7) < 2 * before.rates["sort"].seconds(1e7)

    def test_a_disturbed_product_is_not_believed(self) -> None:
        """On busy cores NumPy's products took 20 times as long as a smaller one had said, and a larger one denied."""
        times = [("contraction 64", 2e-5), ("contraction 256", 2e-2), ("contraction 1024", 3e-2)]
        found = fit(DEVICE, [measured("launch", 1e-9), *(measured(*each) for each in times)])
        amount = named("contraction 256").amount
        assert found.rates["contraction"].seconds(amount) < 3e-3

    @settings(max_examples=60)
    @given(
        st.lists(
            st.builds(
                Measurement,
                trial=st.sampled_from(ALL),
                seconds=st.floats(0.0, 100.0),
                kernels=st.none() | st.integers(1, 20),
            ),
            max_size=30,
        )
    )
    def test_whatever_the_clock_says_it_is_a_calibration(self, measurements: list[Measurement]) -> None:
        found = fit(DEVICE, measurements)
        assert set(found.rates) == MEASURABLE
        for curve in found.rates.values():
            amounts, seconds = zip(*curve.points, strict=True)
            assert list(amounts) == sorted(set(amounts))
            assert list(seconds) == sorted(seconds), "time never falls as the amount grows"
            assert seconds[0] > 0
            assert all(math.isfinite(each) for each in seconds)
        numbers = (
            found.launch,
            found.kernel,
            found.write.bytes_per_second,
            found.read.bytes_per_second,
            found.addition,
        )
        assert all(0 < number < math.inf for number in numbers)
        assert found.wide >= 1
        assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found
        for trial in ALL:
            assert math.isfinite(predict(trial.program, found).seconds)

    @settings(max_examples=60)
    @given(st.floats(1e-6, 1e-3), st.floats(0.01, 100.0), st.permutations(RATES))
    def test_straight_speeds_come_out_as_they_went_in(
        self, launch: float, slower: float, order: list[BenchmarkTrial]
    ) -> None:
        before = assumed(DEVICE)
        times = [measured("launch", launch), measured("kernels", 0.0, KERNELS)]
        for trial in order:
            assert trial.operation is not None
            seconds = launch + slower * before.rates[trial.operation].seconds(trial.amount)
            times.append(Measurement(trial=trial, seconds=seconds))
        found = fit(DEVICE, times)
        for trial in RATES:
            assert trial.operation is not None
            wanted = slower * before.rates[trial.operation].seconds(trial.amount)
            got = found.rates[trial.operation].seconds(trial.amount)
            # A fiftieth of a call is as little as can be told from a launch.
            assert got == pytest.approx(wanted, rel=0.01, abs=launch / 20)


def test_a_product_that_takes_hardly_longer_than_a_call_says_nothing_of_larger_ones() -> None:
    """Its own time is a difference of two that are nearly equal: often next to nothing."""
    times = [
        measured("launch", 5e-4, 1),
        measured("contraction 64", 5.01e-4),
        measured("contraction 256", 8e-3),
        measured("contraction 512", 8.5e-2),
    ]
    found = fit(DEVICE, times)
    large = named("contraction 512")
    assert found.rates["contraction"].seconds(large.amount) == pytest.approx(8.45e-2, rel=0.01)
    # Of two that do say something, the faster one is believed.
    found = fit(DEVICE, [*times[:2], measured("contraction 256", 4e-3), measured("contraction 512", 0.5)])
    assert found.rates["contraction"].seconds(large.amount) < 0.1
