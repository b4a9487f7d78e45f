from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from anygpu.errors import InvalidOption
from anygpu.pytorch import Step
from anygpu.pytorch.precision import Casting, faster_than_float32, precisions_for
from tests.pytorch.modules import contrastive, mlp

torch.manual_seed(0)
CPU, CARD = torch.device("cpu"), torch.device("cuda:0")
X, VALUES = torch.randn(32, 8), torch.randn(32, 3)


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_what_a_card_has_units_for(monkeypatch: pytest.MonkeyPatch, capability: Any, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert faster_than_float32(CARD) == expected
    assert precisions_for("auto", mlp(), CARD) == ("float32", expected)


@pytest.mark.parametrize(("bf16", "amx", "expected"), [(False, False, None), (True, False, "bfloat16")])
def test_what_a_processor_has_units_for(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, amx: bool, expected: str | None
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert faster_than_float32(CPU) == expected
    assert faster_than_float32(torch.device("mps")) is None


def test_what_is_asked_for_is_done() -> None:
    assert precisions_for("float16", mlp(), CPU) == ("float16",)
    assert precisions_for("float32", mlp(), CARD) == ("float32",)
    with pytest.raises(InvalidOption, match="none of"):
        precisions_for("int8", mlp(), CPU)


def test_a_module_of_half_a_type_is_trained_in_it() -> None:
    model = mlp().bfloat16()
    assert precisions_for("auto", model, CPU) == ("bfloat16",)
    with pytest.raises(InvalidOption, match="bfloat16 already"):
        precisions_for("float32", model, CPU)
    step = Step(model, torch.optim.SGD(model.parameters(), 0.1), F.mse_loss, micro_batch=8)
    result = step((X.bfloat16(), VALUES.bfloat16()))
    assert result.stepped
    assert str(result.receipt.how).endswith("bfloat16")
    assert not torch.is_autocast_enabled("cpu")


def test_only_float16_is_scaled() -> None:
    casting = Casting(mlp(), CPU)
    assert casting.scaler("bfloat16") is None
    assert casting.scaler("float32") is None
    assert casting.scaler("float16") is casting.scaler("float16") is not None


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("micro_batch", [32, 8])
@pytest.mark.parametrize("loss", [F.mse_loss, contrastive])
def test_gradients_are_those_of_autocast(precision: Any, micro_batch: int, loss: Any) -> None:
    model, other = mlp(), mlp()
    with torch.autocast("cpu", getattr(torch, precision)):
        expected = loss(other(X), VALUES)
    expected.backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    step = Step(model, optimizer, loss, precision=precision, micro_batch=micro_batch, clip_norm=1e9)
    # The first scale may be too large; the step says so, and halves it.
    result = next(each for each in (step((X, VALUES)) for _ in range(10)) if each.stepped)
    assert result.grad_norm is not None
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1e9)
    assert torch.allclose(result.grad_norm, norm, rtol=0.05)  # of gradients that are no longer scaled
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad - theirs.grad).norm() <= 0.05 * theirs.grad.norm()
    assert not torch.is_autocast_enabled("cpu")


def test_gradients_that_overflow_make_no_step() -> None:
    model = mlp()
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = Step(model, optimizer, lambda o, t: F.mse_loss(o, t) * 1e30, precision="float16", clip_norm=1.0)
    result = step((X, VALUES))
    assert not result.stepped
    assert "float16 gradients overflowed, and the optimizer made no step" in result.receipt.reason
    assert torch.equal(model[0].weight, before)
    calm = Step(model, optimizer, F.mse_loss, precision="float16", clip_norm=1.0)((X, VALUES))
    assert calm.stepped
    assert not torch.equal(model[0].weight, before)


def test_weights_that_change_are_converted_again() -> None:
    model = nn.Linear(8, 3)
    step = Step(model, torch.optim.SGD(model.parameters(), 0.5), F.mse_loss, precision="bfloat16", micro_batch=4)
    losses = [float(step((X, VALUES)).loss) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
