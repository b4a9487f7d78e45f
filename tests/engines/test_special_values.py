"""Zeros, infinities, NaN, limits, ties and overflow: each engine against plain NumPy, bit by bit where promised."""

from __future__ import annotations

from anygpu.runtime.places import places
from anygpu.testing.special_values import Tally, cases, tally


def tallied(engine: str) -> Tally:
    place = places.find(engine)
    return tally(cases("some"), lambda: place.worker)


def test_programs_interpreted_with_numpy_are_plain_numpy() -> None:
    found = tallied("numpy")
    assert found.comparisons > 200_000
    assert not found.differences, "\n".join(map(str, found.differences[:20]))
