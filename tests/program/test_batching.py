from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from anygpu.engines.numpy.lowering import run
from anygpu.errors import InvalidOption
from anygpu.program import primitives as p
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Primitive, Spec
from anygpu.program.transforms import vmap
from tests.support.laws import broken_by_vmap
from tests.support.random_programs import WEIGHTS, random_inputs, random_program

WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, p.Linear: 5}


def one(op: Primitive, *specs: Spec) -> Program:
    recorder = Recorder()
    inputs = [recorder.input(spec) for spec in specs]
    return recorder.program([recorder.add(op, *inputs)])


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_stacked_inputs_give_the_stacked_results(first: int) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        assert broken_by_vmap(random_program(rng, primitives=WITH_LINEAR), rng, run) is None, seed


@pytest.mark.parametrize("kind", sorted(WEIGHTS, key=str))
def test_every_rule(kind: type[Primitive]) -> None:
    weights: dict[type[Primitive], float] = {**dict.fromkeys((p.Unary, p.Binary, p.Reshape), 0.3), kind: 5.0}
    for seed in range(25):
        rng = random.Random(seed)
        assert broken_by_vmap(random_program(rng, primitives=weights, max_nodes=12), rng, run) is None, seed


F: DType = "float64"
#: What has more than one input, as each rule for these depends on which of them are stacked.
SEVERAL: dict[str, tuple[Primitive, tuple[Spec, ...]]] = {
    "select": (p.Select(), (Spec((3,), "bool"), Spec((3,), F), Spec((3,), F))),
    "update": (p.Update((1, 0), (2, 1)), (Spec((5, 3), F), Spec((2, 2), F))),
    "pad": (p.Pad((1, 0), (0, 2)), (Spec((2, 3), F), Spec((), F))),
    "pad a scalar": (p.Pad((), ()), (Spec((), F), Spec((), F))),
    "concatenate": (p.Concatenate(1), (Spec((2, 3), F), Spec((2, 1), F), Spec((2, 0), F))),
    "matmul": (p.Contract((1,), (0,)), (Spec((2, 3), F), Spec((3, 4), F))),
    "batched matmul": (p.Contract((1,), (2,), (2,), (0,)), (Spec((2, 3, 5), F), Spec((5, 4, 3), F))),
    "outer product": (p.Contract((), ()), (Spec((2,), F), Spec((3, 2), F))),
    "gather": (p.Gather(1), (Spec((2, 5, 3), F), Spec((2, 2), "uint8"))),
    "gather one": (p.Gather(1), (Spec((2, 5, 3), F), Spec((), "uint8"))),
    "gather in batches": (p.Gather(2, 1), (Spec((2, 3, 5), F), Spec((2, 4), "uint8"))),
    "scatter": (p.Scatter("set", 1), (Spec((2, 5), F), Spec((3,), "uint8"), Spec((2, 3), F))),
    "scatter in batches": (p.Scatter("add", 1, 1), (Spec((2, 5), F), Spec((2, 3), "uint8"), Spec((2, 3), F))),
    "search": (p.Search("left"), (Spec((7,), F), Spec((2, 3), F))),
    "solve": (p.Linear("solve"), (Spec((2, 3, 3), F), Spec((2, 3, 2), F))),
}


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("size", [1, 4])
def test_every_choice_of_inputs(name: str, size: int) -> None:
    op, specs = SEVERAL[name]
    program = one(op, *specs)
    rng = random.Random(name)
    for marks in itertools.product((False, True), repeat=len(specs)):
        calls = [random_inputs(program, rng) for _ in range(size)]
        for call in calls:
            for number, (marked, spec) in enumerate(zip(marks, specs, strict=True)):
                if not marked:
                    call[number] = calls[0][number]
                if spec.dtype == "uint8":
                    call[number] = call[number] % np.uint8(5)
            if isinstance(op, p.Search):
                call[0] = np.sort(call[0])
        stacked = [np.stack([call[n] for call in calls]) if marked else calls[0][n] for n, marked in enumerate(marks)]
        (together,) = run(vmap(program, marks, size), stacked)
        assert together.shape == (size, *program.results[0].shape)
        for number, call in enumerate(calls):
            np.testing.assert_allclose(together[number], run(program, call)[0], rtol=1e-12, atol=1e-12)


