"""A model's folder: many safetensors files as one, by an index of tensors, or simply all that are there.

With an index, opening reads the index and opens the files, but reads none of their headers: a header is read and
checked when the first of its tensors is asked for. The files are open from the beginning, so a folder that is saved
anew meanwhile stays, for who has it open, as it was.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import NamedTuple

import msgspec

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.program.primitives import Spec
from anygpu.store.tensor_files.header import LONGEST_HEADER, FileRange, shown, strings_in
from anygpu.store.tensor_files.safetensors import (
    TensorFile,
    open_file,
    opened,
    refuse_by_name,
    refuse_folder_of_pickles,
)
from anygpu.store.tensor_files.writing import is_part_of_a_save

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
#: In the metadata of an index: files of the previous save, which are removed after the index is in place.
REPLACED = "anygpu.replaced"

_ATTEMPTS = 10
_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAP = msgspec.json.Decoder(dict[str, str])


class FolderIndex(NamedTuple):
    """The index of a folder: the file of each tensor, and the metadata."""

    #: By tensor, the name of its file, which was checked to be in the folder.
    files: dict[str, str]
    #: Files of the previous save, which may still exist.
    replaced: tuple[str, ...]


def open_folder(path: str | os.PathLike[str], *, outside_links: bool = False) -> TensorFolder:
    """Open a model's folder in milliseconds: through `model.safetensors.index.json`, or all `*.safetensors` of it.

    Files that are links to somewhere outside of the folder are refused, unless `outside_links` is true; caches of
    downloaded models are made of such links.
    """
    folder = Path(path)
    if not folder.is_dir():
        if folder.exists():
            raise InvalidOption(f"{folder} is a file. Open it with open_file.")
        raise FileNotFoundError(2, "there is no such folder of tensors", str(folder))
    return TensorFolder(folder, outside_links=outside_links)


class TensorFolder:
    """The tensors of all files of a folder. Created by `open_folder`."""

    def __init__(self, folder: Path, *, outside_links: bool = False) -> None:
        """Opens all files of the folder; their headers are read when the first tensor of each is asked for."""
        self.path = folder
        self._outside_links = outside_links
        self._lock = threading.Lock()
        self._closed = False
        #: A file is opened first, and parsed when one of its tensors is used.
        self._files: dict[str, io.FileIO | TensorFile] = {}
        #: Errors of files that could not be parsed.
        self._broken: dict[str, str] = {}
        if (folder / INDEX).is_file():
            self._where = self._by_index()
        else:
            self._where = self._all()
        self._names = tuple(self._where)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(self.path / each for each in dict.fromkeys(self._where.values()))

    @property
    def copied_bytes(self) -> int:
        """The same as for a file, summed over the files that were used."""
        return sum(each.copied_bytes for each in self._files.values() if isinstance(each, TensorFile))

    def file(self, name: str) -> TensorFile:
        """The file that has this tensor."""
        where = self._where.get(name)
        if where is None:
            listed = ", ".join(each[:40] for each in sorted(self._where)[:10]) or "none"
            raise InvalidOption(f"{self.path} has no tensor {shown(name)}; it has {listed}.")
        with self._lock:
            file = self._opened(where)
        if name not in file:
            raise InvalidTensorFile(
                str(file.path), f"{INDEX} says that it has the tensor {shown(name)}, and it does not"
            )
        return file

    def spec(self, name: str) -> Spec:
        return self.file(name).spec(name)

    def values(self, name: str) -> HostArray:
        return self.file(name).values(name)

    def bits(self, name: str) -> HostArray:
        return self.file(name).bits(name)

    def stretch(self, name: str) -> FileRange:
        return self.file(name).stretch(name)

    def hash(self, name: str) -> str | None:
        return self.file(name).hash(name)

    def owner(self, name: str) -> str | None:
        return self.file(name).owner(name)

    def check(self, name: str) -> int | None:
        return self.file(name).check(name)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of all files; for equal keys, that of the later file."""
        found: dict[str, str] = {}
        with self._lock:
            for where in list(self._files):
                found.update(self._opened(where).metadata)
        return found

    def close(self) -> None:
        """Close all files. A file stays mapped while views of it exist."""
        with self._lock:
            self._closed = True
            for each in self._files.values():
                each.close()

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> TensorFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        for each in getattr(self, "_files", {}).values():
            each.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<TensorFolder {str(self.path)!r}: {len(self)} tensors in {len(self._files)} files{state}>"

    def _opened(self, where: str) -> TensorFile:
        """Returns a file with its header read and checked.

        An error is remembered, and raised for each of its tensors.
        """
        if self._closed:
            raise InvalidOption(f"{self.path} was closed. Open it again, or read what you need before.")
        if where in self._broken:
            raise InvalidTensorFile(str(self.path / where), self._broken[where])
        found = self._files[where]
        if not isinstance(found, TensorFile):
            try:
                found = self._files[where] = TensorFile(self.path / where, found)
            except InvalidTensorFile as error:
                self._broken[where] = error.why
                raise
        return found

    def _by_index(self) -> dict[str, str]:
        """Start again if a concurrent save has replaced the index and removed the files of the old one."""
        index = self.path / INDEX
        for attempt in range(_ATTEMPTS):
            self._require_inside(index)
            text = _small_file(index)
            where = read_index(index, text).files
            try:
                for each in dict.fromkeys(where.values()):
                    self._require_inside(self.path / each)
                    self._files[each] = opened(self.path / each)
            except FileNotFoundError as error:
                self._forget()
                if attempt + 1 < _ATTEMPTS and index.is_file() and _small_file(index) != text:
                    continue
                missing = f"it names {Path(str(error.filename)).name}, and there is no such file"
                raise InvalidTensorFile(str(index), missing) from None
            except BaseException:
                self._forget()
                raise
            return where
        raise InvalidTensorFile(str(index), "another program keeps replacing it")

    def _all(self) -> dict[str, str]:
        """The tensors of all files in a folder without an index, with the file of each."""
        found = sorted(
            each.name
            for each in self.path.iterdir()
            # Parts of a save whose index was never written do not belong to the model.
            if each.suffix == SUFFIX and not each.name.startswith(".") and not is_part_of_a_save(each.name)
        )
        if not found:
            refuse_folder_of_pickles(self.path)
            raise InvalidTensorFile(str(self.path), "it has no complete safetensors file")
        where: dict[str, str] = {}
        try:
            for each in found:
                self._require_inside(self.path / each)
                file = self._files[each] = TensorFile(self.path / each, opened(self.path / each))
                for name in file.names:
                    if name in where:
                        why = f"the tensor {shown(name)} is in {where[name]} and {each}, and no index says which counts"
                        raise InvalidTensorFile(str(self.path), why)
                    where[name] = each
        except BaseException:
            self._forget()
            raise
        return where

    def _require_inside(self, path: Path) -> None:
        if not self._outside_links and not is_inside(path, self.path):
            why = "it is a link to outside of its folder. If that is meant, write open_folder(…, outside_links=True)"
            raise InvalidTensorFile(str(path), why)

    def _forget(self) -> None:
        for each in self._files.values():
            each.close()
        self._files.clear()


