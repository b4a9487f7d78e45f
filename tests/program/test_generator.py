"""The random programs that all else is tested with: wide enough, always well defined, and able to find faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings

from anygpu.agreement.elementwise import TOLERANCES
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program import functions
from anygpu.program import primitives as p
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.primitives import PRIMITIVES, Primitive, Spec
from tests.support.program_strategies import programs
from tests.support.random_programs import (
    NODE_GENERATORS,
    WEIGHTS,
    random_inputs,
    random_program,
)
from tests.support.random_programs.error_bounds import disagreement, tolerance, tolerances

EVERY_PRIMITIVE = set(PRIMITIVES) - {p.Input, p.Custom}
WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, p.Linear: 3}


def test_every_primitive_has_a_maker_and_a_weight() -> None:
    assert set(NODE_GENERATORS) == set(WEIGHTS) == EVERY_PRIMITIVE


@pytest.mark.parametrize("kind", sorted(EVERY_PRIMITIVE, key=str))
def test_every_primitive_can_be_made(kind: type[Primitive]) -> None:
    weights: dict[type[Primitive], float] = {**dict.fromkeys((p.Constant, p.Cast, p.Binary), 0.2), kind: 5.0}
    made = (random_program(seed, primitives=weights) for seed in range(300))
    assert any(isinstance(op, kind) for program in made for op, _ in program.nodes)


def test_every_function_and_every_type_is_made() -> None:
    seen: set[tuple[type[Primitive], str]] = set()
    types: set[DType] = set()
    dimensions: set[int] = set()
    lengths: set[int] = set()
    weights: dict[type[Primitive], float] = {
        **WEIGHTS, p.Linear: 6, p.Unary: 20, p.Binary: 16, p.Fourier: 6, p.Reduce: 6, p.Scatter: 5,
    }  # fmt: skip
    for seed in range(1500):
        program = random_program(seed, primitives=weights)
        seen.update((type(op), op.name) for op, _ in program.nodes)
        types.update(spec.dtype for spec in program.specs)
        dimensions.update(len(spec.shape) for spec in program.inputs)
        lengths.update(length for spec in program.inputs for length in spec.shape)
    families: dict[type[Primitive], Any] = {
        p.Unary: functions.UnaryFunction,
        p.Binary: functions.BinaryFunction,
        p.Reduce: functions.ReduceFunction,
        p.Scan: functions.ScanFunction,
        p.Scatter: functions.ScatterFunction,
        p.Fourier: functions.FourierFunction,
        p.Linear: functions.LinearFunction,
    }
    missing = {(kind, fn) for kind, family in families.items() for fn in get_args(family)} - seen
    assert not missing
    assert types == set(DTYPES) - {"bfloat16"}
    assert dimensions == set(range(6))
    assert {0, 1, 2, 3, 5, 7} <= lengths


def test_what_is_asked_for_is_kept() -> None:
    for seed in range(200):
        program = random_program(seed, dtypes=("float32", "int32", "bool"), max_nodes=9, max_elements=40)
        assert {spec.dtype for spec in program.specs} <= {"float32", "int32", "bool"}
        assert len(program) <= 9
        assert max(spec.size for spec in program.specs) <= 40


def test_a_seed_gives_one_program_and_one_set_of_inputs() -> None:
    for seed in range(50):
        one, other = random_program(seed), random_program(random.Random(seed))
        assert one == other
        Program(one.nodes, one.outputs)  # right in shape and type, inferred anew
        first, second = (random_inputs(one, random.Random(seed)) for _ in range(2))
        assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))


def test_every_operation_is_well_defined() -> None:
    """No value is infinite or NaN, and nothing raises; results are what the program says."""
    for seed in range(300):
        program = random_program(seed, primitives=WITH_LINEAR)
        inputs = random_inputs(program, random.Random(seed))
        assert [Spec(x.shape, x.dtype.name) for x in inputs] == list(program.inputs)  # type: ignore[arg-type]
        everything = Program(program.nodes, range(len(program)))
        for spec, values in zip(program.specs, lowering.run(everything, inputs), strict=True):
            assert (values.shape, values.dtype.name) == spec
            assert values.dtype.kind not in "fc" or np.isfinite(values).all()


def test_tolerances_are_published_for_every_class_and_type() -> None:
    for kind, table in TOLERANCES.items():
        assert {"float32", "float64"} <= set(table), kind
        assert all(value > 0 for value in table.values())


def test_tolerances_are_small() -> None:
    """What may differ is little beside what is there; much may not differ at all."""
    shares: list[float] = []
    for seed in range(300):
        program = random_program(seed, dtypes=("float32", "float64", "int32", "bool"))
        outputs = lowering.run(program, random_inputs(program, random.Random(seed)))
        for values, (relative, absolute) in zip(outputs, tolerances(program), strict=True):
            if values.dtype.kind == "f" and values.size:
                largest = float(np.abs(values).max())
                shares.append((absolute + relative * largest) / max(largest, 0.1))
    assert np.mean([share == 0 for share in shares]) > 0.3
    assert np.quantile(shares, 0.9) < 1e-4
    assert max(shares) < 0.02


def program_of(op: Primitive, *specs: Spec) -> Program:
    recorder = Recorder()
    inputs = [recorder.input(spec) for spec in specs]
    return recorder.program([recorder.add(op, *inputs)])


def test_exact_operations_have_one_answer_and_functions_have_some_room() -> None:
    vector = Spec((8,), "float32")
    assert tolerance(program_of(p.Binary("multiply"), vector, vector), 0) == (0, 0)
    assert tolerance(program_of(p.Reduce("sum", (0,)), vector), 0) == (0, 0)
    assert tolerance(program_of(p.Reduce("argmax", (0,)), vector), 0) == (0, 0)
    relative, absolute = tolerance(program_of(p.Unary("sin"), vector), 0)
    assert 0 < relative < 1e-5
    assert 0 < absolute < 1e-5
    # Out of the domain that is known, it is what functions may add; and no error.
    assert 0 < tolerance(program_of(p.Unary("log"), vector), 0)[0] < 1e-4


def test_the_first_difference_is_named() -> None:
    program = program_of(p.Unary("sin"), Spec((2, 3), "float64"))
    expected = [np.arange(6.0).reshape(2, 3)]
    assert disagreement(expected, [expected[0] + 1e-16], program) is None
    wrong = expected[0].copy()
    wrong[1, 0] += 0.5
    sentence = disagreement(expected, [wrong], program)
    assert sentence is not None
    assert "output 0 (float64[2, 3]) at (1, 0): 3.0 expected, 3.5 came" in sentence
    assert "(1 of 6 differ)" in sentence
    assert "float32[2, 3], not float64[2, 3]" in str(disagreement(expected, [wrong.astype("f4")], program))
    assert "float64[6]" in str(disagreement(expected, [wrong.ravel()], program))
    assert "0 came" in str(disagreement(expected, [], program))
    nan = [np.full((2, 3), np.nan)]
    assert disagreement(nan, nan, program) is None
    assert disagreement(expected, nan, program) is not None
    scalar = program_of(p.Unary("negative"), Spec((), "int32"))
    assert "at ()" in str(disagreement([np.int32(1) * np.ones((), "i4")], [np.zeros((), "i4")], scalar))


Fault = Callable[[HostArray, Primitive, Sequence[HostArray]], HostArray]


def scaled(values: HostArray) -> HostArray:
    return np.asarray(values * np.asarray(1 + 1e-5, values.dtype), values.dtype)


FAULTS: dict[str, tuple[type[Primitive], str, Fault]] = {
    "an inexact function": (p.Unary, "exp", lambda y, op, x: scaled(y) if y.dtype == "f4" else y),
    "an inexact sum": (p.Reduce, "sum", lambda y, op, x: scaled(y) if y.dtype == "f8" else y),
    "a product in half the digits": (
        p.Contract, "contract", lambda y, op, x: lowering.run_node(op, [each.astype("f4") for each in x]).astype("f8")
        if y.dtype == "f8" else y,
    ),
    "C's remainder": (p.Binary, "remainder", lambda y, op, x: np.fmod(x[0], x[1])),
    "the last of equals": (
        p.Reduce, "argmax", lambda y, op, x: np.asarray(
            x[0].shape[op.axes[0]] - 1 - np.argmax(np.flip(x[0], op.axes[0]), op.axes[0])  # type: ignore[attr-defined]
        ),
    ),
    "the other side": (
        p.Search, "search",
        lambda y, op, x: lowering.run_node(p.Search("left" if op.side == "right" else "right"), x),  # type: ignore[attr-defined]
    ),
    "bits of a negative number": (
        p.Unary, "popcount", lambda y, op, x: np.bitwise_count(x[0].view(x[0].dtype.str.replace("i", "u"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_an_engine_with_a_fault_is_found_out(name: str) -> None:
    kind, fn, fault = FAULTS[name]

    def run(program: Program, inputs: Sequence[HostArray]) -> list[HostArray]:
        values: list[HostArray] = list(inputs)
        for op, sources in program.nodes[len(inputs) :]:
            given = [values[source] for source in sources]
            result = lowering.run_node(op, given)
            values.append(fault(result, op, given) if type(op) is kind and op.name == fn else result)
        return [values[output] for output in program.outputs]

    for seed in range(1500):
        program = random_program(seed, primitives={**WEIGHTS, kind: 20.0})
        if any(type(op) is kind and op.name == fn for op, _ in program.nodes):
            inputs = random_inputs(program, random.Random(seed))
            if disagreement(lowering.run(program, inputs), run(program, inputs), program) is not None:
                return
    raise AssertionError(f"{name} was not found.")


@settings(max_examples=50, deadline=None)
@given(program=programs(max_nodes=12, dtypes=("float32", "bool", "int32")))
def test_the_hypothesis_strategy(program: Program) -> None:
    assert 1 <= len(program) <= 12
    assert isinstance(program.nodes[0], Node)
    inputs = random_inputs(program, random.Random(0))
    assert disagreement(lowering.run(program, inputs), lowering.run(program, inputs), program) is None
