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


def traced_under(action: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter(action)
        traced = trace(of_nothing, (X,), {})
    return traced, [str(each.message) for each in caught]


@pytest.mark.parametrize("action", ["always", "ignore"])
def test_a_trace_says_nothing(action: str) -> None:
    traced, heard = traced_under(action)
    assert heard == []
    assert sys.getprofile() is None
    if action == "always":
        assert isinstance(traced, NotTraceable)
        assert traced.reason.startswith("it gives a warning (")


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
