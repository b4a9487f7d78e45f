"""The first use of a kernel: compiled and run in a child, compared with its reference, and remembered on disk.

`Sandboxes` keeps children in which a kernel is compiled and run: whatever it does there harms no one else. A child is
an ordinary worker, replaced when it dies, and let go of after a while without work. `FirstUse` tries a launch there
with the user's values or with samples, and compares the results with the reference.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.structure import flatten
from anygpu.base.cache_folder import cache_folder
from anygpu.base.forks import lock, rlock
from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import catalogue, entry_of, every_engine
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.disk_cache import DiskCache, stamp_of
from anygpu.engines.protocol import Lack
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeadlineExceeded,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InvalidKernel,
    InvalidOption,
    KernelError,
    MissingExtra,
    WrongKernel,
)
from anygpu.hardware.device import Device
from anygpu.hardware.host import memory_free
from anygpu.placement.kernels.arguments import Given, call_like
from anygpu.placement.kernels.launching import (
    LaunchCall,
    Launcher,
    Tolerance,
    encoded,
    first_difference,
    of_another_number,
    of_another_type,
)
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.custom import SPOKEN, Custom, Language, Parameter
from anygpu.program.primitives import Spec, Unary
from anygpu.workers.worker import Worker, open_worker

if TYPE_CHECKING:
    from anygpu.workers.process import ProcessWorker

# -- children in which a user's kernel is compiled and run for the first time: whatever it does there harms no one else
#
# A child is an ordinary worker of the device, opened aside from the one that has the user's arrays. It is kept for the
# next kernel, replaced when it dies, and let go of after a while without work.


T = TypeVar("T")

#: After so many seconds without work a child is let go of.
IDLE_SECONDS = 30.0
#: The share of the free memory that a child may take: a compiler that asks for all of it is ended.
_SHARE_OF_MEMORY = 0.5


def _small() -> Program:
    recorder = Recorder()
    return recorder.program([recorder.add(Unary("negative"), recorder.input(Spec((8,), "float32")))])


#: A kernel that loads a compiler.
_SMALL = _small()


class _Slot:
    """The child of one device. Its lock is held while it works, and around every change."""

    def __init__(self) -> None:
        """A place for the worker of one device, which is opened when it is needed."""
        self.lock = lock()
        self.worker: Worker | None = None
        #: Whether it has run no kernel yet, so that no other kernel can be to blame.
        self.fresh = True
        self.used = 0.0
        self.timer: threading.Timer | None = None


class Sandboxes:
    """The children, at most one for each device."""

    def __init__(self, *, idle: float = IDLE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """Children are opened when they are needed, and ended after `idle` seconds without work by the `clock`."""
        self._idle = idle
        self._clock = clock
        self._lock = lock()
        self._slots: dict[str, _Slot] = {}
        self._over = False

    def lacks(self, device: Device, program: Program, kernel: str, timeout: float) -> list[Lack]:
        """The nodes of the program that the device cannot run."""
        return self._do(device, kernel, timeout, "was looked at", lambda worker: worker.supports(program))

    def reflected(self, device: Device, source: str, entry: str | None, kernel: str, timeout: float) -> Reflected:
        """Return what the kernel takes. Raises `InvalidKernel` with what the compiler says."""

        def read(worker: Worker) -> Reflected:
            return cast("ProcessWorker", worker).reflected(source, entry, kernel)

        return self._do(device, kernel, timeout, "was read", read)

    def compile(self, device: Device, program: Program, kernel: str, timeout: float) -> None:
        """Raises `InvalidKernel` with what the compiler says, and `DeviceHung` where it says nothing in time."""
        self._do(device, kernel, timeout, "was compiled", lambda worker: worker.prepare(program))

    def run(
        self, device: Device, program: Program, arguments: Sequence[HostArray], kernel: str, timeout: float
    ) -> list[HostArray]:
        """The results, on the host, where nothing of the child is left in them."""
        ran = self._do(
            device, kernel, timeout, "was run", lambda worker: worker.run(program, list(arguments), timeout=timeout)
        )
        # They lie in memory that is shared with the child.
        return [values.copy() for values in ran.results]

    def processes(self) -> list[int]:
        """The children that there are."""
        workers = [slot.worker for slot in list(self._slots.values())]
        alive = [worker for worker in workers if worker is not None and worker.alive]
        return [getattr(worker, "process_id", 0) for worker in alive]

    def close(self) -> None:
        """Let go of every child. New ones are started when they are needed again."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            with slot.lock:
                if slot.timer is not None:
                    slot.timer.cancel()
                    slot.timer = None
                self._let_go(slot)

    # -- one trial

    def _do(self, device: Device, kernel: str, timeout: float, what: str, work: Callable[[Worker], T]) -> T:
        """Do something with the child of a device, within `timeout` seconds, and return its result.

        A child that dies is replaced once, unless it was new: earlier kernels may have damaged it. Raises
        `InvalidKernel` where the kernel has killed a child of its own, and `DeviceHung` where time runs out.
        """
        slot = self._slot(device)
        with slot.lock:
            worker = self._open(slot, device)
            was_fresh, slot.fresh = slot.fresh, False
            try:
                try:
                    return self._within(worker, device, kernel, timeout, what, work)
                except (DeviceLost, DevicePoisoned) as error:
                    self._let_go(slot)
                    if was_fresh:
                        raise _killed(kernel, what, worker, error) from error
                # An earlier kernel may have left it broken: this one is tried again where there was none.
                worker = self._open(slot, device)
                slot.fresh = False
                try:
                    return self._within(worker, device, kernel, timeout, what, work)
                except (DeviceLost, DevicePoisoned) as error:
                    raise _killed(kernel, what, worker, error) from error
            finally:
                if not worker.alive:
                    self._let_go(slot)
                slot.used = self._clock()
                self._watch(slot)

    def _within(
        self, worker: Worker, device: Device, kernel: str, timeout: float, what: str, work: Callable[[Worker], T]
    ) -> T:
        """Compiling has no deadline of its own, so the child is killed from outside when it takes too long."""
        late = threading.Event()
        # A little later than the worker's own deadline, whose error says more.
        timer = threading.Timer(timeout + 0.5, _end, [worker, late])
        timer.daemon, timer.name = True, "anygpu-kernel-deadline"
        timer.start()
        try:
            return work(worker)
        except DeviceHung as error:
            raise _hung(device, kernel, timeout, what) from error
        except (DeviceLost, DeadlineExceeded) as error:
            if late.is_set():
                raise _hung(device, kernel, timeout, what) from error
            raise
        finally:
            timer.cancel()

    # -- children

    def _slot(self, device: Device) -> _Slot:
        """The slot of a device. Raises `DeviceUnavailable` while the process ends."""
        with self._lock:
            if self._over:
                raise DeviceUnavailable(f'on="{device.id}"', ["this process is shutting down."], device=device.id)
            return self._slots.setdefault(device.id, _Slot())

    def _open(self, slot: _Slot, device: Device) -> Worker:
        """The child of the slot, alive.

        It is opened if need be, warmed up with a small program, and its memory is limited.
        """
        if slot.worker is not None and slot.worker.alive:
            return slot.worker
        self._let_go(slot)
        slot.worker = open_worker(entry_of(device.id), device, isolation="process")
        slot.fresh = True
        # Compilers load a great deal when they are first used: that is not a kernel's fault, and not of its time.
        slot.worker.prepare(_SMALL)
        _limit_memory(slot.worker)
        return slot.worker

    def _let_go(self, slot: _Slot) -> None:
        """End the slot's child, if it has one."""
        worker, slot.worker = slot.worker, None
        if worker is not None:
            worker.close()

    def _watch(self, slot: _Slot, seconds: float | None = None) -> None:
        """See to it that the child is looked for when it may have become idle. One timer at a time."""
        if slot.timer is not None or slot.worker is None or self._over:
            return
        slot.timer = threading.Timer(self._idle if seconds is None else seconds, self._look_after, [slot])
        slot.timer.daemon, slot.timer.name = True, "anygpu-kernel-idle"
        slot.timer.start()

    def _look_after(self, slot: _Slot) -> None:
        """On a timer: end the child if it has been idle for long enough, and look again later otherwise."""
        with slot.lock:
            slot.timer = None
            left = slot.used + self._idle - self._clock()
            if left > 0:
                self._watch(slot, left)
            else:
                self._let_go(slot)

    def _end(self) -> None:
        self._over = True
        self.close()

    def _forked(self) -> None:
        """In a process that was forked from ours: the children are not ours, and neither are the threads."""
        self._slots = {}


