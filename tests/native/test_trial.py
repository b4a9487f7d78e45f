"""Native code in place of NumPy: when it is tried, what decides, and what the receipts say."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls import looking, native_site
from anygpu.engines.cpu.engine import CpuExecutable
from anygpu.errors import DeviceFallback, InvalidOption, MissingExtra, ResultMismatch
from anygpu.native import calls as native_calls
from anygpu.native import speed as native_speed
from anygpu.native import trial
from anygpu.placement.plan.choosing import DeviceChooser
from anygpu.testing.fakes import ManualClock
from tests.support.native_placement import native_at_once, settle, tried_at_once


@pytest.fixture(autouse=True)
def on_native() -> Iterator[None]:
    """Every call counts: the first one is enough to try native code, which is used whatever it takes."""
    # With a `MonkeyPatch` of its own: that of a test has to be undone before this block ends.
    with pytest.MonkeyPatch.context() as patch, tried_at_once():
        patch.setenv("ANYGPU_SOFTWARE_DEVICES", "off")
        yield


def ran_on(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[Any, str]:
    value = function(*arguments, **keywords)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert native_calls.background.settle(60)
    return value, receipt.device


def reason() -> str:
    receipt = ag.last_receipt()
    assert receipt is not None
    return receipt.reason


def wave(x: Any) -> Any:
    return np.sin(x) * 2 + x


X = np.linspace(0, 3, 1000)


def test_the_third_call_is_native() -> None:
    function = ag.offload(wave)
    devices = []
    for _ in range(12):
        value, device = ran_on(function, X)
        devices.append(device)
        np.testing.assert_allclose(value, wave(X), rtol=1e-14)
    assert devices == ["numpy", "numpy", *["cpu"] * 10]
    assert "native code is" in reason()
    assert "× faster: it takes" in reason()
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.kind == "cpu"
    assert receipt.program is not None
    assert f"{receipt}".startswith("wave ran on cpu in ")


def test_receipts_are_collected() -> None:
    function = ag.offload(wave)
    for _ in range(12):
        ran_on(function, X)
    with ag.collect_receipts() as receipts:
        function(X)
        function(X)
    assert [each.device for each in receipts] == ["cpu", "cpu"]


def test_short_calls_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from anygpu.calls import offload

    clock = ManualClock()
    monkeypatch.setattr(offload, "_clock", clock)
    monkeypatch.setattr(native_site, "BEFORE_NATIVE", 0.02)
    monkeypatch.setattr(looking, "LEAST_FOR_NATIVE", 5e-6)
    seconds = 4e-6

    @ag.offload
    def short(x: Any) -> Any:
        clock.advance(seconds)
        return x + 1

    for _ in range(6000):
        short(X)
    (site,) = short._table.native.values()
    assert (site.calls, site.life.tries) == (6000, 0), "4 µs are too little"
    seconds = 6e-5
    for _ in range(2000):
        short(X)
    assert site.life.tries == 1, "they have become long"


def test_native_code_that_is_not_faster_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "WORTH_TRYING", 0.9)
    monkeypatch.setattr(trial, "_timed", lambda code, inputs, numpy: (numpy, *code.checked(inputs)))
    monkeypatch.setattr(native_calls, "_MUCH_SLOWER", math.inf)  # a call on a busy machine may take as long
    function = ag.offload(wave)
    for _ in range(4):
        assert ran_on(function, X)[1] == "numpy"
    assert "native code is not faster: it takes" in reason()
    (site,) = function._table.native.values()
    for _ in range(200):
        ran_on(function, X)
    assert site.life.tries == 3, "it is tried again, at growing intervals, and then no more"


def test_a_run_that_waits_for_pythons_lock_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 0.2 ms beside calls on NumPy of 1 ms, of which all but the last wait: the work counts."""
    clock, work = ManualClock(), ManualClock()
    monkeypatch.setattr(trial, "_clock", clock)
    monkeypatch.setattr(trial, "_work", work)
    waits = [7e-3, 5e-3, 5e-3, 0.0]

    class Native:
        def checked(self, inputs: Any) -> tuple[list[Any], int]:
            clock.advance(2e-4 + waits.pop(0))
            work.advance(2e-4)
            return [], 0

    seconds, _results, _noted = trial._timed(Native(), (), 1e-3)  # type: ignore[arg-type]
    assert seconds == pytest.approx(2e-4)
    assert not waits


