"""Programs that anygpu has to leave to NumPy, or nearly so: shapes from values, other libraries, state and records."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.short_script_program import UNRECORDED, Arguments, Program, program

rng = np.random.default_rng


def core_points(points: Any, radius: float, fewest: int) -> tuple[Any, Any]:
    """The points with enough neighbours: how many there are depends on values."""
    apart = np.sum((points[:, None, :] - points[None, :, :]) ** 2, axis=-1)
    counts = np.count_nonzero(apart <= radius * radius, axis=1)
    return counts, points[counts > fewest]


def islands(land: Any) -> tuple[int, Any]:
    """Labels that spread until nothing changes."""
    labels = np.where(land, np.arange(1, land.size + 1).reshape(land.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        across = np.maximum(padded[1:-1, :-2], padded[1:-1, 2:])
        spread = np.maximum(labels, np.maximum(across, np.maximum(padded[:-2, 1:-1], padded[2:, 1:-1])))
        spread = np.where(land, spread, 0)
        if np.array_equal(spread, labels):
            return np.unique(labels).size - 1, labels
        labels = spread


def with_scipy(image: Any, width: float) -> tuple[Any, Any]:
    from scipy import ndimage, special

    smooth = ndimage.gaussian_filter(image, width)
    return special.erf(smooth), special.logsumexp(smooth, axis=0)


def sums_of_groups(records: Any) -> dict[int, float]:
    """Of a structured array, by one of its fields."""
    return {int(key): float(records["amount"][records["key"] == key].sum()) for key in np.unique(records["key"])}


def masked_scores(values: Any) -> Any:
    return (values - values.mean(axis=0)) / values.std(axis=0)


class Counter:
    """State outside of the function."""

    calls = 0
    draw = rng(5)


def counted(points: Any) -> tuple[Any, int]:
    Counter.calls += 1
    return points @ points.T + Counter.draw.normal(), Counter.calls


def seeded_inside(paths: int, seed: int) -> tuple[float, Any]:
    """The old global generator."""
    np.random.seed(seed)
    last = 100 * np.exp(0.2 * np.random.standard_normal(paths) - 0.02)
    gains = np.maximum(last - 103, 0)
    return float(gains.mean()), gains.std()


def _records(seed: int) -> Arguments:
    records = np.empty(20_000, dtype=[("key", "i4"), ("amount", "f8"), ("name", "U6")])
    records["key"], records["amount"] = rng(seed).integers(0, 9, 20_000), rng(seed).random(20_000)
    records["name"] = "somebody"
    return (records,)


def _points(count: int) -> Any:
    return lambda seed: (rng(seed).normal(size=(count, 3)).astype(np.float32),)


LEFT_TO_NUMPY: tuple[Program, ...] = (
    program(core_points, lambda seed: (*_points(1500)(seed), 0.3, 8), 45, UNRECORDED),
    program(islands, lambda seed: (rng(seed).random((150, 150)) < 0.6,), 30, UNRECORDED, "loop"),
    program(with_scipy, lambda seed: (rng(seed).random((400, 400), np.float32), 3.0), 12, UNRECORDED),
    program(sums_of_groups, _records, 0.3, UNRECORDED, "small"),
    program(masked_scores, lambda seed: (np.ma.masked_less(rng(seed).normal(size=(800, 200)), -1),), 6, UNRECORDED),
    program(counted, _points(1000), 1.5, UNRECORDED, "small"),
    program(seeded_inside, lambda seed: (200_000, seed), 7, UNRECORDED, "random"),
)
