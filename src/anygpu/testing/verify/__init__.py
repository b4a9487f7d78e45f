"""`anygpu verify`: a device of the user's own machine is tried, and the outcome is a record that can be sent to us.

This module has the record (`VerifyRecord`, without personal data), the reduction of wrong programs (`reduced`), the
device that is tried (`Subject`) and the cases that a check consists of. `values` and `checks` list what is tried, and
`running` does it within a time.

What users get is what is tried: programs run in the worker that calls use, and functions are called as
`anygpu.run(function, …, on=device, fallback="raise")` calls them.
"""

from __future__ import annotations

import getpass
import math
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from anygpu.agreement.comparison import judge
from anygpu.base.typing import HostArray
from anygpu.calls.call_table import CallTable
from anygpu.calls.offload import Calls, Result
from anygpu.calls.options import options
from anygpu.engines import Isolation
from anygpu.engines.catalogue import entry_of
from anygpu.engines.numpy import lowering
from anygpu.errors import AllocationError, Unsupported
from anygpu.hardware.device import Device
from anygpu.placement.machine import machine_of
from anygpu.placement.planner import Planner
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Input
from anygpu.workers.device_arrays.handle import DeviceHandle
from anygpu.workers.device_arrays.registry import DeviceRegistry, registry
from anygpu.workers.worker import Ran, Worker

# -- takes out of a text what tells whose machine it comes from: messages of drivers and compilers name files


#: Shorter names are parts of too many words.
_SHORTEST = 3
#: Absolute paths of at least two parts, of Unix and of Windows, and what stands for a folder already.
_PATHS = re.compile(r"(?<![\w/\\:.])…?(?:/[^\s/'\":;,()<>]+){2,}/?|(?:\b[A-Za-z]:|…)\\[^\s'\":;,()<>]+")
_IDENTITIES = re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\bGPU-[0-9a-fA-F-]{8,}\b")


class Owner(NamedTuple):
    """The folders and names by which a user or a machine could be recognised."""

    #: Folders that tell who it is, the longest first.
    folders: tuple[str, ...]
    #: Names of the user and of the machine.
    names: tuple[str, ...]


def this_owner() -> Owner:
    """The owner of this process: its home and temporary folders, and the names of its user and machine.

    Names of one or two letters are left out: they are parts of too many words.
    """
    folders = {path for path in (tempfile.gettempdir(), _home()) if path.strip("/")}
    host = socket.gethostname()
    names = [_user(), host, host.partition(".")[0]]
    return Owner(
        tuple(sorted(folders, key=len, reverse=True)),
        tuple(dict.fromkeys(name for name in names if len(name) >= _SHORTEST)),
    )


def without_personal_data(text: str, owner: Owner) -> str:
    """The text without folders, identities of cards, and names of the user and the machine; files keep their names."""
    for folder in owner.folders:
        text = text.replace(folder, "…")
    text = _IDENTITIES.sub("<identity>", text)
    text = _PATHS.sub(lambda found: "…/" + re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
    for name in owner.names:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "<name>", text, flags=re.IGNORECASE)
    return text


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:  # the system does not know one
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run as a user without a name
        return ""


SCHEMA = "anygpu.verify/1"

#: differs: a value is not NumPy's within the tolerances. raises: an error that should not be, or none that should.
#: crashes: the process that has the device died. hangs: there was no answer in time.
FindingKind = Literal["differs", "raises", "crashes", "hangs"]

#: complete: every case was tried. time: the time was over. interrupted: by the user. given up: it died too often.
CheckEnd = Literal["complete", "time", "interrupted", "given up"]


class WrongCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case in which the device was wrong."""

    check: str
    case: str
    #: The number of the case; of random programs the seed.
    seed: int
    kind: FindingKind
    sentence: str
    driver: str
    #: What is computed in the smallest program that is still wrong.
    operations: tuple[str, ...] = ()
    #: The text of that program; `None` where the case is not a program.
    program: str | None = None
    #: How many nodes it has, and had before it was reduced.
    nodes: int | None = None
    nodes_before: int | None = None
    #: The command that repeats the case.
    command: str


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check: how many cases were tried, wrong, on the host or skipped, and how it ended."""

    name: str
    proves: str
    #: How many cases there are, and how many were tried.
    cases: int
    tried: int
    #: Cases in which the device was wrong.
    wrong: int
    #: Cases of which a part ran on the host, because the device lacks an operation or a type.
    hosted: int
    #: Cases that say nothing: there was too little memory, or the right answers are too far apart.
    skipped: int
    #: For each reason why cases were skipped: how many were.
    reasons: dict[str, int] = {}
    seconds: float
    ended: CheckEnd


class CallTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one call on the device and on NumPy, in seconds: the median of several, transfers included."""

    workload: str
    elements: int
    seconds: float
    numpy_seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast as NumPy the device is."""
        return self.numpy_seconds / self.seconds if self.seconds > 0 else math.inf


class VerifiedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the device that tell what it is, and none that tell whose."""

    id: str
    engine: str
    kind: str
    form: str
    name: str
    vendor: str | None
    api: str
    #: As the driver says; "unknown" with the reason where it does not.
    driver: str
    memory: int | None
    #: PCI vendor and device number, where they are known.
    model: str | None
    features: tuple[str, ...]
    limits: dict[str, int]

    @property
    def software(self) -> bool:
        """Whether it computes on the CPU."""
        return self.kind == "cpu"


class VerifiedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine without anything that tells whose it is: system, processor, memory, and versions."""

    system: str
    processor: str
    cores: int | None
    memory: int
    python: str
    #: Versions of the libraries that matter: NumPy's, and the engine's.
    libraries: dict[str, str]


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `anygpu verify` writes."""

    schema: str = SCHEMA
    anygpu: str
    #: The day, such as 2026-11-17.
    date: str
    device: VerifiedDevice
    machine: VerifiedMachine
    #: What it took, and what it might have taken.
    seconds: float
    budget: float
    #: Whether something else had the processors, so that times say little.
    disturbed: bool
    checks: tuple[CheckRecord, ...]
    findings: tuple[WrongCase, ...]
    timings: tuple[CallTiming, ...]

    @property
    def is_clean(self) -> bool:
        """Whether no case was wrong."""
        return not any(check.wrong for check in self.checks)

    @property
    def speedup(self) -> float | None:
        """The geometric mean over the timings; `None` where there are none."""
        if not self.timings:
            return None
        return math.exp(sum(math.log(max(each.speedup, 1e-9)) for each in self.timings) / len(self.timings))

    def check(self, name: str) -> CheckRecord | None:
        """The record of the check of that name; `None` if it was not among them."""
        return next((check for check in self.checks if check.name == name), None)

    def to_json(self) -> bytes:
        """The document as indented JSON, in UTF-8."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def from_json(data: bytes) -> VerifyRecord:
    """The record in a document. Raises `msgspec.ValidationError` for what is no such document."""
    record = msgspec.json.decode(data, type=VerifyRecord)
    if record.schema != SCHEMA:
        raise msgspec.ValidationError(f"the schema is {record.schema!r}, not {SCHEMA!r}")
    return record


# -- makes a program small that gives a wrong result: nodes are dropped while it still does


class Suspect(NamedTuple):
    """A program, and the inputs with which it is wrong."""

    program: Program
    inputs: tuple[HostArray, ...]


#: Whether a smaller program is wrong in the same way.
IsWrong = Callable[[Suspect], bool]


def reduced(suspect: Suspect, is_wrong: IsWrong, *, has_time: Callable[[], bool]) -> Suspect:
    """The smallest program that was found before the time was over; the same one if no smaller one is wrong.

    First a single wrong node is looked for, then nodes become inputs with NumPy's values. `is_wrong` runs each
    candidate on the device.
    """
    for smaller in _with_one_output(suspect):
        if not has_time():
            return suspect
        if is_wrong(smaller):
            suspect = smaller
            break
    return _with_nodes_given(suspect, is_wrong, has_time)


def part(suspect: Suspect, output: int, given: Mapping[int, HostArray]) -> Suspect:
    """The program that computes one node, with the values of the `given` nodes as inputs."""
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
    """The names of a program's operations, each once, without those that only make values."""
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
    """One device. Its worker is a process of its own, whatever the engine, so that a crash is a finding.

    Programs and calls end after `timeout` seconds with an error that counts as a hang.
    """

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
            calls = self._calls[function] = Calls(function, CallTable(self._options), lambda: self._planner)
        return calls.run(*arguments)


# -- what a check consists of: cases, each a program with its inputs, or something else that is done with the device


class Tried(NamedTuple):
    """The outcome of one case: wrong, skipped, or right if both sentences are empty."""

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
    """The outcome of comparing results: wrong, without a decision, or right if both sentences are empty."""

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
        """Runs the program on the device and compares its results. Errors of the device are raised."""
        lacking = {lack.node for lack in subject.worker.supports(self.program)}
        results = subject.run(self.program, self.inputs).results
        found = self.compare(self.program, self.inputs, results, lacking)
        return Tried(found.wrong, bool(lacking), found.skipped, suspect=self.suspect(found) if found.wrong else None)

    def suspect(self, found: Comparison) -> Suspect:
        """The part that computes the wrong output, and the whole program where that is not known."""
        whole = Suspect(self.program, self.inputs)
        return whole if found.output is None else part(whole, self.program.outputs[found.output], {})


class ActCase(NamedTuple):
    """Something that is done with the device, such as asking for too much memory."""

    name: str
    number: int
    act: Callable[[Subject], Tried]

    def attempt(self, subject: Subject) -> Tried:
        """Does it. What the device does not support counts as done by the host."""
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
    """Compares results with NumPy's, by the tolerances that real calls are compared with."""
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
    """The outcome of a case for which the device had too little memory."""
    return Tried(skipped=f"it has too little memory ({type(error).__name__})")


def only(name: str, number: int, act: Callable[[Subject], Any]) -> ActCase:
    """A case whose function returns a sentence about what is wrong, or nothing."""
    return ActCase(name, number, lambda subject: Tried(act(subject) or ""))
