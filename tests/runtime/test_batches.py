"""Calls in one launch give what they give one by one, on every engine; and what is odd about one stays with it."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.structure import flatten
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.engines.protocol import Lack
from anygpu.errors import OverBudget
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.plan.chunking import SIZES, WINDOW
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import as_arguments
from anygpu.program.graph import Program
from anygpu.runtime.batches import MOST_VARIANTS, Batch, BatchResults, LaunchBatches
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.worker import Worker
from tests.support.random_programs.error_bounds import disagreement

DEVICES = ("numpy", "opencl:0", "webgpu:0")


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    places = DeviceRegistry()
    planner = Planner(known=places)
    yield planner
    planner.close()
    places.close()


class Kind:
    """Calls of one function on one device, recorded, and believed to be slow one by one."""

    def __init__(self, planner: Planner, device: str, function: Callable[..., Any], **given: Any) -> None:
        self.planner, self.device = planner, device
        wanted = options(on=device, fallback="raise", **given)
        self.offloaded: Offloaded[..., Any] = Offloaded(function, wanted, lambda: planner)
        self._batches: LaunchBatches | None = None

    def call(self, *arguments: Any, **keywords: Any) -> Call:
        call = self.offloaded.call(arguments, keywords)
        if not call.site.programs.is_tried:
            self.record(call)
        return call

    def record(self, call: Call) -> None:
        call.record()
        call.consider()
        state = call.site
        state.chooser.measured(self.device, 10.0)
        # Without a prediction for one call nobody doubts those for launches.
        state.candidates.predictions = {
            name: facts._replace(plain=msgspec.structs.replace(facts.plain, seconds=0.0))
            for name, facts in state.candidates.predictions.items()
        }

    def calls(self, every: Sequence[tuple[Any, ...]]) -> list[Call]:
        return [self.call(*arguments) for arguments in every]

    @property
    def worker(self) -> Worker:
        return self.planner.worker(self.device)

    def batches(self, state: CallSite) -> LaunchBatches:
        if self._batches is None:
            self._batches = LaunchBatches(state)
        return self._batches

    def plan(self, calls: Sequence[Call], **bounds: Any) -> Batch | None:
        return self.batches(calls[0].site).plan(len(calls), calls, self.device, self.planner, math.inf, **bounds)

    def run(self, batch: Batch) -> BatchResults:
        assert self._batches is not None
        return self._batches.run(batch, self.worker)

    def together(self, calls: Sequence[Call]) -> BatchResults:
        """All of them, in one launch."""
        while True:
            batch = self.plan(calls)
            assert batch is not None
            if batch.taken == len(calls):
                return self.run(batch)
            # As if smaller launches had turned out to be slow.
            for _ in range(WINDOW):
                batch.table.times.measured(batch.size, 1.0, 1.0)

    def alone(self, call: Call) -> Any:
        traced, values = call.site.programs.current, call.given()
        assert traced is not None
        assert values is not None
        given = as_arguments(values, traced.program, None)
        return traced.rebuild(self.worker.run(traced.program, given).results, values)


def exact(draw: np.random.Generator, *shape: int) -> Any:
    """Fractions that are exact in binary, as published tolerances have them."""
    return (draw.integers(-4096, 4097, shape) / 1024).astype(np.float32)


def arrays_of(value: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in flatten(value)[0]]


class Pair(NamedTuple):
    first: Any
    second: Any


def chain(x: Any) -> Any:
    return np.where(x > 0.5, np.maximum(x * 2 + 1, -x), np.abs(x) - 3) * x


def functions(x: Any) -> Any:
    return np.sqrt(np.abs(np.tanh(x * 2 + 1))) + np.exp(-(x * x))


def matrix_vector(m: Any, v: Any) -> Any:
    return m @ v


def reductions(x: Any) -> Any:
    return {"sum": x.sum(), "mean": x.mean(axis=0), "most": [x.max(axis=-1), np.argmax(x, axis=1)]}


def in_order(x: Any) -> Any:
    return np.sort(x, axis=-1), np.argsort(x, axis=0), np.cumsum(x, axis=1)


def moved(x: Any) -> Any:
    return Pair(x.T[::2, ::-1], np.concatenate([x, x * 2], axis=0)), x[1:, ::3], 7, None


def gathered(x: Any, index: Any) -> Any:
    return x[index], np.take(x, index, axis=0) + 1


def scaled(x: Any, a: float, b: float) -> Any:
    return x * a + b


#: What is computed, of what, and whether nothing in it depends on the order of additions or on a library's functions.
CASES: dict[str, tuple[Callable[..., Any], Callable[[np.random.Generator], tuple[Any, ...]], bool]] = {
    "chain": (chain, lambda draw: (exact(draw, 256),), True),
    "functions": (functions, lambda draw: (exact(draw, 255),), False),
    "own matrices": (matrix_vector, lambda draw: (exact(draw, 12, 9), exact(draw, 9)), False),
    "reductions": (reductions, lambda draw: (exact(draw, 7, 31),), False),
    "in order": (in_order, lambda draw: (exact(draw, 5, 17),), False),
    "moved": (moved, lambda draw: (exact(draw, 6, 8),), True),
    "gathered": (gathered, lambda draw: (exact(draw, 20, 3), draw.integers(0, 20, 6).astype(np.int32)), True),
    "scaled": (scaled, lambda draw: (exact(draw, 33), float(draw.integers(0, 5)), 0.25), True),
}


@pytest.mark.sampled(gate=15)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [4, 13])
def test_a_launch_gives_what_calls_give(planner: Planner, device: str, name: str, count: int) -> None:
    function, arguments, is_exact = CASES[name]
    draw = np.random.default_rng(len(name))
    kind = Kind(planner, device, function)
    calls = kind.calls([arguments(draw) for _ in range(count)])
    made = kind.together(calls)
    assert len(made.values) == count
    for call, value in zip(calls, made.values, strict=True):
        alone = kind.alone(call)
        assert flatten(value)[1] == flatten(alone)[1]
        expected, got = arrays_of(alone), arrays_of(value)
        assert [type(leaf) for leaf in flatten(value)[0]] == [type(leaf) for leaf in flatten(alone)[0]]
        assert [(each.dtype, each.shape) for each in got] == [(each.dtype, each.shape) for each in expected]
        if is_exact:
            assert [each.tobytes() for each in got] == [each.tobytes() for each in expected]
        else:
            assert disagreement(expected, got, call.site.candidates.program) is None
    assert made.ran.phases.total == pytest.approx(count * made.share.phases.total)


@pytest.mark.parametrize("device", DEVICES)
def test_elementwise_functions_are_the_same_to_the_last_bit(planner: Planner, device: str) -> None:
    kind = Kind(planner, device, functions)
    draw = np.random.default_rng(0)
    calls = kind.calls([(draw.normal(size=256).astype(np.float32),) for _ in range(50)])
    for call, value in zip(calls, kind.together(calls).values, strict=True):
        assert value.tobytes() == kind.alone(call).tobytes()


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", DEVICES)
def test_one_bad_item_changes_no_other(planner: Planner, device: str) -> None:
    def function(x: Any) -> Any:
        y = np.sort(x * 2 + 1)
        return y, y.sum(), np.cumsum(x), x / np.max(np.abs(x))

    kind = Kind(planner, device, function)
    draw = np.random.default_rng(2)
    clean = [exact(draw, 64) for _ in range(11)]
    for where, poison in ((0, np.nan), (5, np.inf), (10, 0.0)):
        spoilt = [each.copy() for each in clean]
        spoilt[where][:] = poison
        # Eleven are padded to sixteen, with the first: also when that is the bad one.
        values = kind.together(kind.calls([(each,) for each in clean])).values
        others = kind.together(kind.calls([(each,) for each in spoilt])).values
        for number, (value, other) in enumerate(zip(values, others, strict=True)):
            if number != where:
                assert [each.tobytes() for each in value] == [each.tobytes() for each in other]
        for expected, got in zip(kind.alone(kind.call(spoilt[where])), others[where], strict=True):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


@pytest.mark.parametrize("device", DEVICES)
def test_every_caller_owns_its_results(planner: Planner, device: str) -> None:
    kind = Kind(planner, device, lambda x: (x * 2, x + 1, x + 0))
    xs = [np.full(8, number, np.float32) for number in range(10)]
    values = kind.together(kind.calls([(x,) for x in xs])).values
    everything = [each for value in values for each in value]
    for each in everything:
        assert each.flags.writeable
        assert each.base is None
        each[:] = -1
    assert all((x == number).all() for number, x in enumerate(xs))
    assert len({each.ctypes.data for each in everything}) == len(everything)


# -- what all calls share


@pytest.mark.parametrize("device", DEVICES)
def test_a_matrix_that_all_share_is_passed_once(planner: Planner, device: str) -> None:
    draw = np.random.default_rng(3)
    matrix = exact(draw, 64, 80)
    kind = Kind(planner, device, matrix_vector)
    # Another array each time, of the same memory.
    calls = kind.calls([(matrix.T, exact(draw, 64)) for _ in range(16)])
    made = kind.together(calls)
    assert made.ran.bytes_to_device == matrix.nbytes + 16 * 64 * 4
    for call, value in zip(calls, made.values, strict=True):
        assert disagreement([kind.alone(call)], [value], call.site.candidates.program) is None


def test_calls_with_another_shared_matrix_are_another_launch(planner: Planner) -> None:
    draw = np.random.default_rng(4)
    one, other = exact(draw, 64, 64), exact(draw, 64, 64)
    kind = Kind(planner, "opencl:0", matrix_vector)
    calls = kind.calls([(matrix, exact(draw, 64)) for matrix in (one, other) for _ in range(16)])
    left, sizes = calls, []
    while left:
        batch = kind.plan(left)
        assert batch is not None
        for call, value in zip(left, kind.run(batch).values, strict=False):
            assert disagreement([kind.alone(call)], [value], call.site.candidates.program) is None
        sizes.append((batch.size, batch.taken))
        left = left[batch.taken :]
    # No launch has both.
    assert {sum(taken for _, taken in sizes[:count]) for count in range(len(sizes))} >= {0, 16}


def test_arrays_from_outside_and_equal_numbers_are_passed_once(planner: Planner) -> None:
    bias = np.arange(8, dtype=np.float32)
    kind = Kind(planner, "numpy", lambda x, a: x * a + bias)
    xs = [np.full(8, number, np.float32) for number in range(4)]
    batch = kind.plan(kind.calls([(x, 0.5) for x in xs]))
    assert batch is not None
    assert [spec.shape for spec in batch.program.inputs] == [(4, 8), (), (8,)]
    np.testing.assert_array_equal(kind.run(batch).values, [x * np.float32(0.5) + bias for x in xs])
    bias += 1
    np.testing.assert_array_equal(
        kind.together(kind.calls([(x, 0.5) for x in xs])).values, [x * np.float32(0.5) + bias for x in xs]
    )


def test_zeros_of_two_signs_are_not_equal(planner: Planner) -> None:
    kind = Kind(planner, "numpy", lambda x, a: np.copysign(x, x * a))
    values = kind.together(kind.calls([(np.ones(2, np.float32), a) for a in (0.0, -0.0, 0.0, -0.0)])).values
    assert [value[0] for value in values] == [1, -1, 1, -1]


def test_calls_that_are_all_the_same_are_computed_once(planner: Planner) -> None:
    x = np.arange(5, dtype=np.float32)
    kind = Kind(planner, "opencl:0", lambda x: x * 2)
    made = kind.together(kind.calls([(x,)] * 16))
    assert made.ran.bytes_to_device == x.nbytes
    np.testing.assert_array_equal(made.values, [x * 2] * 16)


def test_few_variants_are_made_whatever_is_shared(planner: Planner) -> None:
    draw = np.random.default_rng(5)
    kind = Kind(planner, "numpy", lambda a, b, c, d: a + 2 * b + 3 * c + 4 * d)
    shared = [exact(draw, 70, 70) for _ in range(4)]
    programs: set[str] = set()
    for pattern in draw.permutation(16):
        # The large arrays of these calls are the same for all, or each call's own.
        own = [[exact(draw, 70, 70) if pattern >> bit & 1 else shared[bit] for bit in range(4)] for _ in range(4)]
        calls = kind.calls([tuple(each) for each in own])
        batch = kind.plan(calls)
        assert batch is not None
        programs.add(batch.program.key)
        for call, value in zip(calls, kind.run(batch).values, strict=True):
            np.testing.assert_array_equal(value, kind.alone(call))
    assert kind._batches is not None
    assert len(kind._batches._variants) <= MOST_VARIANTS
    # The last variant grows with what it must fit: at most once for each input.
    assert len(programs) <= MOST_VARIANTS + 4


def test_a_small_input_that_differed_once_needs_no_second_variant(planner: Planner) -> None:
    kind = Kind(planner, "numpy", scaled)
    x = [(np.full(4, number, np.float32), float(number), 0.5) for number in range(4)]
    first, second = kind.plan(kind.calls(x)), kind.plan(kind.calls([(each[0], 2.0, 0.5) for each in x]))
    assert first is not None
    assert second is not None
    assert first.program.key == second.program.key
    np.testing.assert_array_equal(kind.run(second).values, [each[0] * 2 + np.float32(0.5) for each in x])


# -- types and orders


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_are_narrowed_as_they_are_for_one_call(planner: Planner, device: str) -> None:
    kind = Kind(planner, device, lambda x, w: (x * 2 + w, x > 0), precision="float32")
    draw = np.random.default_rng(6)
    w = draw.normal(size=9)
    calls = kind.calls([(draw.normal(size=9), w) for _ in range(4)])
    for call, value in zip(calls, kind.together(calls).values, strict=True):
        expected = kind.alone(call)
        assert value[0].dtype == np.float32
        assert [each.tobytes() for each in value] == [each.tobytes() for each in expected]


def test_arrays_in_any_order_of_memory_are_stacked_right(planner: Planner) -> None:
    kind = Kind(planner, "opencl:0", lambda x: x.T * 2)
    whole = np.arange(4 * 6 * 10, dtype=np.float32).reshape(4, 6, 10)
    orders = [
        whole[0],
        np.repeat(whole[1], 2, axis=1)[:, ::2],
        np.repeat(whole[2], 3, axis=0)[::3],
        np.ascontiguousarray(whole[3, :, ::-1])[:, ::-1],
    ]
    values = kind.together(kind.calls([(each,) for each in orders])).values
    np.testing.assert_array_equal(values, [each.T * 2 for each in whole])


def test_calls_without_elements_and_of_one_number(planner: Planner) -> None:
    kind = Kind(planner, "opencl:0", lambda x: x * 2 + 1)
    assert [each.shape for each in kind.together(kind.calls([(np.zeros((0, 3), np.float32),)] * 4)).values] == [
        (0, 3)
    ] * 4
    number = Kind(planner, "opencl:0", lambda x: x * 2 + 1)
    values = number.together(number.calls([(np.array(each, np.float32),) for each in range(4)])).values
    assert values == [1, 3, 5, 7]
    assert all(type(value) is np.float32 for value in values)


def test_keywords_are_arguments_too(planner: Planner) -> None:
    kind = Kind(planner, "numpy", lambda x, *, y: x - y)
    ones = np.ones(3, np.float32)
    values = kind.together([kind.call(ones, y=ones * number) for number in range(4)]).values
    np.testing.assert_array_equal(values, [ones * (1 - number) for number in range(4)])


# -- what is not done


def test_a_call_that_raises_by_itself_ends_the_launch_before_it(planner: Planner) -> None:
    kind = Kind(planner, "numpy", lambda x, a: x * (1.0 / a))
    numbers = [1.0, 2.0, 4.0, 0.5, 0.0, 8.0, 8.0, 8.0, 8.0]
    calls = kind.calls([(np.ones(2, np.float32), a) for a in numbers])
    batch = kind.plan(calls)
    assert batch is not None
    assert batch.taken == 4
    # Then it comes first, and is for whoever runs calls one by one.
    assert kind.plan(calls[4:]) is None
    assert kind.plan(calls[5:]) is not None


def test_arrays_of_our_own_are_not_batched(planner: Planner) -> None:
    kind = Kind(planner, "numpy", lambda x: x * 2)
    assert kind.plan(kind.calls([(ag.ones(3),)] * 8)) is None


def test_a_function_whose_surroundings_changed_is_recorded_anew_first(planner: Planner) -> None:
    surroundings = {"factor": 2.0}
    kind = Kind(planner, "numpy", lambda x: x * surroundings["factor"])
    calls = kind.calls([(np.full(2, number, np.float32),) for number in range(4)])
    assert kind.plan(calls) is not None
    surroundings["factor"] = 3.0  # a number is an input
    np.testing.assert_array_equal(kind.together(calls).values, [np.full(2, 3 * number) for number in range(4)])
    surroundings["factor"] = np.float64(3.0)  # and another type another program
    assert kind.plan(calls) is None
    kind.record(calls[0])
    np.testing.assert_array_equal(kind.together(calls).values, [np.full(2, 3 * number) for number in range(4)])


def test_calls_that_are_faster_one_by_one_stay_so(planner: Planner) -> None:
    kind = Kind(planner, "opencl:0", chain)
    calls = kind.calls([(np.full(256, number, np.float32),) for number in range(64)])
    chooser = calls[0].site.chooser
    chooser.tracks["opencl:0"].recent = [1e-7] * 3
    assert kind.plan(calls) is None
    chooser.tracks["opencl:0"].recent = [10.0] * 3
    assert kind.plan(calls) is not None


def test_bounds_make_launches_smaller(planner: Planner) -> None:
    kind = Kind(planner, "opencl:0", chain)
    calls = kind.calls([(np.full(256, number, np.float32),) for number in range(64)])
    whole = kind.plan(calls)
    assert whole is not None
    assert whole.size == 64
    room = whole.table.bytes_of(64) - 1
    smaller = kind.plan(calls, room=room)
    assert smaller is not None
    assert smaller.size < 64
    assert kind.plan(calls, room=100) is None
    batches = kind.batches(calls[0].site)
    assert batches.plan(64, calls, "opencl:0", planner, 1e-9) is None
    assert batches.plan(64, calls, "no such device", planner, 1.0) is None


class Forgetful:
    """A worker that lacks what has an axis more: a stand-in, as no device here lacks for many what it has for one."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.asked = 0

    def supports(self, program: Program) -> list[Lack]:
        self.asked += 1
        return [Lack(0, "it has no axis for calls")] if len(program.inputs[0].shape) > 1 else []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


