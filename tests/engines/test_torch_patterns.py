"""What torch has one function for is found, what only looks like it is not, and the values are NumPy's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu import nn
from anygpu.agreement.analysis import analyse
from anygpu.agreement.elementwise import filled
from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering as by_numpy
from anygpu.engines.torch import patterns
from anygpu.engines.torch.engine import TorchEngine
from anygpu.hardware.device import Device

Function = Callable[..., Any]


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> HostArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def kinds(function: Function, *arguments: HostArray) -> list[str]:
    return sorted(type(each).__name__ for each in patterns.found(record(function, *arguments)).values())


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return TorchEngine()


def on_torch(engine: TorchEngine, function: Function, *arguments: HostArray) -> list[HostArray]:
    device = next(each for each in engine.discover() if isinstance(each, Device) and each.id == "torch:cpu")
    executable = engine.compile(record(function, *arguments), device)
    results = engine.execute(executable, [engine.upload(each, device) for each in arguments])
    return [engine.download(each) for each in results]


def plain_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.var(x, axis=-1, keepdims=True) + eps) * weight + bias


def erf_gelu(x: Any) -> Any:
    return nn.gelu(x)


def tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


ROW = (normal(3, 5, 64), normal(64, seed=1), normal(64, seed=2))
WIDE = tuple(each.astype("float64") for each in ROW)
MATRIX = (normal(3, 5, 32), normal(16, 32, seed=1), normal(16, seed=2))

FOUND: dict[str, tuple[list[str], Function, tuple[HostArray, ...]]] = {
    "layer norm": (["LayerNorm"], nn.layer_norm, ROW),
    "layer norm in float64": (["LayerNorm"], nn.layer_norm, WIDE),
    "layer norm by division": (["LayerNorm"], plain_norm, ROW),
    "without weights": (["LayerNorm"], lambda x: nn.layer_norm(x, eps=1e-12), ROW[:1]),
    "weight alone": (["LayerNorm"], nn.layer_norm, ROW[:2]),
    "bias alone": (["LayerNorm"], lambda x, bias: nn.layer_norm(x, None, bias), ROW[:2]),
    "bias first": (["LayerNorm"], lambda x, w, b: b + w * nn.layer_norm(x), ROW),
    "over two axes": (["LayerNorm"], lambda x: nn.layer_norm(x, axis=(1, 2)), ROW[:1]),
    "gelu": (["Gelu"], erf_gelu, ROW[:1]),
    "gelu by tanh": (["Gelu"], tanh_gelu, ROW[:1]),
    "nn's gelu by tanh": (["Gelu"], lambda x: nn.gelu(x, approximate=True), ROW[:1]),
    "linear": (["LinearPattern"], nn.linear, MATRIX),
    "a matrix the other way": (["LinearPattern"], lambda x, m, b: x @ m + b, (MATRIX[0], normal(32, 16), MATRIX[2])),
    "softmax": (["Softmax"], nn.softmax, ROW[:1]),
    "softmax along another axis": (["Softmax"], lambda x: nn.softmax(x, axis=1), ROW[:1]),
    "layers": (
        ["Gelu", "LayerNorm", "LinearPattern"],
        lambda x, m, b: nn.layer_norm(nn.gelu(nn.linear(x, m, b))),
        MATRIX,
    ),
}

NEARLY: dict[str, tuple[Function, tuple[HostArray, ...]]] = {
    "another axis": (lambda x: nn.layer_norm(x, axis=1), ROW[:1]),
    "the square of x, not of the distance": (
        lambda x: (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-5),
        ROW[:1],
    ),
    "the distance of another value": (
        lambda x, y: (x - np.mean(y)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5),
        ROW[:2],
    ),
    "a variance of one less": (
        lambda x: (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True, ddof=1) + 1e-5),
        ROW[:1],
    ),
    "no epsilon": (
        lambda x: (x - np.mean(x, -1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 0.0),
        ROW[:1],
    ),
    "a negative epsilon": (lambda x: nn.layer_norm(x, eps=-1e-3), ROW[:1]),
    "a short row": (nn.layer_norm, (normal(9, 4),)),
    "half of another number": (lambda x: 0.25 * x * (1 + np.tanh(x)), ROW[:1]),
    "gelu of two values": (
        lambda x, y: 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
        (ROW[0], normal(3, 5, 64, seed=3)),
    ),
    "gelu with another number": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.0447 * x * x * x))),
        ROW[:1],
    ),
    "gelu's sigmoid": (lambda x: x / (1 + np.exp(-1.702 * x)), ROW[:1]),
    "a product and a matrix": (lambda x, m, b: x @ m + b, (normal(5, 32), normal(32, 16), normal(5, 16))),
    "a product and a column": (lambda x, m, b: x @ m + b, (normal(5, 32), normal(32, 16), normal(5, 1))),
    "a batch of products": (lambda x, m, b: x @ m + b, (normal(2, 5, 8), normal(2, 8, 4), normal(4))),
    "softmax without its maximum": (lambda x: np.exp(x) / np.sum(np.exp(x), -1, keepdims=True), ROW[:1]),
    "softmax over another axis": (
        lambda x: (
            np.exp(x - np.max(x, 1, keepdims=True)) / np.sum(np.exp(x - np.max(x, 1, keepdims=True)), 2)[..., None]
        ),
        ROW[:1],
    ),
}

#: A step between is wanted as well, so that nothing may be left out.
SHARED: dict[str, tuple[Function, tuple[HostArray, ...]]] = {
    "the product": (lambda x, m, b: (x @ m + b, x @ m), (normal(5, 32), normal(32, 16), normal(16))),
    "the deviation": (
        lambda x: (
            nn.layer_norm(x),
            1 / np.sqrt(np.mean((x - np.mean(x, -1, keepdims=True)) ** 2, -1, keepdims=True) + 1e-5),
            x - np.mean(x, -1, keepdims=True),
        ),
        ROW[:1],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_and_agrees(engine: TorchEngine, name: str) -> None:
    wanted, function, arguments = FOUND[name]
    assert kinds(function, *arguments) == wanted
    check(engine, function, *arguments)


@pytest.mark.parametrize("name", NEARLY)
def test_what_only_looks_like_it_is_left_alone(engine: TorchEngine, name: str) -> None:
    function, arguments = NEARLY[name]
    assert kinds(function, *arguments) == []
    check(engine, function, *arguments)


@pytest.mark.parametrize("name", SHARED)
def test_a_step_that_is_wanted_is_computed(engine: TorchEngine, name: str) -> None:
    function, arguments = SHARED[name]
    check(engine, function, *arguments)


@pytest.mark.parametrize("mean", [0.0, 100.0, -1e4])
@pytest.mark.parametrize("length", [8, 384])
def test_norms_far_from_zero_agree(engine: TorchEngine, mean: float, length: int) -> None:
    check(engine, nn.layer_norm, normal(7, length) + np.float32(mean))


@pytest.mark.parametrize("name", ["gelu", "gelu by tanh"])
def test_both_ends_of_gelu_agree(engine: TorchEngine, name: str) -> None:
    check(engine, FOUND[name][1], np.linspace(-20, 20, 4096, dtype=np.float32).reshape(16, 256))


@pytest.mark.parametrize("name", ["layer norm", "gelu", "gelu by tanh", "softmax"])
def test_special_values_come_out_as_numpys(engine: TorchEngine, name: str) -> None:
    _, function, arguments = FOUND[name]
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, -1e-40, 1e18, -1e18, 3e4, -3e4, 1.0], np.float32)
    x = normal(12, 5, 64)
    x[:, 2, 7] = special
    with np.errstate(all="ignore"):
        (expected,) = by_numpy.run(record(function, x, *arguments[1:]), [x, *arguments[1:]])
    (got,) = on_torch(engine, function, x, *arguments[1:])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-5, atol=1e-6)


def test_a_norm_takes_one_call() -> None:
    program = record(nn.layer_norm, *ROW)
    left = patterns.needed(program, patterns.found(program))
    assert {type(program.nodes[node].op).__name__ for node in left} == {"Input", "Binary"}
    assert len(left) == 4


def check(engine: TorchEngine, function: Function, *arguments: HostArray) -> None:
    """Within what the agreement with NumPy allows."""
    program = record(function, *arguments)
    with np.errstate(all="ignore"):
        analysed = analyse(program, list(arguments))
    results = on_torch(engine, function, *arguments)
    for got, wanted, bound in zip(results, analysed.values, analysed.bounds, strict=True):
        assert got.dtype == wanted.dtype
        apart = np.abs(got.astype("float64") - wanted)
        assert ((apart <= filled(bound, wanted.shape)) | (np.isnan(got) & np.isnan(wanted))).all()
