"""The corpus and some random functions as native code in turn with NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.semantics.all_cases import CASES
from tests.semantics.hostile import HOSTILE
from tests.semantics.known_failures import KNOWN_FAILURES
from tests.semantics.natively import complaint, run_natively
from tests.semantics.random_modules import write
from tests.support.native_placement import native_at_once

#: Steps of random functions: every change meets native code.
STEPS = tuple(step for step in range(6) for _ in range(4))


@pytest.fixture(autouse=True, scope="module")
def at_once() -> Iterator[None]:
    with native_at_once():
        yield


@pytest.mark.sampled(gate=24)
@pytest.mark.parametrize("name", CASES)
def test_a_function_does_what_it_does_on_numpy(name: str) -> None:
    case = CASES[name]
    wrong = complaint(case, run_natively(case))
    if name in KNOWN_FAILURES:
        assert wrong is not None, f"{name} is right now: it is not a known failure any more."
        pytest.xfail(KNOWN_FAILURES[name])
    assert wrong is None, wrong


@pytest.mark.sampled(gate=60, full=4)
@pytest.mark.parametrize("name", [name for name in CASES if name not in KNOWN_FAILURES])
def test_a_function_does_so_too_where_an_earlier_process_has_compared_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANYGPU_HISTORY", "on")
    case = CASES[name]
    for _ in range(2):
        wrong = complaint(case, run_natively(case))
        assert wrong is None, wrong


@pytest.mark.sampled(gate=8)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_function_does_what_it_does_on_numpy(name: str) -> None:
    wrong = complaint(HOSTILE[name], run_natively(HOSTILE[name], STEPS))
    assert wrong is None, wrong


@pytest.mark.sampled(gate=10)
@pytest.mark.parametrize("first", range(0, 200, 5))
def test_random_modules_do_what_they_do_on_numpy(first: int) -> None:
    calls: Counter[str] = Counter()
    for seed in range(first, first + 5):
        source = write(seed)
        found = run_natively(source.case(), STEPS)
        calls += found.calls
        assert not found.differences, f"seed {seed}: {found.differences[0]}\n{source.text}"
        assert not found.failed, f"seed {seed}: {found.failed[0]}\n{source.text}"
    assert calls["cpu"] >= 5, calls
