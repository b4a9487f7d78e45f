"""The planner: it owns the devices, their calibrations, and the background thread that learns more."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import msgspec
import numpy as np

from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.disturbance import DisturbanceWatch, Reading, read_processors
from anygpu.engines.catalogue import catalogue, is_automatic, is_installed
from anygpu.errors import AnyGPUError, DeviceLost, DeviceUnavailable, InvalidOption
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.device_names import CPU
from anygpu.hardware.gpu_presence import probes_by_itself, software_devices_are_automatic
from anygpu.hardware.selection import matches_name, meant, require
from anygpu.placement.background import Background
from anygpu.placement.calibrate import calibrate, recalled, remember
from anygpu.placement.mismatches import Mismatch
from anygpu.placement.options import Options
from anygpu.placement.pacing import LOOKING, Pace
from anygpu.plan.calibration import Calibration, assumed
from anygpu.plan.corrections import Corrections
from anygpu.plan.fusion_estimate import structure_of
from anygpu.plan.predicting import Expected, predict
from anygpu.program.graph import Program
from anygpu.residency.registry import DeviceRegistry, registry
from anygpu.workers.open import default_budget
from anygpu.workers.worker import Worker

if TYPE_CHECKING:
    from anygpu.history.history import CallHistory
    from anygpu.placement.candidates import Candidates, Prediction
    from anygpu.placement.recall import Recall

#: What a calibration in the background may take; `anygpu calibrate` takes longer and is more exact.
CALIBRATION_SECONDS = 2.0
#: Assumed for a device that is busy with a trial: its end is not known.
_TRIAL_SECONDS = 1.0
#: Disagreements that are remembered.
_MISMATCHES = 100
#: Of a device's free memory: the rest is for what others do there, and for what allocators round up.
_USABLE = 0.8

#: Why calls that name no device stay on NumPy where nothing else is looked for.
NO_GPU = "this machine has no GPU, and other devices that compute on the processor are used only when named."
#: Before anything is known: no device answers sooner.
_FLOOR = 5e-5


class Machine(NamedTuple):
    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    by_id: Mapping[str, Device]

    def device(self, identity: str) -> Device | None:
        return self.by_id.get(identity)


def machine_of(devices: Iterable[Device], unavailable: Iterable[Unavailable]) -> Machine:
    found = tuple(devices)
    return Machine(found, tuple(unavailable), {each.id: each for each in reversed(found)})


class Planner:
    """Devices and their speed, for all calls. The module's functions use a default one."""

    def __init__(
        self,
        *,
        known: DeviceRegistry = registry,
        clock: Callable[[], float] = time.perf_counter,
        history: Callable[[], CallHistory] | None = None,
        read_processors: Callable[[], Reading] = read_processors,
    ) -> None:
        """`history` opens that of the user. Without it nothing is known of earlier processes, or kept for later."""
        self.places = known
        self.clock = clock
        #: Held around every change of choosers and tables; never while a program runs.
        self.lock = threading.RLock()
        self.background = Background(when_idle=self._rest)
        self._open_history = history
        self._recalled: Recall | None = None
        self.pace = Pace(clock)
        #: Whether something else has the processors while calls are measured.
        self.watch = DisturbanceWatch(read_processors)
        self.corrections = Corrections()
        #: Seconds that calls have taken in all: what exploring has to be worth. `add_seconds` adds to it.
        self.seconds = 0.0
        self._machine: Machine | None = None
        #: Whether every engine has been probed for it.
        self._is_complete = False
        #: Engines that are still to be probed for calls that name no device; `None` before the first look for them.
        self._unprobed: deque[str] | None = None
        #: What was found so far by probing one engine after the other.
        self._found: list[Device | Unavailable] = []
        #: Call sites that have looked at it.
        self._sites: WeakSet[Candidates] = WeakSet()
        #: Whether somebody has asked for a look, and whether one is being taken.
        self._looking = self._ready = False
        self._is_probing = False
        self._calibrations: dict[str, Calibration] = {}
        #: Devices that were calibrated by this process.
        self._calibrated: set[str] = set()
        #: By call, the devices that it uses and the seconds that it is expected to take.
        self._in_flight: dict[object, tuple[tuple[str, ...], float]] = {}
        #: The same calls by device; some of them may have ended.
        self._in_flight_on: dict[str, dict[object, float]] = {}
        self._trials: set[str] = set()
        #: By the code of a function: why it stays on NumPy.
        self.pinned: dict[Hashable, str] = {}
        self._mismatches: deque[Mismatch] = deque(maxlen=_MISMATCHES)

    @property
    def recall(self) -> Recall:
        """What earlier processes have learnt. Most processes are over before they need it."""
        with self.lock:
            if self._recalled is None:
                from anygpu.history.history import History
                from anygpu.placement.recall import Recall

                keeps = self._open_history is not None
                history = self._open_history() if self._open_history is not None else History(None)
                self._recalled = Recall(history, self._find_device)
                if keeps:
                    atexit.register(self._recalled.save)
            return self._recalled

    def _find_device(self, name: str) -> Device | None:
        """A device by its id, as far as the machine has been looked at."""
        if self._machine is None:
            return numpy_device() if name == "numpy" else None
        return self._machine.device(name)

    # -- devices

    @property
    def awake(self) -> bool:
        """Whether the devices are known, and recording is ready."""
        return self._ready and (self._machine is not None or self._unprobed is not None)

    @property
    def is_looking(self) -> bool:
        """Whether the devices are being probed in the background, or have been."""
        return self._looking

    @property
    def ready_to_record(self) -> bool:
        """Whether recording would not have to load its modules first."""
        return self._ready

    def machine(self, *, low_priority: bool = False) -> Machine:
        """The devices of this machine, which is looked at once; with `low_priority`, nobody waits for that."""
        found = self._machine
        if found is None or not self._is_complete:
            was_partial = found is not None
            found = machine_of(self.places.devices(low_priority=low_priority), self.places.unavailable())
            self._machine, self._is_complete = found, True
            self._recall(found.devices)
            if self._unprobed is not None:
                self._unprobed.clear()
            if was_partial:
                self._tell_sites()
        return found

    def device(self, identity: str) -> Device | None:
        """A device by its id. The machine is only looked at for one that is not known yet: it was named."""
        return self._find_device(identity) or self.machine().device(identity)

    def machine_for(self, options: Options, baseline: str | None = "numpy") -> Machine:
        """The devices among which the options choose. Where only the processor was asked for, no GPU is looked for.

        For calls that name no device that is what has been found so far, unless software devices stand in for GPUs.
        `baseline` is the device of their arguments, which somebody has named if it is another than NumPy.
        """
        if options.names_only_numpy:
            # A probe would compare it with itself.
            return machine_of([msgspec.structs.replace(numpy_device(), state="verified")], ())
        if not self._is_complete and options.names_only(CPU, "numpy"):
            found = self.places.of_engines(("numpy", CPU))
            devices = [each for each in found if isinstance(each, Device) and each.verified]
            return machine_of(devices, [each for each in found if isinstance(each, Unavailable)])
        if options.preference.on or baseline != "numpy" or software_devices_are_automatic():
            return self.machine()
        return self._machine_so_far()

    def _machine_so_far(self) -> Machine:
        """NumPy, what other machines have, and what has been found here: nothing is probed."""
        if self._is_complete:
            return self.machine()
        with self.lock:
            known = self._machine
            if known is None:
                numpy = msgspec.structs.replace(numpy_device(), state="verified")
                found = [each for each in self._found if isinstance(each, Device) and each.verified]
                missing = [each for each in self._found if isinstance(each, Unavailable)]
                known = self._machine = machine_of([numpy, *found, *self.places.elsewhere()], missing)
                self._recall(known.devices)
            return known

    def forget_machine(self) -> None:
        """Devices have come or gone: calls look at them anew."""
        with self.lock:
            self._machine = None
            self._tell_sites()

    def _tell_sites(self) -> None:
        """Other devices are known now: call sites consider them when they next plan a call."""
        with self.lock:
            for site in list(self._sites):
                site.devices_changed()

    def considered(self, site: Candidates) -> None:
        """A call site has looked at the devices that there are now."""
        self._sites.add(site)

    def add_seconds(self, seconds: float) -> None:
        """Calls have taken so long. Any thread may say so, with or without the lock."""
        with self.lock:
            self.seconds += seconds
        if self._unprobed and not self._is_probing and self.seconds >= self.look_after:
            self._probe_next_later()

    @property
    def has_nowhere_to_look(self) -> bool:
        """Whether calls that name no device can only run on NumPy: this machine has no GPU, nor has a fleet one."""
        return not probes_by_itself() and not self.places.elsewhere()

    @property
    def look_after(self) -> float:
        """Seconds that calls have taken in all when the machine is looked at for them, or looked at further."""
        if software_devices_are_automatic():
            return LOOKING
        return self.pace.look_after(is_first=self._unprobed is None)

    @property
    def until_worth_looking(self) -> float:
        """Seconds that calls still have to take before anybody looks at the machine for them."""
        return 0.0 if self._looking else max(0.0, self.look_after - self.seconds)

    def wake(self, *, pays: bool = False) -> None:
        """Look at the machine in the background, once calls have taken long enough to make that worth while.

        With `pays` at once: earlier processes have found a faster device. On a machine without a GPU there is nothing
        to look for.
        """
        if not self._looking and (pays or self.seconds >= self.look_after) and not self.has_nowhere_to_look:
            self._looking = True
            self.background.submit(partial(self._look, pays=pays))

    def _look(self, *, pays: bool = False) -> None:
        # Recording loads modules when it first meets an operation: not in the time of a caller.
        traced = trace(lambda x: (np.tanh(x) * 2 + x.sum(axis=0))[:1], (np.zeros((2, 2), np.float32),), {})
        if isinstance(traced, Traced):
            # The same for predicting.
            structure_of(traced.program, fuses=True)
        self._ready = True
        # Without devices everything stays where it is; a caller that asks for one gets the error.
        with contextlib.suppress(AnyGPUError):
            if software_devices_are_automatic():
                self.machine(low_priority=True)
            elif not self._is_complete:
                self._probe_one_by_one(at_once=pays)
            if self._machine is not None:
                self.recall.prepare(self._machine.devices)

    def _probe_one_by_one(self, *, at_once: bool) -> None:
        """Probe the engines that may have a GPU, one child at a time, as far as calls have paid for that.

        Those that were probed lately need no child, and come first.
        """
        if self._unprobed is None:
            entries = [each for each in catalogue() if each.probe_in == "child" and is_installed(each)]
            names = [each.name for each in entries if each.traits.automatic] if probes_by_itself() else []
            known = self.places.remembered(names)
            self._unprobed = deque(name for name in names if name not in known)
            self._add_devices_of([name for name in names if name in known])
        while self._unprobed and not self._is_complete and not self.background.closed:
            if not at_once and self.seconds < self.look_after:
                return
            self._add_devices_of([self._unprobed.popleft()])

    def _add_devices_of(self, engines: Sequence[str]) -> None:
        """Probe these engines, and let call sites consider what they have."""
        begin = self.clock()
        found = self.places.of_engines(engines, low_priority=True) if engines else []
        self.pace.looked += self.clock() - begin
        with self.lock:
            self._found += [each for each in found if each.engine in engines]
            if not self._is_complete:
                self._machine = None
                self._tell_sites()
        self._machine_so_far()

    def _probe_next_later(self) -> None:
        """In the background: calls have paid for probing another engine."""
        self._is_probing = True

        def probe() -> None:
            try:
                with contextlib.suppress(AnyGPUError):
                    self._probe_one_by_one(at_once=False)
                    if self._machine is not None:
                        self.recall.prepare(self._machine.devices)
            finally:
                self._is_probing = False

        self.background.submit(probe)

    def _rest(self) -> None:
        """There is nothing to do in the background for now."""
        self.places.explorers.close()
        if self._recalled is not None:
            self._recalled.save()

    def worker(self, device: str, options: Options | None = None) -> Worker:
        # Whoever wants to run a program has recorded one.
        self._ready = True
        return self.places.worker(device, isolation=options.isolation if options else None)

    def replace(self, device: str, options: Options) -> None:
        """Open a device again that was lost, in the background. Meanwhile it counts as busy, so that calls that may
        run elsewhere do."""
        self.places.replace(
            device, isolation=options.isolation, meanwhile=lambda seconds: self.using((device,), seconds)
        )

    def explorer(self, device: str) -> Worker:
        """A worker for trials, which no caller waits for."""
        return self.places.explorer(device)

    def worker_of(self, options: Options) -> Callable[[str], Worker]:
        return lambda device: self.worker(device, options)

    @property
    def numpy(self) -> Device:
        return numpy_device()

    def is_open(self, device: str) -> bool:
        return self.places.is_open(device)

    # -- speed

    def _recall(self, devices: tuple[Device, ...]) -> None:
        for device in devices:
            if device.id not in self._calibrations:
                known = self.places.calibration(device) or (recalled(device) if device.node is None else None)
                self._calibrations[device.id] = known or assumed(device)

    def calibration(self, device: Device) -> Calibration:
        known = self._calibrations.get(device.id)
        if known is None:
            self._recall((device,))
            known = self._calibrations[device.id]
        return known

    def should_calibrate(self, device: Device) -> bool:
        """Whether it was never calibrated, or by an earlier process on a busy machine."""
        known = self.calibration(device)
        return known.source != "measured" or (known.disturbed and device.id not in self._calibrated)

    def calibrate(self, device: Device, *, seconds: float = CALIBRATION_SECONDS) -> Calibration:
        """Measure, and keep it for the next process."""
        measured = calibrate(self.explorer(device.id), seconds=seconds)
        if (known := self.calibration(device)).network is not None:
            measured = msgspec.structs.replace(measured, network=known.network)
        if device.node is None:
            # The way to another machine may be another one the next time.
            remember(measured, device)
        with self.lock:
            self._calibrated.add(device.id)
            self._calibrations[device.id] = measured
            self.corrections.forget(device.id)
        return measured

    def expected(
        self, program: Program, device: Device, *, resident_bytes: int = 0, keep: bool = False
    ) -> tuple[Expected, float]:
        """The prediction from the calibration, and its seconds corrected by earlier calls."""
        plain = predict(program, self.calibration(device), resident_bytes=resident_bytes, keep=keep)
        return plain, plain.seconds * self.corrections.factor(device.id, plain.seconds, program.key)

    def learn(
        self, candidate: str, program: str, predicted: Prediction, seconds: float, *, is_rough: bool = False
    ) -> None:
        """A call or a trial took so long there, which corrects predictions for other programs."""
        plain, known = predicted.plain, self._calibrations.get(candidate)
        # What was predicted before the device was calibrated says nothing about predictions since.
        if plain is None or known is None or predicted.calibrated != (known.source == "measured"):
            return
        with self.lock:
            self.corrections.learn(candidate, plain.seconds, seconds, program=program, is_rough=is_rough)

    def reading(self, device: str, nbytes: int) -> float:
        """The seconds that downloading so many bytes takes."""
        known = self._calibrations.get(device)
        return known.read.seconds(nbytes) if known is not None else 0.0

    @property
    def floor(self) -> float:
        """Less than the quickest call of any device: a function that takes less stays on NumPy."""
        others = [
            each
            for name, each in self._calibrations.items()
            if name != "numpy" and is_automatic(name, self._find_device(name))
        ]
        return min((each.launch + each.write.latency + each.read.latency for each in others), default=_FLOOR)

    # -- devices that were wrong

    def disagreed(self, found: Mismatch, code: Hashable) -> bool:
        """Pin the function to NumPy; whether that is news."""
        with self.lock:
            self._mismatches.append(found)
            is_news = code not in self.pinned
            self.pinned.setdefault(code, found.reason)
        return is_news

    def mismatches(self) -> tuple[Mismatch, ...]:
        """The last disagreements with NumPy, the latest last."""
        return tuple(self._mismatches)

    # -- what is going on

    def waiting(self) -> Mapping[str, float]:
        """For each busy device the seconds until it is free, as far as that can be told."""
        if not self._in_flight and not self._trials:
            return _NOTHING
        return _Busy(self)

    def _devices_in_use(self) -> set[str]:
        with self.lock:
            return {device for devices, _ in list(self._in_flight.values()) for device in devices} | self._trials

    def _seconds_in_use(self, device: str) -> float:
        """What is under way on one device: there may be ten thousand others, and one call asks for a few."""
        calls = self._in_flight_on.get(device)
        seconds = sum([each for call, each in list(calls.items()) if call in self._in_flight]) if calls else 0.0
        return seconds + _TRIAL_SECONDS if device in self._trials else seconds

    @contextlib.contextmanager
    def using(self, devices: tuple[str, ...], seconds: float) -> Iterator[None]:
        """A call that is expected to take so long is under way."""
        call = object()
        try:
            for device in devices:
                self._in_flight_on.setdefault(device, {})[call] = seconds
            self._in_flight[call] = (devices, seconds)
            yield
        finally:
            # In one step, which no interrupt can come before: what is not in there does not count by device either.
            self._in_flight.pop(call, None)
            for device in devices:
                self._in_flight_on.get(device, {}).pop(call, None)

    @contextlib.contextmanager
    def trying(self, devices: tuple[str, ...]) -> Iterator[None]:
        """The workers that serve callers are busy with finding out, in the background."""
        with self.lock:
            self._trials.update(devices)
        here = any(self.places.isolation(device) == "thread" for device in devices)
        try:
            with self.background.must_finish() if here else contextlib.nullcontext():
                yield
        finally:
            with self.lock:
                self._trials.difference_update(devices)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being tried in the background; whether that was so in time."""
        return self.background.settle(timeout)

    def close(self) -> None:
        self.background.close()


_NOTHING: Mapping[str, float] = {}


class _Busy(Mapping[str, float]):
    """The seconds until devices are free, asked one by one."""

    __slots__ = ("_planner",)

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def __getitem__(self, device: str) -> float:
        seconds = self._planner._seconds_in_use(device)
        if seconds <= 0:
            raise KeyError(device)
        return seconds

    def get(self, device: str, default: Any = None) -> Any:
        return self._planner._seconds_in_use(device) or default

    def __iter__(self) -> Iterator[str]:
        return iter(self._planner._devices_in_use())

    def __len__(self) -> int:
        return len(self._planner._devices_in_use())

    def __bool__(self) -> bool:
        return bool(self._planner._in_flight or self._planner._trials)


def first_choice(devices: Sequence[Device], on: Sequence[str]) -> tuple[list[Device], list[Device]]:
    """The devices that the first matching name of `on` means, and the others."""
    for name in meant(on, devices):
        first = [device for device in devices if matches_name(device, name)]
        if first:
            return first, [device for device in devices if device not in first]
    return list(devices), []


def lacking(find: Callable[[str], Worker], device: str, program: Program) -> str | None:
    """A sentence that names what the device cannot do of the program; `None` when it can do it all."""
    try:
        lacks = find(device).supports(program)
    except DeviceLost:
        # It died of something else: asking can be repeated, and its next generation knows as much.
        lacks = find(device).supports(program)
    if not lacks:
        return None
    first = lacks[0]
    line = program.lines[first.node]
    at = f" ({line[0]}:{line[1]})" if line is not None else ""
    more = f", and {len(lacks) - 1} more" if len(lacks) > 1 else ""
    return f"{device} cannot do {program.nodes[first.node].op.name}{at}: {first.reason}{more}."


def usable_bytes(device: Device) -> int | None:
    """The bytes that a program may take there; `None` when that is not known."""
    budget = default_budget()
    free = device.memory_free if device.memory_free is not None else device.memory_total
    usable = None if free is None else int(free * _USABLE)
    if budget is None:
        return usable
    return budget if usable is None else min(budget, usable)


def no_device(planner: Planner, options: Options) -> DeviceUnavailable | None:
    """The error for a preference that no device of this machine fits; `None` when one does."""
    machine = planner.machine_for(options)
    try:
        require(machine.devices, options.preference, machine.unavailable)
    except DeviceUnavailable as error:
        return error
    return None


def allows_numpy(options: Options) -> bool:
    """Whether the user's own function on the user's own arrays is among what was asked for."""
    preference = options.preference
    if options.engine is not None:
        return False
    # The first name that matches a device counts, and the machine may not have been looked at.
    return not preference.on or matches_name(numpy_device(), preference.on[0])


@cache
def numpy_device() -> Device:
    """NumPy's device, which is asked for the processor's memory: not before somebody wants to know."""
    from anygpu.engines.numpy.engine import NumpyEngine

    (device,) = NumpyEngine().discover()
    assert isinstance(device, Device)
    return device


_default: Planner | None = None
_making = threading.Lock()


def _users_history() -> CallHistory:
    """That of the user. A wrong setting is no reason for a call to fail."""
    from anygpu.history.history import History, open_history

    try:
        return open_history()
    except InvalidOption as error:
        logging.getLogger("anygpu.history").warning("nothing is kept: %s", error)
        return History(None)


def default() -> Planner:
    """The planner of the module's functions, made when the first of them is called."""
    global _default
    if _default is None:
        with _making:
            if _default is None:
                _default = Planner(history=_users_history)
    return _default


def _forked() -> None:
    """In a child that was forked off, nothing is explored: the threads for it are the parent's."""
    if _default is not None:
        _default.pace.exploring = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
