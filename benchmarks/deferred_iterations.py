"""Twenty iterations with `while`, `if`, tests of convergence and early returns, as deferred calls beside plain ones.

    python -m benchmarks.deferred_iterations [--runs 1000] [--native] [--side 8] [--speed 40] [--only NAME …] [--seed 0]
    python -m benchmarks.deferred_iterations --runs 0 --automatic 40 [--only NAME …]

Each function runs with other random arguments every time; a run differs where a result is not NumPy's: bit by bit, or
with `--native` within 1e-9, because segments are native code then and sum in another order. `--speed` measures calls
with arguments of that size, once native code has settled. It prints for each function how many runs are equal, how
many of its segments were compiled how often, and how many times faster it is; it fails if a run differs.

`--automatic` leaves the option away, and decorates each function in a process of its own with an empty cache: it prints
what the first fifty calls take once deferral has begun, which pay for all that has to be found out, and what calls take
afterwards, both in units of a plain call. It fails if the first calls of a function take more than MOST_AT_FIRST.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np

import anygpu as ag
from anygpu.placement import native
from anygpu.placement.native_calls import background
from benchmarks import deferred, deferred_functions
from tests.support.deferred_placement import always_deferred
from tests.support.native_placement import native_at_once, settle

Array = Any
Made = tuple[tuple[Any, ...], dict[str, Any]]
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[int], Made]]] = {}


def _side() -> int:
    return int(os.environ.get("SIDE", "40"))


def _with(make: Callable[[np.random.Generator, int], tuple[Any, ...]]) -> Callable[[Callable[..., Any]], Any]:
    """A function, with what makes its arguments from random numbers and a size."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function.__name__] = (function, lambda n: (make(np.random.default_rng(n), _side()), {}))
        return function

    return add


