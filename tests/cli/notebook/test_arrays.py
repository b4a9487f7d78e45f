"""Arrays, programs and what calls gave: nothing is computed, read or waited for to be shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.core.device import ArrayWork
from anygpu.base import events
from anygpu.base.events import Listed
from anygpu.cli.notebook.outcomes import MOST_DRAWN, MOST_LINES, step_html
from anygpu.receipts.receipt import Phases, numpy_receipt
from anygpu.runtime.runtime import Outcome
from anygpu.runtime.streams.pipeline import StageSeconds, Streamed
from tests.cli.notebook.pages import check, html, words

RECEIPT = numpy_receipt("f", "it is new.", Phases(run=0.5), None)
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def happened() -> Iterator[list[ArrayWork]]:
    seen: list[ArrayWork] = []
    events.array_work.append(seen.append)
    yield seen
    events.array_work.remove(seen.append)


def chain(length: int) -> ag.Program:
    def add(x: Any) -> Any:
        for number in range(length):
            x = x + np.float32(number + 0.5)
        return x

    return ag.record(add, np.ones(3, np.float32))


def test_an_array_that_is_not_computed_stays_so(happened: list[ArrayWork]) -> None:
    array = np.sqrt(ag.asarray(np.ones((3, 4)))) * 2
    happened.clear()
    shown = html(array)
    check(shown)
    assert not happened
    assert not array._value.computed
    for fact in ("(3, 4)", "float64", "96 bytes", "numpy", "not computed yet", "sqrt"):
        assert fact in words(shown)


def test_an_array_on_the_host_shows_its_values() -> None:
    array = ag.asarray(np.linspace(0, 1, 5)).compute()
    shown = html(array)
    check(shown)
    assert "[0. , 0.25, 0.5 , 0.75, 1. ]" in words(shown)
    large = html(ag.asarray(np.arange(1_000_000.0)))
    assert "..., " in words(large)
    assert len(large) < 5000


def test_an_array_on_a_device_is_not_read(happened: list[ArrayWork]) -> None:
    array = ag.asarray(np.ones(5, np.float32), device="webgpu").compute()
    happened.clear()
    shown = html(array)
    check(shown)
    assert not happened
    assert "computed, on webgpu:0; np.asarray(x) reads them" in words(shown)


def test_a_traced_function_sees_arrays_without_a_page() -> None:
    seen: list[bool] = []

    def f(x: Any) -> Any:
        seen.append(hasattr(x, "_repr_html_"))
        return x + 1

    ag.explain(f, np.ones(5))
    assert not any(seen)


def test_a_tensor_of_a_store() -> None:
    with ag.Store("models", device="numpy") as store:
        store.put(EVIL, np.ones(5, np.float32), owner=EVIL)
        shown = html(store.get(EVIL))
        check(shown)
        assert f"Tensor {EVIL}" in words(shown)
        check(html(store.statistics()))


def test_a_program_is_drawn_with_its_text() -> None:
    program = chain(3)
    shown = html(program)
    check(shown)
    assert "add" in words(shown)
    assert "return" in words(shown)
    assert " ".join(str(program).split()) in words(shown)
    assert "var(--jp" in shown
    assert "prefers-color-scheme" not in shown  # a notebook's theme is not the system's
    assert len(shown) < 20_000


def test_a_large_program_is_told_by_what_it_consists_of() -> None:
    assert "<rect" in html(chain((MOST_DRAWN - 1) // 3))
    program = chain(300)
    shown = html(program)
    check(shown)
    assert "<svg" not in shown
    assert "too large to draw" in words(shown)
    assert "add × 300" in words(shown)
    assert f"{len(str(program).splitlines()) - MOST_LINES:,} more lines" in words(shown)


def test_results_and_outcomes_have_their_receipt() -> None:
    result = ag.run(np.tanh, np.zeros(3))
    check(html(result))
    assert "[0., 0., 0.]" in words(html(result))
    assert "tanh ran on numpy" in words(html(result))
    check(html(Outcome({"key": EVIL}, None, RECEIPT)))
    assert EVIL in words(html(Outcome({"key": EVIL}, None, RECEIPT)))
    failed = Outcome(error=ValueError(EVIL))
    check(html(failed))
    assert f"ValueError: {EVIL}" in words(html(failed))


def test_outcomes_of_a_map_are_a_table_with_the_errors() -> None:
    outcomes = [Outcome(np.zeros((2, 3)), None, RECEIPT)] * 80 + [Outcome(error=ValueError(EVIL))]
    shown = html(Listed(outcomes))
    check(shown)
    assert "80 of 81 done: 80 on numpy. 50 of them are below, errors first." in words(shown)
    assert f"ValueError: {EVIL}" in words(shown)
    assert isinstance(ag.map(np.tanh, [np.zeros(3)]), Listed)


def test_a_future_is_not_waited_for() -> None:
    begun, end = threading.Event(), threading.Event()

    def f(x: Any) -> Any:
        begun.set()
        end.wait(60)
        if not x:
            raise ValueError(EVIL)
        return x

    future = ag.submit(f, 1)
    begun.wait(60)
    shown = html(future)
    end.set()
    check(shown)
    assert words(shown) in ("Future: running.", "Future: waiting.")
    assert future.result() == 1
    check(html(future))
    assert "Future: done." in words(html(future))
    failed = ag.submit(f, 0)
    failed.wait()
    check(html(failed))
    assert f"Future: ValueError: {EVIL}" in words(html(failed))


def test_a_stream_and_a_step() -> None:
    seconds = StageSeconds(read=1.0, transfer=0.25, compute=2.0, write=0.5, total=2.5)
    streamed = Streamed("out.npy", RECEIPT, 12, seconds, 1 << 20)
    check(html(streamed))
    assert str(streamed) in words(html(streamed))

    class Step:
        loss, grad_norm, stepped, receipt = 0.125, 2.5, True, RECEIPT

    shown = step_html(Step())  # type: ignore[arg-type] # a step itself needs torch, which takes seconds to load
    check(shown)
    assert "loss0.125" in words(shown)
