"""A small vision transformer, and generated images to train it with: stripes of some direction on a noisy ground."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE, PATCH = 32, 4


class Block(nn.Module):
    """A layer of a transformer: attention, then a small network for each patch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        rows, patches, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(
            rows, patches, 3, self.heads, width // self.heads
        )
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, patches, width))
        return x + self.network(self.before_network(x))


class VisionTransformer(nn.Module):
    """Images of 32 × 32 in, scores of classes out."""

    def __init__(self, classes: int, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, width))
        self.blocks = nn.ModuleList([Block(width, width // 32) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def stripes(count: int, directions: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many images, and which of the directions the stripes of each have."""
    labels = torch.randint(directions, (count,), generator=generator)
    angles = labels * math.pi / directions
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across = x * angles.cos()[:, None, None] + y * angles.sin()[:, None, None]
    width = 0.6 + 0.6 * torch.rand(count, 1, 1, generator=generator)
    waves = torch.sin(across * width + 2 * math.pi * torch.rand(count, 1, 1, generator=generator))
    colours = 0.3 + 0.7 * torch.rand(count, 3, 1, 1, generator=generator)
    return waves[:, None] * colours + 0.7 * torch.randn(count, 3, SIDE, SIDE, generator=generator), labels
