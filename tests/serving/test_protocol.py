"""Requests and responses as bytes: what is taken, what is refused, and that nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.runtime.serving.limits import MAX_INPUTS, MAX_RANK, Limits, RequestRefused
from anygpu.runtime.serving.protocol import DATATYPES, InferRequest, answer, parse

LIMITS = Limits(1 << 20)


def binary(*tensors: tuple[str, str, Any], **parameters: Any) -> tuple[bytes, int]:
    inputs = [
        {"name": name, "datatype": datatype, "shape": list(each.shape), "parameters": {"binary_data_size": each.nbytes}}
        for name, datatype, each in tensors
    ]
    head = json.dumps({"id": "7", "inputs": inputs, "parameters": parameters}).encode()
    return head + b"".join(each.tobytes() for *_, each in tensors), len(head)


def in_json(datatype: str, shape: list[int], data: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}], **more}).encode()


def refused(body: bytes, length: int | None = None) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        parse(body, length, LIMITS)
    return caught.value


def status_of(body: bytes, length: int | None) -> int:
    try:
        parse(body, length, LIMITS)
    except RequestRefused as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_type_as_binary_data(datatype: str) -> None:
    values = np.arange(6).astype(DATATYPES[datatype]).reshape(2, 3)
    found = parse(*binary(("x", datatype, values)), LIMITS).inputs["x"]
    assert found.dtype == values.dtype
    assert found.flags.writeable
    assert found.flags.aligned
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("datatype", [each for each in DATATYPES if each != "FP16"])
@pytest.mark.parametrize("nested", [False, True])
def test_every_type_as_json(datatype: str, nested: bool) -> None:
    values = np.arange(6).astype(DATATYPES[datatype]).reshape(2, 3)
    data = values.tolist() if nested else values.ravel().tolist()
    found = parse(in_json(datatype, [2, 3], data), None, LIMITS).inputs["x"]
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_bfloat16_becomes_float32() -> None:
    halves = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)  # 1, -2, infinity and the smallest one
    found = parse(*binary(("x", "BF16", halves)), LIMITS).inputs["x"]
    assert found.dtype == np.float32
    assert found.tolist() == [1.0, -2.0, np.inf, 2.0**-133]


def test_any_byte_but_0_is_true() -> None:
    found = parse(*binary(("x", "BOOL", np.array([0, 1, 2, 255], np.uint8))), LIMITS).inputs["x"]
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_scalars_and_empty_tensors() -> None:
    body, length = binary(("x", "FP32", np.float32(3)), ("y", "INT8", np.empty((0, 5), np.int8)))
    inputs = parse(body, length, LIMITS).inputs
    assert inputs["x"].shape == ()
    assert inputs["y"].shape == (0, 5)


def test_what_is_asked_for() -> None:
    body, length = binary(("x", "FP32", np.ones(2, np.float32)), binary_data_output=True, timeout=250_000, other="text")
    found = parse(body, length, LIMITS)
    assert (found.id, found.binary, found.timeout, found.outputs) == ("7", True, 0.25, None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid"),
        (b"[]", "not valid"),
        (b'{"inputs": 3}', "not valid"),
        (b"\xff\xfe", "not valid"),
        (b"[" * 100_000, "not valid"),
        (b'{"inputs":[],"x":' + b"[" * 100_000, "not valid"),
        (in_json("FP32", [2], [1.0]), "has 1 elements"),
        (in_json("FP32", [1, 2], [[1.0], [2.0]]), "elements"),
        (in_json("FP32", [2, 2], [[1.0, 2.0], [3.0]]), "not a list of FP32"),
        (in_json("FP32", [1], ["a"]), "not a list of FP32"),
        (in_json("FP32", [1], [None]), "not a list of FP32"),
        (in_json("FP32", [1], [1e300]), "too large for float32"),
        (in_json("UINT8", [1], [256]), "not a list of UINT8"),
        (in_json("INT32", [1], [1.5]), "not a list of INT32"),
        (in_json("BOOL", [1], [2]), "not a list of BOOL"),
        (in_json("FP16", [1], [1.0]), "no JSON form"),
        (in_json("BYTES", [1], ["a"]), "not supported"),
        (in_json("FP32", [-1], []), "not valid"),
        (in_json("FP32", [1] * (MAX_RANK + 1), [1.0]), "not valid"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}', "neither data nor"),
        (
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","parameters":{"shared_memory_region":"r"}}]}',
            "shared memory",
        ),
        (json.dumps({"inputs": [json.loads(in_json("FP32", [1], [1.0]))["inputs"][0]] * 2}).encode(), "given twice"),
    ],
)
def test_refused(body: bytes, says: str) -> None:
    refusal = refused(body)
    assert refusal.status == 400
    assert says in refusal.message
    assert len(refusal.message) < 400


def test_lengths_that_do_not_fit() -> None:
    body, length = binary(("x", "FP32", np.ones(4, np.float32)))
    assert "follow the data" in refused(body + b"1", length).message
    assert "body ends before" in refused(body[:-1], length).message
    assert "body has" in refused(body, len(body) + 1).message
    wrong, length = binary(("x", "FP64", np.ones(4, np.float32)))
    assert "takes 32 bytes" in refused(wrong, length).message


def test_limits_are_checked_before_anything_is_allocated() -> None:
    for shape in ([1 << 40], [1 << 20, 1 << 20], [0, 1 << 62]):
        refusal = refused(in_json("FP32", shape, []))
        assert refusal.status == 413
    many = json.dumps({"inputs": [json.loads(in_json("FP32", [1], [1.0]))["inputs"][0]] * (MAX_INPUTS + 1)}).encode()
    assert refused(many).status == 400
    long = refused(b" " * (LIMITS.json + 1))
    assert long.status == 413


def test_a_response_has_what_was_asked_for() -> None:
    outputs: dict[str, HostArray] = {"a": np.ones((2, 1), np.float32), "b": np.arange(3)}
    wanted = InferRequest({}, "id", {"b": False, "a": True})
    response = answer(wanted, "m", "1", outputs)
    assert response.json_length is not None
    head = json.loads(response.body[: response.json_length])
    assert head == {
        "model_name": "m",
        "model_version": "1",
        "id": "id",
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [2, 1], "parameters": {"binary_data_size": 8}},
            {"name": "b", "datatype": "INT64", "shape": [3], "data": [0, 1, 2]},
        ],
    }
    assert response.body[response.json_length :] == outputs["a"].tobytes()
    [only] = json.loads(answer(InferRequest({}, "", {"b": False}), "m", "1", outputs).body)["outputs"]
    assert only["name"] == "b"
    with pytest.raises(RequestRefused, match="no output 'c'"):
        answer(InferRequest({}, "", {"c": False}), "m", "1", outputs)


def test_what_json_has_no_form_for() -> None:
    for value in (np.array([np.nan]), np.array([1.0], np.float16)):
        with pytest.raises(RequestRefused, match="ask for binary data"):
            answer(InferRequest({}), "m", "1", {"output": value})
    for value, dtype in ((np.array([1j]), "complex128"), (np.asarray("text"), "<U4"), (np.asarray(None), "object")):
        with pytest.raises(RequestRefused, match=f"is {dtype}, which the protocol has no type for") as caught:
            answer(InferRequest({}), "m", "1", {"output": value})
        assert caught.value.status == 500


_VALID, _LENGTH = binary(
    ("x", "FP32", np.ones((2, 3), np.float32)), ("y", "INT64", np.arange(4)), binary_data_output=True
)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_mutated_requests_are_refused_or_taken(data: st.DataObject) -> None:
    """Nothing but a `Refusal` is raised, whatever the bytes are."""
    body = bytearray(_VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.sampled_from(b'0123456789"[]{},:-eE.\x00\xffxn'))
    length = data.draw(st.sampled_from([_LENGTH, None, 0, _LENGTH - 1, _LENGTH + 1, len(body), 10**12]))
    assert status_of(bytes(body), length) in (200, 400, 413)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(_JSON, st.sampled_from(["inputs", "name", "shape", "datatype", "data", "parameters", "outputs", "id"]))
def test_any_json_in_any_field(value: Any, field: str) -> None:
    request = json.loads(in_json("FP32", [2], [1.0, 2.0]))
    (request if field in ("inputs", "outputs", "id") else request["inputs"][0])[field] = value
    assert status_of(json.dumps(request).encode(), None) in (200, 400, 413)
