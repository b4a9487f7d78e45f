"""Every primitive, function and type, as `anygpu.testing.check_engine_programs` has them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program.graph import Program
from anygpu.testing.cases import ConformanceProgram, conformance_programs
from anygpu.testing.conformance import conformance_difference
from anygpu.verify.cases import Case, Check, Comparison, ProgramCase
from anygpu.verify.subject import Subject


@cache
def _suites() -> tuple[ConformanceProgram, ...]:
    return tuple(conformance_programs())


def _case(number: int, suite: ConformanceProgram) -> ProgramCase:
    def compare(
        program: Program, inputs: Sequence[HostArray], results: Sequence[HostArray], lacking: set[int]
    ) -> Comparison:
        expected = lowering.run(program, list(inputs))
        wrong = []
        for position, (result, wanted, got) in enumerate(zip(suite.results, expected, results, strict=True)):
            sentence = conformance_difference(wanted, got, result)
            if sentence is not None:
                wrong.append((position, f"{program.nodes[program.outputs[position]].op.name}: {sentence}"))
        if not wrong:
            return Comparison()
        more = f" {len(wrong) - 1} more results of this program are wrong." if len(wrong) > 1 else ""
        return Comparison(f"{wrong[0][1]}.{more}", output=wrong[0][0])

    return ProgramCase(suite.name, number, suite.program, tuple(suite.inputs), compare)


def _cases(subject: Subject) -> Iterator[Case]:
    """In an order in which every part of the time sees every type."""
    order = list(range(len(_suites())))
    random.Random(0).shuffle(order)
    yield from (_case(number, _suites()[number]) for number in order)


CONFORMANCE = Check("conformance", "Every operation works in every type.", 0.2, lambda subject: len(_suites()), _cases)
