from __future__ import annotations

import ast
import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anygpu.program
from anygpu.errors import InvalidProgram
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.primitives import Binary, Cast, Constant, Input, Reduce, Sort, Spec, Unary

LINE = Spec((4,), "float32")


def small() -> Program:
    recorder = Recorder()
    x, y = recorder.input(LINE), recorder.input(LINE)
    total = recorder.add(Binary("add"), recorder.add(Unary("exp"), x), y)
    return recorder.program([recorder.add(Reduce("sum", (0,)), total)])


def test_the_facts_of_a_program() -> None:
    program = small()
    assert len(program) == 5
    assert program.input_count == 2
    assert program.inputs == (LINE, LINE)
    assert program.results == (Spec((), "float32"),)
    assert program.specs == (LINE, LINE, LINE, LINE, Spec((), "float32"))
    assert "(float32[4], float32[4]) -> (float32[]), 5 nodes" in repr(program)


def test_equal_programs_have_one_key() -> None:
    assert small() == small()
    assert small().key == small().key
    assert hash(small()) == hash(small())
    assert len({small(), small()}) == 1
    assert copy.deepcopy(small()) == small()


def test_lines_do_not_matter() -> None:
    program = small()
    told = Program(program.nodes, program.outputs, lines=[("a.py", 1)] * 5)
    assert told == program
    assert told.key == program.key


@pytest.mark.parametrize(
    "other",
    [
        Program([*small().nodes[:2], Node(Unary("exp"), (0,)), Node(Binary("add"), (1, 2))], [3]),
        Program(small().nodes, [3]),
        Program(small().nodes, [4, 4]),
        Program([*small().nodes, Node(Cast("float64"), (4,))], [4]),
    ],
)
def test_other_programs_have_other_keys(other: Program) -> None:
    assert other != small()
    assert other.key != small().key


def test_primitives_with_equal_attributes_differ() -> None:
    one = Program([Node(Constant((), "int8", b"\0"))], [0])
    other = Program([Node(Constant((), "uint8", b"\0"))], [0])
    assert one.key != other.key
    assert small() != "a program"


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_the_key_is_the_same_in_every_process(seed: str) -> None:
    code = "from tests.program.test_graph import small; print(small().key)"
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert process.stdout.strip() == small().key


def test_the_key_does_not_change_between_versions() -> None:
    """Caches on disk go by it. When this must fail, say so in the news."""
    assert small().key == "700dd347b25f869c32b24f8037ac44ca"


def test_the_recorder_adds_nothing_twice() -> None:
    recorder = Recorder()
    x = recorder.input(LINE)
    one = recorder.add(Unary("exp"), x, line=("a.py", 1))
    again = recorder.add(Unary("exp"), x, line=("a.py", 2))
    other = recorder.add(Unary("sin"), x)
    assert one == again != other
    assert recorder.add(Binary("add"), one, other) != recorder.add(Binary("add"), other, one)
    program = recorder.program([again])
    assert program.lines[one] == ("a.py", 1)
    assert len(program) == 5


def test_the_recorder_keeps_inputs_and_signs_apart() -> None:
    recorder = Recorder()
    assert recorder.input(LINE) != recorder.input(LINE)
    zero = recorder.add(Constant((), "float32", b"\0\0\0\0"))
    minus_zero = recorder.add(Constant((), "float32", b"\0\0\0\x80"))
    assert zero != minus_zero


def test_the_recorder_infers_unless_it_is_told() -> None:
    recorder = Recorder()
    x = recorder.input(LINE)
    assert recorder.spec(recorder.add(Reduce("sum", (0,)), x)) == Spec((), "float32")
    assert recorder.spec(recorder.add(Cast("int8"), x, spec=Spec((4,), "int8"))) == Spec((4,), "int8")
    with pytest.raises(InvalidProgram, match="not different axes"):
        recorder.add(Sort(1), x)


def test_inputs_come_first() -> None:
    recorder = Recorder()
    recorder.add(Unary("exp"), recorder.input(LINE))
    with pytest.raises(InvalidProgram, match="inputs come before everything else"):
        recorder.input(LINE)
    with pytest.raises(InvalidProgram, match="node 2 is an input"):
        Program([Node(Input(*LINE)), Node(Unary("exp"), (0,)), Node(Input(*LINE))], [0])


def test_a_recorded_program_passes_every_check() -> None:
    program = small()
    assert Program(program.nodes, program.outputs).specs == program.specs


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ([], [0], "0 nodes cannot return node 0"),
        ([Node(Input(*LINE))], [], "at least one value"),
        ([Node(Input(*LINE))], [1], "1 nodes cannot return node 1"),
        ([Node(Input(*LINE))], [0, -1], "1 nodes cannot return node -1"),
        ([Node(Input(*LINE)), Node(Unary("exp"), (1,))], [0], r"node 1 \(exp\) uses node 1"),
        ([Node(Input(*LINE)), Node(Unary("exp"), (-1,))], [0], r"node 1 \(exp\) uses node -1"),
        ([Node(Input(*LINE)), Node(Unary("invert"), (0,))], [0], "invert: is not defined for float32"),
    ],
)
def test_a_wrong_graph_is_refused(nodes: list[Node], outputs: list[int], message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        Program(nodes, outputs)


def test_there_is_a_line_for_each_node() -> None:
    with pytest.raises(InvalidProgram, match="2 lines for 5 nodes"):
        Program(small().nodes, small().outputs, lines=[None, None])


def test_very_many_inputs_are_recorded_soon() -> None:
    recorder = Recorder()
    for _ in range(20_000):
        recorder.input(LINE)
    assert recorder.program([0]).input_count == 20_000


def test_programs_are_pure() -> None:
    """No array is touched in this layer, so nothing that has arrays is imported."""
    for file in Path(anygpu.program.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                root = name.partition(".")[0]
                base = ("events", "lazy", "own_files", "printable", "units")
                below = tuple(f"anygpu.base.{module}" for module in base)
                ours = name.startswith("anygpu.program") or name in (*below, "anygpu.errors")
                assert ours or root == "msgspec" or root in sys.stdlib_module_names, f"{file.name} imports {name}"
