from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from anygpu.engines.numpy.lowering import evaluate_constant, run
from anygpu.program import primitives as p
from anygpu.program.dtypes import DTYPES, DType, holds_every_value
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.primitives import Primitive, Spec
from anygpu.program.transforms import (
    FOLDED_BYTES,
    simplified,
    with_common_subexpressions_merged,
    with_constants_folded,
    without_dead_code,
    without_identities,
)
from tests.support.laws import broken_by_simplifying
from tests.support.random_programs import WEIGHTS, random_inputs, random_program

WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, p.Linear: 5}
MATRIX = Spec((3, 4), "float32")


def chain(spec: Spec, *ops: Primitive) -> Program:
    """One primitive after the other, on one input."""
    recorder = Recorder()
    value = recorder.input(spec)
    for op in ops:
        value = recorder.add(op, value)
    return recorder.program([value])


def ops(program: Program) -> list[Primitive]:
    return [op for op, _ in program.nodes if not isinstance(op, p.Input)]


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.parametrize("evaluate", [None, evaluate_constant], ids=["identities", "folding"])
def test_simplified_programs_give_the_same(first: int, evaluate: Callable[..., bytes | None] | None) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        assert broken_by_simplifying(random_program(rng, primitives=WITH_LINEAR), rng, run, evaluate) is None, seed


def test_dead_code_goes_and_inputs_stay() -> None:
    recorder = Recorder()
    x, unused = recorder.input(MATRIX), recorder.input(MATRIX)
    recorder.add(p.Binary("add"), x, unused, line=("a.py", 1))
    result = recorder.add(p.Unary("exp"), x, line=("a.py", 2))
    program = without_dead_code(recorder.program([result]))
    assert program.inputs == (MATRIX, MATRIX)
    assert ops(program) == [p.Unary("exp")]
    assert program.lines == (None, None, ("a.py", 2))
    assert without_dead_code(program) is program


def test_common_subexpressions_are_merged() -> None:
    one, other = p.Unary("exp"), p.Unary("exp")
    nodes = [(p.Input(*MATRIX), ()), (one, (0,)), (other, (0,)), (p.Binary("add"), (1, 2))]
    program = with_common_subexpressions_merged(Program([Node(*node) for node in nodes], [3]))
    assert ops(program) == [p.Unary("exp"), p.Binary("add")]
    assert program.nodes[-1].inputs == (1, 1)


IDENTITIES: dict[str, tuple[Spec, list[Primitive], list[Primitive]]] = {
    "cast to the same type": (MATRIX, [p.Cast("float32")], []),
    "cast to a wider type and back": (MATRIX, [p.Cast("float64"), p.Cast("float32")], []),
    "cast to a narrower type and back": (
        MATRIX, [p.Cast("float16"), p.Cast("float32")], [p.Cast("float16"), p.Cast("float32")],
    ),
    "int64 through float64": (
        Spec((3,), "int64"), [p.Cast("float64"), p.Cast("int64")], [p.Cast("float64"), p.Cast("int64")],
    ),
    "int32 through float64": (Spec((3,), "int32"), [p.Cast("float64"), p.Cast("int32")], []),
    "reshape to the same shape": (MATRIX, [p.Reshape((3, 4))], []),
    "two reshapes": (MATRIX, [p.Reshape((12,)), p.Reshape((2, 6))], [p.Reshape((2, 6))]),
    "reshape there and back": (MATRIX, [p.Reshape((12,)), p.Reshape((3, 4))], []),
    "no permutation": (MATRIX, [p.Permute((0, 1))], []),
    "permutation there and back": (MATRIX, [p.Permute((1, 0)), p.Permute((1, 0))], []),
    "two permutations": (Spec((2, 3, 4), "int8"), [p.Permute((1, 2, 0)), p.Permute((1, 0, 2))], [p.Permute((2, 1, 0))]),
    "broadcast to the same shape": (MATRIX, [p.Broadcast((3, 4))], []),
    "two broadcasts": (Spec((1, 4), "bool"), [p.Broadcast((3, 4)), p.Broadcast((2, 3, 4))], [p.Broadcast((2, 3, 4))]),
    "flip twice": (MATRIX, [p.Flip((1,)), p.Flip((0, 1))], [p.Flip((0,))]),
    "flip there and back": (MATRIX, [p.Flip((0, 1)), p.Flip((1, 0))], []),
    "flip what is short": (Spec((1, 4), "int8"), [p.Flip((0,))], []),
    "flip nothing": (MATRIX, [p.Flip(())], []),
    "slice all": (MATRIX, [p.Slice((0, 0), (3, 4), (1, 1))], []),
    "slice of a slice": (
        Spec((20,), "int8"), [p.Slice((2,), (19,), (3,)), p.Slice((1,), (6,), (2,))], [p.Slice((5,), (18,), (6,))],
    ),
    "slice of nothing": (
        Spec((7,), "int8"), [p.Slice((1,), (6,), (3,)), p.Slice((2,), (2,), (1,))], [p.Slice((6,), (6,), (3,))],
    ),
    "concatenate one": (MATRIX, [p.Concatenate(0)], []),
    "negative twice": (MATRIX, [p.Unary("negative"), p.Unary("negative")], []),
    "invert twice": (Spec((2,), "bool"), [p.Unary("invert"), p.Unary("invert")], []),
    "conjugate twice": (Spec((2,), "complex64"), [p.Unary("conj"), p.Unary("conj")], []),
    "exp twice": (MATRIX, [p.Unary("exp"), p.Unary("exp")], [p.Unary("exp"), p.Unary("exp")]),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities(name: str) -> None:
    spec, before, after = IDENTITIES[name]
    program = chain(spec, *before)
    smaller = simplified(program)
    assert ops(smaller) == after
    inputs = random_inputs(program, random.Random(1))
    for one, other in zip(run(program, inputs), run(smaller, inputs), strict=True):
        assert np.array_equal(one, other)


def test_a_pad_of_nothing_and_an_update_of_all_go() -> None:
    recorder = Recorder()
    x, new, value = recorder.input(MATRIX), recorder.input(MATRIX), recorder.input(Spec((), "float32"))
    padded = recorder.add(p.Pad((0, 0), (0, 0)), x, value)
    updated = recorder.add(p.Update((0, 0), (1, 1)), padded, new)
    condition = recorder.add(p.Binary("less"), x, new)
    chosen = recorder.add(p.Select(), condition, updated, updated)
    assert simplified(recorder.program([padded, updated, chosen])).outputs == (0, 1, 1)


def test_adding_zero_stays() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((), "float64"))
    zero = recorder.add(p.Constant((), "float64", bytes(8)))
    program = recorder.program([recorder.add(p.Binary("add"), x, zero)])
    assert simplified(program, evaluate_constant) == program