@contextlib.contextmanager
def trials_of_its_own(idle: float = IDLE_SECONDS) -> Iterator[Sandboxes]:
    """Children that end with the block."""
    found = Sandboxes(idle=idle)
    try:
        yield found
    finally:
        found._end()


def _end(worker: Worker, late: threading.Event) -> None:
    late.set()
    worker.kill()


def _limit_memory(worker: Worker) -> None:
    """Where the system allows it, a child that takes too much memory fails before the machine does."""
    try:
        import resource
    except ImportError:
        return
    process = getattr(worker, "process_id", None)
    if process is None or not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):
        taken = _data_bytes(process)
        # What a driver maps of a card's memory does not count as data, so that this limits the host's alone.
        most = taken + int(memory_free() * _SHARE_OF_MEMORY)
        resource.prlimit(process, resource.RLIMIT_DATA, (most, most))


def _data_bytes(process: int) -> int:
    """Bytes of data that a process has mapped, from `/proc`; 0 where that does not say."""
    with Path(f"/proc/{process}/status").open(encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def _hung(device: Device, kernel: str, timeout: float, what: str) -> DeviceHung:
    """The error for a kernel that did not end in time, with a note on what may have happened and what to raise."""
    error = DeviceHung(device.id, timeout, doing=f"the kernel {kernel} {what} aside")
    error.add_note(
        f"The kernel {kernel} may have an endless loop. It {what} in a process of its own, which was stopped, so "
        "nothing else was affected. If it only needs longer, raise timeout=."
    )
    return error


def _killed(kernel: str, what: str, worker: Worker, error: Exception) -> InvalidKernel:
    """The error for a kernel that has brought down its process, with how that ended."""
    why = worker.ended or str(error)
    return InvalidKernel(
        kernel,
        f"it killed the process in which it {what} aside ({why}). Look for indices out of bounds, for recursion and "
        "for more memory than the device has.",
    )


#: The children of this process.
trials = Sandboxes()
atexit.register(trials._end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=trials._forked)


# -- arguments for a trial where the user's own are not at hand: the same whenever they are made


#: The least and the greatest value of an array.
Range = tuple[float, float]

_SEED = 20_250_607


def samples(specs: Sequence[Spec], ranges: Sequence[Range | None] = ()) -> list[HostArray]:
    """An array for each spec, of numbers in its range.

    Where that is not known, floats lie between -1 and 1, and whole numbers between 0 and the shortest axis of all: a
    kernel may use them as indices.
    """
    random = np.random.default_rng(_SEED)
    axes = [n for spec in specs for n in spec.shape if n]
    top = max(min(axes, default=2) - 1, 1)
    known = [*ranges, *[None] * (len(specs) - len(ranges))]
    return [_sample(random, spec, reach, top) for spec, reach in zip(specs, known, strict=True)]


def _sample(random: np.random.Generator, spec: Spec, reach: Range | None, top: int) -> HostArray:
    """Random values of a spec that a kernel is tried with.

    Integers are from the range that the kernel's reference allows, and otherwise from 0 to `top`; floats from -1 to 1.
    A range that is not finite counts as none.
    """
    dtype = to_numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, spec.shape).astype(dtype)
    if reach is not None and not all(map(math.isfinite, reach)):
        reach = None
    if dtype.kind in "iu":
        first, last = (int(each) for each in (reach or (0, min(top, np.iinfo(dtype).max))))
        return random.integers(first, last, spec.shape, dtype=dtype, endpoint=True)
    low, high = reach or (-1.0, 1.0)
    real = low + (high - low) * random.random(spec.shape, np.float32)
    if dtype.kind == "c":
        return (real + 1j * random.permutation(real, axis=-1) if spec.shape else real + 0j).astype(dtype)
    return np.asarray(real).astype(dtype)


