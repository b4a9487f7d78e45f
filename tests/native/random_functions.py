"""Random NumPy functions whose whole numbers and truth values hang on last bits, to compare native code bit by bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

#: Each takes a float array and gives one of the same shape.
_SMOOTH: tuple[Callable[[Any], Any], ...] = (
    np.exp, np.sin, np.tanh, np.cbrt, np.expm1, np.arctan, np.square, np.negative, np.abs, np.cosh, np.exp2,
    lambda x: np.sqrt(np.abs(x)), lambda x: np.log(np.abs(x) + 1), lambda x: np.log1p(x * x), lambda x: x / 3,
    lambda x: x * 0.1, lambda x: 1 / (x * x + 1), lambda x: x**3, lambda x: np.abs(x) ** 0.45, lambda x: x**2,
    lambda x: np.power(2.5, x), np.degrees, np.radians, lambda x: np.clip(x, -1, 1.5), lambda x: np.maximum(x, 0.25),
    lambda x: x - x.mean(), lambda x: x - x.mean(axis=-1, keepdims=True), lambda x: x / (x.std() + 1),
    lambda x: (x - x.mean(axis=-1, keepdims=True)) / (x.var(axis=-1, keepdims=True) + 1), lambda x: x - x.max(),
    lambda x: np.cumsum(x, axis=-1), lambda x: np.cumsum(x, axis=0), lambda x: x - x.sum(axis=0),
    lambda x: x + np.roll(x, 1, axis=0), lambda x: x[::-1] * 0.5, lambda x: (x.T * 3).T, lambda x: np.flip(x, -1),
    lambda x: np.hypot(x, 1.25), lambda x: np.arctan2(x, 0.5), lambda x: np.logaddexp(x, 0.3), np.sinc,
    lambda x: np.float_power(np.abs(x), 1.5).astype(x.dtype), lambda x: np.gradient(x, axis=-1), np.reciprocal,
    lambda x: x[..., ::2].repeat(2, axis=-1)[..., : x.shape[-1]] + x, lambda x: np.nan_to_num(x), np.spacing,
    lambda x: np.interp(x, [-2.0, 0.1, 3.0], [0.3, 1.7, 0.2]).astype(x.dtype), lambda x: x.astype(np.float16) + x,
    lambda x: (x + 1j * x[::-1]).real, lambda x: np.abs(x + 2j).astype(x.dtype), lambda x: np.median(x) + x,
    lambda x: np.convolve(x.ravel(), [0.25, 0.5, 0.25], "same").reshape(x.shape).astype(x.dtype),
    lambda x: x + np.linalg.norm(x), lambda x: x * x.prod(axis=0), lambda x: x - np.dot(x.ravel(), x.ravel()) * 1e-3,
    lambda x: x + np.average(x, axis=-1, keepdims=True), lambda x: x + np.ptp(x),
    lambda x: np.diff(x, axis=0, prepend=0),
    lambda x: x[:, 1:].sum(axis=1, keepdims=True) + x if x.ndim > 1 else x, lambda x: np.where(x > 0.1, x, x * x),
    lambda x: x + x.sum(axis=-1, dtype=np.float64, keepdims=True).astype(x.dtype), lambda x: np.copysign(x, 0.5 - x),
    lambda x: np.trapezoid(x, axis=-1)[..., None] + x if x.ndim > 1 else x, lambda x: x + np.nanmean(x),
    lambda x: np.percentile(x, 30) + x, lambda x: x + np.cov(x.ravel()).astype(x.dtype), lambda x: np.ldexp(x, 2),
    lambda x: x + np.arange(x.shape[-1]).astype(x.dtype).mean(), lambda x: np.sort(x, axis=-1), np.unwrap,
)  # fmt: skip
_PAIRS: tuple[Callable[[Any, Any], Any], ...] = (
    np.add, np.subtract, np.multiply, lambda x, y: x / (y * y + 1), np.maximum, np.hypot, np.arctan2, np.minimum,
    lambda x, y: np.power(np.abs(x) + 0.5, y), lambda x, y: np.where(x > y, x, y * 2), np.logaddexp,
)  # fmt: skip
#: Each takes a float array and gives something that is no float.
_DECISIONS: tuple[Callable[[Any], Any], ...] = (
    lambda x: (x * 37).astype(np.int32), lambda x: (np.abs(x) % 200).astype(np.uint8), lambda x: x > x.mean(),
    lambda x: x < 0.3, lambda x: np.floor(x * 10).astype(np.int64), lambda x: np.rint(x * 100).astype(np.int32),
    lambda x: x.argmax(axis=-1), lambda x: x.argmin(axis=0), np.signbit, lambda x: np.argsort(x, axis=-1),
    lambda x: x == x[..., :1], lambda x: (x // 0.1).astype(np.int32), lambda x: np.round(x, 1) * 10 > 3,
    lambda x: np.searchsorted(np.array([-1.0, 0.0, 0.5, 2.0]), x), lambda x: x.sum(axis=-1) > 1, np.isfinite,
    lambda x: (x > 0).sum(axis=0), lambda x: np.digitize(x, [-1.0, 0.25, 1.5]), lambda x: np.sign(x).astype(np.int8),
)  # fmt: skip
_SHAPES = ((7,), (256,), (1000,), (3001,), (5, 7), (40, 33), (128, 3), (3, 500), (300, 64), (4, 6, 50))


class RandomFunction:
    """A composition of a few of these, of two float arrays: called with NumPy's arrays or while it is traced."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        choose = random.Random(seed)
        self._steps = [
            (choose.random() < 0.3, choose.choice(_SMOOTH), choose.choice(_PAIRS)) for _ in range(choose.randint(1, 4))
        ]
        self._decide = choose.choice(_DECISIONS)
        self._shape = choose.choice(_SHAPES)
        self._dtype = choose.choice((np.float32, np.float64))
        self._returns_float = choose.random() < 0.5

    def inputs(self) -> tuple[Any, Any]:
        """Two arrays of magnitudes between 0.01 and 30, with some whole numbers."""
        rng = np.random.default_rng(self.seed)
        found = []
        for _ in range(2):
            x = rng.normal(size=self._shape) * 10.0 ** rng.uniform(-2, 1, self._shape)
            x.flat[:: max(1, x.size // 9)] = rng.integers(-3, 4)
            found.append(x.astype(self._dtype))
        return found[0], found[1]

    def __call__(self, x: Any, y: Any) -> Any:
        kept = y
        for is_pair, one, two in self._steps:
            x = two(x, kept) if is_pair else one(x)
        return (self._decide(x), x) if self._returns_float else self._decide(x)

    def __repr__(self) -> str:
        return f"RandomFunction({self.seed})"


def same_bits(one: Any, other: Any) -> bool:
    """Whether two arrays are equal in every bit; any NaN equals any other."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind not in "fc":
        return bool((one == other).all())
    both = np.isnan(one) & np.isnan(other)
    parts = [(one, other)] if one.dtype.kind == "f" else [(one.real, other.real), (one.imag, other.imag)]
    return all(bool((((a == b) & (np.signbit(a) == np.signbit(b))) | both).all()) for a, b in parts)
