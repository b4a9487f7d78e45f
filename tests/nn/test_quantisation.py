"""Weights in few bits: how far from what they were, how small, and on every engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anygpu as ag
from anygpu import nn
from anygpu.array.core.array import Array
from tests.nn.on_engines import ENGINES, close, np, numbers, on

#: Half a step, and what float32 rounds on the way there and back.
HALF = 0.5 + 1e-4

WAYS = [(bits, axis, symmetric) for bits in (8, 4) for axis in (None, 0, 1) for symmetric in (True, False)]

#: Each choice at least once, where every program has to be compiled.
FEW_WAYS = [(8, None, True), (8, 0, True), (8, 1, False), (4, 0, True), (4, None, False)]


def steps(q: nn.Quantised) -> Any:
    """The scale at each place of the array."""
    scale = np.asarray(q.scale)
    if q.axis is None:
        return np.broadcast_to(scale, q.shape)
    ends = [-1 if axis == q.axis else 1 for axis in range(q.ndim)]
    return np.broadcast_to(scale.reshape(ends), q.shape)


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 10_000),
    size=st.sampled_from((1e-38, 1e-20, 1e-3, 1.0, 1e6, 3e37)),
    shift=st.sampled_from((0.0, 0.5, -5.0)),
    bits=st.sampled_from((8, 4)),
    symmetric=st.booleans(),
    data=st.data(),
)
@settings(max_examples=300)
def test_nothing_moves_further_than_half_a_step(
    shape: tuple[int, ...], seed: int, size: float, shift: float, bits: int, symmetric: bool, data: st.DataObject
) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    x = ((numbers(*shape, seed=seed, dtype="float64") + shift) * size).clip(-3e38, 3e38).astype("float32")
    x[seed % shape[0]] = 0
    q = nn.quantise(x, bits=bits, axis=axis, symmetric=symmetric)
    back = nn.dequantise(q)
    assert back.shape == x.shape
    assert back.dtype == np.float32
    assert (np.abs(back.astype("float64") - x) <= HALF * steps(q).astype("float64")).all()
    assert (back[x == 0] == 0).all()
    assert q.nbytes == q.data.nbytes + q.scale.nbytes + (0 if symmetric else q.zero.nbytes)
    assert (q.shape, q.ndim, q.size, q.dtype, q.bits) == (x.shape, x.ndim, x.size, np.float32, bits)
    assert (q.zero is None) == symmetric
    assert type(q.scale) is np.ndarray


@given(seed=st.integers(0, 10_000), bits=st.sampled_from((8, 4)))
@settings(max_examples=60)
def test_what_was_quantised_once_stays(seed: int, bits: int) -> None:
    back = nn.dequantise(nn.quantise(numbers(4, 9, seed=seed), bits=bits, axis=0))
    close(nn.dequantise(nn.quantise(back, bits=bits, axis=0)), back, 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("bits", "axis", "symmetric"), FEW_WAYS)
@pytest.mark.sampled(gate=12, full=2)
def test_on_engines(engine: str, bits: int, axis: int | None, symmetric: bool) -> None:
    """Made there and multiplied with there: the numbers are NumPy's, the products those of the array it stands for."""
    x, weight = numbers(2, 3, 13), numbers(6, 13, seed=1)
    q = nn.quantise(weight, bits=bits, axis=axis, symmetric=symmetric)
    there = nn.quantise(on(engine, weight), bits=bits, axis=axis, symmetric=symmetric)
    assert all(isinstance(each, Array) for each in (there.data, there.scale))
    assert np.asarray(there.data).dtype == q.data.dtype
    close(there.scale, q.scale, 1e-6)
    back = nn.dequantise(q)
    # A number just between two steps may go to either, where a device divides by another last digit.
    assert (np.abs(np.asarray(nn.dequantise(there)) - weight) <= HALF * steps(q)).all()
    moved = nn.Quantised(
        on(engine, q.data), on(engine, q.scale), None if q.zero is None else on(engine, q.zero), bits, q.shape, q.axis
    )
    close(nn.dequantise(moved), back, 1e-6)
    close(nn.linear(on(engine, x), moved, on(engine, weight[:, 0].copy())), x @ back.T + weight[:, 0], 5e-6)
    close(nn.quantised_matmul(on(engine, x[..., :6].copy()), moved), x[..., :6] @ back, 5e-6)
    close(nn.embedding(moved, np.array([[5, 0], [-1, 2]])), back[np.array([[5, 0], [-1, 2]])], 1e-6)


def test_on_numpy() -> None:
    x, weight = numbers(2, 3, 13), numbers(6, 13, seed=1)
    for bits, axis, symmetric in WAYS:
        q = nn.quantise(weight, bits=bits, axis=axis, symmetric=symmetric)
        back = nn.dequantise(q)
        for result, wanted in (
            (nn.linear(x, q), x @ back.T),
            (nn.quantised_matmul(x[..., :6], q), x[..., :6] @ back),
            (nn.embedding(q, [5, -1]), back[[5, -1]]),
        ):
            assert type(result) is np.ndarray
            close(result, wanted, 5e-6)


