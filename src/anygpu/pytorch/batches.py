"""Batches: the tensors in them, their rows, and moving them to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from anygpu.errors import InvalidOption

# -- the tensors in a batch, whatever it is made of


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
    """Append all tensors of a batch, in the order in which they stand in it."""
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
    """A mapping of the same class with these items; what the class adds, such as a default, is kept."""
    if type(batch) is dict:
        return found
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)  # keeps what its class adds, such as a default
        for key, value in found.items():
            other[key] = value  # outputs of Hugging Face's modules refuse `update`
        return other
    return type(batch)(found)  # type: ignore[call-arg]


def _sequence_like(batch: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list or tuple of the same class with these items, named tuples included."""
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


# -- batches, and what modules make of them, cut along axis 0
#
# A batch has as many rows as its first tensor. Every tensor that has as many is cut; all else is given whole.


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
    """The number of rows of a batch with these leaves; `None` if none of them has rows."""
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
    """A key for batches whose steps take about as much: types, axes, and bytes a row within a quarter."""
    size = sum([leaf.nbytes for leaf in tensors]) * 4 // max(rows, 1)
    # The first three binary digits and how many follow: a logarithm that needs no floats.
    return (size.bit_length(), size >> max(0, size.bit_length() - 3), *[(leaf.dtype, leaf.dim()) for leaf in tensors])


# -- moving batches to a device: in a thread that fetches them, and then in the loop that uses them


class MovedBatch(NamedTuple):
    """A batch on its way; `ready` is what the loop's stream has to wait for, if anything."""

    batch: Any
    ready: Any = None


class Mover(Protocol):
    def send(self, batch: Any) -> MovedBatch:
        """Called by the thread that fetches."""
        ...

    def receive(self, moved: MovedBatch) -> Any:
        """The batch. Called by the loop that uses it."""
        ...


class StayMover:
    """Batches stay where the loader puts them, or are copied there."""

    def __init__(self, *, copies: bool = False) -> None:
        self._copies = copies

    def send(self, batch: Any) -> MovedBatch:
        return MovedBatch(copied(batch) if self._copies else batch)

    def receive(self, moved: MovedBatch) -> Any:
        return moved.batch


class PlainMover:
    """To a device without streams of its own: the copy is finished when the loop gets the batch."""

    def __init__(self, device: torch.device, *, copies: bool = False) -> None:
        self._device = device
        self._map = copied if copies else map_tensors

    def send(self, batch: Any) -> MovedBatch:
        return MovedBatch(self._map(batch, lambda tensor: tensor.to(self._device)))

    def receive(self, moved: MovedBatch) -> Any:
        return moved.batch


class CudaMover:
    """Pinned, and copied on a stream of its own while the loop's stream computes. Never run on a card.

    The loop's stream waits for the copy, not the host. The memory belongs to the copy's stream: `record_stream` keeps
    the allocator from giving it away while the loop's stream still uses it.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda, *, copies: bool = False) -> None:
        self._cuda = cuda
        self._copies = copies
        self._map = copied if copies else map_tensors
        index = cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream: Any = None

    def send(self, batch: Any) -> MovedBatch:
        """Copy a batch to the card on a stream of its own, beside what the loop computes."""
        cuda, device = self._cuda, self._device
        if self._stream is None:
            self._stream = cuda.Stream(device)
        if self._copies:
            # The loader's own work on the card comes before copies of what it has made there.
            self._stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(self._stream):
            there = self._map(batch, self._copy)
            ready = cuda.Event()
            ready.record(self._stream)
        if self._copies:
            ready.synchronize()  # then the loader may write to the memory that was copied from
        return MovedBatch(there, ready)

    def _copy(self, tensor: Any) -> Any:
        """Begins to copy a tensor to the device, from pinned memory so that the copy overlaps with computing."""
        if tensor.is_cuda:
            return tensor if getattr(tensor, "device", self._device) == self._device else tensor.to(self._device)
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self._device, non_blocking=True)

    def receive(self, moved: MovedBatch) -> Any:
        """The batch, on the stream that is current now, which waits for the copies.

        The tensors are recorded on that stream, so that torch does not use their memory again while it reads them.
        """
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(moved.ready)
        for tensor in tensors_of(moved.batch):
            if tensor.is_cuda:
                tensor.record_stream(stream)
        return moved.batch


def mover_to(device: torch.device | str | None, *, copies: bool = False) -> Mover:
    """Moves batches to `device`; with `copies`, into memory that the loader does not have, also where it has them."""
    if device is None:
        return StayMover(copies=copies)
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidOption(f"prefetch(device={device!r}) is no device of torch: {error}") from error
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise InvalidOption(
                f"prefetch(device={str(place)!r}) is not possible: torch finds no CUDA device here. `anygpu doctor` "
                "says why; leave out device= to keep batches on the host."
            )
        return CudaMover(place, copies=copies)
    return PlainMover(place, copies=copies)
