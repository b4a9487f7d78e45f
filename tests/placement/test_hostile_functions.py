"""Functions that try to get an array, its type or a late write past a proof: refused or as on NumPy in all respects."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.placement import fuzz_closed_code, hostile_functions
from tests.placement.fuzz_escaping import recorded

_CASES = hostile_functions.cases()


@pytest.fixture(scope="module", autouse=True)
def _little_to_look_through() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    with recorded():
        yield
    gc.unfreeze()


@pytest.mark.parametrize("look", [hostile_functions.closed, hostile_functions.proved])
@pytest.mark.parametrize("name", _CASES)
def test_it_is_refused_or_as_on_numpy(name: str, look: Callable[..., Any]) -> None:
    why = hostile_functions.why_wrong(_CASES[name], look=look)
    assert why in (None, ""), why


def test_random_functions_whose_code_is_closed_are_as_on_numpy() -> None:
    chosen = random.Random(3)
    wrong = [
        (why, text) for text in (fuzz_closed_code.source(chosen) for _ in range(60)) if (why := _why(text, chosen))
    ]
    assert not wrong


def _why(text: str, chosen: random.Random) -> str | None:
    why = hostile_functions.why_wrong(text, chosen=lambda number: chosen.random() < 0.4)
    return "it is refused" if why == "" else why
