from __future__ import annotations

import contextlib
import pickle
import random
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.errors import InvalidProgram
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Concatenate, Input, Slice, Unary
from anygpu.program.wire import FORMAT, MAX_BYTES, MAX_EDGES, MAX_NODES, VERSION, from_bytes, to_bytes
from tests.program.fuzz_wire import LIMIT_MIB, fuzz
from tests.program.sampling import random_program

INPUT = [["input", [3], "float32"], []]
AXES = list(range(64))


def record(nodes: Any, outputs: Any = (0,), *more: Any) -> bytes:
    return msgspec.msgpack.encode([FORMAT, VERSION, nodes, outputs, *more])


def after_one_input(*nodes: Any) -> bytes:
    return record([INPUT, *nodes], [0])


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_program_survives(seed: int) -> None:
    program = random_program(random.Random(seed))
    again = from_bytes(to_bytes(program))
    assert again == program
    assert again.key == program.key
    assert again.specs == program.specs
    assert again.lines == program.lines
    assert to_bytes(again) == to_bytes(program)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_program_survives_pickling(seed: int) -> None:
    program = random_program(random.Random(seed))
    again = pickle.loads(pickle.dumps(program))
    assert (again, again.lines) == (program, program.lines)


def test_files_are_told_only_when_wanted() -> None:
    program = Program([Node(Input((), "bool"))], [0], lines=[("/home/secret.py", 3)])
    assert b"secret" in to_bytes(program)
    without = to_bytes(program, lines=False)
    assert b"secret" not in without
    assert from_bytes(without).lines == (None,)
    assert from_bytes(without) == program


def test_a_file_name_that_is_not_text_is_written_all_the_same() -> None:
    program = Program([Node(Input((), "bool"))], [0], lines=[("x" * 9000 + "\udcff.py", 3)])
    (line,) = from_bytes(to_bytes(program)).lines
    assert line is not None
    assert line[0].endswith("x?.py")


def test_a_file_name_is_written_once() -> None:
    nodes = [Node(Input((), "float32")), *(Node(Unary("exp"), (i,)) for i in range(99))]
    program = Program(nodes, [99], lines=[("file.py", i) for i in range(100)])
    assert to_bytes(program).count(b"file.py") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a program"),
        (b"\xc1", "not a program"),
        (b"hello, I am a program", "not a program"),
        (msgspec.msgpack.encode(["numpy.array", 1, [INPUT], [0]]), "do not begin with 'anygpu.program'"),
        (msgspec.msgpack.encode([FORMAT, 2, "whatever comes"]), "version 2 .* reads version 1; update anygpu"),
        (msgspec.msgpack.encode([FORMAT, 0, [INPUT], [0]]), "version 0 .* reads version 1"),
        (msgspec.msgpack.encode([FORMAT, "1", [INPUT], [0]]), "not a program"),
        (msgspec.msgpack.encode({"format": FORMAT, "version": 1}), "not a program"),
        (record([INPUT])[:-1], "truncated"),
        (record([INPUT]) + b"\x00", "trailing"),
        (record([INPUT], [0], [], [], "more"), "at most length 6"),
        (record([INPUT], []), "at least one value"),
        (record([], [0]), "cannot return node 0"),
        (record([INPUT], [1]), "cannot return node 1"),
        (record([INPUT], [-1]), "cannot return node -1"),
        (record([INPUT], [True]), "not a program"),
        (record([INPUT], [2**64 - 1]), "cannot return node"),
        (record([INPUT], [0], [], [[0, 1]]), "file 0 of 0"),
        (record([INPUT], [0], ["a.py"], [[0, 1], None]), "2 lines for 1 nodes"),
        (record([INPUT], [0], ["a.py" * 2000], [[0, 1]]), "length <= 4096"),
        (after_one_input([["teleport"], [0]]), "Invalid value 'teleport'"),
        (after_one_input([["unary", "frobnicate"], [0]]), "Invalid enum value"),
        (after_one_input([["unary", "exp"], [1]]), "does not come before it"),
        (after_one_input([["unary", "exp"], [2]]), "does not come before it"),
        (after_one_input([["unary", "exp"], [-1]]), "does not come before it"),
        (after_one_input([["unary", "exp"], [0.0]]), "Expected `int`"),
        (after_one_input([["unary", "exp", 1], [0]]), "at most length"),
        (after_one_input([["unary"], [0]]), "at least length"),
        (after_one_input([["unary", "exp"], [0], 1]), "length 2"),
        (after_one_input([["unary", "exp"], []]), "takes 1 inputs"),
        (after_one_input([["unary", "exp"], [0]], INPUT), "inputs come before"),
        (record([[["input", [-1], "float32"], []]]), "not a possible shape"),
        (record([[["input", [2**62], "float32"], []]]), "not a possible shape"),
        (record([[["input", [2**40, 2**40], "float32"], []]]), "not a possible shape"),
        (record([[["input", [0, 2**40, 2**40], "float32"], []]]), "not a possible shape"),
        (record([[["input", [1] * 65, "float32"], []]]), "length <= 64"),
        (record([[["input", [1] * 100_000, "float32"], []]]), "length <= 64"),
        (record([[["input", [float("nan")], "float32"], []]]), "Expected `int`"),
        (record([[["constant", [2], "bool", b"\x00\x02"], []]]), "0 or 1"),
        (record([[["constant", [2**57], "bool", b"\x00"], []]]), "bytes"),
        (after_one_input([["slice", [0], [3], [2**63]], [0]]), "outside"),
        (after_one_input([["windows", 0, 1, 2**64 - 1], [0]]), "no stretch"),
        (b"\x96" + b"\x91" * 1_000_000, "not a program"),
        (record([INPUT])[:-2] + b"\x91" * 100_000 + b"\x00", "nested too deeply"),
        (b"\x94\xae" + FORMAT.encode() + b"\x01\xdd\xff\xff\xff\xff", "not a program"),
        (b"\x94\xae" + FORMAT.encode() + b"\x01\x91\x92\x91\xa2\xff\xfe\x90\x91\x00", "not a program"),
        (b"\x94\xae" + FORMAT.encode() + b"\x01\xc6\xff\xff\xff\xff", "not a program"),
        (b"\x00" * (MAX_BYTES + 1), "at most"),
    ],
)
def test_bad_bytes_are_refused_with_a_reason(data: bytes, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message) as caught:
        from_bytes(data)
    assert len(str(caught.value)) < 2000


