"""Atomic saves of tensors: a reader sees the old file or the new one, never a part.

One file is written beside its target and then takes its name. Several files are written under new names; the index,
which is what makes them a model, takes its name last, and the files that it replaces are removed after that.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.store.tensor_files.folders import INDEX, REPLACED, is_inside, read_index
from anygpu.store.tensor_files.header import (
    ALIGNMENT,
    BITS,
    DTYPE,
    HASH,
    KINDS,
    METADATA,
    NO_HASH,
    OWN,
    OWNER,
    Hashing,
    TensorEntry,
    encoded_header,
    kind_of,
    pieces_of,
    shown,
)
from anygpu.store.tensor_files.safetensors import PICKLES
from anygpu.store.tensor_files.writing import (
    Unfinished,
    clear_unfinished,
    naming,
    new_file,
    part_name,
    sync_file,
    sync_folder,
    token_of_part,
    write_all,
)

_NOTHING: Mapping[str, str] = MappingProxyType({})
_SINGLE = "model.safetensors"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a save."""

    path: Path
    files: tuple[Path, ...]
    #: The size of the tensors, without headers.
    nbytes: int
    #: Hashes by tensor; empty if they were not requested.
    hashes: dict[str, str]


class _Tensor(NamedTuple):
    """One tensor to save: its name, the value as it was given, and its type and shape in the file."""

    name: str
    #: An array, or an object that is converted to one when it is written.
    given: Any
    kind: str
    shape: tuple[int, ...]
    owner: str | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BITS[self.kind] // 8


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    metadata: Mapping[str, str] = _NOTHING,
    owners: Mapping[str, str] = _NOTHING,
    hashes: bool = True,
    shard_bytes: int | None = None,
) -> Saved:
    """Save arrays by name as a safetensors file, or with `shard_bytes` as a folder of files of about that size.

    The old file, if there is one, stays until the new one is whole and on the disk, also when this process is killed;
    so arrays that are views of the old file can be saved in its place. Arrays of other libraries and of anygpu are
    fetched one at a time. Errors of the disk are raised as they are, and leave everything as it was.
    """
    planned = _planned(tensors, owners)
    told = _checked_metadata(metadata)
    target = Path(os.path.realpath(path))  # a link stays one, and what it leads to is replaced
    if shard_bytes is not None:
        if type(shard_bytes) is not int or shard_bytes < 1:
            raise InvalidOption(f"shard_bytes is a number of bytes, at least 1; got {shard_bytes!r}.")
        with naming(target):
            return _save_folder(target, planned, told, hashes, shard_bytes)
    _require_file_name(target)
    with naming(target):
        return _save_file(target, planned, told, hashes)


def _save_file(target: Path, tensors: list[_Tensor], metadata: Mapping[str, str], hashes: bool) -> Saved:
    """Saves one file: written under another name, and renamed when it is complete."""
    clear_unfinished(target.parent)
    new = Unfinished(target.parent, like=_existing(target))
    try:
        found = _write(new.begin(), tensors, metadata, hashes)
        new.take_name(target)
    finally:
        new.abandon()
    return Saved(path=target, files=(target,), nbytes=sum(each.nbytes for each in tensors), hashes=found)


def _save_folder(
    folder: Path, tensors: list[_Tensor], metadata: Mapping[str, str], hashes: bool, shard_bytes: int
) -> Saved:
    """Save tensors in files of at most `shard_bytes`; the index, which makes them valid, is written last."""
    if folder.exists() and not folder.is_dir():
        raise InvalidOption(f"{folder} is a file, and shard_bytes= saves a folder of files. Name another place.")
    folder.mkdir(exist_ok=True)
    like = _existing(folder / INDEX)
    _clear(folder)
    replaced = _files_of(folder)
    index = Unfinished(folder, like=like)
    groups = _groups(tensors, shard_bytes)
    found: dict[str, str] = {}
    names: list[str] = []
    try:
        file_of_index = index.begin()
        for number, group in enumerate(groups, 1):
            names.append(part_name(index.token, number, len(groups)))
            with new_file(folder / names[-1], like) as file:
                found |= _write(file, group, metadata, hashes)
                sync_file(file)
        sync_folder(folder)
        where = {each.name: name for name, group in zip(names, groups, strict=True) for each in group}
        total = sum(each.nbytes for each in tensors)
        text = msgspec.json.encode({"metadata": {"total_size": total, REPLACED: replaced}, "weight_map": where})
        write_all(file_of_index, memoryview(msgspec.json.format(text, indent=2)))
        index.take_name(folder / INDEX)
    finally:
        # After a failure this removes the new files, after success the old ones: those that the index does not name.
        index.abandon()
        _clear(folder)
    return Saved(path=folder, files=tuple(folder / name for name in names), nbytes=total, hashes=found)


