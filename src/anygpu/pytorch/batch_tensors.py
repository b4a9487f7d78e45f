"""The tensors in a batch, whatever it is made of."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

#: A tensor, or what moves its own tensors because it knows which of them stay on the host.
Movable = torch.Tensor | PackedSequence


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with each tensor replaced by `change` of it, once also where it occurs twice.

    Tuples, named tuples, lists, mappings and dataclasses are looked into; everything else stays as it is. A container
    in which nothing changed is the same object afterwards, and no container is changed in place.
    """
    return _mapped(batch, change, {}, Movable, anew=False)


def copied(batch: Any, change: Callable[[Any], Any] = lambda tensor: tensor) -> Any:
    """As `map_tensors`, in memory of its own: what is written to the batch afterwards does not show in the result.

    Tensors that `change` returns as they are, NumPy's arrays, and all containers are copied; other objects are not.
    """

    def own(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return leaf.copy()
        found = change(leaf)
        return copy_of(leaf) if found is leaf else found

    return _mapped(batch, own, {}, Movable | np.ndarray, anew=True)


def copy_of(leaf: Any) -> Any:
    """A tensor, or a `PackedSequence`, with the same values in other memory, pinned if this one is."""
    if isinstance(leaf, PackedSequence):
        return leaf._replace(**{name: copy_of(part) for name, part in leaf._asdict().items() if part is not None})
    values = leaf.detach()
    made = torch.empty_like(values, pin_memory=True).copy_(values) if leaf.is_pinned() else values.clone()
    return made.requires_grad_(leaf.requires_grad)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Every tensor in the batch, in order; one that occurs twice comes twice."""
    found: list[torch.Tensor] = []
    _collect(batch, found)
    return found


def _collect(batch: Any, found: list[torch.Tensor]) -> None:
    if isinstance(batch, torch.Tensor):
        found.append(batch)
    elif isinstance(batch, list | tuple):
        for part in batch:
            _collect(part, found)
    elif batch is None or isinstance(batch, str | int | float):
        pass  # the usual others, before questions that take longer
    elif isinstance(batch, Mapping):
        for part in batch.values():
            _collect(part, found)
    elif _is_dataclass(batch):
        for name in _fields(batch):
            _collect(getattr(batch, name), found)


def _mapped(
    batch: Any, change: Callable[[Any], Any], done: dict[int, tuple[Any, Any]], kinds: Any, *, anew: bool
) -> Any:
    """With `anew`, containers that could be changed are copied although nothing in them is."""
    if isinstance(batch, kinds):
        # The tensor is kept beside its replacement, so that no other gets its id meanwhile.
        if id(batch) not in done:
            done[id(batch)] = (batch, change(batch))
        return done[id(batch)][1]
    if isinstance(batch, Mapping):
        found = {key: _mapped(value, change, done, kinds, anew=anew) for key, value in batch.items()}
        is_same = not anew and all(found[key] is value for key, value in batch.items())
        return batch if is_same else _mapping_like(batch, found)
    if isinstance(batch, list | tuple):
        items = [_mapped(item, change, done, kinds, anew=anew) for item in batch]
        is_fixed = not anew or isinstance(batch, tuple)
        if is_fixed and all(new is old for new, old in zip(items, batch, strict=True)):
            return batch
        return _sequence_like(batch, items)
    if _is_dataclass(batch):
        fields = {name: _mapped(getattr(batch, name), change, done, kinds, anew=anew) for name in _fields(batch)}
        if not anew and all(getattr(batch, name) is value for name, value in fields.items()):
            return batch
        other = copy.copy(batch)
        for name, value in fields.items():
            object.__setattr__(other, name, value)  # also of a frozen one
        return other
    return batch


def _mapping_like(batch: Mapping[Any, Any], found: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return found
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)  # keeps what its class adds, such as a default
        for key, value in found.items():
            other[key] = value  # outputs of Hugging Face's modules refuse `update`
        return other
    return type(batch)(found)  # type: ignore[call-arg]


def _sequence_like(batch: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    if hasattr(batch, "_make"):  # a named tuple
        return type(batch)._make(items)
    if isinstance(batch, list) and type(batch) is not list:
        other = copy.copy(batch)
        other[:] = items
        return other
    return type(batch)(items)


def _is_dataclass(batch: Any) -> bool:
    return dataclasses.is_dataclass(batch) and not isinstance(batch, type)


def _fields(batch: Any) -> list[str]:
    """The names of the fields that it has: one without a default may never have been set."""
    return [field.name for field in dataclasses.fields(batch) if hasattr(batch, field.name)]
