"""Some random functions; `python -m tests.semantics.random_modules` tries thousands."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.semantics.moving import ENGINES, moving
from tests.semantics.random_modules import trial, write

pytestmark = [
    pytest.mark.software_devices("calls move between all engines by themselves"),
    pytest.mark.native_off("calls are planned, and move: native code would run them"),
]


def test_random_functions_do_what_they_do_on_numpy() -> None:
    calls: Counter[str] = Counter()
    with moving() as placement:
        for seed in range(40):
            source = write(seed)
            found = trial(source, placement)
            calls += found.calls
            assert not found.differences, f"seed {seed}: {found.differences[0]}\n{source.text}"
            assert not found.failed, f"seed {seed}: {found.failed[0]}\n{source.text}"
    for engine in ENGINES:
        assert calls[engine] >= 20, calls


def test_a_function_is_the_same_whenever_its_seed_is() -> None:
    assert write(11).text == write(11).text
    assert write(11).text != write(12).text
