"""Other sizes, against torch's and jax's, on every engine."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anygpu as ag
from anygpu import image
from anygpu.array.core.array import Array
from tests.nn.on_engines import ENGINES, agree, close, np

#: torch and jax compute their weights in float32, and we in float64.
TOLERANCE = 1e-5
METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos")


def picture(*shape: int, dtype: str = "float32") -> Any:
    x = np.random.default_rng(0).random(shape)
    return (x * 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def by_torch(x: Any, size: tuple[int, int], mode: str, **options: Any) -> Any:
    turned = torch.from_numpy(np.moveaxis(x, -1, -3).copy())[None]
    return np.moveaxis(torch.nn.functional.interpolate(turned, size, mode=mode, **options)[0].numpy(), -3, -1)


@pytest.mark.sampled(gate=9)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_smaller_and_larger(engine: str, method: Any) -> None:
    x = picture(19, 24, 3)
    for size in ((7, 31), (40, 5)):
        found = agree(engine, lambda x, size=size: image.resize(x, size, method=method), x)
        if method in ("bilinear", "bicubic"):
            close(found, by_torch(x, size, method, antialias=True), TOLERANCE)
        elif method == "nearest":
            close(found, by_torch(x, size, "nearest-exact"), 0)
        elif method == "lanczos":
            close(found, jax.image.resize(x, (*size, 3), "lanczos3"), TOLERANCE)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "lanczos"])
def test_without_antialias(method: Any) -> None:
    x = picture(19, 24, 3)
    theirs = {"bilinear": "linear", "bicubic": "cubic", "lanczos": "lanczos3"}[method]
    for size in ((7, 31), (40, 5), (1, 1)):
        wanted = jax.image.resize(x, (*size, 3), theirs, antialias=False)
        close(image.resize(x, size, method=method, antialias=False), wanted, TOLERANCE)


def test_area_is_the_mean_of_what_is_covered() -> None:
    x = picture(12, 20, 2)
    close(image.resize(x, (4, 5), method="area"), x.reshape(4, 3, 5, 4, 2).mean((1, 3)), 1e-6)
    line = np.array([[0.0, 3.0, 6.0]])
    close(image.resize(line, (1, 2), method="area"), np.array([[1.0, 5.0]]), 1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "bool", "float16", "float64"])
def test_types_stay(method: Any, dtype: str) -> None:
    x = picture(9, 8, 3) > 0.5 if dtype == "bool" else picture(9, 8, 3, dtype=dtype)
    found = agree("numpy", lambda x: image.resize(x, (5, 13), method=method), x)
    assert found.dtype == dtype
    if method not in ("nearest", "bicubic", "lanczos"):
        exact = image.resize(x.astype("float64"), (5, 13), method=method)
        assert np.abs(found.astype("float64") - exact).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_pictures_of_bytes(engine: str) -> None:
    """What overshoots is kept in the range, and everything is rounded."""
    x = (picture(16, 16) < 0.4).astype("uint8") * np.uint8(255)
    found = agree(engine, lambda x: image.resize(x, (23, 21), method="bicubic"), x)
    assert found.dtype == np.uint8
    assert (found.min(), found.max()) == (0, 255)


def test_layouts() -> None:
    x = picture(2, 9, 8, 3)
    wanted = image.resize(x, (5, 13))
    close(np.stack([image.resize(each, (5, 13)) for each in x]), wanted, 0)
    turned = np.moveaxis(x, -1, -3).copy()
    close(np.moveaxis(image.resize(turned, (5, 13), layout="CHW"), -3, -1), wanted, 1e-6)
    close(image.resize(x[..., 0], (5, 13), layout="HW"), wanted[..., 0], 1e-6)
    close(image.resize(x[0, ..., 0], (5, 13)), wanted[0, ..., 0], 1e-6)


def test_many_neighbours_are_a_matrix_product() -> None:
    x = picture(300, 40, 3)
    for engine in ("numpy", "cpu", "torch"):
        agree(engine, lambda x: image.resize(x, (7, 5), method="lanczos"), x)
    close(image.resize(x, (7, 5)), by_torch(x, (7, 5), "bilinear", antialias=True), TOLERANCE)


@given(
    old=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    new=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    method=st.sampled_from(METHODS),
    antialias=st.booleans(),
)
@settings(max_examples=100)
def test_one_colour_stays_one_colour(old: tuple[int, int], new: tuple[int, int], method: Any, antialias: bool) -> None:
    found = image.resize(np.full(old, 0.7), new, method=method, antialias=antialias)
    assert found.shape == new
    np.testing.assert_allclose(found, 0.7, rtol=1e-12)


def test_in_an_offloaded_function() -> None:
    """The weights, which are worked out on the host and kept for the next time, are a part of the program."""

    @ag.offload(on="torch")
    def thumbnail(x: Any) -> Any:
        return image.resize(x, (60, 1100))

    x = picture(30, 500, 3)
    wanted = image.resize(x, (60, 1100))
    for _ in range(2):
        close(thumbnail(x), wanted, 1e-5)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device == "torch:cpu"


def test_what_does_not_fit_is_said() -> None:
    x = picture(4, 5, 3)
    with pytest.raises(ValueError, match="at least two axes"):
        image.resize(x[0, 0], (2, 2))
    with pytest.raises(ValueError, match=r"size is \(height, width\)"):
        image.resize(x, (2, 2, 3))
    with pytest.raises(ValueError, match="two whole numbers"):
        image.resize(x, (2, -1))
    with pytest.raises(TypeError):
        image.resize(x, (2, 1.5))  # type: ignore[arg-type]
    with pytest.raises(ag.InvalidOption, match="method is"):
        image.resize(x, (2, 2), method="cubic")  # type: ignore[arg-type]
    with pytest.raises(ag.InvalidOption, match="layout is"):
        image.resize(x, (2, 2), layout="WH")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="real numbers, not complex64"):
        image.resize(x + 1j, (2, 2))
    with pytest.raises(ValueError, match="no pixels"):
        image.resize(x[:0], (2, 2))
    assert image.resize(x[:0], (0, 2)).shape == (0, 2, 3)
    assert isinstance(image.resize(ag.asarray(x, device="numpy"), (0, 2)), Array)
