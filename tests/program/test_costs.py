from __future__ import annotations

import random
import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.program.graph import (
    Cost,
    OperationClass,
    Program,
    Recorder,
    last_uses,
    lifetimes,
    node_cost,
    program_cost,
)
from anygpu.program.primitives import (
    PRIMITIVES,
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    Contract,
    Flip,
    Fourier,
    Gather,
    Iota,
    Linear,
    Pad,
    Permute,
    Primitive,
    Reduce,
    Reshape,
    Scan,
    Scatter,
    Search,
    Select,
    Slice,
    Sort,
    Spec,
    Unary,
    Update,
    Windows,
)
from tests.program.sampling import random_program


def f32(*shape: int) -> Spec:
    return Spec(shape, "float32")


def c64(*shape: int) -> Spec:
    return Spec(shape, "complex64")


def i64(*shape: int) -> Spec:
    return Spec(shape, "int64")


def alone(op: Primitive, *specs: Spec, returned: bool = False) -> Cost:
    """The cost of one operation whose result is used by nobody, or is the program's."""
    recorder = Recorder()
    inputs = [recorder.input(spec) for spec in specs] or [recorder.input(f32())]
    position = recorder.add(op, *inputs[: len(specs)])
    return node_cost(recorder.program([position if returned else inputs[0]]), position)