#: Arguments on a device that have more bytes than this are not downloaded for a trial.
MOST_DOWNLOADED = 64 << 20

#: Kinds of calls that need no thought any more.
_MOST_PASSED = 4096


def engines_for(language: Language) -> list[str]:
    """The engines that compile kernels in the language."""
    return [entry.name for entry in every_engine() if language in entry.traits.languages]


def device_for(language: Language) -> tuple[Device | None, str]:
    """The best device of this machine that speaks the language; or none, and why."""
    from anygpu.workers.device_arrays.registry import registry

    try:
        known = {entry.name for entry in catalogue()}
        if names := [name for name in engines_for(language) if name in known]:
            return registry.find(",".join(names)).facts, ""
        why = f"The variable ANYGPU_ENGINES leaves out {', '.join(engines_for(language))}."
    except DeviceUnavailable as error:
        why = error.refusals[0] if error.refusals else str(error)
    except MissingExtra as error:
        why = str(error)
    return None, f"no device of this machine takes {SPOKEN[language]}. {why}"


def reflected_by_compiler(device: Device, source: str, entry: str | None, title: str, timeout: float) -> Reflected:
    """Return a kernel's parameters as a device's compiler reports them, from a child; kept on disk for each driver."""
    kept, key = _kept(device), hashlib.sha256(repr((source, entry)).encode()).hexdigest()
    found = kept.record("kernel-reflected", key, Reflected)
    if found is None:
        found = trials.reflected(device, source, entry, title, timeout)
        kept.put_record("kernel-reflected", key, found)
    return found


