"""What a check consists of: cases, each a program with its inputs, or something else that is done with the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from anygpu.agreement.comparison import judge
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.errors import AllocationError, Unsupported
from anygpu.program.graph import Program
from anygpu.verify.document import Timing
from anygpu.verify.reducing import Suspect, part
from anygpu.verify.subject import Subject


class Tried(NamedTuple):
    """What came of one case."""

    #: A sentence about the first thing that is wrong; empty if nothing is.
    wrong: str = ""
    #: Whether a part ran on the host.
    hosted: bool = False
    #: Why the case says nothing; empty if it does.
    skipped: str = ""
    timings: tuple[Timing, ...] = ()
    #: What is wrong, smaller than the whole program where that is known.
    suspect: Suspect | None = None


class Comparison(NamedTuple):
    """What results are compared with."""

    wrong: str = ""
    skipped: str = ""
    #: The number of an output that is wrong, where it is known.
    output: int | None = None


#: Compares the results of a program; it is told which of its nodes the device lacks.
Compare = Callable[[Program, Sequence[HostArray], Sequence[HostArray], set[int]], Comparison]


class ProgramCase(NamedTuple):
    """A program that has to give what NumPy gives."""

    name: str
    number: int
    program: Program
    inputs: tuple[HostArray, ...]
    compare: Compare

    def attempt(self, subject: Subject) -> Tried:
        lacking = {lack.node for lack in subject.worker.supports(self.program)}
        results = subject.run(self.program, self.inputs).results
        found = self.compare(self.program, self.inputs, results, lacking)
        return Tried(found.wrong, bool(lacking), found.skipped, suspect=self.suspect(found) if found.wrong else None)

    def suspect(self, found: Comparison) -> Suspect:
        """What computes the wrong output, and the whole program where that is not known."""
        whole = Suspect(self.program, self.inputs)
        return whole if found.output is None else part(whole, self.program.outputs[found.output], {})


class ActCase(NamedTuple):
    """Something that is done with the device, such as asking for too much memory."""

    name: str
    number: int
    act: Callable[[Subject], Tried]

    def attempt(self, subject: Subject) -> Tried:
        try:
            return self.act(subject)
        except Unsupported:
            return Tried(hosted=True)


Case = ProgramCase | ActCase


class Check(NamedTuple):
    """One kind of trial."""

    name: str
    #: What a device is known to do that passes: a sentence for the table.
    proves: str
    #: Of the time, beside the shares of the others.
    share: float
    #: How many cases there are, for a device.
    count: Callable[[Subject], int]
    #: The cases, made while they are tried.
    cases: Callable[[Subject], Iterator[Case]]


def judged(
    program: Program, inputs: Sequence[HostArray], results: Sequence[HostArray], lacking: set[int]
) -> Comparison:
    """By the tolerances that real calls are compared with."""
    expected = lowering.run(program, list(inputs))
    judgement = judge(program, inputs, expected, list(results), list)
    if judgement.verdict == "undecided":
        return Comparison(skipped=judgement.why)
    if judgement.difference is None:
        return Comparison()
    return Comparison(judgement.difference.sentence, output=judgement.difference.leaf)


def differing(suspect: Suspect, results: Sequence[HostArray]) -> bool:
    """Whether results are wrong without doubt."""
    return bool(judged(suspect.program, suspect.inputs, results, set()).wrong)


def skipped_for_memory(error: AllocationError) -> Tried:
    return Tried(skipped=f"it has too little memory ({type(error).__name__})")


def only(name: str, number: int, act: Callable[[Subject], Any]) -> ActCase:
    """A case whose function returns a sentence about what is wrong, or nothing."""
    return ActCase(name, number, lambda subject: Tried(act(subject) or ""))
