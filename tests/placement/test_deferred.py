"""Deferred calls: the function itself runs, and what it returns, writes, raises and warns of is NumPy's."""

from __future__ import annotations

import functools
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.deferred import recorder
from anygpu.array.deferred.conversions import is_installed, unconverted
from anygpu.array.deferred.recorder import Recorder
from anygpu.array.deferred.standing_in import StandIn
from anygpu.errors import InvalidOption
from anygpu.placement import deferred
from anygpu.placement.deferred import Deferred
from anygpu.placement.own_code import Reach, why_not_deferred
from tests.support.deferred_placement import always_deferred

N = 3000


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    """Functions stay deferred, however small; and no filter makes errors of warnings, as pytest's do."""
    with always_deferred(small=recorder.SMALL), warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def _deferred(function: Callable[..., Any]) -> Deferred[..., Any]:
    made: Any = ag.offload(deferred=True)(function)
    return made  # type: ignore[no-any-return]


def _arrays(seed: int, count: int = 2) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(N) for _ in range(count)]


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray):
        facts = (one.dtype, one.shape, one.strides, one.flags.num) == (
            other.dtype, other.shape, other.strides, other.flags.num
        )  # fmt: skip
        return facts and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return bool(one == other) or (one != one and other != other)


# -- iterations


def _newton(x: Any, tol: Any) -> Any:
    y = np.abs(x) + 1
    for number in range(50):
        new = 0.5 * (y + (np.abs(x) + 1) / y)
        if np.abs(new - y).max() < tol:
            return new, number
        y = new
    return y, -1


def _power_iteration(x: Any, tol: Any) -> Any:
    m = x[:2500].reshape(50, 50)
    m = m @ m.T
    v = np.ones_like(m[0])
    value = 0.0
    while True:
        w = m @ v
        new = np.sqrt((w * w).sum())
        v = w / new
        if abs(new - value) <= tol * abs(new):
            return v, new
        value = new


def _gradient_descent(x: Any, tol: Any) -> Any:
    y = np.zeros_like(x)
    steps = 0
    while steps < 200:
        gradient = 2 * (y - x) + 0.01 * y**3
        y -= 0.2 * gradient
        steps += 1
        if np.sqrt((gradient * gradient).mean()) < tol:
            break
    return y, steps


def _diffusion(x: Any, tol: Any) -> Any:
    u = x.copy()
    for _ in range(30):
        before = u.copy()
        u[1:-1] += 0.25 * (before[2:] - 2 * before[1:-1] + before[:-2])
        if np.abs(u - before).max() < tol:
            return u
    return u


def _clipping(x: Any, tol: Any) -> Any:
    kept = x
    while True:
        mean, spread = kept.mean(), kept.std()
        inside = np.abs(kept - mean) <= 2.5 * spread
        if inside.all():
            return kept, mean, spread
        kept = kept[inside]


def _bisection(x: Any, tol: Any) -> Any:
    low, high = np.full_like(x, -10.0), np.full_like(x, 10.0)
    while (high - low).max() > tol:
        middle = (low + high) / 2
        above = middle**3 + middle > x
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return (low + high) / 2


def _early(x: Any, tol: Any) -> Any:
    total = x.sum()
    if total > 20:
        return x * 2
    if total < -20:
        return "low", -x
    return np.sort(x)[:10]


def _jacobi(x: Any, tol: Any) -> Any:
    b = x[:100]
    a = np.eye(100) * 4 + np.diag(np.full(99, -1.0), 1)
    y = np.zeros_like(b)
    for number in range(100):
        r = b - a @ y
        if np.linalg.norm(r) < tol:
            return y, number
        y = y + r / 4
    return y, 100


def _k_means(x: Any, tol: Any) -> Any:
    centres = np.array([x.min(), x.mean(), x.max()])
    for _ in range(20):
        distances = np.abs(x[:, None] - centres[None, :])
        labels = distances.argmin(axis=1)
        new = np.array([x[labels == each].mean() if (labels == each).any() else centres[each] for each in range(3)])
        if np.abs(new - centres).max() < tol:
            break
        centres = new
    return labels, centres


def _adaptive(x: Any, tol: Any) -> Any:
    step, t, y = 0.1, 0.0, x.copy()
    while t < 0.5:
        whole = y - step * y
        half = y - step / 2 * y
        half = half - step / 2 * half
        error = float(np.abs(whole - half).max())
        if error > tol * 1e6:
            step *= 0.5
            continue
        y, t = half, t + step
        if error < tol * 1e5:
            step = min(step * 1.5, 0.2)
    return y, t


