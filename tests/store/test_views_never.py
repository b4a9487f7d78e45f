"""`copy="never"` on every kind of view: the engine has copied nothing, as it counts itself, or there is the error."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

from anygpu.errors import CopyNeeded
from anygpu.store import Store, Tensor
from anygpu.workers.device_arrays.lineage import TrackedBuffer
from anygpu.workers.device_arrays.registry import registry
from tests.store.conftest import COUNTING, EVERY, MakeStore

Values = np.ndarray[Any, Any]

DTYPES = ("bool", "int8", "uint8", "int16", "float16", "int32", "uint32", "float32", "int64", "float64", "complex64")
SHAPES = ((), (0,), (3, 0), (1,), (7,), (64,), (5, 7), (4, 1, 6), (3, 4, 5))


def indices(shape: tuple[int, ...]) -> list[Any]:
    """Every offset and every step that makes a difference, and several axes at once."""
    if not shape:
        return [None, ()]
    rows = shape[0]
    found: list[Any] = [None, slice(None), slice(0, 0)]
    found += [slice(None, None, -1), slice(None, None, 2), slice(rows, None, -3)]
    found += [slice(start, None) for start in range(min(rows, 9))]
    found += [slice(start, start + 1) for start in range(0, rows, 3)]
    if rows:
        found += [0, -1, (..., None), (slice(1, None), None)]
    if len(shape) > 1 and shape[1]:
        found += [(slice(None), 0), (0, slice(1, None)), (slice(1, 3), slice(0, 2)), (-1, slice(None, None, -1))]
        found += [(slice(None, 1), slice(1, 3)), (slice(1, 2), slice(None, None, 2))]
    if len(shape) > 2:
        found += [(1, 0), (1, 0, slice(1, 3)), (slice(None), 0, slice(None)), (..., 1), (1, slice(None), 2)]
    return found


def shapes(values: Values) -> list[Any]:
    found: list[Any] = [None, -1, (1, *values.shape)]
    if values.ndim > 1:
        found += [values.shape[::-1]]
    return found


def pointer(store: Store, tensor: Any) -> int:
    """Where the engine has the elements, for engines of this process."""
    value = tensor._value
    buffer = value.buffer.buffer
    if isinstance(buffer, np.ndarray):
        return int(buffer.__array_interface__["data"][0])
    if hasattr(buffer, "unsafe_buffer_pointer"):
        return int(buffer.unsafe_buffer_pointer())
    return int(buffer.data_ptr())


class Witness:
    """What the engine has done, by its own account."""

    def __init__(self, store: Store, tensor: Tensor) -> None:
        self.store, self.tensor = store, tensor
        self.counts = store.device.partition(":")[0] in COUNTING
        self.before = self.now()

    def now(self) -> int:
        return registry.worker(self.store.device).memory().in_use or 0 if self.counts else 0

    def has_seen_no_copy(self, view: Any, values: Values, wanted: Values) -> bool:
        if not wanted.size:
            return True
        if self.counts:
            # No new memory, and the same elements behind another handle.
            buffer = view._value.buffer
            assert isinstance(buffer, TrackedBuffer)
            return self.now() <= self.before
        start = values.__array_interface__["data"][0]
        # NumPy says where the elements of the view lie in the base; the engine has to have them there too.
        offset = wanted.__array_interface__["data"][0] - start
        return bool(pointer(self.store, view) - pointer(self.store, self.tensor) == offset)


def expected(values: Values, index: Any, shape: Any) -> Values:
    key = index if isinstance(index, tuple) else (index,)
    # With dots NumPy gives an array also for one element.
    found: Values = values if index is None else values[key if any(each is ... for each in key) else (*key, ...)]
    return found if shape is None else found.reshape(shape)


def check(store: Store, tensor: Tensor, values: Values, *, every: int) -> tuple[int, int]:
    """How many views cost nothing, and how many would have cost a copy."""
    free = refused = 0
    witness = Witness(store, tensor)
    for number, index in enumerate(indices(values.shape)):
        for shape in shapes(expected(values, index, None)):
            if every > 1 and shape is not None and number % every:
                continue
            wanted = expected(values, index, shape)
            copies = store.statistics().copies
            try:
                view = tensor.view(index, shape=shape, copy="never")
            except CopyNeeded:
                refused += 1
                assert store.statistics().copies == copies
                continue
            free += 1
            assert store.statistics().copies == copies
            assert witness.has_seen_no_copy(view, values, wanted), f"{values.dtype}{values.shape}[{index}] as {shape}"
            assert np.array_equal(np.asarray(view), wanted), f"{values.dtype}{values.shape}[{index}] as {shape}"
            del view
    return free, refused


def some(shape: tuple[int, ...], dtype: str) -> Values:
    return np.array(np.random.default_rng(5).integers(0, 100, shape)).astype(dtype)


@pytest.mark.full
@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("device", EVERY)
def test_every_view_of_every_type(make_store: MakeStore, device: str) -> None:
    store = make_store(device=device)
    slow = device in COUNTING
    free = refused = 0
    for number, (shape, dtype) in enumerate(itertools.product(SHAPES, DTYPES)):
        if number % {"opencl": 4, "webgpu": 10, "jax": 10}.get(device, 3):
            continue
        values = some(shape, dtype)
        tensor = store.put("t", values)
        more = check(store, tensor, values, every=5 if slow else 1)
        free, refused = free + more[0], refused + more[1]
        store.release("t")
    assert free > 50
    assert refused > 20


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("device", EVERY)
def test_also_what_a_program_has_left(make_store: MakeStore, device: str) -> None:
    """Engines may leave results in other orders than that of their elements, or one number for many of them."""
    store = make_store(device=device)
    values = some((6, 8), "float32")
    transposed = np.ascontiguousarray(values.T)
    put = store.put("put", values)
    made = {
        "product": (store.put("product", put.T * 2), transposed * 2),
        "transposed": (store.put("transposed", put.T), transposed),
        "part": (store.put("part", put[1:4, 2:5]), np.ascontiguousarray(values[1:4, 2:5])),
        "one number": (store.put("one number", values * 0), values * 0),
    }
    made["one number"][0][...] = 3
    made["one number"][1][...] = 3
    for tensor, wanted in made.values():
        tensor.compute()
        assert np.array_equal(tensor.host(), wanted)
        check(store, tensor, wanted, every=5 if device in COUNTING else 1)
    gc.collect()