class FirstUse:
    """The outcome of one kernel's first runs in child processes."""

    def __init__(self, launcher: Launcher, trials: Sandboxes, timeout: float) -> None:
        """`trials` compiles and runs kernels aside, each within `timeout` seconds."""
        self._launcher = launcher
        self._trials = trials
        self._timeout = timeout
        self._lock = rlock()
        #: By device and kind of call.
        self._tried: dict[tuple[str, str], AnyGPUError | None] = {}
        self._passed: set[Any] = set()

    def compile(self, device: Device) -> str | None:
        """Once for a device and its driver. Why the device cannot run it, where something is missing there."""
        name, program = self._launcher.name, self._launcher.sample()
        ops = [node.op for node in program.nodes if isinstance(node.op, Custom)]
        key = hashlib.sha256(encoded(ops[0])).hexdigest()
        kept = _kept(device)
        if kept.record("kernel-compiled", key, bool):
            return None
        lacks = self._trials.lacks(device, program, name, self._timeout)
        if lacks:
            return f"{device.id} does not run it: {lacks[0].reason.rstrip('.')}."
        self._trials.compile(device, program, name, self._timeout)
        kept.put_record("kernel-compiled", key, True)
        return None

    def require(self, device: Device, given: Given, launch: LaunchCall | None = None) -> None:
        """Try it, unless that was done before, here or in an earlier process. What failed fails again."""
        # Whole numbers may decide about shapes; others do not, so that new values of them need no new thought.
        whole = tuple(each for each in given.numbers.values() if isinstance(each, int))
        quick = device.id, whole, tuple((each.shape, each.dtype.name) for each in given.arrays)
        if quick in self._passed:
            return
        if launch is None:
            launch = self._launcher.launch_of(given)
        where = device.id, launch.key
        if where not in self._tried:
            with self._lock:
                if where not in self._tried:
                    self._tried[where] = self._outcome(device, given, launch)
        error = self._tried[where]
        if error is not None:
            raise error.with_traceback(None)
        if len(self._passed) >= _MOST_PASSED:
            self._passed.clear()
        self._passed.add(quick)

    def _outcome(self, device: Device, given: Given, launch: LaunchCall) -> AnyGPUError | None:
        """Try a launch, unless the disk remembers that it has passed; return the error that it ended with, or `None`.

        An index that the reference cannot use is raised if the arguments were the user's own values, and ignored
        otherwise. Too little memory is raised unless another launch of the kernel has passed.
        """
        kept = _kept(device)
        if launch.lasting_key is not None and kept.record("kernel-checked", launch.lasting_key, bool):
            return None
        try:
            self._try(device, given, launch)
        except IndexError:
            # Random numbers may be no indices of anything; and those of this call say nothing about the next.
            if has_values(given):
                raise
            return None
        except (KernelError, InvalidOption) as error:
            return error
        except AllocationError as error:
            # A trial takes as much memory as the call itself. A kernel that was right for others may go without.
            if None in self._tried.values():
                return None
            name = self._launcher.name
            error.add_note(f"The kernel {name} can be checked with smaller arrays first: {name}.check(...).")
            raise
        if launch.lasting_key is not None:
            kept.put_record("kernel-checked", launch.lasting_key, True)
        return None

    def check(self, device: Device, given: Given) -> None:
        """Try it now, whatever is known."""
        launch = self._launcher.launch_of(given)
        with self._lock:
            self._try(device, given, launch)
            self._tried[device.id, launch.key] = None

    def _try(self, device: Device, given: Given, launch: LaunchCall) -> None:
        """Run a launch aside, and compare its results with the reference where there is one. Raises what is wrong."""
        launcher = self._launcher
        arguments = arguments_for(given, launch.inputs, MOST_DOWNLOADED)
        found = self._trials.run(device, launch.alone, arguments, launcher.name, self._timeout)
        if launcher.reference is not None:
            expected = _expected(launcher.reference, arguments, given)
            compare(launcher.name, launcher.written, found, expected, launcher.tolerance)


