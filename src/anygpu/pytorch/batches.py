"""Batches, and what modules make of them: tensors in tuples, lists and mappings, which are cut along axis 0.

A batch has as many rows as its first tensor. Every tensor that has as many is cut; all else is given whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

Change = Callable[[torch.Tensor], Any]


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors, in an order that depends on the structure alone."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, PackedSequence):
        # Its rows are interleaved: nothing of it can be cut along an axis.
        return
    elif isinstance(tree, tuple | list):
        for each in tree:
            yield from leaves(each)
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from leaves(each)


def mapped(tree: Any, change: Change) -> Any:
    """The same structure, with other tensors."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, PackedSequence):
        return tree
    if isinstance(tree, tuple):
        made = [mapped(each, change) for each in tree]
        return type(tree)(*made) if hasattr(tree, "_fields") else tuple(made)
    if isinstance(tree, list):
        return [mapped(each, change) for each in tree]
    if type(tree) is dict:
        return {name: mapped(each, change) for name, each in tree.items()}
    if isinstance(tree, Mapping):
        # Outputs of Hugging Face's modules are mappings with attributes of the same names: their class keeps both.
        made_mapping: Any = copy.copy(tree)
        for name in list(tree):
            made_mapping[name] = mapped(tree[name], change)
        return made_mapping
    return tree


def count_rows(batch: Any) -> int | None:
    """`None` if there is no tensor with rows."""
    return next((leaf.size(0) for leaf in leaves(batch) if leaf.dim()), None)


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
    columns = iter([torch.cat(each) for each in zip(*(leaves(part) for part in parts), strict=True)])
    return mapped(parts[0], lambda _: next(columns))


def all_have_rows(outputs: Any, rows: int) -> bool:
    """Whether there are tensors, and all of them have that many rows."""
    found = list(leaves(outputs))
    return bool(found) and all(leaf.dim() > 0 and leaf.size(0) == rows for leaf in found)


def moved(batch: Any, device: torch.device) -> tuple[Any, int]:
    """The batch on `device`, and the bytes that had to move. Pinned memory is copied while the host goes on."""
    if all(leaf.device == device for leaf in leaves(batch)) and not _packed(batch):
        return batch, 0
    count = 0

    def to_device(leaf: torch.Tensor) -> torch.Tensor:
        nonlocal count
        if leaf.device == device:
            return leaf
        count += leaf.nbytes
        return leaf.to(device, non_blocking=device.type == "cuda" and leaf.is_pinned())

    def packed_to_device(tree: Any) -> Any:
        if isinstance(tree, PackedSequence):
            return tree.to(device)
        if isinstance(tree, tuple | list) and not hasattr(tree, "_fields"):
            return type(tree)(packed_to_device(each) for each in tree)
        return tree

    return mapped(packed_to_device(batch), to_device), count


def _packed(tree: Any) -> bool:
    if isinstance(tree, PackedSequence):
        return True
    return isinstance(tree, tuple | list) and any(map(_packed, tree))


def form_of(batch: Any, rows: int) -> tuple[Any, ...]:
    """What batches have in common whose steps take about as much: types, axes, and bytes a row within a quarter."""
    found = list(leaves(batch))
    # The length of bytes in binary, with two digits behind the first, is a logarithm that needs no floats.
    size = sum(leaf.nbytes for leaf in found) * 4 // max(rows, 1)
    return (size.bit_length(), size >> max(0, size.bit_length() - 3), *((leaf.dtype, leaf.dim()) for leaf in found))


