"""Likeness, and the best of many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu import nn
from tests.nn.on_engines import ENGINES, agree, close, np, numbers, on


@pytest.mark.parametrize("engine", ENGINES)
def test_cosine_similarity(engine: str) -> None:
    a, b = numbers(3, 5, 8), numbers(5, 8, seed=1)
    wanted = torch.nn.functional.cosine_similarity(torch.from_numpy(a), torch.from_numpy(b), dim=-1).numpy()
    agree(engine, nn.cosine_similarity, a, b, wanted=wanted)
    pairs = np.stack([nn.cosine_similarity(a[0, each], b) for each in range(5)])
    agree(engine, nn.pairwise_cosine_similarity, a[0], b, wanted=pairs)


def test_cosine_similarity_at_its_ends() -> None:
    a = numbers(4, 8)
    a[1] = 0
    alike = nn.pairwise_cosine_similarity(a)
    close(np.diag(alike), np.array([1, 0, 1, 1], "float32"), 1e-6)
    close(nn.cosine_similarity(a, -a), -np.diag(alike), 1e-6)
    close(nn.cosine_similarity(a, a, axis=0), np.ones(8, "float32"), 1e-6)
    assert nn.cosine_similarity(a.astype("float16"), a.astype("float16")).dtype == np.float16
    assert nn.cosine_similarity(np.ones((2, 3), int), np.ones(3, int)).dtype == np.float64
    with pytest.raises(ValueError, match=r"shapes are \(4, 8\) and \(4, 7\)"):
        nn.pairwise_cosine_similarity(a, a[:, :7])


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_top_k(engine: str) -> None:
    x = np.random.default_rng(0).permutation(60).reshape(3, 20).astype("float32")
    values, places = torch.topk(torch.from_numpy(x), 4)
    found = agree(engine, lambda x: nn.top_k(x, 4), x)
    close(found[0], values.numpy(), 0)
    close(found[1], places.numpy(), 0)
    agree(engine, lambda x: nn.top_k(x, 2, axis=0), x)


@pytest.mark.parametrize("engine", ENGINES)
def test_top_k_of_equal_ones_and_of_nan(engine: str) -> None:
    x = np.array([1, 3, 3, np.nan, 3, 0, np.nan], "float32")
    values, places = agree(engine, lambda x: nn.top_k(x, 5), x)
    assert places.tolist() == [3, 6, 1, 2, 4]
    assert np.isnan(values[:2]).all()


@given(
    lines=st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=4),
    k=st.integers(0, 4),
    dtype=st.sampled_from(("int8", "uint16", "int64", "float16", "float64")),
)
@settings(max_examples=60)
def test_top_k_is_the_beginning_of_a_stable_sort(lines: list[list[int]], k: int, dtype: str) -> None:
    x = np.abs(np.array(lines)).astype(dtype) if dtype == "uint16" else np.array(lines).astype(dtype)
    order = np.argsort(-x.astype("float64"), axis=-1, kind="stable")[:, :k]
    for given_as in (x, on("numpy", x)):
        values, places = nn.top_k(given_as, k)
        close(places, order, 0)
        close(values, np.take_along_axis(x, order, -1), 0)


def test_top_k_that_is_too_many() -> None:
    for k in (-1, 6):
        with pytest.raises(ValueError, match=f"k={k} does not fit an axis of length 5"):
            nn.top_k(np.ones(5), k)
    empty: Any = nn.top_k(np.ones((0, 3)), 2)
    assert empty[0].shape == (0, 2)