def test_a_refusal_does_not_repeat_what_was_sent() -> None:
    with pytest.raises(InvalidProgram) as caught:
        from_bytes(after_one_input([["\x1b[31m" + "x" * 1_000_000], [0]]))
    assert len(str(caught.value)) < 400
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        after_one_input(*[[["select"], []]] * (MAX_NODES + 1)),
        after_one_input(*[[["concatenate", 0], [0] * 90_000]] * 5),
        record([INPUT], [0] * (MAX_NODES + 1)),
        record([[["input", [1] * 64, "float32"], []], *[[["permute", AXES], [0]]] * 20_000]),
        record([[["input", [1] * 64, "float32"], []], *[[["contract", AXES, AXES, [], []], [0, 0]]] * 5_000]),
        record([INPUT], [0], ["x" * 4096] * 1000, [[i % 1000, i] for i in range(50_000)]),
    ],
    ids=["nodes", "edges", "outputs", "axes", "pairs of axes", "files"],
)
def test_large_bytes_are_read_or_refused_soon(data: bytes) -> None:
    start = time.thread_time()
    with contextlib.suppress(InvalidProgram):
        from_bytes(data)
    assert time.thread_time() - start < 10


def test_what_could_not_be_read_is_not_written() -> None:
    too_many = [Node(Input((), "float32")), *[Node(Unary("exp"), (0,))] * MAX_NODES]
    with pytest.raises(InvalidProgram, match="at most 100,000 nodes"):
        to_bytes(Program(too_many, [0]))
    line = Node(Input((1,), "float32"))
    with pytest.raises(InvalidProgram, match="inputs of nodes"):
        to_bytes(Program([line, Node(Concatenate(0), (0,) * (MAX_EDGES + 1))], [1]))
    huge = Node(Slice((0,), (1,), (2**70,)), (0,))
    with pytest.raises(InvalidProgram, match="cannot be written"):
        to_bytes(Program.trusted((line, huge), (1,), (Input((1,), "float32").infer(),) * 2, (None, None)))


def test_tampered_bytes_give_a_program_or_invalid_program() -> None:
    report = fuzz(count=5_000, seed=1)
    assert report.surprises == []
    assert min(report.accepted, report.malformed, report.wrong) > 100
    assert report.slowest_seconds < 2
    assert report.most_bytes < LIMIT_MIB << 20