def _write(file: io.FileIO, tensors: Sequence[_Tensor], metadata: Mapping[str, str], hashes: bool) -> dict[str, str]:
    """Write the data in one pass that also hashes it, then the header in the space left for it."""
    entries = _laid_out(tensors)
    found = {each.name: NO_HASH for each in tensors} if hashes else {}
    room = len(_header(tensors, entries, metadata, found))
    file.seek(room)
    for each in sorted(tensors, key=lambda each: entries[each.name].data_offsets):
        hashing = Hashing(entries[each.name])
        for piece in pieces_of(_fetched(each)):
            write_all(file, piece)
            if hashes:
                hashing.add(piece)
        if hashes:
            found[each.name] = hashing.text()
    file.seek(0)
    write_all(file, memoryview(_header(tensors, entries, metadata, found)))
    return found


def _header(
    tensors: Sequence[_Tensor],
    entries: Mapping[str, TensorEntry],
    metadata: Mapping[str, str],
    hashes: Mapping[str, str],
) -> bytes:
    """The header of a file: entries, metadata, and a record of each tensor."""
    records: dict[str, str] = {}
    for each in tensors:
        records[DTYPE + each.name] = KINDS[each.kind]
        if each.owner is not None:
            records[OWNER + each.name] = each.owner
        if each.name in hashes:
            records[HASH + each.name] = hashes[each.name]
    return encoded_header(entries, {**metadata, **records})


def _laid_out(tensors: Sequence[_Tensor]) -> dict[str, TensorEntry]:
    """The offset of each tensor. The format allows no gaps, so tensors of whole cache lines come first: these are
    aligned to a cache line, and the rest at least to the size of an element."""
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for each in sorted(tensors, key=lambda each: -_alignment(each.nbytes)):
        offsets[each.name] = (end, end + each.nbytes)
        end += each.nbytes
    return {each.name: TensorEntry(each.kind, each.shape, offsets[each.name]) for each in tensors}


def _alignment(nbytes: int) -> int:
    """The largest power of two that it is a multiple of, up to what is of use."""
    return min(nbytes & -nbytes, ALIGNMENT) or ALIGNMENT


def _groups(tensors: list[_Tensor], most: int) -> list[list[_Tensor]]:
    """Split into shards in order, none larger than allowed unless it has a single tensor."""
    groups: list[list[_Tensor]] = []
    size = 0
    for each in tensors:
        if not groups or size + each.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.nbytes
    return groups


def _files_of(folder: Path) -> list[str]:
    """The files that a new index replaces, apart from those recognised by name."""
    try:
        found = set(read_index(folder / INDEX, (folder / INDEX).read_bytes()).files.values())
        return sorted(name for name in found if token_of_part(name) is None)
    except FileNotFoundError:
        # Other libraries look for this file before they look for an index.
        return [_SINGLE] if (folder / _SINGLE).is_file() else []
    except InvalidTensorFile:
        return []


def _clear(folder: Path) -> None:
    """Remove files that no index names and no process is writing. Active writers are determined before the index is
    read: a save that ends in between is then in the index, or replaced already."""
    parts = {name: token for name in os.listdir(folder) if (token := token_of_part(name))}  # noqa: PTH208 - only the names
    alive = clear_unfinished(folder)
    try:
        index = read_index(folder / INDEX, (folder / INDEX).read_bytes())
    except FileNotFoundError:
        index = None
    except InvalidTensorFile:  # the files that are needed are unknown
        return
    needed = set() if index is None else set(index.files.values())
    unneeded = {name for name, token in parts.items() if token not in alive}
    if index is not None:
        unneeded |= set(index.replaced)
    for name in sorted(unneeded - needed):
        if is_inside(folder / name, folder):
            with contextlib.suppress(FileNotFoundError):  # another save may clear as well
                (folder / name).unlink()


