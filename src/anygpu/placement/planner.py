"""The planner: how fast the devices of the machine are, what they are busy with, and the thread that learns more.

There is one for all calls of a process (`default`); tests and fleets have their own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from anygpu.base.disturbance import DisturbanceWatch, Reading, read_processors
from anygpu.base.forks import lock
from anygpu.calls.background import Background
from anygpu.calls.options import Options
from anygpu.engines.catalogue import is_automatic
from anygpu.errors import DeviceUnavailable, InvalidOption
from anygpu.hardware.device import CPU, Device
from anygpu.hardware.selection import matches_name, require
from anygpu.placement.machine import MachineLook, numpy_device
from anygpu.placement.plan.calibration import Calibration, assumed
from anygpu.placement.plan.predicting import Corrections, Expected, predict
from anygpu.program.graph import Program
from anygpu.workers.worker import Worker

if TYPE_CHECKING:
    from anygpu.agreement.mismatches import Mismatch
    from anygpu.placement.candidates import Prediction
    from anygpu.placement.history.history import CallHistory
    from anygpu.placement.recall import Recall
    from anygpu.workers.device_arrays.registry import DeviceRegistry

#: What a calibration in the background may take; `anygpu devices --calibrate` takes longer and is more exact.
CALIBRATION_SECONDS = 2.0
#: Assumed for a device that is busy with a trial: its end is not known.
_TRIAL_SECONDS = 1.0
#: Disagreements that are remembered.
_MISMATCHES = 100

#: Why calls that name no device stay on NumPy where nothing else is looked for.
NO_GPU = "this machine has no GPU, and other devices that compute on the processor are used only when named."
#: Before anything is known: no device answers sooner.
_FLOOR = 5e-5


@runtime_checkable
class KnowsSpeeds(Protocol):
    """A registry that knows how fast devices of other machines are, as a fleet's does."""

    def calibration(self, device: Device) -> Calibration | None:
        """What the device's own machine has measured; `None` for devices of this one."""


