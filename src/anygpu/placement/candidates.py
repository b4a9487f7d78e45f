"""The candidates of a call site: the devices on which its calls could run, and what is predicted for each.

`Candidates.consider` judges every device that the options allow: a `Prediction`, or a `Refused` with the reason. The
table of predictions is replaced and never changed, because other threads read it without a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.calls.options import Options
from anygpu.engines.catalogue import traits_of, why_only_when_named
from anygpu.errors import InvalidOption
from anygpu.hardware.device import CPU, Device, DeviceKind, node_of
from anygpu.hardware.selection import DeviceSelection, select
from anygpu.placement.machine import first_choice, lacking, usable_bytes
from anygpu.placement.plan.choosing import DeviceChooser
from anygpu.placement.plan.plan import Basis, Candidate, Plan, Refused
from anygpu.placement.plan.predicting import MOST_GROUPED, SECONDS_FOR_EACH, Expected, doubt_about, predict
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program, program_cost
from anygpu.program.primitives import Argsort

if TYPE_CHECKING:
    from anygpu.placement.call_site import Programs
    from anygpu.placement.plan.chunking import Chunks

#: Why devices other than the processor are refused for `np.argsort`.
_NUMPYS_ORDER = 'np.argsort gives equal elements an order that only NumPy knows; kind="stable" can run on any device.'
#: Copying the arguments and results of a call.
COPIED_PER_SECOND = 4e9


def _sorts_as_numpy(program: Program) -> bool:
    """Whether equal elements have to be in the order that NumPy's default sort gives them."""
    return any(isinstance(op, Argsort) and not op.stable for op, _ in program.nodes)


class Prediction(NamedTuple):
    """The prediction for one device. Times are in seconds."""

    #: The pieces in which the program runs, if it does not fit into the device's memory as a whole.
    chunks: Chunks | None
    #: The prediction from calibrations alone.
    plain: Expected
    seconds: float
    #: What the first call takes beyond that: opening the device and compiling.
    once: float
    #: What tuning the sizes of its kernels may take, where there is time for it.
    tuning: float
    calibrated: bool
    #: `None` where it was not asked, because the device is not open.
    lacks: str | None
    kind: DeviceKind
    #: How far predictions for the device were off so far, if that was far.
    doubt: str | None = None

    @property
    def how(self) -> str | None:
        """The chunks in words, for receipts; `None` where it runs as a whole."""
        return self.chunks.how if self.chunks is not None else None


