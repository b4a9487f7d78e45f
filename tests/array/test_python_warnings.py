"""A warning that Python code gives is given once, by the call itself."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.traced import NotTraceable
from anygpu.array.trace.tracing import trace

X = np.arange(4.0)


def of_nothing(x: Any) -> Any:
    return x + np.mean(np.zeros(0))


def of_complex_constants(x: Any) -> Any:
    return x + (np.ones(4) * 1j).astype(np.float64)


def traced_under(action: Any, function: Any = of_nothing) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter(action)
        traced = trace(function, (X,), {})
    return traced, [str(each.message) for each in caught]


@pytest.mark.parametrize("function", [of_nothing, of_complex_constants])
@pytest.mark.parametrize("action", ["always", "ignore"])
def test_a_trace_shows_no_warning(action: str, function: Any) -> None:
    traced, heard = traced_under(action, function)
    assert heard == []
    assert sys.getprofile() is None
    if action == "always":
        assert isinstance(traced, NotTraceable)
        assert "warn" in traced.reason  # from Python 3.13 on, C imports `warnings` first, which ends the trace too


def test_a_warning_that_filters_show_once_is_shown_by_the_trace() -> None:
    traced, heard = traced_under("default")
    assert not isinstance(traced, NotTraceable)
    assert heard == ["Mean of empty slice"]


def test_the_hook_of_a_profiler_stays() -> None:
    seen = []

    def profile(frame: Any, event: str, called: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        traced_under("always")
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "of_nothing" in seen
