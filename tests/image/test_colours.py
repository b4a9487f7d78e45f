"""Colours, against the standard library's and plain NumPy, on every engine."""

from __future__ import annotations

import colorsys
from typing import Any

import pytest

import anygpu as ag
from anygpu import image
from anygpu.array.trace.tracing import record
from anygpu.engines.numpy import lowering
from anygpu.program.primitives import Spec
from anygpu.program.transforms import vmap
from tests.image.test_resample import picture
from tests.nn.on_engines import ENGINES, agree, close, np


@pytest.mark.parametrize("engine", ENGINES)
def test_gray(engine: str) -> None:
    x = picture(5, 6, 3)
    agree(engine, image.to_gray, x, wanted=(x @ np.array([0.299, 0.587, 0.114])).astype("float32"))
    bytes_ = picture(5, 6, 3, dtype="uint8")
    wanted = np.rint(bytes_ @ np.array([0.299, 0.587, 0.114])).astype("uint8")
    agree(engine, image.to_gray, bytes_, wanted=wanted)
    close(image.to_gray(np.moveaxis(x, -1, 0), layout="CHW"), image.to_gray(x), 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_hue(engine: str) -> None:
    x = picture(6, 7, 3)
    x[0, 0], x[0, 1], x[0, 2], x[0, 3] = 0, 1, (1, 0, 1), (0.5, 0.5, 0.2)
    by_hand = np.array([[colorsys.rgb_to_hsv(*map(float, pixel)) for pixel in row] for row in x], "float32")
    hsv = agree(engine, image.rgb_to_hsv, x, wanted=by_hand, tolerance=1e-5)
    agree(engine, image.hsv_to_rgb, hsv, wanted=x, tolerance=1e-5)


def test_hue_of_bytes_and_of_another_layout() -> None:
    x = picture(6, 7, 3, dtype="uint8")
    close(image.rgb_to_hsv(x), image.rgb_to_hsv((x / np.float32(255)).astype("float32")), 1e-6)
    turned = np.moveaxis(x, -1, 0)
    close(np.moveaxis(image.rgb_to_hsv(turned, layout="CHW"), 0, -1), image.rgb_to_hsv(x), 0)
    hsv = image.rgb_to_hsv(x)
    hsv[..., 0] += 1  # once round
    close(image.hsv_to_rgb(hsv), (x / 255).astype("float32"), 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_normalise(engine: str) -> None:
    x = picture(5, 6, 3, dtype="uint8")
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.25]
    wanted = ((x / 255 - mean) / std).astype("float32")
    agree(engine, lambda x: image.normalise(x, mean, std), x, wanted=wanted, tolerance=1e-5)
    agree(
        engine, image.normalise, x, np.array(mean, "float32"), np.array(std, "float32"), wanted=wanted, tolerance=1e-5
    )


def test_normalise_in_other_ways() -> None:
    x = picture(3, 5, 6)
    numbers = [0.5, 0.4, 0.3]
    close(image.normalise(x, numbers, 0.5, layout="CHW"), (x - np.array(numbers, "float32")[:, None, None]) / 0.5, 1e-6)
    close(image.normalise(x[0], 0.5, 0.5), (x[0] - 0.5) / 0.5, 1e-6)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_equalise(engine: str) -> None:
    x = (picture(16, 20, 2) ** 3 * 200).astype("uint8")
    found = agree(engine, image.equalise, x)
    assert found.dtype == np.uint8
    for channel in range(2):
        pixels = x[..., channel]
        up_to = np.array([(pixels <= level).sum() for level in range(256)])
        fewest = up_to[up_to > 0][0]
        shades = np.rint((up_to - fewest).astype("float32") * 255 / np.float32(pixels.size - fewest))
        close(found[..., channel], shades.astype("uint8")[pixels], 0)
    assert (found.min(), found.max()) == (0, 255)


def test_equalise_at_its_ends() -> None:
    close(image.equalise(np.full((3, 4), 7, "uint8")), np.full((3, 4), 7, "uint8"), 0)
    assert image.equalise(np.zeros((0, 4), "uint8")).shape == (0, 4)
    two = np.array([[10, 10, 20]], "uint8")
    assert image.equalise(two).tolist() == [[0, 0, 255]]
    with pytest.raises(TypeError, match="takes uint8, not float32"):
        image.equalise(picture(3, 4))


def test_preparing_pictures_for_a_network() -> None:
    """All of it recorded as one program, and for several pictures at once."""

    def prepared(x: Any) -> Any:
        return np.moveaxis(image.normalise(image.resize(x, (8, 8)), 0.5, 0.25), -1, -3)

    x = picture(4, 11, 13, 3, dtype="uint8")
    wanted = np.stack([prepared(each) for each in x])
    close(ag.offload(on="torch")(prepared)(x[0]), wanted[0], 1e-5)
    program = record(prepared, Spec(x.shape[1:], "uint8"))
    close(lowering.run(vmap(program, [True], 4), [x])[0], wanted, 1e-5)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="three axes"):
        image.to_gray(picture(4, 5))
    with pytest.raises(ValueError, match="Is its layout CHW"):
        image.to_gray(picture(3, 4, 5))
    with pytest.raises(ValueError, match="4 channels along axis 2, and not 3"):
        image.rgb_to_hsv(picture(5, 5, 4))
    with pytest.raises(ValueError, match="mean has 2 numbers for 3 channels"):
        image.normalise(picture(4, 5, 3), [1.0, 2.0], 1.0)
