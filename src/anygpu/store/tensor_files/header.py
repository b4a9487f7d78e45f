"""The header of a safetensors file: eight bytes of length, and a JSON table of its tensors.

Nothing of a header is believed before all of it was checked: length, names, types, sizes, bounds, holes and overlaps. A
file that passes can be mapped and looked at without further questions.

For readers of parts of a file, `FileRange` is the range of one array in a safetensors or an npy file.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.program.dtypes import ITEMSIZE, DType

#: The package safetensors refuses longer headers too.
LONGEST_HEADER = 100_000_000
#: The maximum number of dimensions of a NumPy array.
MOST_AXES = 64
#: The data begins at a multiple of this, so that it is aligned in a memory map.
ALIGNMENT = 64
#: The one key of the table that is not a tensor.
METADATA = "__metadata__"

KINDS: dict[str, DType] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
KIND_OF: dict[str, str] = {dtype: kind for kind, dtype in KINDS.items()}

#: Bits per element. The last rows are types of the format without a counterpart in anygpu.
BITS: dict[str, int] = {
    **{kind: ITEMSIZE[dtype] * 8 for kind, dtype in KINDS.items()},
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}

_LARGEST = 2**63 - 1
_WIDEST = 16
_SHOWN = 80

_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor in the terms of the format; offsets are relative to the beginning of the data."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]

    @property
    def nbytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]

    @property
    def numpy_dtype(self) -> np.dtype[Any] | None:
        """In the byte order of the file; `None` where NumPy has no such type."""
        return _NUMPY.get(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_NUMPY = {kind: np.dtype(dtype).newbyteorder("<") for kind, dtype in KINDS.items() if dtype != "bfloat16"}


class Header(NamedTuple):
    """The tensors of a file by name, its metadata, and where the data begins."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    #: The offset of the data in the file.
    begin: int


_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY = msgspec.json.Decoder(TensorEntry)
_METADATA = msgspec.json.Decoder(dict[str, str])


def read_header(path: str, file: io.FileIO) -> Header:
    """Read the header of an open file."""
    size = os.fstat(file.fileno()).st_size
    first = _read(path, file, min(8, size))
    length = int.from_bytes(first, "little")
    if size < 8 or length > min(size - 8, LONGEST_HEADER):
        raise InvalidTensorFile(path, _no_header(first, size))
    return parse_header(path, _read(path, file, length), size)


def parse_header(path: str, text: bytes, size: int) -> Header:
    """Parse the header `text` of a file of this size."""
    if text[:1] != b"{":
        raise InvalidTensorFile(path, "it is not a safetensors file: its header is not a table of tensors")
    try:
        table = _TABLE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"it is not a safetensors file: its header is no JSON that can be read ({error})"
        raise InvalidTensorFile(path, why) from None
    told = table.pop(METADATA, None)
    metadata = {} if told is None else _metadata(path, told)
    entries = {name: _entry(path, name, raw) for name, raw in table.items()}
    # The decoder keeps one of two equal keys, which shows in the number of strings.
    expected = 5 * len(entries) + (0 if told is None else 1 + 2 * len(metadata))
    if strings_in(text) != expected:
        raise InvalidTensorFile(path, "its header has a name twice")
    begin = 8 + len(text)
    end = _without_gaps(path, entries)
    if begin + end != size:
        why = f"it is truncated or too long: the header declares {end:,} data bytes, and the file has {size - begin:,}"
        raise InvalidTensorFile(path, why)
    return Header(entries, metadata, begin)