def _two(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return rng.random(64 * side * side), rng.random(64 * side * side) + 0.5


def _one(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.standard_normal(64 * side * side),)


def _points(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.standard_normal((32 * side, 4)) + rng.integers(0, 3, (32 * side, 1)) * 4,)


def _matrix(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.random((4 * side, 4 * side)),)


def _system(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    size = 4 * side
    return rng.random((size, size)) / size + np.eye(size) * 2, rng.random(size)


def _of_library(name: str) -> None:
    """An iteration that is among the functions as libraries have them."""
    function, make = deferred_functions.FUNCTIONS[name]
    FUNCTIONS[name] = (function, lambda n: (make(_side(), n), {}))


for _name in ("newton", "bisection", "heat", "mandelbrot", "adaptive_heun", "total_variation"):
    _of_library(_name)

# -- equations


@_with(_two)
def fixed_point(x: Array, y: Array) -> Array:
    z = x
    rounds = 0
    while True:
        new = np.cos(z) * 0.5 + y * 0.3
        change = np.abs(new - z).max()
        z, rounds = new, rounds + 1
        if change < 1e-9 or rounds > 60:
            return z, rounds


@_with(_two)
def golden_section(x: Array, y: Array) -> Array:
    ratio = (5**0.5 - 1) / 2
    low, high = x - 2, x + 2
    while (high - low).max() > 1e-3:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        lower = (left - y) ** 2 + np.cos(left) < (right - y) ** 2 + np.cos(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    return (low + high) / 2


@_with(_two)
def secant(x: Array, y: Array) -> Array:
    before, now = x, x + 0.5
    f = before * before * before - y
    for number in range(30):
        g = now * now * now - y
        slope = g - f
        step = np.where(np.abs(slope) > 1e-12, g * (now - before) / np.where(slope == 0, 1, slope), 0)
        before, now, f = now, now - np.clip(step, -1, 1), g
        if np.abs(step).mean() < 1e-8:
            return now, number
    return now, -1


# -- linear systems


@_with(_system)
def jacobi(a: Array, b: Array) -> Array:
    diagonal = np.diagonal(a)
    x = np.zeros_like(b)
    for number in range(100):
        r = b - a @ x
        if np.sqrt((r * r).sum()) < 1e-9:
            return x, number
        x = x + r / diagonal
    return x, 100


@_with(_system)
def richardson(a: Array, b: Array) -> Array:
    x = b * 0.4
    before = None
    while True:
        r = b - a @ x
        size = float(np.abs(r).max())
        if size < 1e-9 or (before is not None and size > before):
            return x, size
        x = x + 0.4 * r
        before = size


@_with(_system)
def conjugate_gradient(a: Array, b: Array) -> Array:
    m = a.T @ a
    x = np.zeros_like(b)
    r = b - m @ x
    p, squared = r, float(r @ r)
    for number in range(len(b)):
        q = m @ p
        step = squared / float(p @ q)
        x, r = x + step * p, r - step * q
        new = float(r @ r)
        if new < 1e-18:
            return x, number
        p, squared = r + new / squared * p, new
    return x, -1


@_with(_matrix)
def power_iteration(m: Array) -> Array:
    v = np.ones_like(m[0])
    value = 0.0
    while True:
        w = m @ v
        new = float(np.sqrt((w * w).sum()))
        v = w / new
        if abs(new - value) <= 1e-10 * abs(new):
            return v, new
        value = new


@_with(_matrix)
def pagerank(links: Array) -> Array:
    weights = np.where(links > 0.8, 1.0, 0.0)
    total = weights.sum(axis=0)
    weights = np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / len(links))
    rank = np.full_like(links[0], 1 / len(links))
    rounds = 0
    while rounds < 100:
        new = 0.85 * (weights @ rank) + 0.15 / len(links)
        rounds += 1
        if np.abs(new - rank).sum() < 1e-10:
            return new, rounds
        rank = new
    return rank, rounds


@_with(_matrix)
def sinkhorn(cost: Array) -> Array:
    kernel = np.exp(-cost * 4)
    u = np.ones_like(cost[0])
    for number in range(200):
        v = 1 / (kernel.T @ u)
        new = 1 / (kernel @ v)
        if np.abs(new - u).max() < 1e-9 * np.abs(new).max():
            return new[:, None] * kernel * v, number
        u = new
    return u[:, None] * kernel * v, -1


# -- estimates


@_with(_points)
def k_means(points: Array) -> Array:
    centres = points[:3]
    for number in range(25):
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        is_in = [(labels == each)[:, None] * 1.0 for each in range(3)]
        new = np.stack([(points * each).sum(axis=0) / max(float(each.sum()), 1.0) for each in is_in])
        if np.abs(new - centres).max() < 1e-9:
            return labels, new, number
        centres = new
    return labels, centres, -1


@_with(_one)
def expectation_maximisation(x: Array) -> Array:
    one, two, share = float(x.min()), float(x.max()), 0.5
    before = None
    for number in range(40):
        a, b = share * np.exp(-((x - one) ** 2) / 2), (1 - share) * np.exp(-((x - two) ** 2) / 2)
        whole = a + b
        level = float(np.log(whole).mean())
        if before is not None and abs(level - before) < 1e-6:
            return one, two, share, number
        weight = a / whole
        total = float(weight.sum())
        one, two = float((weight * x).sum()) / total, float(((1 - weight) * x).sum()) / (len(x) - total)
        share, before = total / len(x), level
    return one, two, share, -1


@_with(_one)
def clipped_mean(x: Array) -> Array:
    low, high = -np.inf, np.inf
    while True:
        inside = (x >= low) & (x <= high)
        count = int(inside.sum())
        kept = np.where(inside, x, 0.0)
        mean = float(kept.sum()) / count
        spread = float(np.sqrt((np.where(inside, x - mean, 0.0) ** 2).sum() / count))
        if mean - 2.5 * spread <= low + 1e-9 and mean + 2.5 * spread >= high - 1e-9:
            return mean, spread, count
        low, high = max(low, mean - 2.5 * spread), min(high, mean + 2.5 * spread)


@_with(_two)
def gradient_descent(x: Array, y: Array) -> Array:
    z, step = np.zeros_like(x), 1.0
    value = float(((z - x) ** 2 + 0.1 * (z - y) ** 4).sum())
    for number in range(40):
        gradient = 2 * (z - x) + 0.4 * (z - y) ** 3
        squared = float((gradient * gradient).sum())
        if squared < 1e-12 * len(x):
            return z, number
        while step > 1e-8:
            new = z - step * gradient
            found = float(((new - x) ** 2 + 0.1 * (new - y) ** 4).sum())
            if found <= value - 0.3 * step * squared:
                break
            step *= 0.5
        z, value, step = new, found, min(step * 1.5, 1.0)
    return z, -1


@_with(_two)
def annealing(x: Array, y: Array) -> Array:
    state, heat_left, taken = x, 1.0, 0
    energy = float(((state - y) ** 2 + np.cos(3 * state)).mean())
    best = energy
    for number in range(25):
        moved = state + heat_left * 0.1 * np.sin(12.9898 * (number + 1) * x)
        found = float(((moved - y) ** 2 + np.cos(3 * moved)).mean())
        if found < energy or (number * 7919) % 97 / 97 < np.exp((energy - found) / (0.01 * heat_left)):
            state, energy, taken = moved, found, taken + 1
        best = min(best, energy)
        heat_left *= 0.9
        if heat_left < 0.1 and energy > best + 0.1:
            return state, best, -taken
    return state, best, taken


# -- the command


def is_same(one: Any, other: Any, *, within: float = 0.0) -> bool:
    """Whether two results are of the same types and hold the same, bit by bit or nearly."""
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(is_same(a, b, within=within) for a, b in zip(one, other, strict=True))
    if isinstance(one, np.ndarray) and (one.dtype, one.shape, one.strides) != (other.dtype, other.shape, other.strides):
        return False
    if within:
        return bool(np.allclose(one, other, rtol=within, atol=within, equal_nan=True))
    return bool(np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc"))


def runs_that_differ(name: str, ours: Any, runs: range, *, within: float = 0.0) -> list[int]:
    """The seeds with which a deferred call of a function, or what it does to its arguments, is not NumPy's."""
    function, make = FUNCTIONS[name]
    found = []
    for seed in runs:
        (given, _), (kept, _) = make(seed), make(seed)
        value, expected = ours(*given), function(*kept)
        if not is_same(expected, value, within=within) or not is_same(kept, given):
            found.append(seed)
    return found


def _equal_runs(name: str, runs: range, *, is_native: bool) -> tuple[list[int], str]:
    """The seeds with which a function differs; and what its segments were."""
    native.history.clear()
    ours: Any = ag.offload(deferred=True)(FUNCTIONS[name][0])
    differ = []
    for first in range(runs.start, runs.stop, _SETTLED_EVERY):
        some = range(first, min(first + _SETTLED_EVERY, runs.stop))
        differ += runs_that_differ(name, ours, some, within=1e-9 if is_native else 0.0)
        if is_native:
            settle()
    segments = list(ours._segments)
    ran = sum(each.site.runs for each in segments if each.site is not None)
    how = f"{_compiled(segments)}, {ran} of {sum(each.count for each in segments)} runs of them native"
    return differ, how + (f"; plain: {ours.why_plain}" if ours.why_plain else "")


#: Runs after which it is waited for native code.
_SETTLED_EVERY = 10


def _compiled(segments: list[Any]) -> str:
    often = sum(each.count > 2 for each in segments)
    return f"{len(segments)} segments, {often} of them met often, {len(native.history)} compiled"


def _speed(name: str, side: int) -> tuple[float, str]:
    """How many times faster a function is, and what its segments were."""
    native.history.clear()
    function, make = FUNCTIONS[name]
    with mock.patch.dict(os.environ, SIDE=str(side)):
        found = deferred.measured((function, *make(0)))
    how = f"{found['numpy'] * 1e3:.2f} ms plain, {found['deferred'] * 1e3:.2f} ms deferred"
    reason = f"{found['reason']}{'' if found['same'] else ' DIFFERS'}"
    return found["ratio"], f"{how}, {len(native.history)} segments compiled; {reason}"


#: Calls that count as the first ones, and what they may take in units of plain calls.
FIRST_CALLS, MOST_AT_FIRST = 50, 1.05


def first_calls(name: str) -> tuple[float, float, str]:
    """The first deferred calls of a function without the option, and later ones, in units of plain calls; and a reason.

    Both are 1 where calls take so little that no call is deferred.
    """
    function, make = FUNCTIONS[name]
    given, named = make(0)
    plain: list[float] = []
    _timed(plain, 28, function, given, named)
    del plain[:3]
    ours: Any = ag.offload(function)
    while not _is_decided(ours):
        ours(*given, **named)
    first: list[float] = []
    _timed(first, FIRST_CALLS, ours, given, named)
    _timed(plain, 25, function, given, named)
    background.settle(20)
    later: list[float] = []
    while sum(later) < 1.0 and len(later) < 400:
        _timed(later, 1, ours, given, named)
    _timed(plain, 25, function, given, named)
    usual = statistics.median(plain)
    receipt = ag.last_receipt()
    assert receipt is not None
    return statistics.mean(first) / usual, statistics.median(later[-20:]) / usual, receipt.reason


def _timed(into: list[float], calls: int, function: Any, given: Any, named: Any) -> None:
    for _ in range(calls):
        begin = time.perf_counter()
        function(*given, **named)
        into.append(time.perf_counter() - begin)


def _is_decided(ours: Any) -> bool:
    """Whether the calls of a decorated function are deferred from now on, or stay on NumPy."""
    site = next(iter(ours._known.native.values()), None)
    return site is not None and (type(site.direct).__name__ == "DeferredCalls" or site.is_settled or site.seconds > 12)


def _automatic(name: str, side: int) -> tuple[float, float]:
    """`first_calls` in a new process, printed."""
    code = f"from benchmarks.deferred_iterations import first_calls; print(*first_calls({name!r}), sep=chr(9))"
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"SIDE": str(side), "ANYGPU_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, later, reason = done.stdout.strip().split("\t")
    _say(f"{name:26} first {FIRST_CALLS} calls {float(first):5.2f} of plain ones, later {float(later):5.2f}; {reason}")
    return float(first), float(later)


def main() -> int:
    """Run each function as often as was asked, and return whether a run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--speed", type=int, metavar="SIDE", help="measure calls with arguments of that size too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native", action="store_true", help="with segments as native code as soon as there is any")
    parser.add_argument("--automatic", type=int, metavar="SIDE", help="measure calls without the option")
    parser.add_argument("--only", nargs="+", choices=sorted(FUNCTIONS))
    given = parser.parse_args()
    os.environ["SIDE"] = str(given.side)
    wrong, ratios, automatic = 0, [], []
    for name in given.only or FUNCTIONS:
        if given.runs:
            begin = time.perf_counter()
            runs = range(given.seed, given.seed + given.runs)
            with ExitStack() as stack:
                stack.enter_context(always_deferred())
                stack.enter_context(
                    native_at_once() if given.native else mock.patch.dict(os.environ, ANYGPU_NATIVE="off")
                )
                differ, how = _equal_runs(name, runs, is_native=given.native)
            wrong += len(differ)
            took = f"{given.runs - len(differ)} of {given.runs} runs equal, {time.perf_counter() - begin:.0f} s"
            _say(f"{name:26} {took} {differ[:5] or ''}; {how}")
        if given.speed:
            ratio, how = _speed(name, given.speed)
            ratios.append(ratio)
            _say(f"{name:26} {ratio:6.2f} × NumPy; {how}")
        if given.automatic:
            automatic.append(_automatic(name, given.automatic))
    if given.runs:
        _say(f"{wrong} runs differ")
    if ratios:
        _say(f"{sum(each > 1.03 for each in ratios)} of {len(ratios)} are faster than NumPy")
    if automatic:
        faster = sum(later < 0.97 for _, later in automatic)
        worst = max(first for first, _ in automatic)
        _say(f"{faster} of {len(automatic)} are faster; at worst the first calls take {worst:.2f} of plain ones")
        wrong += worst > MOST_AT_FIRST
    return 1 if wrong else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
