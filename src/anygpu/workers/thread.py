"""A worker in this process: programs run on the thread of the caller, one caller at a time.

`ThreadWorker` holds a lock around every use of its engine. `launch` is the short way of arrays that stay on the device,
and `direct` that of NumPy's own arrays; both are for calls of some microseconds.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.arguments import spec_of
from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines import Isolation
from anygpu.engines.host_arrays import HOST_DTYPES, HostArrays
from anygpu.engines.protocol import DirectRun, Executable, Lack, Lists, Memory, ProgramEngine, RunsDirectly
from anygpu.errors import DeviceLost, DevicePoisoned, InvalidOption
from anygpu.hardware.device import Device
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Constant, Shape, Spec
from anygpu.workers.executor import Executor, Resident, check_arguments, native_order
from anygpu.workers.worker import Argument, Handle, Ran, ran_by

#: Programs that can be launched again without a look at anything but their arguments.
_LAUNCHES_KEPT = 256

#: `Spec(shape, dtype)` in half of the time, which is a part of what an upload to the host takes.
new_spec: Callable[[type[Spec], tuple[Shape, DType]], Spec] = tuple.__new__


class _Launch(NamedTuple):
    """A program that has run here, whose results stayed on the device: what its next run needs."""

    #: Held, so that its id is no other program's.
    program: Program
    executable: Executable
    inputs: tuple[Spec, ...]
    results: tuple[Spec, ...]


class LocalHandle(Resident):
    """An array on a device that this process has open. It owns the buffer, whose memory goes with it."""

    __slots__ = ("__weakref__", "generation", "worker")

    def __init__(self, worker: ThreadWorker, buffer: Any, spec: Spec) -> None:
        """Takes over a buffer of the worker's engine."""
        # Without the call of Resident's own: an array on the host is made in less than a call takes.
        self.buffer = buffer
        self.spec = spec
        self.worker = worker
        self.generation = worker.generation

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.worker.device.id}>"


