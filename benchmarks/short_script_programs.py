"""Programs as short scripts have them: finance, images, geometry, statistics, physics, networks and puzzles."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.short_script_program import UNRECORDED, Program, program

rng = np.random.default_rng


# -- finance and statistics


def backtest(prices: Any, lookback: int, cost: float) -> dict[str, Any]:
    """Buy what rose, weighted by how calm it is, and pay for every change."""
    returns = np.diff(np.log(prices), axis=0)
    squares = np.cumsum(returns * returns, axis=0)
    calm = 1 / np.sqrt((squares[lookback:] - squares[:-lookback]) / lookback + 1e-8)
    rose = np.sign(prices[lookback + 1 :] / prices[1:-lookback] - 1)
    weights = rose * calm
    weights = weights / np.sum(np.abs(weights), axis=1, keepdims=True)
    gained = np.sum(weights[:-1] * returns[lookback + 1 :], axis=1)
    paid = cost * np.sum(np.abs(np.diff(weights, axis=0)), axis=1)
    value = np.cumsum(gained - paid)
    return {"value": value, "drawdown": float(np.max(np.maximum.accumulate(value) - value))}


def _prices(seed: int) -> tuple[Any, ...]:
    steps = rng(seed).normal(0.0002, 0.012, (500, 1200)).astype(np.float32)
    return 50 * np.exp(np.cumsum(steps, axis=0)), 20, 0.001


def asian_option(spot: float, strike: float, volatility: float, paths: int, days: int, seed: int) -> tuple[float, Any]:
    """Monte Carlo: the random numbers are drawn inside."""
    normal = rng(seed).standard_normal((paths, days), np.float32)
    step = volatility / np.sqrt(days)
    walk = spot * np.exp(np.cumsum(step * normal - step * step / 2, axis=1))
    payoff = np.maximum(walk.mean(axis=1) - strike, 0)
    return float(payoff.mean()), payoff.std() / np.sqrt(paths)


def logistic_regression(samples: Any, labels: Any, rate: float, steps: int) -> tuple[Any, Any]:
    weights = np.zeros(samples.shape[1])
    for _ in range(steps):
        share = 1 / (1 + np.exp(-(samples @ weights)))
        weights = weights - rate * (samples.T @ (share - labels) / len(labels) + 1e-4 * weights)
    loss = np.mean(np.logaddexp(0, samples @ weights) - labels * (samples @ weights))
    return weights, loss


def _samples(seed: int) -> tuple[Any, ...]:
    samples = rng(seed).normal(size=(12_000, 48))
    return samples, (samples[:, 0] - samples[:, 1] > 0.3).astype(float), 0.5, 30


def tf_idf(counts: Any, query: Any) -> tuple[Any, Any]:
    """The documents that are most like each query."""
    frequency = counts / np.maximum(np.sum(counts, axis=1, keepdims=True), 1)
    rarity = np.log(len(counts) / (1 + np.count_nonzero(counts, axis=0))).astype(np.float32)
    weighted = frequency * rarity
    weighted = weighted / (np.sqrt(np.sum(weighted * weighted, axis=1, keepdims=True)) + 1e-9)
    likeness = (query * rarity) @ weighted.T
    return np.argmax(likeness, axis=1), np.max(likeness, axis=1)


def _documents(seed: int) -> tuple[Any, ...]:
    counts = rng(seed).poisson(0.06, (1200, 3000)).astype(np.float32)
    return counts, counts[::24] + 0.1


def normalise(batch: dict[str, Any]) -> dict[str, Any]:
    """A dict in, a dict out, as loaders of data have them."""
    values, how = batch["values"], batch["how"]
    centre = values.mean(axis=0)
    width = values.std(axis=0) if how == "deviation" else np.ptp(values, axis=0)
    return {"values": (values - centre) / width, "centre": centre, "how": how}


def _table(seed: int) -> tuple[Any, ...]:
    return ({"values": rng(seed).normal(3, 2, (15_000, 40)), "how": "deviation"},)


# -- images and signals


def equalise_and_blur(image: Any) -> Any:
    counts = np.cumsum(np.bincount(image.ravel(), minlength=256))
    table = (255 * counts / counts[-1]).astype(np.float32)
    grey = table[image]
    for _ in range(3):
        grey[1:-1] = 0.25 * grey[:-2] + 0.5 * grey[1:-1] + 0.25 * grey[2:]
        grey[:, 1:-1] = 0.25 * grey[:, :-2] + 0.5 * grey[:, 1:-1] + 0.25 * grey[:, 2:]
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


def _image(seed: int) -> tuple[Any, ...]:
    return (rng(seed).integers(0, 200, (720, 1280), np.uint8),)


def _gamma(exponent: float) -> Callable[[Any], Any]:
    table = (255 * np.linspace(0, 1, 256) ** exponent).astype(np.uint8)

    def gamma_correction(image: Any) -> Any:
        """A closure: the table is no argument."""
        return table[image]

    return gamma_correction


def spectrogram(signal: Any, width: int, hop: int) -> Any:
    starts = np.arange(0, len(signal) - width, hop)
    frames = signal[starts[:, None] + np.arange(width)] * np.hamming(width).astype(np.float32)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    return np.log10(np.maximum(power, 1e-9))


def _signal(seed: int) -> tuple[Any, ...]:
    return rng(seed).normal(size=400_000).astype(np.float32), 512, 160


def tone_mapping(light: Any, exposure: float) -> Any:
    """A long chain of elementwise operations on nine million numbers."""
    bright = np.maximum(light * exposure, 0)
    film = (bright * (2.51 * bright + 0.03)) / (bright * (2.43 * bright + 0.59) + 0.14)
    curve = np.power(np.minimum(film, 1), 1 / 2.2)
    return np.tanh(1.5 * curve - 0.75) + 0.05 * np.sin(40 * curve) * np.exp(-curve)


def _light(seed: int) -> tuple[Any, ...]:
    return rng(seed).random((3000, 3000), np.float32), 1.4


# -- geometry


def neighbour_counts(points: Any, radius: float) -> Any:
    squares = np.sum(points * points, axis=1)
    apart = squares[:, None] + squares[None, :] - 2 * (points @ points.T)
    return np.sum(apart < radius * radius, axis=1) - 1


def _points(seed: int) -> tuple[Any, ...]:
    return rng(seed).normal(size=(2200, 3)).astype(np.float32), 0.25


def pairwise_distances(first: Any, second: Any) -> Any:
    return np.sqrt(np.sum((first[:, None, :] - second[None, :, :]) ** 2, axis=-1))


def _two_clouds(seed: int) -> tuple[Any, ...]:
    return tuple(rng([seed, number]).random((1200, 4), np.float32) for number in (0, 1))


def haversine(places: Any) -> Any:
    """Kilometres between all pairs of places, in double precision."""
    latitude, longitude = np.radians(places[:, 0]), np.radians(places[:, 1])
    half = np.sin((latitude[:, None] - latitude[None, :]) / 2) ** 2
    half = half + np.cos(latitude)[:, None] * np.cos(latitude)[None, :] * (
        np.sin((longitude[:, None] - longitude[None, :]) / 2) ** 2
    )
    return 12742 * np.arcsin(np.sqrt(np.minimum(half, 1)))


def _places(seed: int) -> tuple[Any, ...]:
    return (np.column_stack([rng(seed).uniform(-70, 70, 1100), rng(seed).uniform(-180, 180, 1100)]),)


def ray_marching(width: int, height: int, angle: float) -> Any:
    """A torus above a floor, from no arrays at all."""
    across = (np.arange(width, dtype=np.float32) - width / 2) / height
    up = (np.arange(height, dtype=np.float32)[:, None] - height / 2) / height
    length = np.sqrt(across * across + up * up + 1)
    x_step, y_step, z_step = across / length, up / length, 1 / length
    far = np.zeros((height, width), np.float32)
    for _ in range(24):
        x, y, z = x_step * far + np.float32(np.sin(angle)), y_step * far, z_step * far - 4
        ring = np.sqrt(x * x + z * z) - 1.2
        torus = np.sqrt(ring * ring + y * y) - 0.4
        far = far + np.where(far < 30, np.minimum(torus, 1.5 - y), 0)
    return np.where(far < 30, np.exp(-0.2 * far), 0)


# -- physics, networks and puzzles


def heat(start: Any, steps: int) -> Any:
    """The heat equation, a new array at each step."""
    field = start
    for _ in range(steps):
        padded = np.pad(field, 1, mode="edge")
        around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
        field = field + 0.15 * (around - 4 * field)
    return field


def heat_in_place(field: Any, steps: int) -> None:
    """The same, written into the caller's array."""
    for _ in range(steps):
        around = field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
        field[1:-1, 1:-1] += 0.15 * (around - 4 * field[1:-1, 1:-1])


