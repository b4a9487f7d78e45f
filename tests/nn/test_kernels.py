"""What the functions become where kernels are generated: one kernel each, with nothing stored on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anygpu import nn
from tests.codegen.planning import CARD, PROCESSOR, names, plan, spec

X, LINE = spec(4, 32, 96), spec(96)
ALONE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (nn.softmax, (X,)),
    "log_softmax": (nn.log_softmax, (X,)),
    "layer_norm": (nn.layer_norm, (X, LINE, LINE)),
    "rms_norm": (nn.rms_norm, (X, LINE)),
    "a layer and what follows": (lambda x, w, b: nn.gelu(nn.linear(x, w, b)), (X, spec(64, 96), spec(64))),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("target", [CARD, PROCESSOR])
def test_one_kernel(name: str, target: Any) -> None:
    function, arguments = ALONE[name]
    assert len(names(plan(function, *arguments, target=target))) == 1


@pytest.mark.parametrize("target", [CARD, PROCESSOR])
@pytest.mark.parametrize(("bits", "data"), [(8, spec(64, 96, dtype="int8")), (4, spec(64, 48, dtype="uint8"))])
@pytest.mark.parametrize("rows", [1, 32])
def test_weights_are_unpacked_while_they_are_read(target: Any, bits: int, data: Any, rows: int) -> None:
    def layer(x: Any, data: Any, scale: Any, bias: Any) -> Any:
        return nn.relu(nn.linear(x, nn.Quantised(data, scale, None, bits, (64, 96), 0), bias))

    planned = plan(layer, spec(rows, 96), data, spec(64), spec(64), target=target)
    assert len(names(planned)) == 1
