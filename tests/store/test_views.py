"""Views: with copy="never" no byte is copied, shown by the counters of the store and of the engine, or the error."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from anygpu.errors import CopyNeeded, InvalidOption, UnknownTensor
from tests.store.conftest import COUNTING, EVERY, MakeStore, in_blocks, in_use, some

SHAPE = (6, 8, 10)
EVERYTHING = slice(None)

#: An index, a shape, and whether it is a run of elements, and whether NumPy gives a view.
LOOKS: dict[str, tuple[Any, Any, bool, bool]] = {
    "all": (None, None, True, True),
    "rows": (slice(2, 4), None, True, True),
    "one row": (3, None, True, True),
    "last row": (-1, None, True, True),
    "one element": ((5, 7, 9), None, True, True),
    "in a row": ((2, slice(3, 5)), None, True, True),
    "inside": ((2, 3, slice(1, 4)), None, True, True),
    "dots": ((..., slice(0, 3)), None, False, True),
    "new axis": ((None, slice(1, 3)), None, True, True),
    "nothing": (slice(3, 3), None, True, True),
    "columns": ((EVERYTHING, 2), None, False, True),
    "block": ((slice(1, 3), slice(2, 4)), None, False, True),
    "every second": (slice(None, None, 2), None, False, True),
    "backwards": (slice(None, None, -1), None, False, True),
    "flat": (None, -1, True, True),
    "other shape": (None, (12, -1), True, True),
    "rows, flat": (slice(1, 5), (4, 80), True, True),
    "columns, flat": ((EVERYTHING, slice(0, 2)), -1, False, False),
    "block, as it is": ((EVERYTHING, slice(0, 2)), (6, 2, 10), False, True),
    "positions": ([3, 1], None, False, False),
    "a mask": (np.arange(6) % 2 == 0, None, False, False),
}


def expected(values: np.ndarray[Any, Any], index: Any, shape: Any) -> np.ndarray[Any, Any]:
    found = values if index is None else values[index]
    return found if shape is None else found.reshape(shape)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("device", EVERY)
def test_no_byte_is_copied_or_the_error(make_store: MakeStore, device: str, dtype: str) -> None:
    store = make_store(device=device)
    values = some(1, *SHAPE, dtype=dtype)
    tensor = store.put("t", values)
    tensor.compute()
    for name, (index, shape, is_run, is_strided) in LOOKS.items():
        copies, memory = store.statistics().copies, in_use(store.device)
        wanted = expected(values, index, shape)
        free = {"numpy": is_strided, "cpu": is_strided, "torch:cpu": is_strided and name != "backwards"}.get(
            device, is_run
        )
        if device == "jax":
            free = name == "all" or not wanted.size
        if not free:
            with pytest.raises(CopyNeeded, match=r"'t' would have to be copied"):
                store.view("t", index, shape=shape, copy="never")
            assert store.statistics().copies == copies
            view = store.view("t", index, shape=shape)
            after = store.statistics().copies
            assert after["on_device"].count == copies["on_device"].count + 1, name
            assert after["on_device"].bytes == copies["on_device"].bytes + wanted.nbytes
        else:
            view = store.view("t", index, shape=shape, copy="never")
            assert store.statistics().copies == copies, name
            if device in COUNTING and wanted.size:
                assert in_use(store.device) == memory, name
            elif device != "jax" and wanted.size:
                assert np.shares_memory(view._host(), tensor.host()), name
        assert np.array_equal(np.asarray(view), wanted), name
        del view


@pytest.mark.parametrize("device", ["numpy", "opencl", "webgpu"])
def test_a_view_keeps_its_base_alive(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    before = in_use(store.device)
    values = some(1, 64, 64)
    tensor = store.put("t", values)
    view = tensor.view(slice(3, 5), copy="never")
    deeper = view[1:]
    store.release("t")
    now = store.statistics()
    assert (now.device_bytes, now.lingering_bytes) == (0, values.nbytes)
    assert np.array_equal(np.asarray(view), values[3:5])
    assert np.array_equal(np.asarray(deeper + 1), values[4:5] + 1)
    if device in COUNTING:
        assert in_use(store.device) - before == in_blocks(values.nbytes)
    with pytest.raises(UnknownTensor):
        view[0] = 1
    del view, deeper
    gc.collect()
    assert store.statistics().lingering_bytes == 0
    with pytest.raises(UnknownTensor):
        tensor + 1


@pytest.mark.parametrize("device", ["numpy", "opencl"])
def test_what_is_written_into_a_view_is_seen_in_the_tensor_and_back(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    values = some(1, 6, 8)
    tensor = store.put("t", values)
    view = tensor.view(slice(2, 4), shape=-1)
    view[3] = 5
    values[2:4].reshape(-1)[3] = 5
    assert np.array_equal(tensor.host(), values)
    tensor *= 2
    assert np.array_equal(np.asarray(view), values[2:4].reshape(-1) * 2)
    store.put("t", some(2, 6, 8))
    assert np.array_equal(np.asarray(view), some(2, 6, 8)[2:4].reshape(-1))
    assert tensor.version == 3


def test_other_types_and_devices_are_copies(make_store: MakeStore) -> None:
    store = make_store(device="opencl")
    tensor = store.put("t", some(1))
    with pytest.raises(CopyNeeded, match="float32, and float16 was asked for"):
        tensor.view(dtype=np.float16, copy="never")
    with pytest.raises(CopyNeeded, match="another device was asked for"):
        tensor.view(slice(2), device="numpy", copy="never")
    assert store.statistics().copies["on_device"].count == 0
    assert np.array_equal(np.asarray(tensor.view(slice(2), dtype=np.int32)), some(1)[:2].astype(np.int32))
    there = tensor.view(slice(2), device="numpy")
    copies = store.statistics().copies
    assert there.device == "numpy"
    assert (copies["on_device"].bytes, copies["to_host"].bytes) == (2 * 64 * 4, 2 * 64 * 4)
    with pytest.raises(InvalidOption):
        tensor.view(copy="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not fit"):
        tensor.view(shape=(3, -1))


def test_what_has_left_the_device_would_be_copied_there(make_store: MakeStore) -> None:
    store = make_store(device="opencl", budget=some(1).nbytes)
    tensor = store.put("t", some(1))
    store.put("other", some(2))
    with pytest.raises(CopyNeeded, match="it is on the host now"):
        tensor.view(slice(2), copy="never")
    store.synchronise("t", "device")
    assert tensor.view(slice(2), copy="never").shape == (2, 64)
