"""The table on a device: how much was compared, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.protocol import Lack
from anygpu.program.graph import Program
from anygpu.program.transforms import without_dead_code
from anygpu.testing.special_values.comparison import Check, wrong
from anygpu.testing.special_values.programs import Case

#: Elements of one output that are named.
_NAMED = 3


class Computer(Protocol):
    """What the table is run on; a worker is one."""

    def supports(self, program: Program) -> list[Lack]: ...

    def run(self, program: Program, arguments: Any) -> Any: ...


class Difference(msgspec.Struct, frozen=True):
    form: str
    what: str
    dtype: str
    #: Of one output: elements that differ, and how many it has.
    differ: int
    elements: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} of {self.dtype}, {self.form}: {self.differ} of {self.elements} differ: " + "; ".join(
            self.examples
        )


class Tally(msgspec.Struct):
    programs: int = 0
    comparisons: int = 0
    #: Elements whose primitive the device lacks, so that NumPy computed them.
    hosted: int = 0
    hosted_functions: dict[str, int] = {}
    by_form: dict[str, int] = {}
    differences: list[Difference] = []

    @property
    def differing(self) -> int:
        return sum(each.differ for each in self.differences)


def tally(cases: Iterable[Case], computer: Callable[[], Computer]) -> Tally:
    """Of all cases, on whatever `computer()` gives then: a worker that has died is replaced."""
    found = Tally()
    for case in cases:
        found.programs += 1
        _compare(case, computer, found)
    return found


def _compare(case: Case, computer: Callable[[], Computer], found: Tally) -> None:
    try:
        worker = computer()
        lacking = {lack.node for lack in worker.supports(case.program)}
        results = worker.run(case.program, case.inputs).results
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is a finding
        if len(case.checks) > 1:
            for output, check in zip(case.program.outputs, case.checks, strict=True):
                program = without_dead_code(
                    Program.trusted(case.program.nodes, (output,), case.program.specs, case.program.lines)
                )
                _compare(Case(case.form, program, case.inputs, (check,)), computer, found)
            return
        sentence = f"raised {type(error).__name__}: {str(error)[:200]}"
        _note(found, case, case.checks[0], 1, case.program.results[0].size, (sentence,))
        return
    count(case, lacking, results, found)


def count(case: Case, lacking: set[int], results: Sequence[HostArray], found: Tally) -> None:
    """Add the results of one case. What the device lacks, and what takes a value from there, is not compared."""
    lacking = _depending(case.program, lacking)
    for output, check, got in zip(case.program.outputs, case.checks, results, strict=True):
        if output in lacking:
            found.hosted += got.size
            counts = Counter(found.hosted_functions)
            counts[f"{check.what} of {check.dtype}"] += got.size
            found.hosted_functions = dict(counts)
            continue
        try:
            differs, expected, compared = wrong(check, np.asarray(got))
        except TypeError as error:
            _note(found, case, check, got.size, got.size, (str(error),))
            continue
        found.comparisons += compared
        found.by_form[case.form] = found.by_form.get(case.form, 0) + compared
        if differs.any():
            examples = tuple(
                _example(check, expected, got, index)
                for index in list(zip(*np.nonzero(np.atleast_1d(differs)), strict=True))[:_NAMED]
            )
            _note(found, case, check, int(np.count_nonzero(differs)), got.size, examples)


def _depending(program: Program, lacking: set[int]) -> set[int]:
    """What the device lacks, and what takes a value from there."""
    found = set(lacking)
    for position, node in enumerate(program.nodes):
        if any(source in found for source in node.inputs):
            found.add(position)
    return found


def _example(check: Check, expected: HostArray, got: HostArray, index: tuple[Any, ...]) -> str:
    place = tuple(int(each) for each in index)[: expected.ndim]
    operands = [
        values[place] if values.shape == expected.shape else values[place[:1]] if values.ndim else values
        for values in check.operands
    ]
    shown = ", ".join(_shown(each) for each in operands)
    return f"({shown}) is {_shown(expected[place])}, came {_shown(got[place])}"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"[{', '.join(_shown(each) for each in value[:3])}{', …' if len(value) > 3 else ''}]"
    return repr(value.item()) if isinstance(value, np.ndarray | np.generic) else repr(value)


def _note(found: Tally, case: Case, check: Check, differ: int, size: int, examples: tuple[str, ...]) -> None:
    found.differences.append(Difference(case.form, check.what, check.dtype, differ, size, examples))