class ThreadWorker:
    """One open device of this process. A driver that crashes takes the process with it."""

    def __init__(self, engine: ProgramEngine, device: Device, *, generation: int = 1) -> None:
        """Takes over an engine that has the device open, and closes it in the end.

        The lock is held around every use of the engine, as most libraries allow one thread at a time.
        """
        self._executor = Executor(engine, device)
        #: Such engines keep no state of arrays: these come and go while a program runs, without what a use costs.
        self._has_host_arrays = isinstance(engine, HostArrays)
        self._lock = threading.Lock()
        self._use = _Use(self)
        self._lacks: LRUCache[list[Lack]] = LRUCache()
        #: By the id of their program.
        self._launches: dict[int, _Launch] = {}
        self.generation = generation
        #: Why it is not open any more.
        self._end: str | None = None

    @property
    def device(self) -> Device:
        return self._executor.device

    @property
    def engine(self) -> ProgramEngine:
        """The engine that runs the programs, for benchmarks and tests."""
        return self._executor.engine

    @property
    def isolation(self) -> Isolation:
        return "thread"

    @property
    def alive(self) -> bool:
        return self._end is None

    @property
    def ended(self) -> str | None:
        return self._end

    def supports(self, program: Program) -> list[Lack]:
        """Returns the operations that the device lacks for the program; the engine is asked once for each program."""

        def ask() -> list[Lack]:
            with self._lock, self._use:
                return self._executor.supports(program)

        return self._lacks.get(program.key, ask)

    def prepare(self, program: Program) -> float:
        with self._lock, self._use:
            return self._executor.prepare(program)

    def run(
        self,
        program: Program,
        arguments: Sequence[Argument],
        *,
        keep: bool = False,
        timeout: float | None = None,
        wait: bool = True,
        timed: bool = False,
        starting: Callable[[], None] | None = None,
    ) -> Ran:
        """A thread cannot be killed, so `timeout` is not kept here: the call ends when the device has answered."""
        begin = time.perf_counter()
        given = check_arguments(program, arguments)
        checked = time.perf_counter()
        with self._lock, self._use:
            entered = time.perf_counter()
            if starting is not None:
                starting()
            operands = [each if isinstance(each, np.ndarray) else self._own(each) for each in given]
            taken: list[HostArray] = []
            if self.device.form == "host" and not keep:
                taken += [each if isinstance(each, np.ndarray) else self._seen(each) for each in operands]

            def deliver(position: int, values: HostArray) -> HostArray:
                is_constant = stands_on_a_constant(program, program.outputs[position])
                result = np.array(values, order="C") if is_constant else owned(values, taken)
                taken.append(result)
                return result

            done = self._executor.run(program, operands, keep=keep, wait=wait, timed=timed, deliver=deliver, lend=True)
        results: list[Any] = done.results
        if keep:
            results = [LocalHandle(self, *pair) for pair in zip(done.results, program.results, strict=True)]
            if not done.account.hosted:
                self._keep_launch(program)
        account, queue, total = done.account, entered - checked, time.perf_counter() - begin
        return ran_by(account, program, results, queue=queue, write=account.write, read=account.read, total=total)

    def direct(self, program: Program) -> DirectRun | None:
        """The program as a function of NumPy's arrays, for any thread; `None` where this worker has to do more."""
        with self._lock, self._use:
            engine = self._executor.engine
            if not isinstance(engine, RunsDirectly) or self._executor.supports(program):
                return None
            return engine.direct(program, self.device)

    def listing(self, program: Program) -> str | None:
        """The engine's listing of a program, such as its kernels; `None` where it has none."""
        engine = self._executor.engine
        return engine.listing(program) if isinstance(engine, Lists) else None

    def launch(self, program: Program, arguments: Sequence[Argument]) -> list[Any] | None:
        """`run` of arrays on the device whose results stay there, without waiting, and without counting what it takes.

        `None` for the first run of a program, and wherever `run` has something to say; then nothing has been done.
        """
        launch = self._launches.get(id(program))
        if launch is None or len(arguments) != len(launch.inputs):
            return None
        buffers = []
        for handle, spec in zip(arguments, launch.inputs, strict=True):
            if type(handle) is not LocalHandle or handle.worker is not self or handle.spec != spec:
                return None
            buffers.append(handle.buffer)
        with self._lock:
            if self._end is not None:
                return None
            try:
                made = self._executor.engine.execute(launch.executable, buffers)
            except Exception:
                # Without these around each launch, since that takes longer than some.
                with self._use, self._executor.translating:
                    raise
        return [LocalHandle(self, buffer, spec) for buffer, spec in zip(made, launch.results, strict=True)]

    def _keep_launch(self, program: Program) -> None:
        """Compiles a program and keeps it for `launch`, by its identity. All are forgotten when there are too many."""
        with self._lock, self._use:
            if len(self._launches) >= _LAUNCHES_KEPT:
                self._launches.clear()
            executable = self._executor.engine.compile(program, self.device)
            self._launches[id(program)] = _Launch(program, executable, program.inputs, program.results)

    def _seen(self, handle: LocalHandle) -> HostArray:
        """The values of a handle in place, on a device whose memory is the host's."""
        return self._executor.engine.download(handle.buffer)

    def upload(self, values: HostArray) -> LocalHandle:
        """Copies values to the device. On NumPy's own device that needs neither the lock nor the engine."""
        if self._has_host_arrays and self._end is None and type(values) is np.ndarray:
            dtype = HOST_DTYPES.get(values.dtype)
            if dtype is not None:
                try:
                    return LocalHandle(self, values.copy(), new_spec(Spec, (values.shape, dtype)))
                except MemoryError:
                    pass  # it is translated below
        with self._lock, self._use:
            resident = self._executor.upload(native_order(values))
            return LocalHandle(self, resident.buffer, resident.spec)

    def download(self, handle: Handle) -> HostArray:
        """The result may share memory with the array on the device, which is never written to."""
        if self._has_host_arrays and self._end is None and type(handle) is LocalHandle and handle.worker is self:
            return handle.buffer  # type: ignore[no-any-return]
        with self._lock, self._use:
            return self._executor.download(self._own(handle))

    def native(self, handle: Handle) -> Any:
        with self._lock, self._use:
            return self._executor.engine.native(self._own(handle).buffer)

    def adopt(self, array: Any) -> LocalHandle:
        """Takes an array of the engine's own library as a buffer, without a copy where the engine can."""
        with self._lock, self._use:
            engine = self._executor.engine
            buffer = engine.adopt(array, self.device)
            return LocalHandle(self, buffer, spec_of(engine.native(buffer)))

    def memory(self) -> Memory:
        with self._lock, self._use:
            return self._executor.memory()

    def reclaim(self) -> int:
        with self._lock, self._use:
            return self._executor.reclaim()

    def kill(self) -> None:
        """A thread cannot be killed."""

    def close(self) -> None:
        with self._lock:
            self._let_go("it was closed")

    def _let_go(self, why: str) -> None:
        """Closes the engine for good; `why` is what later calls are told."""
        if self._end is None:
            self._end = why
            self._launches.clear()
            self._executor.engine.close()

    def _enter(self) -> None:
        if self._end is not None:
            raise DeviceLost(self.device.id, detail=self._end, generation=self.generation)

    def _leave(self, error: BaseException | None) -> None:
        """After an error of the device: lets go of one that was lost or whose context is broken."""
        if isinstance(error, DeviceLost) and error.generation is None:
            error.generation = self.generation
            self._let_go("it was lost earlier")
        elif isinstance(error, DevicePoisoned):
            self._let_go("its context is broken")

    def _own(self, handle: Handle) -> LocalHandle:
        """Returns the handle as one of this worker.

        Raises `InvalidOption` for another device's, and `DeviceLost` for an old one.
        """
        if not isinstance(handle, LocalHandle):
            raise InvalidOption(f"{handle!r} is not on {self.device.id}: download it, and upload it here.")
        if handle.worker is not self:
            if handle.worker.device.id == self.device.id:
                raise DeviceLost(self.device.id, detail="it was opened anew since", generation=handle.generation)
            raise InvalidOption(f"{handle!r} is not on {self.device.id}: download it, and upload it here.")
        return handle

    def __repr__(self) -> str:
        return f"<worker of {self.device.id} in this process, generation {self.generation}>"


class _Use:
    """The block around every use of the device, with its lock held.

    A device that is lost is let go of, to be opened anew.
    """

    # A generator would cost more than a small array operation does.

    def __init__(self, worker: ThreadWorker) -> None:
        self._worker = weakref.ref(worker)

    def __enter__(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker._enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        worker = self._worker()
        if worker is not None:
            worker._leave(error)


def owned(values: HostArray, taken: Sequence[HostArray]) -> HostArray:
    """The values in writable memory of their own, in C order; copied if they are not there already."""
    in_order = values.flags.c_contiguous and values.flags.writeable
    if in_order and not any(np.may_share_memory(values, each) for each in taken):
        return values
    return np.array(values, order="C")


def stands_on_a_constant(program: Program, node: int) -> bool:
    """Whether a result might be a constant of the program in another shape, whose memory the engine keeps."""
    inputs = program.nodes[node].inputs
    while len(inputs) == 1:
        node = inputs[0]
        inputs = program.nodes[node].inputs
    return isinstance(program.nodes[node].op, Constant)
