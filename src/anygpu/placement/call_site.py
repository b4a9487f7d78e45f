"""What is known of calls of one function with one kind of arguments, and where they could run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from anygpu.array.trace.traced import Traced
from anygpu.engines.catalogue import traits_of
from anygpu.engines.tuning import budget as tuning_budget
from anygpu.errors import DeviceLost, DeviceUnavailable, InvalidOption
from anygpu.hardware.device import Device
from anygpu.hardware.selection import matches_name, require, select
from anygpu.placement.executing import Executing
from anygpu.placement.floating_point import may_warn
from anygpu.placement.options import Options
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import Chunked, SingleDevice, SplitAcrossDevices, Strategy
from anygpu.placement.trust import Trust
from anygpu.placement.values import narrowing, on_numpy
from anygpu.plan.choosing import RECORDING, DeviceChooser
from anygpu.plan.chunking import Chunks, chunks_for
from anygpu.plan.chunking import Refused as Uncuttable
from anygpu.plan.corrections import kind_of
from anygpu.plan.plan import Basis, Candidate, Plan, Refused
from anygpu.plan.predicting import Expected, predict
from anygpu.plan.splitting import split
from anygpu.program.costs import OperationClass, program_cost
from anygpu.program.graph import Program
from anygpu.receipts import HostOperation
from anygpu.units import readable_bytes, readable_seconds
from anygpu.workers.opening import default_budget

#: Of a device's free memory: the rest is for what others do there, and for what allocators round up.
_USABLE = 0.8


#: Copying the arguments and results of a call.
COPIED_PER_SECOND = 4e9


class Prediction(NamedTuple):
    """What was predicted for one way."""

    way: Strategy
    #: What calibrations alone say; `None` for parts, whose sum is all that was predicted.
    plain: Expected | None
    seconds: float
    #: What the first call takes beyond that: opening the device, compiling, finding sizes of kernels.
    once: float
    calibrated: bool
    #: `None` where it was not asked, because the device is not open.
    lacks: str | None


#: A first call with arguments this large is recorded before it runs: then it need not run at home if that is hopeless.
LARGE = 1 << 20

#: Thinking about a call takes some 50 µs. Calls that take less than the first are left alone for long; of those that
#: take less than the second, the first five are.
_SHORT, _MIDDLING = 2e-5, 2e-4


class Said(NamedTuple):
    """Why quiet calls stay where they are. Never changed: a receipt that is made later says what was so then."""

    task: str
    reason: str
    predicted: float | None


def said_of_new(task: str) -> Said:
    """What is said of calls of a kind that is new."""
    return Said(task, "it is new, and its first calls are measured on numpy.", None)


class NewCallSite:
    """Calls of a kind so new that nothing is known of it: they run as they are, and only their time is kept."""

    __slots__ = ("_granted", "_seconds", "quiet", "said", "unheard")

    as_it_is = True

    def __init__(self, said: Said, seconds: float) -> None:
        self.said = said
        self.quiet = self._granted = 1024 if seconds < _SHORT else 4 if seconds < _MIDDLING else 0
        self.unheard = 0.0
        self._seconds = seconds

    def tell(self, cell: DeviceChooser) -> float:
        """Tell the cell of them all; what they took together."""
        cell.quietly(1, self._seconds)
        cell.quietly(self._granted - self.quiet, self.unheard)
        return self._seconds + self.unheard


class CallSite:
    """One cell, with the program behind it once there is one."""

    def __init__(self, task: str, options: Options, home: str | None, *, ours: bool) -> None:
        self.task = task
        #: Whether the function runs on NumPy exactly as it is; else as `at_home` gives it.
        self.as_it_is = options.precision is None and not ours
        self.options = options
        self.cell = DeviceChooser(home, checked=options.check != "off")
        #: What was compared with NumPy, and what NumPy's results look like.
        self.trust = Trust()
        #: Whether anygpu's own arrays are among the arguments.
        self.ours = ours
        #: Calls for which nothing has to be asked: they go home.
        self.quiet = 0
        #: Seconds of quiet calls that the cell has not been told of yet.
        self.unheard = 0.0
        self._granted = 0
        self.traced: Traced | None = None
        self.not_recorded: str | None = None
        #: All programs that are known, the newest first, and how often the function has been recorded.
        self.programs: list[Traced] = []
        self.recordings = 0
        #: What recording is expected to take: more, once it was given up.
        self.recording = RECORDING
        #: The class of operations that most of the program's work is of.
        self.kind: OperationClass = "elementwise"
        self.facts: dict[str, Prediction] = {}
        self.refused: tuple[Refused, ...] = ()
        self._resident: dict[str, int] = {}
        self.considered = False
        #: Whether calibrations and two devices at once have been looked at.
        self.refined = False
        self.refining = False
        #: What quiet calls have in their receipts.
        self.said = Said(task, "", None)
        #: A warning that a filter has made an error of, for the next call to raise.
        self.owed: Warning | None = None
        self._may_warn: tuple[Program, bool] | None = None
        #: Set when nothing that was asked for can run it, and running on NumPy is allowed.
        self.settled_for_numpy: str | None = None
        #: Host operations that the user has been told of.
        self.told: set[HostOperation] = set()
        #: For each device: what a piece needed by what was predicted.
        self.chunk_corrections: dict[str, float] = {}

    def at_home(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it runs on NumPy. It is the caller's: a state holds none, nor what closures hold."""
        if self.as_it_is:
            return function
        at_home = function if self.options.precision is None else narrowing(function)
        return on_numpy(at_home) if self.ours else at_home

    def run_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy. What it raises is the caller's."""
        with Executing():
            return self.at_home(function)(*arguments, **keywords)

    def be_quiet(self, calls: int, why: str) -> None:
        """So many calls may go home from now on without anything being asked, and why."""
        predicted = self.cell.estimate(self.cell.home) if self.cell.home is not None else None
        self.said = Said(self.task, why, predicted)
        self.quiet = self._granted = max(0, calls)

    def pin(self, why: str) -> None:
        """A device was wrong: calls stay on NumPy."""
        self.cell.pin(why)
        self.said = self.said._replace(reason=why)

    def refuse(self, why: str) -> None:
        """A device could not return what the function does: it stays on NumPy, as one that cannot be recorded."""
        self.not_recorded = why
        self.forget_program()

    def hear(self) -> float:
        """Tell the cell of the calls that went by quietly; what they took together."""
        seconds, self.unheard = self.unheard, 0.0
        self.cell.quietly(self._granted - self.quiet, seconds)
        self.quiet = self._granted = 0
        return seconds

    @property
    def recorded(self) -> bool:
        """Whether recording has been tried, with or without success."""
        return self.traced is not None or self.not_recorded is not None

    @property
    def may_warn(self) -> bool:
        """Whether a NaN or an infinity in a result may be news to the user; asked once for each program."""
        program = self.program
        if self._may_warn is None or self._may_warn[0] is not program:
            self._may_warn = program, may_warn(program, getattr(self.traced, "quiet_lines", frozenset()))
        return self._may_warn[1]

    @property
    def why_not_recorded(self) -> str:
        """For receipts."""
        return f"it cannot be recorded as a program: {str(self.not_recorded).rstrip('.')}."

    @property
    def program(self) -> Program:
        if self.traced is None:
            raise InvalidOption(f"{self.task} has not been recorded.")
        return self.traced.program

    def consider(self, planner: Planner, *, resident: dict[str, int] | None = None) -> None:
        """Every device that was allowed: what is predicted for it, or why it cannot be.

        `resident` are bytes of arguments that are on devices already; as the last time when it is left out.
        """
        self._resident = self._resident if resident is None else resident
        self.kind = kind_of(self.program)
        machine = planner.machine()
        selection = select(machine.devices, self.options.preference)
        # Those that were asked for and cannot come first, then those that were not asked for.
        refused: list[Refused] = []
        facts: dict[str, Prediction] = {}
        chosen, others = first_choice(selection.chosen, self.options.preference.on)
        refused += [Refused(each.id, f"{each.id} would be the second choice.") for each in others]
        for device in chosen:
            found = self._judge(planner, device, self._resident.get(device.id, 0))
            if isinstance(found, Refused):
                refused.append(found)
            else:
                facts[found.way.name] = found
        for name, old in self.facts.items():
            if isinstance(old.way, SplitAcrossDevices) and all(device in facts for device in old.way.devices):
                facts[name] = old
        refused += [Refused(each.device, each.sentence) for each in selection.refused]
        self.facts, self.refused = facts, tuple(refused)
        self._tell_cell()
        self.considered = True

    def _judge(self, planner: Planner, device: Device, resident_bytes: int) -> Prediction | Refused:
        program, home = self.program, self.cell.home
        at_home = device.id == home
        lack: str | None = None
        if not at_home and (home is None or planner.is_open(device.id)):
            lack = lacking(planner, device.id, program, self.options)
            if lack is not None and home is not None:
                return Refused(device.id, lack)
        plain, seconds = planner.expected(
            program, device, resident_bytes=resident_bytes, keep=self.ours and device.id == home
        )
        way: Strategy = SingleDevice(device.id)
        if not at_home or device.id != "numpy":
            room = usable_bytes(device)
            if room is not None and plain.peak_bytes > room:
                chunks = self.chunks(device.id, room)
                if not isinstance(chunks, Chunks):
                    return Refused(
                        device.id,
                        f"{device.id} would need {readable_bytes(plain.peak_bytes)}, and {readable_bytes(room)} are "
                        f"usable; it cannot be cut into pieces: {chunks.reason}",
                    )
                way = Chunked(device.id, chunks)
        calibration = planner.calibration(device)
        once = 0.0
        if not at_home:
            once = predict(program, calibration, compiled=False).phases.compile
            once += 0.0 if planner.is_open(device.id) else calibration.open
            once += tuning_budget() if traits_of(device.engine).tunes else 0.0
        return Prediction(way, plain, seconds, once, calibration.source == "measured", lack)

    def chunks(self, device: str, room: int) -> Chunks | Uncuttable:
        return chunks_for(self.program, room, correction=self.chunk_corrections.get(device, 1.0))

    def consider_parts(self, planner: Planner) -> None:
        """Two devices for one program, where both are known well enough to say that it pays."""
        home = self.cell.home
        if home != "numpy" or self.ours or home not in self.facts:
            return
        machine = planner.machine()
        first = machine.device(home)
        if first is None:
            return
        ours = planner.calibration(first)
        splits: dict[str, Prediction] = {}
        for name, facts in list(self.facts.items()):
            device = machine.device(name)
            if device is None or name == home or not isinstance(facts.way, SingleDevice) or not facts.calibrated:
                continue
            found = split(
                self.program,
                ours,
                planner.calibration(device),
                whole=(self.cell.estimate(home), self.cell.estimate(name)),
            )
            if found is not None:
                way = SplitAcrossDevices((home, name), found)
                splits[way.name] = Prediction(way, None, found.seconds, facts.once, True, None)
        with planner.lock:
            # A new table: callers may be reading the old one.
            self.facts = self.facts | splits
            self._tell_cell()

    def waiting(self, busy: Mapping[str, float]) -> dict[str, float]:
        """For each candidate, how long its devices are busy. NumPy runs in the caller's own thread, so it never is."""
        if not busy:
            return {}
        return {
            name: max(busy.get(device, 0.0) for device in facts.way.devices if device != "numpy")
            for name, facts in self.facts.items()
            if facts.way.devices != ("numpy",)
        }

    def forget_program(self) -> None:
        """The function is no program any more: calls go home."""
        self.traced = None
        self.programs = []
        self.facts = {}
        self.cell.consider({})

    def _tell_cell(self) -> None:
        facts = self.facts.items()
        moved = sum(spec.nbytes for spec in (*self.program.inputs, *self.program.results))
        # Copied once by the caller; read four times in the background, to be compared.
        self.cell.copying = 5 * moved / COPIED_PER_SECOND
        self.cell.consider({name: each.seconds for name, each in facts}, {name: each.once for name, each in facts})

    def plan(self, reason: str, chosen: str) -> Plan:
        """For people."""
        cell = self.cell
        candidates: list[Candidate] = []
        for name, facts in self.facts.items():
            track = cell.tracks.get(name)
            measured = track.estimate if track is not None else None
            basis: Basis = "measured" if measured is not None else "predicted" if facts.calibrated else "assumed"
            seconds = measured if measured is not None else facts.seconds
            candidates.append(
                Candidate(
                    device=name,
                    seconds=seconds,
                    basis=basis,
                    phases=facts.plain.phases if facts.plain is not None else None,
                    peak_bytes=facts.plain.peak_bytes if facts.plain is not None else None,
                    how=facts.way.how,
                    sentence=self._sentence(name, facts, basis, seconds),
                )
            )
        if cell.home is not None and cell.home not in self.facts and cell.estimate(cell.home) is not None:
            seconds = cell.estimate(cell.home) or 0.0
            candidates.append(
                Candidate(
                    device=cell.home,
                    seconds=seconds,
                    basis="measured",
                    sentence=f"earlier calls took {readable_seconds(seconds)} there.",
                )
            )
        candidates.sort(key=lambda each: each.seconds)
        cost = program_cost(self.program) if self.traced is not None else None
        failed = [
            Refused(name, track.why_failed)
            for name, track in cell.tracks.items()
            if track.suspended and name not in {each.device for each in self.refused}
        ]
        return Plan(
            task=self.task,
            chosen=chosen,
            reason=reason,
            candidates=tuple(each for each in candidates if each.device not in {bad.device for bad in failed}),
            refused=(*self.refused, *failed),
            program=self.program.key if self.traced is not None else None,
            not_recorded=self.not_recorded,
            bytes_in=cost.bytes_in if cost is not None else None,
            bytes_out=cost.bytes_out if cost is not None else None,
            flops=cost.flops if cost is not None else None,
        )

    def _sentence(self, name: str, facts: Prediction, basis: Basis, seconds: float) -> str:
        if basis == "measured":
            return f"earlier calls took {readable_seconds(seconds)} there."
        if facts.plain is None:
            return "each device does what it is faster at."
        track = self.cell.tracks.get(name)
        rough = track.rough if track is not None else None
        if rough is not None:
            return f"a trial in the background took {readable_seconds(rough)}; it was not better."
        phases = facts.plain.phases
        moving = phases.write + phases.read
        if moving > phases.run:
            return f"moving the data there and back takes {readable_seconds(moving)} of that."
        if not facts.calibrated:
            return "it is not calibrated yet: run `anygpu calibrate` for a better prediction."
        return f"computing takes {readable_seconds(phases.run)} of that."


