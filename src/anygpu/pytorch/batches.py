"""Batches, and what modules make of them, cut along axis 0.

A batch has as many rows as its first tensor. Every tensor that has as many is cut; all else is given whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from anygpu.pytorch.batch_tensors import map_tensors


def leaves(tree: Any) -> list[torch.Tensor]:
    """Each tensor once. Those of a `PackedSequence` are none: its rows are interleaved, so it is only given whole."""
    found: list[torch.Tensor] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        return leaf

    map_tensors(tree, note)
    return found


def mapped(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure, with other tensors."""
    return map_tensors(tree, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def count_rows(tensors: Sequence[torch.Tensor]) -> int | None:
    """Of a batch with these leaves; `None` if none of them has rows."""
    return next((leaf.size(0) for leaf in tensors if leaf.dim()), None)


def part_of(batch: Any, rows: int, begin: int, end: int) -> Any:
    """Rows `begin` to `end` of a batch of `rows`."""
    return mapped(batch, lambda leaf: leaf[begin:end] if leaf.dim() and leaf.size(0) == rows else leaf)


def rows_at(batch: Any, rows: int, places: Sequence[int]) -> Any:
    """The rows at those places, copied."""
    return mapped(batch, lambda leaf: leaf[list(places)] if leaf.dim() and leaf.size(0) == rows else leaf)


def bounds(rows: int, size: int) -> list[tuple[int, int]]:
    """Where micro-batches of at most `size` rows begin and end."""
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def joined(parts: Sequence[Any]) -> Any:
    """The outputs of micro-batches as those of one batch. Each tensor in them has rows."""
    columns = list(zip(*map(leaves, parts), strict=True))
    whole = {id(column[0]): torch.cat(column) for column in columns}
    return mapped(parts[0], lambda leaf: whole[id(leaf)])


def all_have_rows(outputs: Any, rows: int) -> bool:
    """Whether there are tensors, and all of them have that many rows."""
    found = leaves(outputs)
    return bool(found) and all(leaf.dim() > 0 and leaf.size(0) == rows for leaf in found)


def moved(batch: Any, device: torch.device) -> tuple[Any, int]:
    """The batch on `device`, and the bytes that had to move. Pinned memory is copied while the host goes on."""
    count = 0

    def to_device(leaf: Any) -> Any:
        nonlocal count
        tensor = leaf if isinstance(leaf, torch.Tensor) else leaf.data
        if tensor.device == device:
            return leaf
        count += tensor.nbytes
        return leaf.to(device, non_blocking=device.type == "cuda" and tensor.is_pinned())

    return map_tensors(batch, to_device), count


def form_of(tensors: Sequence[torch.Tensor], rows: int) -> tuple[Any, ...]:
    """What batches have in common whose steps take about as much: types, axes, and bytes a row within a quarter."""
    size = sum([leaf.nbytes for leaf in tensors]) * 4 // max(rows, 1)
    # The first three binary digits and how many follow: a logarithm that needs no floats.
    return (size.bit_length(), size >> max(0, size.bit_length() - 3), *[(leaf.dtype, leaf.dim()) for leaf in tensors])
