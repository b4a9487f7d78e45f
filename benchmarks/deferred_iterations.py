"""Twenty iterations with `while`, `if`, tests of convergence and early returns, as deferred calls beside plain ones.

    python -m benchmarks.deferred_iterations [--runs 1000] [--side 8] [--native] [--only NAME …] [--seed 0]

Each function runs with other random arguments every time; a run differs where a result is not NumPy's: bit by bit, or
with `--native` within 1e-9, because segments are native code then and sum in another order. It prints how many runs
differ and how many segments came of each function, and fails if any differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

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


def _image(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.random((8 * side, 8 * side)),)


def _points(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.standard_normal((32 * side, 4)) + rng.integers(0, 3, (32 * side, 1)) * 4,)


def _matrix(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    return (rng.random((4 * side, 4 * side)),)


def _system(rng: np.random.Generator, side: int) -> tuple[Any, ...]:
    size = 4 * side
    return rng.random((size, size)) / size + np.eye(size) * 2, rng.random(size)


# -- equations


@_with(_two)
def newton(x: Array, y: Array) -> Array:
    z = x + y + 1
    for number in range(40):
        step = (z**3 - x * z - y) / (3 * z * z - x)
        z = z - step
        if np.abs(step).max() < 1e-10:
            return z, number
    return z, -1


@_with(_two)
def bisection(x: Array, y: Array) -> Array:
    low, high = np.zeros_like(x), np.full_like(x, 2.0)
    while (high - low).max() > 1e-6:
        middle = 0.5 * (low + high)
        above = middle * np.exp(middle * x) > y
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)


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


# -- fields


@_with(_image)
def heat(u: Array) -> Array:
    u = u.copy()
    for number in range(40):
        change = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        u[1:-1, 1:-1] += 0.2 * change
        if np.abs(change).max() < 0.2:
            return u, number
    return u, -1


@_with(_image)
def mandelbrot(seed: Array) -> Array:
    real, imaginary = 3 * seed - 2, 2.4 * seed.T - 1.2
    x, y, steps = np.zeros_like(real), np.zeros_like(real), np.zeros_like(real)
    for number in range(30):
        xx, yy = x * x, y * y
        inside = xx + yy <= 4
        if not inside.any():
            break
        x, y = np.where(inside, xx - yy + real, x), np.where(inside, 2 * x * y + imaginary, y)
        steps = np.where(inside, number, steps)
    return steps


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


@_with(_two)
def adaptive_heun(x: Array, y: Array) -> Array:
    t, step, z = 0.0, 0.1, x
    while t < 1:
        slope = y - z * z
        euler = z + step * slope
        heun = z + step / 2 * (slope + y - euler * euler)
        error = float(np.abs(heun - euler).max())
        if error <= 5e-3:
            z, t = heun, t + step
        step *= min(2.0, max(0.3, 0.9 * (5e-3 / max(error, 1e-12)) ** 0.5))
    return z, t


@_with(_image)
def total_variation(image: Array) -> Array:
    out, before = image.copy(), None
    for number in range(20):
        dx, dy = np.roll(out, -1, 1) - out, np.roll(out, -1, 0) - out
        size = np.sqrt(dx * dx + dy * dy + 1e-6)
        px, py = dx / size, dy / size
        out = out + 0.1 * (0.1 * (px - np.roll(px, 1, 1) + py - np.roll(py, 1, 0)) + image - out)
        energy = float(((out - image) ** 2).sum() + 0.1 * size.sum())
        if before is not None and abs(before - energy) < 2e-3 * before:
            return out, number
        before = energy
    return out, -1


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


def main() -> int:
    """Run each function as often as was asked, and return whether a run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native", action="store_true", help="with segments as native code")
    parser.add_argument("--only", nargs="+", choices=sorted(FUNCTIONS))
    given = parser.parse_args()
    os.environ["SIDE"] = str(given.side)
    os.environ["ANYGPU_NATIVE"] = "on" if given.native else "off"
    import anygpu as ag
    from anygpu.placement import deferred

    # Functions stay deferred, however small they are.
    deferred.LEAST_PER_OPERATION, deferred.LEAST_GAIN, deferred.TRACES_TOO = 0.0, 1e9, False
    wrong = 0
    for name in given.only or FUNCTIONS:
        begin = time.perf_counter()
        ours: Any = ag.offload(deferred=True)(FUNCTIONS[name][0])
        runs = range(given.seed, given.seed + given.runs)
        differ = runs_that_differ(name, ours, runs, within=1e-9 if given.native else 0.0)
        wrong += len(differ)
        segments = list(ours._segments)
        native = sum(each.site is not None and each.site.runs > 0 for each in segments)
        took = f"{given.runs} runs in {time.perf_counter() - begin:.0f} s"
        how = f"{len(segments)} segments of {sum(each.count for each in segments)}, {native} of them native"
        why = f"; plain: {ours.why_plain}" if ours.why_plain else ""
        _say(f"{name:26} {took}: {len(differ)} differ {differ[:5] or ''}; {how}{why}")
    _say(f"{wrong} runs differ")
    return 1 if wrong else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
