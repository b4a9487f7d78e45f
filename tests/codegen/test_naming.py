"""Equal parts of a program become equal kernels, whatever the numbers of their nodes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu import nn
from anygpu.codegen.kernel import Own
from anygpu.codegen.naming import renumbered
from anygpu.codegen.schedule import schedule
from anygpu.codegen.target import Dialect, Target


def model(x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    """As many equal layers as there are weights for."""
    for first in range(0, len(weights), 4):
        w, bias, scale, shift = weights[first : first + 4]
        x = nn.layer_norm(x + nn.gelu(x @ w + bias), scale, shift)
    return x


def layers(count: int) -> list[np.ndarray]:
    one = [np.zeros((64, 64), np.float32), *[np.zeros(64, np.float32)] * 3]
    return one * count


@pytest.mark.parametrize("dialect", ["wgsl", "opencl"])
@pytest.mark.parametrize("count", [3, 12])
def test_equal_layers_are_the_same_kernels(dialect: Dialect, count: int) -> None:
    # With 12 layers there are more inputs than letters for them.
    program = ag.record(model, np.zeros((32, 64), np.float32), *layers(count))
    steps = schedule(program, Target(dialect=dialect)).steps
    texts = [step.source for step in steps]
    # The first layer may differ: what comes into it is an input, and not a value of ours.
    each = len(texts) // count
    assert len(texts) == each * count
    assert texts[each : 2 * each] * (count - 1) == texts[each:]
    assert all(step.name in step.source for step in steps)


def test_different_values_keep_different_names() -> None:
    (kernel,) = schedule(
        ag.record(lambda a, b, c: (a - b) * (b - c) / (c - a), *[np.zeros(8, np.float32)] * 3), Target(dialect="wgsl")
    ).steps
    renamed = renumbered(kernel)
    assert len(set(renamed.source.split())) == len(set(kernel.source.split()))


def test_what_a_user_wrote_stays_as_it_is() -> None:
    (kernel,) = schedule(ag.record(lambda a: a + 1, np.zeros(8, np.float32)), Target(dialect="wgsl")).steps
    own = msgspec.structs.replace(kernel, source="t17 input_q sum_9", own=Own("mine", "t17 input_q sum_9"))
    assert renumbered(own) == own