class Planner(MachineLook):
    """Devices and their speed, for all calls. Any thread may use it; `lock` guards its tables and the call sites'."""

    def __init__(
        self,
        *,
        known: DeviceRegistry | None = None,
        clock: Callable[[], float] = time.perf_counter,
        history: Callable[[], CallHistory] | None = None,
        read_processors: Callable[[], Reading] = read_processors,
    ) -> None:
        """Plan for the devices that `known` has, by default those of this process.

        `history` opens that of the user. Without it nothing is known of earlier processes, or kept for later.
        """
        super().__init__(known, clock, Background(when_idle=self._rest))
        self._open_history = history
        self._recalled: Recall | None = None
        #: Whether something else has the processors while calls are measured.
        self.watch = DisturbanceWatch(read_processors)
        self.corrections = Corrections()
        self._calibrations: dict[str, Calibration] = {}
        #: Devices that were calibrated by this process.
        self._calibrated: set[str] = set()
        #: By call, the devices that it uses and the seconds that it is expected to take.
        self._in_flight: dict[object, tuple[str, float]] = {}
        #: The same calls by device; some of them may have ended.
        self._in_flight_on: dict[str, dict[object, float]] = {}
        self._trials: set[str] = set()
        #: By the code of a function: why it stays on NumPy.
        self.pinned: dict[Hashable, str] = {}
        self._mismatches: deque[Mismatch] = deque(maxlen=_MISMATCHES)

    @property
    def recall(self) -> Recall:
        """The history of earlier processes, opened when it is first asked for: most processes end before that."""
        with self.lock:
            if self._recalled is None:
                from anygpu.placement.history.history import History
                from anygpu.placement.recall import Recall

                keeps = self._open_history is not None
                history = self._open_history() if self._open_history is not None else History(None)
                self._recalled = Recall(history, self._find_device)
                if keeps:
                    atexit.register(self._recalled.save)
            return self._recalled

    # -- devices

    def _rest(self) -> None:
        """Close the explorers, and save the history: there is nothing to do in the background for now."""
        self.places.explorers.close()
        if self._recalled is not None:
            self._recalled.save()

    def worker(self, device: str, options: Options | None = None) -> Worker:
        """The worker that serves callers on a device, which is opened if it is not open."""
        # Whoever wants to run a program has recorded one.
        self._ready = True
        return self.places.worker(device, isolation=options.isolation if options else None)

    def replace(self, device: str, options: Options) -> None:
        """Open a device again that was lost, in the background. Meanwhile it counts as busy, so that calls that may
        run elsewhere do."""
        self.places.replace(device, isolation=options.isolation, meanwhile=lambda seconds: self.using(device, seconds))

    def explorer(self, device: str) -> Worker:
        """A worker for trials, which no caller waits for."""
        return self.places.explorer(device)

    def worker_of(self, options: Options) -> Callable[[str], Worker]:
        """A function that finds the worker of a device, with the isolation that the options ask for."""
        return lambda device: self.worker(device, options)

    @property
    def numpy(self) -> Device:
        """NumPy's device."""
        return numpy_device()

    def is_open(self, device: str) -> bool:
        """Whether a worker of the device is open."""
        return self.places.is_open(device)

    # -- speed

    def _prepare_history(self, devices: Sequence[Device]) -> None:
        """In the background: read what earlier processes have learnt of these devices."""
        self.recall.prepare(devices)

    def _recall(self, devices: Sequence[Device]) -> None:
        """Read the calibrations of devices that are new here, or assume some."""
        from anygpu.placement.calibrate import recalled

        places = self.places
        for device in devices:
            if device.id not in self._calibrations:
                known = places.calibration(device) if isinstance(places, KnowsSpeeds) else None
                if known is None and device.node is None:
                    known = recalled(device)
                self._calibrations[device.id] = known or assumed(device)

    def calibration(self, device: Device) -> Calibration:
        """How fast a device is: measured, or assumed."""
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
        """Measure a device, for about so many seconds, and keep the calibration for the next process, unless it is
        elsewhere.
        """
        from anygpu.placement.calibrate import calibrate, remember

        # What runs in this process is measured here, at the priority that calls have.
        worker = self.worker(device.id) if device.engine == CPU else self.explorer(device.id)
        measured = calibrate(worker, seconds=seconds)
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
        """Correct predictions for a device by a call or trial that took so many seconds.

        Times of predictions that were made before the device was calibrated, and of native code, which runs without
        planning, do not count.
        """
        plain, known = predicted.plain, self._calibrations.get(candidate)
        # What was predicted before the device was calibrated says nothing about predictions since.
        if known is None or predicted.calibrated != (known.source == "measured"):
            return
        # Native code is predicted as it runs without planning. A planned call takes many times as long as a short one.
        if known.native is not None:
            return
        with self.lock:
            self.corrections.learn(candidate, plain.seconds, seconds, program=program, is_rough=is_rough)

    def reading(self, device: str, nbytes: int) -> float:
        """The seconds that downloading so many bytes takes."""
        known = self._calibrations.get(device)
        return known.read.seconds(nbytes) if known is not None else 0.0

    @property
    def floor(self) -> float:
        """The seconds of the quickest call that any device could make: a function that takes less stays on NumPy."""
        others = [
            each
            for name, each in self._calibrations.items()
            if name != "numpy" and is_automatic(name, self._find_device(name))
        ]
        return min((each.launch + each.write.latency + each.read.latency for each in others), default=_FLOOR)

    # -- devices that were wrong

    def disagreed(self, found: Mismatch, code: Hashable) -> bool:
        """Keep a mismatch, and pin the functions with this code to NumPy; whether they were not pinned before."""
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
        """The seconds until each busy device is free, as far as that can be told. Devices are looked up when they are
        asked for.
        """
        if not self._in_flight and not self._trials:
            return _NOTHING
        return _Busy(self)

    def _devices_in_use(self) -> set[str]:
        """The devices that calls or trials use now."""
        with self.lock:
            return {device for device, _ in list(self._in_flight.values())} | self._trials

    def _seconds_in_use(self, device: str) -> float:
        """The expected seconds of calls and trials on one device, looked up by device: there may be thousands of
        others.
        """
        calls = self._in_flight_on.get(device)
        seconds = sum([each for call, each in list(calls.items()) if call in self._in_flight]) if calls else 0.0
        return seconds + _TRIAL_SECONDS if device in self._trials else seconds

    @contextlib.contextmanager
    def using(self, device: str, seconds: float) -> Iterator[None]:
        """Count the device as busy during the block, which is expected to take this many seconds."""
        call = object()
        try:
            self._in_flight_on.setdefault(device, {})[call] = seconds
            self._in_flight[call] = (device, seconds)
            yield
        finally:
            # In one step, which no interrupt can come before: what is not in there does not count by device either.
            self._in_flight.pop(call, None)
            self._in_flight_on.get(device, {}).pop(call, None)

    @contextlib.contextmanager
    def trying(self, devices: tuple[str, ...]) -> Iterator[None]:
        """A context manager around a trial on workers that serve callers: they count as busy meanwhile.

        Python waits for its end if one of them is in this process.
        """
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
        """End the thread in the background."""
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
        """The seconds until a device is free, or the default."""
        return self._planner._seconds_in_use(device) or default

    def __iter__(self) -> Iterator[str]:
        return iter(self._planner._devices_in_use())

    def __len__(self) -> int:
        return len(self._planner._devices_in_use())

    def __bool__(self) -> bool:
        return bool(self._planner._in_flight or self._planner._trials)


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


_default: Planner | None = None
_making = lock()


def _users_history() -> CallHistory:
    """The user's history; one that keeps nothing where the setting is wrong, which is logged and fails no call."""
    import logging  # takes milliseconds to load, and most processes keep a history that can be opened

    from anygpu.placement.history.history import History, open_history

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
    """After a fork, in the child: nothing is explored, as the thread is the parent's."""
    if _default is not None:
        _default.pace.exploring = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