def _planned(tensors: Mapping[str, Any], owners: Mapping[str, str]) -> list[_Tensor]:
    """Checks everything before anything is written; raises `InvalidOption`."""
    if not isinstance(tensors, Mapping):
        raise InvalidOption(f"save takes arrays by name, as a dict; got {type(tensors).__name__}.")
    planned = [_tensor(name, given, owners) for name, given in tensors.items()]
    for name, owner in owners.items():
        if name not in tensors:
            raise InvalidOption(f"owners has {shown(name)}, and no tensor of that name is saved.")
        if not isinstance(owner, str):
            raise InvalidOption(f"the owner of {shown(name)} is a string; got {type(owner).__name__}.")
    return planned


def _tensor(name: Any, given: Any, owners: Mapping[str, str]) -> _Tensor:
    """A tensor to save, checked. Raises `InvalidOption` for what a file cannot hold."""
    if not isinstance(name, str):
        raise InvalidOption(f"names of tensors are strings; got {name!r:.80}.")
    if name == METADATA:
        raise InvalidOption(f"a safetensors file keeps its metadata under {METADATA!r}: name the tensor otherwise.")
    what = f"the tensor {shown(name)}"
    if isinstance(given, np.ma.MaskedArray):
        raise InvalidOption(f"{what} is a masked array, and its mask would be lost. Save data and mask by two names.")
    if isinstance(given, np.generic):
        given = np.asarray(given)
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape is None or dtype is None:
        raise InvalidOption(f"{what} is not an array, but {type(given).__name__}. Convert it with numpy.asarray.")
    try:
        kind = kind_of(np.dtype(dtype), what)
    except TypeError:  # another library's dtype: NumPy says what it is when the array is there
        given = np.asarray(given)
        kind = kind_of(given.dtype, what)
    return _Tensor(name, given, kind, tuple(map(int, shape)), owners.get(name))


def _fetched(tensor: _Tensor) -> HostArray:
    """Reads the values of a tensor when its turn comes; raises `InvalidOption` if they are others than declared."""
    values = np.asarray(tensor.given)
    if values.shape != tensor.shape or kind_of(values.dtype, f"the tensor {shown(tensor.name)}") != tensor.kind:
        raise InvalidOption(
            f"the tensor {shown(tensor.name)} declared itself as {tensor.kind}{list(tensor.shape)}, and is "
            f"{values.dtype}{list(values.shape)}."
        )
    return values


def _checked_metadata(metadata: Mapping[Any, Any]) -> dict[str, str]:
    """Returns the metadata; raises `InvalidOption` for what is no text, or uses a key of ours."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidOption(f"metadata is strings by strings; got {key!r:.80}: {value!r:.80}.")
        if key.startswith(OWN):
            raise InvalidOption(f"metadata has {key!r:.80}, and what begins with {OWN!r} is anygpu's own.")
    return dict(metadata)


def _require_file_name(target: Path) -> None:
    """Raises `InvalidOption` for a folder, and for names of other formats."""
    if target.is_dir():
        raise InvalidOption(
            f"{target} is a folder: name a file in it, or give shard_bytes= to save several files there."
        )
    if target.suffix.lower() in (*PICKLES, ".npy", ".npz"):
        raise InvalidOption(
            f"what is saved is safetensors, and {target.name} would be taken for something else. Name it "
            f"{target.stem}.safetensors."
        )
    if target.name == _SINGLE and (target.parent / INDEX).exists():
        raise InvalidOption(
            f"{target.parent} has an {INDEX}, by which its tensors are in other files: some readers would see those, "
            f"and some {_SINGLE}. Save the folder with shard_bytes=, or remove the index first."
        )


def _existing(target: Path) -> os.stat_result | None:
    """Returns the facts of the file that is replaced; `None` if there is none.

    Raises `InvalidOption` for another kind.
    """
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidOption(f"{target} is not an ordinary file, and cannot be replaced by one.")
    return found
