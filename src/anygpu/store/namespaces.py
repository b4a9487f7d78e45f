"""A store as one model sees it, with names of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from anygpu.array.core.array import Array
from anygpu.store.entry import Holder, Lease, Path, key_of
from anygpu.store.tensor import Copying, Tensor

if TYPE_CHECKING:
    from anygpu.store.store import Store
    from anygpu.tensor_files.saving import Saved


class Namespace:
    """A store as one model sees it: the same tensors, and names of its own."""

    def __init__(self, store: Store, namespace: Path) -> None:
        self.store = store
        self.path = key_of(namespace, "")[:-1]

    def put(self, name: str, array: Any, *, owner: str = "main", hash: bool | None = None) -> Tensor:
        return self.store.put(name, array, owner=owner, namespace=self.path, hash=hash)

    def get(self, name: str) -> Tensor:
        return self.store.get(name, namespace=self.path)

    def share(self, name: str, with_: Iterable[Holder]) -> Tensor:
        return self.store.share(name, with_, namespace=self.path)

    def lease(self, name: str, *, holder: Holder = "main") -> Lease:
        return self.store.lease(name, holder=holder, namespace=self.path)

    def release(self, name: str, *, holder: Holder | None = None) -> None:
        self.store.release(name, holder=holder, namespace=self.path)

    def pin(self, name: str) -> Tensor:
        return self.store.pin(name, namespace=self.path)

    def unpin(self, name: str) -> None:
        self.store.unpin(name, namespace=self.path)

    def view(
        self,
        name: str,
        index: Any = None,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
        device: object | None = None,
        copy: Copying = "allow",
    ) -> Array:
        return self.store.view(name, index, shape=shape, dtype=dtype, device=device, copy=copy, namespace=self.path)

    def synchronise(self, name: str, where: Literal["host", "device"]) -> Tensor:
        return self.store.synchronise(name, where, namespace=self.path)

    def prefetch(self, names: str | Sequence[str], *, wait: bool = False) -> None:
        self.store.prefetch(names, namespace=self.path, wait=wait)

    def open(
        self,
        path: str | os.PathLike[str],
        names: Iterable[str] | None = None,
        *,
        owner: str | None = None,
        outside_links: bool = False,
    ) -> dict[str, Tensor]:
        return self.store.open(path, names, owner=owner, namespace=self.path, outside_links=outside_links)

    def save(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        shard_bytes: int | None = None,
    ) -> Saved:
        return self.store.save(path, names, namespace=self.path, metadata=metadata, shard_bytes=shard_bytes)

    def names(self) -> list[str]:
        return self.store.names(self.path)

    def namespace(self, namespace: Path) -> Namespace:
        return Namespace(self.store, (*self.path, *key_of(namespace, "")[:-1]))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (*self.path, name) in self.store

    def __repr__(self) -> str:
        return f"<namespace {'/'.join(map(repr, self.path))} of {self.store!r}>"
