"""Equal content is there once, wherever it came from; what is not quite equal is not."""

from __future__ import annotations

import numpy as np
import pytest

import anygpu as ag
from anygpu.store import HostBytes
from anygpu.store.deduplication import are_equal, fingerprint_of
from anygpu.store.tensor_files.header import content_hash
from tests.store.conftest import EVERY, MakeStore, in_blocks, in_use, some


def test_type_shape_and_sign_matter_and_order_in_memory_does_not(make_store: MakeStore) -> None:
    store = make_store()
    x = np.zeros((2, 6), np.float32)
    others = (x, x.reshape(3, 4), x.astype(np.int32), -x, x + np.float32(np.nan), np.zeros((0, 3)), np.zeros(()))
    for number, values in enumerate(others):
        store.put(f"t{number}", values)
    assert store.statistics().contents == 7
    store.put("in another order", x.T.copy().T)
    assert store.statistics().contents == 7


def test_a_hash_that_somebody_tells_is_not_believed(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    told = content_hash(some(1))
    liar = store._put_host("liar", HostBytes(some(2), "file"), claimed_hash=told)
    honest = store._put_host("honest", HostBytes(some(1), "file"), claimed_hash=told)
    store.put("again", some(1))
    assert np.array_equal(honest.host(), some(1))
    assert np.array_equal(liar.host(), some(2))
    before = store.statistics().contents
    twin = store._put_host("twin", HostBytes(some(1), "file"), claimed_hash=told)
    assert np.array_equal(twin.host(), some(1))
    assert store.statistics().contents == before


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "bool", "int32", "float16", "complex64"])
@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_fingerprints_tell_contents_apart(device: str, dtype: str) -> None:
    values = some(1, 50, 3).astype(dtype)
    x, same = ag.asarray(values, device=device), ag.asarray(values, device=device)
    assert fingerprint_of(x) == fingerprint_of(same)
    assert are_equal(x, same)
    for other in (values[::-1], np.roll(values, 1), np.roll(values, 1, axis=1)):
        array = ag.asarray(np.ascontiguousarray(other), device=device)
        if not np.array_equal(other, values):
            assert fingerprint_of(x) != fingerprint_of(array)
            assert not are_equal(x, array)


@pytest.mark.parametrize("device", EVERY)
def test_equal_content_is_on_the_device_once(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    before = in_use(store.device)
    store.put("from the host", some(1))
    store.put("again", some(1).copy())
    on_device = ag.asarray(some(1), device=device)
    store.put("from the device", on_device)
    store.put("computed", on_device * 2 / 2)
    store.put("other", on_device + 1)
    del on_device
    now = store.statistics()
    assert (now.tensors, now.contents, now.device_bytes) == (5, 2, 2 * some(1).nbytes)
    assert now.bytes_saved == 3 * some(1).nbytes
    if device in ("opencl", "webgpu"):
        assert in_use(store.device) - before == in_blocks(some(1).nbytes, some(1).nbytes)


def test_zeros_of_both_signs_and_nans_are_not_merged_on_the_device(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    for number, values in enumerate((np.zeros(8, np.float32), -np.zeros(8, np.float32))):
        tensor = store.put(f"zeros {number}", ag.asarray(values, device="opencl"))
        assert np.array_equal(np.signbit(tensor.host()), np.signbit(values))
    assert store.statistics().contents == 2
    for number in range(2):
        store.put(f"nans {number}", ag.asarray(np.full(8, np.nan, np.float32), device="opencl"))
    assert store.statistics().contents == 4


def test_equal_ones_are_found_again_after_they_were_written_to(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    one, other = store.put("one", some(1)), store.put("other", some(1))
    other += 1
    assert store.statistics().contents == 2
    other -= 1
    report = store.optimise()
    # 100 + 1 - 1 is not always 100 in float32, so both outcomes are told apart by the values.
    same = np.array_equal(one.host(), other.host())
    assert (len(report.deduplicated) == 1) is same
    other[...] = one
    assert store.optimise().deduplicated or same
    assert store.statistics().contents == 1
    assert np.array_equal(other.host(), some(1))


def test_without_hash_nothing_is_compared(make_store: MakeStore) -> None:
    store = make_store(hash=False)
    store.put("one", some(1))
    store.put("other", some(1))
    assert store.statistics().contents == 2
    store.put("third", some(1), hash=True)
    assert store.optimise().deduplicated == ()
