"""Small modules of twenty-two architectures, with a batch and a loss each: what predictions of memory are tried on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class Training(NamedTuple):
    model: nn.Module
    batch: tuple[Tensor, ...]
    loss_of: Callable[[nn.Module, Any], Tensor]


class Architecture(NamedTuple):
    make: Callable[[], Training]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    precision: str = "float32"


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _classified(model: nn.Module, batch: Any) -> Tensor:
    *inputs, labels = batch
    return functional.cross_entropy(model(*inputs), labels)


def _near(model: nn.Module, batch: Any) -> Tensor:
    *inputs, target = batch
    return functional.mse_loss(model(*inputs), target)


def _labels(rows: int, classes: int = 10) -> Tensor:
    return torch.randint(classes, (rows,))


class Around(nn.Module):
    """x + inner(x)"""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Transposed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Mean(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.into(x).reshape(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.out(found.transpose(1, 2).reshape(rows, length, width))


def _perceptron(width: int, times: int = 4, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, times * width), nn.GELU(), nn.Linear(times * width, width), nn.Dropout(dropout)
    )


def _block(width: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        Around(nn.LayerNorm(width), Attention(width, heads, causal)),
        Around(nn.LayerNorm(width), _perceptron(width, dropout=dropout)),
    )


# -- the architectures


def wide_perceptron() -> Training:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return Training(model, (torch.randn(1024, 1024), _labels(1024)), _classified)


def deep_perceptron() -> Training:
    layers = [layer for _ in range(24) for layer in (nn.Linear(256, 256), nn.BatchNorm1d(256), nn.SiLU())]
    return Training(nn.Sequential(*layers, nn.Linear(256, 10)), (torch.randn(2048, 256), _labels(2048)), _classified)


def convolutions() -> Training:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, Mean(2, 3), nn.Linear(128, 10))
    return Training(model, (torch.randn(32, 3, 96, 96), _labels(32)), _classified)


def residual() -> Training:
    def around(width: int) -> nn.Module:
        def half() -> list[nn.Module]:
            return [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]

        return Around(*half(), nn.ReLU(), *half())

    model = nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Sequential(around(32), around(32)),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.Sequential(around(64), around(64)),
        Mean(2, 3),
        nn.Linear(64, 10),
    )
    return Training(model, (torch.randn(24, 3, 96, 96), _labels(24)), _classified)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(self._two(before, after) for before, after in ((3, 24), (24, 48), (48, 96)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in (48, 24))
        self.up = nn.ModuleList(self._two(2 * width, width) for width in (48, 24))
        self.last = nn.Conv2d(24, 1, 1)

    @staticmethod
    def _two(before: int, after: int) -> nn.Module:
        first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        return nn.Sequential(first, nn.GroupNorm(4, after), nn.ReLU(), second, nn.GroupNorm(4, after), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for index, down in enumerate(self.down):
            x = down(x if index == 0 else functional.max_pool2d(x, 2))
            kept.append(x)
        for grow, up, beside in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = up(torch.cat([grow(x), beside], 1))
        return self.last(x)


def unet() -> Training:
    return Training(UNet(), (torch.randn(8, 3, 96, 96), torch.randn(8, 1, 96, 96)), _near)


class Patches(nn.Module):
    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, side, stride=side)

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


def vision_transformer() -> Training:
    blocks = nn.Sequential(*(_block(192, 3, dropout=0.1) for _ in range(8)))
    model = nn.Sequential(Patches(192, 16), blocks, Mean(1), nn.Linear(192, 10))
    return Training(model, (torch.randn(16, 3, 160, 160), _labels(16)), _classified)


def encoder() -> Training:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), Mean(1), nn.Linear(256, 10))
    return Training(model, (torch.randn(16, 128, 256), _labels(16)), _classified)


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        self.blocks = nn.ModuleList(_block(width, 4, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def _next_word(model: nn.Module, batch: Any) -> Tensor:
    words, following = batch
    return functional.cross_entropy(model(words), following.flatten())


def decoder() -> Training:
    words = torch.randint(2000, (8, 256))
    return Training(Decoder(2000, 192, 6), (words, words), _next_word)


class Recurrent(nn.Module):
    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


def lstm() -> Training:
    model = Recurrent(nn.LSTM(128, 256, 2, batch_first=True), 256)
    return Training(model, (torch.randn(32, 64, 128), _labels(32)), _classified)


def gru() -> Training:
    model = Recurrent(nn.GRU(128, 384, batch_first=True), 384)
    return Training(model, (torch.randn(128, 32, 128), _labels(128)), _classified)


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(40_000, 32) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        found = [table(x[:, index]).mean(1) for index, table in enumerate(self.tables)]
        return self.top(torch.cat(found, 1))


def embeddings() -> Training:
    return Training(Bags(), (torch.randint(40_000, (512, 4, 20)), _labels(512)), _classified)


def mixer() -> Training:
    def block() -> nn.Module:
        along = nn.Sequential(nn.Linear(100, 256), nn.GELU(), nn.Linear(256, 100))
        return nn.Sequential(Around(nn.LayerNorm(192), Transposed(along)), Around(nn.LayerNorm(192), _perceptron(192)))

    model = nn.Sequential(nn.Linear(192, 192), *(block() for _ in range(6)), Mean(1), nn.Linear(192, 10))
    return Training(model, (torch.randn(32, 100, 192), _labels(32)), _classified)


class Pooling(nn.Module):
    """A few learned queries look at many vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(8, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.before = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        found, _ = self.attention(self.queries.expand(len(x), -1, -1), x, x, need_weights=False)
        return self.head(found.flatten(1))


def attention_pooling() -> Training:
    return Training(Pooling(192), (torch.randn(64, 256, 192), _labels(64)), _classified)


def autoencoder() -> Training:
    widths = (2048, 1024, 256, 64, 256, 1024, 2048)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ELU()]
    x = torch.randn(2048, 2048)
    return Training(nn.Sequential(*layers[:-1]), (x, x), _near)