def test_numpy_searches_what_is_not_sorted() -> None:
    def search(line: Any, x: Any) -> Any:
        return np.interp(x * 2, line, line + 1)

    function = ag.offload(search)
    line, x = np.linspace(0, 1, 50), np.random.default_rng(0).random(5000)
    for _ in range(12):
        _value, device = ran_on(function, line, x)
    assert device == "cpu"
    mixed = np.random.default_rng(1).permutation(line)
    value, device = ran_on(function, mixed, x)
    assert device == "numpy"
    assert np.array_equal(value, search(mixed, x))
    assert reason().startswith("native code cannot use these values: cpu searches only values that are sorted.")
    assert ran_on(function, line, x)[1] == "cpu"


def test_native_code_whose_values_are_always_refused_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds that out as late as in a whole run, so such a call took nine times as long as on NumPy."""
    function = ag.offload(lambda line, x: np.searchsorted(line, x * 2) + 1)
    line, x = np.linspace(0, 1, 50), np.random.default_rng(0).random(5000)
    turned = line[::-1].copy()
    for _ in range(12):
        _value, device = ran_on(function, line, x)
    assert device == "cpu"
    for _ in range(native_calls._MOST_REFUSED - 1):
        ran_on(function, turned, x)
    assert ran_on(function, line, x)[1] == "cpu", "they were not so many"
    for _ in range(native_calls._MOST_REFUSED):
        assert ran_on(function, turned, x)[1] == "numpy"
    assert reason().startswith("native code cannot use the values of its calls: cpu searches only values")
    monkeypatch.setattr(CpuExecutable, "checked", lambda *_: pytest.fail("native code ran"))
    assert ran_on(function, turned, x)[1] == "numpy"


def test_numpy_refuses_what_has_no_bins() -> None:
    """Also where NumPy was seen to say nothing of other NaN that no result shows."""

    def count(x: Any, y: Any) -> Any:
        return np.histogram(x, 50)[0], np.nansum(np.sqrt(np.abs(y)))

    function = ag.offload(count)
    x, y = np.random.default_rng(0).random((2, 3000))
    with_nan, near = (np.where(np.arange(3000) == 7, each, whole) for each, whole in ((np.nan, x), (1.0, 1.0 + 2e-16)))
    for _ in range(6):
        ran_on(function, x, y)
    for _ in range(6):
        _value, device = ran_on(function, x, np.where(y > 0.9, np.nan, y))
    assert device == "cpu"
    for wrong, said in ((with_nan, "not finite"), (near, "Too many bins")):
        with pytest.raises(ValueError, match=said):
            function(wrong, y)
    assert ran_on(function, x, y)[1] == "cpu"


@pytest.mark.parametrize("turned", [False, True])
def test_edges_are_searched_whichever_way_they_go(turned: bool) -> None:
    def digits(x: Any, edges: Any) -> Any:
        return np.digitize(x * 2, edges)

    function = ag.offload(digits)
    x, edges = np.random.default_rng(0).random(5000), np.linspace(0, 1, 50)
    edges = edges[::-1].copy() if turned else edges
    for _ in range(6):
        value, device = ran_on(function, x, edges)
        assert np.array_equal(value, digits(x, edges))
    assert device == "cpu"
    value, device = ran_on(function, x, edges[::-1].copy())
    assert device == "cpu"
    assert np.array_equal(value, digits(x, edges[::-1]))
    with pytest.raises(ValueError, match="monotonic"):
        function(x, np.where(edges < 0.5, 0.7, edges))


def test_native_code_that_is_much_slower_runs_once_in_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(trial, "_clock", clock)
    monkeypatch.setattr(trial, "_work", clock)
    runs = []

    class Native:
        def checked(self, inputs: Any) -> tuple[list[Any], int]:
            runs.append(clock.advance(0.1))
            return [], 0

    assert trial._timed(Native(), (), 1e-2)[0] == pytest.approx(0.1)  # type: ignore[arg-type]
    assert len(runs) == 1


def test_native_code_that_turns_out_slower_in_real_calls_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_calls, "OVERHEAD", math.inf)
    monkeypatch.setattr(native_calls, "_MUCH_SLOWER", 0.0)  # or it would be tried again, sooner beside others
    monkeypatch.setattr(trial, "OVERHEAD", 0.0)
    function = ag.offload(wave)
    devices = [ran_on(function, X)[1] for _ in range(12)]
    assert devices[2:5] == ["cpu"] * 3
    assert devices[5:] == ["numpy"] * 7
    assert "native code is not faster" in reason()


def test_what_cannot_be_traced_stays_and_says_why() -> None:
    @ag.offload
    def branches(x: Any) -> Any:
        return x + 1 if x[0] > 0 else x - 1

    for _ in range(4):
        assert ran_on(branches, X)[1] == "numpy"
    assert reason().startswith("it cannot be traced: it branches on an array value")


def _wrong(code: CpuExecutable, inputs: Any, numpy: float) -> tuple[float, list[Any], int]:
    return 0.0, [result + 1 for result in code(inputs)], 0


def test_a_wrong_result_is_found_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_timed", _wrong)
    function = ag.offload(wave)
    ran_on(function, X)
    with pytest.warns(ResultMismatch, match="cpu disagrees with NumPy on wave"):
        ran_on(function, X)
    for _ in range(3):
        value, device = ran_on(function, X)
        np.testing.assert_array_equal(value, wave(X))
        assert device == "numpy"
    assert "so it stays on numpy: anygpu verify --report" in reason()
    other = ag.offload(wave)
    for _ in range(3):
        assert ran_on(other, X[:500])[1] == "numpy", "nor with other arguments"


def test_a_wrong_result_that_a_filter_makes_an_error_of_is_raised_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "_timed", _wrong)
    function = ag.offload(wave)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran_on(function, X)
        ran_on(function, X)
        with pytest.raises(ResultMismatch):
            function(X)
        assert ran_on(function, X)[1] == "numpy"


def test_code_that_turns_wrong_is_found_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ag.offload(wave)
    for _ in range(4):
        ran_on(function, X)
    (site,) = function._table.native.values()
    calls = site.code
    assert isinstance(calls, native_calls.NativeCalls)
    right = calls._native

    class Turned:
        call = staticmethod(lambda *arrays: NotImplemented)
        checked = staticmethod(lambda arrays: ([right(arrays)[0] + 1], True))
        __call__ = staticmethod(lambda arrays: [right(arrays)[0] + 1])

    calls._native = Turned()  # type: ignore[assignment]
    calls._left, calls._proved = 0, True
    with pytest.warns(ResultMismatch):
        ran_on(function, X)
    assert ran_on(function, X)[1] == "numpy"


def test_numbers_of_a_new_kind_are_compared_first() -> None:
    function = ag.offload(lambda x, k: x * k + 1)
    for _ in range(3):
        ran_on(function, X, 0.0)
    assert ran_on(function, X, 0.0)[1] == "cpu"
    value, device = ran_on(function, X, 2.5)
    assert device == "numpy"
    assert "numbers of this kind are new" in reason()
    np.testing.assert_array_equal(value, X * 2.5 + 1)
    assert ran_on(function, X, 3.5)[1] == "cpu"


def test_numbers_that_decide_have_programs_of_their_own() -> None:
    @ag.offload
    def power(x: Any, n: int) -> Any:
        for _ in range(n):
            x = x * x
        return x

    for n in (1, 2, 3):
        for _ in range(4):
            value, device = ran_on(power, X, n)
            np.testing.assert_allclose(value, X ** (2**n), rtol=1e-13)
        assert device == "cpu"


SCALE = 2.0


def test_what_it_depends_on_may_change() -> None:
    global SCALE
    function = ag.offload(lambda x: x * SCALE if SCALE > 0 else x)
    for _ in range(4):
        ran_on(function, X)
    try:
        SCALE = -1.0
        for _ in range(6):
            value, _ = ran_on(function, X)
            np.testing.assert_array_equal(value, X)
    finally:
        SCALE = 2.0
    value, _ = ran_on(function, X)
    np.testing.assert_array_equal(value, X * 2)


def test_prepare_compiles_before_it_returns() -> None:
    function = ag.offload(wave)
    np.testing.assert_array_equal(function.prepare(X), wave(X))
    assert ran_on(function, X)[1] == "cpu"


def test_warm_compiles_in_the_first_call() -> None:
    function = ag.offload(warm=True)(wave)
    np.testing.assert_array_equal(function(X), wave(X))
    assert ran_on(function, X)[1] == "cpu"
    assert ran_on(function, X[:10])[1] == "numpy"
    assert ran_on(function, X[:10])[1] == "cpu"


def test_prepare_needs_a_function_that_is_placed_by_itself() -> None:
    with pytest.raises(InvalidOption, match="is not compiled unless"):
        ag.offload(on="numpy")(wave).prepare(X)


def test_without_llvm_calls_stay_and_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise MissingExtra("llvmlite", "cpu")

    monkeypatch.setattr(trial, "executable", missing)
    monkeypatch.setattr(native_speed, "_said", False)
    function = ag.offload(wave)
    ran_on(function, X)
    said = "wave stays on NumPy: llvmlite is not installed. .*pip install llvmlite .which is predicted to make it about"
    with pytest.warns(DeviceFallback, match=said):
        ran_on(function, X)
    assert ran_on(function, X)[1] == "numpy"
    assert reason() == "numpy runs it, because llvmlite is not installed. Install it with: pip install llvmlite"


def test_trials_wait_until_calls_have_paid_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    allowance = native_calls.Allowance()
    monkeypatch.setattr(native_calls.Allowance, "AT_FIRST", 0.02)
    allowance = native_calls.Allowance()
    assert allowance.affords_one()
    allowance.spend(0.03)
    assert not allowance.affords_one()
    allowance.earn(1.0)
    assert allowance.affords_one()


def test_a_gpu_has_to_beat_native_code() -> None:
    chooser = DeviceChooser("numpy")
    chooser.consider({"numpy": 1.0, "gpu": 0.1})
    chooser.measured("numpy", 1.0)
    chooser.beat(0.05)
    chooser.tried("gpu", 0.1)
    for _ in range(4):
        chooser.measured("gpu", 0.1)
    assert chooser.current == "numpy", "which stands for native code"
    chooser.beat(0.5)
    for _ in range(4):
        chooser.measured("gpu", 0.1)
    assert chooser.current == "gpu"


_SCRIPT = """
import sys
import numpy as np
import anygpu as ag
from anygpu.calls import loading
from anygpu.native import calls as native_calls
from anygpu.native import trial
trial.WORTH_TRYING = 1e9
native_calls.OVERHEAD = -1e9

