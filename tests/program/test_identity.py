"""Equality is not identity: programs that differ in a single bit of a number are never taken for one."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import anygpu as ag
from anygpu.array.core.recording import _MET
from anygpu.program.dtypes import DTYPES, ITEMSIZE, DType
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.ops.custom import Custom, Parameter, Scalar
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import Binary, Constant, Input, Spec
from anygpu.program.transforms import with_common_subexpressions_merged, without_identities
from anygpu.program.wire import from_bytes, to_bytes

#: Numbers that compare equal to one another, or not even to themselves.
ODD: tuple[Any, ...] = (
    0, 0.0, -0.0, False, 0j, complex(0, -0.0), complex(-0.0, 0), complex(-0.0, -0.0),
    1, 1.0, True, 1 + 0j, complex(1, -0.0), -1, -1.0, complex(-1, 0.0), complex(-1, -0.0),
    math.nan, complex(math.nan, 0), complex(0, math.nan), math.inf, complex(math.inf, -0.0), complex(math.inf, 0.0),
    2**53, float(2**53), 2**53 + 1,
)  # fmt: skip

dtypes = st.sampled_from(DTYPES)


def _bits(value: Any) -> bytes:
    if isinstance(value, complex):
        return b"c" + struct.pack("<dd", value.real, value.imag)
    return b"f" + struct.pack("<d", value) if isinstance(value, float) else repr((type(value), value)).encode()


def _program(*constants: Constant) -> Program:
    recorder = Recorder()
    recorder.input(Spec((), constants[0].dtype))
    return recorder.program([recorder.add(each) for each in constants])


@given(dtypes, st.data())
@settings(max_examples=200, deadline=None)
def test_constants_are_the_same_by_their_bits(dtype: DType, data: st.DataObject) -> None:
    size = ITEMSIZE[dtype]
    anything = st.binary(min_size=size, max_size=size) if dtype != "bool" else st.sampled_from([b"\0", b"\1"])
    one, other = data.draw(anything), data.draw(anything)
    first, second = Constant((), dtype, one), Constant((), dtype, other)
    together = with_common_subexpressions_merged(Program([Node(Input((), dtype)), Node(first), Node(second)], [1, 2]))
    assert len(together.nodes) == 2 + (one != other)
    assert (_program(first) == _program(second)) == (one == other)
    assert (_program(first).key == _program(second).key) == (one == other)


@given(dtypes, dtypes)
def test_constants_of_other_types_are_others(one: DType, other: DType) -> None:
    assume(one != other)
    size = max(ITEMSIZE[one], ITEMSIZE[other])
    first = Constant((size // ITEMSIZE[one],), one, bytes(size))
    second = Constant((size // ITEMSIZE[other],), other, bytes(size))
    assert _program(first) != _program(second)
    assert len({_program(first), _program(second)}) == 2


@pytest.mark.parametrize("function", [np.add, np.multiply, np.copysign], ids=lambda each: each.__name__)
def test_numbers_beside_arrays_are_the_same_by_their_bits(function: Any) -> None:
    """Whatever was met before: each number gives what it gives when nothing was."""
    for dtype in (np.float32, np.float64, np.complex64, np.complex128, np.int64):
        if function is np.copysign and np.dtype(dtype).kind == "c":
            continue
        x = ag.asarray(np.array([0, 1, -1]).astype(dtype))

        def made(number: Any) -> bytes | None:
            if function is np.copysign and isinstance(number, complex):
                return None
            return np.asarray(function(x, number)).tobytes()  # noqa: B023 - called within this turn

        alone = []
        for number in ODD:
            _MET.clear()
            alone.append(made(number))
        _MET.clear()
        for turn in (ODD, ODD[::-1]):
            for number in turn:
                assert made(number) == alone[[_bits(each) for each in ODD].index(_bits(number))], (number, dtype)


@given(st.sampled_from(ODD), st.sampled_from(ODD))
@settings(max_examples=200, deadline=None)
def test_recorded_programs_differ_where_their_numbers_do(one: Any, other: Any) -> None:
    def with_number(number: Any) -> Program:
        return ag.record(lambda m, x: np.where(m, number, x), Spec((2,), "bool"), Spec((2,), "complex128"))

    first, second = (np.asarray(each).astype(np.complex128).tobytes() for each in (one, other))
    assert (with_number(one).key == with_number(other).key) == (first == second)
    assert (with_number(one) == with_number(other)) == (first == second)


def _kernel(value: float) -> Custom:
    return Custom(
        language="wgsl",
        title="k",
        source="",
        entry="k",
        parameters=(Parameter("y", "float32", "output"),),
        scalars=(Scalar("a", "float32", value),),
        group=(1, 1, 1),
        groups=(1, 1, 1),
        shapes=((1,),),
    )


@pytest.mark.parametrize("make", [Attend, _kernel, lambda value: Scalar("a", "float64", value)])
@given(one=st.floats(), other=st.floats())
@settings(max_examples=50, deadline=None)
def test_records_with_floats_are_the_same_by_their_bits(make: Any, one: float, other: float) -> None:
    for first, second in ((one, other), (one, one), (one, -one), (0.0, -0.0), (math.nan, math.nan), (1.0, True)):
        same = _bits(first) == _bits(second)
        assert (make(first) == make(second)) == same
        assert len({make(first), make(second)}) == 2 - same
        assert make(first) == msgspec.structs.replace(make(first))


def test_kernels_with_other_zeros_stay_apart() -> None:
    recorder = Recorder()
    outputs = [recorder.add(_kernel(value), spec=Spec((1,), "float32")) for value in (0.0, -0.0, 0.0)]
    assert outputs == [0, 1, 0]


@given(st.lists(st.floats(width=32), min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_whole_programs_survive_every_transform(values: list[float]) -> None:
    recorder = Recorder()
    x = recorder.input(Spec((), "float32"))
    constants = [Constant((), "float32", struct.pack("<f", each)) for each in values]
    program = recorder.program([recorder.add(Binary("add"), x, recorder.add(each)) for each in constants])
    distinct = len({each.data for each in constants})
    assert len(program.nodes) == 1 + 2 * distinct
    for changed in (
        with_common_subexpressions_merged(program),
        without_identities(program),
        from_bytes(to_bytes(program)),
    ):
        assert sorted(node.op.data for node in changed.nodes if isinstance(node.op, Constant)) == sorted(
            {each.data for each in constants}
        )
        assert changed == program
        assert hash(changed) == hash(program)
