"""The corpus under moving placement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.semantics.all_cases import CASES
from tests.semantics.known_failures import KNOWN_FAILURES
from tests.semantics.moving import ENGINES, Placement, complaint, moving, run

pytestmark = [
    pytest.mark.software_devices("calls move between all engines by themselves"),
    pytest.mark.native_off("calls are planned, and move: native code would run them"),
]

#: Calls on each engine of the cases that have run.
calls: dict[str, int] = dict.fromkeys(ENGINES, 0)
have_run: set[str] = set()


@pytest.fixture(scope="module")
def placement() -> Iterator[Placement]:
    with moving() as found:
        yield found


@pytest.mark.sampled(gate=24, full=4)
@pytest.mark.parametrize("name", CASES)
def test_a_function_does_what_it_does_on_numpy(placement: Placement, name: str) -> None:
    case = CASES[name]
    found = run(case, placement)
    have_run.add(name)
    for engine, count in found.calls.items():
        calls[engine] = calls.get(engine, 0) + count
    wrong = complaint(case, found)
    if name in KNOWN_FAILURES:
        assert wrong is not None, f"{name} is right now: it is not a known failure any more."
        pytest.xfail(KNOWN_FAILURES[name])
    assert wrong is None, wrong


def test_the_corpus_is_large_and_has_left_numpy() -> None:
    assert len(CASES) >= 400
    if len(have_run) < 100:
        return  # somebody has chosen a few
    for engine in ENGINES:
        assert calls[engine] >= 3000 * len(have_run) / len(CASES), calls
