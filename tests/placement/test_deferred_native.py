"""Segments of deferred calls as native code: compared before they are used, and kept for the next process."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.deferred import recorder
from anygpu.placement import native_calls
from anygpu.placement.deferred import Deferred
from tests.support.deferred_placement import always_deferred
from tests.support.native_placement import tried_at_once

N = 20_000


@pytest.fixture(autouse=True)
def on_native() -> Iterator[None]:
    """Native code is tried at once, and used whatever it takes; no filter makes errors of warnings, as pytest's do."""
    with tried_at_once(), always_deferred(small=recorder.SMALL), warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def _settled(function: Deferred[..., Any], *arguments: Any) -> Any:
    """What the function returns once its segments are native code."""
    for _ in range(40):
        value = function(*arguments)
        native_calls.background.settle(60)
        receipt = ag.last_receipt()
        assert receipt is not None
        if receipt.device == "cpu":
            return value
    raise AssertionError(
        f"no segment became native code: {[each.site and each.site.note for each in function._segments]}"
    )


def test_an_iteration_is_one_segment_again_and_again() -> None:
    def heron(x: Any, tol: Any) -> Any:
        y = x + 1
        rounds = 0
        while True:
            new = (y + x / y) * 0.5
            error = np.abs(new - y).max()
            y, rounds = new, rounds + 1
            if error < tol:
                return y, rounds

    ours: Any = ag.offload(deferred=True)(heron)
    x = np.random.default_rng(0).random(N) + 1
    _settled(ours, x, 1e-8)
    for seed in range(10):
        x = np.random.default_rng(seed).random(N) + 1 + seed
        (y, rounds), (expected, wanted) = ours(x, 1e-8), heron(x, 1e-8)
        assert rounds == wanted
        assert np.allclose(y, expected, rtol=1e-14)
    # The first round and the others; those of the first calls, which learn what NumPy gives, come once.
    assert sum(each.count > 1 for each in ours._segments) <= 3


def test_views_and_writes_are_as_numpys() -> None:
    def smooth(x: Any, weight: float) -> Any:
        y = x.copy()
        inner = y[1:-1]
        inner += weight * (x[2:] - x[1:-1])
        y[y > 2] = 2
        return y, inner, inner.sum()

    ours: Any = ag.offload(deferred=True)(smooth)
    x = np.random.default_rng(1).standard_normal(N)
    _settled(ours, x, 0.25)
    for weight in (0.25, 0.5, -1.5, 0.0):
        y, inner, total = ours(x, weight)
        expected = smooth(x, weight)
        assert inner.base is y
        assert np.shares_memory(y, inner)
        assert type(total) is np.float64
        assert np.array_equal(y, expected[0])
        assert np.array_equal(inner, expected[1])
        assert np.isclose(total, expected[2])
        assert y.flags.writeable
        assert y.strides == expected[0].strides


def test_native_code_meets_nothing_in_elements_that_no_mask_selects() -> None:
    def partly(x: Any) -> Any:
        y = x * 2
        mask = x > 0.5
        y[mask] = np.log(x[mask]) / (x[mask] - 0.25)
        y[~mask] /= 3.0
        return y

    ours: Any = ag.offload(deferred=True)(partly)
    x = np.random.default_rng(5).random(N)
    x[:50] = 0.0
    x[50:60] = 0.25
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _settled(ours, x)
        for seed in range(3):
            x = np.random.default_rng(seed).permutation(x)
            assert np.allclose(ours(x), partly(x), rtol=1e-12)
            receipt = ag.last_receipt()
            assert receipt is not None
            assert receipt.device == "cpu"
    assert not heard


def test_numpy_warns_where_native_code_would_not() -> None:
    def logarithm(x: Any) -> Any:
        return np.log(x) * 2 + 1

    ours: Any = ag.offload(deferred=True)(logarithm)
    x = np.random.default_rng(2).random(N) + 1
    _settled(ours, x)
    x[5] = 0
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = ours(x)
    assert [str(each.message) for each in heard] == ["divide by zero encountered in log"]
    assert heard[0].filename == __file__
    assert np.isneginf(result[5])


def test_the_same_segment_on_another_line_warns_there_too() -> None:
    def both(x: Any, is_first: bool) -> Any:
        if is_first:
            return np.log(x) * 2 + 1
        return np.log(x) * 2 + 1

    ours: Any = ag.offload(deferred=True)(both)
    x = np.random.default_rng(2).random(N)
    x[5] = 0
    lines = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for is_first in (True, True, True, True, False, False, False):
            ours(x, is_first)
            native_calls.background.settle(60)
            lines.append(len(heard))
    assert lines == [1, 1, 1, 1, 2, 2, 2], "once for each of the two lines, as NumPy does"


