"""The tensors in a batch, whatever it is made of."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

#: A tensor, or what moves its own tensors because it knows which of them stay on the host.
Movable = torch.Tensor | PackedSequence


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with each tensor replaced by `change` of it, once also where it occurs twice.

    Tuples, named tuples, lists, mappings and dataclasses are looked into; everything else stays as it is. A container
    in which nothing changed is the same object afterwards, and no container is changed in place.
    """
    return _mapped(batch, change, {})


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


def _mapped(batch: Any, change: Callable[[Any], Any], done: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(batch, Movable):
        # The tensor is kept beside its replacement, so that no other gets its id meanwhile.
        if id(batch) not in done:
            done[id(batch)] = (batch, change(batch))
        return done[id(batch)][1]
    if isinstance(batch, Mapping):
        found = {key: _mapped(value, change, done) for key, value in batch.items()}
        return batch if all(found[key] is value for key, value in batch.items()) else _mapping_like(batch, found)
    if isinstance(batch, list | tuple):
        items = [_mapped(item, change, done) for item in batch]
        if all(new is old for new, old in zip(items, batch, strict=True)):
            return batch
        return _sequence_like(batch, items)
    if _is_dataclass(batch):
        fields = {name: _mapped(getattr(batch, name), change, done) for name in _fields(batch)}
        if all(getattr(batch, name) is value for name, value in fields.items()):
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
