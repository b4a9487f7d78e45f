"""One safetensors file, opened by memory map: its header is checked in full, its numbers are read when they are used.

The package safetensors is not used: it reads a header less strictly, and copies each tensor that it hands to NumPy.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.program.primitives import Spec
from anygpu.store.tensor_files.header import (
    BITS,
    DTYPE,
    HASH,
    KINDS,
    OWNER,
    FileRange,
    TensorEntry,
    entry_in,
    hash_of_bytes,
    is_known,
    read_header,
    shown,
    stretch_in,
    users_own,
)

# -- pickles, which are refused by their name because reading them would run arbitrary code


#: Suffixes that torch and others use for pickles.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_NUMPYS = (".npy", ".npz")


def refuse_by_name(path: Path) -> None:
    """Raise if the name says that it is not a safetensors file, and what."""
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        raise InvalidTensorFile(str(path), _WHY_NO_PICKLES, advice=_converting(path.name))
    if suffix in _NUMPYS:
        raise InvalidTensorFile(
            str(path),
            "it is a NumPy file, which may contain pickled objects",
            advice=f"If it has none, numpy.load({path.name!r}, allow_pickle=False) reads it, and "
            "anygpu.tensor_files.save turns it into safetensors.",
        )


def refuse_folder_of_pickles(folder: Path) -> None:
    """Raise if a folder without safetensors has pickles instead."""
    found = sorted(each.name for each in folder.iterdir() if each.suffix.lower() in PICKLES)
    if found:
        why = f"it has no safetensors, but {found[0]}: {_WHY_NO_PICKLES}"
        raise InvalidTensorFile(str(folder), why, advice=_converting(found[0]))


_WHY_NO_PICKLES = "a pickle runs whatever it says when it is read, so anygpu reads none"


def _converting(name: str) -> str:
    """Returns the sentence on how to turn a pickle into a safetensors file."""
    return (
        "If you trust where it comes from, turn it into safetensors once: "
        f'safetensors.torch.save_file(torch.load({name!r}, weights_only=True), "model.safetensors").'
    )


# -- files


def open_file(path: str | os.PathLike[str]) -> TensorFile:
    """Open a safetensors file. Takes a fraction of a millisecond, whatever its size: only its header is read.

    Raises `InvalidTensorFile` for a file that is anything else, or broken, before any of it is used.
    """
    file_path = Path(path)
    refuse_by_name(file_path)
    return TensorFile(file_path, opened(file_path))


def opened(path: Path) -> io.FileIO:
    """Opens an ordinary file. Anything else is refused before it is opened, as a pipe would wait for its writer."""
    kind = path.stat().st_mode  # before it is opened: opening a pipe would wait for a writer
    if stat.S_ISDIR(kind):
        raise InvalidOption(f"{path} is a folder. Open it with open_folder.")
    if not stat.S_ISREG(kind):
        raise InvalidTensorFile(str(path), "it is not an ordinary file")
    return path.open("rb", buffering=0)


class TensorFile:
    """The tensors of one file. Created by `open_file`.

    Arrays of `values` stay valid after `close`, and after the file was saved anew under the same name: they show the
    file as it was. A file must not be shortened in place while it is open: the system ends processes that read beyond
    its end.
    """

    def __init__(self, path: Path, file: io.FileIO) -> None:
        """Takes over the open file."""
        self.path = path
        with file:
            self._header = read_header(str(path), file)
            self._pages: mmap.mmap | None = _mapped(path, file)
        self._names = tuple(self._header.entries)
        self._sound: set[str] = set()
        self._copied = 0
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the header."""
        return self._names

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the file, without anygpu's own: see `hash` and `owner`."""
        return users_own(self._header.metadata)

    @property
    def copied_bytes(self) -> int:
        """Bytes that `values` has copied, because NumPy has no bfloat16. All other tensors are views of the file."""
        return self._copied

    @property
    def nbytes(self) -> int:
        """The size of all tensors."""
        return sum(entry.nbytes for entry in self._header.entries.values())

    def spec(self, name: str) -> Spec:
        """Shape and dtype of a tensor."""
        entry = self._entry(name)
        if entry.dtype not in KINDS:
            raise self._unknown(name, entry)
        return Spec(entry.shape, KINDS[entry.dtype])

    def values(self, name: str) -> HostArray:
        """A view of the tensor in the file, which cannot be written to.

        bfloat16 comes as float32, which is a copy and counted in `copied_bytes`: NumPy has no bfloat16.
        """
        entry = self._entry(name)
        if entry.dtype not in KINDS:
            raise self._unknown(name, entry)
        if entry.dtype == "BF16":
            return self._widened(entry)
        dtype = entry.numpy_dtype
        if dtype is None:
            raise self._unknown(name, entry)
        found = self._view(entry, dtype)
        if entry.dtype == "BOOL":
            self._require_bools(name, found)
        return found

    def bits(self, name: str) -> HostArray:
        """The same as unsigned integers of equal width: a view for every type of whole bytes, including bfloat16."""
        entry = self._entry(name)
        if BITS[entry.dtype] % 8:
            raise self._unknown(name, entry)
        width = BITS[entry.dtype] // 8
        return self._view(entry, np.dtype(f"<u{width}"))

    def stretch(self, name: str) -> FileRange:
        """The range of the tensor in the file, for readers that read it piece by piece."""
        return stretch_in(self._header, self.path, name)

    def hash(self, name: str) -> str | None:
        """The hash of the content as the file states it, unchecked; `None` if it states none."""
        self._entry(name)
        return self._header.metadata.get(HASH + name)

    def owner(self, name: str) -> str | None:
        self._entry(name)
        return self._header.metadata.get(OWNER + name)

    def check(self, name: str) -> int | None:
        """Compare the tensor with its hash; returns the bytes compared, `None` if there is no hash."""
        entry = self._entry(name)
        told = self._header.metadata.get(HASH + name)
        if told is None or not is_known(told):
            return None
        begin = self._header.begin + entry.data_offsets[0]
        with memoryview(self._open_pages()) as whole, whole[begin : begin + entry.nbytes] as data:
            found = hash_of_bytes(entry, data)
        dtype = KINDS.get(entry.dtype)
        if found != told or self._header.metadata.get(DTYPE + name, dtype) != dtype:
            raise InvalidTensorFile(str(self.path), f"the tensor {shown(name)} is not what was saved: its hash differs")
        return entry.nbytes

    def close(self) -> None:
        """Close the file. It stays mapped while views of it exist."""
        self._pages = None

    def __contains__(self, name: object) -> bool:
        return name in self._header.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._pages is None else ""
        return f"<TensorFile {str(self.path)!r}: {len(self)} tensors{state}>"

    def _entry(self, name: str) -> TensorEntry:
        return entry_in(self._header, self.path, name)

    def _open_pages(self) -> mmap.mmap:
        if self._pages is None:
            raise InvalidOption(f"{self.path} was closed. Open it again, or read what you need before.")
        return self._pages

    def _view(self, entry: TensorEntry, dtype: np.dtype[Any]) -> HostArray:
        return np.ndarray(entry.shape, dtype, self._open_pages(), self._header.begin + entry.data_offsets[0])

    def _widened(self, entry: TensorEntry) -> HostArray:
        """Returns bfloat16 as float32, which is exact; the copy is counted in `copied_bytes`."""
        bits = self._view(entry, np.dtype("<u2"))
        wide = np.empty(entry.shape, np.uint32)
        np.left_shift(bits, 16, out=wide, dtype=np.uint32)
        found: HostArray = wide.view(np.float32)
        found.flags.writeable = False
        with self._lock:
            self._copied += found.nbytes
        return found

    def _require_bools(self, name: str, found: HostArray) -> None:
        """Neither true nor false is something that no array may hold: NumPy's own functions disagree on it."""
        if name not in self._sound:
            if found.size and found.view(np.uint8).max() > 1:
                raise InvalidTensorFile(
                    str(self.path), f"the tensor {shown(name)} of BOOL has bytes that are not 0 or 1"
                )
            self._sound.add(name)

    def _unknown(self, name: str, entry: TensorEntry) -> InvalidOption:
        """Returns the error for a type that NumPy does not have."""
        return InvalidOption(
            f"the tensor {shown(name)} of {self.path} is of {entry.dtype}, which neither NumPy nor anygpu has. Save it "
            "as float32 or float16 with the library that made it"
            + (", or take bits(), which are integers." if BITS[entry.dtype] == 8 else ".")
        )


def _mapped(path: Path, file: io.FileIO) -> mmap.mmap:
    """Maps the file for reading, without keeping a descriptor where Python can."""
    options: dict[str, Any] = {"access": mmap.ACCESS_READ}
    if sys.version_info >= (3, 13):
        options["trackfd"] = False  # a model of hundreds of files would use up the descriptors of the process
    try:
        return mmap.mmap(file.fileno(), 0, **options)
    except OSError as error:
        error.filename = str(path)
        raise
