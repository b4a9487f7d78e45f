"""Functions that try to get an array, its type or a late write past `closed_code`: refused, or as on NumPy."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from tests.placement import fuzz_closed_code, hostile_functions

_CASES = hostile_functions.cases()


@pytest.fixture(scope="module", autouse=True)
def _little_to_look_through() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    with hostile_functions.recorded():
        yield
    gc.unfreeze()


@pytest.mark.parametrize("name", _CASES)
def test_it_is_refused_or_as_on_numpy(name: str) -> None:
    why = hostile_functions.why_wrong(_CASES[name])
    assert why in (None, ""), why


def test_random_functions_whose_code_is_closed_are_as_on_numpy() -> None:
    chosen = random.Random(3)
    refused = 0
    for _ in range(60):
        text = fuzz_closed_code.source(chosen)
        why = hostile_functions.why_wrong(text, chosen=lambda number: chosen.random() < 0.4)
        refused += why == ""
        assert why in (None, ""), f"{why}: {text}"
    assert refused <= 6, "most of them are code that is closed"
