"""What the machine of `tests.store.machine` has found once, each as short as it can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import UnknownTensor
from tests.store.conftest import MakeStore, in_use, some

SIZE = 1 << 14  # of `some(…)`


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_what_is_leased_stays_on_the_device_with_another_content(
    make_store: MakeStore, device: str, tmp_path: Path
) -> None:
    store = make_store(device=device)
    tensor = store.put("t", some(1))
    store.save(tmp_path / "t.safetensors")
    store.put("t", some(2))
    lease = store.lease("t")
    store.open(tmp_path / "t.safetensors")
    assert tensor.tier == "device"
    assert np.array_equal(tensor.host(), some(1))
    lease.release()


def test_what_is_leased_stays_on_the_device_when_it_is_merged(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=SIZE)
    evicted = store.put("evicted", some(1))
    leased = store.put("leased", some(2))
    with store.lease("leased"):
        leased[...] = some(1)
        store.synchronise("leased", "host")
        assert evicted.tier == "host"
        assert store.optimise().deduplicated
        assert leased.tier == "device"
    assert np.array_equal(evicted.host(), some(1))


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_a_view_looks_again_at_what_was_released_on_the_host(
    make_store: MakeStore, device: str, tmp_path: Path
) -> None:
    store = make_store(device=device)
    store.put("t", some(2))
    store.save(tmp_path / "t.safetensors")
    view = store.put("t", some(1)).view(slice(3, 5))
    store.open(tmp_path / "t.safetensors")  # what the view has to look at now is in the file
    store.release("t")
    assert np.array_equal(np.asarray(view), some(2)[3:5])


@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_a_constant_that_is_written_is_where_the_array_is(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    tensor = store.put("t", some(1))
    view = tensor.view(slice(0, 2))
    view[...] = np.float32(3)
    assert view.device == store.device
    assert np.asarray(view)[0, 0] == 3
    view += np.float32(1)
    assert tensor.host()[1, 1] == 4
    array = ag.asarray(some(1), device=device)
    array[...] = 5
    assert array.device == store.device


@pytest.mark.parametrize("device", ["numpy", "torch:cpu"])
def test_results_in_another_order_are_put_in_order(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    array = ag.asarray(some(1), device=device)
    tensor = store.put("t", array.T * 2)
    view = tensor.view(shape=-1, copy="never")
    assert np.shares_memory(view._host(), tensor.host())
    assert np.array_equal(np.asarray(view), (some(1).T * 2).reshape(-1))
    tensor[...] = 3  # one number for all elements
    view[0] = 4
    assert tensor.host()[0, 0] == 4


def test_an_array_that_is_put_twice_is_counted_once(make_store: MakeStore) -> None:
    store = make_store(device="opencl", hash=False)
    before = in_use(store.device)
    array = ag.asarray(some(1), device="opencl")
    store.put("one", array)
    store.put("two", array)
    now = store.statistics()
    assert (now.contents, now.device_bytes) == (1, in_use(store.device) - before)


def test_nothing_keeps_no_base_alive(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    before = in_use(store.device)
    store.put("nothing", ag.asarray(some(1), device="opencl")[3:3])
    assert in_use(store.device) - before < SIZE


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_to_read_a_tensor_on_the_host_moves_nothing(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device, budget=SIZE)
    tensor = store.put("t", some(1))
    store.put("other", some(2))
    assert tensor.tier == "host"
    assert np.array_equal(np.asarray(tensor), some(1))
    assert tensor.tier == "host"


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_a_released_tensor_with_a_view_is_unknown_to_numpy(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    tensor = store.put("t", some(1))
    view = tensor.view(slice(3, 5))
    store.release("t")
    with pytest.raises(UnknownTensor):
        np.asarray(tensor)
    assert np.array_equal(np.asarray(view), some(1)[3:5])
