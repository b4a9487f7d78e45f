"""Elements that a mask selects in deferred calls: they wait, and give what NumPy gives, in NumPy's order of writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.placement import deferred
from anygpu.placement.deferred import Deferred

N = 3000

#: The memory of the first argument, which functions reach by another name.
_SEEN: list[Any] = [None]


@pytest.fixture(autouse=True)
def _usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(deferred, "LEAST_PER_OPERATION", 0.0)
    monkeypatch.setattr(deferred, "LEAST_GAIN", 1e9)
    monkeypatch.setattr(deferred, "TRACES_TOO", False)
    monkeypatch.setattr(deferred, "PLAIN_EVERY", 100_000)
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _deferred(function: Callable[..., Any]) -> Deferred[..., Any]:
    made: Any = ag.offload(deferred=True)(function)
    return made  # type: ignore[no-any-return]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        is_same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return is_same and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other) or (one != one and other != other)


_LINES = [
    "a[m] = np.sqrt(np.abs(a[m])) + 1.5", "a[~m] /= 3.0", "a[m] += b[m]", "s = a[m]", "b[m] = a[m] - b[m] * 0.5",
    "a[m] = s * 2 if len(s) == int(m.sum()) else 1.0", "m[5:9] = True", "m = a > b", "n = ~m", "a[n] = b[n]",
    "a[~m] = 7.5 * b[~m]", "t = t + a[m].sum()", "s = a[m]\n    a[m] = 0.0\n    a[m] = s",
    "s = b[m]\n    b += 1\n    t = t + s.max()", "s = a[m]\n    m[3] = ~m[3]\n    t = t + s.sum()", "a[m] = a[m] > 0",
    "k = a[m] * b[m]\n    t = t + k.size", "a[m] **= 2", "a[m] = np.float64(2.5) / (a[m] + 9.0)",
    "c[m, 1] = c[m, 0] * 2", "c[m, 2] /= 4.0", "c[m, 7] = 1.0", "q = a[m][:5]\n    t = t + q.sum()",
    "s = a[m]\n    s[:] = 1.0\n    a[m] = s", "a[m] = np.where(a[m] > 0, a[m], 0)", "i[m] = i[m] // 2", "i[m] += 3",
    "i[m] += 0.5", "a[m] = i[m] * 1.5", "s = a[m]\n    k = s\n    s += 1\n    a[m] = k", "h.append(a[m])",
    "with np.errstate(all='ignore'):\n        a[m] = np.log(a[m])", "a[np.isnan(a)] = 0.25", "a[m] = -a[m]",
    "a[m] = np.maximum(a[m], b[m])", "s = a[m]\n    b[m] = s\n    a[m] -= s", "a[m] = b[n]", "a[m] = a[m] % 1.0",
    "s = x[p]\n    seen()[7:90] = -5.0", "k = x[p] * 2\n    seen()[0:30] += 1", "p = x > 0.3", "x[5:40] = 2.5",
    "s = x[p]\n    x[p] = 0.5", "t = t + x[p].sum()", "s = x[p]\n    x += 0.25\n    t = t + s.max()", "x[p] /= 2.0",
    "s = x[3:]\n    k = s[s > 0.2]\n    seen()[5] = 77.0", "t = t + a[m].mean()", "t = t + np.sum(a[n])",
    "t = t + np.mean(x[p])\n    x[3:9] = 4.0", "s = a[m]\n    a += 1.0\n    t = t + s.mean()", "t = t + i[m].sum()",
    "s = a[m]\n    t = t + s.mean() + s.size", "k = x[p]\n    seen()[3] = 9.0\n    t = t + k.sum()",
]  # fmt: skip


def _written(seed: int) -> tuple[Callable[..., Any], str]:
    """A function that selects elements, computes with them and writes them, in some order."""
    rng = np.random.default_rng(seed)
    body = "\n    ".join(str(rng.choice(_LINES)) for _ in range(int(rng.integers(3, 9))))
    source = (
        "def function(x, b, i, c):\n    a, b, i, c = x.copy(), b + 0.0, i.copy(), c.copy()\n    t, h = 0.0, []\n"
        f"    m, p = a > 0.1, x > 0.1\n    n = ~m\n    s = k = a[m]\n    {body}\n    return a, b, i, c, m, t, s, k, h"
    )
    space: dict[str, Any] = {"np": np, "seen": lambda: _SEEN[0]}
    exec(source, space)
    return space["function"], source


@pytest.mark.parametrize("block", range(5))
def test_what_is_done_with_selected_elements_is_done_in_numpys_order(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        function, source = _written(seed)
        ours = _deferred(function)
        for call in range(4):
            found = []
            for each in (function, ours):
                rng = np.random.default_rng(10 * seed + call)
                x, b = rng.standard_normal(N), rng.standard_normal(N)
                i, c = rng.integers(-50, 50, N), rng.standard_normal((N, 3))
                _SEEN[0] = x
                try:
                    value: Any = each(x, b, i, c)
                except (TypeError, ValueError, IndexError) as error:
                    value = (type(error).__name__, str(error))
                found.append((value, x))
            assert _same(*found), source
    _SEEN[0] = None


def test_masked_assignments_end_no_segment() -> None:
    def linear(x: Any) -> Any:
        a = x * 1.0
        mask = a > 0.04
        a[mask] = ((a[mask] + 0.055) / 1.055) ** 2.4
        a[~mask] /= 12.92
        a[~mask] = 2.0 * a[~mask]
        return a

    ours = _deferred(linear)
    x = np.random.default_rng(0).random(N)
    for _ in range(5):
        assert np.array_equal(ours(x), linear(x))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred: 1 segment,")


def test_the_mean_of_selected_elements_waits() -> None:
    def separated(x: Any, at: Any) -> Any:
        above = x > at
        high, low = x[above].mean(), np.mean(x[~above])
        return (high + low) / 2

    ours = _deferred(separated)
    x = np.random.default_rng(0).random(N)
    for _ in range(5):
        assert ours(x, 0.4) == separated(x, 0.4)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred: 1 segment,")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.isnan(ours(x, 2.0))
    assert [str(each.message).rstrip(".") for each in caught] == [
        "Mean of empty slice",
        "invalid value encountered in scalar divide",
    ]


def test_modes_that_change_end_no_segment_and_hold_for_their_own_lines() -> None:
    def logarithms(x: Any) -> Any:
        with np.errstate(all="ignore"):
            y = np.log(x)
        z = np.log(x)
        with np.errstate(divide="ignore"):
            w = np.log(x) * 2
        return y + z + w

    ours = _deferred(logarithms)
    x = np.random.default_rng(1).random(N)
    x[7] = 0.0

    def heard(function: Callable[..., Any]) -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(x)
        return [(str(each.message), each.filename, each.lineno) for each in caught]

    expected = heard(logarithms)
    assert [text for text, _, _ in expected] == ["divide by zero encountered in log"]
    for _ in range(4):
        assert np.array_equal(ours(x), logarithms(x), equal_nan=True)
        assert heard(ours) == expected
    ours(x)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred: 1 segment,")


def test_a_call_that_was_recorded_before_is_recorded_with_its_own_line() -> None:
    def both(x: Any, is_first: bool) -> Any:
        y = x - x
        if is_first:
            return 1.0 / y
        return 1.0 / y

    ours = _deferred(both)
    x = np.random.default_rng(2).random(N)
    lines = []
    for is_first in (True, False, True, False, True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ours(x, is_first)
        lines.append([each.lineno for each in caught])
    assert all(len(each) == 1 for each in lines)
    assert lines[0] == lines[2] == lines[4] != lines[1] == lines[3] == lines[5]


def test_results_are_written_over_operands_that_nobody_needs_and_no_others() -> None:
    def chain(x: Any) -> Any:
        kept = x * 2.0
        view = kept[1:]
        a = kept + 1.0
        b = a * a
        c = b - 3.0
        d = a / c
        e = view + d[1:]
        return kept, d, e, (d + 1.0) ** 2

    ours = _deferred(chain)
    x = np.random.default_rng(3).random(100_000)
    for _ in range(4):
        assert _same(ours(x), chain(x))
