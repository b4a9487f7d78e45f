"""The table of special values on the engines that compile: 0 differences from plain NumPy."""

from __future__ import annotations

from itertools import islice

import pytest

from anygpu.workers.device_arrays.registry import registry
from tests.support.special_values import cases, tally


@pytest.mark.parametrize(
    ("types", "forms", "one_in", "least"),
    [
        (("float32",), ("arrays",), 3, 30_000),
        pytest.param(("float32",), ("arrays",), 1, 30_000, marks=pytest.mark.full),
        pytest.param(
            ("int8", "int32", "float32"),
            ("arrays", "arrays and constants", "constant arrays", "constants", "only constants", "expressions"),
            1,
            200_000,
            marks=pytest.mark.long,
        ),
    ],
    ids=["sample", "one type", "three types"],
)
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_part_of_the_table_is_plain_numpy(
    engine: str, types: tuple[str, ...], forms: tuple[str, ...], one_in: int, least: int
) -> None:
    """`python -m benchmarks.special_values --engine webgpu` compares all of it."""
    place = registry.find(engine)
    chosen = (case for case in cases("some") if case.checks[0].dtype in types and case.form in forms)
    found = tally(islice(chosen, 0, None, one_in), lambda: place.worker)
    assert found.comparisons > least
    assert not found.differences, "\n".join(map(str, found.differences[:20]))
