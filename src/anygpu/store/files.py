"""Tensors of a store in safetensors files: read when they are used, and saved whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Protocol, TypeVar

from anygpu.store.contents import HostBytes
from anygpu.store.entry import Path
from anygpu.tensor_files.folders import TensorFolder, open_folder
from anygpu.tensor_files.safetensors import TensorFile, open_file
from anygpu.tensor_files.saving import Saved, save


class Owned(Protocol):
    """A tensor."""

    @property
    def owner(self) -> str: ...


T = TypeVar("T", bound=Owned, covariant=True)


class NamedTensors(Protocol[T]):
    """The part of a store that opening and saving files use."""

    def names(self, namespace: Path | None = None) -> list[str]: ...

    def get(self, name: str, *, namespace: Path = "") -> T: ...

    def release(self, name: str, *, holder: str | None = None, namespace: Path = "") -> None: ...

    def _put_host(
        self,
        name: str,
        source: HostBytes,
        *,
        owner: str = "main",
        namespace: Path = "",
        claimed_hash: str | None = None,
    ) -> T: ...


def open_into(
    store: NamedTensors[T],
    path: str | os.PathLike[str],
    names: Iterable[str] | None,
    *,
    owner: str | None,
    namespace: Path,
    outside_links: bool,
) -> dict[str, T]:
    """Open all tensors, or none if one cannot be read."""
    source: TensorFile | TensorFolder
    source = open_folder(path, outside_links=outside_links) if FilePath(path).is_dir() else open_file(path)
    found: dict[str, T] = {}
    with source:
        try:
            for name in source.names if names is None else names:
                found[name] = _opened(store, source, name, owner or source.owner(name) or "main", namespace)
        except BaseException:
            for name, tensor in found.items():
                store.release(name, holder=tensor.owner, namespace=namespace)
            raise
    return found


def _opened(store: NamedTensors[T], source: TensorFile | TensorFolder, name: str, owner: str, namespace: Path) -> T:
    values = source.values(name)
    # Types that NumPy lacks were converted, and so are not in the file's memory.
    in_file = source.spec(name).nbytes == source.stretch(name).nbytes
    claimed_hash = source.hash(name)
    return store._put_host(
        name,
        HostBytes(values, "file" if in_file else "memory"),
        owner=owner,
        namespace=namespace,
        claimed_hash=claimed_hash,
    )


def save_from(
    store: NamedTensors[T],
    path: str | os.PathLike[str],
    names: Sequence[str] | None,
    *,
    namespace: Path,
    metadata: Mapping[str, str],
    shard_bytes: int | None,
) -> Saved:
    """Each tensor is read when its turn comes; if one was released by then, nothing is saved."""
    wanted = store.names(namespace) if names is None else list(names)
    tensors = {name: store.get(name, namespace=namespace) for name in wanted}
    owners = {name: tensor.owner for name, tensor in tensors.items()}
    return save(path, tensors, metadata=metadata, owners=owners, shard_bytes=shard_bytes)
