"""Kernels of users as nodes: their meaning takes their place, and everything else in a program knows how."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.engines.numpy.lowering import run
from anygpu.errors import InvalidProgram, Unsupported
from anygpu.program.graph import Program, Recorder, node_costs, program_cost, to_text
from anygpu.program.independence import independent_cuts
from anygpu.program.ops.custom import Custom, Language, Parameter, Role, Scalar, with_references
from anygpu.program.primitives import Binary, Spec, Unary
from anygpu.program.transforms import in_single_precision, vmap
from anygpu.program.wire import from_bytes, to_bytes

VECTOR = Spec((3,), "float32")


def reference() -> Program:
    """x + x, and -x."""
    recorder = Recorder()
    x = recorder.input(VECTOR)
    return recorder.program([recorder.add(Binary("add"), x, x), recorder.add(Unary("negative"), x)])


def kernel(result: int = 0, *, meaning: bytes | None = None, language: Language = "wgsl") -> Custom:
    roles: tuple[tuple[str, Role], ...] = (("x", "input"), ("twice", "output"), ("negative", "output"))
    return Custom(
        language=language,
        title="twice",
        source="fn main() {}",
        entry="main",
        parameters=tuple(Parameter(name, "float32", role) for name, role in roles),
        scalars=(Scalar("alpha", "float32", 2.0),),
        group=(64, 1, 1),
        groups=(1, 1, 1),
        shapes=((3,), (3,)),
        result=result,
        reference=to_bytes(reference()) if meaning is None else meaning,
    )


def program(**options: bytes) -> Program:
    """Both results of the kernel on exp(x)."""
    recorder = Recorder()
    e = recorder.add(Unary("exp"), recorder.input(VECTOR))
    return recorder.program([recorder.add(kernel(result, meaning=options.get("meaning")), e) for result in (0, 1)])


X = np.array([0.0, 1.0, 2.0], np.float32)


def test_the_meaning_takes_the_place_of_the_kernel() -> None:
    inlined = with_references(program(), None)
    assert not any(isinstance(node.op, Custom) for node in inlined.nodes)
    assert inlined.results == program().results
    twice, negative = run(program(), [X])
    np.testing.assert_array_equal(twice, 2 * np.exp(X))
    np.testing.assert_array_equal(negative, -np.exp(X))


def test_kernels_of_the_engines_own_language_stay() -> None:
    given = program()
    assert with_references(given, "wgsl") is given
    assert with_references(program(), "opencl") != program()


def test_without_a_meaning_nobody_else_computes_it() -> None:
    alone = program(meaning=b"")
    assert with_references(alone, None) == alone
    with pytest.raises(Unsupported, match="kernel twice, which is written in wgsl"):
        run(alone, [X])
    with pytest.raises(InvalidProgram, match="cannot be batched"):
        vmap(alone, [True], 4)


def test_calls_are_batched_by_the_meaning() -> None:
    many = np.stack([X, X + 1])
    twice, negative = run(vmap(program(), [True], 2), [many])
    np.testing.assert_array_equal(twice, 2 * np.exp(many))
    np.testing.assert_array_equal(negative, -np.exp(many))


def test_a_kernel_is_never_cut() -> None:
    assert independent_cuts(program()) == []


def test_both_results_are_one_launch_and_paid_once() -> None:
    costs = node_costs(program())
    assert costs[2].flops == program_cost(reference()).flops > 0
    assert costs[3].flops == 0


def test_it_goes_to_bytes_and_back_and_to_text() -> None:
    assert from_bytes(to_bytes(program())) == program()
    assert from_bytes(to_bytes(program())).key == program().key
    text = to_text(program())
    assert "twice t1 wgsl" in text
    assert "[1, 1, 1] groups of [64, 1, 1], alpha = 2.0, result negative" in text


def test_a_meaning_may_not_have_kernels_of_its_own() -> None:
    nested = to_bytes(program())
    with pytest.raises(InvalidProgram, match="a kernel of its own"):
        kernel(meaning=nested).infer(VECTOR)


def test_32_bit_kernels_stay_in_single_precision() -> None:
    assert any(isinstance(node.op, Custom) for node in in_single_precision(program()).nodes)
