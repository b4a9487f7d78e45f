"""Functions that try to get an array, its type or a late write past a proof: refused or as on NumPy in all respects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.placement import hostile_functions
from tests.placement.fuzz_escaping import recorded

_CASES = hostile_functions.cases()


@pytest.fixture(scope="module", autouse=True)
def _little_to_look_through() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    with recorded():
        yield
    gc.unfreeze()


@pytest.mark.parametrize("name", _CASES)
def test_it_is_refused_or_as_on_numpy(name: str) -> None:
    why = hostile_functions.why_wrong(_CASES[name])
    assert why in (None, ""), why