def _smooth(x: Any, tol: Any) -> Any:
    y = x
    rounds = 0
    while y.std() > 0.3 and rounds < 40:
        y = (np.roll(y, 1) + y + np.roll(y, -1)) / 3
        rounds += 1
    return y, rounds


ITERATIONS = [
    _newton, _power_iteration, _gradient_descent, _diffusion, _clipping, _bisection, _early, _jacobi, _k_means,
    _adaptive, _smooth,
]  # fmt: skip


@pytest.mark.parametrize("function", ITERATIONS, ids=lambda each: each.__name__)
def test_iterations_give_what_numpy_gives(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    ours = _deferred(function)
    for seed in range(20):
        (x,) = _arrays(seed, 1)
        tol = 10.0 ** -(seed % 7 + 2)
        kept = x.copy()
        assert _same(ours(x, tol), function(x.copy(), tol))
        assert np.array_equal(x, kept)
    assert ours.why_plain is None
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.parts
    assert not receipt.reason.startswith("deferred: 0")


# -- memory that others can write

_BUFFERS: list[Any] = [None]


def _written(seed: int) -> Callable[..., Any]:
    """A function that writes to an operand of an operation that waits, through another name."""
    rng = np.random.default_rng(seed)
    first = ["y = x + 1", "y = np.sin(x)", "y = x[5:] * 2", "y = np.where(x > 0, x, 0)", "y = x.copy() + x.sum()"]
    write = [
        "other()[3] = 7.0", "other()[:] = 0.5", "o = other()\n    o += 1", "np.multiply(other(), 3, out=other())",
        "other().sort()", "np.copyto(other(), 2.0)", "o = other()[10:50]\n    o[...] = -1", "x[2:9] = 4.0",
        "x += 0.5", "v = x[::2]\n    v *= 3", "other()[other() > 0] = 0", "np.asarray(x)[4] = 9.0",
        "np.add(x, 1, out=x)", "memoryview(other())[0] = 3.5", "x.fill(2.0)", "other().put([1, 2], 5.0)",
    ]  # fmt: skip
    last = ["z = y * 2 + x[:1]", "z = x - 1", "z = y.sum() + x", "z = np.abs(x) + y[:1]"]
    lines = ["def function(x):", f"    {rng.choice(first)}"]
    for _ in range(int(rng.integers(1, 4))):
        lines += [f"    {rng.choice(write)}", f"    q = {rng.choice(['x * x', 'np.cos(x)', 'x[::-1] + 1'])}"]
    lines += [f"    {rng.choice(last)}", "    return y, z, q"]
    space: dict[str, Any] = {"np": np, "other": lambda: _BUFFERS[0]}
    exec("\n".join(lines), space)
    made: Callable[..., Any] = space["function"]
    return made


@pytest.mark.parametrize("block", range(4))
def test_writes_through_another_name_are_seen_in_their_order(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")
    for seed in range(50 * block, 50 * block + 50):
        function = _written(seed)
        ours = _deferred(function)
        for call in range(4):
            results = []
            for each in (function, ours):
                x = _arrays(seed + 1000 * call, 1)[0]
                _BUFFERS[0] = x
                results.append((*each(x), x))
            assert _same(*results), seed
    _BUFFERS[0] = None


def test_a_view_that_was_handed_out_can_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")

    def writes(x: Any) -> Any:
        y = x * 2
        if y.max() < 0:
            return y
        view = y[10:]
        held = view.__array__()
        z = y + 1
        held[0] = 50.0
        view += 1
        held[1] = 60.0
        w = y * 3
        part = y[::2]
        q = part - 1
        part[:5] = 7.0
        return y, view, z, w, q, part

    ours = _deferred(writes)
    for seed in range(4):
        (x,) = _arrays(seed, 1)
        assert _same(ours(x), writes(x))


def test_views_that_numpy_gives_see_what_is_written_to_what_they_are_views_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "off")

    def writes(x: Any) -> Any:
        y = x * 2
        if y.max() < 0:
            return y
        z = y + 1
        diagonal, repeated = y.diagonal(), np.broadcast_to(y, (2, 60, 50))
        y += 1
        return z, diagonal.copy(), y, repeated.sum()

    ours = _deferred(writes)
    x = _arrays(11, 1)[0].reshape(60, 50)
    for _ in range(5):
        assert _same(ours(x), writes(x))


# -- arrays that outlive the call


class _Holder:
    def __init__(self) -> None:
        self.kept: Any = None
        self.all: list[Any] = []


def test_arrays_that_escape_become_numpys_and_the_function_goes_back() -> None:
    holder: Any = _Holder()
    outside: dict[str, Any] = {}

    @_deferred
    def keeps(x: Any) -> Any:
        holder.kept = x * 2
        holder.all.append(holder.kept + 1)
        outside["x"] = x[1:]
        return holder.kept.sum()

    (x,) = _arrays(1, 1)
    keeps(x)
    value = keeps(x)
    assert type(value) is np.float64
    assert type(holder.kept) is np.ndarray
    assert np.array_equal(holder.kept, x * 2)
    assert type(holder.all[-1]) is np.ndarray
    assert np.array_equal(holder.all[-1], x * 2 + 1)
    assert type(outside["x"]) is np.ndarray
    assert np.shares_memory(outside["x"], x)
    assert keeps.why_plain is not None
    assert "beyond the call" in keeps.why_plain
    assert "beyond the call" in str(ag.last_receipt())
    keeps(x)
    assert type(holder.kept) is np.ndarray, "that of a plain call"


def test_an_array_that_cannot_be_replaced_still_has_its_values() -> None:
    @_deferred
    def makes(x: Any) -> Any:
        y = x * 2
        return lambda: y + 1

    (x,) = _arrays(2, 1)
    makes(x)
    later = makes(x)
    assert np.array_equal(np.asarray(later()), x * 2 + 1)
    assert makes.why_plain is not None


class _Pair(NamedTuple):
    one: Any
    other: Any


@dataclass
class _Record:
    value: Any
    name: str


def test_containers_that_are_returned_hold_numpys_arrays() -> None:
    @_deferred
    def nested(x: Any) -> Any:
        y = x * 2
        return _Pair(y, [y.sum(), {"mean": y.mean(), "view": y[1:]}]), _Record(y + 1, "a"), (x, x.shape), None

    (x,) = _arrays(3, 1)
    for _ in range(3):
        pair, record, same, nothing = nested(x)
        assert type(pair) is _Pair
        assert type(pair.one) is np.ndarray
        assert type(pair.other[0]) is np.float64
        assert pair.other[1]["view"].base is pair.one
        assert type(record) is _Record
        assert type(record.value) is np.ndarray
        assert same[0] is x
        assert same[1] == (N,)
        assert nothing is None
    assert nested.why_plain is None


# -- an array that stands for NumPy's


def test_it_is_what_numpys_array_is() -> None:
    seen: list[Any] = []

    @_deferred
    def asks(x: Any) -> Any:
        y = x.reshape(50, 60).T * 2
        seen.append(
            (
                isinstance(y, np.ndarray), isinstance(y.sum(), np.floating), isinstance(y.sum(), float), y.strides,
                y.flags.c_contiguous, y.flags.f_contiguous, y.ndim, y.size, y.nbytes, len(y), y.dtype, np.shape(y),
                np.ndim(y), np.result_type(y, np.float32), np.iscomplexobj(y), np.may_share_memory(x, x[1:]),
                np.may_share_memory(x, y), x[1:].base is not None, y.base, list(y.flat[:2]), y.tolist()[0][:2],
                y.item(3), y.tobytes()[:8], memoryview(np.asarray(y)).shape,  # type: ignore[arg-type]
                y.ctypes.data != 0,
                y.__array_interface__["shape"], np.from_dlpack(y).shape, callable(y.sort), hasattr(y, "nothing"),
                f"{y.sum():.3f}", str(y[0, :2]), repr(y[0, 0]), int(y[0, 0] > 0), y[0, 0] in y, round(y[0, 0], 2),
                np.isscalar(y.sum()), hash(y[0, 0]) == hash(float(y[0, 0])), [float(row.sum()) for row in y][:2],
                float(divmod(y, 2)[0].sum()), float((2 ** y[:1, :1]).sum()), (y > 0).sum().dtype,
                y.T.shape, y.mT.shape,
            )
        )  # fmt: skip
        return y

    (x,) = _arrays(4, 1)
    for _ in range(3):
        asks(x)
    assert asks.why_plain is None
    first, *others = [[each if not isinstance(each, np.ndarray) else None for each in every] for every in seen]
    assert all(each == first for each in others)


def test_code_that_asks_for_a_type_stays_on_numpy() -> None:
    @_deferred
    def asks(x: Any) -> Any:
        return type(x) is np.ndarray

    assert asks(_arrays(5, 1)[0]) is True
    assert asks(_arrays(5, 1)[0]) is True
    assert asks.why_plain is not None
    assert "asks for the type" in asks.why_plain


def test_an_offloaded_function_inside_of_a_deferred_call_runs_as_it_is() -> None:
    @ag.offload
    def inner(x: Any) -> Any:
        return x * 2

    @_deferred
    def inner_too(x: Any) -> Any:
        return x + 1

    @_deferred
    def outer(x: Any) -> Any:
        return inner(x).sum() + inner_too(x * 3).max()

    (x,) = _arrays(6, 1)
    assert {outer(x) for _ in range(4)} == {(x * 2).sum() + (x * 3 + 1).max()}


# -- errors and warnings


def test_errors_are_numpys_with_what_was_printed_before(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(x: Any, how: int) -> Any:
        y = x * 2
        if how == 0:
            return y + x[1:]
        if how == 1:
            return y.reshape(7, 11)
        if how == 2:
            return y[10_000_000]
        if how == 3:
            y[:5] = x
        if how == 4:
            raise ValueError(f"the sum is {y.sum():.6f}")
        if how == 5:
            return y.astype(int) ** (x.astype(int) - 10)
        return np.linalg.inv(y.reshape(50, 60))

    ours = _deferred(fails)
    (x,) = _arrays(7, 1)
    for how in range(7):
        found = []
        for each in (fails, ours, ours, ours):
            with pytest.raises((ValueError, IndexError, np.linalg.LinAlgError)) as caught:
                each(x, how)
            found.append((type(caught.value), str(caught.value), capsys.readouterr().out))
        assert all(each == found[0] for each in found)


def test_warnings_have_numpys_words_and_the_users_line() -> None:
    def warns(x: Any) -> Any:
        y = np.log(x - x)
        z = 1 / (x - x)
        with np.errstate(all="ignore"):
            q = np.sqrt(-np.abs(x)) * 2
        return y, z, q

    ours = _deferred(warns)
    (x,) = _arrays(8, 1)

    def heard(function: Callable[..., Any]) -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(x)
        return [(str(each.message), each.category, each.filename, each.lineno) for each in caught]

    expected = heard(warns)
    assert len(expected) == 2
    for _ in range(4):
        assert heard(ours) == expected


def _warns_of_its_own(x: Any) -> Any:
    y = np.log(x - x)
    warnings.warn("something else", stacklevel=1)
    return y + 1


def _catches(x: Any) -> Any:
    y = np.log(x - x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        z = 1 / (x - x)
    return y, z, [str(each.message) for each in caught]


def _hides_what_follows(x: Any) -> Any:
    with warnings.catch_warnings():
        y = np.log(x - x)
        warnings.simplefilter("ignore")
        z = 1 / (x - x)
    return y, z


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "uint8"])
def test_histograms_wait(dtype: Any) -> None:
    def spread(x: Any, bins: Any, limits: Any) -> Any:
        counts, edges = np.histogram(x * 2, bins, limits)
        return counts, edges, counts / counts.sum(), (edges[1:] + edges[:-1]) / 2, np.interp(x.flat, edges[1:], counts)

    ours = _deferred(spread)
    x = (np.random.default_rng(0).random((60, 70)) * 90).astype(dtype)
    for bins, limits in ((256, None), (7, (0, 1)), (9, (-2.5, 40)), (x.size, None), ([1, 2, 5], None)):
        for _ in range(3):
            assert _same(ours(x, bins, limits), spread(x, bins, limits))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred")


def test_a_histogram_of_what_a_mask_selects_may_be_of_nothing() -> None:
    def spread(x: Any, at: Any) -> Any:
        y = x * 2
        return np.histogram(y[y > at], 5), np.histogram(y[y > at], 5, (0, 1)), np.median(y[y > 0.5])

    ours = _deferred(spread)
    x = np.random.default_rng(0).random((60, 70))
    for at in (0.5, 0.7, 9.0, 9.0, 0.5):
        assert _same(ours(x, at), spread(x, at))


def test_only_fractions_are_taken_as_a_list() -> None:
    def listed(x: Any) -> Any:
        fractions = [10, 90.5]
        found = [np.percentile(x * 2, fractions)]
        fractions[0] = 50
        found.append(np.percentile(x * 2, fractions))
        for function in (np.sum, np.argmax, np.squeeze):
            try:
                found.append(function(x * 2, [0]))  # type: ignore[call-overload]
            except TypeError as error:
                found.append(str(error))
        return found

    ours = _deferred(listed)
    x = np.random.default_rng(0).random((60, 70))
    for _ in range(4):
        assert _same(ours(x), listed(x))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_histogram_of_what_is_not_finite_raises_on_its_line(wrong: float) -> None:
    def spread(x: Any) -> Any:
        y = x * 2
        try:
            return np.histogram(y, 20)
        except ValueError as error:
            return str(error), y.sum(), np.histogram(y, 20, (0, 1))

    ours = _deferred(spread)
    x = np.random.default_rng(0).random((60, 70))
    for number in range(4):
        x[number, 3] = wrong
        assert _same(ours(x), spread(x))


def test_a_histogram_of_what_is_too_close_together_raises() -> None:
    def spread(x: Any) -> Any:
        try:
            return np.histogram(x + 1e17, 20)
        except ValueError as error:
            return str(error)

    ours = _deferred(spread)
    x = np.random.default_rng(0).random((60, 70))
    for _ in range(3):
        assert _same(ours(x), spread(x))
        x *= 1e9


@pytest.mark.parametrize(
    "limits", [(1, 0), (1, 1), (-1e308, 1e308), (0, 1e-300), (), (0, np.inf), (0, "1"), [0, 1], (np.float64(0), 1)]
)
def test_histograms_within_odd_limits_are_numpys(limits: Any) -> None:
    def spread(x: Any) -> Any:
        try:
            return np.histogram(x, 20, range=limits)
        except (TypeError, ValueError, np.exceptions.DTypePromotionError) as error:
            return type(error), str(error)

    ours = _deferred(spread)
    x = np.random.default_rng(0).random((60, 70))
    for _ in range(3):
        assert _same(ours(x), spread(x))


def _warns_in_blocks(x: Any) -> Any:
    w = np.log(x - x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = np.sum(1 / (x - x)) * 2
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            z = np.sqrt(-np.abs(x) - 1) + 1
    return w, y, z, np.log(-np.abs(x) - 1)


def _collects_in_blocks(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        y = 1 / (x - x)
        with warnings.catch_warnings():
            z = np.log(x - x) + 1
            seen = len(outer)
    with warnings.catch_warnings():
        with warnings.catch_warnings(record=True) as inner:
            warnings.simplefilter("always")
            w = np.sqrt(-np.abs(x) - 1)
            seen_inside = len(inner)
        q = np.log(-np.abs(x) - 1)
    return y, z, w, q, seen, seen_inside, [str(each.message) for each in (*outer, *inner)]


def _forgets_filters(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = np.sqrt(-np.abs(x) - 1) + 1
        warnings.resetwarnings()
        z = np.log(-np.abs(x) - 1)
    return y, z


def test_calls_wait_where_warnings_are_hidden() -> None:
    def hides(x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x * 2 + 1
            z = np.mean(y[::2]) * 3
        return z

    ours = _deferred(hides)
    (x,) = _arrays(8, 1)
    for _ in range(4):
        assert _same(ours(x), hides(x))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "5 operations until warnings are given or caught" in (receipt.how or "")


@pytest.mark.parametrize(
    "function",
    [_warns_of_its_own, _catches, _hides_what_follows, _warns_in_blocks, _collects_in_blocks, _forgets_filters],
)
def test_warnings_come_in_their_order_and_to_whom_they_came(function: Callable[..., Any]) -> None:
    ours = _deferred(function)
    (x,) = _arrays(8, 1)

    def heard(function: Callable[..., Any]) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = function(x)
        return value, [(str(each.message), each.category, each.filename, each.lineno) for each in caught]

    expected = heard(function)
    assert expected[1]
    for _ in range(4):
        found = heard(ours)
        assert _same(found[0], expected[0])
        assert found[1] == expected[1]


def test_writing_the_larger_of_two_arrays_warns_of_nothing() -> None:
    def writes(x: Any, y: Any) -> Any:
        z = np.empty_like(x)
        np.maximum(x, y, out=z)
        w = np.empty_like(x)
        np.minimum(z, x, out=w)
        return z, w

    ours = _deferred(writes)
    x, y = _arrays(8)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.simplefilter("error", DeprecationWarning)
        for _ in range(4):
            assert _same(ours(x, y), writes(x, y))


def test_variables_in_the_frames_of_an_error_are_numpys() -> None:
    def fails(x: Any) -> Any:
        y = x * 2
        parts = [y + 1]
        if y.sum() > 0:
            z = y - 3
            raise ValueError("no", z, parts)
        return parts

    ours = _deferred(fails)
    for _ in range(3):
        ours(-np.ones(N))
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as caught:
            ours(np.ones(N))
        (found,) = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb) if frame.f_code.co_name == "fails"]
        held = [found["x"], found["y"], found["z"], found["parts"][0], caught.value.args[1]]
        assert all(type(each) is np.ndarray for each in held)
        assert np.array_equal(found["z"], np.full(N, -1.0))


def test_modes_that_raise_do_so_on_their_line() -> None:
    @_deferred
    def guarded(x: Any) -> Any:
        try:
            with np.errstate(all="raise"):
                return np.log(x - x)
        except FloatingPointError as error:
            return str(error)

    (x,) = _arrays(9, 1)
    assert {guarded(x) for _ in range(3)} == {"divide by zero encountered in log"}


# -- no harm


def test_a_function_of_small_operations_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LEAST_PER_OPERATION", 1.0)

    @_deferred
    def small(x: Any) -> Any:
        for _ in range(20):
            x = x + 1
        return x

    for _ in range(4):
        small(np.zeros(1000))
    assert small.why_plain is not None
    assert "too little" in small.why_plain
    small(np.zeros(1000))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "deferred" not in receipt.reason


def test_the_receipt_says_why_each_segment_ended() -> None:
    @_deferred
    def steps(x: Any) -> Any:
        while x.max() > 1:
            x = x / 2
        return x

    (x,) = _arrays(10, 1)
    for _ in range(3):
        steps(x)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("deferred: ")
    assert receipt.how is not None
    assert "its truth is needed" in receipt.how
    assert "test_deferred.py:" in receipt.how
    assert set(receipt.parts) == {"segments", "python"}
    plan = str(steps.explain(x))
    assert "segment 0: " in plan
    assert "its truth is needed" in plan
    for _ in range(3):
        done = ag.run(steps.function, x, deferred=True)
    assert done.receipt.reason.startswith("deferred: ")
    assert done.receipt.parts


def test_what_is_returned_is_never_ours() -> None:
    assert _deferred(lambda x: x)(np.zeros(5)).__class__ is np.ndarray
    ours = _deferred(lambda x: (x * 2).max())
    for _ in range(3):
        assert type(ours(np.ones(N))) is np.float64
    assert StandIn.__array_priority__ > 0


# -- what the code of a function says

_FACTOR = 2.0
_SHARED = np.zeros(3)


def _helps(x: Any) -> Any:
    return np.sqrt(x * _FACTOR)


def test_arguments_are_read_without_a_copy_where_nothing_else_leads_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(x: Any) -> Any:
        total = 0.0
        for row in (x, _helps(x)):
            total += float(row.sum())
        return total

    def with_others(x: Any) -> Any:
        return x.sum() + _SHARED[0]

    def by_default(x: Any, buffer: Any = _SHARED) -> Any:
        return x + 1

    def imports(x: Any) -> Any:
        import math

        return x * math.pi

    reach = Reach(alone)
    assert reach.holds()
    assert not any(Reach(each).holds() for each in (with_others, by_default, imports, len))
    monkeypatch.setitem(globals(), "_helps", lambda x: _SHARED)
    assert not reach.holds(), "a name means something else now"


def test_functions_of_libraries_that_keep_nothing_reach_nothing_else() -> None:
    softmax: Any = pytest.importorskip("scipy.special").softmax

    @functools.wraps(softmax)
    def wrapped(x: Any) -> Any:
        return softmax(x) + _SHARED[0]

    assert Reach(softmax).holds()
    assert Reach(lambda x: softmax(x) * 2).holds()
    assert not Reach(wrapped).holds(), "it has the library's name, and is not what the library has under it"


def test_what_a_method_is_bound_to_may_have_its_arguments() -> None:
    class Holder:
        def __init__(self) -> None:
            self.values = np.ones(20_000)

        def changed(self, x: Any) -> Any:
            twice = x * 2.0
            self.values[:] = 7.0
            return twice

    for _ in range(2):
        holder = Holder()
        ours: Any = ag.offload(deferred=True)(holder.changed)
        for _ in range(4):
            holder.values[:] = 1.0
            assert (ours(holder.values) == 2.0).all()


def test_arrays_can_be_written_to_by_libraries_that_ask_for_a_namespace() -> None:
    pytest.importorskip("scipy")
    from scipy.stats import zscore

    ours: Any = ag.offload(deferred=True)(zscore)
    x = np.random.default_rng(0).random(20_000)
    fixed = x.copy()
    fixed.setflags(write=False)
    for _ in range(4):
        assert np.array_equal(ours(x), zscore(x))
        assert np.array_equal(ours(fixed), zscore(fixed))


def test_what_pip_has_installed_elsewhere_is_installed(tmp_path: Path) -> None:
    (tmp_path / "some-1.0.dist-info").mkdir()
    (tmp_path / "some-1.0.dist-info" / "RECORD").write_text("some/__init__.py,,\nother.py,,\n", encoding="utf-8")
    assert is_installed(str(tmp_path / "some" / "deep" / "file.py"))
    assert is_installed(str(tmp_path / "other.py"))
    assert not is_installed(str(tmp_path / "mine.py"))
    assert not is_installed("<string>")


def test_what_the_only_view_of_memory_shows_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def relaxed(x: Any) -> Any:
        for _ in range(4):
            x = (np.roll(x, 1) + np.roll(x, -1)) * 0.5  # which NumPy gives as a view of memory that is nobody's
            if float(x.max()) < 0:
                break
        return x

    closing = Recorder.close

    def close(self: Recorder) -> Any:
        copied.append(self.copied)
        return closing(self)

    monkeypatch.setattr(Recorder, "close", close)
    ours: Any = ag.offload(deferred=True)(relaxed)
    x = np.random.default_rng(0).random(200_000)
    for _ in range(4):
        assert np.array_equal(ours(x), relaxed(x))
    assert copied[-1] == 0


def test_a_view_of_an_array_that_is_there_sees_writes_although_one_of_an_argument_waited_before() -> None:
    def written(x: Any, y: Any) -> Any:
        v = y.reshape(2, -1).T.ravel()  # this view waits
        x *= 0.5  # the segment ends
        w = v.reshape(2, -1)
        w -= 2
        return v

    x, y = np.random.default_rng(0).random((2, 24))
    with always_deferred():
        ours: Any = ag.offload(deferred=True)(written)
        for _ in range(4):
            assert np.array_equal(ours(x.copy(), y), written(x.copy(), y))


def test_the_only_view_of_memory_is_one_after_it_was_written_to() -> None:
    def written(x: Any) -> Any:
        y = np.roll(x, 5)
        if y.max() > 0:
            y *= x.mean()
        return y

    x = np.random.default_rng(0).random(20_000)
    with always_deferred():
        ours: Any = ag.offload(deferred=True)(written)
        for _ in range(4):
            y = ours(x)
            assert np.array_equal(y, written(x))
            assert y.flags.owndata is written(x).flags.owndata


def test_naming_a_type_is_no_reason_to_stay_on_numpy() -> None:
    def names(x: Any) -> Any:
        if x.ndim != 1:
            raise ValueError(f"not for a {type(x).__name__}")
        return isinstance(x, type)

    assert why_not_deferred(names) is None
    assert why_not_deferred(lambda x: type(x)(3)) is not None


def test_other_threads_may_call_numpys_conversions_as_they_like() -> None:
    seen: list[Any] = []

    def convert() -> None:
        seen.append((np.asarray(a=[1]).tolist(), np.array(object=[2]).tolist(), np.ascontiguousarray(a=[3]).tolist()))

    @ag.offload(deferred=True)
    def starts_a_thread(x: Any) -> Any:
        thread = threading.Thread(target=convert)
        thread.start()
        thread.join()
        return x + 1

    for _ in range(3):
        starts_a_thread(np.ones(20_000))
    assert seen == [([1], [2], [3])] * 3


@pytest.mark.parametrize("other", [{"on": "numpy"}, {"warm": True}, {"timeout": 1.0}])
def test_options_that_deferred_calls_do_not_follow_are_refused(other: Any) -> None:
    with pytest.raises(InvalidOption, match="leave out on="):
        ag.offload(deferred=True, **other)(np.tanh)


def test_receipts_of_a_function_that_went_back_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_NATIVE", "on")

    @ag.offload(deferred=True)
    def asks(x: Any) -> Any:
        return x + 1 if type(x) is np.ndarray else x

    asks(np.ones(5))
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.reason.startswith("its calls are plain ones: ")


def test_results_that_are_written_over_operands_warn_of_nothing() -> None:
    def peaks(x: Any) -> Any:
        return np.minimum(np.maximum(x * 2, 0.25), x * 3) + 1

    ours = _deferred(peaks)
    x = np.random.default_rng(5).standard_normal(1 << 16)  # large enough for that
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            assert _same(ours(x), peaks(x))
    assert not caught
    assert ours.why_plain is None


# -- LAPACK, which writes over copies


@pytest.mark.parametrize("check_finite", [True, False])
def test_lapack_does_not_write_over_an_array_that_is_no_copy(check_finite: bool) -> None:
    linalg = pytest.importorskip("scipy.linalg")

    def fit(a: Any, b: Any) -> Any:
        a, b = a * 2, b * 2
        found = linalg.lstsq(a, b, check_finite=check_finite)[0]
        return found, linalg.solve(a.T @ a, a.T @ b, check_finite=check_finite), a + 1, b + 1

    ours = _deferred(fit)
    x, y = _arrays(3)
    a, b = x.reshape(-1, 3), y[: len(x) // 3]
    for _ in range(4):
        assert _same(ours(a, b), fit(a, b))
    assert ours.why_plain is None


def test_a_function_that_calls_lapack_itself_is_plain() -> None:
    lapack = pytest.importorskip("scipy.linalg.lapack")

    def solve(a: Any, b: Any) -> Any:
        return lapack.dgesv(a, b)

    assert "dgesv" in str(why_not_deferred(solve))


# -- numbers


def test_an_integer_that_decides_no_type_makes_no_other_segment() -> None:
    def scaled(x: Any, count: int) -> Any:
        y = x * 2
        return (y.sum() / count, y - count, np.where(y > count, y, -count))

    ours = _deferred(scaled)
    x, _ = _arrays(8)
    for count in (3, 3, 3, 1000, 2000, -5, 70_000, 2**40):
        assert _same(ours(x, count), scaled(x, count))
    # The first call is plain, and the next one learns what NumPy gives.
    assert len(list(ours._segments)) <= 3


def test_native_code_for_the_whole_function_takes_the_place_of_deferred_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from anygpu.placement.native_calls import background
    from tests.support.native_placement import tried_at_once

    def smooth(x: Any) -> Any:
        return np.sqrt(x * x + 1) - np.abs(x) * 0.5

    monkeypatch.setattr(deferred, "TRACES_TOO", True)
    with tried_at_once():
        ours = _deferred(smooth)
        (x,) = _arrays(3, 1)
        for _ in range(60):
            assert np.allclose(ours(x), smooth(x), rtol=1e-12)
            background.settle(60)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert "native code is" in receipt.reason
    assert "deferred" not in receipt.reason


def test_what_is_imported_beside_deferred_calls_finds_numpys_own_functions() -> None:
    own = np.asarray
    found = []

    def during(x: Any) -> Any:
        found.append(np.asarray == own)
        with unconverted():
            found.append(np.asarray == own)
        found.append(np.asarray == own)
        return np.asarray(x) + 1

    ours = _deferred(during)
    (x,) = _arrays(4, 1)
    for _ in range(2):
        assert np.array_equal(ours(x), x + 1)
    assert found == [True, True, True, False, True, False]
    assert np.asarray is own


def test_short_functions_that_went_back_leave_receipts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LEAST_PER_OPERATION", 1.0)

    def tiny(x: Any) -> Any:
        return x + 1

    def other(x: Any) -> Any:
        return x * 2

    ours, theirs = _deferred(tiny), ag.offload(other)
    x = np.zeros(3000)
    for _ in range(8):
        ours(x)
    for _ in range(2):
        theirs(x)
        assert np.array_equal(ours(x), x + 1)
        receipt = ag.last_receipt()
        assert receipt is not None
        assert receipt.task.endswith("tiny")
        assert "too little" in receipt.reason
        assert receipt.phases.run > 0
    with ag.collect_receipts() as receipts:
        ours(x)
    assert len(receipts) == 1
