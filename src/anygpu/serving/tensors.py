"""Tensors of the Open Inference Protocol: their types, and their values in JSON and as bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.serving.refusals import InvalidRequest

#: The types of the protocol that NumPy has. BYTES is none of them: anygpu has no strings.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
#: NumPy has no bfloat16: its values become float32, which holds all of them.
BFLOAT16 = "BF16"
#: Types that have no form in JSON.
_BINARY_ONLY = ("FP16", BFLOAT16)

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_ITEM_SIZES = {name: dtype.itemsize for name, dtype in DATATYPES.items()} | {BFLOAT16: 2}
_ITEMS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float}
_SWAPS = sys.byteorder == "big"  # the protocol is little-endian


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """The protocol's name; `None` if it has none, as for complex numbers."""
    return _NAMES.get(dtype)


def item_size(datatype: str) -> int:
    size = _ITEM_SIZES.get(datatype)
    if size is None:
        raise InvalidRequest(f"the datatype {datatype[:32]!r} is not supported; {', '.join(_ITEM_SIZES)} are.")
    return size


def from_binary(datatype: str, shape: Sequence[int], count: int, data: memoryview, start: int) -> HostArray:
    """An array of its own: aligned, writable, and no reference to the request."""
    if not count:
        return np.empty(shape, DATATYPES.get(datatype, np.float32))
    if datatype == BFLOAT16:
        halves = np.frombuffer(data, "<u2", count, start)
        wide: HostArray = (halves.astype(np.uint32) << 16).view(np.float32)
        return wide.reshape(shape)
    dtype = DATATYPES[datatype]
    if datatype == "BOOL":
        # Any byte that is not 0 is true; NumPy expects 1.
        truths: HostArray = np.frombuffer(data, np.uint8, count, start) != 0
        return truths.reshape(shape)
    array = np.frombuffer(data, dtype, count, start).copy()
    if _SWAPS:
        array.byteswap(inplace=True)
    return array.reshape(shape)


def to_binary(array: HostArray) -> memoryview:
    array = np.ascontiguousarray(array)
    if _SWAPS:
        array = array.byteswap()
    return array.reshape(-1).view(np.uint8).data


def from_json(name: str, datatype: str, shape: Sequence[int], count: int, data: msgspec.Raw) -> HostArray:
    """From a list of numbers, flat or nested as the shape is."""
    if datatype in _BINARY_ONLY:
        raise InvalidRequest(f"the input {name!r} is {datatype}, which has no JSON form; send it as binary data.")
    dtype = DATATYPES[datatype]
    text = bytes(memoryview(data)[:64]).lstrip()
    nested = text[:1] == b"[" and text[1:].lstrip()[:1] == b"[" and len(shape) > 1
    try:
        values = _decoder(dtype.kind, len(shape) if nested else 1).decode(data)
        array = _converted(values, dtype)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"the data of {name!r} is not a list of {datatype} numbers: {error}") from None
    if array.size != count or (nested and array.shape != tuple(shape)):
        have = list(array.shape) if nested else array.size
        raise InvalidRequest(f"the input {name!r} has the shape {list(shape)}, but its data has {have} elements.")
    return array.reshape(shape)


def to_json(name: str, datatype: str, array: HostArray) -> list[Any]:
    """Flat, in row-major order."""
    if datatype in _BINARY_ONLY:
        raise InvalidRequest(f"the output {name!r} is {datatype}, which has no JSON form; ask for binary data.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidRequest(
            f"the output {name!r} has a NaN or an infinity, which JSON has no form for; ask for binary data."
        )
    values: list[Any] = array.reshape(-1).tolist()
    return values


@cache
def _decoder(kind: str, depth: int) -> msgspec.json.Decoder[Any]:
    expected: Any = _ITEMS[kind]
    for _ in range(depth):
        expected = list[expected]
    return msgspec.json.Decoder(expected)


def _converted(values: list[Any], dtype: np.dtype[Any]) -> HostArray:
    if dtype.kind != "f":
        return np.array(values, dtype)  # raises OverflowError for numbers that do not fit
    wide = np.array(values, np.float64)
    if dtype.itemsize == 8:
        return wide
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    if not np.isfinite(narrow).all():
        raise OverflowError(f"a number is too large for {dtype}")
    return narrow
