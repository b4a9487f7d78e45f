"""A worker in a child process: a driver that crashes, hangs or leaks takes that process, and not the caller's.

The calling thread sends a task and waits for its answer. Arrays of some size lie in shared memory, which belongs to
this side: arguments are copied in, and results are arrays in it. How both sides talk, and what happens when the child
dies, is in `anygpu.workers.child_connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.host_types import numpy_dtype
from anygpu.engines.isolation import Isolation
from anygpu.engines.lru import LRUCache
from anygpu.engines.protocol import Lack, Memory, tuning_limit
from anygpu.errors import (
    DeviceLost,
    DeviceUnavailable,
    InvalidOption,
    Unsupported,
)
from anygpu.hardware.device import Device
from anygpu.memory.resource import Block
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts import Phases
from anygpu.workers import task_messages
from anygpu.workers.child_connection import ChildConnection
from anygpu.workers.child_process import Child
from anygpu.workers.executor import check_arguments, native_order, spec_of
from anygpu.workers.host_fallback import line_of
from anygpu.workers.overlap import WORTH_FETCHING, WORTH_OVERLAPPING, Overlap, Staged, seconds_left
from anygpu.workers.probe_messages import ServeRequest
from anygpu.workers.shared_memory import Segment, SegmentKind
from anygpu.workers.task_messages import ChildTask, InSegment, WireOperand
from anygpu.workers.worker import Argument, Handle, Ran

#: Arrays of so many bytes travel inside of the messages: below, a segment costs 10 µs more; from about twice as many on
#: it saves up to 100 µs.
INLINE_BYTES = 8 << 10

OPEN_SECONDS = 120.0
#: A copy has loaded everything; if it should be stuck, a child that is started afresh is not.
OPEN_COPY_SECONDS = 15.0


#: The type is `None` where NumPy does not have it.
_Facts = tuple[Spec, np.dtype[Any] | None, int]


class RemoteHandle:
    """An array on the device of a child."""

    __slots__ = ("__weakref__", "generation", "number", "spec", "worker")

    def __init__(self, worker: ProcessWorker, number: int, spec: Spec) -> None:
        self.worker = worker
        self.number = number
        self.spec = spec
        self.generation = worker.generation

    def __del__(self) -> None:
        self.worker._connection.drop(self.number, self.spec.nbytes)

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.worker.device.id}>"


class _Known(NamedTuple):
    """What a call has to know of a program: of each argument and result what it looks like, its type and its bytes."""

    inputs: tuple[_Facts, ...]
    results: tuple[_Facts, ...]
    #: Of all of them.
    nbytes: int


class ProcessWorker:
    """One open device in a process of its own."""

    def __init__(
        self,
        child: Child,
        entry: EngineEntry,
        device: Device,
        *,
        generation: int = 1,
        budget: int | None = None,
        memory_kind: SegmentKind | None = None,
        there: Device | None = None,
    ) -> None:
        """Takes the child over, and waits until it has opened the device.

        `there` is the device as the child knows it, if it has another name there.
        """
        self._device = device
        self._generation = generation
        self._connection = ChildConnection(child, device.id, generation, memory_kind)
        self._overlap = Overlap(self._connection, device.id, memory_kind)
        self._next_handle = 1
        self._known: LRUCache[_Known] = LRUCache()
        self._lacks: LRUCache[list[Lack]] = LRUCache()
        try:
            with self._connection.use():
                task = task_messages.Open(entry, there or device, budget)
                timeout = OPEN_COPY_SECONDS if child.is_copy else OPEN_SECONDS
                opened = self._connection.unwrap(
                    self._connection.request(task, timeout=timeout, doing="it was opened"), task_messages.Opened
                )
                self._overlap.allow(opened.overlaps)
        except BaseException:
            self._connection.finish("it could not be opened")
            raise

    @classmethod
    def start(
        cls,
        entry: EngineEntry,
        device: Device,
        *,
        generation: int = 1,
        budget: int | None = None,
        by_port: bool | None = None,
        memory_kind: SegmentKind | None = None,
    ) -> ProcessWorker:
        """In a new child. Raises `DeviceUnavailable` where none can be started."""
        try:
            child = Child(ServeRequest(), serves=True, by_port=by_port)
        except OSError as error:
            refusal = f'no child process could be started for {device.id}: {error}. Or use isolation="thread".'
            raise DeviceUnavailable(f'on="{device.id}"', [refusal], device=device.id) from error
        return cls(child, entry, device, generation=generation, budget=budget, memory_kind=memory_kind)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def isolation(self) -> Isolation:
        return "process"

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def alive(self) -> bool:
        return self._connection.alive

    @property
    def ended(self) -> str | None:
        return self._connection.ended

    @property
    def process_id(self) -> int:
        return self._connection.child.process.pid

    @property
    def overlaps(self) -> bool:
        """Whether the arguments of a large call go over while another one runs."""
        return self._overlap.possible and self._overlap.allowed

    def may_overlap(self, allowed: bool) -> None:
        """Turn that off, or on again where the device can do it: for benchmarks and tests."""
        self._overlap.allowed = allowed

    @property
    def shared_bytes(self) -> int:
        """Shared memory that exists now: what results are in, and what is kept for the next calls."""
        own = self._connection.shared.live_bytes if self._connection.shared is not None else 0
        return own + self._overlap.shared_bytes

    # -- what a worker does

    def supports(self, program: Program) -> list[Lack]:
        def ask() -> list[Lack]:
            with self._connection.use():
                outcome = self._connection.send_program(program, lambda key, text: task_messages.Supports(key, text))
                return self._connection.unwrap(outcome, task_messages.Lacks).lacks

        return self._lacks.get(program.key, ask)

    def prepare(self, program: Program) -> float:
        with self._connection.use():
            outcome = self._connection.send_program(
                program, lambda key, text: task_messages.Prepare(key, text, tuning_limit())
            )
            return self._connection.unwrap(outcome, task_messages.PrepareDone).seconds

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
        clock = time.perf_counter
        begin = clock()
        known = self._known.get(program.key, lambda: _known_of(program))
        given = arguments if _fit(arguments, known) else check_arguments(program, arguments)
        if known.nbytes >= WORTH_OVERLAPPING and not keep and not timed:
            return self._run_large(program, known, given, begin, timeout, starting)
        return self._run(program, known, given, begin, timeout, starting, keep, wait, timed)

    def _run_large(
        self,
        program: Program,
        known: _Known,
        given: Sequence[Argument],
        begin: float,
        timeout: float | None,
        starting: Callable[[], None] | None,
    ) -> Ran:
        """Upload the arguments while another large call runs, if there is one."""
        overlap = self._overlap
        first = program.key not in self._connection.sent
        with overlap.enter(known.nbytes, first=first):
            staged = until = None
            seated: list[bool] = []
            try:
                if not first:
                    until = None if timeout is None else time.monotonic() + timeout
                    specs = [spec for spec, _, _ in known.inputs]
                    staged = overlap.stage(given, specs, until, self._number_of, seated)
                if staged is not None:
                    return self._run_staged(program, known, staged, begin, timeout, until, starting, seated)
            finally:
                overlap.has_started(seated)
            return self._run(program, known, given, begin, timeout, starting, keep=False, wait=True, timed=False)

    def _run(
        self,
        program: Program,
        known: _Known,
        given: Sequence[Argument],
        begin: float,
        timeout: float | None,
        starting: Callable[[], None] | None,
        keep: bool,
        wait: bool,
        timed: bool,
    ) -> Ran:
        clock = time.perf_counter
        blocks: list[Block] = []
        checked = clock()
        with self._connection.use(timeout):
            entered = clock()
            try:
                operands = tuple(
                    [self._operand(each, *facts, blocks) for each, facts in zip(given, known.inputs, strict=True)]
                )
                inputs = len(blocks)
                specs = known.results
                handles = range(0)
                wanted: tuple[int, ...] | None = None
                places: list[Block | None] = []
                if keep:
                    handles = range(self._next_handle, self._next_handle + len(specs))
                    self._next_handle = handles.stop
                else:
                    places = [self._place(nbytes, blocks) for _, _, nbytes in specs]
                    wanted = tuple([block.handle.number if block is not None else 0 for block in places])
                self._overlap.open_if_wanted()
                if starting is not None:
                    starting()
                copied = clock()
                remaining = None if timeout is None else max(1e-3, timeout - (copied - begin))
                apart = self._overlap.may_transfer and not timed

                def task(key: str, text: bytes | None) -> ChildTask:
                    return task_messages.Run(key, text, operands, wanted, handles.start, wait, timed, apart)

                outcome = self._connection.send_program(
                    program, task, timeout=remaining, blocks=blocks, handles=handles
                )
                answered = clock()
                done = self._connection.unwrap(outcome, task_messages.RunDone)
                results: list[Any] = []
                if keep:
                    results = [
                        RemoteHandle(self, number, spec) for number, (spec, _, _) in zip(handles, specs, strict=True)
                    ]
                else:
                    # In this order: a block that was returned twice would have two owners soon.
                    del blocks[inputs:]
                    results = self._delivered(places, specs, done.values)
            finally:
                # Those of a call that was abandoned are not in the list any more, nor those that became results.
                for block in blocks:
                    self._connection.release(block)
        end = clock()
        write = done.write + (copied - entered)
        read_seconds = done.read + (end - answered)
        return _ran(program, results, done, entered - checked, write, read_seconds, end - begin)

    def _run_staged(
        self,
        program: Program,
        known: _Known,
        staged: Staged,
        begin: float,
        timeout: float | None,
        until: float | None,
        starting: Callable[[], None] | None,
        seated: list[bool],
    ) -> Ran:
        """With arguments that are on the device already. Large results come while the next call may run."""
        clock, overlap, connection = time.perf_counter, self._overlap, self._connection
        uploaded = clock()
        blocks: list[Block] = []
        places: list[Block | None] = []
        handles = range(0)
        wanted: tuple[int, ...] | None = None
        specs = [spec for spec, _, _ in known.results]
        returned = sum([spec.nbytes for spec in specs])
        try:
            with connection.use(seconds_left(until)):
                entered = clock()
                if starting is not None:
                    starting()
                if returned >= WORTH_FETCHING:
                    handles = range(self._next_handle, self._next_handle + len(specs))
                    self._next_handle = handles.stop
                else:
                    places = [self._place(spec.nbytes, blocks) for spec in specs]
                    wanted = tuple([block.handle.number if block is not None else 0 for block in places])

                def task(key: str, text: bytes | None) -> ChildTask:
                    return task_messages.Run(
                        key, text, staged.operands, wanted, handles.start, True, False, True, staged.own
                    )

                overlap.has_started(seated)
                outcome = connection.send_program(
                    program, task, timeout=seconds_left(until), blocks=blocks, handles=handles
                )
                done = connection.unwrap(outcome, task_messages.RunDone)
                ran = clock()
                # In this order: a block that was returned twice would have two owners soon.
                blocks.clear()
                results = self._delivered(places, known.results, done.values)
            if handles:
                results = overlap.fetch(handles, specs, timeout, until) or [
                    self.download(RemoteHandle(self, number, spec)) for number, spec in zip(handles, specs, strict=True)
                ]
        except BaseException:
            overlap.drop(staged)
            for number in handles:
                connection.drop(number, 0)
            raise
        finally:
            overlap.has_started(seated)
            for block in blocks:
                connection.release(block)
        end = clock()
        own = set(staged.own)
        facts = zip(staged.operands, known.inputs, strict=True)
        given = sum([nbytes for operand, (_, _, nbytes) in facts if operand in own])
        fetched = returned if handles else 0
        done = msgspec.structs.replace(
            done,
            bytes_to_device=done.bytes_to_device + given,
            bytes_to_host=done.bytes_to_host + fetched,
            bytes_skipped=done.bytes_skipped - given - fetched,
        )
        write, read = done.write + (uploaded - begin), done.read + (end - ran)
        return _ran(program, results, done, entered - uploaded, write, read, end - begin)._replace(overlapped=True)

    def _delivered(
        self, places: Sequence[Block | None], facts: Sequence[_Facts], values: Sequence[bytes]
    ) -> list[HostArray]:
        """The results that came with an answer: in blocks, which are theirs from now on, or as bytes."""
        return [
            _from_bytes(data, spec, dtype) if block is None else self._connection.result(block, spec)
            for block, (spec, dtype, _), data in zip(places, facts, values, strict=False)
        ]

    def upload(self, values: HostArray) -> RemoteHandle:
        return self._upload(values, lend=False)[0]

    def upload_and_lend(self, values: HostArray) -> tuple[RemoteHandle, HostArray | None]:
        return self._upload(values, lend=True)

    def _upload(self, values: HostArray, *, lend: bool) -> tuple[RemoteHandle, HostArray | None]:
        values = native_order(values)
        spec = spec_of(values)
        blocks: list[Block] = []
        with self._connection.use():
            number = self._next_handle
            self._next_handle += 1
            try:
                operand = self._operand(values, spec, values.dtype, values.nbytes, blocks)
                if isinstance(operand, int):
                    raise InvalidOption("upload takes values of the host.")
                task = task_messages.Upload(operand, spec.shape, spec.dtype, number)
                self._connection.unwrap(
                    self._connection.request(task, blocks=blocks, handles=range(number, number + 1)),
                    task_messages.TaskDone,
                )
                handle = RemoteHandle(self, number, spec)
                lent: HostArray | None = None
                if lend and blocks and self._connection.can_lend:
                    lent = self._connection.result(blocks.pop(), spec)
            finally:
                for block in blocks:
                    self._connection.release(block)
        return handle, lent

    def download(self, handle: Handle) -> HostArray:
        blocks: list[Block] = []
        with self._connection.use():
            own = self._own(handle)
            try:
                block = self._place(own.spec.nbytes, blocks)
                task = task_messages.Download(own.number, block.handle.number if block is not None else 0)
                answer = self._connection.unwrap(
                    self._connection.request(task, blocks=blocks), task_messages.Downloaded
                )
                blocks.clear()
            finally:
                for each in blocks:
                    self._connection.release(each)
            if block is not None:
                return self._connection.result(block, own.spec)
            return _from_bytes(answer.data, own.spec, None)

    def native(self, handle: Handle) -> HostArray:
        """A copy on the host: what the device's library calls an array is in another process."""
        return self.download(handle)

    def adopt(self, array: Any) -> RemoteHandle:
        return self.upload(np.from_dlpack(array))

    def memory(self) -> Memory:
        with self._connection.use():
            return self._connection.unwrap(
                self._connection.request(task_messages.AskMemory()), task_messages.MemoryNow
            ).memory

    def reclaim(self) -> int:
        with self._connection.use():
            if self._connection.shared is not None:
                self._connection.shared.reclaim()
            # The task also tells of handles without a reference, and of shared memory that is gone.
            return self._connection.unwrap(
                self._connection.request(task_messages.ReclaimMemory()), task_messages.Reclaimed
            ).nbytes

    def kill(self) -> None:
        self._connection.child.process.kill()

    def close(self) -> None:
        self._connection.close()

    # -- arrays on their way. All of this is called with the lock held

    def _operand(
        self, argument: HostArray | Handle, spec: Spec, dtype: np.dtype[Any] | None, nbytes: int, blocks: list[Block]
    ) -> WireOperand:
        if not isinstance(argument, np.ndarray):
            return self._own(argument).number
        block = self._place(nbytes, blocks)
        if block is None:
            return argument.tobytes()
        segment: Segment = block.handle
        np.copyto(segment.array(spec), argument)
        return InSegment(segment.number, nbytes)

    def _place(self, nbytes: int, blocks: list[Block]) -> Block | None:
        """Shared memory for an array, or none where it is better inside of the message."""
        return self._connection.place(nbytes, blocks) if nbytes > INLINE_BYTES else None

    def _number_of(self, handle: Handle) -> int:
        return self._own(handle).number

    def _own(self, handle: Handle) -> RemoteHandle:
        if not isinstance(handle, RemoteHandle) or handle.worker.device.id != self._device.id:
            raise InvalidOption(f"{handle!r} is not on {self._device.id}: download it, and upload it here.")
        if handle.worker is not self:
            raise DeviceLost(self._device.id, detail="it was opened anew since", generation=handle.generation)
        return handle

    def __repr__(self) -> str:
        state = f"process {self.process_id}" if self.alive else "dead"
        return f"<worker of {self._device.id}, {state}, generation {self._generation}>"


