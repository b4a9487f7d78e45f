"""The metadata that anygpu stores about each tensor of a file: its dtype, its owner and a hash of its content.

The metadata of a safetensors file is a table of strings, so that is their form, and other readers have them as well::

    "anygpu.dtype:<name>": "float32"
    "anygpu.owner:<name>": "text-encoder"
    "anygpu.hash:<name>": "blake2b-128:2f6c…"

The hash is over the tensor as the format writes it, type and shape in front: ``F32[2,3]``, a newline, then the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import InvalidOption
from anygpu.tensor_files.header import KIND_OF, Entry

#: The prefix of anygpu's own keys.
OWN = "anygpu."
DTYPE = "anygpu.dtype:"
OWNER = "anygpu.owner:"
HASH = "anygpu.hash:"

_ALGORITHM = "blake2b-128:"
_PIECE = 8 << 20


class Hashing:
    """Hashes one tensor, piece by piece."""

    def __init__(self, entry: Entry) -> None:
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
    hashing = Hashing(Entry(kind, values.shape, (0, values.nbytes)))
    for piece in pieces_of(values):
        hashing.add(piece)
    return hashing.text()


def hash_of_bytes(entry: Entry, data: memoryview) -> str:
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