@ag.offload
def wave(x):
    return np.sin(x) * 2 + x

x = np.linspace(0, 3, 100_000)
if loading.native.thread is not None:
    loading.native.thread.join()
devices = []
for _ in range(400):
    value = wave(x)
    devices.append(ag.last_receipt().device)
    if devices[-1] == "cpu":
        break
    native_calls.background.settle(60)
    if loading.native.thread is not None:
        loading.native.thread.join()
np.testing.assert_allclose(value, np.sin(x) * 2 + x, rtol=1e-14)
print(len(devices), devices[-1], ag.last_receipt().reason)
"""


def test_the_next_process_begins_with_native_code(tmp_path: Path) -> None:
    environment = {**os.environ, "ANYGPU_CACHE_DIR": str(tmp_path), "ANYGPU_HISTORY": "on"}
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        assert not done.stderr
        said.append(done.stdout.split(maxsplit=2))
    (calls, device, _), (calls_then, device_then, why) = said
    assert device == device_then == "cpu"
    assert int(calls) > 2
    assert calls_then == "1", why
    assert "× faster" in why


def test_nothing_is_kept_without_a_history(tmp_path: Path) -> None:
    environment = {**os.environ, "ANYGPU_CACHE_DIR": str(tmp_path), "ANYGPU_HISTORY": "off"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        assert int(done.stdout.split()[0]) > 2
    assert not (tmp_path / "history").exists()


def test_run_without_a_decorator_uses_native_code_too() -> None:
    with native_at_once():
        calls = [ag.run(_plain, X) for _ in range(3)]
        settle()
        calls += [ag.run(_plain, X) for _ in range(3)]
    assert calls[0].receipt.device == "numpy"
    assert calls[-1].receipt.device == "cpu"
    for each in calls:
        np.testing.assert_allclose(each.value, _plain(X), rtol=1e-6)


def _plain(x: Any) -> Any:
    return np.tanh(x) * 3 + np.exp(-x * x)