def _ran(
    program: Program,
    results: list[Any],
    done: task_messages.RunDone,
    queue: float,
    write: float,
    read: float,
    total: float,
) -> Ran:
    phases = Phases(
        compile=done.compile,
        queue=queue,
        write=write,
        run=done.run,
        read=read,
        other=max(0.0, total - (queue + write + done.compile + done.run + read)),
    )
    hosted = tuple([msgspec.structs.replace(operation, line=line_of(program, node)) for node, operation in done.hosted])
    return Ran(
        results,
        phases,
        done.bytes_to_device,
        done.bytes_to_host,
        done.bytes_skipped,
        done.device_seconds,
        done.peak_bytes,
        done.driver.dispatches if done.driver is not None else None,
        done.driver,
        hosted,
        done.unknown,
        network=done.network,
    )


def _from_bytes(data: bytes, spec: Spec, dtype: np.dtype[Any] | None) -> HostArray:
    # Bytes cannot be written to, and results can.
    return np.ndarray(spec.shape, dtype or numpy_dtype(spec.dtype), bytearray(data))


def _known_of(program: Program) -> _Known:
    inputs, results = (
        tuple([(spec, _type_of(spec), spec.nbytes) for spec in specs]) for specs in (program.inputs, program.results)
    )
    return _Known(inputs, results, sum([nbytes for _, _, nbytes in inputs + results]))


def _type_of(spec: Spec) -> np.dtype[Any] | None:
    try:
        return numpy_dtype(spec.dtype)
    except Unsupported:
        return None


def _fit(arguments: Sequence[Argument], known: _Known) -> bool:
    """Whether they are arrays as the program wants them, which is quickly seen; what is not needs a closer look."""
    if len(arguments) != len(known.inputs):
        return False
    for argument, (spec, dtype, _) in zip(arguments, known.inputs, strict=True):
        if type(argument) is not np.ndarray or argument.dtype is not dtype or argument.shape != spec.shape:
            return False
    return True
