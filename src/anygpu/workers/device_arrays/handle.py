"""A device as arrays see it: uploads, downloads and programs go to the worker that has it open now.

`DeviceHandle` is for workers of this process, whose loss ends the arrays with it; `RecoverableDevice` builds on it.
`is_shared` tells by CPython's reference counts whether a buffer can be reused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.errors import CannotCompile, DeviceLost
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.receipts.receipt import HostOperation, ran_on_host
from anygpu.workers.thread import LocalHandle, ThreadWorker
from anygpu.workers.worker import Argument, Handle, Worker, line_of

# -- events of the workers of devices: opened, lost, replaced


class WorkerEvent(NamedTuple):
    """A worker was opened, found dead, or opened in place of a dead one."""

    what: Literal["opened", "lost", "replaced"]
    device: str
    generation: int
    #: How long opening took; 0 for a loss.
    seconds: float
    #: Why it was lost; empty for all others.
    why: str = ""


# -- whether an attribute is the only reference to an object, by CPython's reference counts
#
# A buffer may leave its device only while no call uses it, and a call that uses it holds a reference. The count of an
# object with one owner depends on how the interpreter passes arguments (Python 3.14 borrows some), so it is measured,
# once, by the same function that is asked later.


def is_shared(holder: Any, name: str) -> bool:
    """Whether anything besides the holder refers to its attribute `name`.

    The caller must not hold the attribute's value in a variable of its own: that would be one more reference.
    """
    return _count(holder, name) > _count_of_unshared()


def _count(holder: Any, name: str) -> int:
    return sys.getrefcount(getattr(holder, name))


class _Holder:
    __slots__ = ("value",)

    value: object


@cache
def _count_of_unshared() -> int:
    """The result of `_count` for an object that only its holder refers to."""
    holder = _Holder()
    holder.value = object()
    return _count(holder, "value")


def run_and_keep(worker: Worker, program: Program, buffers: Sequence[Argument]) -> list[Any]:
    """Run a program and leave the results on the device.

    A program that the device cannot compile is computed on the host, which the user is told.
    """
    try:
        ran = worker.run(program, buffers, keep=True, wait=False)
    except CannotCompile as refused:
        reason = refused.with_traceback(None)
    else:
        for operation in ran.host_operations:
            ran_on_host(operation)
        return ran.results
    if any(spec.dtype == "bfloat16" for spec in program.specs):
        raise reason
    given = [each if isinstance(each, np.ndarray) else worker.download(each) for each in buffers]
    values = lowering.run(program, given)
    last = len(program.nodes) - 1
    ran_on_host(
        HostOperation(
            operation=program.nodes[last].op.name,
            reason=f"{reason.device} cannot compile it",
            line=line_of(program, last),
            bytes_moved=sum(each.nbytes for each in (*given, *values)),
        )
    )
    return [worker.upload(each) for each in values]


class DeviceHandle:
    """One device that holds arrays and runs programs."""

    def __init__(self, facts: Device, find_worker: Callable[[], Worker]) -> None:
        """Opens nothing: `find_worker` opens the device when it is first used, and again when its worker has died."""
        self.facts = facts
        self.device = facts.id
        self._find_worker = find_worker
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker of the device, opened when it is first needed and again after it has died."""
        worker = self._worker
        if worker is None or not worker.alive:
            worker = self._worker = self._find_worker()
        return worker

    def upload(self, values: HostArray) -> Any:
        worker = self._worker
        return (worker if worker is not None and worker.alive else self.worker).upload(values)

    def download(self, buffer: Any) -> HostArray:
        """Copies a buffer to the host; raises `DeviceLost` if the worker that had it has died."""
        worker = self._worker
        if type(buffer) is LocalHandle and buffer.worker is worker and worker.alive:
            return worker.download(buffer)
        return self._worker_of(buffer).download(buffer)

    def run(self, program: Program, buffers: Sequence[Any]) -> list[Any]:
        """Runs a program on buffers, and leaves the results on the device.

        On a worker of this process a program that ran before is only launched, without waiting for it.
        """
        if type(self._worker) is ThreadWorker:
            launched = self._worker.launch(program, buffers)
            if launched is not None:
                return launched
        worker = self.worker
        for buffer in buffers:
            worker = self._worker_of(buffer)
        return run_and_keep(worker, program, buffers)

    def native(self, buffer: Any) -> Any:
        return self._worker_of(buffer).native(buffer)

    def adopt(self, array: Any) -> Any:
        return self.worker.adopt(array)

    def track(self, program: Program, given: Sequence[Argument], results: Sequence[Handle]) -> list[Any]:
        """The results that a worker has left on the device after it ran the program on `given`, as buffers."""
        return list(results)

    def _worker_of(self, buffer: Any) -> Worker:
        """The worker that holds the buffer. Raises `DeviceLost` if it has died: a new one would not have the buffer."""
        worker = self._worker
        generation = getattr(buffer, "generation", None)
        if generation is not None and worker is not None and (not worker.alive or worker.generation != generation):
            raise DeviceLost(self.device, detail="its worker has ended since", generation=generation)
        return self.worker

    def __repr__(self) -> str:
        return f"<device {self.device}>"
