"""Attention against torch's, with masks of every kind, on every engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from anygpu import nn
from tests.nn.on_engines import ENGINES, agree, close, np, numbers, on


def by_torch(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
    q, k, v = (torch.from_numpy(np.ascontiguousarray(each)) for each in (q, k, v))
    bias = None if mask is None else torch.from_numpy(mask)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, **options).numpy()


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_mask(engine: str) -> None:
    q, k, v = numbers(2, 3, 5, 8), numbers(2, 3, 7, 8, seed=1), numbers(2, 3, 7, 4, seed=2)
    agree(engine, nn.attention, q, k, v, wanted=by_torch(q, k, v))
    scaled = by_torch(q, k, v, scale=0.3)
    agree(engine, lambda *given: nn.attention(*given, scale=0.3), q, k, v, wanted=scaled)


@pytest.mark.parametrize("engine", ENGINES)
def test_causal(engine: str) -> None:
    q, k, v = numbers(2, 6, 8), numbers(2, 6, 8, seed=1), numbers(2, 6, 8, seed=2)

    def causal(*given: Any) -> Any:
        return nn.attention(*given, causal=True)

    agree(engine, causal, q, k, v, wanted=by_torch(q, k, v, is_causal=True))
    # Fewer queries than keys are the last ones, as when a text goes on.
    agree(engine, causal, q[:, -2:], k, v, wanted=by_torch(q, k, v, is_causal=True)[:, -2:])


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_masks(engine: str) -> None:
    q, k, v = numbers(2, 3, 5, 8), numbers(2, 3, 7, 8, seed=1), numbers(2, 3, 7, 8, seed=2)
    sees = np.random.default_rng(3).random((2, 1, 5, 7)) < 0.7
    sees[..., 0] = True

    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return nn.attention(q, k, v, mask=mask)

    agree(engine, masked, q, k, v, sees, wanted=by_torch(q, k, v, sees))
    padding = sees[:, :, :1, :]  # one row for all queries
    agree(engine, masked, q, k, v, padding, wanted=by_torch(q, k, v, np.repeat(padding, 5, -2)))
    bias = numbers(3, 5, 7, seed=4)
    agree(engine, masked, q, k, v, bias, wanted=by_torch(q, k, v, bias))


def test_leading_axes_broadcast() -> None:
    q, k, v = numbers(2, 3, 5, 8), numbers(3, 7, 8, seed=1), numbers(7, 8, seed=2)
    wanted = by_torch(q, np.broadcast_to(k, (2, 3, 7, 8)), np.broadcast_to(v, (2, 3, 7, 8)))
    agree("numpy", nn.attention, q, k, v, wanted=wanted)
    mask = np.ones((4, 1, 1, 5, 7), bool)
    assert agree("numpy", lambda *given: nn.attention(*given[:3], mask=given[3]), q, k, v, mask).shape == (
        4,
        2,
        3,
        5,
        8,
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_that_sees_nothing(engine: str) -> None:
    q, k, v = numbers(3, 4), numbers(2, 4, seed=1), numbers(2, 4, seed=2)
    found = agree(engine, lambda *given: nn.attention(*given, causal=True), q, k, v)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()
    empty = nn.attention(q, k[:0], v[:0])
    assert empty.shape == (3, 4)
    assert np.isnan(empty).all()
    assert nn.attention(q[:0], k, v).shape == (0, 4)


def test_types() -> None:
    q = numbers(4, 8)
    half = q.astype("float16")
    assert nn.attention(half, half, half).dtype == np.float16
    close(nn.attention(half, half, half), nn.attention(*[half.astype("float32")] * 3).astype("float16"), 0)
    assert nn.attention(q, q, q.astype("float64")).dtype == np.float64
    assert nn.attention(on("numpy", q), q, q.astype("float64")).dtype == np.float64
    with pytest.raises(TypeError, match="takes floats, not int64"):
        nn.attention(np.ones((2, 2), int), np.ones((2, 2), int), np.ones((2, 2), int))
    with pytest.raises(TypeError, match="write mask != 0"):
        nn.attention(q, q, q, mask=np.ones((4, 4), int))


def test_what_does_not_fit_is_said() -> None:
    q = numbers(4, 8)
    with pytest.raises(ValueError, match="q has at least two axes"):
        nn.attention(q[0], q, q)
    with pytest.raises(ValueError, match="length 8 do not fit keys of length 7"):
        nn.attention(q, q[:, :7], q)
    with pytest.raises(ValueError, match="4 keys need as many values"):
        nn.attention(q, q, q[:3])
    with pytest.raises(ValueError, match=r"mask of shape \(3, 4\) does not fit 4 queries and 4 keys"):
        nn.attention(q, q, q, mask=np.ones((3, 4), bool))
    with pytest.raises(ValueError, match="do not broadcast"):
        nn.attention(numbers(2, 4, 8), numbers(3, 4, 8), q)
