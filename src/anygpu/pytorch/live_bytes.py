"""Counting the bytes that are alive while torch runs: storages as they are made, and as they die."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from anygpu.pytorch.scratch import hidden_bytes, scratch_bytes

#: What allocators round up to.
_GRAIN = {"cpu": 64, "cuda": 512}

_aten, _prim = torch.ops.aten, torch.ops.prim


class _Storage(NamedTuple):
    bytes: int
    owner: str | None
    reference: weakref.ref[Any]


class LiveBytes(TorchDispatchMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """While it is active, every storage that an operation makes counts until it dies.

    A storage belongs to the `owner` of the moment in which it is made.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, _Storage] = {}
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.flops = 0
        #: Floating-point operations and bytes that were made, by owner.
        self.work: dict[str | None, tuple[int, int]] = {}
        self.owner: str | None = None
        #: Whether a backward pass runs.
        self.is_backward = False

    def add(self, tensor: torch.Tensor, size: int | None = None) -> None:
        """Count the storage of `tensor`, unless it is known; `size` if it is not the storage's own."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            return
        grain = _GRAIN.get(tensor.device.type, 512)
        bytes_ = -(-(storage.nbytes() if size is None else size) // grain) * grain
        # The reference holds no reference to us: a storage may outlive the count.
        reference = weakref.ref(storage, _Death(weakref.ref(self), key))
        self._storages[key] = _Storage(bytes_, self.owner, reference)
        self.now += bytes_
        if size is not None or bytes_:
            flops, made = self.work.get(self.owner, (0, 0))
            self.work[self.owner] = flops, made + bytes_

    def _dead(self, key: int) -> None:
        storage = self._storages.pop(key, None)
        if storage is not None:
            self.now -= storage.bytes

    def owned(self, owner: str, *, without: Iterable[torch.Tensor]) -> int:
        """Living bytes of an owner, except the storages of some tensors."""
        excepted = {id(tensor.untyped_storage()) for tensor in without}
        return sum(one.bytes for key, one in self._storages.items() if one.owner == owner and key not in excepted)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if operation is _prim.device.default:  # the question for a tensor's device comes as an operation
            return result
        self.operations += 1
        results = result if isinstance(result, (tuple, list)) else (result,)
        hidden = hidden_bytes(operation, args, result)
        for position, one in enumerate(results):
            if isinstance(one, torch.Tensor):
                self.add(one, hidden.get(position))
        if not (self.is_backward and _adds_gradients(operation, args)):
            self.peak = max(self.peak, self.now + scratch_bytes(operation, args, result))
        count = flop_registry.get(operation._overloadpacket)
        if count is not None:
            flops = int(count(*args, **(kwargs or {}), out_val=result))
            self.flops += flops
            before, made = self.work.get(self.owner, (0, 0))
            self.work[self.owner] = before + flops, made
        return result


def _adds_gradients(operation: Any, arguments: tuple[Any, ...]) -> bool:
    """Autograd adds gradients from several places into the first of them; with fakes it makes a third."""
    return (
        operation is _aten.add.Tensor
        and isinstance(arguments[1], torch.Tensor)
        and arguments[0].shape == arguments[1].shape
        and arguments[0].is_contiguous()
    )


class _Death:
    __slots__ = ("_count", "_key")

    def __init__(self, count: weakref.ref[LiveBytes], key: int) -> None:
        self._count, self._key = count, key

    def __call__(self, _: object) -> None:
        count = self._count()
        if count is not None:
            count._dead(self._key)
