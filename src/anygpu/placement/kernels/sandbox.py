"""Children in which a user's kernel is compiled and run for the first time: whatever it does there harms no one else.

A child is an ordinary worker of the device, opened aside from the one that has the user's arrays. It is kept for the
next kernel, replaced when it dies, and let go of after a while without work.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import entry_of
from anygpu.engines.protocol import Lack
from anygpu.errors import DeadlineExceeded, DeviceHung, DeviceLost, DevicePoisoned, DeviceUnavailable, InvalidKernel
from anygpu.hardware.device import Device
from anygpu.hardware.host import memory_free
from anygpu.program.graph import Program, Recorder
from anygpu.program.primitives import Spec, Unary
from anygpu.workers.worker import Worker, open_worker

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
        self.lock = threading.Lock()
        self.worker: Worker | None = None
        #: Whether it has run no kernel yet, so that no other kernel can be to blame.
        self.fresh = True
        self.used = 0.0
        self.timer: threading.Timer | None = None


class Sandboxes:
    """The children, at most one for each device."""

    def __init__(self, *, idle: float = IDLE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle = idle
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._over = False

    def lacks(self, device: Device, program: Program, kernel: str, timeout: float) -> list[Lack]:
        """The nodes of the program that the device cannot run."""
        return self._do(device, kernel, timeout, "was looked at", lambda worker: worker.supports(program))

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
        with self._lock:
            if self._over:
                raise DeviceUnavailable(f'on="{device.id}"', ["this process is shutting down."], device=device.id)
            return self._slots.setdefault(device.id, _Slot())

    def _open(self, slot: _Slot, device: Device) -> Worker:
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
        self._lock = threading.Lock()
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
    with Path(f"/proc/{process}/status").open(encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def _hung(device: Device, kernel: str, timeout: float, what: str) -> DeviceHung:
    error = DeviceHung(device.id, timeout, doing=f"the kernel {kernel} {what} aside")
    error.add_note(
        f"The kernel {kernel} may have an endless loop. It {what} in a process of its own, which was stopped, so "
        "nothing else was affected. If it only needs longer, raise timeout=."
    )
    return error


def _killed(kernel: str, what: str, worker: Worker, error: Exception) -> InvalidKernel:
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
