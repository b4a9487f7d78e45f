"""Kernels that mean harm, or whose text was broken on purpose: `benchmarks.hostile_kernels` with small numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import anygpu as ag
from anygpu.errors import AnyGPUError
from anygpu.placement.kernels.first_use import trials
from benchmarks.hostile_kernels import (
    TRAPS,
    Sentinels,
    Trap,
    fall_into,
    mutants,
    outside,
    wild_indices,
)
from benchmarks.hostile_sources import CORPUS, Good


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))


@pytest.fixture(scope="module", autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    children = trials.processes()
    trials.close()
    assert not any(psutil.pid_exists(each) for each in children)


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("good", CORPUS, ids=lambda good: f"{good.language}-{good.reference.__name__}")
def test_the_kernels_that_are_mutated_are_right(good: Good) -> None:
    kernel = ag.Kernel(good.source, good.reference, updates=good.updates)
    read = [np.arange(128).astype(each.dtype) for each in kernel.parameters if each.role != "output"]
    usual = {"n": 128, "alpha": 2, "first": 1, "step": 1}
    assert kernel.check(*read, **{each.name: usual[each.name] for each in kernel.numbers}).compared


#: Each new child takes its time, so of those that kill one there is one here; the benchmark has them all.
HERE = [trap for trap in TRAPS if trap.language == "wgsl" or trap.name in ("endless loop", "far outside")]


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("trap", HERE, ids=lambda trap: f"{trap.language}-{trap.name}".replace(" ", "-"))
def test_each_trap_is_told_by_its_own_error(trap: Trap) -> None:
    slow = "endless" in trap.name
    error, _ = fall_into(trap, 1.0 if slow else 20.0)
    assert isinstance(error, trap.expected)
    assert isinstance(error, AnyGPUError)


def test_indices_outside_touch_nothing_in_wgsl() -> None:
    tally = wild_indices(200, seed=5)
    assert tally.tried == 200
    assert tally.untyped == {}
    assert tally.sentinels_changed == 0
    assert tally.wrong_values == 0
    assert tally.right == 200


@pytest.mark.parametrize(("language", "count"), [("wgsl", 30), ("opencl", 6)])
def test_mutated_sources_give_typed_errors(language: str, count: int) -> None:
    tally = mutants(language, count, seed=11, seconds=30.0)  # type: ignore[arg-type]
    assert tally.tried == count
    assert tally.untyped == {}
    assert tally.sentinels_changed == 0


def test_sentinels_notice_what_changes_them() -> None:
    sentinels = Sentinels("numpy", 2)
    assert sentinels.changed() == 0
    sentinels.arrays[1][5] = 0
    assert sentinels.changed() == 1


def test_indices_are_outside() -> None:
    rng = random.Random(3)
    found = [outside(rng, 128) for _ in range(1000)]
    assert all(not 0 <= each < 128 for each in found)
    assert {-1, 128, -(2**31), 2**31 - 1} <= set(found)
