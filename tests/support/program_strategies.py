"""Random programs as a strategy of hypothesis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anygpu.program.graph import Program
from tests.support.random_programs import random_program

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def programs(**options: Any) -> SearchStrategy[Program]:
    """For hypothesis: any program that `random_program` makes with these options. It shrinks to fewer nodes."""
    from hypothesis import strategies

    most = options.pop("max_nodes", 24)
    return strategies.builds(
        lambda nodes, seed: random_program(seed, max_nodes=nodes, **options),
        strategies.integers(1, most),
        strategies.integers(0, 2**32 - 1),
    )
