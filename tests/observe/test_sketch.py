"""Quantiles within 1 %, in a fixed memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.observe.statistics import Sketch

SHARES = (0.01, 0.5, 0.9, 0.99, 1.0)
TIMES = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=200)


def nearest_rank(values: list[float], share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf"))


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    sketch.add(np.asarray(values))
    return sketch


@given(TIMES)
def test_every_quantile_is_within_one_percent(values: list[float]) -> None:
    sketch = sketch_of(values)
    for share in SHARES:
        assert sketch.quantile(share) == pytest.approx(nearest_rank(values, share), rel=0.01 + 1e-9)
    assert sketch.count == len(values)
    assert sketch.total == pytest.approx(sum(values))
    assert sketch.most == max(values)


@given(TIMES, TIMES)
def test_sketches_can_be_added(first: list[float], second: list[float]) -> None:
    both = sketch_of(first)
    both.merge(sketch_of(second))
    for share in SHARES:
        assert both.quantile(share) == sketch_of(first + second).quantile(share)


def test_memory_does_not_grow_with_the_number_of_times() -> None:
    generator = np.random.default_rng(0)
    sketch = Sketch()
    for _ in range(100):
        sketch.add(generator.lognormal(-9, 1, 10_000))
    assert sketch.count == 1_000_000
    assert sketch.nbytes < 8_000


def test_times_that_cannot_be_are_counted_all_the_same() -> None:
    sketch = sketch_of([0.0, -1.0, 1e300])
    assert sketch.count == 3
    assert sketch.quantile(0.01) == pytest.approx(1e-9, rel=0.02)


def test_nothing() -> None:
    sketch = Sketch()
    sketch.merge(Sketch())
    sketch.add(np.zeros(0))
    assert sketch.quantile(0.5) is None
