"""Deferred calls do what plain ones do: parts of the corpus, hostile functions, random ones and iterations.

All of it: `python -m tests.semantics --deferred`, `python -m tests.semantics.random_deferred` and
`python -m benchmarks.deferred_iterations`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import anygpu as ag
from benchmarks.deferred_iterations import FUNCTIONS, runs_that_differ
from tests.semantics.all_cases import CASES
from tests.semantics.deferring import complaint, run_deferred
from tests.semantics.hostile import HOSTILE
from tests.semantics.known_failures import KNOWN_FAILURES
from tests.semantics.random_deferred import NATIVE_STEPS, trial, write, write_writer
from tests.support.deferred_placement import always_deferred
from tests.support.native_placement import native_at_once

#: As many steps as show each kind of call once.
STEPS = (0, 0, 0, 0, 1, 2, 3)


@pytest.fixture(autouse=True)
def deferred(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    with always_deferred():
        yield


@pytest.mark.sampled(gate=16)
@pytest.mark.parametrize("name", CASES)
def test_a_function_of_the_corpus_does_what_it_does_on_numpy(name: str) -> None:
    wrong = complaint(CASES[name], run_deferred(CASES[name]))
    assert wrong is None, wrong


@pytest.mark.sampled(gate=60)
@pytest.mark.parametrize("name", [name for name in CASES if name not in KNOWN_FAILURES])
def test_it_does_so_too_with_native_segments(name: str) -> None:
    with native_at_once():
        wrong = complaint(CASES[name], run_deferred(CASES[name]))
    assert wrong is None, wrong


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_function_does_what_it_does_on_numpy(name: str) -> None:
    wrong = complaint(HOSTILE[name], run_deferred(HOSTILE[name], STEPS))
    assert wrong is None, wrong


@pytest.mark.sampled(gate=8)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_function_does_so_too_with_native_segments(name: str) -> None:
    with native_at_once():
        wrong = complaint(HOSTILE[name], run_deferred(HOSTILE[name], NATIVE_STEPS, changes_modes=False))
    assert wrong is None, wrong


@pytest.mark.sampled(gate=50, full=10)
@pytest.mark.parametrize("first", range(0, 3000, 20))
def test_random_functions_do_what_they_do_on_numpy(first: int) -> None:
    for seed in range(first, first + 20):
        source = write(seed)
        found = trial(source)
        assert not found.differences, f"seed {seed}: {found.differences[0]}\n{source.text}"


@pytest.mark.sampled(gate=5)
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_a_write_through_another_name_is_seen_where_numpy_sees_it(first: int) -> None:
    for seed in range(first, first + 20):
        source = write_writer(seed)
        found = trial(source)
        assert not found.differences, f"seed {seed}: {found.differences[0]}\n{source.text}"


def test_a_function_is_the_same_whenever_its_seed_is() -> None:
    assert write(11).text == write(11).text
    assert write(11).text != write(12).text
    assert write_writer(11).text == write_writer(11).text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_iteration_gives_what_numpy_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDE", "3")
    ours: Any = ag.offload(deferred=True)(FUNCTIONS[name][0])
    assert not runs_that_differ(name, ours, range(4))
    assert ours.why_plain is None
