"""A call site: calls of one function with one kind of arguments, their program, and where they could run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anygpu.array.trace.traced import Traced
from anygpu.engines.catalogue import traits_of, why_only_when_named
from anygpu.engines.tuner import budget as tuning_budget
from anygpu.errors import InvalidOption
from anygpu.hardware.device import Device, DeviceKind
from anygpu.hardware.device_names import node_of
from anygpu.hardware.selection import Selection, select
from anygpu.notes import HostNote
from anygpu.placement import recorded_programs
from anygpu.placement.executing import Executing
from anygpu.placement.options import Options
from anygpu.placement.planner import Planner, first_choice, lacking, usable_bytes
from anygpu.placement.strategies import Chunked, SingleDevice, SplitAcrossDevices, Strategy
from anygpu.placement.trust import Trust, may_warn
from anygpu.placement.values import call_on_numpy, narrowing
from anygpu.plan.choosing import RECORDING, Choice, DeviceChooser, WaitingTimes
from anygpu.plan.chunking import Chunks, chunks_for, corrected
from anygpu.plan.chunking import Refused as Uncuttable
from anygpu.plan.corrections import doubt_about
from anygpu.plan.fusion_estimate import MOST_GROUPED, SECONDS_FOR_EACH
from anygpu.plan.plan import Basis, Candidate, Plan, Refused
from anygpu.plan.predicting import Expected, predict
from anygpu.plan.renting import Remembered
from anygpu.plan.splitting import split
from anygpu.program.costs import program_cost
from anygpu.program.graph import Program
from anygpu.receipts import HostOperation
from anygpu.units import readable_bytes, readable_seconds

if TYPE_CHECKING:
    from anygpu.placement.direct import DirectCalls

#: Programs of one function for one kind of arguments, for when something that decides changes back and forth.
MOST_PROGRAMS = 4

#: Copying the arguments and results of a call.
COPIED_PER_SECOND = 4e9


class Prediction(NamedTuple):
    """The prediction for one strategy."""

    way: Strategy
    #: What calibrations alone say; `None` for parts, whose sum is all that was predicted.
    plain: Expected | None
    seconds: float
    #: What the first call takes beyond that: opening the device and compiling.
    once: float
    #: What tuning the sizes of its kernels may take, where there is time for it.
    tuning: float
    calibrated: bool
    #: `None` where it was not asked, because the device is not open.
    lacks: str | None
    #: Of the device, or of the second of two.
    kind: DeviceKind
    #: How far predictions for the device were off so far, if that was far.
    doubt: str | None = None


#: Calls that may run without planning when there is nothing to find out. There are more of short ones, so that planning
#: takes no more than this share of their time.
MOST_SKIPPED, MOST_SHORT, PLANNING_SHARE = 64, 1024, 0.025
#: What planning a call takes: at least, and at most as far as that is believed. Between short calls its code is no
#: longer in the processor's caches, so that it takes several times as long as it would in a row.
_LEAST_PLANNING, _MOST_PLANNING = 6e-5, 2e-3
#: From so many calls without planning on, their receipts say when that was decided.
_MANY = 100
#: When calls without planning have taken so many times as long as they should, and so many seconds, one is planned.
_PATIENCE, _PATIENCE_SECONDS = 10, 0.1


class CallSite:
    """What is known of calls of one function with one kind of arguments.

    Its attributes are written by its own methods alone; other modules read them. Methods that several threads may call
    say which lock their caller must hold.
    """

    def __init__(self, task: str, options: Options, baseline: str | None, *, has_anygpu_arrays: bool) -> None:
        self.task = task
        #: Whether the function runs on NumPy exactly as it is; else as `call_on_host` calls it.
        self.runs_as_is = options.precision is None and not has_anygpu_arrays
        self.options = options
        self.chooser = DeviceChooser(baseline, checked=options.check != "off")
        #: What was compared with NumPy, and what NumPy's results look like.
        self.trust = Trust()
        #: Whether anygpu's own arrays are among the arguments.
        self.has_anygpu_arrays = has_anygpu_arrays
        #: Calls that may run on the baseline without planning.
        self.skip_planning = 0
        #: Whether each of them has to see first that it `does_as_recorded`.
        self.looks_first = has_anygpu_arrays
        #: Seconds of such calls that the chooser has not been told of yet.
        self.unreported_seconds = 0.0
        self._granted = 0
        self._most_unreported = float("inf")
        self._planning = _LEAST_PLANNING
        self.traced: Traced | None = None
        self.not_recorded: str | None = None
        #: All programs that are known, the newest first, and how often the function has been recorded.
        self.programs: list[Traced] = []
        self.recordings = 0
        #: What recording is expected to take: more, once it was given up.
        self.recording = RECORDING
        self.predictions: dict[str, Prediction] = {}
        self._names: tuple[dict[str, Prediction], frozenset[str]] = ({}, frozenset())
        self.refused: tuple[Refused, ...] = ()
        self._resident: dict[str, int] = {}
        self.evaluated = False
        #: The version of the planner's corrections that the predictions were made with.
        self.corrected = 0
        #: Whether calibrations and two devices at once have been looked at.
        self.calibrated = False
        self.calibrating = False
        #: Calls that need no planning, where one device is all that is allowed.
        self.direct: DirectCalls | None = None
        self._plans_every_call = False
        #: What receipts of calls without planning say.
        self.note = HostNote(task, "", None)
        #: A warning that a filter has made an error of, for the next call to raise.
        self._pending_warning: Warning | None = None
        self._may_warn: tuple[Program, bool] | None = None
        #: Why calls run on NumPy, when nothing that was asked for can run them and the caller allows that.
        self.fallback_reason: str | None = None
        #: Whether that is because no such device is there.
        self.misses_device = False
        #: Host operations that the user was warned of.
        self._warned: set[HostOperation] = set()
        #: For each device: what a piece needed by what was predicted.
        self._chunk_corrections: dict[str, float] = {}

    @property
    def uses_numpys_arrays(self) -> bool:
        """Whether calls on the host may be given NumPy's arrays for anygpu's own.

        What writes to its arguments, or returns one of them, needs the arrays themselves: recording tells.
        """
        traced = self.traced
        return not self.has_anygpu_arrays or (traced is not None and traced.returns_new)

    def does_as_recorded(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bool:
        """Whether a call does what was recorded, as far as captures decide that: then it writes to no argument."""
        traced = self.traced
        return traced is not None and traced.decides_alike(function, arguments, keywords)

    def call_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy. A call site holds no function, nor what closures hold."""
        if self.options.precision is not None:
            function = narrowing(function)
        if not self.has_anygpu_arrays:
            return function(*arguments, **keywords)
        try:
            return call_on_numpy(function, arguments, keywords)
        except BaseException:
            # Its code may have been replaced by what writes to its arguments: the next call looks at everything.
            self._granted -= self.skip_planning
            self.skip_planning = 0
            raise

    def run_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy, marked as placed. What it raises is the caller's."""
        with Executing():
            if self.runs_as_is:  # without a frame of ours more than needed, for functions that call themselves
                return function(*arguments, **keywords)
            return self.call_on_host(function, arguments, keywords)

    def skip_planning_for(self, calls: int, why: str) -> None:
        """Let so many calls run on the baseline without planning; `why` is for their receipts."""
        if not self.uses_numpys_arrays:
            calls = 0
        if calls >= _MANY:
            # The receipt of the last of them says the same, and things may have changed by then.
            why = f"{why.rstrip('.')} (decided at call {self.chooser.calls:,} for the next {calls:,} calls)."
        predicted = self.chooser.estimate(self.chooser.baseline) if self.chooser.baseline is not None else None
        self.note = HostNote(self.task, why, predicted)
        traced = self.traced
        self.looks_first = self.has_anygpu_arrays and (traced is None or traced.has_deciding_captures)
        self.skip_planning = self._granted = max(0, calls)
        expected = float("inf") if predicted is None else predicted * calls
        self._most_unreported = max(_PATIENCE_SECONDS, _PATIENCE * expected)

    def go_direct(self, direct: DirectCalls | None) -> None:
        """The next calls may run without planning, unless one of them has shown that they may not."""
        self.direct = None if self._plans_every_call else direct

    def plan_every_call(self) -> None:
        """NumPy has to be asked about each result."""
        self.direct, self._plans_every_call = None, True

    def pin(self, why: str) -> None:
        """A device was wrong: calls stay on NumPy."""
        self.chooser.pin(why)
        self.note = self.note._replace(reason=why)

    def refuse(self, why: str) -> None:
        """A device could not return what the function does: it stays on NumPy, as one that cannot be traced."""
        self.not_recorded = why
        self.forget_program()

    def ran_on_host(self, seconds: float) -> None:
        """A call was run without planning, and took so long."""
        self.skip_planning -= 1
        self.unreported_seconds += seconds
        if self.unreported_seconds > self._most_unreported:
            self._granted -= self.skip_planning
            self.skip_planning = 0

    def flush_timings(self, planner: Planner) -> float:
        """Report the calls that ran without planning to the chooser; what they took together."""
        seconds, self.unreported_seconds = self.unreported_seconds, 0.0
        calls = self._granted - self.skip_planning
        if calls:
            busy = planner.watch.since_last(planner.clock())
            self.chooser.baseline_ran(calls, seconds, disturbed=planner.pace.exploring, busy=busy)
        self.skip_planning = self._granted = 0
        return seconds

    def warn_later(self, warning: Warning | None) -> None:
        """A filter has made an error of a warning that was given in the background: the next call raises it."""
        self._pending_warning = warning

    def take_warning(self) -> Warning | None:
        """The warning that the next call has to raise, once."""
        warning, self._pending_warning = self._pending_warning, None
        return warning

    def first_time(self, operation: HostOperation) -> bool:
        """Whether the user has not been warned of this operation, which ran on the host."""
        is_new = operation not in self._warned
        self._warned.add(operation)
        return is_new

    def fall_back(self, reason: str) -> None:
        """Nothing that was asked for can run such calls: they run on NumPy."""
        self.fallback_reason = reason

    def wait_for_device(self) -> None:
        """No device that was asked for is there; one may come, in a fleet."""
        self.misses_device = True

    def devices_changed(self) -> None:
        """Devices have come or gone: they are looked at anew."""
        self.evaluated = False
        if self.misses_device:
            self.fallback_reason, self.misses_device = None, False

    # -- the program

    @property
    def recorded(self) -> bool:
        """Whether recording has been tried, with or without success."""
        return self.traced is not None or self.not_recorded is not None

    def may_warn(self, traced: Traced) -> bool:
        """Whether a NaN or an infinity in a result may be news to the user; asked once for each program."""
        program, known = traced.program, self._may_warn
        if known is None or known[0] is not program:
            self._may_warn = known = program, may_warn(program, getattr(traced, "quiet_lines", frozenset()))
        return known[1]

    @property
    def why_not_recorded(self) -> str:
        """A sentence for receipts."""
        return f"it cannot be traced: {str(self.not_recorded).rstrip('.')}."

    @property
    def program(self) -> Program:
        """The program of the next call. The caller holds the planner's lock, and has seen that there is one.

        Another thread may give up tracing at any time, so code that does not hold the lock reads `traced` once.
        """
        traced = self.traced
        if traced is None:
            raise InvalidOption(f"{self.task} has not been traced.")
        return traced.program

    @property
    def considering(self) -> float:
        """The seconds that `consider` takes the first time, about."""
        traced = self.traced
        return 0.0 if traced is None else min(len(traced.program.nodes), MOST_GROUPED) * SECONDS_FOR_EACH

    def consider(self, planner: Planner, *, resident: dict[str, int] | None = None) -> None:
        """Every device that was allowed: what is predicted for it, or why it cannot be.

        `resident` are bytes of arguments that are on devices already; as the last time when it is left out. Not to be
        called with the planner's lock: a worker that is asked may be busy with a task that waits for its runtime, and
        the runtime for the planner.
        """
        baseline, traced = self.chooser.baseline, self.traced
        if traced is None:  # another thread has given it up
            return
        selection = select(planner.machine_for(self.options, baseline).devices, self.options.preference)
        chosen, _ = first_choice(selection.chosen, self.options.preference.on)
        find = planner.worker_of(self.options)
        lacks = {
            device.id: lacking(find, device.id, traced.program)
            for device in chosen
            # Other machines' devices are not asked: there may be thousands of them, and each may take its time.
            if device.id != baseline and device.node is None and (baseline is None or planner.is_open(device.id))
        }
        with planner.lock:
            if self.traced is not None:
                self._consider(planner, selection, lacks, resident)

    def _consider(
        self,
        planner: Planner,
        selection: Selection,
        lacks: dict[str, str | None],
        resident: dict[str, int] | None,
    ) -> None:
        """`lacks` is what devices that could be asked cannot do of the program."""
        self._resident = self._resident if resident is None else resident
        # Those that were asked for and cannot come first, then those that were not asked for.
        refused: list[Refused] = []
        facts: dict[str, Prediction] = {}
        chosen, others = first_choice(selection.chosen, self.options.preference.on)
        refused += [Refused(each.id, f"{each.id} would be the second choice.") for each in others]
        for device in chosen:
            found = self._judge(planner, device, self._resident.get(device.id, 0), lacks.get(device.id))
            if isinstance(found, Refused):
                refused.append(found)
            else:
                facts[found.way.name] = found
        for name, old in self.predictions.items():
            if isinstance(old.way, SplitAcrossDevices) and all(device in facts for device in old.way.devices):
                facts[name] = old
        refused += [Refused(each.device, each.sentence) for each in selection.refused]
        self.adopt(facts, refused)
        self.corrected = planner.corrections.version
        planner.considered(self)

    def adopt(self, predictions: dict[str, Prediction], refused: Sequence[Refused] = ()) -> None:
        """These are all candidates, and what is predicted for each."""
        self.predictions, self.refused = predictions, tuple(refused)
        self._tell_chooser()
        # Without a candidate there is nothing to choose from: whoever calls next looks again, and says so.
        self.evaluated = bool(predictions) or self.chooser.baseline is not None

    def _judge(self, planner: Planner, device: Device, resident_bytes: int, lack: str | None) -> Prediction | Refused:
        program, baseline = self.program, self.chooser.baseline
        is_baseline = device.id == baseline
        if not self.options.preference.on and not is_baseline and (why := why_only_when_named(device)) is not None:
            return Refused(device.id, why)
        if lack is not None and baseline is not None:
            return Refused(device.id, lack)
        plain, seconds = planner.expected(
            program, device, resident_bytes=resident_bytes, keep=self.has_anygpu_arrays and device.id == baseline
        )
        way: Strategy = SingleDevice(device.id)
        if not is_baseline or device.id != "numpy":
            room = usable_bytes(device)
            if room is not None and plain.peak_bytes > room:
                chunks = self.chunks(device.id, room)
                if not isinstance(chunks, Chunks):
                    return Refused(
                        device.id,
                        f"{device.id} would need {readable_bytes(plain.peak_bytes)}, and {readable_bytes(room)} is "
                        f"usable; it cannot be split into chunks: {chunks.reason}",
                    )
                way = Chunked(device.id, chunks)
        calibration = planner.calibration(device)
        once = 0.0
        if not is_baseline:
            once = predict(program, calibration, compiled=False).phases.compile
            once += 0.0 if planner.is_open(device.id) else calibration.open
        tuning = tuning_budget() if traits_of(device.engine).tunes and not is_baseline else 0.0
        doubt = doubt_about(device.id, seconds / plain.seconds) if plain.seconds else None
        is_measured = calibration.source == "measured"
        return Prediction(way, plain, seconds, once, tuning, is_measured, lack, device.kind, doubt)

    def chunks(self, device: str, room: int) -> Chunks | Uncuttable:
        return chunks_for(self.program, room, correction=self._chunk_corrections.get(device, 1.0))

    def consider_parts(self, planner: Planner) -> None:
        """Two devices for one program, where both are known well enough to say that it pays."""
        baseline, traced = self.chooser.baseline, self.traced
        if baseline != "numpy" or self.has_anygpu_arrays or baseline not in self.predictions or traced is None:
            return
        machine = planner.machine_for(self.options)
        first = machine.device(baseline)
        if first is None:
            return
        ours = planner.calibration(first)
        splits: dict[str, Prediction] = {}
        for name, facts in list(self.predictions.items()):
            device = machine.device(name)
            if device is None or name == baseline or not isinstance(facts.way, SingleDevice) or not facts.calibrated:
                continue
            found = split(
                traced.program,
                ours,
                planner.calibration(device),
                whole=(self.chooser.estimate(baseline), self.chooser.estimate(name)),
            )
            if found is not None:
                way = SplitAcrossDevices((baseline, name), found)
                splits[way.name] = Prediction(
                    way, None, found.seconds, facts.once, facts.tuning, True, None, device.kind
                )
        with planner.lock:
            if self.traced is not traced:  # another thread has traced it anew
                return
            # A new table: callers may be reading the old one.
            self.predictions = self.predictions | splits
            self._tell_chooser()

    @property
    def candidates(self) -> frozenset[str]:
        """The names of all predictions, and NumPy. Every task has them, so they are made once for each table."""
        predictions, names = self._names
        if predictions is not self.predictions:
            predictions = self.predictions
            names = frozenset((*predictions, "numpy"))
            self._names = predictions, names
        return names

    # -- the chooser: the caller of each of these holds the planner's lock

    def choose(self, busy: Mapping[str, float], waiting: Mapping[str, float] | WaitingTimes | None = None) -> Choice:
        """Where the next call goes: `busy` are the seconds until devices are free, `waiting` those of candidates."""
        return self.chooser.choose((self.waiting(busy) if busy else busy) if waiting is None else waiting)

    def estimate(self, name: str) -> float | None:
        return self.chooser.estimate(name)

    def measured(
        self, name: str, seconds: float, peak_bytes: int | None = None, *, disturbed: bool = False, busy: bool = False
    ) -> None:
        """A call ran there, took so long and needed so much memory."""
        self.chooser.measured(name, seconds, disturbed=disturbed, busy=busy)
        if peak_bytes is not None:
            self._learn_chunk_memory(name, peak_bytes)

    def has_run_at(self, name: str) -> bool:
        """Whether a call has run there lately."""
        track = self.chooser.tracks.get(name)
        return track is not None and bool(track.recent)

    @property
    def totals(self) -> tuple[int, float]:
        """Calls and the seconds that they took together, those without planning included."""
        return (
            self.chooser.calls + self._granted - self.skip_planning,
            self.chooser.seconds + self.unreported_seconds,
        )

    def recall(self, remembered: Mapping[str, Remembered]) -> None:
        """What earlier processes have measured for this program."""
        self.chooser.recall(remembered)

    def begin_sample(self, name: str) -> None:
        """The next call on NumPy is compared with what the candidate computes."""
        self.chooser.begin_sample(name)

    def distrust(self, name: str) -> None:
        """What agreed with NumPy is not what would run now."""
        self.chooser.distrust(name)

    def next_trial(self) -> str | None:
        """What should be tried in the background now. If nothing should, calls on the host may skip planning."""
        chooser = self.chooser
        name = chooser.to_try()
        if name is None and chooser.baseline == "numpy" and chooser.current == "numpy":
            self.rest(0 if chooser.trying else chooser.next_look - chooser.calls)
        return name

    def has_something_to_explore(self) -> bool:
        """Whether anything is to be started in the background after a call on a device."""
        return not (self.traced is not None and self.evaluated and self.calibrated) or self.next_trial() is not None

    def rest(self, calls: int) -> None:
        """There is nothing to find out for so many calls: they skip planning, if they run on the host anyway.

        Short ones also skip it if there is: they pay for one look first.
        """
        choice = self.chooser.choose()
        if self.chooser.baseline == "numpy" and choice.candidate == "numpy" and choice.checks is None:
            self.skip_planning_for(max(min(calls, MOST_SKIPPED), self.calls_for_planning), choice.sentence)

    def planned(self, seconds: float) -> None:
        """Planning a call that ran on NumPy has taken so long."""
        believed = min(max(seconds, _LEAST_PLANNING), 4 * self._planning, _MOST_PLANNING)
        self._planning += (believed - self._planning) / 4

    @property
    def calls_for_planning(self) -> int:
        """How many calls on the baseline pay for planning one."""
        return self.calls_in(self._planning / PLANNING_SHARE)

    def calls_in(self, seconds: float) -> int:
        """How many calls on the baseline fit into so many seconds."""
        baseline = self.chooser.baseline
        each = self.chooser.estimate(baseline) if baseline is not None else None
        return min(MOST_SHORT, int(seconds / each)) if each else 0

    def waiting(self, busy: Mapping[str, float]) -> dict[str, float]:
        """For each candidate, how long its devices are busy. NumPy runs in the caller's own thread, so it never is."""
        return {
            name: max(busy.get(device, 0.0) for device in facts.way.devices if device != "numpy")
            for name, facts in self.predictions.items()
            if facts.way.devices != ("numpy",)
        }

    def add_program(self, traced: Traced) -> None:
        """The function was recorded: calls use this program from now on, and earlier ones are kept."""
        self.traced, self.not_recorded = traced, None
        self.recordings += 1
        self.programs = [traced, *self.programs[: MOST_PROGRAMS - 1]]
        self.evaluated = self.calibrated = False
        recorded_programs.tell(traced.program)

    def use_program(self, traced: Traced) -> None:
        """One of `programs` is that of the next call."""
        before = self.traced
        if before is None or traced.program.key != before.program.key:
            self.evaluated = False
        self.traced = traced

    def give_up_recording(self, seconds: float) -> None:
        """Recording took longer than it was allowed to; it is expected to take so long. The caller holds the lock."""
        self.recording = seconds
        self.forget_program()

    def forget_program(self) -> None:
        """Calls run on the baseline until the function is recorded again. The caller holds the planner's lock."""
        self.evaluated = self.calibrated = False
        self.traced = None
        self.programs = []
        self.predictions = {}
        self.chooser.consider({})

    def consider_engine(self, devices: Sequence[Device], refused: Sequence[Refused]) -> None:
        """The devices of an opaque task. Nothing is predicted: the order of preference stands for the time."""
        self.refused = tuple(refused)
        self.chooser.consider({device.id: 1e-3 * (1 + position) for position, device in enumerate(devices)})
        self.evaluated = True

    def begin_calibrating(self) -> bool:
        """Whether the caller is to calibrate devices for it; no other caller does until `end_calibrating`."""
        begun, self.calibrating = self.calibrating, True
        return not begun

    def end_calibrating(self) -> None:
        self.calibrating, self.calibrated = False, True

    def use_chunks(self, name: str, chunks: Chunks) -> None:
        """Calls run there in chunks from now on. It is a new table: other threads may be reading the old one."""
        self.predictions = self.predictions | {name: self.predictions[name]._replace(way=Chunked(name, chunks))}

    def _learn_chunk_memory(self, name: str, peak_bytes: int) -> None:
        """What a call in chunks needed, to cut the next one better."""
        way = self.predictions[name].way if name in self.predictions else None
        if isinstance(way, Chunked):
            old = self._chunk_corrections.get(name, 1.0)
            new = corrected(old, way.chunks.peak_bytes, peak_bytes)
            self._chunk_corrections[name] = new
            if new > old * 1.1:
                self.evaluated = False

    def _tell_chooser(self) -> None:
        facts = self.predictions.items()
        moved = sum(spec.nbytes for spec in (*self.program.inputs, *self.program.results))
        # Copied once by the caller; read four times in the background, to be compared.
        self.chooser.copying = 5 * moved / COPIED_PER_SECOND
        self.chooser.consider({name: each.seconds for name, each in facts}, {name: each.once for name, each in facts})

    def plan(self, reason: str, chosen: str) -> Plan:
        """The plan that `explain` shows."""
        chooser = self.chooser
        candidates: list[Candidate] = []
        for name, facts in self.predictions.items():
            track = chooser.tracks.get(name)
            measured = track.estimate if track is not None else None
            memory = chooser.remembered.get(name)
            basis: Basis = "predicted" if facts.calibrated else "assumed"
            seconds = facts.seconds
            if measured is not None:
                basis, seconds = "measured", measured
            elif memory is not None:
                basis, seconds = "remembered", memory.seconds
            candidates.append(
                Candidate(
                    device=name,
                    seconds=seconds,
                    basis=basis,
                    phases=facts.plain.phases if facts.plain is not None else None,
                    peak_bytes=facts.plain.peak_bytes if facts.plain is not None else None,
                    how=facts.way.how,
                    network_seconds=facts.plain.network if facts.plain is not None and node_of(name) else None,
                    sentence=self._sentence(name, facts, basis, seconds),
                )
            )
        if (
            chooser.baseline is not None
            and chooser.baseline not in self.predictions
            and chooser.estimate(chooser.baseline) is not None
        ):
            seconds = chooser.estimate(chooser.baseline) or 0.0
            candidates.append(
                Candidate(
                    device=chooser.baseline,
                    seconds=seconds,
                    basis="measured",
                    sentence=f"earlier calls took {readable_seconds(seconds)}.",
                )
            )
        candidates.sort(key=lambda each: each.seconds)
        cost = program_cost(self.program) if self.traced is not None else None
        failed = [
            Refused(name, track.why_failed)
            for name, track in chooser.tracks.items()
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
        disturbed = (track := self.chooser.tracks.get(name)) is not None and track.disturbed
        if basis == "measured":
            return f"earlier calls took {readable_seconds(seconds)}{', on a busy machine' if disturbed else ''}."
        if basis == "remembered":
            return f"it was {self.chooser.remembered[name].source}, in earlier processes."
        if facts.plain is None:
            return "each device does what it is faster at."
        rough = track.rough if track is not None else None
        if rough is not None:
            after = "the machine was busy." if disturbed else "it was not better."
            return f"a trial in the background took {readable_seconds(rough)}; {after}"
        phases = facts.plain.phases
        if facts.doubt is not None:
            return f"its calibration says {readable_seconds(phases.total)}, but {facts.doubt}."
        if facts.plain.network > 0.5 * phases.total:
            return f"the network to {node_of(name)} accounts for {readable_seconds(facts.plain.network)} of that."
        moving = phases.write + phases.read
        if moving > phases.run:
            return f"transfers take {readable_seconds(moving)} of that."
        if not facts.calibrated:
            return "it is not calibrated yet: run `anygpu calibrate` for a better prediction."
        return f"computing takes {readable_seconds(phases.run)} of that."
