"""The Open Inference Protocol, version 2, with binary tensor data: requests and responses as bytes.

https://github.com/kserve/open-inference-protocol has the rules for JSON, and Triton's "binary tensor data extension"
those for tensors that follow the JSON as bytes. Nothing here waits or allocates more than the limits say.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from anygpu.base.typing import HostArray
from anygpu.runtime.serving.limits import (
    MAX_INPUTS,
    MAX_NAME,
    MAX_RANK,
    InvalidRequest,
    Limits,
    RequestRefused,
    too_large,
)

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
    """Bytes of one element. Raises `InvalidRequest` for a datatype that is not supported."""
    size = _ITEM_SIZES.get(datatype)
    if size is None:
        raise InvalidRequest(f"the datatype {datatype[:32]!r} is not supported; {', '.join(_ITEM_SIZES)} are.")
    return size


def from_binary(datatype: str, shape: Sequence[int], count: int, data: memoryview, start: int) -> HostArray:
    """An array of the elements from `start` on: aligned, writable, and no reference to the request."""
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
    """The elements as bytes, little-endian and in row-major order; a view of the array where that is possible."""
    array = np.ascontiguousarray(array)
    if _SWAPS:
        array = array.byteswap()
    return array.reshape(-1).view(np.uint8).data


def from_json(name: str, datatype: str, shape: Sequence[int], count: int, data: msgspec.Raw) -> HostArray:
    """An array from a list of numbers, flat or nested as the shape is.

    Raises `InvalidRequest` if it is anything else, if a number does not fit the datatype, or if there are too few or
    many.
    """
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
    """The elements as a flat list, in row-major order.

    Raises `InvalidRequest` for types that JSON has no form for, and for NaN and infinities.
    """
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
    """A decoder for lists of one kind of number, so many levels deep."""
    expected: Any = _ITEMS[kind]
    for _ in range(depth):
        expected = list[expected]
    return msgspec.json.Decoder(expected)


def _converted(values: list[Any], dtype: np.dtype[Any]) -> HostArray:
    """The numbers as an array. Raises `OverflowError` for one that does not fit into the type."""
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


_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_Length = Annotated[int, msgspec.Meta(ge=0)]


class _InputParameters(msgspec.Struct):
    binary_data_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shared_memory_region: Any = None


class _Input(msgspec.Struct):
    name: _Name
    shape: Annotated[list[_Length], msgspec.Meta(max_length=MAX_RANK)]
    datatype: _Name
    parameters: _InputParameters | None = None
    data: msgspec.Raw | UnsetType = UNSET


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: Any = None


class _RequestedOutput(msgspec.Struct):
    name: _Name
    parameters: _OutputParameters | None = None


class _RequestParameters(msgspec.Struct):
    binary_data_output: bool = False
    #: Microseconds, as Triton's clients send it.
    timeout: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Request(msgspec.Struct):
    inputs: Annotated[list[_Input], msgspec.Meta(max_length=MAX_INPUTS)]
    id: _Name = ""
    parameters: _RequestParameters | None = None
    outputs: Annotated[list[_RequestedOutput], msgspec.Meta(max_length=MAX_INPUTS)] | None = None


_REQUEST = msgspec.json.Decoder(_Request)
_ENCODER = msgspec.json.Encoder()


class InferRequest(msgspec.Struct, frozen=True):
    """A request that keeps the rules."""

    inputs: dict[str, HostArray]
    id: str = ""
    #: By name, whether it is wanted as binary data; `None` for all outputs.
    outputs: dict[str, bool] | None = None
    #: Whether outputs are binary that were not asked for by name.
    binary: bool = False
    #: Seconds.
    timeout: float | None = None


class Response(msgspec.Struct, frozen=True):
    body: bytes
    #: Bytes of the JSON before the binary data; `None` when there is only JSON.
    json_length: int | None = None


def parse(body: bytes | bytearray, json_length: int | None, limits: Limits) -> InferRequest:
    """The request in a body. Raises `RequestRefused` for whatever is wrong.

    `json_length` is that of the request's header; binary data of the inputs follows it in their order, without gaps.
    """
    whole = memoryview(body)
    if json_length is not None and json_length > len(whole):
        raise InvalidRequest(f"Inference-Header-Content-Length is {json_length}, but the body has {len(whole)} bytes.")
    head = whole if json_length is None else whole[:json_length]
    if len(head) > limits.json:
        raise too_large(
            f"the JSON of a request has at most {limits.json:,} bytes, not {len(head):,}. Send binary data."
        )
    try:
        request = _REQUEST.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request is not valid: {str(error)[:200]}") from None
    inputs: dict[str, HostArray] = {}
    start = len(head)
    for each in request.inputs:
        if each.name in inputs:
            raise InvalidRequest(f"the input {each.name!r} is given twice.")
        inputs[each.name], start = _tensor(each, whole, start, limits)
    if start != len(whole):
        raise InvalidRequest(f"{len(whole) - start} bytes follow the data of the last input.")
    parameters = request.parameters
    timeout = parameters.timeout if parameters is not None else None
    return InferRequest(
        inputs,
        request.id,
        None if request.outputs is None else _requested(request.outputs, parameters),
        parameters is not None and parameters.binary_data_output,
        timeout / 1e6 if timeout else None,
    )


def _tensor(given: _Input, body: memoryview, start: int, limits: Limits) -> tuple[HostArray, int]:
    """The array, and where the next input's data begins."""
    name, parameters = given.name, given.parameters
    size = item_size(given.datatype)
    # Lengths beside a 0 count too: an array of no elements still has strides.
    if math.prod([max(1, length) for length in given.shape]) > limits.elements:
        raise too_large(f"the input {name!r} of shape {given.shape} has more than {limits.elements:,} elements.")
    count = math.prod(given.shape)
    if parameters is not None and parameters.shared_memory_region is not None:
        raise InvalidRequest(f"the input {name!r} is in shared memory, which is not supported; send its data.")
    length = parameters.binary_data_size if parameters is not None else None
    if length is None:
        if given.data is UNSET:
            raise InvalidRequest(f"the input {name!r} has neither data nor binary_data_size.")
        return from_json(name, given.datatype, given.shape, count, given.data), start
    if given.data is not UNSET:
        raise InvalidRequest(f"the input {name!r} has both data and binary_data_size.")
    if length != count * size:
        raise InvalidRequest(
            f"the input {name!r} of shape {given.shape} and {given.datatype} takes {count * size} bytes, and its "
            f"binary_data_size is {length}."
        )
    if start + length > len(body):
        raise InvalidRequest(f"the body ends before the {length} bytes of the input {name!r}.")
    return from_binary(given.datatype, given.shape, count, body, start), start + length


