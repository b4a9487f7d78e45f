"""What nests note: a NaN or an infinity that no result shows, and whole numbers that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines.codegen.kernel import BEYOND, HIDDEN, RESULT, WRAPPED
from anygpu.engines.codegen.nests.steps import noted_nodes
from anygpu.engines.cpu.engine import executable

X = np.linspace(1, 2, 1003)


def names(function: Any, *arrays: Any) -> list[str]:
    program = record(function, *arrays)
    return sorted(program.nodes[node].op.name for node in noted_nodes(program))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: np.sqrt(x) * 2 + np.log(x), []),
        (lambda x: np.sqrt(x).sum() / 3, []),
        (lambda x: np.where(x > 1, np.sqrt(x) * 2, 0.0), ["multiply"]),
        (lambda x: np.where(x > 1, np.log(np.sqrt(x)), 0.0), ["log"]),
        (lambda x: 1 / (1 + np.exp(x)), ["add"]),
        (lambda x: 1 / (x * x), ["multiply"]),
        (lambda x: x - x[0] > 1, ["subtract"]),
        (lambda x: np.sin(x) > 1, ["sin"]),
        (lambda x: x / x.sum(), ["sum"]),
        (lambda x: 1 / np.cumsum(x), ["sum"]),
        (lambda x: np.exp(-x), []),
        (lambda x: np.exp(x) * 2, []),
        (lambda x: np.minimum(np.sqrt(x), 3.0), []),
        (lambda x: np.minimum(1 / x, 3.0), ["divide"]),
        (lambda x: np.sqrt(x) > 1, ["sqrt"]),
        (lambda x: (np.sqrt(x) > 1, np.sqrt(x)), []),
        (lambda x: np.exp(x)[5:], ["exp"]),
        (lambda x: (x + 2) ** 1.5 > 1, ["power"]),
        (lambda x: (x + 2) ** -1.5 > 1, ["add", "power"]),
        (lambda x: x.astype(np.int32), ["cast"]),
        (lambda x: x.astype(np.float32).astype(np.float64), []),
        (lambda x: x.astype(np.uint16).astype(np.float16) > 1, ["cast", "cast"]),
    ],
)
def test_a_value_is_looked_at_where_no_result_shows_what_becomes_of_it(function: Any, expected: list[str]) -> None:
    assert names(function, X) == expected


def test_only_scalars_are_looked_at_for_overflow() -> None:
    whole = np.arange(7)
    assert names(lambda x: x * 2 + x, whole) == []
    assert names(lambda x: x + x.max() * x.min(), whole) == ["multiply"]


def with_one(value: float, x: Any = X) -> Any:
    changed = x.copy()
    changed[7] = value
    return changed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1003,), (17, 59), (59, 17)])
def test_masked_values_are_noted_wherever_they_are(dtype: str, shape: tuple[int, ...]) -> None:
    x = X.reshape(shape).astype(dtype)
    compiled = executable(record(lambda x: np.where(x > 0, np.sqrt(x), 0.0).astype(x.dtype), x))
    assert compiled.checked([x])[1] == 0
    for place in (0, 500, 1002):
        y = x.copy()
        y.reshape(-1)[place] = -1
        assert compiled.checked([y])[1] == HIDDEN


@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_casts_note_what_numpy_warns_of(source: str, target: str) -> None:
    x = X.astype(source)
    compiled = executable(record(lambda x: x.astype(target), x))
    assert compiled.checked([x])[1] == 0
    for value in (np.nan, np.inf, -np.inf, 1e30):
        assert compiled.checked([with_one(value, x)])[1] == BEYOND


@pytest.mark.parametrize(
    ("function", "odd"),
    [
        (lambda x: 1 / x.sum(), 8e307 * X),
        (lambda x: 1 / x.reshape(17, 59).sum(axis=1), 8e307 * X),
        (lambda x: 1 / x.reshape(17, 59).sum(axis=0), 8e307 * X),
        (lambda x: 1 / x.reshape(59, 17)[:, :5].sum(axis=1), 8e307 * X),
        (lambda x: 1 / np.cumsum(x), 8e307 * X),
        (lambda x: 1 / np.prod(x[:100] + x[100:200]), 1e10 * X),
        (lambda x: 1 / (x.reshape(17, 59) @ x.reshape(59, 17)), 1e200 * X),
        (lambda x: np.exp(-(x[:300] * x[300:600])), 1e200 * X),
        (lambda x: x - x[0] > 1, np.inf * X),
        (lambda x: np.cos(x) > 1, np.inf * X),
    ],
)
def test_overflow_is_noted_where_no_result_shows_it(function: Any, odd: Any) -> None:
    compiled = executable(record(function, X))
    assert compiled.checked([X])[1] & HIDDEN == 0
    assert compiled.checked([odd])[1] & HIDDEN


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_divisions_of_whole_numbers_note_what_numpy_warns_of(name: str, dtype: str) -> None:
    x, y = np.arange(1, 38).astype(dtype), np.full(37, 3, dtype)
    compiled = executable(record(getattr(np, name), x, y))
    assert compiled.checked([x, y])[1] == 0
    y[20] = 0
    assert compiled.checked([x, y])[1] == WRAPPED
    if np.iinfo(dtype).min:
        x[20], y[20] = np.iinfo(dtype).min, -1
        assert compiled.checked([x, y])[1] == WRAPPED


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_sums_and_products_of_scalars_note_that_they_wrap(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([1, 2, 3], dtype)
    functions: list[Any] = [lambda x: x[0] + x[1], lambda x: x[0] - x[1], lambda x: x[0] * x[1]]
    for number, pairs in enumerate([[(limits.max, 1)], [(limits.min, 1)], [(limits.max, 2), (limits.max // 2, 3)]]):
        compiled = executable(record(functions[number], x))
        assert compiled.checked([np.array([3, 2, 1], dtype)])[1] == 0
        for one, other in pairs:
            assert compiled.checked([np.array([one, other, 0], dtype)])[1] == WRAPPED


def test_several_things_are_noted_at_once() -> None:
    compiled = executable(record(lambda x: (np.log(x), np.where(x > 1, np.sqrt(x - 1), 0.0)), X))
    assert compiled.checked([X])[1] == 0
    assert compiled.checked([with_one(0.5)])[1] == HIDDEN
    assert compiled.checked([with_one(0.0)])[1] == RESULT | HIDDEN