class Candidates:
    """The devices on which the calls of one call site could run, and what is predicted for each.

    Methods that change the table are called with the planner's lock, `consider` without it.
    """

    def __init__(
        self, task: str, options: Options, chooser: DeviceChooser, programs: Programs, *, has_anygpu_arrays: bool
    ) -> None:
        self._task, self._options = task, options
        self._chooser, self._programs = chooser, programs
        self._has_anygpu_arrays = has_anygpu_arrays
        self.predictions: dict[str, Prediction] = {}
        self._names: tuple[dict[str, Prediction], frozenset[str]] = ({}, frozenset())
        self.refused: tuple[Refused, ...] = ()
        self._resident: dict[str, int] = {}
        #: Whether the predictions are those of the current program and of the devices that there are now.
        self.evaluated = False
        #: The version of the planner's corrections that the predictions were made with.
        self.corrected = 0
        #: Whether calibrations have been looked at, and whether that is being done.
        self.calibrated = self.calibrating = False
        #: Seconds of all calls that pay for the next calibration.
        self.calibrate_after = 0.0
        #: Why calls run on NumPy, when nothing that was asked for can run them and the caller allows that.
        self.fallback_reason: str | None = None
        #: Whether that is because no such device is there.
        self.misses_device = False
        #: For each device: what a piece needed by what was predicted.
        self._chunk_corrections: dict[str, float] = {}

    @property
    def program(self) -> Program:
        """The program of the next call. The caller holds the planner's lock, and has seen that there is one.

        Another thread may give up tracing at any time, so code that does not hold the lock reads `programs.current`
        once.
        """
        traced = self._programs.current
        if traced is None:
            raise InvalidOption(f"{self._task} has not been traced.")
        return traced.program

    @property
    def considering(self) -> float:
        """The seconds that `consider` takes the first time, about."""
        traced = self._programs.current
        return 0.0 if traced is None else min(len(traced.program.nodes), MOST_GROUPED) * SECONDS_FOR_EACH

    def consider(self, planner: Planner, *, resident: dict[str, int] | None = None) -> None:
        """Predict what the program takes on every device that was allowed, or find out why a device cannot run it.

        `resident` are bytes of arguments that are on devices already, by device; as the last time when it is left out.
        Workers that are open are asked what they lack. It must not be called with the planner's lock: a worker that is
        asked may be busy with a task that waits for its runtime, and the runtime for the planner.
        """
        baseline, traced = self._chooser.baseline, self._programs.current
        if traced is None:  # another thread has given it up
            return
        selection = select(planner.machine_for(self._options, baseline).devices, self._options.preference)
        chosen, _ = first_choice(selection.chosen, self._options.preference.on)
        find = planner.worker_of(self._options)
        lacks = {
            device.id: lacking(find, device.id, traced.program)
            for device in chosen
            # Other machines' devices are not asked: there may be thousands of them, and each may take its time.
            if device.id != baseline and device.node is None and (baseline is None or planner.is_open(device.id))
        }
        with planner.lock:
            if self._programs.current is not None:
                self._consider(planner, selection, lacks, resident)

    def _consider(
        self,
        planner: Planner,
        selection: DeviceSelection,
        lacks: dict[str, str | None],
        resident: dict[str, int] | None,
    ) -> None:
        """Predict for each device; `lacks` is what a device, where it can be asked, cannot do of the program."""
        self._resident = self._resident if resident is None else resident
        # Those that were asked for and cannot come first, then those that were not asked for.
        refused: list[Refused] = []
        facts: dict[str, Prediction] = {}
        chosen, others = first_choice(selection.chosen, self._options.preference.on)
        refused += [Refused(each.id, f"{each.id} would be the second choice.") for each in others]
        for device in chosen:
            found = self._judge(planner, device, self._resident.get(device.id, 0), lacks.get(device.id))
            if isinstance(found, Refused):
                refused.append(found)
            else:
                facts[device.id] = found
        refused += [Refused(each.device, each.sentence) for each in selection.refused]
        self.adopt(facts, refused)
        self.corrected = planner.corrections.version
        planner.considered(self)

    def devices_changed(self) -> None:
        """Look at the devices anew when a call is next planned: some have come or gone."""
        self.evaluated = False
        if self.misses_device:
            self.fallback_reason, self.misses_device = None, False

    def look_again(self, *, calibrate: bool = False) -> None:
        """Predict anew when a call is next planned: its program is another one. With `calibrate` also look again at
        calibrations.
        """
        self.evaluated = False
        if calibrate:
            self.calibrated = False

    def clear(self) -> None:
        """Drop all predictions: there is no program. The caller holds the planner's lock."""
        self.predictions = {}
        self._chooser.consider({})

    def fall_back(self, reason: str, *, misses_device: bool = False) -> None:
        """Run calls on NumPy: nothing that was asked for can run them. A device that is missing may still come."""
        self.fallback_reason, self.misses_device = reason, misses_device

    def wait_for_calibration(self, seconds: float) -> None:
        """Do not look at calibrations again before all calls have taken so many seconds."""
        self.calibrate_after = seconds

    def begin_calibrating(self) -> bool:
        """Whether the caller is to calibrate devices; no other caller does until `end_calibrating`."""
        begun, self.calibrating = self.calibrating, True
        return not begun

    def end_calibrating(self) -> None:
        """Note that calibrations have been read."""
        self.calibrating, self.calibrated = False, True

    def adopt(self, predictions: dict[str, Prediction], refused: Sequence[Refused] = ()) -> None:
        """Replace the table of predictions and the refusals, and tell the chooser."""
        self.predictions, self.refused = predictions, tuple(refused)
        self._tell_chooser()
        # Without a candidate there is nothing to choose from: whoever calls next looks again, and says so.
        self.evaluated = bool(predictions) or self._chooser.baseline is not None

    def _judge(self, planner: Planner, device: Device, resident_bytes: int, lack: str | None) -> Prediction | Refused:
        """The prediction for one device, or why it is refused; `lack` is what it cannot do of the program.

        A program that needs more memory than is usable there runs in chunks, if it can be cut. The first call also pays
        for compiling, and for opening the device if it is not open.
        """
        program, baseline = self.program, self._chooser.baseline
        is_baseline = device.id == baseline
        if not self._options.preference.on and not is_baseline and (why := why_only_when_named(device)) is not None:
            return Refused(device.id, why)
        if lack is not None and baseline is not None:
            return Refused(device.id, lack)
        if baseline == "numpy" and device.id not in (baseline, CPU) and _sorts_as_numpy(program):
            return Refused(device.id, _NUMPYS_ORDER)
        if (why := self._only_on_numpy(device)) is not None:
            return Refused(device.id, why)
        plain, seconds = planner.expected(
            program, device, resident_bytes=resident_bytes, keep=self._has_anygpu_arrays and device.id == baseline
        )
        chunks: Chunks | None = None
        if not is_baseline or device.id != "numpy":
            room = usable_bytes(device)
            if room is not None and plain.peak_bytes > room:
                found = self.chunks(device.id, room)
                if isinstance(found, str):
                    return Refused(
                        device.id,
                        f"{device.id} would need {readable_bytes(plain.peak_bytes)}, and {readable_bytes(room)} is "
                        f"usable; it cannot be split into chunks: {found}",
                    )
                chunks = found
        calibration = planner.calibration(device)
        once = 0.0
        if not is_baseline:
            once = predict(program, calibration, compiled=False).phases.compile
            once += 0.0 if planner.is_open(device.id) else calibration.open
        tuning = 0.0
        if traits_of(device.engine).tunes and not is_baseline:
            from anygpu.engines.tuner import budget  # with the first device that is tuned

            tuning = budget()
        doubt = doubt_about(device.id, seconds / plain.seconds) if plain.seconds else None
        is_measured = calibration.source == "measured"
        return Prediction(chunks, plain, seconds, once, tuning, is_measured, lack, device.kind, doubt)

    def _only_on_numpy(self, device: Device) -> str | None:
        """Return why only NumPy gives the bits that matter; `None` if the device does, or was named and may differ."""
        traced, is_free = self._programs.current, self._chooser.baseline is None and device.id != CPU
        if device.id == "numpy" or traced is None or self._has_anygpu_arrays or is_free:
            return None
        if self._options.exact and device.id != CPU:
            return "exact=True is for the processor."
        from anygpu.engines.cpu.numpy_loops import rounding  # with the first program that is traced

        return traced.only_on_numpy(rounding() if device.id == CPU else "free")

    def chunks(self, device: str, room: int) -> Chunks | str:
        """Cut the program so that a piece needs at most `room` bytes; a sentence that says why if it cannot be."""
        from anygpu.placement.plan.chunking import Chunks, chunks_for  # few programs are too large for a device

        found = chunks_for(self.program, room, correction=self._chunk_corrections.get(device, 1.0))
        return found if isinstance(found, Chunks) else found.reason

    @property
    def names(self) -> frozenset[str]:
        """The names of all predictions, and NumPy. Every task has them, so they are made once for each table."""
        predictions, names = self._names
        if predictions is not self.predictions:
            predictions = self.predictions
            names = frozenset((*predictions, "numpy"))
            self._names = predictions, names
        return names

    def waiting_times(self, busy: Mapping[str, float]) -> dict[str, float]:
        """The seconds until the devices of each candidate are free. NumPy runs in the caller's thread, so it is not
        among them.
        """
        return {name: busy.get(name, 0.0) for name in self.predictions if name != "numpy"}

    def consider_engine(self, devices: Sequence[Device], refused: Sequence[Refused]) -> None:
        """Make the devices of an opaque task's engine the candidates. Nothing is predicted: their order stands for the
        time.
        """
        self.refused = tuple(refused)
        self._chooser.consider({device.id: 1e-3 * (1 + position) for position, device in enumerate(devices)})
        self.evaluated = True

    def use_chunks(self, name: str, chunks: Chunks) -> None:
        """Calls run there in chunks from now on. It is a new table: other threads may be reading the old one."""
        self.predictions = self.predictions | {name: self.predictions[name]._replace(chunks=chunks)}

    def learn_chunk_memory(self, name: str, peak_bytes: int) -> None:
        """Learn from the peak memory of a call in chunks, in bytes, and cut the next call smaller if it was more than
        predicted.
        """
        chunks = self.predictions[name].chunks if name in self.predictions else None
        if chunks is not None:
            from anygpu.placement.plan.chunking import corrected

            old = self._chunk_corrections.get(name, 1.0)
            new = corrected(old, chunks.peak_bytes, peak_bytes)
            self._chunk_corrections[name] = new
            if new > old * 1.1:
                self.evaluated = False

    def _tell_chooser(self) -> None:
        """Give the chooser what is predicted for each candidate, and what copying a call takes."""
        facts = self.predictions.items()
        moved = sum(spec.nbytes for spec in (*self.program.inputs, *self.program.results))
        # Copied once by the caller; read four times in the background, to be compared.
        self._chooser.copying = 5 * moved / COPIED_PER_SECOND
        self._chooser.consider({name: each.seconds for name, each in facts}, {name: each.once for name, each in facts})

    def plan(self, reason: str, chosen: str) -> Plan:
        """The plan that `explain` shows: candidates with their times, the fastest first; refused and failed devices."""
        chooser = self._chooser
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
                    phases=facts.plain.phases,
                    peak_bytes=facts.plain.peak_bytes,
                    how=facts.how,
                    network_seconds=facts.plain.network if node_of(name) else None,
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
        cost = program_cost(self.program) if self._programs.current is not None else None
        failed = [
            Refused(name, track.why_failed)
            for name, track in chooser.tracks.items()
            if track.suspended and name not in {each.device for each in self.refused}
        ]
        return Plan(
            task=self._task,
            chosen=chosen,
            reason=reason,
            candidates=tuple(each for each in candidates if each.device not in {bad.device for bad in failed}),
            refused=(*self.refused, *failed),
            program=self.program.key if self._programs.current is not None else None,
            not_recorded=self._programs.refusal,
            bytes_in=cost.bytes_in if cost is not None else None,
            bytes_out=cost.bytes_out if cost is not None else None,
            flops=cost.flops if cost is not None else None,
        )

    def _sentence(self, name: str, facts: Prediction, basis: Basis, seconds: float) -> str:
        """Where the time of a candidate comes from, for `explain`"""
        disturbed = (track := self._chooser.tracks.get(name)) is not None and track.disturbed
        if basis == "measured":
            return f"earlier calls took {readable_seconds(seconds)}{', on a busy machine' if disturbed else ''}."
        if basis == "remembered":
            return f"it was {self._chooser.remembered[name].source}, in earlier processes."
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
            return "it is not calibrated yet: run `anygpu devices --calibrate` for a better prediction."
        return f"computing takes {readable_seconds(phases.run)} of that."
