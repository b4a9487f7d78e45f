"""The table of special values on the engines that compile: 0 differences from plain NumPy."""

from __future__ import annotations

import pytest

from anygpu.residency.registry import registry
from tests.support.special_values import cases, tally

TYPES = ("int8", "int32", "float32")


@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_part_of_the_table_is_plain_numpy(engine: str) -> None:
    """`python -m benchmarks.special_values --engine webgpu` compares all of it."""
    place = registry.find(engine)
    chosen = (case for case in cases("some") if case.checks[0].dtype in TYPES and case.form != "scalars")
    found = tally(chosen, lambda: place.worker)
    assert found.comparisons > 200_000
    assert not found.differences, "\n".join(map(str, found.differences[:20]))