def _expected(reference: Callable[..., Any], arguments: Sequence[HostArray], given: Given) -> list[Any]:
    """The reference's results on read-only arguments: one that writes to them shows it here."""
    for each in arguments:
        each.flags.writeable = False  # a reference that writes to its arguments shows it here
    return flatten(call_like(reference, arguments, given.numbers))[0]


def arguments_for(given: Given, specs: Sequence[Spec], most: int) -> list[HostArray]:
    """The caller's own arguments, copied, where they are at hand; otherwise random ones in their place.

    Arrays of the host are always at hand. Those on a device are downloaded, unless they have more than `most` bytes.
    """
    known = has_values(given)
    if known and sum(each.nbytes for each in given.arrays if isinstance(each, Array)) <= most:
        return [np.array(each) for each in given.arrays]
    return samples(specs, [_range(each) if known else None for each in given.arrays])


def has_values(given: Given) -> bool:
    """Not while a function is recorded."""
    return not any(isinstance(each, Array) and isinstance(each._device, AbstractDevice) for each in given.arrays)


def _range(array: Any) -> Range | None:
    """The least and the greatest value, found where the array is."""
    if not array.size or array.dtype.kind not in "iuf":
        return None
    return array.min().item(), array.max().item()


def compare(
    title: str,
    written: Sequence[Parameter],
    found: Sequence[HostArray],
    expected: Sequence[Any],
    tolerance: Tolerance | None,
) -> None:
    """Raises `WrongKernel` with the first place of the first result that is wrong."""
    if len(expected) != len(written):
        raise of_another_number(title, written, len(expected))
    for parameter, mine, theirs in zip(written, found, map(np.asarray, expected), strict=True):
        if theirs.dtype != mine.dtype:
            raise of_another_type(title, parameter, theirs.dtype.name)
        if theirs.shape != mine.shape:
            raise InvalidOption(
                f"the reference of the kernel {title} gives {parameter.name} in the shape {theirs.shape}, and the "
                f"kernel in {mine.shape}. Say the right one with results=."
            )
        difference = first_difference(mine, theirs, tolerance)
        if difference is not None:
            position, here, there, places = difference
            raise WrongKernel(title, parameter.name, position, here, there, differing=places)


def _kept(device: Device) -> DiskCache:
    return DiskCache(cache_folder() / "kernels", stamp_of(device, entry_of(device.id).versions))