def test_results_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from anygpu.engines.cpu.engine import CpuExecutable

    right = CpuExecutable.checked

    def wrong(self: CpuExecutable, arrays: Any) -> Any:
        results, noted = right(self, arrays)
        return [each + 1 for each in results], noted

    monkeypatch.setattr(CpuExecutable, "checked", wrong)

    @ag.offload(deferred=True)
    def shifted(x: Any) -> Any:
        return np.sqrt(x) * 3

    x = np.random.default_rng(3).random(N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            assert np.array_equal(shifted(x), np.sqrt(x) * 3)
            native_calls.background.settle(60)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device == "numpy"


_SCRIPT = """
import warnings
import numpy as np
import anygpu as ag
from anygpu.placement import deferred, loading, native_calls

deferred.LEAST_PER_OPERATION, deferred.LEAST_GAIN, deferred.TRACES_TOO = 0.0, 1e9, False

@ag.offload(deferred=True)
def norm(x):
    y = np.sin(x) ** 2 + np.cos(x * 2) * np.exp(-x * x) + np.sqrt(np.abs(x)) * np.tanh(x)
    total = y.sum()
    if total > 0:
        return y / total
    return -y

x = np.linspace(-2, 2, 400_000)
expected = norm.function(x)
native = []
for number in range({calls}):
    assert np.allclose(norm(x), expected)
    native.append(ag.last_receipt().device == "cpu")
    if {waits}:
        native_calls.background.settle(60)
        if loading.segments.thread is not None:
            loading.segments.thread.join()
from anygpu.placement import native as trials
print(any(native), len(trials.history))
"""


def test_the_next_process_starts_with_native_code(tmp_path: Path) -> None:
    environment = {**os.environ, "ANYGPU_CACHE_DIR": str(tmp_path), "ANYGPU_NATIVE": "on"}
    environment.pop("ANYGPU_HISTORY", None)

    def run(calls: int, *, waits: bool) -> list[str]:
        script = _SCRIPT.format(calls=calls, waits=waits)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    is_native, trials = run(60, waits=True)
    assert is_native == "True"
    assert int(trials) > 0
    assert run(60, waits=False) == ["True", "0"], "nothing is compiled or compared before it is used"


def test_the_mean_of_selected_elements_needs_only_their_mask() -> None:
    def separated(x: Any, at: Any) -> Any:
        above = x > at
        return x[above].mean() - x[~above].sum()

    ours: Any = ag.offload(deferred=True)(separated)
    x = np.random.default_rng(0).random(N)
    _settled(ours, x, 0.4)
    assert np.allclose(ours(x, 0.6), separated(x, 0.6), rtol=1e-13)
    assert not any("argmax" in str(each.site.function.__doc__) for each in ours._segments if each.site is not None)
    with pytest.warns(RuntimeWarning, match="Mean of empty slice"):
        assert np.isnan(ours(x, 2.0))


def _texts(ours: Any) -> str:
    return "\n".join(str(each.site.function.__doc__) for each in ours._segments if each.site and each.site.function)


def test_ones_are_computed_with_where_a_mask_selects_nothing() -> None:
    def curve(x: Any) -> Any:
        low = x < 0.6
        x = x * 2
        x[~low] = np.log(x[~low]) ** 2.4 / x[~low]
        part = x[low]
        part *= 12.92
        x[low] = part - 1
        return x

    ours: Any = ag.offload(deferred=True)(curve)
    x = np.random.default_rng(0).random(N) + 0.55
    x[:9] -= 0.5
    _settled(ours, x)
    assert np.allclose(ours(x), curve(x), rtol=1e-13)
    assert ag.last_receipt().device == "cpu"  # type: ignore[union-attr]
    assert "argmax" not in _texts(ours)


def test_a_selected_element_is_computed_with_where_numpy_would_warn_of_ones() -> None:
    def pole(x: Any) -> Any:
        y = x + 1
        above = y > 1.9
        y[above] = 1 / np.log(y[above])
        return y

    ours: Any = ag.offload(deferred=True)(pole)
    x = np.random.default_rng(0).random(N) + 0.6
    _settled(ours, x)
    assert np.allclose(ours(x), pole(x), rtol=1e-13)
    assert ag.last_receipt().device == "cpu"  # type: ignore[union-attr]
    assert "argmax" in _texts(ours)


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "bool"])
def test_ones_have_the_type_of_what_is_selected(dtype: Any) -> None:
    def doubled(x: Any, mask: Any) -> Any:
        y = x.copy()
        y[mask] = y[mask] ** 2 if dtype != "bool" else y[mask] | True
        return y

    ours: Any = ag.offload(deferred=True)(doubled)
    rng = np.random.default_rng(0)
    x, mask = (rng.random(N) * 9).astype(dtype), rng.random(N) < 0.4
    _settled(ours, x, mask)
    got = ours(x, mask)
    assert got.dtype == x.dtype
    assert np.allclose(got, doubled(x, mask))


def test_new_memory_is_zeros_until_it_is_written() -> None:
    def in_parts(x: Any) -> Any:
        out = np.empty_like(x)
        out[:9] = x[:9] * 2
        if out[0] > 0:
            out[9:] = x[9:] + 1
        return out

    ours: Any = ag.offload(deferred=True)(in_parts)
    x = np.random.default_rng(0).random(N) + 1
    _settled(ours, x)
    assert np.array_equal(ours(x), in_parts(x))
    assert not native_calls.pinned


def test_a_warning_that_no_mode_is_about_comes_from_numpy() -> None:
    def real(x: Any) -> Any:
        return (x * 1j).astype(float) + 1

    ours: Any = ag.offload(deferred=True)(real)
    x = np.random.default_rng(0).random(N)
    for _ in range(6):
        with pytest.warns(np.exceptions.ComplexWarning):
            ours(x)
        native_calls.background.settle(60)
