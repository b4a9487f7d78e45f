"""One wrong element is found; right answers that differ by rounding, near ties and on ill-conditioned data are not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from anygpu.agreement.analysis import analyse, flags_of
from anygpu.agreement.comparison import Judgement, judge, layout
from anygpu.array.trace.tracing import record
from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.support.random_programs import random_program
from tests.support.wrong_results import real_values, spoil


def judged(program: Program, inputs: list[Any], got: list[Any]) -> Judgement:
    expected = tuple(np.array(each) for each in lowering.run(program, inputs))
    return judge(program, inputs, expected, got, tuple)


def recorded(function: Any, *inputs: Any) -> tuple[Program, list[Any]]:
    program = record(function, *inputs)
    return program, [np.array(each) for each in lowering.run(program, inputs)]


@pytest.mark.parametrize("seed", range(60))
def test_one_wrong_element_of_a_random_program_is_found(seed: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng, dtypes=("float32", "int32", "bool"))
    inputs = [real_values(spec, np.random.default_rng(seed), spread=0.5) for spec in program.inputs]
    expected = [np.array(each) for each in lowering.run(program, inputs)]
    assert judged(program, inputs, expected).verdict == "agree"
    spoilt = spoil(expected, rng)
    differs = any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, spoilt, strict=True))
    bounds = analyse(program, inputs).bounds
    decided = all(bound is None or np.isfinite(bound).all() for bound in bounds)
    if differs and decided:
        apart = [np.abs(a.astype(float) - b) > (0 if bound is None else bound)
                 for a, b, bound in zip(expected, spoilt, bounds, strict=True)]  # fmt: skip
        nan = [np.isnan(b.astype(float)) & ~np.isnan(a.astype(float)) for a, b in zip(expected, spoilt, strict=True)]
        if any(each.any() for each in [*apart, *nan]):
            assert judged(program, inputs, spoilt).verdict == "differ"


@pytest.mark.full
@pytest.mark.parametrize("engine", ["torch", "opencl", "webgpu", "jax"])
def test_right_answers_of_devices_on_real_inputs_are_not_called_wrong(engine: str) -> None:
    places = DeviceRegistry()
    count = 10 if engine == "jax" else 25
    for seed in range(count):
        program = random_program(random.Random(seed), dtypes=("float32", "int32", "bool"))
        rng = np.random.default_rng(seed)
        inputs = [real_values(spec, rng, spread=(0.0, 4.0)[seed % 2]) for spec in program.inputs]
        try:
            expected = tuple(np.array(each) for each in lowering.run(program, inputs))
            results = places.find(engine).worker.run(program, inputs).results
        except (ValueError, IndexError):
            continue
        found = judge(program, inputs, expected, [np.asarray(each) for each in results], tuple)
        assert found.verdict != "differ", f"seed {seed}: {found.difference}"
    places.close()


def test_movement_is_compared_to_the_last_bit_and_the_sign_of_zero() -> None:
    x = np.array([[0.1, -0.0], [np.nan, 3.0]], np.float32)
    program, (expected,) = recorded(lambda x: np.concatenate([x.T, x]), x)
    assert judged(program, [x], [expected]).verdict == "agree"
    for place, value in (((0, 0), np.nextafter(np.float32(0.1), np.float32(1))), ((1, 0), 0.0)):
        got = expected.copy()
        got[place] = value
        found = judged(program, [x], [got])
        assert found.verdict == "differ"
        assert found.difference is not None
        assert found.difference.index == place


def test_what_is_exact_has_one_right_answer_also_behind_a_step() -> None:
    x = np.arange(1000, dtype=np.float32)
    program, (expected,) = recorded(lambda x: np.floor((x + 1) * 0.5) + (x * 2 > 10), x)
    got = expected.copy()
    got[501] += 1
    found = judged(program, [x], [got])
    assert found.difference is not None
    assert found.difference.index == (501,)


def test_a_step_near_a_tie_may_go_either_way_and_nowhere_else() -> None:
    x = np.array([0.3, 2.0 / 3.0], np.float32)
    program, (expected,) = recorded(lambda x: np.floor(np.exp(np.log(x * 3))), x)
    for place, verdict in ((1, "agree"), (0, "differ")):
        got = expected.copy()
        got[place] += -1 if expected[place] == 2 else 1
        assert judged(program, [x], [got]).verdict == verdict


def test_of_whole_numbers_not_even_a_few_may_be_undecided() -> None:
    """Casts that leave the range of the type: there the device has to do as NumPy does."""
    x = np.linspace(0, 100, 1000)
    x[7] = 1e30
    with np.errstate(invalid="ignore"):
        program, (expected,) = recorded(lambda x: (x * 1.5).astype(np.int32), x)
        assert judged(program, [x], [expected.copy()]).verdict == "agree"
        got = expected.copy()
        got[7] += 1
        assert judged(program, [x], [got]).verdict == "undecided"


def test_a_program_of_another_function_is_not_a_right_answer() -> None:
    """A function may compute in another order than its program, which is another thing than to compute something else.

    Such a program agrees with itself wherever it runs.
    """
    for dtype in (np.float32, np.float64, np.int32):
        x = np.arange(1, 7, dtype=dtype)
        program, twice = recorded(lambda x: x * 2, x)
        assert judge(program, [x], (x * 3,), twice, tuple).verdict == "differ"
    x = np.random.default_rng(0).random(4000).astype(np.float32)
    program, (total,) = recorded(lambda x: x.sum(), x)
    in_turn = np.cumsum(x)[-1:].reshape(())
    assert judge(program, [x], (in_turn,), [total], tuple).verdict == "agree"


def test_what_the_program_gives_on_numpy_is_no_reference() -> None:
    """The function's own float16 sum overflows, and its program, which adds up in another way, agrees with itself."""
    x = np.full(200, 1000, np.float16)
    program, total = recorded(lambda x: x.astype(np.float32).sum().astype(np.float32) / 4, x)
    assert judge(program, [x], (np.float32(np.inf),), total, tuple).verdict == "differ"
    assert judge(program, [x], (total[0] * np.float32(1.001),), total, tuple).verdict == "differ"