def first_choice(devices: Sequence[Device], on: Sequence[str]) -> tuple[list[Device], list[Device]]:
    """Of several names that were asked for in order, the devices of the first that there is, and the others."""
    for name in on:
        first = [device for device in devices if matches_name(device, name)]
        if first:
            return first, [device for device in devices if device not in first]
    return list(devices), []


def lacking(planner: Planner, device: str, program: Program, options: Options) -> str | None:
    """What the device cannot do of the program, as a sentence; `None` when it can do it all."""
    try:
        lacks = planner.worker(device, options).supports(program)
    except DeviceLost:
        # It died of something else: asking can be repeated, and its next generation knows as much.
        lacks = planner.worker(device, options).supports(program)
    if not lacks:
        return None
    first = lacks[0]
    line = program.lines[first.node]
    at = f" ({line[0]}:{line[1]})" if line is not None else ""
    more = f", and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return f"{device} cannot do {program.nodes[first.node].op.name}{at}: {first.reason}{more}."


def usable_bytes(device: Device) -> int | None:
    """What a program may take there; `None` when nobody knows."""
    budget = default_budget()
    free = device.memory_free if device.memory_free is not None else device.memory_total
    usable = None if free is None else int(free * _USABLE)
    if budget is None:
        return usable
    return budget if usable is None else min(budget, usable)


def no_device(planner: Planner, options: Options) -> DeviceUnavailable | None:
    """The error for a preference that no device of this machine fits; `None` when one does."""
    machine = planner.machine()
    try:
        require(machine.devices, options.preference, machine.unavailable)
    except DeviceUnavailable as error:
        return error
    return None
