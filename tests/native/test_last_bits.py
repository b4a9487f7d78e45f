"""Whole numbers, truth values and positions are NumPy's bit for bit; with `exact=True` floats are, too."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.structure import flatten
from anygpu.array.trace.traced import NotTraceable
from anygpu.array.trace.tracing import trace
from anygpu.engines.cpu.engine import executable
from anygpu.engines.cpu.numpy_loops import rounding
from anygpu.errors import DeviceFallback, DeviceUnavailable
from tests.native.cases import device, natively
from tests.native.expressions import EXPRESSIONS
from tests.native.random_functions import RandomFunction, same_bits

pytestmark = pytest.mark.usefixtures("native_at_once_and_right")

IMAGE = np.random.default_rng(0).integers(0, 256, (90, 70, 3)).astype(np.uint8)
WEIGHTS = np.array([0.299, 0.587, 0.114])
POINTS = np.random.default_rng(1).normal(size=(300, 40))


def reason() -> str:
    receipt = ag.last_receipt()
    assert receipt is not None
    return receipt.reason


def grey(image: Any) -> Any:
    return (image @ WEIGHTS).astype(np.uint8)


def gamma(image: Any) -> Any:
    return ((image.astype(np.float32) / 255) ** np.float32(0.45) * 255).astype(np.uint8)


def nearest(points: Any) -> Any:
    return (points * points).sum(axis=1).argmin()


def smooth(points: Any) -> Any:
    return np.tanh(points) * np.exp(-points) + 1


def product(points: Any) -> Any:
    return np.tanh(points @ points.T) @ points + points.sum(axis=0)


# -- calls


def test_a_product_that_is_rounded_stays_on_numpy() -> None:
    offloaded = ag.offload(grey)
    offloaded.prepare(IMAGE)
    for _ in range(3):
        assert np.array_equal(offloaded(IMAGE), grey(IMAGE))
    assert device() == "numpy"
    assert "the last bit of a product of matrices decides astype(uint8) (test_last_bits.py:" in reason()


def test_a_function_that_is_rounded_is_numpys_own_loop() -> None:
    offloaded = natively(gamma, IMAGE)
    assert np.array_equal(offloaded(IMAGE), gamma(IMAGE))
    assert device() == "cpu"


def test_the_order_of_a_sum_follows_the_memory() -> None:
    offloaded = natively(nearest, POINTS)
    assert offloaded(POINTS) == nearest(POINTS)
    assert device() == "cpu"
    turned = np.asfortranarray(POINTS)
    for _ in range(3):
        assert offloaded(turned) == nearest(turned)
        assert device() == "numpy"


def test_functions_have_the_same_loops_in_any_order_forwards() -> None:
    offloaded = natively(gamma, IMAGE.transpose(1, 0, 2))
    for image in (IMAGE.transpose(1, 0, 2), IMAGE.transpose(1, 0, 2)[::2]):
        assert np.array_equal(offloaded(image), gamma(image))
    assert np.array_equal(offloaded(IMAGE[::-1].transpose(1, 0, 2)), gamma(IMAGE[::-1].transpose(1, 0, 2)))
    assert device() == "numpy"


def test_a_first_call_with_another_order_leaves_native_code_for_later() -> None:
    offloaded = ag.offload(nearest)
    turned = np.asfortranarray(POINTS)
    offloaded.prepare(turned)
    for _ in range(3):
        assert offloaded(turned) == nearest(turned)
        assert device() == "numpy"
    assert "how its arguments lie in memory" in reason()


def test_native_code_that_was_named_decides_nothing_either() -> None:
    with pytest.warns(DeviceFallback, match="the last bit of a product of matrices decides"):
        result = ag.run(grey, IMAGE, on="cpu")
    assert np.array_equal(result.value, grey(IMAGE))
    assert result.receipt.device == "numpy"
    with pytest.raises(DeviceUnavailable, match="the last bit of a product"):
        ag.run(grey, IMAGE, on="cpu", fallback="raise")
    result = ag.run(gamma, IMAGE, on="cpu")
    assert np.array_equal(result.value, gamma(IMAGE))
    assert result.receipt.device == "cpu"
    turned = np.asfortranarray(POINTS)
    for _ in range(3):
        result = ag.run(nearest, turned, on="cpu")
        assert result.value == nearest(turned)
        assert result.receipt.device == "numpy"


# -- exact=True


def test_exact_functions_have_every_bit() -> None:
    offloaded = natively(ag.offload(exact=True)(smooth), POINTS)
    assert same_bits(offloaded(POINTS), smooth(POINTS))
    assert device() == "cpu"
    result = ag.run(smooth, POINTS, on="cpu", exact=True)
    assert same_bits(result.value, smooth(POINTS))
    assert result.receipt.device == "cpu"


def test_what_is_not_reachable_is_counted() -> None:
    offloaded = ag.offload(exact=True)(product)
    offloaded.prepare(POINTS)
    assert same_bits(offloaded(POINTS), product(POINTS))
    assert device() == "numpy"
    assert "exact=True asks for every bit of a product of matrices (2 times), a sum" in reason()


def remainder(points: Any) -> Any:
    return np.floor(points) % np.ceil(points)


def test_numpy_computes_what_has_a_nan() -> None:
    offloaded = natively(ag.offload(exact=True)(remainder), POINTS + 10)
    assert same_bits(offloaded(POINTS + 10), remainder(POINTS + 10))
    assert device() == "cpu"
    with np.errstate(invalid="ignore"):
        expected = remainder(POINTS)
        assert np.isnan(expected).any()
        assert same_bits(offloaded(POINTS), expected)
        assert device() == "numpy"
        assert reason().startswith("exact=True asks for every bit of a NaN")
        result = ag.run(remainder, POINTS, on="cpu", exact=True)
    assert same_bits(result.value, expected)
    assert result.receipt.device == "numpy"


@pytest.mark.parametrize("percent", [3, 10, 33.3, 50, 99])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_percentiles_have_every_bit(percent: float, dtype: str) -> None:
    for count in (3, 10, 24, 100):
        x = (POINTS.ravel()[:count] * 100).astype(dtype)
        result = ag.run(lambda x: np.percentile(x, percent), x, on="cpu", exact=True)
        assert same_bits(result.value, np.percentile(x, percent))
        assert result.receipt.device == "cpu"


@pytest.mark.parametrize("given", [{"on": "webgpu"}, {"on": "gpu"}, {"on": ["cpu", "torch"]}, {"engine": "torch"}])
def test_exact_is_for_the_processor(given: Any) -> None:
    with pytest.raises(ag.InvalidOption, match=r"exact=True gives NumPy's bits, which .* does not"):
        ag.offload(exact=True, **given)(smooth)


def test_exact_goes_with_no_other_precision() -> None:
    with pytest.raises(ag.InvalidOption, match="leave one out"):
        ag.offload(exact=True, precision="float32")(smooth)


def test_exact_goes_with_the_processor_by_name() -> None:
    for name in ("cpu", "numpy"):
        assert same_bits(ag.run(smooth, POINTS, on=name, exact=True).value, smooth(POINTS))


# -- random functions


@pytest.mark.sampled(gate=40, full=2)
@pytest.mark.parametrize("seed", range(600))
def test_random_functions_decide_as_numpy_does(seed: int) -> None:
    function = RandomFunction(seed)
    given = function.inputs()

    def called(x: Any, y: Any) -> Any:
        return function(x, y)

    check_bits(called, given)


@pytest.mark.sampled(gate=20, full=1)
@pytest.mark.parametrize("text", EXPRESSIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_expressions_have_numpys_bits(text: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    given = tuple((rng.normal(size=(60, 50)) * 10.0 ** rng.uniform(-2, 1, (60, 50))).astype(dtype) for _ in range(2))
    check_bits(eval(f"lambda x, y: {text}", {"np": np}), given)


def check_bits(function: Any, given: tuple[Any, ...]) -> None:
    """What native code may run of a function gives NumPy's whole numbers; and all of its bits if it is exact."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = flatten(function(*given))[0]
        for exact in (None, rounding()):
            traced = trace(function, given, {}, views=False, exact=exact)
            if isinstance(traced, NotTraceable) or traced.only_on_numpy(rounding()) is not None:
                continue
            inputs = traced.inputs(function, given, {})
            assert inputs is not None
            results = flatten(traced.rebuild(executable(traced.program)(inputs), inputs))[0]
            for one, other in zip(expected, results, strict=True):
                if exact is not None or np.asarray(one).dtype.kind not in "fc":
                    assert same_bits(one, other)


# -- two processes

_SCRIPT = """
import numpy as np, anygpu as ag
from tests.native.test_last_bits import IMAGE, gamma, grey

for function in (grey, gamma):
    offloaded = ag.offload(warm=True)(function)
    for _ in range(6):
        assert np.array_equal(offloaded(IMAGE), function(IMAGE))
    print(ag.last_receipt().device, end=" ")
"""


@pytest.mark.full
def test_a_second_process_decides_alike(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("ANYGPU_NATIVE", raising=False)
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout.split()[0] == "numpy"
