"""Filters, against SciPy's, on every engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

import anygpu as ag
from anygpu import image
from tests.image.test_resample import picture
from tests.nn.on_engines import ENGINES, agree, close, np, on

#: Our names for what lies beyond the edge, and SciPy's.
BOUNDARIES = {"reflect": "mirror", "edge": "nearest", "wrap": "wrap", "constant": "constant"}


# "edge" and "wrap" are "reflect" with other positions to look up, so they need no device of their own.
@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize(
    ("engine", "boundary"),
    [*((engine, each) for engine in ENGINES for each in ("reflect", "constant")), ("numpy", "edge"), ("numpy", "wrap")],
)
def test_blurs(engine: str, boundary: Any) -> None:
    x, theirs = picture(12, 15, 2), BOUNDARIES[boundary]
    gauss = ndimage.gaussian_filter(x, (0.8, 1.3, 0), mode=theirs)
    agree(engine, lambda x: image.gaussian_blur(x, (0.8, 1.3), boundary=boundary), x, wanted=gauss)
    boxed = ndimage.uniform_filter(x, (3, 4, 1), mode=theirs)
    agree(engine, lambda x: image.box_blur(x, (3, 4), boundary=boundary), x, wanted=boxed)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_any_kernel(engine: str) -> None:
    x, kernel = picture(11, 13, 2), np.arange(15, dtype="float32").reshape(3, 5) - 4
    for boundary in ("constant", "wrap") if engine in ("webgpu", "opencl") else BOUNDARIES:
        mode: Any = boundary
        wanted = ndimage.correlate(x, kernel[..., None], mode=BOUNDARIES[boundary], cval=2.0)

        def filtered(x: Any, kernel: Any, mode: Any = mode) -> Any:
            return image.filter(x, kernel, boundary=mode, constant=2.0)

        agree(engine, filtered, x, kernel, wanted=wanted, tolerance=2e-5)
        # Known here, and so a part of the program, and of another type.
        close(image.filter(on(engine, x), kernel.astype(int), boundary=mode, constant=2.0), wanted, 2e-5)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_large_kernels(engine: str) -> None:
    """So many pixels under a kernel that the sum is a product over windows."""
    x, kernel = picture(20, 17), picture(9, 8) - 0.5
    agree(engine, image.filter, x, kernel, wanted=ndimage.correlate(x, kernel, mode="mirror"), tolerance=1e-5)
    wide = ndimage.gaussian_filter(x, 9.0, mode="nearest")
    agree(engine, lambda x: image.gaussian_blur(x, 9.0, boundary="edge"), x, wanted=wide, tolerance=1e-5)


# The larger one is some twenty kernels, which take their time to compile.
@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize(("engine", "size"), [*((engine, 3) for engine in ENGINES), ("torch", 5), ("jax", 5)])
def test_median(engine: str, size: int) -> None:
    x = picture(9, 11, 2, dtype="uint8")
    wanted = ndimage.median_filter(x, (size, size, 1), mode="mirror")
    agree(engine, lambda x: image.median(x, size), x, wanted=wanted)


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("engine", ENGINES)
def test_slopes(engine: str) -> None:
    x = picture(9, 11)
    down, right = agree(engine, image.sobel, x)
    close(down, ndimage.sobel(x, 0, mode="mirror") / 8, 1e-6)
    close(right, ndimage.sobel(x, 1, mode="mirror") / 8, 1e-6)
    agree(engine, image.gradient_magnitude, x, wanted=np.hypot(down, right))
    agree(engine, image.laplacian, x, wanted=ndimage.laplace(x, mode="mirror"))
    blurred = ndimage.gaussian_filter(x, 1.0, mode="mirror")
    agree(engine, lambda x: image.sharpen(x, 1.5), x, wanted=x + (x - blurred) * np.float32(1.5), tolerance=5e-6)


def test_a_slope_of_one_is_one() -> None:
    ramp = np.arange(6.0)[:, None] * 2 + np.arange(7.0)
    down, right = image.sobel(ramp)
    close(down[1:-1, 1:-1], np.full((4, 5), 2.0), 1e-12)
    close(right[1:-1, 1:-1], np.full((4, 5), 1.0), 1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float64"])
def test_types(dtype: str) -> None:
    x = picture(6, 7, 3, dtype=dtype)
    for function in (image.gaussian_blur, image.sharpen):
        found = agree("numpy", lambda x, function=function: function(x, 1.0), x, tolerance=1e-3)
        assert found.dtype == dtype
    assert agree("numpy", image.median, x).dtype == dtype
    # Slopes have a sign, which bytes have not.
    kind = "float64" if dtype == "float64" else "float32"
    assert image.laplacian(x).dtype == kind
    assert image.sobel(x)[0].dtype == kind
    sharp = image.sharpen(np.array([[0, 255], [255, 0]], "uint8"), 5)
    assert sharp.tolist() == [[0, 255], [255, 0]]


def test_layouts() -> None:
    x = picture(2, 9, 8, 3)
    turned = np.moveaxis(x, -1, -3).copy()
    for function in (lambda x, **more: image.gaussian_blur(x, 1.0, **more), image.median, image.laplacian):
        wanted = function(x)
        close(np.stack([function(each) for each in x]), wanted, 0)
        close(np.moveaxis(function(turned, layout="CHW"), -3, -1), wanted, 1e-6)
        close(function(x[..., 0].copy(), layout="HW"), wanted[..., 0], 1e-6)


@given(shape=st.tuples(st.integers(1, 6), st.integers(1, 6)), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_an_image_smaller_than_the_kernel(shape: tuple[int, int], seed: int) -> None:
    x = np.random.default_rng(seed).random(shape)
    for boundary, theirs in BOUNDARIES.items():
        mode: Any = boundary
        close(image.gaussian_blur(x, 1.5, boundary=mode), ndimage.gaussian_filter(x, 1.5, mode=theirs), 1e-12)
        close(image.median(x, 5, boundary=mode), ndimage.median_filter(x, 5, mode=theirs), 0)
        close(
            on("numpy", x) * 0 + image.box_blur(on("numpy", x), 5, boundary=mode),
            image.box_blur(x, 5, boundary=mode),
            1e-12,
        )


def test_nothing() -> None:
    for shape in ((0, 5), (5, 0), (3, 4, 0), (0, 4, 4, 3)):
        x = np.ones(shape, "float32")
        for function in (image.median, image.laplacian, image.sharpen, image.box_blur):
            assert agree("numpy", function, x).shape == shape
        assert image.filter(x, np.ones((3, 3))).shape == shape
    x = picture(4, 5)
    close(image.gaussian_blur(x, 0), x, 0)
    close(image.filter(x, np.zeros((3, 3))), np.zeros_like(x), 0)


def test_what_does_not_fit_is_said() -> None:
    x = picture(4, 5, 3)
    with pytest.raises(ValueError, match="rows and columns"):
        image.filter(x, np.ones(3))
    with pytest.raises(ag.InvalidOption, match="boundary is"):
        image.box_blur(x, boundary="mirror")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size is 3 or 5, not 4"):
        image.median(x, 4)
    with pytest.raises(ValueError, match="whole number of pixels"):
        image.box_blur(x, 0)
    with pytest.raises(ValueError, match="0 or more"):
        image.gaussian_blur(x, -1.0)
    with pytest.raises(ValueError, match="one number, or two"):
        image.gaussian_blur(x, (1.0, 2.0, 3.0))