def test_sums_that_cancel_are_as_wide_as_their_terms() -> None:
    x = np.array([1e8, 1.0, -1e8, 0.3] * 100, np.float32)
    program, (expected,) = recorded(lambda x: (x * 1.1).sum(), x)
    assert judged(program, [x], [np.asarray(expected + np.float32(100))]).verdict == "agree"
    assert judged(program, [x], [np.asarray(expected + np.float32(1e8))]).verdict == "differ"


def test_sums_of_whole_numbers_are_exact_in_any_order() -> None:
    x = np.arange(1000, dtype=np.float32)
    program, (expected,) = recorded(lambda x: x.sum() + (x[:, None] @ x[None, :]).max(), x)
    assert judged(program, [x], [np.asarray(expected + 1)]).verdict == "differ"


def test_type_shape_and_kind_count() -> None:
    x = np.arange(4, dtype=np.float32)
    program = record(lambda x: x + 1, x)
    for other in (np.arange(1, 5, dtype=np.float64), np.arange(1, 5, dtype=np.float32)[None]):
        assert judge(program, [x], (x + 1,), [other], tuple).verdict == "differ"
    assert judge(program, [x], [x + 1], [x + 1], tuple).verdict == "differ"


def test_factors_that_are_not_unique_are_undecided() -> None:
    x = np.random.default_rng(0).normal(size=(4, 4))
    program = record(lambda x: np.linalg.qr(x)[0], x)
    q = np.linalg.qr(x)[0]
    assert judge(program, [x], (q,), [q], tuple).verdict == "agree"
    assert judge(program, [x], (q,), [-q], tuple).verdict == "undecided"


def test_an_ill_conditioned_system_is_as_wide_as_its_condition() -> None:
    a = np.vander(np.linspace(1, 2, 8)).astype(np.float32)
    b = np.ones((8, 1), np.float32)
    program = record(lambda a, b: np.linalg.solve(a, b), a, b)
    exact = np.linalg.solve(a.astype(float), b.astype(float)).astype(np.float32)
    assert judge(program, [a, b], (np.linalg.solve(a, b),), [exact], tuple).verdict == "agree"


def test_flags_are_those_that_numpy_warns_of_also_where_they_are_masked() -> None:
    x = np.array([0.0, 1.0, 2.0])
    program = record(lambda x: np.where(x > 0, 1 / x, 0.0), x)
    assert {flag.kind for flag in flags_of(program, [x])} == {"divide by zero"}
    assert not flags_of(program, [x + 1])


def test_the_order_of_memory_is_told_without_axes_that_have_one_element() -> None:
    x = np.zeros((3, 1, 4))
    assert layout(x) == ()
    assert layout(x.T) == (2, 0)
    assert layout(np.zeros((4, 5))[::2]) == ()
