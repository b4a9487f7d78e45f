"""Modules and losses for tests of `Step`, and plain torch to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn


class Centred(nn.Module):
    """Rows depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Recurrent(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)[0]
        return found


def mlp(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, outputs)
    )


def contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Each row against all others."""
    rows = F.normalize(outputs, dim=1)
    scores = 5 * rows @ rows.T - 9 * torch.eye(len(rows))
    return F.cross_entropy(scores, torch.arange(len(rows)).roll(1))


def plain(
    model: nn.Module, loss: Callable[[Any, Any], torch.Tensor], inputs: Any, targets: Any
) -> tuple[nn.Module, torch.Tensor]:
    """A copy of the module with the gradients of the whole batch, and the loss."""
    other = copy.deepcopy(model)
    found = loss(other(inputs), targets)
    found.backward()
    return other, found.detach()


def assert_same_gradients(found: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, ours), theirs in zip(found.named_parameters(), expected.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, name
            continue
        assert ours.grad is not None, name
        far = (ours.grad - theirs.grad).norm()
        assert far <= tolerance * theirs.grad.norm() + 1e-12, (name, float(far))