def test_what_a_device_lacks_for_many_is_not_done_there(planner: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind(planner, "opencl:0", chain)
    calls = kind.calls([(np.full(256, number, np.float32),) for number in range(4)])
    worker = Forgetful(kind.worker)
    monkeypatch.setattr(planner, "worker", lambda device, options=None: worker)
    assert kind.plan(calls) is None
    assert kind.plan(calls) is None
    assert worker.asked == 2


# -- what goes wrong, and what is remembered


@pytest.fixture
def own_planner() -> Iterator[Planner]:
    places = DeviceRegistry()
    planner = Planner(known=places)
    yield planner
    planner.close()
    places.close()


def test_after_a_lack_of_memory_the_next_launch_is_smaller(
    own_planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_planner.machine()
    monkeypatch.setenv("ANYGPU_MEMORY", str(4 << 20))
    kind = Kind(own_planner, "opencl:0", lambda x: x * 2)
    assert kind.worker.alive
    # Its worker has a budget that nobody here knows of.
    monkeypatch.delenv("ANYGPU_MEMORY")
    xs = [np.full(1 << 15, number, np.float32) for number in range(64)]
    calls = kind.calls([(x,) for x in xs])
    sizes: list[int] = []
    values: list[Any] = []
    while not values:
        batch = kind.plan(calls)
        assert batch is not None
        sizes.append(batch.size)
        try:
            values = kind.run(batch).values
        except OverBudget:
            assert batch.size > 1
    assert sizes[0] == 64
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes) > 1
    np.testing.assert_array_equal(values, [x * 2 for x in xs[: sizes[-1]]])


def test_the_next_worker_compiles_again_and_a_dead_one_is_named(own_planner: Planner) -> None:
    kind = Kind(own_planner, "opencl:0", chain)
    calls = kind.calls([(np.full(256, number, np.float32),) for number in range(16)])
    batch = kind.plan(calls)
    assert batch is not None
    first = kind.worker
    batches = kind.batches(calls[0].site)
    expected = batches.run(batch, first).values
    first.close()
    for _ in range(3):
        with pytest.raises(ag.errors.DeviceLost):
            batches.run(batch, first)
    # After three failures in a row calls run one by one for a while.
    assert kind.plan(calls) is None
    assert kind.worker.generation == first.generation + 1
    again = batches.run(batch, kind.worker)
    np.testing.assert_array_equal(again.values, expected)
    while (planned := kind.plan(calls)) is None:
        pass
    np.testing.assert_array_equal(kind.run(planned).values, expected)


def test_compiling_is_in_the_receipt_once(planner: Planner) -> None:
    kind = Kind(planner, "opencl:0", lambda x: x * 3 - 1)
    calls = kind.calls([(np.full(100, number, np.float32),) for number in range(13)])
    first, second = kind.together(calls), kind.together(calls)
    assert first.ran.phases.compile > second.ran.phases.compile
    assert first.ran.driver is not None
    assert second.ran.driver is not None
    assert second.ran.driver.compilations == 0
    assert second.ran.results == []
    batch = kind.plan(calls)
    assert batch is not None
    assert batch.how == "in one launch of 13 calls, padded to 16"
    assert 0 < batch.seconds <= max(each.ran.phases.total for each in (first, second))


def test_batches_do_not_keep_their_state(planner: Planner) -> None:
    kind = Kind(planner, "numpy", chain)
    calls = kind.calls([(np.full(4, number, np.float32),) for number in range(4)])
    batches = kind.batches(calls[0].site)
    assert kind.plan(calls) is not None
    state = weakref.ref(calls[0].site)
    del calls
    kind.offloaded._table.sites.clear()
    gc.collect()
    assert state() is None
    assert batches is not None


def test_two_devices_at_once(planner: Planner) -> None:
    """The lanes of two devices use the batches of one kind at the same time."""
    kind = Kind(planner, "opencl:0", chain)
    draw = np.random.default_rng(8)
    calls = kind.calls([(exact(draw, 256),) for _ in range(200)])
    state = calls[0].site
    state.candidates.predictions["numpy"] = state.candidates.predictions["opencl:0"]
    batches = kind.batches(state)
    expected = [chain(call.arguments[0]).tobytes() for call in calls]
    wrong: list[str] = []

    def lane(device: str, seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(10):
            start, stop = sorted(draw.choice(200, 2, replace=False))
            some = calls[start : stop + 1]
            batch = batches.plan(len(some), some, device, planner, math.inf)
            if batch is None:
                continue
            values = batches.run(batch, planner.worker(device)).values
            got = [value.tobytes() for value in values]
            if got != expected[start : start + batch.taken]:
                wrong.append(device)

    threads = [threading.Thread(target=lane, args=pair) for pair in (("opencl:0", 1), ("numpy", 2), ("opencl:0", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("device", ["opencl:0", "webgpu:0"])
def test_a_launch_of_many_calls_costs_the_device_what_one_call_does(planner: Planner, device: str) -> None:
    """`benchmarks.runtime_together` has the seconds."""
    draw = np.random.default_rng(9)
    matrix = exact(draw, 256, 256)
    kind = Kind(planner, device, matrix_vector)
    calls = kind.calls([(matrix, exact(draw, 256)) for _ in range(SIZES[3])])
    traced, values = calls[0].site.programs.current, calls[0].given()
    assert traced is not None
    assert values is not None
    for _ in range(2):  # the first time it is compiled
        together = kind.together(calls).ran
        alone = kind.worker.run(traced.program, as_arguments(values, traced.program, None))
    assert together.driver is not None
    assert alone.driver is not None
    # One more may put the stacked arguments into the order in which they are read.
    assert together.driver.dispatches <= alone.driver.dispatches + 1
    assert together.driver.submits == alone.driver.submits
    assert (together.driver.compilations, together.driver.allocations) == (0, 0)
