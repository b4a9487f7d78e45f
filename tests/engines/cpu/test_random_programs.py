"""Random programs as native code: right, inside of their buffers, and the same on any number of threads."""

from __future__ import annotations

import platform

import pytest

from anygpu.engines.cpu.loader import host_processor
from anygpu.errors import InvalidOption
from tests.engines.cpu.random_checks import judged

#: Found by long runs: what once made LLVM abort, or could not be compiled.
FOUND = (83, 3_004_543, 3_008_609)


def check(seeds: range | tuple[int, ...]) -> None:
    for seed in seeds:
        assert judged(seed).wrong == {}, f"seed {seed}"


def test_random_programs() -> None:
    check((*FOUND, *range(60)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3"])
def test_lesser_processors(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CPU_FEATURES", level)
    assert "avx512f" not in host_processor().present
    check(range(100, 115))


def test_a_level_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CPU_FEATURES", "80386")
    with pytest.raises(InvalidOption, match="x86-64-v3"):
        host_processor()


@pytest.mark.full
def test_many_random_programs() -> None:
    check(range(10_000, 11_000))
