"""Pieces fit the budget, are as few as can be, and give what the whole gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.typing import HostArray
from anygpu.engines.numpy.lowering import run
from anygpu.placement.plan.chunking import ChunkRefused, Chunks, chunks_for, corrected, memory_needed
from anygpu.program.graph import Program
from anygpu.program.independence import cut
from tests.plan.sampling import recorded
from tests.support.program_strategies import programs
from tests.support.random_programs import random_inputs
from tests.support.random_programs.error_bounds import disagreement


def in_pieces(program: Program, chunks: Chunks, inputs: list[HostArray]) -> list[HostArray]:
    results: list[list[HostArray]] = [[] for _ in program.outputs]
    for start in range(0, chunks.cut.length, chunks.piece):
        stop = min(start + chunks.piece, chunks.cut.length)
        given_ = [
            each if axis is None else each[(slice(None),) * axis + (slice(start, stop),)]
            for each, axis in zip(inputs, chunks.cut.inputs, strict=True)
        ]
        for found, piece in zip(results, run(cut(program, chunks.cut, start, stop), given_), strict=True):
            found.append(piece)
    return [
        pieces[0] if axis is None else np.concatenate(pieces, axis)
        for pieces, axis in zip(results, chunks.cut.outputs, strict=True)
    ]


@settings(deadline=None, max_examples=150)
@given(programs(), st.floats(0.05, 1.2), st.floats(0.5, 3.0), st.integers(0, 2**32))
def test_every_piece_fits_and_together_they_are_the_whole(
    program: Program, share: float, correction: float, seed: int
) -> None:
    budget = int(memory_needed(program) * share)
    chunks = chunks_for(program, budget, correction=correction)
    if isinstance(chunks, ChunkRefused):
        assert chunks.reason.endswith(".")
        return
    assert chunks.peak_bytes <= budget
    assert chunks.count == -(-chunks.cut.length // chunks.piece)
    lengths = {min(chunks.piece, chunks.cut.length - start) for start in range(0, chunks.cut.length, chunks.piece)}
    assert len(lengths) <= 2
    for length in lengths:
        assert memory_needed(cut(program, chunks.cut, 0, length)) * correction <= budget
    inputs = random_inputs(program, random.Random(seed))
    assert disagreement(run(program, inputs), in_pieces(program, chunks, inputs), program) is None


@settings(deadline=None, max_examples=50)
@given(st.integers(20, 27), st.integers(20, 27))
def test_more_room_means_no_more_pieces(one: int, other: int) -> None:
    program = recorded(lambda x: np.tanh(x) * 2 + 1, ((10**8,), "float32"))
    less, more = (chunks_for(program, 1 << bits) for bits in sorted((one, other)))
    assert isinstance(less, Chunks)
    assert isinstance(more, Chunks)
    assert more.count <= less.count


def test_an_array_ten_times_the_budget() -> None:
    program = recorded(lambda x: np.tanh(x) * 2 + 1, ((10**8,), "float32"))
    chunks = chunks_for(program, 40_000_000)
    assert isinstance(chunks, Chunks)
    # Inputs and results are 800 MB, and a piece has temporaries as well.
    assert 20 <= chunks.count <= 60
    assert chunks.peak_bytes <= 40_000_000
    assert chunks.peak_bytes > 28_000_000, "the room is used"


def test_what_every_piece_needs_whole_counts_for_every_piece() -> None:
    program = recorded(lambda x, w: x @ w, ((10**6, 512), "float32"), ((512, 512), "float32"))
    chunks = chunks_for(program, 64 << 20)
    assert isinstance(chunks, Chunks)
    assert chunks.cut.inputs == (0, None)
    assert chunks.peak_bytes > (1 << 20) + 2 * chunks.piece * 512 * 4


def test_a_program_that_fits_is_one_piece() -> None:
    program = recorded(lambda x: x + 1, ((1000,), "float32"))
    chunks = chunks_for(program, 1 << 20)
    assert isinstance(chunks, Chunks)
    assert (chunks.piece, chunks.count) == (1000, 1)


def test_pieces_of_one_program_are_preferred() -> None:
    """Rows of `x` alone depend on their place in `y` and nowhere else; columns of both are the same everywhere."""
    program = recorded(
        lambda x, y: x + np.sum(y[:, None] * y[None, :], axis=-1)[:, None],
        ((512, 4096), "float32"),
        ((512,), "float32"),
    )
    chunks = chunks_for(program, 4 << 20)
    assert isinstance(chunks, Chunks)
    first, second = (cut(program, chunks.cut, start, start + chunks.piece).key for start in (0, chunks.piece))
    assert first == second


def test_no_independent_axis() -> None:
    refused = chunks_for(recorded(np.sum, ((10**8,), "float32")), 1 << 20)
    assert isinstance(refused, ChunkRefused)
    assert "independent" in refused.reason


def test_one_row_is_too_much() -> None:
    refused = chunks_for(recorded(lambda x: np.sort(x, axis=-1), ((100, 10**6), "float32")), 1 << 20)
    assert isinstance(refused, ChunkRefused)
    assert "smallest chunk" in refused.reason
    assert "1.0 MiB" in refused.reason


@given(st.floats(0.4, 8.0), st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_corrections_are_bounded_and_cover_what_was_seen(old: float, predicted: int, measured: int) -> None:
    new = corrected(old, predicted, measured)
    assert 0.4 <= new <= 8.0
    # Predicted with the new correction, what was measured would have been covered.
    if measured <= predicted:
        assert new <= old
    if new < 8.0:
        assert predicted / old * new >= measured * 0.999


def test_corrections_settle() -> None:
    """The same measurement again changes nothing, so that the pieces stay the programs that they are."""
    needed, plain = 1_300_000, 1_000_000
    first = corrected(1.0, plain, needed)
    assert first == pytest.approx(1.365)
    assert corrected(first, int(plain * first), needed) == first
    assert corrected(1.0, plain, 990_000) == 1.0
    assert corrected(1.0, plain, 900_000) == 1.0
    assert corrected(1.0, plain, 500_000) == pytest.approx(0.525)
    assert corrected(1.0, plain, 0) == 0.4
    assert corrected(1.5, 0, 100) == 1.5