def encoded_header(entries: Mapping[str, TensorEntry], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header of a file with these tensors, up to the data."""
    table: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    table.update(entries)
    try:
        text = msgspec.json.encode(table)
    except UnicodeEncodeError as error:
        raise InvalidOption(f"a safetensors file is written in UTF-8, which has no {error.object!r:.100}.") from None
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > LONGEST_HEADER:
        raise InvalidOption(
            f"the names and metadata take {len(text):,} bytes, and a safetensors file has room for {LONGEST_HEADER:,}. "
            "Save the tensors in several files, or with less metadata."
        )
    return len(text).to_bytes(8, "little") + text


def strings_in(text: bytes) -> int:
    """The number of strings in a valid JSON text, keys included: inside a string, a quote follows a backslash."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"")
        return (text.count(b'"') - text.count(b'\\"')) // 2
    return text.count(b'"') // 2


def shown(name: str) -> str:
    """A name shortened for messages: a file can contain names of megabytes."""
    return repr(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!r}…"


def _metadata(path: str, raw: msgspec.Raw) -> dict[str, str]:
    """Decodes the metadata; raises `InvalidTensorFile` if it is no table of strings."""
    try:
        return _METADATA.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidTensorFile(path, f"its metadata is not a table of strings ({error})") from None


def _entry(path: str, name: str, raw: msgspec.Raw) -> TensorEntry:
    """One tensor of a header, checked: its dtype, its shape, and that its bytes are as many as these need."""
    try:
        entry = _ENTRY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = f"its header says nothing that makes sense of the tensor {shown(name)} ({error})"
        raise InvalidTensorFile(path, why) from None
    start, stop = entry.data_offsets
    bits = BITS.get(entry.dtype)
    if bits is None:
        raise InvalidTensorFile(path, f"the tensor {shown(name)} is of an unknown dtype: {entry.dtype!r:.40}")
    if start > stop:
        raise InvalidTensorFile(path, f"the tensor {shown(name)} ends before it begins")
    if math.prod(entry.shape) * bits != (stop - start) * 8:
        why = f"the tensor {shown(name)} of {entry!s:.200} does not have {stop - start:,} bytes"
        raise InvalidTensorFile(path, why)
    if len(entry.shape) > MOST_AXES:
        raise InvalidTensorFile(path, f"the tensor {shown(name)} has {len(entry.shape)} axes, and arrays {MOST_AXES}")
    if start == stop and math.prod(filter(None, entry.shape)) * _WIDEST > _LARGEST:
        raise InvalidTensorFile(
            path, f"the tensor {shown(name)} is empty, and its other axes are too long for an array"
        )
    return entry


def _without_gaps(path: str, entries: Mapping[str, TensorEntry]) -> int:
    """The end of the last tensor, if the tensors are contiguous."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end:
            why = f"the tensor {shown(name)} overlaps another one, or there is a hole before it"
            raise InvalidTensorFile(path, why)
        end = stop
    return end


def _read(path: str, file: io.FileIO, length: int) -> bytes:
    """Reads exactly so many bytes; raises `InvalidTensorFile` if the file ends before."""
    found = b""
    while len(found) < length:
        more = file.read(length - len(found))
        if not more:
            raise InvalidTensorFile(path, "it was truncated while it was read")
        found += more
    return found


def _no_header(first: bytes, size: int) -> str:
    """Returns why the first bytes are no header: a pickle, a zip file, too short, or a length that cannot be."""
    if first[:4] == b"PK\x03\x04" or (first[:1] == b"\x80" and first[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return (
            "despite its name it is not a safetensors file, but a zip file or a pickle, as torch.save writes them. "
            "Reading a pickle runs code from the file, so anygpu does not"
        )
    if size < 8:
        return f"it is not a safetensors file: it has {size} bytes"
    length = int.from_bytes(first, "little")
    return (
        f"it is not a safetensors file: it would begin with a header of {length:,} bytes, and has {size:,} bytes in all"
    )


# -- ranges of arrays in files


class FileRange(NamedTuple):
    """A contiguous array in a file, in C or Fortran order."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def in_npy(path: Path) -> FileRange:
    """Where the numbers of a .npy file are: their dtype, shape, order and offset. Raises `InvalidTensorFile`."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read: Any = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise InvalidOption(f"{path} is not an .npy file: {error}") from error
        found = FileRange(path, file.tell(), shape, dtype, fortran)
    if dtype.hasobject:
        raise InvalidOption(
            f"{path} has Python objects in it, which would have to be unpickled, which anygpu refuses. Save it "
            "again with a numeric dtype."
        )
    return _inside(found)


def in_safetensors(path: Path, name: str) -> FileRange:
    with path.open("rb", buffering=0) as file:
        return stretch_in(read_header(str(path), file), path, name)


def stretch_in(header: Header, path: Path, name: str) -> FileRange:
    """The range of a tensor in a safetensors file whose header was read."""
    entry = entry_in(header, path, name)
    if entry.numpy_dtype is None:
        raise InvalidOption(
            f"the tensor {shown(name)} of {path} has the dtype {entry.dtype}, which NumPy lacks. Save it as float32."
        )
    return FileRange(path, header.begin + entry.data_offsets[0], entry.shape, entry.numpy_dtype)


def entry_in(header: Header, path: Path, name: str) -> TensorEntry:
    """Returns the entry of a tensor; raises `InvalidOption` with the names that there are."""
    entry = header.entries.get(name)
    if entry is None:
        listed = ", ".join(each[:40] for each in sorted(header.entries)[:10]) or "none"
        raise InvalidOption(f"{path} has no tensor {shown(name)}; it has {listed}.")
    return entry


def safetensors_header(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of a file with this one tensor."""
    kind = KIND_OF.get(dtype.name)
    if kind is None:
        raise InvalidOption(f"safetensors files have no {dtype}; write a .npy file instead.")
    return encoded_header({name: TensorEntry(kind, shape, (0, math.prod(shape) * dtype.itemsize))})


def _inside(found: FileRange) -> FileRange:
    """Returns the range if the file is long enough for it; raises `InvalidOption`."""
    size = found.path.stat().st_size
    if found.offset + found.nbytes > size:
        raise InvalidOption(
            f"{found.path} should have {found.offset + found.nbytes} bytes by its header, and has {size}: it is not "
            "complete. Copy or save it again."
        )
    return found


# -- the metadata that anygpu stores about each tensor of a file: its dtype, its owner and a hash of its content
#
# The metadata of a safetensors file is a table of strings, so that is their form, and other readers have them as well::
#
#     "anygpu.dtype:<name>": "float32"
#     "anygpu.owner:<name>": "text-encoder"
#     "anygpu.hash:<name>": "blake2b-128:2f6c…"
#
# The hash is over the tensor as the format writes it, type and shape in front: ``F32[2,3]``, a newline, then the bytes.


#: The prefix of anygpu's own keys.
OWN = "anygpu."
DTYPE = "anygpu.dtype:"
OWNER = "anygpu.owner:"
HASH = "anygpu.hash:"

_ALGORITHM = "blake2b-128:"
_PIECE = 8 << 20


class Hashing:
    """Hashes one tensor, piece by piece."""

    def __init__(self, entry: TensorEntry) -> None:
        self._state = hashlib.blake2b(f"{entry}\n".encode(), digest_size=16)

    def add(self, piece: memoryview) -> None:
        self._state.update(piece)

    def text(self) -> str:
        return _ALGORITHM + self._state.hexdigest()


#: A placeholder as long as every hash.
NO_HASH = _ALGORITHM + "0" * 32


def is_known(told: str) -> bool:
    """Whether it is a hash in the format of this version."""
    return told.startswith(_ALGORITHM)


def content_hash(values: HostArray) -> str:
    """The hash of an array, in any memory order: equal for equal dtype, shape and bytes."""
    name = values.dtype.name
    # Stores also have what files have no word for, such as complex128.
    kind = name if values.dtype.kind == "c" and name not in KIND_OF else kind_of(values.dtype, "the array")
    hashing = Hashing(TensorEntry(kind, values.shape, (0, values.nbytes)))
    for piece in pieces_of(values):
        hashing.add(piece)
    return hashing.text()


def hash_of_bytes(entry: TensorEntry, data: memoryview) -> str:
    """The hash of a tensor in a file."""
    hashing = Hashing(entry)
    for start in range(0, len(data), _PIECE):
        hashing.add(data[start : start + _PIECE])
    return hashing.text()


def users_own(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if not key.startswith(OWN)}


def kind_of(dtype: np.dtype[Any], what: str) -> str:
    """The format's word for a type."""
    kind = KIND_OF.get(dtype.name)
    if kind is not None:
        return kind
    if dtype.hasobject:
        raise InvalidOption(f"{what} holds Python objects, which anygpu refuses to pickle. Convert them to numbers.")
    raise InvalidOption(
        f"{what} has the dtype {dtype}, and safetensors files support only {', '.join(KIND_OF)}. Convert it first."
    )


def pieces_of(values: HostArray) -> Iterator[memoryview]:
    """The bytes of an array in the format's order: C, little-endian. A piece is valid until the next is requested."""
    if not values.size:
        return
    # Types that NumPy has from elsewhere, such as bfloat16, are only bits here.
    plain = values.view(np.uint16) if values.dtype.name == "bfloat16" else values
    little = plain.dtype.newbyteorder("<")
    if plain.flags.c_contiguous and plain.dtype == little:
        data = plain.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _PIECE):
            yield data[start : start + _PIECE]
        return
    pieces = np.nditer(
        plain,
        ["external_loop", "buffered"],
        ["readonly"],
        op_dtypes=little,
        order="C",
        casting="equiv",
        buffersize=max(1, _PIECE // little.itemsize),
    )
    with pieces:
        for piece in pieces:
            # A buffer of its own or, where nothing has to be done, a part of the array, which may be strided.
            yield np.ascontiguousarray(piece).view(np.uint8).data