NAN = float("nan")
ODD_LINES: dict[str, tuple[DType, list[Any]]] = {
    "float64": ("float64", [-1.0, 0.0, 0.0, 2.5, np.inf, -np.inf, NAN, NAN]),
    "float16": ("float16", [1.0, 1.0, 1.0, NAN]),
    "bool": ("bool", [False, True, True]),
    "uint64": ("uint64", [0, 2**64 - 1, 2**63, 5, 5]),
    "int8": ("int8", [-128, 127, 0, 0]),
    "one": ("float32", [3.0]),
    "none": ("float32", []),
    "complex128": (
        "complex128",
        [complex(a, b) for a in (0.0, 1.0, NAN, np.inf) for b in (-1.0, 0.0, NAN)],
    ),
}


@pytest.mark.parametrize("name", ODD_LINES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_search_in_a_line_for_each_call_is_numpys(name: str, side: Any) -> None:
    dtype, numbers = ODD_LINES[name]
    rng = random.Random(7)
    lines = np.stack([np.sort(np.array(rng.choices(numbers, k=len(numbers)), dtype)) for _ in range(20)])
    others = [*numbers, 1, 0] if dtype != "bool" else numbers
    values = np.array([rng.choices(others, k=12) for _ in range(20)], dtype).reshape(20, 3, 4)
    program = one(p.Search(side), Spec(lines.shape[1:], dtype), Spec((3, 4), dtype))
    (found,) = run(vmap(program, (True, True), 20), [lines, values])
    expected = np.stack([np.searchsorted(line, value, side=side) for line, value in zip(lines, values, strict=True)])
    assert np.array_equal(found, expected)
    (same_values,) = run(vmap(program, (True, False), 20), [lines, values[0]])
    assert np.array_equal(same_values, np.stack([np.searchsorted(line, values[0], side=side) for line in lines]))


def test_a_search_stays_short_for_many_calls() -> None:
    program = one(p.Search("left"), Spec((1000,), "float32"), Spec((5,), "float32"))
    assert len(vmap(program, (True, True), 10**6)) < 150


def test_what_depends_on_nothing_stacked_is_computed_once() -> None:
    recorder = Recorder()
    x, w = recorder.input(Spec((3,), F)), recorder.input(Spec((3,), F))
    heavy = recorder.add(p.Unary("exp"), w)
    program = recorder.program([recorder.add(p.Binary("add"), x, heavy), heavy])
    batched = vmap(program, (True, False), 5)
    assert batched.results == (Spec((5, 3), F), Spec((5, 3), F))
    exp = next(spec for (op, _), spec in zip(batched.nodes, batched.specs, strict=True) if op == p.Unary("exp"))
    assert exp.shape == (3,)


def test_one_matrix_for_all_calls_is_one_product() -> None:
    program = one(p.Contract((1,), (0,)), Spec((2, 3), F), Spec((3, 4), F))
    batched = vmap(program, (True, False), 100)
    assert len(batched) == 3
    assert isinstance(batched.nodes[2].op, p.Contract)
    assert not batched.nodes[2].op.left_batch


def test_no_calls_at_all() -> None:
    for seed in range(100):
        program = random_program(seed, primitives=WITH_LINEAR)
        batched = vmap(program, [True] * program.input_count, 0)
        empty = [np.zeros((0, *spec.shape), spec.dtype) for spec in program.inputs]
        for values, spec in zip(run(batched, empty), program.results, strict=True):
            assert values.shape == (0, *spec.shape)


def test_twice() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        program = random_program(rng, max_nodes=12, max_elements=60)
        marks = [rng.random() < 0.7 for _ in program.inputs]
        assert broken_by_vmap(vmap(program, marks, 3), rng, run) is None, seed


def test_lines_are_kept() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((3,), F))
    program = recorder.program([recorder.add(p.Reduce("sum", (0,)), x, line=("a.py", 5))])
    assert vmap(program, (True,), 2).lines == (None, ("a.py", 5))


def test_what_makes_no_sense_is_refused() -> None:
    program = one(p.Unary("exp"), Spec((), F))
    with pytest.raises(InvalidOption, match="2 marks for a program of 1 inputs"):
        vmap(program, (True, True), 3)
    with pytest.raises(InvalidOption, match="-1 is not a number of calls"):
        vmap(program, (True,), -1)
