"""Operations that are recorded again give the same program; others, and other arrays that are held, do not."""

from __future__ import annotations

from typing import Any

import numpy as np

import anygpu as ag
from anygpu.array.core.array import Array
from anygpu.array.core.expression import linearise, program_of
from anygpu.array.core.recording import binary, literal
from anygpu.program.graph import Program
from anygpu.program.primitives import Attend


def on_numpy(values: Any) -> Any:
    return ag.asarray(np.asarray(values, np.float32), device="numpy")


def recorded(x: Any, *, number: float = 2.0) -> Any:
    return np.tanh(x * number) + x


def made(*arrays: Any) -> Program:
    return program_of([each._value for each in arrays])[0]


def test_the_same_operations_give_the_same_object() -> None:
    x, y = on_numpy([1, 2]), on_numpy([3, 4])
    first = made(recorded(x))
    assert made(recorded(y)) is first
    assert first == linearise([recorded(x)._value])[0]


def test_other_operations_shapes_and_lines_do_not() -> None:
    x = on_numpy([1, 2])
    first = made(recorded(x))
    assert made(recorded(x, number=3.0)) != first
    assert made(recorded(on_numpy([1, 2, 3]))) != first
    elsewhere = made(np.tanh(x * 2.0) + x)
    assert elsewhere == first
    assert elsewhere.lines != first.lines


def test_zeros_of_both_signs_are_two_programs() -> None:
    x = on_numpy([1, 2])
    assert made(recorded(x, number=0.0)) != made(recorded(x, number=-0.0))


def test_so_they_are_as_a_scale_of_attention() -> None:
    x = on_numpy(np.ones((2, 2)))
    for _ in range(2):
        for zero in (0.0, -0.0):
            op = made(ag.nn.attention(x, x, x, scale=zero)).nodes[-1].op
            assert isinstance(op, Attend)
            assert repr(op.scale) == repr(zero)


def test_and_as_a_number_of_a_kernel() -> None:
    source = "__kernel void f(__global const float *x, const float number, __global float *y) { y[0] = x[0] * number; }"
    kernel = ag.Kernel(source, lambda x, number: x * number)
    x = ag.asarray(np.ones(1, np.float32), device="opencl")
    for _ in range(3):
        for zero in (0.0, -0.0):
            assert np.signbit(np.asarray(kernel(x, number=zero)))[0] == np.signbit(zero)


def test_large_constants_are_not_kept() -> None:
    def programs(length: int) -> list[Program]:
        data = np.arange(length, dtype=np.float32)
        x = on_numpy(data)
        # On one line: operations on others are another program anyway.
        return [made(Array(binary("add", x._value, literal(data)))) for _ in range(2)]

    first, again = programs(1000)
    assert again is not first
    assert again == first
    first, again = programs(10)
    assert again is first, "small ones are"


def test_one_array_twice_is_another_program_than_two() -> None:
    x, y = on_numpy([1, 2]), on_numpy([3, 4])
    programs = [made(one + other) for one, other in ((x, x), (x, y), (y, x))]
    assert [program.input_count for program in programs] == [1, 2, 2]
    assert programs[1] is programs[2]


def test_an_array_that_is_held_meanwhile_is_a_result() -> None:
    x = on_numpy([1, 2])

    def both(*, hold: bool) -> tuple[Any, Any]:
        inner = np.exp(x)
        outer = inner + 1
        return (inner if hold else None), outer

    for _ in range(2):
        assert len(made(both(hold=False)[1]).outputs) == 1
        inner, outer = both(hold=True)
        assert len(made(outer).outputs) == 2
        outer.compute()
        np.testing.assert_allclose(np.asarray(inner), np.exp([1, 2]), rtol=1e-6)


def test_memory_order_is_that_of_numpy_each_time() -> None:
    x = on_numpy(np.arange(6).reshape(2, 3))
    for _ in range(3):
        for given in (x, x.T):
            result = (given * 2.0).compute()
            assert result._value.ordered == (given is x)
            np.testing.assert_array_equal(np.asarray(result), np.asarray(given) * 2)