@pytest.mark.parametrize("narrow", DTYPES)
@pytest.mark.parametrize("wide", DTYPES)
def test_what_holds_every_value_does(narrow: DType, wide: DType) -> None:
    if "bfloat16" in (narrow, wide) or not holds_every_value(wide, narrow):
        return
    if narrow == "bool":
        values = np.array([False, True])
    elif np.dtype(narrow).kind in "iu":
        info = np.iinfo(narrow)
        values = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], narrow)
    else:
        info_of_part = np.finfo(narrow)
        values = np.array([info_of_part.max, info_of_part.tiny, -0.0, np.inf, np.nan, info_of_part.eps], narrow)
    (back,) = run(chain(Spec(values.shape, narrow), p.Cast(wide), p.Cast(narrow)), [values])
    assert np.array_equal(back, values, equal_nan=values.dtype.kind in "fc")


def constant(recorder: Recorder, values: object, dtype: DType) -> int:
    array = np.asarray(values, dtype)
    return recorder.add(p.Constant(array.shape, dtype, array.tobytes()))


def test_constants_are_folded() -> None:
    recorder = Recorder()
    x = recorder.input(Spec((), "int64"))
    total = recorder.add(p.Reduce("sum", (0,)), recorder.add(p.Iota(1000, "int64")), line=("a.py", 3))
    folded = with_constants_folded(recorder.program([recorder.add(p.Binary("add"), x, total)]), evaluate_constant)
    assert ops(folded) == [p.Constant((), "int64", (499500).to_bytes(8, "little")), p.Binary("add")]
    assert folded.lines[1] == ("a.py", 3)


def test_folding_never_makes_a_program_big() -> None:
    recorder = Recorder()
    one = constant(recorder, 1.0, "float64")
    many = recorder.add(p.Broadcast((1000, 1000)), one)
    few = recorder.add(p.Broadcast((40,)), one)
    outputs = [recorder.add(p.Unary("exp"), each) for each in (many, few)]
    program = recorder.program(outputs)
    assert with_constants_folded(program, evaluate_constant) == program
    assert FOLDED_BYTES < 40 * 8
    assert len(with_constants_folded(program, evaluate_constant, limit=320)) == 4


def test_what_must_raise_is_left_for_when_it_runs() -> None:
    recorder = Recorder()
    line, index = constant(recorder, [1.0, 2.0], "float64"), constant(recorder, 7, "int64")
    outside = recorder.add(p.Gather(0), line, index)
    singular = recorder.add(p.Linear("inv"), constant(recorder, np.zeros((2, 2)), "float64"))
    program = recorder.program([outside, singular])
    assert with_constants_folded(program, evaluate_constant) == program
    with pytest.raises(IndexError):
        run(program, [])


def test_nothing_is_asked_of_an_evaluator_that_cannot() -> None:
    recorder = Recorder()
    brief = recorder.add(p.Constant((), "bfloat16", b"\x80\x3f"))
    program = recorder.program([recorder.add(p.Unary("exp"), brief), recorder.add(p.Cast("float32"), brief)])
    assert simplified(program, evaluate_constant) == program
    assert simplified(program, lambda op, constants: None) == program


def test_one_pass_is_enough_for_a_long_chain() -> None:
    program = chain(Spec((2, 3), "int8"), *[p.Permute((1, 0))] * 100, p.Reshape((6,)), p.Flip((0,)))
    assert ops(without_dead_code(without_identities(program))) == [p.Reshape((6,)), p.Flip((0,))]
    assert simplified(chain(Spec((2, 3), "int8"), *[p.Permute((1, 0))] * 100)).outputs == (0,)
