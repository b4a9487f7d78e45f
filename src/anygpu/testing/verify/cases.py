"""The cases of a check: a program with its inputs on the verified device; one that differs is made small."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from anygpu.base.typing import HostArray
from anygpu.engines import Isolation
from anygpu.engines.catalogue import entry_of
from anygpu.engines.numpy import lowering
from anygpu.errors import AllocationError, Unsupported
from anygpu.hardware.device import Device
from anygpu.placement.agreement.comparison import judge
from anygpu.placement.known import Known
from anygpu.placement.machine import machine_of
from anygpu.placement.offload import Calls, Result
from anygpu.placement.options import options
from anygpu.placement.planner import Planner
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Input
from anygpu.testing.verify.document import CallTiming
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.worker import Ran, Worker

# -- makes a program small that gives a wrong result: nodes are dropped while it still does


class Suspect(NamedTuple):
    """A program, and the inputs with which it is wrong."""

    program: Program
    inputs: tuple[HostArray, ...]


#: Whether a smaller program is wrong in the same way.
IsWrong = Callable[[Suspect], bool]


def reduced(suspect: Suspect, is_wrong: IsWrong, *, has_time: Callable[[], bool]) -> Suspect:
    """The smallest program that was found before the time was over; the same one if no smaller one is wrong."""
    for smaller in _with_one_output(suspect):
        if not has_time():
            return suspect
        if is_wrong(smaller):
            suspect = smaller
            break
    return _with_nodes_given(suspect, is_wrong, has_time)


def part(suspect: Suspect, output: int, given: Mapping[int, HostArray]) -> Suspect:
    """What computes one node, with the values of the `given` nodes as inputs."""
    program = suspect.program
    values = {**{position: suspect.inputs[position] for position in range(program.input_count)}, **given}
    needed = {output}
    for position in range(output, -1, -1):
        if position in needed and position not in values:
            needed.update(program.nodes[position].inputs)
    sources = [position for position in sorted(needed) if position in values]
    places = {position: number for number, position in enumerate(sources)}
    nodes = [Node(Input(*program.specs[position])) for position in sources]
    for position in sorted(needed.difference(values)):
        op, operands = program.nodes[position]
        places[position] = len(nodes)
        nodes.append(Node(op, tuple(places[each] for each in operands)))
    return Suspect(Program(nodes, [places[output]]), tuple(values[position] for position in sources))


def operations(program: Program) -> tuple[str, ...]:
    """What is computed, each operation once, without what only makes values."""
    names = dict.fromkeys(node.op.name for node in program.nodes if not isinstance(node.op, Input))
    return tuple(name for name in names if name not in ("constant", "iota")) or tuple(names)


def _with_one_output(suspect: Suspect) -> Iterator[Suspect]:
    """Every node alone as the result, the first first; inputs are taken to be right."""
    for position in range(suspect.program.input_count, len(suspect.program)):
        yield part(suspect, position, {})


def _with_nodes_given(suspect: Suspect, is_wrong: IsWrong, has_time: Callable[[], bool]) -> Suspect:
    """Nodes become inputs with the values that NumPy computes for them, those nearest to the result first."""
    program = suspect.program
    if len(program.outputs) > 1:
        return suspect
    (output,) = program.outputs
    every = Program.trusted(program.nodes, tuple(range(len(program))), program.specs, program.lines)
    values = lowering.run(every, list(suspect.inputs))

    def candidates() -> Iterator[Sequence[int]]:
        computed = [
            position
            for position in range(output - 1, program.input_count - 1, -1)
            if program.nodes[position].inputs and program.specs[position].dtype != "bfloat16"
        ]
        yield [position for position in program.nodes[output].inputs if position in computed]
        yield from ([position] for position in computed)

    given: dict[int, HostArray] = {}
    best = suspect
    for positions in candidates():
        if not positions or not has_time():
            continue
        trial = part(suspect, output, given | {position: values[position] for position in positions})
        if len(trial.program) < len(best.program) and is_wrong(trial):
            given |= {position: values[position] for position in positions}
            best = trial
    return best


# -- the device that is verified, opened as it is for a user's calls


#: Seconds after which a case counts as hung. Compiling a large program takes some of them.
CASE_SECONDS = 60.0


class _PlannerOfOne(Planner):
    """Knows one device, so that no other is probed while it is verified."""

    def __init__(self, device: Device, places: DeviceRegistry) -> None:
        super().__init__(known=places)
        self._machine = machine_of((device,), ())


class Subject:
    """One device. Its worker is a process of its own, whatever the engine, so that a crash is a finding."""

    def __init__(self, device: Device, *, places: DeviceRegistry = registry, timeout: float = CASE_SECONDS) -> None:
        self.device = device
        self.places = places
        self.timeout = timeout
        #: NumPy itself cannot crash, and is in this process anyway.
        self.isolation: Isolation = "thread" if entry_of(device.id).probe_in == "here" else "process"
        self._planner = _PlannerOfOne(device, places)
        self._options = options(on=device.id, fallback="raise", check="off", isolation=self.isolation, timeout=timeout)
        #: By function, so that a second call knows what the first has learnt.
        self._calls: dict[Callable[..., Any], Calls] = {}

    @property
    def worker(self) -> Worker:
        """The open worker; one that has died is replaced."""
        return self.places.worker(self.device.id, isolation=self.isolation)

    @property
    def handle(self) -> DeviceHandle:
        """The device as arrays use it."""
        return self.places.find(self.device.id, isolation=self.isolation)

    def run(self, program: Program, inputs: Sequence[HostArray]) -> Ran:
        """Run a program; what the device lacks runs on the host, and is listed in the result."""
        return self.worker.run(program, inputs, timeout=self.timeout)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Result:
        """Call a function as `anygpu.run` does with `on=` and `fallback="raise"`."""
        calls = self._calls.get(function)
        if calls is None:
            calls = self._calls[function] = Calls(function, Known(self._options), lambda: self._planner)
        return calls.run(*arguments)


# -- what a check consists of: cases, each a program with its inputs, or something else that is done with the device


class Tried(NamedTuple):
    """What came of one case."""

    #: A sentence about the first thing that is wrong; empty if nothing is.
    wrong: str = ""
    #: Whether a part ran on the host.
    hosted: bool = False
    #: Why the case says nothing; empty if it does.
    skipped: str = ""
    timings: tuple[CallTiming, ...] = ()
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


VerifyCase = ProgramCase | ActCase


class VerifyCheck(NamedTuple):
    """One kind of trial."""

    name: str
    #: What a device is known to do that passes: a sentence for the table.
    proves: str
    #: Of the time, beside the shares of the others.
    share: float
    #: How many cases there are, for a device.
    count: Callable[[Subject], int]
    #: The cases, made while they are tried.
    cases: Callable[[Subject], Iterator[VerifyCase]]


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
