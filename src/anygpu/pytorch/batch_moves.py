"""Moving batches to a device: in a thread that fetches them, and then in the loop that uses them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from anygpu.errors import InvalidOption
from anygpu.pytorch.batch_tensors import copied, map_tensors, tensors_of


class Moved(NamedTuple):
    """A batch on its way; `ready` is what the loop's stream has to wait for, if anything."""

    batch: Any
    ready: Any = None


class Mover(Protocol):
    def send(self, batch: Any) -> Moved:
        """Called by the thread that fetches."""
        ...

    def receive(self, moved: Moved) -> Any:
        """The batch. Called by the loop that uses it."""
        ...


class StayMover:
    """Batches stay where the loader puts them, or are copied there."""

    def __init__(self, *, copies: bool = False) -> None:
        self._copies = copies

    def send(self, batch: Any) -> Moved:
        return Moved(copied(batch) if self._copies else batch)

    def receive(self, moved: Moved) -> Any:
        return moved.batch


class PlainMover:
    """To a device without streams of its own: the copy is finished when the loop gets the batch."""

    def __init__(self, device: torch.device, *, copies: bool = False) -> None:
        self._device = device
        self._map = copied if copies else map_tensors

    def send(self, batch: Any) -> Moved:
        return Moved(self._map(batch, lambda tensor: tensor.to(self._device)))

    def receive(self, moved: Moved) -> Any:
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

    def send(self, batch: Any) -> Moved:
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
        return Moved(there, ready)

    def _copy(self, tensor: Any) -> Any:
        if tensor.is_cuda:
            return tensor if getattr(tensor, "device", self._device) == self._device else tensor.to(self._device)
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self._device, non_blocking=True)

    def receive(self, moved: Moved) -> Any:
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