def read_index(path: Path, text: bytes) -> FolderIndex:
    """Check the names in an index: every file is in the folder, and none is a pickle."""
    try:
        table = _TABLE.decode(text)
        files = _MAP.decode(table["weight_map"])
        told = msgspec.json.decode(table["metadata"]) if "metadata" in table else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTensorFile(str(path), f"it is not an index of tensors that can be read ({error})") from None
    except KeyError:
        raise InvalidTensorFile(str(path), 'it is not an index of tensors: it has no "weight_map"') from None
    if strings_in(bytes(table["weight_map"])) != 2 * len(files):
        raise InvalidTensorFile(str(path), "it has a name twice")
    for each in set(files.values()):
        refuse_by_name(Path(each))
        if not stays_inside(each):
            raise InvalidTensorFile(
                str(path), f"it names {shown(each)}, which is not a safetensors file of this folder"
            )
    listed = told.get(REPLACED) if isinstance(told, dict) else None
    names = listed if isinstance(listed, list) else []
    return FolderIndex(files, tuple(each for each in names if isinstance(each, str) and stays_inside(each)))


def stays_inside(name: str) -> bool:
    """Whether it is the name of a safetensors file in the folder or below, on every system."""
    path = PurePosixPath(name)
    parts = name.split("/")
    return (
        name.endswith(SUFFIX)
        and not path.is_absolute()
        and all(part not in ("", ".", "..") for part in parts)
        and not any(each in name for each in ("\\", ":", "\0"))
        and len(name.encode(errors="surrogatepass")) <= 1024
    )


def is_inside(path: Path, folder: Path) -> bool:
    """Check that the path stays in the folder after following links."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _small_file(path: Path) -> bytes:
    """Reads an index; raises `InvalidTensorFile` if it is too long to be one."""
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > LONGEST_HEADER:
            raise InvalidTensorFile(
                str(path), f"it is not an index of tensors: it is longer than {LONGEST_HEADER:,} bytes"
            )
        return file.read(LONGEST_HEADER + 1)


# -- verification by hashes


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification in which all hashes matched."""

    checked: int
    nbytes: int
    #: Tensors without a hash, or with one of a kind that this version does not know.
    unchecked: tuple[str, ...]


def verify(path: str | os.PathLike[str], *, outside_links: bool = False) -> Verified:
    """Read everything and compare it with the hashes in the metadata; `InvalidTensorFile` names what is not right."""
    target = Path(path)
    with open_folder(target, outside_links=outside_links) if target.is_dir() else open_file(target) as opened:
        compared = {name: opened.check(name) for name in opened.names}
    sizes = [size for size in compared.values() if size is not None]
    without = tuple(name for name, size in compared.items() if size is None)
    return Verified(checked=len(sizes), nbytes=sum(sizes), unchecked=without)
