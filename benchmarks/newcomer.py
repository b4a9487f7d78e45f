"""Programs as newcomers write them: `python -m benchmarks.newcomer [--processes] [--json] [--check]`.

Six of them as calls: NumPy, JAX and `on="cpu"` in turns.
Each is a function of a namespace and arrays, so that NumPy and JAX run the same lines. Arguments are in each tool's own
arrays before the first call. A figure is the best time of a call on the processor, by that of NumPy and by that of JAX.
Bounds are for a machine that is otherwise quiet: six times in the geometric mean, and no program slower than JAX.

With --processes nine of them as whole scripts, of 0.5 to 8 s on NumPy: each plain and decorated, in turns, in a first
process with an empty cache, in a second and in a third. The middle of three rounds counts.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import anygpu as ag
from anygpu.base.units import readable_seconds
from benchmarks.newcomer_programs import NEWCOMERS
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.short_script import OFFLOAD, PLAIN
from benchmarks.short_script_processes import compile_sources, run_script

#: NumPy's time by anygpu's, in the geometric mean of all programs.
TIMES_AS_FAST = 6.0
ROUNDS, TURN_SECONDS = 9, 0.15
#: How far results may be apart, as a share of the greatest element.
TOLERANCE = 2e-4


#: Scripts: how often each calls its function, and what its process may take, by NumPy's and in seconds beside that.
SCRIPT_CALLS = {
    "asian_price": 200,
    "graded": 80,
    "nearest_labels": 80,
    "heat_step": 200,
    "fourier_blur": 150,
    "table_features": 60,
    "classified": 80,
    "rendered": 80,
    "fitness": 100,
}
SCRIPT_FACTOR, SCRIPT_SECONDS, SCRIPT_ROUNDS = 1.03, 0.030, 3
#: So many of the scripts are so many times as fast as on NumPy, by the number of the process.
FAST_SCRIPTS, TIMES = 5, {1: 2.0, 2: 3.0}


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


# -- whole processes


class Script(msgspec.Struct, frozen=True):
    """Seconds of whole processes: NumPy's, and the decorated ones of the first, second and third process."""

    name: str
    numpy: float
    ours: tuple[float, ...]
    #: Of the last call of each.
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        times = "".join(f"{readable_seconds(each):>10}" for each in self.ours)
        return f"{self.name:<16}{readable_seconds(self.numpy):>10}{times}  {', '.join(self.devices)}"


def script(name: str, calls: int, rounds: int = SCRIPT_ROUNDS) -> Script:
    """Each round begins with an empty cache."""
    program = next(each for each in NEWCOMERS if each.name == name)
    numpy: list[float] = []
    ours: list[list[float]] = [[] for _ in range(3)]
    devices: list[str] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="anygpu-newcomer-", ignore_cleanup_errors=True) as folder:
            devices = []
            for process in ours:
                for side, taken in ((PLAIN, numpy), (OFFLOAD, process)):
                    measured = run_script(program, calls, side, folder=Path(folder) / side)
                    if measured.failed:
                        raise SystemExit(f"{name}, {side}: {measured.failed}")
                    taken.append(measured.seconds)
                devices.append(measured.device)
    return Script(name, statistics.median(numpy), tuple(map(statistics.median, ours)), tuple(devices))


def figures_of_scripts(scripts: Sequence[Script]) -> list[Figure]:
    """No script is slower than on NumPy, in any process; and the fifth fastest is fast enough."""
    figures = []
    for each in scripts:
        bound = SCRIPT_FACTOR * each.numpy + SCRIPT_SECONDS
        figures.append(Figure(name=f"{each.name}: slowest process", value=max(each.ours), unit="s", bound=bound))
    for process, times in TIMES.items():
        shares = sorted(each.ours[process - 1] / each.numpy for each in scripts)
        name = f"process {process} by NumPy, {FAST_SCRIPTS} of {len(scripts)} at most"
        figures.append(Figure(name=name, value=shares[FAST_SCRIPTS - 1], unit="×", bound=1 / times))
    return figures


def measured_scripts() -> list[Figure]:
    compile_sources()
    say(f"{'':<16}{'NumPy':>10}{'first':>10}{'second':>10}{'third':>10}  last call on")
    scripts = []
    for name, calls in SCRIPT_CALLS.items():
        scripts.append(script(name, calls))
        say(str(scripts[-1]))
    return figures_of_scripts(scripts)


def measured_calls() -> list[Figure]:
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
    return figures


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--processes", action="store_true", help="nine whole scripts instead of six calls")
    options = parser.parse_args()
    publish(measured_scripts() if options.processes else measured_calls(), options)


if __name__ == "__main__":
    main()
