"""Random modules, batches and losses for `benchmarks.pytorch_step`: each is made from its number alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

CLASSES = 5


class Case(NamedTuple):
    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    loss: Callable[[Any, Any], torch.Tensor]
    #: Of the module and of the loss.
    kinds: tuple[str, str]
    micro_batch: int
    checkpoint: tuple[str, ...]


# -- modules: each takes its rows on axis 0, and gives `CLASSES` scores for a row
#
# The last layer has no bias: with one, the scores of all rows are almost parallel before any training, and the gradient
# of a contrastive loss is a difference of numbers that agree in most of their digits, in plain torch as well.


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.inner(x)
        return made


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], width: int) -> None:
        super().__init__()
        self.inner = kind(width, width, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)[0]
        return made


class Pooled(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(self.axes)


def _activation(rng: random.Random) -> nn.Module:
    return rng.choice((nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU))()


def _vectors(rng: random.Random, rows: int, kind: str) -> tuple[list[nn.Module], torch.Tensor]:
    width = rng.choice((8, 16, 33))
    shared = nn.Linear(width, width)
    layers: list[nn.Module] = []
    for _ in range(rng.randint(2, 4)):
        linear = shared if kind == "shared weights" else nn.Linear(width, width)
        block = nn.Sequential(linear, _activation(rng))
        if kind == "norm":
            block.append(rng.choice((nn.LayerNorm, nn.RMSNorm))(width))
        layers.append(Residual(block) if kind == "residual" else block)
    return [*layers, nn.Linear(width, CLASSES, bias=False)], torch.randn(rows, width)


def _images(rng: random.Random, rows: int, kind: str) -> tuple[list[nn.Module], torch.Tensor]:
    channels = rng.choice((4, 8))
    layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), _activation(rng))]
    for _ in range(rng.randint(1, 3)):
        block = nn.Sequential(nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 3, padding=1), _activation(rng))
        layers.append(Residual(block) if rng.random() < 0.5 else block)
    return [*layers, Pooled(2, 3), nn.Linear(channels, CLASSES, bias=False)], torch.randn(rows, 3, 8, 8)


def _sequences(rng: random.Random, rows: int, kind: str) -> tuple[list[nn.Module], torch.Tensor]:
    width = 16
    layers: list[nn.Module] = []
    for _ in range(rng.randint(1, 2)):
        if kind == "recurrent":
            layers.append(Recurrent(rng.choice((nn.LSTM, nn.GRU)), width))
        else:
            layers.append(nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True))
    x = torch.randn(rows, 6, width)
    if kind == "embedding":
        layers.insert(0, nn.Embedding(20, width))
        x = torch.randint(0, 20, (rows, 6))
    return [*layers, Pooled(1), nn.Linear(width, CLASSES, bias=False)], x


MODULES: dict[str, Callable[[random.Random, int, str], tuple[list[nn.Module], torch.Tensor]]] = {
    "mlp": _vectors,
    "norm": _vectors,
    "residual": _vectors,
    "shared weights": _vectors,
    "conv": _images,
    "attention": _sequences,
    "recurrent": _sequences,
    "embedding": _sequences,
}

# -- losses


def _contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    rows = F.normalize(outputs, dim=1)
    alone = torch.eye(len(rows), dtype=rows.dtype)
    return F.cross_entropy(4 * rows @ rows.T - 9 * alone, torch.arange(len(rows)).roll(1))


def _weights(outputs: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 2.0, CLASSES, dtype=outputs.dtype)


LOSSES: dict[str, tuple[str, Callable[[Any, Any], torch.Tensor]]] = {
    "mean": ("values", nn.MSELoss()),
    "sum": ("values", nn.MSELoss(reduction="sum")),
    "cross entropy": ("classes", nn.CrossEntropyLoss()),
    "ignore_index": ("padded", nn.CrossEntropyLoss()),
    "label smoothing": ("padded", nn.CrossEntropyLoss(label_smoothing=0.1)),
    "custom mean": ("values", lambda o, t: (o - t).abs().pow(1.5).mean()),
    "custom sum": ("values", lambda o, t: (o - t).square().mean(1).sum()),
    "custom weighted": ("padded", lambda o, t: F.cross_entropy(o, t, weight=_weights(o))),
    "custom root": ("values", lambda o, t: F.mse_loss(o, t).sqrt()),
    "contrastive": ("values", _contrastive),
}


def random_case(number: int) -> Case:
    rng = random.Random(number)
    torch.manual_seed(number)
    module, loss = list(MODULES)[number % len(MODULES)], rng.choice(list(LOSSES))
    rows = rng.randint(5, 40)
    layers, inputs = MODULES[module](rng, rows, module)
    model = nn.Sequential(*layers)
    needs, function = LOSSES[loss]
    targets = torch.randn(rows, CLASSES) if needs == "values" else torch.randint(0, CLASSES, (rows,))
    if needs == "padded":
        targets[torch.rand(rows) < 0.4] = -100
        targets[0] = 0
    names = [name for name, _ in model.named_children()]
    checkpoint = tuple(name for name in names if rng.random() < 0.4)
    return Case(model, inputs, targets, function, (module, loss), rng.randint(1, rows), checkpoint)
