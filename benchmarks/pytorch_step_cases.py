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


# -- rows that meet
#
# Each layer takes tensors with rows on axis 0, of any shape, and has rows depend on each other: openly, in the backward
# pass alone, only once parameters have moved, or only when there are many of them.


class _Gate(nn.Module):
    """Rows attend to each other through a gate that begins at zero; it opens by training, or by a schedule."""

    def __init__(self, by_schedule: bool) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()), requires_grad=not by_schedule)
        self.by_schedule = by_schedule
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        mixed = (torch.softmax(flat @ flat.T / flat.size(1), -1) @ flat).reshape(x.shape)
        if not self.by_schedule:
            return x + self.gate * mixed
        self.steps += 1
        return x + (0.1 if int(self.steps) > 4 else 0.0) * mixed


class _Experts(nn.Module):
    """Each has room for some of the rows that want it."""

    def __init__(self, width: int, room: int) -> None:
        super().__init__()
        self.router, self.room = nn.Linear(width, 3), room
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        share = self.router(flat).softmax(-1)
        for number, expert in enumerate(self.experts):
            mine = (share.argmax(-1) == number).nonzero().flatten()[: self.room]
            flat = flat.index_add(0, mine, 0.1 * expert(flat[mine]) * share[mine, number : number + 1])
        return flat.reshape(x.shape)


class _NormalisedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] / (gradients[0].norm() + 1e-6)


class _Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _hidden(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(0, keepdim=True).square()
    return x + mean - mean.detach()


def _straight_through(x: torch.Tensor) -> torch.Tensor:
    """The values of the rows, with the gradient of rows that were scaled by their largest."""
    soft = x / (x.abs().amax() + 1.0)
    return soft + (x - soft).detach()


def _clamped(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))


def _clamp_gradient(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.clamp_(-1e-4, 1e-4)


def _hooks(rng: random.Random, x: torch.Tensor) -> nn.Module:
    layer = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), x[0].numel()), nn.Unflatten(1, x.shape[1:]))
    linear = layer[1]
    kind = rng.choice(("parameter", "accumulated", "module", "tensor"))
    if kind == "parameter":
        linear.weight.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))
    elif kind == "accumulated":
        linear.weight.register_post_accumulate_grad_hook(_clamp_gradient)
    elif kind == "module":
        linear.register_full_backward_pre_hook(lambda module, outputs: tuple(each / each.norm() for each in outputs))
    else:
        linear.register_forward_hook(_clamped)
    return layer


def _gates(rng: random.Random, x: torch.Tensor) -> nn.Module:
    return _Gate(rng.random() < 0.3)


def _capacities(rng: random.Random, x: torch.Tensor) -> nn.Module:
    return _Experts(x[0].numel(), rng.randint(1, max(1, len(x) // 3)))


def _detached(rng: random.Random, x: torch.Tensor) -> nn.Module:
    return _Applied(rng.choice((_hidden, _straight_through, _NormalisedGradient.apply)))


def _batch_norms(rng: random.Random, x: torch.Tensor) -> nn.Module:
    if x.dim() == 2:
        return nn.BatchNorm1d(x.size(1))
    return nn.BatchNorm2d(x.size(1)) if x.dim() == 4 else nn.BatchNorm1d(x.size(1))


def _lengths(rng: random.Random, x: torch.Tensor) -> nn.Module:
    most, factor = rng.randint(1, len(x)), rng.choice((0.5, 2.0, 1.05))
    return _Applied(lambda each: each if len(each) <= most else factor * each)


COUPLINGS: dict[str, Callable[[random.Random, torch.Tensor], nn.Module]] = {
    "hooks": _hooks,
    "gates": _gates,
    "capacities": _capacities,
    "detached": _detached,
    "batch norm": _batch_norms,
    "lengths": _lengths,
}


def coupled_case(number: int, kind: str) -> Case:
    """A random case with a layer in which rows meet, or the number of rows matters, somewhere before its last one."""
    case = random_case(number)
    rng = random.Random(f"{number} {kind}")
    torch.manual_seed(number)
    layers = list(case.model.children())
    # After an embedding: numbers of tokens do not meet.
    first = 1 if not case.inputs.is_floating_point() else 0
    place = rng.randint(first, len(layers) - 1)
    with torch.no_grad():
        x = nn.Sequential(*layers[:place])(case.inputs)
    model = nn.Sequential(*layers[:place], COUPLINGS[kind](rng, x), *layers[place:])
    return case._replace(model=model, kinds=(f"{case.kinds[0]} with {kind}", case.kinds[1]), checkpoint=())
