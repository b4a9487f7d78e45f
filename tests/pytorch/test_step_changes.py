"""What the user changes between two steps is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from anygpu.errors import InvalidOption
from anygpu.pytorch import Step

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.ones(8, 3)


def made() -> tuple[nn.Sequential, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize(
    "change", [lambda loss: setattr(loss, "reduction", "sum"), lambda loss: None], ids=["another reduction", "nothing"]
)
def test_a_loss_that_combines_otherwise(change: Callable[[Any], None]) -> None:
    model, optimizer = made()
    loss = nn.MSELoss()
    step = Step(model, optimizer, loss, precision="float32", micro_batch=3)
    step((X, Y))
    change(loss)
    result = step((X, Y))
    ours = gradients(model).clone()
    model.zero_grad()
    expected = loss(model(X), Y)
    expected.backward()
    torch.testing.assert_close(ours, gradients(model))
    torch.testing.assert_close(result.loss, expected.detach())


def test_a_layer_that_couples_rows_is_put_in() -> None:
    model, optimizer = made()
    step = Step(model, optimizer, nn.MSELoss(), precision="float32", micro_batch=3)
    assert "not those of the whole batch" not in step((X, Y)).receipt.reason
    model[1] = nn.BatchNorm1d(8)
    assert "not those of the whole batch: BatchNorm1d '1'" in step((X, Y)).receipt.reason


def test_parameters_that_the_optimizer_gets_later_do_not_add_up_their_gradients() -> None:
    model, optimizer = made()
    step = Step(model, optimizer, nn.MSELoss(), precision="float32")
    step((X, Y))
    model[2] = nn.Linear(8, 3)
    optimizer.add_param_group({"params": model[2].parameters()})
    step((X, Y))
    first = gradients(model).clone()
    step((X, Y))
    torch.testing.assert_close(gradients(model), first)


@pytest.mark.parametrize(
    "options", [{"memory": 0}, {"memory": -5}, {"memory": "much"}, {"memory": True}, {"clip_norm": -1.0}]
)
def test_what_is_no_budget_and_no_norm_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="has to be a positive number"):
        Step(*made(), nn.MSELoss(), **options)


def test_a_budget_may_be_a_text() -> None:
    step = Step(*made(), nn.MSELoss(), memory="1GiB")
    assert step((X, Y)).receipt.reason.endswith("of 1.0 GiB")
