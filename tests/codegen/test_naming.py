"""Equal parts of a program become equal kernels, whatever the numbers of their nodes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu import nn
from anygpu.engines.codegen.kernel import Kernel, Own, renumbered
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Dialect, Target


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
    names = "t7 t17 t17_value word_t17 sum_7 sum_17 read_17_0 read_17_1 at_7 input_q input_x17 input_q_value_3 input_a"
    others = "float4 vec4 as_float4 exp2_f32 f32 numbers.offset lane row 17 0x17u"
    kernel = Kernel(name="sum_17", source=f"{names} {others}", bindings=(), groups=1, group_size=1)
    renamed = renumbered(kernel)
    words = renamed.source.split()
    assert words[: len(names.split())] != names.split()
    assert len(set(words)) == len(set(kernel.source.split()))
    assert words[len(names.split()) :] == others.split(), "what is not ours to name stays"
    assert renamed.name == words[names.split().index("sum_17")]
    # Another kernel that differs in nothing but numbers and letters is the same one.
    moved = (
        kernel.source.replace("17", "45").replace("7", "3").replace("input_q", "input_c").replace("input_a", "input_z")
    )
    moved = moved.replace(" 45 0x45u", " 17 0x17u")
    assert renumbered(msgspec.structs.replace(kernel, source=moved, name="sum_45")) == renamed


def test_what_a_user_wrote_stays_as_it_is() -> None:
    (kernel,) = schedule(ag.record(lambda a: a + 1, np.zeros(8, np.float32)), Target(dialect="wgsl")).steps
    own = msgspec.structs.replace(kernel, source="t17 input_q sum_9", own=Own("mine", "t17 input_q sum_9"))
    assert renumbered(own) == own
