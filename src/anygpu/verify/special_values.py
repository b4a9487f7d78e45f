"""Zeros of both signs, infinities, NaN, limits, ties and overflow, through every elementwise operation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

from anygpu.base.typing import HostArray
from anygpu.program.graph import Program
from anygpu.testing.special_values import Tally, cases
from anygpu.testing.special_values.programs import TableCase as Table
from anygpu.testing.special_values.tables import count
from anygpu.verify.cases import Case, Check, Comparison, ProgramCase
from anygpu.verify.subject import Subject


@cache
def _tables() -> tuple[Table, ...]:
    return tuple(cases("some"))


def _name(table: Table) -> str:
    first, last = table.checks[0], table.checks[-1]
    what = first.what if len(table.checks) == 1 else f"{first.what} to {last.what}"
    return f"{what} of {first.dtype}, {table.form}"


def _case(number: int, table: Table) -> ProgramCase:
    def compare(
        program: Program, inputs: Sequence[HostArray], results: Sequence[HostArray], lacking: set[int]
    ) -> Comparison:
        found = Tally()
        count(table, lacking, results, found)
        if not found.differences:
            return Comparison()
        worst = max(found.differences, key=lambda each: each.differ)
        more = len(found.differences) - 1
        output = next(position for position, check in enumerate(table.checks) if check.what == worst.what)
        return Comparison(
            f"{worst}." + (f" {more} more operations of this program differ." if more else ""), output=output
        )

    # The text of a program in a finding names no line of ours.
    program = Program(table.program.nodes, table.program.outputs)
    return ProgramCase(_name(table), number, program, tuple(table.inputs), compare)


def _cases(subject: Subject) -> Iterator[Case]:
    """In an order in which every part of the time sees every type."""
    order = list(range(len(_tables())))
    random.Random(0).shuffle(order)
    yield from (_case(number, _tables()[number]) for number in order)


SPECIAL_VALUES = Check(
    "special-values",
    "Infinities, NaN, limits and overflow are as in NumPy.",
    0.16,
    lambda subject: len(_tables()),
    _cases,
)