def siamese() -> Training:
    def apart(model: nn.Module, batch: Any) -> Tensor:
        first, second, same = batch
        distance = (model(first) - model(second)).square().sum(1)
        return torch.where(same, distance, functional.relu(1 - distance)).mean()

    inner = nn.Sequential(
        nn.Linear(512, 1024), nn.LayerNorm(1024), nn.GELU(), nn.Linear(1024, 512), nn.GELU(), nn.Linear(512, 64)
    )
    batch = (torch.randn(2048, 512), torch.randn(2048, 512), torch.rand(2048) < 0.5)
    return Training(inner, batch, apart)


def depthwise() -> Training:
    def block(before: int, after: int, groups: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, before, 3, padding=1, groups=before),
            nn.BatchNorm2d(before),
            nn.Hardswish(),
            nn.Conv2d(before, after, 1, groups=groups),
            nn.BatchNorm2d(after),
        )

    model = nn.Sequential(
        block(32, 64, 1), nn.AvgPool2d(2), block(64, 128, 4), nn.AvgPool2d(2), Mean(2, 3), nn.Linear(128, 10)
    )
    return Training(model, (torch.randn(16, 32, 96, 96), _labels(16)), _classified)


def normalisations() -> Training:
    layers = [
        layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.LayerNorm(512), nn.PReLU(), nn.RMSNorm(512))
    ]
    return Training(nn.Sequential(*layers, nn.Linear(512, 10)), (torch.randn(1024, 512), _labels(1024)), _classified)


def generator() -> Training:
    def grow(before: int, after: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]

    model = nn.Sequential(
        nn.Linear(128, 256 * 36),
        nn.Unflatten(1, (256, 6, 6)),
        *grow(256, 128),
        *grow(128, 64),
        *grow(64, 32),
        nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )
    return Training(model, (torch.randn(32, 128), torch.randn(32, 3, 96, 96)), _near)


class Graph(nn.Module):
    """Nodes of each graph send messages along edges, which are the same for all."""

    def __init__(self, width: int, nodes: int, edges: int) -> None:
        super().__init__()
        self.register_buffer("senders", torch.randint(nodes, (edges,)))
        self.register_buffer("receivers", torch.randint(nodes, (edges,)))
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for message in self.messages:
            sent = torch.relu(message(torch.cat([x[:, self.senders], x[:, self.receivers]], -1)))
            x = x + torch.zeros_like(x).index_add(1, self.receivers, sent)
        return self.head(x.mean(1))


def graph() -> Training:
    return Training(Graph(64, 200, 1500), (torch.randn(32, 200, 64), _labels(32)), _classified)


def audio() -> Training:
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128), (128, 128)):
        layers += [nn.Conv1d(before, after, 9, stride=2, padding=4), nn.BatchNorm1d(after), nn.ReLU()]
    model = nn.Sequential(*layers, Mean(2), nn.Linear(128, 10))
    return Training(model, (torch.randn(16, 1, 16_000), _labels(16)), _classified)


def large_vocabulary() -> Training:
    words = torch.randint(30_000, (4, 128))
    return Training(Decoder(30_000, 128, 2), (words, words), _next_word)


class Experts(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.route = nn.Linear(width, experts)
        self.experts = nn.ModuleList(_perceptron(width, 2) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.route(x).softmax(-1)
        found = torch.stack([expert(x) for expert in self.experts], -1)
        return x + (found * shares.unsqueeze(-2)).sum(-1)


def experts() -> Training:
    model = nn.Sequential(*(Experts(256, 6) for _ in range(3)), nn.Linear(256, 10))
    return Training(model, (torch.randn(1024, 256), _labels(1024)), _classified)


ARCHITECTURES: dict[str, Architecture] = {
    "wide perceptron": Architecture(wide_perceptron, _adamw),
    "deep perceptron": Architecture(deep_perceptron, _sgd),
    "convolutions": Architecture(convolutions, _momentum),
    "residual, batch norm": Architecture(residual, _momentum),
    "U-Net": Architecture(unet, _adamw),
    "vision transformer": Architecture(vision_transformer, _adamw),
    "transformer encoder": Architecture(encoder, _adamw),
    "causal decoder": Architecture(decoder, _adamw),
    "LSTM": Architecture(lstm, _adamw),
    "GRU": Architecture(gru, _sgd),
    "embeddings": Architecture(embeddings, _adamw),
    "mixer": Architecture(mixer, _momentum),
    "attention pooling": Architecture(attention_pooling, _sgd),
    "autoencoder": Architecture(autoencoder, _adamw),
    "siamese": Architecture(siamese, _sgd),
    "depthwise and grouped": Architecture(depthwise, _momentum),
    "normalisations": Architecture(normalisations, _adamw),
    "generator": Architecture(generator, _adamw),
    "graph": Architecture(graph, _sgd),
    "audio, 1-d": Architecture(audio, _momentum),
    "large vocabulary": Architecture(large_vocabulary, _adamw),
    "dense experts": Architecture(experts, _adamw),
    "wide perceptron, bfloat16": Architecture(wide_perceptron, _adamw, "bfloat16"),
    "convolutions, bfloat16": Architecture(convolutions, _momentum, "bfloat16"),
    "vision transformer, bfloat16": Architecture(vision_transformer, _adamw, "bfloat16"),
    "causal decoder, bfloat16": Architecture(decoder, _adamw, "bfloat16"),
}
