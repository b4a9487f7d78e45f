"""Sorts of which few places are read: what is found of them is what sorting would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import record, trace
from anygpu.engines.cpu import selection
from anygpu.engines.cpu.engine import executable
from anygpu.engines.cpu.runtime import HostSteps
from anygpu.engines.cpu.selection import first_positions, places_that_are_read, select
from anygpu.program.graph import Node
from anygpu.program.primitives import Argsort, Sort, Spec


def rows_of(kind: str) -> Any:
    """Rows whose first elements are to be found: all different, with equal ones, with NaN, of whole numbers."""
    x = np.random.default_rng(1).standard_normal((60, 1200))
    if kind == "equal":
        return x.round(1)
    if kind == "nan":
        x[::3, 10:] = np.nan
        x[1, :] = np.nan
    return (x * 1e4).astype(np.int32) if kind == "whole" else x


@pytest.mark.parametrize("kind", ["different", "equal", "nan", "whole"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("stable", [True, False])
def test_the_first_positions_are_those_of_an_argsort(kind: str, axis: int, stable: bool) -> None:
    x = rows_of(kind)
    part = (slice(None),) * axis + (slice(5),)
    expected = np.argsort(x, axis=axis, kind="stable" if stable else None)[part]
    assert np.array_equal(first_positions(x, axis, 5, stable=stable), expected)
    spec = Spec(x.shape, "int64")
    for threads in (1, 3):
        found = HostSteps().run(Node(Argsort(axis, stable), (0,)), [x], spec, threads, places=range(5))
        assert np.array_equal(found[part], expected)


@pytest.mark.parametrize("kind", ["different", "equal", "nan"])
def test_the_nearest_are_found_without_sorting_all(kind: str) -> None:
    x = rows_of(kind)
    program = record(lambda x: np.argsort(x, axis=1)[:, :4] * 2 + np.argsort(x, axis=1)[:, 3:7], x)
    (node,) = [number for number, each in enumerate(program.nodes) if isinstance(each.op, Argsort)]
    assert list(places_that_are_read(program, node)) == [*range(7)]
    (got,) = executable(program)([x])
    order = np.argsort(x, axis=1, kind="stable")
    assert np.array_equal(got, order[:, :4] * 2 + order[:, 3:7])


def test_whoever_reads_more_than_the_first_positions_gets_all() -> None:
    x = rows_of("different")
    whole = [
        record(lambda x: (np.argsort(x, axis=1)[:, :4] + 1, np.argsort(x, axis=1)), x),
        record(lambda x: np.argsort(x, axis=1)[:, :4] + np.argsort(x, axis=1).max(axis=1, keepdims=True), x),
        record(lambda x: np.argsort(x, axis=1)[:, -4:] + 1, x),
        record(lambda x: np.argsort(x + 1j, axis=1)[:, :4] + 1, x),
    ]
    for program in whole:
        nodes = [number for number, each in enumerate(program.nodes) if isinstance(each.op, Argsort)]
        assert [list(places_that_are_read(program, node)) for node in nodes] == [[]] * len(nodes)


# -- values


LONG = selection._LONG_ROW + 4321


def long_row(kind: str) -> Any:
    x = np.random.default_rng(2).standard_normal(LONG)
    match kind:
        case "equal":
            return x.round(1)
        case "one value":
            return np.full(LONG, 2.5)
        case "in order":
            return np.sort(x)
        case "periodic":
            return np.sin(np.arange(LONG) * (2 * np.pi / 512))
        case "far apart":
            return np.exp(40 * x)
        case "some nan":
            x[::7] = np.nan
            return x
        case "nan":
            return np.full(LONG, np.nan)
        case "infinite":
            x[::3], x[1::3] = np.inf, -np.inf
            return x
        case "bytes":
            return (x * 20).astype(np.int8)
        case "truth":
            return x > 0
        case "single":
            return x.astype(np.float32)
    return x


KINDS = [
    "different", "equal", "one value", "in order", "periodic", "far apart", "some nan", "nan", "infinite", "bytes",
    "truth", "single",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("places", [[0], [LONG // 2], [0, 1, LONG // 3, LONG // 3 + 1, LONG - 2, LONG - 1], [LONG - 1]])
def test_what_is_selected_is_what_a_sort_has_there(kind: str, places: Sequence[int]) -> None:
    x = long_row(kind)
    for rows in (x, np.stack([x, x[::-1]]), np.stack([x, x[::-1]], axis=1)):
        axis = int(np.argmax(rows.shape))
        result = np.zeros_like(rows)
        select(rows, axis, places, result)
        expected = np.take(np.sort(rows, axis=axis), places, axis)
        assert np.array_equal(np.take(result, places, axis), expected, equal_nan=x.dtype.kind == "f")


def test_a_sample_that_misleads_costs_time_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    x = long_row("different")
    monkeypatch.setattr(selection, "_sampled", lambda row: np.full(2048, 1e9))
    assert selection._selected(x, [LONG // 2]) == [np.sort(x)[LONG // 2]]


@pytest.mark.parametrize("kind", ["one value", "nan", "truth", "mostly zero"])
def test_of_many_equal_elements_none_is_picked_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That took seven times as long as NumPy's partition."""
    x = np.maximum(long_row("different") - 1.5, 0) if kind == "mostly zero" else long_row(kind)
    places = [LONG // 3, LONG // 3 + 1]
    expected = np.sort(x)[places]
    monkeypatch.setattr(np, "partition", lambda *_: pytest.fail("elements were picked out"))
    assert np.array_equal(selection._selected(x, places), expected, equal_nan=kind == "nan")


@pytest.mark.parametrize("kind", ["different", "equal", "some nan", "bytes"])
@pytest.mark.parametrize("dtype", [None, "float16"])
def test_many_groups_of_places_are_found_together(kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = long_row(kind).astype(dtype)
    places = [LONG * number // 9 + further for number in range(8) for further in (0, 1)]
    monkeypatch.setattr(selection, "_between", lambda *_: pytest.fail("a pass for each"))
    result = np.zeros_like(x)
    select(x, 0, places, result)
    assert np.array_equal(result[places], np.sort(x)[places], equal_nan=x.dtype.kind == "f")


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 5))
def test_short_rows_of_all_shapes(seed: int, length: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-5, 5, (3, length, 4)) / 2
    places = sorted({int(each) for each in rng.integers(0, length, count)})
    result = np.zeros_like(x)
    select(x, 1, places, result)
    assert np.array_equal(np.take(result, places, 1), np.take(np.sort(x, axis=1), places, 1))


@pytest.mark.parametrize("name", ["median", "percentile", "of rows", "of columns"])
def test_quantiles_read_few_places(name: str) -> None:
    functions: dict[str, Any] = {
        "median": np.median,
        "percentile": lambda x: np.percentile(x, [1, 25, 99]),
        "of rows": lambda x: np.quantile(x, 0.3, axis=1),
        "of columns": lambda x: np.median(x, axis=0),
    }
    x = rows_of("different")
    traced = trace(functions[name], (x,), {})
    assert isinstance(traced, Traced)
    program = traced.program
    (node,) = [number for number, each in enumerate(program.nodes) if isinstance(each.op, Sort)]
    assert 0 < len(places_that_are_read(program, node)) <= 7
    (got,) = executable(program)([x])
    assert np.array_equal(got, functions[name](x))