def test_types_of_products() -> None:
    q = nn.quantise(numbers(6, 8), axis=0)
    for kind, wanted in (("float16", "float16"), ("float64", "float64"), ("int32", "float32")):
        x = np.ones((2, 8), kind)
        assert nn.linear(x, q).dtype == wanted
        assert nn.linear(on("numpy", x), q).dtype == wanted


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("bits", [8, 4])
def test_as_an_argument_of_offloaded_functions(engine: str, bits: int) -> None:
    def layer(x: Any, weight: Any) -> Any:
        return nn.relu(nn.linear(x, weight))

    x, weight = numbers(4, 16), numbers(8, 16, seed=1)
    q = nn.quantise(weight, bits=bits, axis=0)
    offloaded = ag.offload(on=engine)(layer)
    close(offloaded(x, q), layer(x, nn.dequantise(q)), 5e-6)
    close(offloaded(x, weight), layer(x, weight), 5e-6)


def test_returned_by_an_offloaded_function() -> None:
    weight = numbers(8, 16)
    q = ag.offload(on="torch")(lambda w: nn.quantise(w, bits=4, axis=0))(weight)
    assert isinstance(q, nn.Quantised)
    assert type(q.data) is np.ndarray
    assert (q.bits, q.shape, q.axis, q.zero) == (4, (8, 16), 0, None)


def test_parts_in_a_store() -> None:
    """Tensors are arrays: weights that a store keeps are used and quantised as they are, and so are the parts."""
    x, weight = numbers(4, 16), numbers(8, 16, seed=1)
    store = ag.Store(device="numpy")
    try:
        kept = store.put("weight", weight, owner="a model")
        close(nn.linear(x, kept), x @ weight.T, 5e-6)
        q = nn.quantise(kept, axis=0)
        data, scale = (store.put(f"weight.{name}", getattr(q, name), owner="a model") for name in ("data", "scale"))
        tensors = nn.Quantised(data, scale, None, q.bits, q.shape, q.axis)
        assert tensors.nbytes == 8 * 16 + 8 * 4
        wanted = x @ np.asarray(nn.dequantise(q)).T
        close(nn.linear(x, tensors), wanted, 5e-6)
        close(ag.offload(on="torch")(nn.linear)(x, tensors), wanted, 5e-6)
    finally:
        store.close()


def test_memory() -> None:
    """What is stated in docs/reference/nn.md: relative to float32."""
    weight = numbers(384, 1536)
    for bits, most in ((8, 0.2510), (4, 0.1260)):
        assert nn.quantise(weight, bits=bits, axis=0).nbytes <= most * weight.nbytes
    odd = nn.quantise(numbers(3, 7), bits=4)
    assert odd.data.shape == (3, 4)
    assert odd.data.dtype == np.uint8
    close(nn.dequantise(odd).shape, (3, 7), 0)


def test_error() -> None:
    """What is stated in docs/reference/nn.md, for normally distributed weights: relative to their own size."""
    weight = numbers(384, 384)
    for bits, axis, most in ((8, None, 0.011), (8, 0, 0.0075), (4, None, 0.20), (4, 0, 0.135)):
        lost = nn.dequantise(nn.quantise(weight, bits=bits, axis=axis)) - weight
        assert np.sqrt((lost**2).mean() / (weight**2).mean()) <= most, (bits, axis)


def test_empty_and_constant() -> None:
    for shape, axis in (((0, 4), None), ((0, 4), 1), ((3, 0), 0), ((3, 0), None)):
        q = nn.quantise(np.ones(shape, "float32"), axis=axis)
        assert nn.dequantise(q).shape == shape
    close(nn.dequantise(nn.quantise(np.zeros((2, 3)))), np.zeros((2, 3), "float32"), 0)
    close(nn.dequantise(nn.quantise(np.full((2, 3), 7.0), bits=4)), np.full((2, 3), 7, "float32"), 1e-6)
    close(nn.dequantise(nn.quantise(np.full((2, 3), 7.0), symmetric=False)), np.full((2, 3), 7, "float32"), 1e-6)


def test_what_does_not_fit_is_said() -> None:
    weight = numbers(6, 8)
    with pytest.raises(ValueError, match="bits is 8 or 4, not 3"):
        nn.quantise(weight, bits=3)
    with pytest.raises(TypeError, match="real numbers, not complex64"):
        nn.quantise(weight + 1j)
    with pytest.raises(ValueError, match="at least one axis"):
        nn.quantise(np.float32(3))
    with pytest.raises(np.exceptions.AxisError):
        nn.quantise(weight, axis=2)
    q = nn.quantise(weight, axis=0)
    with pytest.raises(ValueError, match=r"\[out, in\] do not fit: the shapes are \(3, 6\) and \(6, 8\)"):
        nn.linear(np.ones((3, 6)), q)
    with pytest.raises(ValueError, match=r"\[in, out\] do not fit"):
        nn.quantised_matmul(np.ones((3, 8)), q)
    with pytest.raises(ValueError, match="has two axes"):
        nn.quantised_matmul(np.ones(3), nn.quantise(np.ones(3)))
    with pytest.raises(TypeError, match="ids are integers"):
        nn.embedding(q, np.ones(2))
    with pytest.raises(ValueError, match="at least two axes"):
        nn.embedding(nn.quantise(np.ones(3)), [0])
