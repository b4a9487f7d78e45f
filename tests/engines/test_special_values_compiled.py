"""The table of special values on the engines that compile: 0 differences from plain NumPy."""

from __future__ import annotations

import pytest

from anygpu.residency.registry import registry
from anygpu.testing.special_values import cases, tally


@pytest.mark.parametrize(
    ("types", "forms", "least"),
    [
        (("float32",), ("arrays",), 30_000),
        pytest.param(
            ("int8", "int32", "float32"),
            ("arrays", "arrays and constants", "constant arrays", "constants", "only constants", "expressions"),
            200_000,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one type", "three types"],
)
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_part_of_the_table_is_plain_numpy(
    engine: str, types: tuple[str, ...], forms: tuple[str, ...], least: int
) -> None:
    """`python -m benchmarks.special_values --engine webgpu` compares all of it."""
    place = registry.find(engine)
    chosen = (case for case in cases("some") if case.checks[0].dtype in types and case.form in forms)
    found = tally(chosen, lambda: place.worker)
    assert found.comparisons > least
    assert not found.differences, "\n".join(map(str, found.differences[:20]))
