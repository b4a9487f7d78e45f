"""Contents of a store that are kept outside of it: in safetensors files, and in the store that processes share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Protocol, TypeVar

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import UnknownTensor
from anygpu.store.contents import HostBytes
from anygpu.store.entry import Path
from anygpu.store.segments import SegmentKey
from anygpu.store.shared_store import Found, open_shared
from anygpu.store.tensor_files.folders import TensorFolder, open_folder
from anygpu.store.tensor_files.safetensors import TensorFile, open_file
from anygpu.store.tensor_files.saving import Saved, save

# -- safetensors files: read when they are used, and saved whole or not at all


class OwnedTensor(Protocol):
    """A tensor."""

    @property
    def owner(self) -> str: ...


T = TypeVar("T", bound=OwnedTensor, covariant=True)


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
    """Enters one tensor of a file; its bytes stay in the file unless its type had to be converted."""
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


# -- the store that processes of this host share


class SharedNames:
    """Tracks which tensors this store has published, and which it has found."""

    def __init__(self, name: str) -> None:
        """Attaches to the shared store of that name, which is made if there is none."""
        self._shared = open_shared(name)
        #: By name, the version that this store has published or found.
        self._versions: dict[SegmentKey, int] = {}
        #: By name, the version that was published here last, until it is withdrawn.
        self._published: dict[SegmentKey, int] = {}

    def publish(self, key: SegmentKey, values: HostArray, *, owner: str, hash: str) -> HostBytes:
        """Publish the values in shared memory. Copies them once, unless they are there already."""
        shared = self._shared.publish(key, values, owner=owner, hash=hash)
        found = self._shared.find(key)
        # Another process may have published under the name in between, which `news` will report.
        if found is not None and np.may_share_memory(found.values, shared):
            self._versions[key] = self._published[key] = found.version
        return HostBytes(shared, "shared")

    def news(self, key: SegmentKey, *, here: bool) -> Found | None:
        """The tensor that others have published under the name since the last `seen`; `None` if there is none.

        Everything is new to a store that has no tensor of that name, or none any more.
        """
        found = self._shared.find(key)
        if found is None or (here and found.version == self._versions.get(key)):
            return None
        return found

    def seen(self, key: SegmentKey, found: Found) -> None:
        """The store has taken that tensor."""
        self._versions[key] = found.version

    def keys(self) -> Sequence[SegmentKey]:
        return self._shared.names()

    def has(self, key: SegmentKey) -> bool:
        return key in self._versions

    def withdraw(self, key: SegmentKey) -> None:
        """Withdraw a publication of this store; processes that have mapped it keep it."""
        self._versions.pop(key, None)
        version = self._published.pop(key, None)
        found = self._shared.find(key) if version is not None else None
        if found is not None and found.version == version:
            with contextlib.suppress(UnknownTensor):
                self._shared.remove(key)

    def close(self) -> None:
        self._shared.close()
