"""Where arrays come from, and what that may cost."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.expression import compute
from anygpu.errors import HostFallback, InvalidOption
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Input, Spec
from anygpu.workers.device_arrays import lineage
from anygpu.workers.device_arrays.lineage import (
    HostCopy,
    HostCopyCache,
    Lineage,
    TrackedBuffer,
    missing_ancestors,
    result_lineages,
    topological_order,
)
from anygpu.workers.device_arrays.recoverable import RecoverableDevice
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.worker import Handle, Worker

SPEC = Spec((250,), "float32")


def values(number: float = 0.0) -> np.ndarray:
    return np.full(250, number, np.float32)


def program(inputs: int = 1, results: int = 1) -> Program:
    given = [Node(Input((250,), "float32"))] * inputs
    added = [Node(Binary("add"), (0, inputs - 1 + number)) for number in range(results)]
    return Program([*given, *added], range(inputs, inputs + results))


def copied(copies: HostCopyCache, number: float = 0.0) -> Lineage:
    origin = Lineage(SPEC)
    origin.remember(copies.keep(values(number)))
    return origin


class Home:
    def handle_for(self, buffer: TrackedBuffer) -> Handle:
        raise AssertionError("nobody uses it")


def kept(origin: Lineage) -> TrackedBuffer:
    found = TrackedBuffer(None, origin, Home(), 1, 1)
    origin.array = weakref.ref(found)
    return found


# -- copies


def test_a_copy_is_nobody_elses_and_cannot_be_written_to() -> None:
    given = values(1)
    copy = HostCopyCache(1 << 20).keep(given)
    assert isinstance(copy, HostCopy)
    given[:] = 2
    assert copy.values is not None
    assert np.array_equal(copy.values, values(1))
    shown = copy.values.view()
    with pytest.raises(ValueError, match="WRITEABLE"):
        shown.flags.writeable = True


def test_beyond_the_budget_the_oldest_are_dropped_and_say_so() -> None:
    copies = HostCopyCache(3000)
    origins = [copied(copies, number) for number in range(5)]
    assert copies.bytes == 3000
    assert [origin.copy is not None for origin in origins] == [False, False, True, True, True]
    assert "evicted" in origins[0].why
    assert "ANYGPU_RECOVERY_MEMORY" in origins[0].why
    assert not origins[4].why


def test_what_is_larger_than_the_budget_costs_no_other_its_copy() -> None:
    copies = HostCopyCache(1500)
    small = copied(copies)
    assert "1.5 KiB" in str(copies.keep(np.zeros(1000)))
    assert small.copy is not None


def test_a_copy_of_an_array_that_is_nowhere_else_stays_whatever_the_budget_says() -> None:
    copies = HostCopyCache(2000)
    first = copied(copies, 1)
    array = kept(first)
    assert first.copy is not None
    assert copies.need(first.copy, array)
    others = [copied(copies, number) for number in range(4)]
    assert first.copy is not None
    assert sum(origin.copy is not None for origin in others) == 1
    forced = copies.hold(values())
    assert forced is not None
    assert copies.bytes == 2000
    del array
    assert copied(copies).copy is not None
    assert first.copy is None


def test_when_all_copies_are_needed_there_is_no_room_for_new_ones() -> None:
    copies = HostCopyCache(1000)
    first = copied(copies)
    array = kept(first)
    assert first.copy is not None
    copies.need(first.copy, array)
    assert "nowhere else" in str(copies.keep(values()))


def test_bytes_of_copies_come_back_with_the_last_who_has_them() -> None:
    copies = HostCopyCache(1 << 20)
    origins = [copied(copies) for _ in range(10)]
    later = result_lineages(program(), [origins[0]])
    assert copies.bytes == 10_000
    origins.clear()
    assert copies.bytes == 1000
    later.clear()
    assert copies.bytes == 0


def test_the_budget_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(lineage.MEMORY, raising=False)
    assert 0 < HostCopyCache().budget <= 1 << 30
    monkeypatch.setenv(lineage.MEMORY, "2MiB")
    assert HostCopyCache().budget == 2 << 20
    monkeypatch.setenv(lineage.MEMORY, "0")
    assert isinstance(HostCopyCache().keep(values()), str)
    monkeypatch.setenv(lineage.MEMORY, "plenty")
    with pytest.raises(InvalidOption, match="plenty"):
        _ = HostCopyCache().budget


# -- origins


def test_several_results_share_one_recipe() -> None:
    first, second = result_lineages(program(2, 2), [Lineage(SPEC), Lineage(SPEC)])
    assert first.producer is second.producer
    assert first.producer is not None
    assert [each() for each in first.producer.results] == [first, second]
    assert (first.position, second.position) == (0, 1)
    assert first.depth == 1


def test_common_inputs_come_once_and_before_what_is_made_of_them() -> None:
    leaf = Lineage(SPEC)
    (one,) = result_lineages(program(), [leaf])
    (two,) = result_lineages(program(), [leaf])
    (both,) = result_lineages(program(2), [one, two])
    order = [origin for origin, _ in topological_order([both, one], lambda _: False)]
    assert len(order) == 4
    assert order[0] is leaf
    assert order[-1] is both


def test_a_history_that_is_longer_than_pythons_stack() -> None:
    origin = Lineage(SPEC)
    origin.why = "it is a test"
    for _ in range(10 * sys.getrecursionlimit()):
        (origin,) = result_lineages(program(), [origin])
    order = topological_order([origin], lineage.has_copy)
    missing = missing_ancestors(order, lineage.has_copy)[id(origin)]
    assert missing is not None
    assert "it is a test" in lineage.describe_loss(origin, missing)


def test_nodes_that_several_programs_share_are_counted_once() -> None:
    first, second = Lineage(SPEC), Lineage(SPEC)
    for _ in range(30):
        first, (second,) = second, result_lineages(program(2), [first, second])
    assert second.nodes > lineage.NODES
    lineage.recount(second)
    assert second.nodes == 30 * 3


def test_copies_of_arrays_that_are_there_anyway_are_not_counted() -> None:
    copies = HostCopyCache(1 << 20)
    there, gone = copied(copies), copied(copies)
    array = kept(there)
    (origin,) = result_lineages(program(2), [there, gone])
    (origin,) = result_lineages(program(2), [origin, gone])
    assert origin.held == 3 * values().nbytes
    lineage.recount(origin)
    assert origin.held == values().nbytes
    del array
    lineage.recount(origin)
    assert origin.held == 2 * values().nbytes


def test_a_way_is_looked_for_only_as_far_as_it_is_needed() -> None:
    copies = HostCopyCache(1 << 20)
    far = Lineage(SPEC)
    (near,) = result_lineages(program(), [far])
    near.remember(copies.keep(values()))
    (wanted,) = result_lineages(program(), [near])
    order = topological_order([wanted], lineage.has_copy)
    assert [origin for origin, _ in order] == [near, wanted]
    assert missing_ancestors(order, lineage.has_copy)[id(wanted)] is None


# -- places


def test_arrays_in_this_process_are_as_they_were() -> None:
    place = DeviceRegistry().find("numpy")
    assert not isinstance(place, RecoverableDevice)
    array = ag.asarray(values(), device=place)
    assert not isinstance(array._value.buffer, TrackedBuffer)


@pytest.fixture
def known() -> DeviceRegistry:
    return DeviceRegistry()


@pytest.fixture
def place(known: DeviceRegistry) -> Iterator[RecoverableDevice]:
    """NumPy in a child of its own: a worker that is quickly there."""
    found = known.find("numpy", isolation="process")
    assert isinstance(found, RecoverableDevice)
    yield found
    known.close()


def origin_of(array: ag.Array) -> Lineage:
    buffer = array._value.buffer
    assert isinstance(buffer, TrackedBuffer)
    return buffer.lineage


def test_a_loop_keeps_neither_its_programs_nor_its_arrays(place: RecoverableDevice) -> None:
    x = ag.asarray(values(), device=place)
    first = weakref.ref(origin_of(x))
    depths = []
    for _ in range(3 * lineage.DEPTH):
        x = (x + 1).compute()
        depths.append(origin_of(x).depth)
    assert max(depths) == lineage.DEPTH
    assert first() is None
    assert len([*topological_order([origin_of(x)], lambda _: False)]) <= lineage.DEPTH + 1
    assert place._copies.bytes <= 2 * values().nbytes
    assert np.array_equal(np.asarray(x), values(3 * lineage.DEPTH))


def test_a_loop_that_cannot_be_copied_says_so(monkeypatch: pytest.MonkeyPatch, place: RecoverableDevice) -> None:
    monkeypatch.setenv(lineage.MEMORY, "100")
    x = ag.asarray(values(), device=place)
    for _ in range(lineage.DEPTH + 1):
        x = (x + 1).compute()
    place.worker.kill()
    with pytest.raises(ag.errors.DeviceLost, match="100 bytes"):
        np.asarray(x)


def test_two_that_feed_each_other_are_cut_in_time(place: RecoverableDevice) -> None:
    a, b = ag.asarray(values(1), device=place), ag.asarray(values(1), device=place)
    for _ in range(150):
        a, b = b, ((a + b) / 2).compute()
        assert origin_of(b).depth <= lineage.DEPTH
        assert origin_of(b).nodes <= lineage.NODES
    place.worker.kill()
    assert np.array_equal(np.asarray(b), values(1))


def test_a_value_that_came_to_the_host_from_far_is_kept(place: RecoverableDevice) -> None:
    x = ag.asarray(values(), device=place)
    for _ in range(40):
        x = (x + 1).compute()
    assert origin_of(x).copy is None
    shown = np.asarray(x)
    copy = origin_of(x).copy
    assert copy is not None
    assert copy.values is not None
    assert not np.shares_memory(shown, copy.values)


def test_a_loop_over_batches_copies_its_state_and_not_all_batches(
    monkeypatch: pytest.MonkeyPatch, place: RecoverableDevice
) -> None:
    monkeypatch.setenv(lineage.MEMORY, "1MB")
    batch = np.ones((100, 250), np.float32)
    state = ag.asarray(values(), device=place)
    for _ in range(50):
        state = (state + ag.asarray(batch, device=place).sum(axis=0)).compute()
    assert place._copies.bytes <= 400_000
    place.worker.kill()
    assert np.array_equal(np.asarray(state), values(50 * 100))


def test_a_large_array_that_stays_costs_no_copies_of_what_is_made_of_it(
    monkeypatch: pytest.MonkeyPatch, place: RecoverableDevice
) -> None:
    monkeypatch.setenv(lineage.MEMORY, "200kB")
    data = ag.asarray(np.ones((100, 250), np.float32), device=place)
    state = data.sum(axis=0).compute()
    for _ in range(10):
        state = (state + data.sum(axis=0)).compute()
        assert origin_of(state).copy is None
    assert origin_of(state).depth == 11


def test_programs_of_a_loop_are_one_object(place: RecoverableDevice) -> None:
    x = ag.asarray(values(), device=place)
    recipes = []
    for _ in range(3):
        x = (x * 2).compute()
        recipes.append(origin_of(x).producer)
    assert len({id(recipe.program) for recipe in recipes if recipe is not None}) == 1


def test_arrays_that_are_gone_are_forgotten(place: RecoverableDevice) -> None:
    for _ in range(3000):
        place._tracked([place.worker.upload(values())][:1], [Lineage(SPEC)])
    gc.collect()
    assert len(place._arrays) < 2000
    assert place._live_buffers() == []


def test_large_values_are_not_copied_once_more(place: RecoverableDevice) -> None:
    large = np.arange(1 << 20, dtype=np.float32)
    x = ag.asarray(large, device=place)
    copy = origin_of(x).copy
    assert copy is not None
    assert copy.values is not None
    assert copy.values.base is not None, "it stands on the memory that it crossed in"
    worker = place.worker
    assert worker.shared_bytes >= large.nbytes  # type: ignore[attr-defined]
    large[:] = 0
    for _ in range(3):
        ag.asarray(large, device=place)
    place.worker.kill()
    assert np.array_equal(np.asarray(x), np.arange(1 << 20, dtype=np.float32))
    assert np.array_equal(np.asarray(x + 1), np.arange(1 << 20, dtype=np.float32) + 1)


def test_a_call_with_large_arguments_of_the_host_keeps_its_small_results(place: RecoverableDevice) -> None:
    batch = np.ones((1000, 250), np.float32)
    nodes = [Node(Input((250,), "float32")), Node(Input((1000, 250), "float32")), Node(Binary("add"), (0, 0))]
    small = ag.asarray(values(1), device=place)
    handle = small._value.buffer.ensure_resident()
    run = Program(nodes, [2])
    ran = place.worker.run(run, [handle, batch], keep=True)
    (result,) = place.track(run, [handle, batch], ran.results)
    assert result.lineage.producer is None
    assert result.lineage.copy is not None
    (tiny,) = place.track(run, [handle, batch[:0]], ran.results)
    assert tiny.lineage.producer is not None
    assert tiny.lineage.producer.inputs[0] is origin_of(small), "a handle that was lent is known again"


def gone(place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the worker, and let the device not be opened again, as when its machine has left."""

    def refuse() -> Worker:
        raise ag.DeviceUnavailable('on="numpy"', ["its machine has left."])

    place.worker.kill()
    monkeypatch.setattr(place, "_find_worker", refuse)


