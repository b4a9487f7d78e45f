"""Activations, norms, products and pooling, against torch on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import anygpu as ag
from anygpu import nn
from anygpu.array.trace.tracing import record
from anygpu.engines.numpy import lowering
from anygpu.program.primitives import Spec
from anygpu.program.transforms import vmap
from tests.nn.on_engines import ENGINES, agree, close, np, numbers, on

ELEMENTWISE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softmax": (nn.softmax, lambda x: functional.softmax(x, -1)),
    "softmax of columns": (lambda x: nn.softmax(x, 0), lambda x: functional.softmax(x, 0)),
    "log_softmax": (nn.log_softmax, lambda x: functional.log_softmax(x, -1)),
    "relu": (nn.relu, functional.relu),
    "silu": (nn.silu, functional.silu),
    "gelu": (nn.gelu, functional.gelu),
    "gelu by tanh": (lambda x: nn.gelu(x, approximate=True), lambda x: functional.gelu(x, approximate="tanh")),
    "layer_norm": (nn.layer_norm, lambda x: functional.layer_norm(x, x.shape[-1:])),
    "rms_norm": (nn.rms_norm, lambda x: functional.rms_norm(x, x.shape[-1:], eps=1e-6)),
}


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_against_torch(engine: str, name: str) -> None:
    ours, theirs = ELEMENTWISE[name]
    x = 4 * numbers(3, 7, 13)
    x[0, 0, :3] = 100, -100, 0
    agree(engine, ours, x, wanted=theirs(torch.from_numpy(x)).numpy())


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_types(name: str) -> None:
    """Half precision stays half, and is rounded once; double stays double; whole numbers are floats afterwards."""
    ours, theirs = ELEMENTWISE[name]
    x = numbers(5, 6)
    half = agree("numpy", ours, x.astype("float16"), tolerance=0)
    close(half, ours(x.astype("float16").astype("float32")).astype("float16"), 0)
    close(ours(x.astype("float64")), theirs(torch.from_numpy(x.astype("float64"))).numpy(), 1e-13)
    whole = np.arange(-6, 6).reshape(2, 6)
    if name != "relu":
        close(ours(whole), ours(whole.astype("float64")), 0)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 3), (1, 1)])
def test_nothing_and_hardly_anything(name: str, shape: tuple[int, ...]) -> None:
    assert agree("numpy", ELEMENTWISE[name][0], np.ones(shape, "float32")).shape == shape


def test_large_numbers_do_not_overflow() -> None:
    x = np.array([1e4, 0, -1e4], "float32")
    close(nn.softmax(x), np.array([1, 0, 0], "float32"), 0)
    close(nn.log_softmax(x), np.array([0, -1e4, -2e4], "float32"), 0)
    close(nn.silu(x), np.array([1e4, 0, 0], "float32"), 0)
    close(nn.gelu(x), np.array([1e4, 0, 0], "float32"), 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_with_weights(engine: str) -> None:
    x, weight, bias = numbers(4, 5, 24), numbers(24, seed=1), numbers(24, seed=2)
    t = [torch.from_numpy(each) for each in (x, weight, bias)]
    wanted = functional.layer_norm(t[0], (24,), t[1], t[2], 1e-12).numpy()
    agree(engine, lambda *given: nn.layer_norm(*given, eps=1e-12), x, weight, bias, wanted=wanted)
    agree(engine, nn.rms_norm, x, weight, wanted=functional.rms_norm(t[0], (24,), t[1], 1e-6).numpy())


def test_norms_of_other_axes() -> None:
    x, weight, bias = numbers(2, 3, 4, 5), numbers(3, seed=1), numbers(3, seed=2)
    by_moving = np.moveaxis(nn.layer_norm(np.moveaxis(x, 1, -1), weight, bias), -1, 1)
    agree("numpy", lambda *given: nn.layer_norm(*given, axis=1), x, weight, bias, wanted=by_moving)
    t = torch.from_numpy(x)
    wanted = functional.layer_norm(t, (4, 5), torch.ones(4, 5), torch.ones(4, 5)).numpy()
    ones = np.ones((4, 5), "float32")
    agree("numpy", lambda *given: nn.layer_norm(*given, axis=(-2, -1)), x, ones, ones, wanted=wanted)
    with pytest.raises(ValueError, match=r"weight must have the shape \(5,\)"):
        nn.layer_norm(x, weight)
    with pytest.raises(ValueError, match=r"bias must have the shape \(5,\)"):
        nn.layer_norm(x, np.ones(5), np.ones(4))
    with pytest.raises(np.exceptions.AxisError):
        nn.rms_norm(x, axis=4)


@pytest.mark.parametrize("engine", ENGINES)
def test_linear_and_embedding(engine: str) -> None:
    x, weight, bias = numbers(2, 3, 8), numbers(5, 8, seed=1), numbers(5, seed=2)
    wanted = functional.linear(*(torch.from_numpy(each) for each in (x, weight, bias))).numpy()
    agree(engine, nn.linear, x, weight, bias, wanted=wanted)
    agree(engine, nn.linear, x[0, 0], weight, wanted=x[0, 0] @ weight.T)
    ids = np.array([[0, 4, -1], [2, 2, 1]])
    agree(engine, nn.embedding, weight, ids, wanted=weight[ids], tolerance=0)


def test_what_does_not_fit_is_said() -> None:
    x, weight = numbers(3, 8), numbers(5, 8)
    with pytest.raises(ValueError, match=r"shapes are \(3, 8\) and \(8, 5\)"):
        nn.linear(x, weight.T)
    with pytest.raises(ValueError, match=r"bias must have the shape \(5,\), not \(3,\)"):
        nn.linear(x, weight, np.ones(3))
    with pytest.raises(TypeError, match="ids are integers"):
        nn.embedding(weight, np.ones(2))
    with pytest.raises(ValueError, match="at least one axis"):
        nn.embedding(np.float32(3), [0])
    with pytest.raises(IndexError):
        nn.embedding(weight, [5])
    with pytest.raises(IndexError):
        np.asarray(nn.embedding(on("numpy", weight), [5]))
    with pytest.raises(ValueError, match="at least two axes"):
        nn.mean_pool(np.ones(3))
    with pytest.raises(ValueError, match=r"a mask of shape \(8,\) does not fit \(3, 8\)"):
        nn.mean_pool(x, np.ones(8))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["bool", "int64"])
def test_mean_pool(engine: str, kind: str) -> None:
    x = numbers(3, 4, 6)
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).astype(kind)
    wanted = np.stack([x[0, :2].mean(0), x[1].mean(0), np.zeros(6, "float32")])
    x[0, 2:] = np.nan  # padding, which nobody looks at
    agree(engine, nn.mean_pool, x, mask, wanted=wanted)
    agree(engine, nn.mean_pool, x[1], wanted=wanted[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_in_an_offloaded_function(engine: str) -> None:
    """A small block, recorded once; the same function computes with NumPy when it is called as it is."""

    def block(x: Any, weights: dict[str, Any]) -> Any:
        hidden = nn.gelu(nn.linear(x, weights["up"], weights["bias"]))
        return nn.layer_norm(x + nn.linear(hidden, weights["down"]), weights["gain"])

    x = numbers(16, 32)
    weights = {
        "up": numbers(48, 32, seed=1),
        "bias": numbers(48, seed=2),
        "down": numbers(32, 48, seed=3),
        "gain": numbers(32, seed=4),
    }
    wanted = block(x, weights)
    assert type(wanted) is np.ndarray
    close(ag.offload(on=engine)(block)(x, weights), wanted, 1e-5)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device.startswith(engine)


def test_batched_by_vmap() -> None:
    x, weight, gain = numbers(5, 4, 8), numbers(6, 8, seed=1), numbers(6, seed=2)

    def layer(x: Any, weight: Any, gain: Any) -> Any:
        hidden = nn.layer_norm(nn.linear(x, weight), gain)
        return nn.softmax(nn.attention(hidden, hidden, hidden, causal=True)), nn.top_k(hidden, 2)[1]

    program = record(layer, *(Spec(each.shape, "float32") for each in (x[0], weight, gain)))
    together = lowering.run(vmap(program, [True, False, False], 5), [x, weight, gain])
    for each, (values, places) in enumerate(zip(*together, strict=True)):
        wanted = layer(x[each], weight, gain)
        close(values, wanted[0], 1e-6)
        close(places, wanted[1], 0)


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 1000),
    size=st.sampled_from((1e-3, 1.0, 50.0)),
)
@settings(max_examples=60)
def test_softmax_is_a_distribution(shape: tuple[int, ...], seed: int, size: float) -> None:
    x = size * numbers(*shape, seed=seed, dtype="float64")
    for axis in range(len(shape)):
        if x.size:
            together = nn.softmax(x, axis)
            assert (together >= 0).all()
            np.testing.assert_allclose(together.sum(axis), 1, rtol=1e-12)
            np.testing.assert_allclose(np.exp(nn.log_softmax(x, axis)), together, rtol=1e-9, atol=1e-300)
