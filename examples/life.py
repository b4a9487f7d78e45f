"""Conway's Game of Life, some generations on a torus."""

from __future__ import annotations

from typing import Any

import numpy as np


def life(board: Any, generations: int = 10) -> tuple[Any, Any]:
    for _ in range(generations):
        neighbours = sum(
            np.roll(np.roll(board, dy, axis=0), dx, axis=1)
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if (dy, dx) != (0, 0)
        )
        board = ((neighbours == 3) | ((board == 1) & (neighbours == 2))).astype(np.uint8)
    return board, np.count_nonzero(board)


def inputs(rng: np.random.Generator) -> list[Any]:
    return [(rng.random((97, 113)) < 0.3).astype(np.uint8)]


if __name__ == "__main__":
    from examples.compare import compare

    compare(life, inputs(np.random.default_rng(0)))
