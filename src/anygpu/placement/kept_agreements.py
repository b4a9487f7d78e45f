"""The agreement of native code with NumPy, kept for the next process beside the code itself.

It holds for one program of one function, on this processor, as the code of this version compiles it, with this NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from anygpu.engines.cpu.loader import keep_fact, kept_fact
from anygpu.placement.trust import NumberKind, Trust
from anygpu.program.graph import Program

_KIND = "agreement"


class Agreement(msgspec.Struct, array_like=True, frozen=True):
    """What the first comparison has shown."""

    #: The seconds of a call.
    numpy: float
    native: float
    #: For each number among the inputs, its kind.
    kinds: tuple[frozenset[str], ...]
    #: `Trust.plain_orders`.
    orders: tuple[tuple[int, ...] | None, ...] | None
    #: `Trust.carries_quietly`, `Trust.makes_quietly` and `Trust.hides_quietly`.
    carries: bool
    makes: bool
    hides: bool

    def trust(self, program: str) -> Trust:
        """What was known then."""
        trust = Trust()
        trust.recall_order(self.orders)
        trust.begin_with_numbers(program, "cpu", self.kinds)
        trust.carries_quietly, trust.makes_quietly, trust.hides_quietly = self.carries, self.makes, self.hides
        return trust


def keep_agreement(
    program: Program, function: bytes, kinds: Sequence[NumberKind], trust: Trust, *, numpy: float, native: float
) -> None:
    """Keep it for a function, which is known by its mark; not where the order of the result is special."""
    if trust.knows_plain_order:
        quietly = (trust.carries_quietly, trust.makes_quietly, trust.hides_quietly)
        found = Agreement(numpy, native, tuple(kinds), trust.plain_orders, *quietly)
        keep_fact(_KIND, program, (function, np.__version__), found)


def kept_agreement(program: Program, function: bytes) -> Agreement | None:
    """What was kept, if all that it depends on is the same."""
    return kept_fact(_KIND, program, (function, np.__version__), Agreement)
