"""Where the numbers of one array are in a file, for the two formats that keep them in one stretch: npy and safetensors.

Both are read here without running anything that a file says: npy files with pickled objects are refused, and the header
of a safetensors file is checked for sizes, bounds, holes and overlaps before any of it is believed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from anygpu.errors import InvalidOption

#: Of a safetensors file; its own library refuses longer ones too.
_LONGEST_HEADER = 100_000_000

_SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8",
}  # fmt: skip


class Stretch(NamedTuple):
    """An array in a file: its numbers lie one after the other, as C or as Fortran lays them out."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def in_npy(path: Path) -> Stretch:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read: Any = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise InvalidOption(f"{path} is no npy file: {error}") from error
        found = Stretch(path, file.tell(), shape, dtype, fortran)
    if dtype.hasobject:
        raise InvalidOption(
            f"{path} has Python objects in it, which would have to be unpickled: anygpu does not do that. Save it "
            "again with a numeric dtype."
        )
    return _inside(found)


def in_safetensors(path: Path, name: str) -> Stretch:
    with path.open("rb") as file:
        begin, header = _header(path, file)
    tensors = {key: _entry(path, key, value) for key, value in header.items() if key != "__metadata__"}
    end = _without_gaps(path, tensors)
    if begin + end != path.stat().st_size:
        raise InvalidOption(
            f"{path} has {path.stat().st_size - begin} bytes of data, and its header speaks of {end}: it is not "
            "complete. Copy or save it again."
        )
    if name not in tensors:
        listed = ", ".join(sorted(tensors)[:10]) or "none"
        raise InvalidOption(f"{path} has no tensor {name!r}; it has {listed}.")
    kind, shape, start, _ = tensors[name]
    if kind not in _SAFETENSORS:
        raise InvalidOption(
            f"the tensor {name!r} of {path} is of {kind}, which NumPy does not have. Save it as "
            f"{', '.join(_SAFETENSORS)}."
        )
    return Stretch(path, begin + start, shape, np.dtype(_SAFETENSORS[kind]))


def safetensors_header(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What a file with this one tensor begins with."""
    text = dtype.newbyteorder("<").str.replace("|", "")
    kind = next((kind for kind, code in _SAFETENSORS.items() if np.dtype(code) == np.dtype(text)), None)
    if kind is None:
        raise InvalidOption(f"safetensors files have no {dtype}; write a .npy file instead.")
    nbytes = math.prod(shape) * dtype.itemsize
    entry = {name: {"dtype": kind, "shape": list(shape), "data_offsets": [0, nbytes]}}
    header = json.dumps(entry, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 64)
    return len(header).to_bytes(8, "little") + header


def _inside(found: Stretch) -> Stretch:
    size = found.path.stat().st_size
    if found.offset + found.nbytes > size:
        raise InvalidOption(
            f"{found.path} should have {found.offset + found.nbytes} bytes by its header, and has {size}: it is not "
            "complete. Copy or save it again."
        )
    return found


def _header(path: Path, file: BinaryIO) -> tuple[int, dict[str, Any]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8 or length > _LONGEST_HEADER:
        raise InvalidOption(f"{path} is no safetensors file: it would begin with a header of {length} bytes.")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(
            f"{path} is no safetensors file: its header is no JSON that can be read ({error})."
        ) from None
    if not isinstance(header, dict):
        raise InvalidOption(f"{path} is no safetensors file: its header is no table of tensors.")
    return 8 + length, header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _entry(path: Path, name: str, value: Any) -> tuple[str, tuple[int, ...], int, int]:
    match value:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if all(
            type(each) is int and each >= 0 for each in (*shape, start, stop)
        ):
            pass
        case _:
            raise InvalidOption(f"{path}: the header says nothing that makes sense of the tensor {name!r}.")
    if start > stop:
        raise InvalidOption(f"{path}: the tensor {name!r} ends before it begins.")
    if kind in _SAFETENSORS and math.prod(shape) * np.dtype(_SAFETENSORS[kind]).itemsize != stop - start:
        raise InvalidOption(f"{path}: the tensor {name!r} of {kind}{shape} does not have {stop - start} bytes.")
    return kind, tuple(shape), start, stop


def _without_gaps(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], int, int]]) -> int:
    """Where the last tensor ends, when each begins where another ends."""
    end = 0
    for name, (_, _, start, stop) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if start != end:
            raise InvalidOption(f"{path}: the tensor {name!r} overlaps another one, or there is a hole before it.")
        end = stop
    return end
