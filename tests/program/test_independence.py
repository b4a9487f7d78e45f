"""Cutting is right wherever it is offered, and offered where it should be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from anygpu.engines.numpy.lowering import run
from anygpu.errors import InvalidOption
from anygpu.program import independence
from anygpu.program import primitives as p
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program, Recorder
from anygpu.program.independence import Cut, cut, independent_cuts
from anygpu.program.primitives import Primitive, Shape, Spec
from anygpu.program.transforms import vmap
from tests.support.laws import broken_by_cutting
from tests.support.random_programs import WEIGHTS, random_program

WITH_LINEAR: dict[type[Primitive], float] = {**WEIGHTS, p.Linear: 5}
F: DType = "float64"


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_pieces_make_up_the_whole(first: int) -> None:
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        assert broken_by_cutting(random_program(rng, primitives=WITH_LINEAR), rng, run) is None, seed


@pytest.mark.parametrize("kind", sorted(WEIGHTS, key=str))
def test_every_rule(kind: type[Primitive]) -> None:
    weights: dict[type[Primitive], float] = {**dict.fromkeys((p.Unary, p.Binary, p.Broadcast), 0.3), kind: 5.0}
    for seed in range(25):
        rng = random.Random(seed)
        assert broken_by_cutting(random_program(rng, primitives=weights, max_nodes=12), rng, run) is None, seed


def test_the_axis_of_a_batch_is_always_found() -> None:
    """What `vmap` has put together can be taken apart: no rule is so careful that it says nothing."""
    for seed in range(200):
        program = random_program(seed, primitives=WITH_LINEAR)
        batched = vmap(program, [True] * program.input_count, 3)
        wanted = Cut((0,) * program.input_count, (0,) * len(program.outputs), 3)
        assert wanted in independent_cuts(batched), seed


def every_axis(op: Primitive, result: Shape, inputs: Sequence[Shape]) -> list[range]:
    """As for an elementwise function."""
    return [range(len(each)) for each in inputs]


def where_lengths_agree(op: Primitive, result: Shape, inputs: Sequence[Shape]) -> list[list[int | None]]:
    """Not careful at all."""
    return [
        [axis if axis < len(result) and length == result[axis] else None for axis, length in enumerate(shape)]
        for shape in inputs
    ]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (p.Scan, every_axis),
        (p.Sort, every_axis),
        (p.Argsort, every_axis),
        (p.Flip, every_axis),
        (p.Fourier, where_lengths_agree),
        (p.Reshape, where_lengths_agree),
    ],
)
def test_a_wrong_rule_is_found_out(
    kind: type[Primitive], rule: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "passed_axes", rule)
    independence._ways.cache_clear()
    weights: dict[type[Primitive], float] = {**dict.fromkeys((p.Unary, p.Binary, p.Permute), 0.5), kind: 5.0}

    def is_found_out(seed: int) -> bool:
        rng = random.Random(seed)
        try:
            return broken_by_cutting(random_program(rng, primitives=weights, max_nodes=12), rng, run) is not None
        except ValueError:  # a piece that does not fit is found out just as well
            return True

    try:
        assert any(is_found_out(seed) for seed in range(300))
    finally:
        independence._ways.cache_clear()


def programs_by_name() -> dict[str, tuple[Program, set[Cut]]]:
    """Typical programs, and cuts that must be among theirs."""
    return {
        "an elementwise chain": (elementwise(), {Cut((0, 0), (0,), 5), Cut((1, 1), (1,), 7)}),
        "softmax of rows": (softmax(), {Cut((0,), (0,), 6)}),
        "a matrix product": (matmul(), {Cut((0, None), (0,), 4), Cut((None, 1), (1,), 5)}),
        "a batch of products": (
            one(p.Contract((2,), (1,), (0,), (0,)), Spec((8, 4, 3), F), Spec((8, 3, 5), F)),
            {Cut((0, 0), (0,), 8), Cut((1, None), (1,), 4), Cut((None, 2), (2,), 5)},
        ),
        "transforms of rows": (one(p.Fourier("rfft", 1, 9), Spec((6, 9), F)), {Cut((0,), (0,), 6)}),
        "linear regression": (layer(), {Cut((0, None, None), (0,), 10), Cut((None, 1, 0), (1,), 4)}),
        "distances of all pairs": (pairs(), {Cut((None,), (0,), 7), Cut((None,), (1,), 7)}),
        "a moving average": (windows(), {Cut((None,), (0,), 8), Cut((1,), (1,), 3)}),
        "the sum of neighbours": (neighbours(), {Cut((None,), (0,), 8)}),
        "a table looked up": (
            one(p.Gather(0), Spec((50, 4), F), Spec((6,), "uint8")),
            {Cut((None, 0), (0,), 6), Cut((1, None), (1,), 4)},
        ),
        "systems with many right-hand sides": (
            one(p.Linear("solve"), Spec((5, 3, 3), F), Spec((5, 3, 4), F)),
            {Cut((0, 0), (0,), 5), Cut((None, 2), (2,), 4)},
        ),
        "positions along an axis": (with_positions(), {Cut((0,), (0,), 6)}),
        "two results of two inputs": (two_results(), {Cut((0, 0), (0, 0), 5), Cut((0, None), (0, None), 5)}),
        "two results of one input": (two_of_one(), {Cut((0,), (0, 0), 5)}),
    }


def one(op: Primitive, *specs: Spec) -> Program:
    recorder = Recorder()
    inputs = [recorder.input(spec) for spec in specs]
    return recorder.program([recorder.add(op, *inputs)])


def elementwise() -> Program:
    recorder = Recorder()
    x, y = recorder.input(Spec((5, 7), F)), recorder.input(Spec((5, 7), F))
    two = recorder.add(p.Broadcast((5, 7)), recorder.add(p.Constant((), F, np.float64(2).tobytes())))
    scaled = recorder.add(p.Binary("multiply"), recorder.add(p.Unary("sin"), x), two)
    return recorder.program([recorder.add(p.Cast("float32"), recorder.add(p.Binary("add"), scaled, y))])


def softmax() -> Program:
    recorder = Recorder()
    x = recorder.input(Spec((6, 9), F))

    def spread(value: int) -> int:
        return recorder.add(p.Broadcast((6, 9)), recorder.add(p.Reshape((6, 1)), value))

    largest = spread(recorder.add(p.Reduce("max", (1,)), x))
    powers = recorder.add(p.Unary("exp"), recorder.add(p.Binary("subtract"), x, largest))
    total = spread(recorder.add(p.Reduce("sum", (1,)), powers))
    return recorder.program([recorder.add(p.Binary("divide"), powers, total)])


def matmul() -> Program:
    return one(p.Contract((1,), (0,)), Spec((4, 3), F), Spec((3, 5), F))


def layer() -> Program:
    recorder = Recorder()
    x, w, b = recorder.input(Spec((10, 3), F)), recorder.input(Spec((3, 4), F)), recorder.input(Spec((4,), F))
    product = recorder.add(p.Contract((1,), (0,)), x, w)
    added = recorder.add(p.Binary("add"), product, recorder.add(p.Broadcast((10, 4)), b))
    return recorder.program([recorder.add(p.Unary("tanh"), added)])


def pairs() -> Program:
    """np.sqrt(((x[:, None] - x[None, :]) ** 2).sum(-1))"""
    recorder = Recorder()
    x = recorder.input(Spec((7, 2), F))
    rows = recorder.add(p.Broadcast((7, 7, 2)), recorder.add(p.Reshape((7, 1, 2)), x))
    columns = recorder.add(p.Broadcast((7, 7, 2)), recorder.add(p.Reshape((1, 7, 2)), x))
    between = recorder.add(p.Binary("subtract"), rows, columns)
    squares = recorder.add(p.Binary("multiply"), between, between)
    return recorder.program([recorder.add(p.Unary("sqrt"), recorder.add(p.Reduce("sum", (2,)), squares))])


def windows() -> Program:
    recorder = Recorder()
    x = recorder.input(Spec((10, 3), F))
    stretches = recorder.add(p.Windows(0, 3, 1), x)
    return recorder.program([recorder.add(p.Reduce("sum", (2,)), stretches)])


def neighbours() -> Program:
    """x[:-2] + x[1:-1] + x[2:]"""
    recorder = Recorder()
    x = recorder.input(Spec((10,), F))
    parts = [recorder.add(p.Slice((first,), (first + 8,), (1,)), x) for first in range(3)]
    return recorder.program(
        [recorder.add(p.Binary("add"), recorder.add(p.Binary("add"), parts[0], parts[1]), parts[2])]
    )


def with_positions() -> Program:
    recorder = Recorder()
    x = recorder.input(Spec((6,), F))
    table = np.arange(6.0) ** 2
    constant = recorder.add(p.Constant((6,), F, table.tobytes()))
    scaled = recorder.add(p.Binary("multiply"), recorder.add(p.Iota(6, F)), constant)
    return recorder.program([recorder.add(p.Binary("add"), x, scaled)])


def two_results() -> Program:
    recorder = Recorder()
    x, y = recorder.input(Spec((5, 2), F)), recorder.input(Spec((5,), F))
    return recorder.program([recorder.add(p.Unary("sin"), x), recorder.add(p.Unary("cos"), y)])


def two_of_one() -> Program:
    recorder = Recorder()
    x = recorder.input(Spec((5, 2), F))
    return recorder.program([recorder.add(p.Unary("sin"), x), recorder.add(p.Reduce("sum", (1,)), x)])


@pytest.mark.parametrize("name", programs_by_name())
def test_what_is_independent_is_found(name: str) -> None:
    program, wanted = programs_by_name()[name]
    found = independent_cuts(program)
    assert wanted <= set(found)
    for seed in range(3):
        assert broken_by_cutting(program, random.Random(seed), run) is None


MIXED: dict[str, tuple[Program, set[int | None]]] = {
    "a sum": (one(p.Reduce("sum", (0,)), Spec((5, 7), F)), {1}),
    "a running sum": (one(p.Scan("sum", 0), Spec((5, 7), F)), {1}),
    "a sort": (one(p.Sort(1), Spec((5, 7), F)), {0}),
    "a transform": (one(p.Fourier("rfft", 0, 5), Spec((5, 7), F)), {1}),
    "an inverse": (one(p.Linear("inv"), Spec((4, 3, 3), F)), {0}),
    "a reshape": (one(p.Reshape((5, 2, 3)), Spec((5, 6), F)), {0, None}),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_is_mixed_is_not_offered(name: str) -> None:
    program, axes = MIXED[name]
    assert {each.inputs[0] for each in independent_cuts(program)} == axes


def test_what_is_computed_from_the_whole_of_an_input_keeps_it_from_being_cut() -> None:
    """x - x.mean(0): a piece would need everything, and compute the mean again."""
    recorder = Recorder()
    x = recorder.input(Spec((5, 7), F))
    total = recorder.add(p.Broadcast((5, 7)), recorder.add(p.Reduce("sum", (0,)), x))
    program = recorder.program([recorder.add(p.Binary("subtract"), x, total)])
    assert independent_cuts(program) == [Cut((1,), (1,), 7)]


def test_a_piece_of_a_constant_is_in_its_program_and_not_the_whole() -> None:
    program = with_positions()
    (the_cut,) = independent_cuts(program)
    piece = cut(program, the_cut, 2, 4)
    constants = [op for op, _ in piece.nodes if isinstance(op, p.Constant)]
    assert [np.frombuffer(op.data).tolist() for op in constants] == [[4.0, 9.0]]
    assert piece.inputs == (Spec((2,), F),)
    assert piece.results == (Spec((2,), F),)


def test_pieces_of_one_length_are_one_program_where_the_place_does_not_matter() -> None:
    program = softmax()
    the_cut = Cut((0,), (0,), 6)
    assert cut(program, the_cut, 0, 2).key == cut(program, the_cut, 4, 6).key


def test_axes_of_length_one_and_programs_without_axes_offer_nothing() -> None:
    assert independent_cuts(one(p.Unary("exp"), Spec((1, 1), F))) == []
    assert independent_cuts(one(p.Unary("exp"), Spec((), F))) == []
    assert independent_cuts(one(p.Unary("exp"), Spec((0,), F))) == []


def test_the_cut_of_most_bytes_comes_first() -> None:
    first, *_ = independent_cuts(layer())
    assert first == Cut((0, None, None), (0,), 10)


def test_what_is_no_cut_of_a_program_is_refused() -> None:
    program = matmul()
    with pytest.raises(InvalidOption, match="not among the independent cuts"):
        cut(program, Cut((1, 0), (None,), 3), 0, 1)
    for start, stop in ((0, 5), (2, 2), (-1, 2), (3, 1)):
        with pytest.raises(InvalidOption, match="is not a piece of an axis of length 4"):
            cut(program, Cut((0, None), (0,), 4), start, stop)


def test_long_chains_of_movements_and_shared_ones_are_no_trouble() -> None:
    recorder = Recorder()
    value = recorder.input(Spec((4, 6), F))
    for _ in range(3000):
        value = recorder.add(p.Permute((1, 0)), value)
    for _ in range(3):
        value = recorder.add(p.Concatenate(1), value, value)
    program = recorder.program([recorder.add(p.Unary("exp"), value)])
    assert Cut((0,), (0,), 4) in independent_cuts(program)