def _requested(outputs: Sequence[_RequestedOutput], whole: _RequestParameters | None) -> dict[str, bool]:
    """By name, whether each output is wanted as binary data. Raises `InvalidRequest` for what is not supported."""
    otherwise = whole is not None and whole.binary_data_output
    requested: dict[str, bool] = {}
    for each in outputs:
        parameters = each.parameters or _OutputParameters()
        if parameters.classification or parameters.shared_memory_region is not None:
            raise InvalidRequest(f"the output {each.name!r} asks for classification or shared memory: not supported.")
        requested[each.name] = otherwise if parameters.binary_data is None else parameters.binary_data
    return requested


class _BinarySize(msgspec.Struct):
    binary_data_size: int


class _Output(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: _BinarySize | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Output]
    id: str = ""


def answer(request: InferRequest, model: str, version: str, outputs: dict[str, HostArray]) -> Response:
    """The response with the outputs that were asked for, in the model's order.

    Raises `InvalidRequest` for an output that the model lacks, and `RequestRefused` (500) for a type that the protocol
    lacks.
    """
    requested = request.outputs
    if requested is not None and not outputs.keys() >= requested.keys():
        unknown = next(name for name in requested if name not in outputs)
        raise InvalidRequest(f"{model} has no output {unknown[:64]!r}; it has {', '.join(outputs)}.")
    described: list[_Output] = []
    data: list[memoryview] = []
    for name, array in outputs.items():
        if requested is not None and name not in requested:
            continue
        datatype = datatype_of(array.dtype)
        if datatype is None:
            raise RequestRefused(
                500, f"the output {name!r} of {model} is {array.dtype}, which the protocol has no type for."
            )
        if request.binary if requested is None else requested[name]:
            described.append(_Output(name, datatype, array.shape, parameters=_BinarySize(array.nbytes)))
            data.append(to_binary(array))
        else:
            described.append(_Output(name, datatype, array.shape, data=to_json(name, datatype, array)))
    head = _ENCODER.encode(_Answer(model, version, described, request.id))
    return Response(b"".join([head, *data]), len(head)) if data else Response(head)