def _field(seed: int) -> tuple[Any, ...]:
    return rng(seed).random((400, 400)), 40


def lstm(sequence: Any, weights: dict[str, Any]) -> Any:
    hidden = np.zeros((sequence.shape[1], weights["hidden"].shape[0]), np.float32)
    cell = hidden
    for step in sequence:
        gates = step @ weights["input"] + hidden @ weights["hidden"] + weights["bias"]
        enter, forget, leave, new = np.split(gates, 4, axis=1)
        cell = cell / (1 + np.exp(-forget)) + np.tanh(new) / (1 + np.exp(-enter))
        hidden = np.tanh(cell) / (1 + np.exp(-leave))
    return hidden


def _sequence(seed: int) -> tuple[Any, ...]:
    draw = rng(seed)
    shapes = {"input": (48, 768), "hidden": (192, 768), "bias": (768,)}
    weights = {name: draw.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    return draw.normal(size=(40, 96, 48)).astype(np.float32), weights


class Network:
    """A small network, whose weights are attributes."""

    def __init__(self, seed: int) -> None:
        draw, sizes = rng(seed), (128, 256, 256, 10)
        self.layers = [
            (draw.normal(0, size**-0.5, (size, following)).astype(np.float32), np.zeros(following, np.float32))
            for size, following in itertools.pairwise(sizes)
        ]


def small_network(network: Network, batch: Any) -> Any:
    value = batch
    for weights, bias in network.layers[:-1]:
        value = np.maximum(value @ weights + bias, 0)
    weights, bias = network.layers[-1]
    scores = value @ weights + bias
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _network(seed: int) -> tuple[Any, ...]:
    return Network(0), rng(seed).normal(size=(1024, 128)).astype(np.float32)


def sudoku_singles(boards: Any, rounds: int) -> Any:
    """Fill the squares that have one candidate left, several times, on thousands of boards at once."""
    digits = np.arange(1, 10)
    for _ in range(rounds):
        there = boards[..., None] == digits
        in_row = there.any(axis=2)[:, :, None, :]
        in_column = there.any(axis=1)[:, None, :, :]
        blocks = there.reshape(-1, 3, 3, 3, 3, 9).any(axis=(2, 4))
        in_block = np.repeat(np.repeat(blocks, 3, axis=1), 3, axis=2)
        possible = ~(in_row | in_column | in_block)
        single = (boards == 0) & (possible.sum(axis=-1) == 1)
        boards = np.where(single, np.argmax(possible, axis=-1) + 1, boards)
    return boards


def _boards(seed: int) -> tuple[Any, ...]:
    draw = rng(seed)
    row = np.arange(9)
    solved = (3 * (row[:, None] % 3) + row[:, None] // 3 + row) % 9 + 1
    boards = np.stack([draw.permutation(9)[solved - 1] + 1 for _ in range(2000)])
    return np.where(draw.random(boards.shape) < 0.5, 0, boards), 3


PROGRAMS: tuple[Program, ...] = (
    program(backtest, _prices, 13, "finance", UNRECORDED),
    program(asian_option, lambda seed: (100.0, 101.0, 0.2, 20_000, 50, seed), 25, "finance", "random", UNRECORDED),
    program(logistic_regression, _samples, 20, "statistics", "float64", "loop"),
    program(tf_idf, _documents, 70, "statistics"),
    program(normalise, _table, 8, "statistics", "float64"),
    program(equalise_and_blur, _image, 17, "image", "in place"),
    program(_gamma(2.2), _image, 3, "image", "small"),
    program(spectrogram, _signal, 10, "signal"),
    program(tone_mapping, _light, 180, "image", "chain"),
    program(neighbour_counts, _points, 50, "geometry"),
    program(pairwise_distances, _two_clouds, 50, "geometry"),
    program(haversine, _places, 40, "geometry", "float64"),
    program(ray_marching, lambda seed: (240, 180, 0.3 * seed), 6, "geometry", "loop", UNRECORDED),
    program(heat, _field, 43, "physics", "float64", "loop"),
    program(heat_in_place, _field, 40, "physics", "float64", "loop", "in place", UNRECORDED),
    program(lstm, _sequence, 50, "network", "loop"),
    program(small_network, _network, 4, "network", "small"),
    program(sudoku_singles, _boards, 70, "puzzle", "loop"),
)