def test_arrays_of_a_device_that_is_gone_are_read_on_the_host(
    place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ag.asarray(values(2), device=place)
    low, high = x - 1, x * 3
    compute([low._value, high._value], place)
    both = (low + high).compute()
    gone(place, monkeypatch)
    assert np.array_equal(np.asarray(x), values(2))
    with pytest.warns(HostFallback, match="numpy is gone") as told:
        assert np.array_equal(np.asarray(both), values(7))
    assert len(told) == 1
    # The second time it has a copy.
    assert np.array_equal(np.asarray(both), values(7))
    with pytest.warns(HostFallback, match="numpy is gone"):
        assert np.array_equal(np.asarray(high), values(6))


def test_computing_goes_on_without_the_device_and_then_with_it(
    place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (ag.asarray(values(2), device=place) * 2).compute()
    find = place._find_worker
    gone(place, monkeypatch)
    with pytest.warns(HostFallback, match="numpy is gone"):
        y = (x + 1).compute()
    assert np.array_equal(np.asarray(y), values(5))
    assert y._value.buffer.handle is None
    monkeypatch.setattr(place, "_find_worker", find)
    assert np.array_equal(np.asarray((y + x).compute()), values(9))
    assert y._value.buffer.handle is not None


def test_nothing_new_goes_to_a_device_that_is_gone(place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    gone(place, monkeypatch)
    with pytest.raises(ag.DeviceUnavailable, match="its machine has left"):
        ag.asarray(values(), device=place)


def test_what_cannot_be_restored_on_the_host_says_why(
    place: RecoverableDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lineage.MEMORY, "100")
    x = (ag.asarray(values(), device=place) + 1).compute()
    gone(place, monkeypatch)
    with pytest.raises(ag.errors.DeviceLost, match="100 bytes"):
        np.asarray(x)
