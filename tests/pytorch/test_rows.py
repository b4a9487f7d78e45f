from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from anygpu.pytorch.rows import SteadyRandom, look_at_rows
from tests.pytorch.modules import Centred, Recurrent, mlp

CPU = torch.device("cpu")


class StochasticDepth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.empty(x.size(0), 1).bernoulli_(0.5) + torch.randn_like(x)


class Mixup(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * x[torch.randperm(x.size(0))]


class DividedByRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.size(0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x, x, x)[0]
        return found


def of_sequences(*shape: int) -> torch.Tensor:
    return torch.randn(32, *shape)


INDEPENDENT: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "mlp": (nn.Sequential(mlp(), nn.Dropout()), of_sequences(8)),
    "channels": (nn.Dropout1d(0.5), of_sequences(4, 8)),
    "batch norm that evaluates": (nn.BatchNorm1d(8).eval(), of_sequences(8)),
    "spectral norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), of_sequences(8)),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.3), of_sequences(5, 8)),
    "attention": (Attention(), of_sequences(5, 8)),
    "recurrent": (Recurrent(dropout=0.5), of_sequences(5, 8)),
    "stochastic depth": (StochasticDepth(), of_sequences(8)),
    "embedding": (nn.Embedding(10, 4), torch.arange(160).reshape(32, 5) % 10),
    "rows that are alike": (mlp(), torch.zeros(32, 8)),
    "two rows": (mlp(), torch.randn(2, 8)),
}

DEPENDENT: dict[str, tuple[nn.Module, torch.Tensor, str]] = {
    "batch norm": (nn.Sequential(nn.BatchNorm1d(8)), of_sequences(8), "BatchNorm1d '0' takes its statistics"),
    "batch norm of one": (nn.BatchNorm1d(8), torch.randn(2, 8), "takes its statistics"),
    "running statistics": (
        nn.InstanceNorm1d(4, track_running_stats=True),
        of_sequences(4, 8),
        "the buffer running_mean is computed from all rows",
    ),
    "centred": (Centred(), of_sequences(8), "rows depend on each other"),
    "centred, rows that are alike": (Centred(), torch.ones(32, 8), "rows depend on each other"),
    "mixed": (Mixup(), of_sequences(8), "rows depend on each other"),
    "divided": (DividedByRows(), of_sequences(8), "rows depend on each other"),
    "rows on another axis": (nn.TransformerEncoderLayer(8, 2, 16), of_sequences(5, 8), "rows depend on each other"),
    "one row": (mlp(), torch.randn(1, 8), "one row cannot be cut"),
    "tokens that are alike": (nn.Embedding(10, 4), torch.zeros(32, 5, dtype=torch.long), "are alike"),
    "a module that raises": (nn.Linear(9, 9), of_sequences(8), "cannot be computed alone"),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_seen(name: str) -> None:
    model, x = INDEPENDENT[name]
    shown = look_at_rows(model, model, x, len(x), CPU)
    assert (shown.whole, shown.have_rows) == ("", True)


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_rows_are_named(name: str) -> None:
    model, x, reason = DEPENDENT[name]
    assert reason in look_at_rows(model, model, x, len(x), CPU).whole


def test_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = {name: id(value) for name, value in model.named_buffers()}
    random = torch.get_rng_state()
    look_at_rows(model, model, torch.randn(16, 8), 16, CPU)
    assert torch.equal(torch.get_rng_state(), random) is False  # the inputs were drawn
    random = torch.get_rng_state()
    x = torch.ones(16, 8)
    look_at_rows(model, model, x, 16, CPU)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in model.named_buffers()} == tensors
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_not_held_back(raised: type[BaseException]) -> None:
    model = nn.BatchNorm1d(8)

    def forward(x: Any) -> Any:
        model(x)
        torch.rand(3)
        raise raised

    random = torch.get_rng_state()
    x = torch.ones(8, 8)
    with pytest.raises(raised):
        look_at_rows(model, forward, x, 8, CPU)
    assert torch.equal(torch.get_rng_state(), random)
    assert int(model.num_batches_tracked or 0) == 0
    assert torch.is_grad_enabled()


def test_outputs_without_rows_are_left_to_the_loss() -> None:
    shown = look_at_rows(mlp(), lambda x: x.sum(), torch.randn(8, 8), 8, CPU)
    assert (shown.whole, shown.have_rows) == ("", False)


def test_random_numbers_are_steady() -> None:
    x = torch.randn(4, 6)
    with SteadyRandom():
        assert torch.equal(nn.functional.dropout(x, 0.5), x)
        assert torch.equal(torch.randn(3), torch.zeros(3))
        assert torch.equal(torch.rand(3), torch.full((3,), 0.5))
        assert torch.equal(torch.normal(x, 1.0), x)
        assert torch.equal(torch.randperm(3), torch.tensor([2, 1, 0]))
        attention = nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.9)
    assert torch.allclose(attention, nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]))
