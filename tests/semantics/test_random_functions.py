"""Random functions as native code beside NumPy; `python -m tests.semantics.random_functions` tries 2,500."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.semantics.known_failures import KNOWN_DIFFERENCES, KNOWN_DIFFERENCES_EXACT
from tests.semantics.random_functions import FIRST_CALLS, automatic, forced, shrunk, trial
from tests.semantics.random_sources import Call, Source, write
from tests.support.native_placement import native_at_once

#: Functions of one test, and of how many at least one call is native.
FUNCTIONS, NATIVE = 20, 4


@pytest.mark.sampled(gate=25, full=5)
@pytest.mark.parametrize("first", range(0, 2500, FUNCTIONS))
def test_a_function_does_what_it_does_on_numpy(first: int) -> None:
    natively = 0
    for seed in range(first, first + FUNCTIONS):
        source = write(seed)
        found = trial(source, forced(exact=False))
        _assert_as_known(source, found.differences, KNOWN_DIFFERENCES)
        natively += found.calls["cpu"] > 0
    assert natively >= NATIVE


@pytest.mark.sampled(gate=60, full=10)
@pytest.mark.parametrize("first", range(0, 2500, FUNCTIONS))
def test_no_bit_is_another_one_where_that_is_asked_for(first: int) -> None:
    for seed in range(first, first + FUNCTIONS):
        source = write(seed)
        found = trial(source, forced(exact=True), exact=True)
        _assert_as_known(source, found.differences, KNOWN_DIFFERENCES_EXACT)


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("first", range(0, 100, 10))
def test_a_function_does_so_too_where_it_is_placed_by_itself(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: what is learnt of it the first time, the second time begins with."""
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    calls: Counter[str] = Counter()
    with native_at_once(history="on"):
        for _ in range(2):
            for seed in range(first, first + 10):
                source = write(seed)
                found = trial(source, automatic(exact=False), order=(*FIRST_CALLS, *range(len(source.calls))))
                calls += found.calls
                assert not found.differences, _told(source, found.differences)
    assert calls["cpu"] >= 20, calls


def test_a_function_is_the_same_whenever_its_seed_is() -> None:
    assert write(11) == write(11)
    assert write(11).function != write(12).function


SOURCE = Source(
    1,
    ("x", "k"),
    ("v1 = x + 1", "v2 = np.exp(x)", "v3 = (v1 > 0).sum()", "v4 = np.sum(x) * 1e-3"),
    "(v1, v2, v3, v4)",
    (Call(("x = np.array([1.0, -2.0, 0.0])", "k = 1")), Call(("x = np.array([3.0, nan])", "k = 2"), "invalid='raise'")),
)


def changed(change: Callable[[list[Any]], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            parts = list(function(*arguments))
            change(parts)
            return tuple(parts)

        return call

    return made


def a_last_bit(parts: list[Any]) -> None:
    parts[1] = np.nextafter(parts[1], 9)


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        (lambda parts: parts.__setitem__(2, parts[2] + 1), False),
        (lambda parts: parts.__setitem__(2, parts[2].astype(np.int32)), False),
        (lambda parts: parts.__setitem__(0, -(-parts[0] + 1e-15)), False),
        (lambda parts: parts.__setitem__(0, np.where(parts[0] == 0, -0.0, parts[0])), False),
        (lambda parts: parts.__setitem__(1, parts[1] * (1 + 1e-11)), False),
        (lambda parts: parts.__setitem__(1, parts[1].astype(np.float32)), False),
        (lambda parts: parts.__setitem__(1, parts[0]), False),
        (lambda parts: parts.append(None), False),
        (lambda parts: parts[0].setflags(write=False), False),
        (lambda parts: np.log(np.float64(0)), False),
        (a_last_bit, True),
    ],
)
def test_what_is_another_result_is_found(change: Callable[[list[Any]], Any], exact: bool) -> None:
    source = replace(SOURCE, calls=(Call(("x = np.array([1.0, -1.0, 0.5])", "k = 1")),))
    assert not trial(source, lambda function: function, exact=exact).differences
    assert trial(source, changed(change), exact=exact).differences


def test_a_float_may_be_rounded_as_is_published() -> None:
    found = trial(SOURCE, changed(a_last_bit))
    assert not found.differences
    assert found.rounded == 2


def test_a_function_that_differs_is_printed_without_what_does_not_matter() -> None:
    def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            np.log(np.float64(0))
            return function(*arguments)

        return call

    found = trial(SOURCE, wrong)
    at, message = found.differences[1]
    assert "divide by zero" in message
    small, taken = shrunk(SOURCE, at, message, wrong, exact=False)
    assert small.body == ()
    assert taken == [1]
    assert small.reproduced(1) == "def function():\n    return v1\n\nfunction()"


def _assert_as_known(source: Source, differences: list[tuple[int, str]], known: dict[int, str]) -> None:
    """A function that is known to differ has to: one that is right now is taken out of the table."""
    if source.seed not in known:
        assert not differences, _told(source, differences)
    else:
        assert differences, f"seed {source.seed} is right now: take it out of known_failures.py"


def _told(source: Source, differences: list[tuple[int, str]]) -> str:
    at, message = differences[0]
    return f"seed {source.seed}, set {at}: {message}\n{source.reproduced(max(at, 0))}"
