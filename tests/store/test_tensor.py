"""A tensor is an array: in NumPy's functions, in offloaded ones, beside other arrays, and when it is written to."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import anygpu as ag
from anygpu.store import Tensor
from tests.store.conftest import EVERY, MakeStore, some


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("device", EVERY)
def test_usable_wherever_an_array_is(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    x, w = some(1, 8, 16), some(2, 16, 4)
    a, b = store.put("x", x), store.put("w", w)
    assert isinstance(a, ag.Array)
    for found, wanted in (
        (a @ b, x @ w),
        (np.tanh(a).mean(axis=0), np.tanh(x).mean(axis=0)),
        (a.sum(), x.sum()),
        (2 * a - a, x),
        (np.concatenate([a, a]), np.concatenate([x, x])),
        (a[2:4, ::3], x[2:4, ::3]),
        (a[[3, 1]], x[[3, 1]]),
        (a.T.reshape(-1), x.T.reshape(-1)),
        (np.where(a > 0, a, 0), np.where(x > 0, x, 0)),
    ):
        assert isinstance(found, ag.Array)
        assert found.device == store.device
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-2)
    assert float(a[0, 0]) == x[0, 0]
    assert np.array_equal(np.asarray(a), x)
    assert np.array_equal(pickle.loads(pickle.dumps(a)), x)
    assert np.array_equal(copy.deepcopy(a), x)
    assert repr(a) == f"Tensor('x', shape=(8, 16), dtype=float32, device={store.device}, on device)"


@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_a_call_finds_it_on_the_device_and_leaves_the_result_there(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    x, w = some(1, 8, 16), some(2, 16, 4)
    a, b = store.put("x", x), store.put("w", w)
    result = ag.run(lambda p, q: np.tanh(p @ q), a, b, on=device)
    assert isinstance(result.value, ag.Array)
    assert (result.receipt.bytes_to_device, result.receipt.bytes_to_host) == (0, 0)
    hidden = store.put("hidden", result.value)
    again = ag.run(lambda h: h.sum(axis=0), hidden, on=device)
    assert (again.receipt.bytes_to_device, again.receipt.bytes_to_host) == (0, 0)
    np.testing.assert_allclose(np.asarray(again.value), np.tanh(x @ w).sum(axis=0), rtol=1e-4, atol=1e-3)

    @ag.offload
    def around(p: ag.Array) -> ag.Array:
        return p @ b

    np.testing.assert_allclose(np.asarray(around(a)), x @ w, rtol=1e-4, atol=1e-1)
    b += 1
    np.testing.assert_allclose(np.asarray(around(a)), x @ (w + 1), rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_what_is_written_is_seen_by_all_who_share_it_and_by_nobody_else(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    one = store.put("one", some(1), owner="text")
    twin = store.put("twin", some(1), owner="image")
    shared = store.share("one", with_=["search"])
    assert store.statistics().contents == 1
    before = one * 1
    one[3:5] = 7
    one += 1
    expected = some(1)
    expected[3:5] = 7
    expected += 1
    assert np.array_equal(shared.host(), expected)
    assert np.array_equal(twin.host(), some(1))
    assert np.array_equal(np.asarray(before), some(1))
    assert (one.version, twin.version) == (2, 0)
    assert store.statistics().contents == 2


def test_results_are_placed_by_name(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    t = store.put("t", some(1))
    before = store.statistics()
    doubled = store.put("doubled", t * 2)
    after = store.statistics()
    assert isinstance(doubled, Tensor)
    assert after.copies == before.copies
    assert np.array_equal(doubled.host(), some(1) * 2)


def test_what_may_be_put(make_store: MakeStore) -> None:
    import torch

    store = make_store(device="opencl")
    x = some(1, 4, 4)
    other = make_store(device="numpy")
    sources = [
        x,
        x.tolist(),
        x.T,
        x.astype(">f4"),
        np.float32(3),
        torch.from_numpy(x),
        ag.asarray(x, device="numpy"),
        ag.asarray(x, device="opencl"),
        ag.asarray(x, device="opencl")[1:3],
        ag.asarray(x, device="opencl").T,
        other.put("x", x),
        np.zeros((0, 3)),
        x > 0,
        x.astype(np.complex64),
        x.astype(np.int8),
    ]
    for number, source in enumerate(sources):
        tensor = store.put(f"t{number}", source)
        assert np.array_equal(tensor.host(), np.asarray(source))
    with pytest.raises(TypeError):
        store.put("words", np.array(["a"]))


def test_the_users_own_memory_is_not_shared(make_store: MakeStore) -> None:
    import torch

    store = make_store(device="numpy")
    x, y = some(1), torch.ones(5)
    a, b = store.put("a", x), store.put("b", y)
    x[:] = 0
    y[:] = 0
    assert np.array_equal(a.host(), some(1))
    assert b.host().tolist() == [1] * 5
    with pytest.raises(ValueError, match="read-only"):
        a.host()[0] = 1


def test_facts_bring_nothing(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=some(1).nbytes)
    first = store.put("first", some(1))
    store.put("second", some(2))
    assert first.tier == "host"
    before = store.statistics()
    facts = (first.shape, first.dtype, first.ndim, first.size, first.nbytes, first.itemsize, first.device, first.owner)
    assert facts == ((64, 64), np.dtype(np.float32), 2, 4096, 16384, 4, "opencl:0", "main")
    assert (len(first), first.tier, first.dirty, repr(first)[:15]) == (64, "host", False, "Tensor('first',")
    assert np.array_equal(first.host(), some(1))
    assert store.statistics() == before


def _is_dirty(tensor: Tensor) -> bool:
    return tensor.dirty


def test_synchronise_in_both_directions(make_store: MakeStore) -> None:
    store = make_store(device="opencl", mode="memory")
    tensor = store.put("a", some(1))
    assert _is_dirty(tensor)
    store.synchronise("a", "host")
    copies = store.statistics().copies
    assert (copies["to_host"].count, copies["to_host"].bytes) == (1, tensor.nbytes)
    assert not _is_dirty(tensor)
    store.synchronise("a", "host")
    tensor.host()
    assert store.statistics().copies == copies
    tensor += 1
    assert _is_dirty(tensor)
    store.synchronise("a", "host")
    assert store.statistics().copies["to_host"].count == 2
    store.synchronise("a", "device")
    assert store.statistics().copies["to_device"].count == 1
    assert np.array_equal(tensor.host(), some(1) + 1)