@pytest.mark.parametrize(
    ("op", "specs", "cost"),
    [
        (Unary("negative"), [f32(10)], Cost(10, 40, 40, "elementwise")),
        (Unary("exp"), [f32(10)], Cost(10, 40, 40, "transcendental")),
        (Unary("exp"), [c64(10)], Cost(40, 80, 80, "transcendental")),
        (Unary("isnan"), [f32(10)], Cost(10, 40, 10, "elementwise")),
        (Binary("add"), [f32(10), f32(10)], Cost(10, 80, 40, "elementwise")),
        (Binary("power"), [f32(10), f32(10)], Cost(10, 80, 40, "transcendental")),
        (Select(), [Spec((10,), "bool"), f32(10), f32(10)], Cost(10, 90, 40, "elementwise")),
        (Cast("float64"), [f32(10)], Cost(10, 40, 80, "elementwise")),
        (Reduce("sum", (0,)), [f32(4, 5)], Cost(20, 80, 20, "reduce")),
        (Reduce("argmax", (0,)), [f32(4, 5)], Cost(20, 80, 40, "reduce")),
        (Scan("sum", 0), [f32(4, 5)], Cost(20, 80, 80, "scan")),
        (Contract((1,), (0,)), [f32(3, 4), f32(4, 5)], Cost(2 * 3 * 4 * 5, 128, 60, "contraction")),
        (Contract((1,), (0,)), [c64(3, 4), c64(4, 5)], Cost(8 * 3 * 4 * 5, 256, 120, "contraction")),
        (Contract((2,), (1,), (0,), (0,)), [f32(7, 3, 4), f32(7, 4, 5)], Cost(840, 7 * 128, 7 * 60, "contraction")),
        (Contract((0,), (0,)), [f32(0), f32(0)], Cost(0, 0, 4, "contraction")),
        (Update((1,), (1,)), [f32(10), f32(2)], Cost(0, 48, 40, "movement")),
        (Pad((1,), (2,)), [f32(10), f32()], Cost(0, 44, 52, "movement")),
        (Concatenate(0), [f32(10), f32(5)], Cost(0, 60, 60, "movement")),
        (Gather(0), [f32(1000), i64(3)], Cost(0, 12 + 24, 12, "indexing")),
        (Gather(0), [f32(2), i64(300)], Cost(0, 8 + 2400, 1200, "indexing")),
        (Scatter("set", 0), [f32(10), i64(3), f32(3)], Cost(0, 40 + 24 + 12, 40, "indexing")),
        (Scatter("add", 0), [f32(10), i64(3), f32(3)], Cost(3, 40 + 24 + 12, 40, "indexing")),
        (Sort(0), [f32(1024)], Cost(10 * 1024, 4096, 4096, "sort")),
        (Argsort(1), [f32(3, 8)], Cost(3 * 8 * 3, 96, 192, "sort")),
        (Search("left"), [f32(1024), f32(5)], Cost(50, 4116, 40, "sort")),
        (Fourier("fft", 0, 8), [c64(8)], Cost(5 * 8 * 3, 64, 64, "fourier")),
        (Fourier("rfft", 0, 8), [f32(8)], Cost(5 * 8 * 3 // 2, 32, 40, "fourier")),
        (Fourier("irfft", 0, 8), [c64(5)], Cost(5 * 8 * 3 // 2, 40, 32, "fourier")),
        (Linear("cholesky"), [f32(9, 9)], Cost(243, 324, 324, "linear")),
        (Linear("solve"), [f32(3, 3), f32(3, 2)], Cost(18 + 36, 60, 24, "linear")),
        (Linear("inv"), [Spec((2, 3, 3), "complex64")], Cost(2 * 54 * 4, 144, 144, "linear")),
        (Iota(10, "float32"), [], Cost(0, 0, 40, "creation")),
        (Constant((2,), "int8", b"ab"), [], Cost(0, 0, 2, "creation")),
    ],
)
def test_the_cost_of_one_node(op: Primitive, specs: list[Spec], cost: Cost) -> None:
    assert alone(op, *specs) == alone(op, *specs, returned=True) == cost


@pytest.mark.parametrize(
    ("op", "read", "written"),
    [
        (Reshape((3, 4)), 48, 48),
        (Permute((1, 0)), 48, 48),
        (Broadcast((5, 4, 3)), 48, 240),
        (Slice((0, 0), (2, 3), (1, 1)), 24, 24),
        (Flip((0,)), 48, 48),
        (Windows(0, 2, 1), 48, 72),
    ],
)
def test_a_view_is_free_unless_it_is_a_result(op: Primitive, read: int, written: int) -> None:
    assert alone(op, f32(4, 3)) == Cost(0, 0, 0, "movement")
    assert alone(op, f32(4, 3), returned=True) == Cost(0, read, written, "movement")


def test_inputs_cost_nothing() -> None:
    recorder = Recorder()
    x = recorder.input(f32(9))
    program = recorder.program([x])
    assert node_cost(program, x) == Cost(0, 0, 0, "input")
    cost = program_cost(program)
    assert (cost.bytes_in, cost.bytes_out, cost.peak_bytes, cost.kernels) == (36, 36, 36, 0)
    assert cost.by_kind == {}


def test_what_is_behind_a_view_is_read_and_once() -> None:
    recorder = Recorder()
    x = recorder.input(f32(1000))
    one = recorder.add(Constant((), "float32", struct.pack("<f", 1)))
    wide = recorder.add(Broadcast((1000,)), one)
    total = recorder.add(Binary("add"), x, wide)
    square = recorder.add(Binary("multiply"), total, total)
    program = recorder.program([square])
    assert node_cost(program, wide) == Cost(0, 0, 0, "movement")
    assert node_cost(program, total).bytes_read == 4000 + 4
    assert node_cost(program, square).bytes_read == 4000


def test_the_first_part_of_a_decomposition_pays() -> None:
    recorder = Recorder()
    x = recorder.input(f32(8, 8))
    parts = [recorder.add(Linear("svd", part), x) for part in (1, 0, 2)]
    other = recorder.add(Linear("svd", 0, True), x)
    program = recorder.program([*parts, other])
    first, second, third = (node_cost(program, part) for part in parts)
    assert first.flops > 0
    assert first.bytes_read == 256
    assert (second, third) == (Cost(0, 0, 256, "linear"), Cost(0, 0, 256, "linear"))
    assert node_cost(program, other).flops > 0
    assert program_cost(program).flops == first.flops + node_cost(program, other).flops


def chain(length: int) -> Program:
    recorder = Recorder()
    last = recorder.input(f32(100))
    for _ in range(length):
        last = recorder.add(Unary("exp"), last)
    return recorder.program([last])


def test_a_chain_needs_its_input_and_two_values() -> None:
    cost = program_cost(chain(10))
    assert cost.peak_bytes == 3 * 400
    assert (cost.flops, cost.nodes, cost.kernels) == (1000, 11, 10)
    assert program_cost(chain(1)).peak_bytes == 2 * 400


def test_a_view_keeps_what_it_looks_at() -> None:
    recorder = Recorder()
    x = recorder.input(f32(100))
    large = recorder.add(Unary("exp"), x)
    corner = recorder.add(Slice((0,), (1,), (1,)), large)
    other = recorder.add(Unary("sin"), x)
    small = recorder.add(Slice((0,), (1,), (1,)), other)
    total = recorder.add(Binary("add"), corner, small)
    assert program_cost(recorder.program([total])).peak_bytes == 3 * 400 + 4
    written_out = recorder.program([total, corner])
    assert program_cost(written_out).peak_bytes == 2 * 400 + 2 * 4


def test_what_nobody_uses_is_let_go_at_once() -> None:
    recorder = Recorder()
    x = recorder.input(f32(100))
    for fn in ("exp", "sin", "cos", "tan"):
        recorder.add(Unary(fn), x)
    program = recorder.program([x])
    assert program_cost(program).peak_bytes == 800
    assert lifetimes(program) == [5, 1, 2, 3, 4]
    assert last_uses(program) == [[], [1], [2], [3], [4]]


def test_lifetimes() -> None:
    recorder = Recorder()
    x, unused = recorder.input(f32(2)), recorder.input(f32(2))
    a = recorder.add(Unary("exp"), x)
    b = recorder.add(Binary("add"), a, x)
    c = recorder.add(Binary("add"), b, a)
    program = recorder.program([c, a])
    assert lifetimes(program) == [b, unused, len(program), c, len(program)]
    assert last_uses(program) == [[], [unused], [], [x], [b]]


def test_figures_are_exact_however_large() -> None:
    recorder = Recorder()
    x, y = recorder.input(f32(1 << 29, 1 << 29)), recorder.input(f32(1 << 29, 1 << 29))
    program = recorder.program([recorder.add(Contract((1,), (0,)), x, y)])
    assert program_cost(program).flops == 1 << 88
    assert program_cost(program).peak_bytes == 3 << 60


def test_every_primitive_has_a_class() -> None:
    assert {_blank(each).operation_class for each in PRIMITIVES} <= set(get_args(OperationClass))


def _blank(primitive: type[Primitive]) -> Primitive:
    return primitive(*([None] * len(primitive.__struct_fields__)))


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_program_costs_the_sum_of_its_nodes(seed: int) -> None:
    program = random_program(random.Random(seed))
    nodes = [node_cost(program, position) for position in range(len(program))]
    total = program_cost(program)
    assert total.flops == sum(cost.flops for cost in nodes) == sum(cost.flops for cost in total.by_kind.values())
    assert total.bytes_read == sum(cost.bytes_read for cost in nodes)
    assert total.bytes_written == sum(cost.bytes_written for cost in nodes)
    assert all(min(cost.flops, cost.bytes_read, cost.bytes_written) >= 0 for cost in nodes)
    assert total.peak_bytes >= total.bytes_in
    assert total.peak_bytes <= sum(spec.nbytes for spec in program.specs)
    assert msgspec.json.decode(msgspec.json.encode(total), type=type(total)) == total


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_every_value_that_is_not_a_result_is_let_go_once_and_after_its_uses(seed: int) -> None:
    program = random_program(random.Random(seed))
    released = last_uses(program)
    gone = [value for values in released for value in values]
    assert sorted([*gone, *set(program.outputs)]) == list(range(len(program)))
    alive = set()
    for position, node in enumerate(program.nodes):
        alive.add(position)
        assert set(node.inputs) <= alive
        alive -= set(released[position])
    assert alive == set(program.outputs)
