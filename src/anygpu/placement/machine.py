"""The devices of this machine, which are probed for calls once the calls have paid for that.

`Machine` is what was found. `MachineLook`, the base of the planner, finds it: at once where a device was named, else in
the background, one engine after the other.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

import msgspec

from anygpu.base.forks import rlock
from anygpu.base.lazy import cached_property
from anygpu.calls.background import LOOKING, Background, Pace
from anygpu.calls.options import Options
from anygpu.engines.catalogue import catalogue, is_installed
from anygpu.errors import AnyGPUError, DeviceLost
from anygpu.hardware.device import CPU, Device, Unavailable
from anygpu.hardware.gpu_presence import probes_by_itself, software_devices_are_automatic
from anygpu.hardware.selection import matches_name, meant
from anygpu.program.graph import Program
from anygpu.workers.worker import Worker, default_budget

if TYPE_CHECKING:
    from anygpu.placement.candidates import Candidates
    from anygpu.workers.device_arrays.registry import DeviceRegistry

#: Of a device's free memory: the rest is for what others do there, and for what allocators round up.
_USABLE = 0.8


class Machine(NamedTuple):
    """The devices of a machine, and why others are unavailable."""

    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    by_id: Mapping[str, Device]

    def device(self, identity: str) -> Device | None:
        """The device with this id, if there is one."""
        return self.by_id.get(identity)


def machine_of(devices: Iterable[Device], unavailable: Iterable[Unavailable]) -> Machine:
    """A machine of these devices; of two with one id the first counts."""
    found = tuple(devices)
    return Machine(found, tuple(unavailable), {each.id: each for each in reversed(found)})


class MachineLook(ABC):
    """The devices of the machine that are known, and when more of them are probed. It has the lock of all placement."""

    def __init__(self, known: DeviceRegistry | None, clock: Callable[[], float], background: Background) -> None:
        self._known = known
        self.clock = clock
        self.background = background
        #: Held around every change of choosers and tables; never while a program runs.
        self.lock = rlock()
        self.pace = Pace(clock)
        #: Seconds that calls have taken in all: what exploring has to be worth. `add_seconds` adds to it.
        self.seconds = 0.0
        self._machine: Machine | None = None
        #: Whether every engine has been probed for it.
        self._is_complete = False
        #: Engines that are still to be probed for calls that name no device; `None` before the first look for them.
        self._unprobed: deque[str] | None = None
        #: What was found so far by probing one engine after the other.
        self._found: list[Device | Unavailable] = []
        #: The candidates of call sites that have looked at it.
        self._candidates: WeakSet[Candidates] = WeakSet()
        #: Whether a look was requested, and whether one is being taken.
        self._looking = self._ready = False
        self._is_probing = False

    @abstractmethod
    def _recall(self, devices: Sequence[Device]) -> None:
        """Read, or assume, the calibrations of devices that have just become known."""

    @abstractmethod
    def _prepare_history(self, devices: Sequence[Device]) -> None:
        """Read what earlier processes have learnt of these devices, in the background."""

    @cached_property
    def places(self) -> DeviceRegistry:
        """The devices and their workers. They are loaded with the first look: many processes never take one."""
        if self._known is not None:
            return self._known
        from anygpu.workers.device_arrays.registry import registry

        return registry

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
        """All devices of this machine. The first call probes every engine, and waits for that.

        With `low_priority` the probes run at a low priority, as no caller waits.
        """
        found = self._machine
        if found is None or not self._is_complete:
            was_partial = found is not None
            found = machine_of(self.places.devices(low_priority=low_priority), self.places.unavailable())
            self._machine, self._is_complete = found, True
            self._recall(found.devices)
            if self._unprobed is not None:
                self._unprobed.clear()
            if was_partial:
                self._tell_candidates()
        return found

    def device(self, identity: str) -> Device | None:
        """A device by its id. The machine is only looked at for one that is not known yet: it was named."""
        return self._find_device(identity) or self.machine().device(identity)

    def _find_device(self, name: str) -> Device | None:
        """A device by its id, as far as the machine has been looked at."""
        if self._machine is None:
            return numpy_device() if name == "numpy" else None
        return self._machine.device(name)

    def machine_for(self, options: Options, baseline: str | None = "numpy") -> Machine:
        """The devices among which the options choose. Where only the processor was asked for, no GPU is probed.

        For calls that name no device these are the devices found so far, unless software devices stand in for GPUs.
        `baseline` is the device of their arguments, which the user has named if it is another than NumPy.
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
        """Forget the devices, as some have come or gone: calls look at them anew."""
        with self.lock:
            self._machine = None
            self._tell_candidates()

    def _tell_candidates(self) -> None:
        """Have call sites consider the devices anew when they next plan a call."""
        with self.lock:
            for candidates in list(self._candidates):
                candidates.devices_changed()

    def considered(self, candidates: Candidates) -> None:
        """Tell the candidates of a call site when devices come or go: it has looked at those that there are now."""
        self._candidates.add(candidates)

    def add_seconds(self, seconds: float) -> None:
        """Count the seconds that calls have taken, from any thread; start the next probe once they have paid for it."""
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
        """The seconds that calls must have taken in all before the machine, or the next engine, is probed."""
        if software_devices_are_automatic():
            return LOOKING
        return self.pace.look_after(is_first=self._unprobed is None)

    @property
    def until_worth_looking(self) -> float:
        """The seconds that calls still have to take before the machine is probed for them."""
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
        """Load what traces and predicts, in the background, and probe for devices; with `pays` without waiting for
        calls.
        """
        from anygpu.array.trace.traced import Traced
        from anygpu.array.trace.tracing import trace_small
        from anygpu.placement.plan.predicting import structure_of

        # Recording loads modules when it first meets an operation: not in the time of a caller.
        traced = trace_small()
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
                self._prepare_history(self._machine.devices)

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
                self._tell_candidates()
        self._machine_so_far()

    def _probe_next_later(self) -> None:
        """Probe the next engine in the background: calls have paid for it."""
        self._is_probing = True

        def probe() -> None:
            try:
                with contextlib.suppress(AnyGPUError):
                    self._probe_one_by_one(at_once=False)
                    if self._machine is not None:
                        self._prepare_history(self._machine.devices)
            finally:
                self._is_probing = False

        self.background.submit(probe)


def first_choice(devices: Sequence[Device], on: Sequence[str]) -> tuple[list[Device], list[Device]]:
    """The devices that the first matching name of `on` means, and the others."""
    for name in meant(on, devices):
        first = [device for device in devices if matches_name(device, name)]
        if first:
            return first, [device for device in devices if device not in first]
    return list(devices), []


def lacking(find: Callable[[str], Worker], device: str, program: Program) -> str | None:
    """A sentence that names the first operation that the device cannot do, and how many more; `None` when it can do
    all.

    A worker that has just died is asked again, in its next generation.
    """
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
    """The bytes that a program may take on a device: within the budget and its free memory; `None` if unknown."""
    budget = default_budget()
    free = device.memory_free if device.memory_free is not None else device.memory_total
    usable = None if free is None else int(free * _USABLE)
    if budget is None:
        return usable
    return budget if usable is None else min(budget, usable)


@cache
def numpy_device() -> Device:
    """NumPy's device. Making it asks for the processor's memory, so it is made when it is first needed."""
    from anygpu.engines.numpy.lowering import NumpyEngine

    (device,) = NumpyEngine().discover()
    assert isinstance(device, Device)
    return device
