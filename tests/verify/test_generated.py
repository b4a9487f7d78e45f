"""The programs that `anygpu verify` makes: the same for a seed, of every kind of operation, and decidable on NumPy."""

from __future__ import annotations

import numpy as np

from anygpu.engines.numpy import lowering
from anygpu.program import primitives as p
from anygpu.program.functions import BINARY, UNARY, is_defined
from anygpu.program.primitives import Binary, Cast, Unary
from anygpu.testing.cases import REFERENCE_DTYPES
from anygpu.testing.verify import judged
from anygpu.testing.verify.seeded_programs import seeded_program
from anygpu.testing.verify.special_values import special_programs

COUNT = 300


def test_a_seed_makes_the_same_program_with_the_same_inputs() -> None:
    for seed in range(20):
        (one, inputs), (other, again) = seeded_program(seed), seeded_program(seed)
        assert one.key == other.key
        for x, y in zip(inputs, again, strict=True):
            np.testing.assert_array_equal(x, y, strict=True)


def test_every_kind_of_operation_and_every_dtype_is_in_some_program() -> None:
    programs = [seeded_program(seed).program for seed in range(COUNT)]
    kinds = {type(op) for program in programs for op, _ in program.nodes}
    elementwise = {p.Unary, p.Binary, p.Select, p.Cast}
    along = {p.Reduce, p.Scan, p.Sort, p.Argsort, p.Fourier, p.Contract, p.Gather, p.Scatter}
    moved = {p.Reshape, p.Permute, p.Broadcast, p.Flip, p.Windows, p.Slice, p.Pad, p.Concatenate}
    assert kinds >= elementwise | along | moved
    assert {spec.dtype for program in programs for spec in program.specs} == set(REFERENCE_DTYPES)


def test_values_are_finite_and_numpys_own_results_are_right() -> None:
    for seed in range(COUNT):
        program, inputs = seeded_program(seed)
        results = lowering.run(program, list(inputs))
        assert all(np.isfinite(each).all() for each in results)
        found = judged(program, inputs, results, set())
        assert (found.wrong, found.skipped) == ("", "")


def test_a_result_that_is_off_by_one_is_wrong() -> None:
    """But for a few, whose bounds are wide."""
    wrong = tried = 0
    for seed in range(COUNT):
        program, inputs = seeded_program(seed)
        results = [np.asarray(each) for each in lowering.run(program, list(inputs))]
        if not results[-1].size or results[-1].dtype.kind == "b":
            continue
        tried += 1
        results[-1] = results[-1] + results[-1].dtype.type(1)
        wrong += bool(judged(program, inputs, results, set()).wrong)
    assert wrong >= 0.9 * tried


def test_special_values_go_through_every_function() -> None:
    functions = {(type(op), getattr(op, "fn", "")) for each in special_programs() for op, _ in each.program.nodes}
    assert functions >= {(Unary, fn) for fn in UNARY}
    assert functions >= {(Binary, fn) for fn in BINARY if any(is_defined(fn, dtype) for dtype in REFERENCE_DTYPES)}
    casts = {(each.program.specs[0].dtype, op.dtype) for each in special_programs() for op, _ in each.program.nodes
             if isinstance(op, Cast)}  # fmt: skip
    reals = [dtype for dtype in REFERENCE_DTYPES if not dtype.startswith("complex")]
    assert casts >= {(one, other) for one in reals for other in REFERENCE_DTYPES if one != other}


def test_numpys_own_special_values_are_right() -> None:
    for each in special_programs():
        results = lowering.run(each.program, list(each.inputs))
        found = judged(each.program, each.inputs, results, set())
        assert (found.wrong, found.skipped) == ("", ""), each.name
