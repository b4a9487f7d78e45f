"""Operations of several stages as the schedule sees them: scans, sorts, scatters and searches."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.program.dtypes import DType
from anygpu.program.functions import ScatterFunction
from anygpu.program.primitives import Scatter
from anygpu.testing.cases import ConformanceProgram, tame
from tests.codegen.planning import CARD, PROCESSOR, TARGETS, check_schedule, names, plan, roles, spec

every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@every_target
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 100_003])
def test_stages_grow_slowly_with_the_length(target: Target, length: int) -> None:
    scan = plan(lambda x: np.cumsum(x), spec(length), target=target)
    assert len(scan.kernels) <= 3
    sort = plan(lambda x: np.sort(x), spec(length), target=target)
    assert len(sort.kernels) <= 2 + max(0, length // 256).bit_length()


@every_target
def test_short_lines_are_one_kernel(target: Target) -> None:
    for function in (lambda x: np.cumsum(x, axis=1), lambda x: np.sort(x, axis=1), lambda x: np.cumsum(x, axis=0)):
        planned = plan(function, spec(1000, 65), target=target)
        assert len(planned.kernels) == 1, names(planned)
        assert roles(planned) == ["input", "output"]


@every_target
def test_what_comes_before_is_read_through(target: Target) -> None:
    planned = plan(lambda x: np.cumsum((x * 2 + 1).T, axis=1), spec(65, 63), target=target)
    assert len(planned.kernels) == 1


@every_target
def test_a_long_sort_ends_in_its_result_and_leaves_its_input(target: Target) -> None:
    for length in (5000, 70_001, 1 << 20):
        planned = plan(lambda x: np.sort(x), spec(length), target=target)
        (output,) = planned.outputs
        assert output.slot in {each.slot for each in planned.kernels[-1].bindings if each.access != "read"}


def _scatter(fn: ScatterFunction, dtype: DType) -> ConformanceProgram:
    sheet = ConformanceProgram("scatter", tame(dtype, 65, 3), np.arange(40) % 65, tame(dtype, 40, 3))
    sheet.expect_of(Scatter(fn, 0), *sheet.given)
    return sheet


@pytest.mark.parametrize("target", [CARD, PROCESSOR], ids=["card", "processor"])
@pytest.mark.parametrize("fn", ["set", "add", "multiply", "maximum", "minimum"])
def test_scatters_are_checked_and_leave_their_input(fn: ScatterFunction, target: Target) -> None:
    sheet = _scatter(fn, "float32")
    planned = schedule(sheet.program, target)
    check_schedule(sheet.program, planned, target)
    assert [check.length for check in planned.checks] == [65]


def test_distinct_positions_need_no_sorting() -> None:
    sheet = _scatter("add", "float32")
    usual = schedule(sheet.program, CARD)
    simple = schedule(sheet.program, CARD, distinct=lambda node: True)
    assert len(simple.kernels) < len(usual.kernels)
    assert not any("sort" in name for name in names(simple))


def test_a_search_is_a_function_of_the_kernel_that_needs_it() -> None:
    for target in (CARD, PROCESSOR):
        planned = plan(lambda x, y: np.searchsorted(x, y) * 2, spec(1000), spec(65), target=target)
        assert len(planned.kernels) == 1
        assert "find_" in planned.kernels[0].source
