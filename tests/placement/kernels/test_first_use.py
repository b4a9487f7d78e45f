"""What a kernel is tried with, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.errors import InvalidOption, WrongKernel
from anygpu.placement.kernels.arguments import Given
from anygpu.placement.kernels.first_use import arguments_for, compare, has_values
from anygpu.program.ops.custom import Parameter
from anygpu.program.primitives import Spec

SPECS = (Spec((100,), "float32"), Spec((100,), "int32"))
FLOATS, WHOLE = np.linspace(5, 7, 100, dtype=np.float32), np.arange(40, 140, dtype=np.int32)
WRITTEN = (Parameter("y", "float32", "output"), Parameter("z", "int32", "output"))


def test_the_callers_own_arguments_are_copied() -> None:
    for given in (Given([FLOATS, WHOLE], {}), Given([ag.asarray(FLOATS), WHOLE], {})):
        found = arguments_for(given, SPECS, 1 << 20)
        np.testing.assert_array_equal(found[0], FLOATS)
        np.testing.assert_array_equal(found[1], WHOLE)
        assert not any(np.shares_memory(each, FLOATS) or np.shares_memory(each, WHOLE) for each in found)


def test_large_arguments_of_a_device_are_random_in_the_same_range() -> None:
    given = Given([ag.asarray(FLOATS), ag.asarray(WHOLE)], {})
    floats, whole = arguments_for(given, SPECS, 799)
    assert 5 <= floats.min() < floats.max() <= 7
    assert 40 <= whole.min() < whole.max() <= 139
    assert not np.array_equal(floats, FLOATS)


def test_arguments_that_are_recorded_are_random() -> None:
    seen: list[Any] = []

    def function(x: Any, y: Any) -> Any:
        given = Given([x, y], {})
        assert not has_values(given)
        seen.extend(arguments_for(given, SPECS, 1 << 20))
        return x + 1

    ag.record(function, *SPECS)
    assert [each.shape for each in seen] == [(100,), (100,)]
    assert [each.dtype.name for each in seen] == ["float32", "int32"]


def test_the_verdict_names_the_result_and_the_place() -> None:
    found = [FLOATS.copy(), WHOLE.copy()]
    compare("k", WRITTEN, found, [FLOATS, WHOLE], None)
    found[1][7] = 0
    with pytest.raises(
        WrongKernel, match=r"kernel k disagrees with its reference: z\[7\] is 0, and the reference has 47"
    ):
        compare("k", WRITTEN, found, [FLOATS, WHOLE], None)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ([FLOATS], "returns 1 arrays, and the kernel writes 2: y, z"),
        ([FLOATS.astype(np.float64), WHOLE], r"gives y in float64.*astype\(np.float32\)"),
        ([FLOATS[:50], WHOLE], r"in the shape \(50,\), and the kernel in \(100,\)"),
    ],
)
def test_a_reference_of_another_form_is_refused(expected: list[Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        compare("k", WRITTEN, [FLOATS, WHOLE], expected, None)
