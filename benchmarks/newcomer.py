"""Six programs as newcomers write them: NumPy, JAX and `on="cpu"` in turns. `python -m benchmarks.newcomer [--json]`.

Each is a function of a namespace and arrays, so that NumPy and JAX run the same lines. Arguments are in each tool's own
arrays before the first call. A figure is the best time of a call on the processor, by that of NumPy and by that of JAX.
Bounds are for a machine that is otherwise quiet: six times in the geometric mean, and no program slower than JAX.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

import anygpu as ag
from anygpu.units import readable_seconds
from benchmarks.report import Figure, options_parser, publish, say

#: NumPy's time by anygpu's, in the geometric mean of all programs.
TIMES_AS_FAST = 6.0
ROUNDS, TURN_SECONDS = 9, 0.15
#: How far results may be apart, as a share of the greatest element.
TOLERANCE = 2e-4


class Program(msgspec.Struct, frozen=True):
    title: str
    function: Callable[..., Any]
    #: Arguments from a generator and a number by which sizes are divided.
    make: Callable[[np.random.Generator, int], tuple[Any, ...]]


# -- the programs: `np` is NumPy, or what is used in its place


def option_price(np: Any, normals: Any) -> Any:
    """An Asian option by Monte Carlo: the price, and its standard error."""
    steps, rate, volatility = normals.shape[1], 0.03, 0.2
    step = 1.0 / steps
    growth = (rate - 0.5 * volatility**2) * step + volatility * math.sqrt(step) * normals
    prices = 100.0 * np.exp(np.cumsum(growth, axis=1))
    payoffs = math.exp(-rate) * np.maximum(prices.mean(axis=1) - 100.0, 0.0)
    return payoffs.mean(), payoffs.std() / math.sqrt(normals.shape[0])


def sharpened(np: Any, image: Any) -> Any:
    """An unsharp mask of a colour image, and its brightness."""
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    blurred = (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 16
    sharp = np.clip(image + 0.8 * (image - blurred), 0, 1)
    grey = 0.299 * sharp[..., 0] + 0.587 * sharp[..., 1] + 0.114 * sharp[..., 2]
    return sharp, grey


def heat(np: Any, plate: Any) -> Any:
    """Eight steps of the heat equation on a torus."""
    for _ in range(8):
        around = np.roll(plate, 1, 0) + np.roll(plate, -1, 0) + np.roll(plate, 1, 1) + np.roll(plate, -1, 1)
        plate = plate + 0.2 * (around - 4 * plate)
    return plate


def network(np: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    """Three layers and a softmax."""
    hidden = np.maximum(x @ w1 + b1, 0)
    hidden = np.tanh(hidden @ w2 + b2)
    scores = hidden @ w3 + b3
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def ray_marching(np: Any, x: Any, y: Any) -> Any:
    """Two spheres over a plane, by steps along each ray."""

    def distance(px: Any, py: Any, pz: Any) -> Any:
        one = np.sqrt(px**2 + (py - 0.2) ** 2 + (pz - 3.0) ** 2) - 1.0
        other = np.sqrt((px - 1.2) ** 2 + (py + 0.3) ** 2 + (pz - 2.2) ** 2) - 0.5
        return np.minimum(np.minimum(one, other), py + 0.8)

    length = np.sqrt(x**2 + y**2 + 1)
    dx, dy, dz = x / length, y / length, 1 / length
    t = 0 * x
    for _ in range(24):
        t = np.minimum(t + distance(t * dx, t * dy, t * dz), 20.0)
    px, py, pz = t * dx, t * dy, t * dz
    here = distance(px, py, pz)
    nx, ny, nz = (
        distance(px + 1e-3, py, pz) - here,
        distance(px, py + 1e-3, pz) - here,
        distance(px, py, pz + 1e-3) - here,
    )
    light = (0.5 * nx + 0.7 * ny - 0.5 * nz) / np.sqrt(nx**2 + ny**2 + nz**2 + 1e-12)
    return np.where(t < 20.0, np.clip(light, 0.05, 1), 0.0)


def genetic(np: Any, genes: Any, mothers: Any, fathers: Any, swap: Any, noise: Any) -> Any:
    """One generation: tournaments, crossover, mutation, and the fitness of the children."""

    def fitness(genes: Any) -> Any:
        return (genes**2 - 10 * np.cos(2 * math.pi * genes) + 10).sum(axis=1)

    scores = fitness(genes)
    better = scores[mothers] < scores[fathers]
    parents = np.where(better[:, None], genes[mothers], genes[fathers])
    others = np.where(better[:, None], genes[fathers], genes[mothers])
    children = np.clip(np.where(swap, parents, others) + 0.1 * noise, -5, 5)
    found = fitness(children)
    return children, found, found.min()


def _layers(rng: np.random.Generator, divisor: int) -> tuple[Any, ...]:
    widths = (128, 256, 256, 10)
    arrays = [rng.standard_normal((5000 // divisor, widths[0]), np.float32)]
    for before, after in pairwise(widths):
        weights = rng.standard_normal((before, after), np.float32)
        arrays += [weights / np.float32(16), rng.standard_normal(after, np.float32)]
    return tuple(arrays)


def _rays(rng: np.random.Generator, divisor: int) -> tuple[Any, ...]:
    side = 320 // divisor
    y, x = np.meshgrid(np.linspace(1, -1, side), np.linspace(-1, 1, side), indexing="ij")
    return x + 1e-6 * rng.random(x.shape), y


def _population(rng: np.random.Generator, divisor: int) -> tuple[Any, ...]:
    count, genes = 4000 // divisor, 32
    parents = rng.integers(0, count, (2, count))
    swap = rng.random((count, genes)) < 0.5
    return rng.uniform(-5, 5, (count, genes)), *parents, swap, rng.standard_normal((count, genes))


PROGRAMS = {
    "monte_carlo": Program("Monte Carlo", option_price, lambda rng, by: (rng.standard_normal((20_000 // by, 16)),)),
    "sharpening": Program("image", sharpened, lambda rng, by: (rng.random((720 // by, 1080 // by, 3), np.float32),)),
    "heat": Program("heat", heat, lambda rng, by: (rng.random((512 // by, 512 // by)),)),
    "network": Program("network", network, _layers),
    "ray_marching": Program("ray marching", ray_marching, _rays),
    "genetic": Program("genetic", genetic, _population),
}


# -- the tools


def in_numpy(program: Program) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    return lambda *arrays: program.function(np, *arrays), lambda array: array


def in_jax(program: Program) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    import jax

    compiled = jax.jit(lambda *arrays: program.function(jax.numpy, *arrays))

    def call(*arrays: Any) -> Any:
        with jax.enable_x64(True):
            return jax.block_until_ready(compiled(*arrays))

    def convert(array: Any) -> Any:
        with jax.enable_x64(True):
            return jax.numpy.asarray(array)

    return call, convert


def in_anygpu(program: Program) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    function = program.function
    placed = ag.offload(on="cpu", fallback="raise")(lambda *arrays: function(np, *arrays))
    return placed, lambda array: array


TOOLS: Mapping[str, Callable[[Program], tuple[Callable[..., Any], Callable[[Any], Any]]]] = {
    "NumPy": in_numpy,
    "JAX": in_jax,
    'anygpu on="cpu"': in_anygpu,
}


def furthest(wanted: Any, got: Any) -> float:
    """How far results are apart, as a share of the greatest element of each."""
    if isinstance(wanted, tuple):
        return max(furthest(one, other) for one, other in zip(wanted, got, strict=True))
    one, other = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    return float(np.max(np.abs(one - other)) / max(float(np.max(np.abs(one))), 1e-30))


def measure(
    program: Program, divisor: int = 1, rounds: int = ROUNDS, seconds: float = TURN_SECONDS
) -> dict[str, float]:
    """The best time of a call with each tool. Raises where a tool is further from NumPy than the tolerance."""
    arguments = program.make(np.random.default_rng(0), divisor)
    expected = program.function(np, *arguments)
    calls: dict[str, Callable[[], Any]] = {}
    for name, tool in TOOLS.items():
        function, convert = tool(program)
        own = [convert(each) for each in arguments]
        distance = furthest(expected, function(*own))
        if not distance <= TOLERANCE:
            raise SystemExit(f"{program.title} with {name} is off by {distance:.2g} of the greatest element.")
        calls[name] = lambda function=function, own=own: function(*own)  # type: ignore[misc]
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for name, call in calls.items():
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                begin = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def main() -> None:
    options = options_parser(__doc__).parse_args()
    figures: list[Figure] = []
    gains: list[float] = []
    say(f"{'':<14}" + "".join(f"{name:>18}" for name in TOOLS))
    for program in PROGRAMS.values():
        best = measure(program)
        say(f"{program.title:<14}" + "".join(f"{readable_seconds(each):>18}" for each in best.values()))
        numpy, jax, ours = best.values()
        gains.append(numpy / ours)
        figures.append(Figure(name=f"{program.title}: by JAX", value=ours / jax, unit="×", bound=1.0))
        figures.append(Figure(name=f"{program.title}: by NumPy", value=ours / numpy, unit="×", bound=1.0))
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    figures.append(Figure(name="by NumPy, geometric mean", value=1 / mean, unit="×", bound=1 / TIMES_AS_FAST))
    publish(figures, options)


if __name__ == "__main__":
    main()
