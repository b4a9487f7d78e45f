"""Three models that share a text encoder: what they give each other stays on the device, and so does one copy."""

from __future__ import annotations

import numpy as np
import pytest

from examples import multimodal
from examples.compare import ENGINES
from examples.encoders import vision

#: One layer of each encoder is enough to share: `python -m examples.multimodal` has all of them.
SMALL = multimodal.Layers(text=1, image=1)
#: Engines that count what is in use on their devices.
COUNTING = ("webgpu", "opencl")


@pytest.fixture(scope="module")
def given() -> multimodal.Inputs:
    return multimodal.inputs()


@pytest.mark.full
@pytest.mark.parametrize("device", ENGINES)
def test_the_models_share_the_encoder_and_nothing_comes_to_the_host(device: str, given: multimodal.Inputs) -> None:
    found = multimodal.compare(device, given, SMALL)
    assert found.together.difference(found.apart) <= (0 if device in COUNTING else 1e-6)
    assert found.together.bytes_to_host == 0
    assert found.ratio <= 0.70
    if device in COUNTING:
        assert found.peak_ratio is not None
        assert found.peak_ratio <= 0.70


@pytest.mark.full
def test_the_answers_make_sense(given: multimodal.Inputs) -> None:
    answers = multimodal.answer(multimodal.without_store("torch", multimodal.WHOLE), given)
    assert answers.similarity.shape == (8, 8)
    assert np.abs(answers.similarity).max() <= 1
    assert np.argwhere(answers.duplicates).tolist() == [[0, 6], [2, 7]]


def test_images_differ_by_what_is_in_them() -> None:
    weights = vision.random_weights()
    first, second = vision.encode(multimodal.images(2), weights)
    assert first.shape == (vision.WIDTH,)
    assert not np.allclose(first, second)
