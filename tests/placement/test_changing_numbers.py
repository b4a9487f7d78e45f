"""Numbers that change with every call and only take part in arithmetic are inputs: nothing is compiled again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax.monitoring
import numpy as np
import pytest

import anygpu as ag
from anygpu.receipts.receipt import Receipt

ENGINES = ["cpu", "webgpu", "opencl", "torch", "jax"]
CALLS = 10
FIELD = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
LABELS = np.random.default_rng(2).normal(size=(40, 4)).astype(np.float32)
COUNTS = np.arange(1200, dtype=np.int32).reshape(40, 30)


@dataclasses.dataclass
class Schedule:
    rate: float
    step: int = 0


class Model:
    """Its number is no argument of the method at all."""

    def __init__(self) -> None:
        self.rate = 0.0

    def at(self, rate: float) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.rate = rate
        return (FIELD,), {}

    def forward(self, field: Any) -> Any:
        return field - self.rate * np.tanh(field)


MODEL = Model()


def time_step(field: Any, dt: float) -> Any:
    around = field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
    return field[1:-1, 1:-1] + dt * (around - 4 * field[1:-1, 1:-1])


def learning_rate(weights: Any, *, rate: float) -> Any:
    gradient = FIELD.T @ (FIELD @ weights - LABELS) / len(FIELD)
    return weights - rate * gradient


def annealed(weights: Any, schedule: dict[str, Any]) -> Any:
    return weights * (1 - schedule["decay"]) + schedule["noise"] / (1.0 + schedule["step"])


def in_an_object(field: Any, schedule: Schedule) -> Any:
    return field * schedule.rate + schedule.step


def shifted(counts: Any, by: int) -> Any:
    return counts * by - by


def power_of_a_float(field: Any, number: float) -> Any:
    return np.abs(field) * number**2 + np.tanh(number * field)


def both(field: Any, number: int, other: float) -> tuple[Any, Any]:
    return field + number, np.exp(field * other) / (number + 1)


#: A function, and its arguments and keywords for a call of that number.
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "time step": (time_step, lambda number: ((FIELD, 0.01 * (number + 1)), {})),
    "learning rate": (learning_rate, lambda number: ((WEIGHTS,), {"rate": 0.3 / (number + 1)})),
    "in a dict": (
        annealed,
        lambda number: ((WEIGHTS, {"decay": 0.01 * number, "noise": 0.5**number, "step": number}), {}),
    ),
    "in an object": (in_an_object, lambda number: ((FIELD, Schedule(1.5 * number + 0.25, number)), {})),
    "integer": (shifted, lambda number: ((COUNTS, 3 * number - 7), {})),
    "in functions": (power_of_a_float, lambda number: ((FIELD, number / 3 - 1.1), {})),
    "integer and float": (both, lambda number: ((FIELD, number, 0.1 * number), {})),
    "attribute of self": (MODEL.forward, lambda number: MODEL.at(0.1 * number + 0.05)),
    "a number of NumPy's": (time_step, lambda number: ((FIELD, np.float64(0.01 * number)), {})),
}


@pytest.fixture(scope="module")
def compiled_by_jax() -> Iterator[list[str]]:
    """What jax has compiled in this process so far; it grows."""
    found: list[str] = []

    def listen(event: str, seconds: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_compiled_again_for_another_number(engine: str, case: str, compiled_by_jax: list[str]) -> None:
    function, make = CASES[case]
    offloaded = ag.offload(on=engine, fallback="raise")(function)
    receipts: list[Receipt] = []
    compiled: list[int] = []
    for number in range(CALLS):
        arguments, keywords = make(number)
        got, expected = offloaded(*arguments, **keywords), function(*arguments, **keywords)
        for one, other in zip(_flat(got), _flat(expected), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
        receipt = ag.last_receipt()
        assert receipt is not None
        receipts.append(receipt)
        compiled.append(len(compiled_by_jax))
    assert {receipt.device.partition(":")[0] for receipt in receipts} == {engine}
    later = receipts[1:]
    assert {receipt.program for receipt in later} == {receipts[0].program}, "the program is that of the first call"
    assert all(receipt.phases.trace == 0 for receipt in later), "it is not traced again"
    if engine in ("webgpu", "opencl"):
        assert receipts[0].driver is not None
        work = [receipt.driver for receipt in later]
        assert [each.compilations if each is not None else None for each in work] == [0] * len(later)
    elif engine == "jax":
        assert compiled[1:] == [compiled[0]] * len(later)


def test_what_jax_compiles_is_counted(compiled_by_jax: list[str]) -> None:
    """Else the test above would prove nothing for it."""
    before = len(compiled_by_jax)
    ag.offload(on="jax", fallback="raise")(lambda x: np.tanh(x) * 1.2345678)(FIELD)
    assert len(compiled_by_jax) > before


def _flat(value: Any) -> list[Any]:
    return [np.asarray(each) for each in (value if isinstance(value, tuple) else (value,))]
