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

from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.memory.resource import Block
from anygpu.engines.protocol import Lack, Memory, tuning_limit
from anygpu.errors import (
    DeviceLost,
    DeviceUnavailable,
    InvalidOption,
    Unsupported,
)
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import Account
from anygpu.workers import child_messages
from anygpu.workers.child_connection import ChildConnection
from anygpu.workers.child_messages import InSegment, ServeRequest, WireOperand
from anygpu.workers.child_process import Child
from anygpu.workers.executor import check_arguments, native_order, spec_of
from anygpu.workers.overlap import WORTH_FETCHING, WORTH_OVERLAPPING, Overlap, Staged, seconds_left
from anygpu.workers.shared_memory import SegmentKind, SharedSegment
from anygpu.workers.worker import Argument, Handle, Ran, ran_by

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
        """Names an array that the worker's child keeps under `number`.

        The child is told to drop it with the last reference.
        """
        self.worker = worker
        self.number = number
        self.spec = spec
        self.generation = worker.generation

    def __del__(self) -> None:
        self.worker._connection.drop(self.number, self.spec.nbytes)

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.worker.device.id}>"


class _Known(NamedTuple):
    """The spec, NumPy type and bytes of each argument and result of a program."""

    inputs: tuple[_Facts, ...]
    results: tuple[_Facts, ...]
    #: The bytes of all arguments and results.
    nbytes: int


class _Call(NamedTuple):
    """One call of `run`: the program, its arguments, and how it is run."""

    program: Program
    known: _Known
    arguments: Sequence[Argument]
    #: When it began, by `time.perf_counter`.
    begin: float
    timeout: float | None
    #: When the time is over, by `time.monotonic`.
    until: float | None
    starting: Callable[[], None] | None
    keep: bool
    wait: bool
    timed: bool


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
        self.generation = generation
        self._connection = ChildConnection(child, device.id, generation, memory_kind)
        self._overlap = Overlap(self._connection, device.id, memory_kind)
        self._next_handle = 1
        self._known: LRUCache[_Known] = LRUCache()
        self._lacks: LRUCache[list[Lack]] = LRUCache()
        try:
            with self._connection.use():
                task = child_messages.Open(entry, there or device, budget)
                timeout = OPEN_COPY_SECONDS if child.is_copy else OPEN_SECONDS
                opened = self._connection.unwrap(
                    self._connection.request(task, timeout=timeout, doing="it was opened"), child_messages.Opened
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
        """Starts a child and returns its worker; raises `DeviceUnavailable` where none can be started."""
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
        """Returns the operations that the device lacks for the program; the child is asked once for each program."""

        def ask() -> list[Lack]:
            with self._connection.use():
                outcome = self._connection.send_program(program, lambda key, text: child_messages.Supports(key, text))
                return self._connection.unwrap(outcome, child_messages.Lacks).lacks

        return self._lacks.get(program.key, ask)

    def reflected(self, source: str, entry: str | None, title: str) -> Reflected:
        """Ask the child what a user's kernel takes."""
        with self._connection.use():
            outcome = self._connection.request(child_messages.Reflect(source, entry, title))
            return self._connection.unwrap(outcome, child_messages.ReflectDone).found

    def prepare(self, program: Program) -> float:
        """Compiles the program in the child, and returns the seconds that took.

        Kernels are tuned within the thread's limit.
        """
        with self._connection.use():
            outcome = self._connection.send_program(
                program, lambda key, text: child_messages.Prepare(key, text, tuning_limit())
            )
            return self._connection.unwrap(outcome, child_messages.PrepareDone).seconds

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
        """Run a program on arrays and handles. Large calls are uploaded while another one runs, if the device can."""
        begin = time.perf_counter()
        until = None if timeout is None else time.monotonic() + timeout
        known = self._known.get(program.key, lambda: _known_of(program))
        given = arguments if _fit(arguments, known) else check_arguments(program, arguments)
        call = _Call(program, known, given, begin, timeout, until, starting, keep, wait, timed)
        if known.nbytes >= WORTH_OVERLAPPING and not keep and not timed:
            return self._run_large(call)
        return self._run(call)

    def _run_large(self, call: _Call) -> Ran:
        """Run a call of which the arguments are uploaded while another large call runs, if there is one."""
        overlap = self._overlap
        first = call.program.key not in self._connection.sent
        with overlap.enter(call.known.nbytes, first=first):
            if first:
                return self._run(call)
            specs = [spec for spec, _, _ in call.known.inputs]
            staged = overlap.stage(call.arguments, specs, call.until, self._number_of)
            if staged is None:
                return self._run(call)
            try:
                return self._run(call, staged)
            finally:
                staged.seat.release()

    def _run(self, call: _Call, staged: Staged | None = None) -> Ran:
        """Run a call. If it is `staged`, its arguments are on the device, and large results come while others run."""
        clock, overlap, connection, facts = time.perf_counter, self._overlap, self._connection, call.known.results
        fetches = staged is not None and sum([nbytes for _, _, nbytes in facts]) >= WORTH_FETCHING
        blocks: list[Block] = []
        handles = range(0)
        ready = clock()
        try:
            with connection.use(call.timeout if staged is None else seconds_left(call.until)):
                entered = clock()
                try:
                    operands = self._operands(call, blocks) if staged is None else staged.operands
                    inputs = len(blocks)
                    places: list[Block | None] = []
                    wanted: tuple[int, ...] | None = None
                    if call.keep or fetches:
                        handles = self._new_handles(len(facts))
                    else:
                        places, wanted = self._places(call.known, blocks)
                    overlap.open_if_wanted()
                    if call.starting is not None:
                        call.starting()
                    copied = clock()
                    apart = overlap.may_transfer and not call.timed
                    own = staged.own if staged is not None else ()
                    options = (operands, wanted, handles.start, call.wait, call.timed, apart, own)
                    if staged is not None:
                        staged.seat.release()
                    outcome = connection.send_program(
                        call.program,
                        lambda key, text: child_messages.Run(key, text, *options),
                        timeout=seconds_left(call.until),
                        blocks=blocks,
                        handles=handles,
                    )
                    answered = clock()
                    done = connection.unwrap(outcome, child_messages.RunDone)
                    results: list[Any] = []
                    if call.keep:
                        results = self._remote(handles, facts)
                    elif not fetches:
                        # In this order: a block that was returned twice would have two owners soon.
                        del blocks[inputs:]
                        results = self._delivered(places, facts, done.values)
                finally:
                    # Those of a call that was abandoned are not in the list any more, nor those that became results.
                    for block in blocks:
                        connection.release(block)
            if fetches:
                results = self._fetch(call, handles)
        except BaseException:
            self._abandon(staged, handles)
            raise
        end = clock()
        account = done.account if staged is None else _with_transfers(done.account, call.known, staged, fetches)
        write = account.write + (copied - entered) + (ready - call.begin if staged is not None else 0.0)
        read = account.read + (end - answered)
        queue, total = entered - ready, end - call.begin
        ran = ran_by(account, call.program, results, queue=queue, write=write, read=read, total=total)
        return ran._replace(overlapped=staged is not None, network=done.network)

    def _places(self, known: _Known, blocks: list[Block]) -> tuple[list[Block | None], tuple[int, ...]]:
        """Makes room for each result, added to `blocks`, and the number of its segment for the child; 0 for none."""
        places = [self._place(nbytes, blocks) for _, _, nbytes in known.results]
        return places, tuple([block.handle.number if block is not None else 0 for block in places])

    def _new_handles(self, count: int) -> range:
        """Numbers by which the child keeps so many results."""
        handles = range(self._next_handle, self._next_handle + count)
        self._next_handle = handles.stop
        return handles

    def _remote(self, handles: range, facts: Sequence[_Facts]) -> list[RemoteHandle]:
        """The results that the child keeps under these numbers."""
        return [RemoteHandle(self, number, spec) for number, (spec, _, _) in zip(handles, facts, strict=True)]

    def _abandon(self, staged: Staged | None, handles: range) -> None:
        """Drop the arguments and results of a call that failed, if it was staged."""
        if staged is not None:
            self._overlap.drop(staged.own)
            for number in handles:
                self._connection.drop(number, 0)

    def _fetch(self, call: _Call, handles: range) -> list[HostArray]:
        """The results of a staged call, which are still on the device."""
        specs = [spec for spec, _, _ in call.known.results]
        fetched = self._overlap.fetch(handles, specs, call.timeout, call.until)
        if fetched is None:
            fetched = [self.download(each) for each in self._remote(handles, call.known.results)]
        return fetched

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
        """Copies values to the device, and returns their handle.

        With `lend` also the shared memory that they crossed in. That memory is lent only if segments are to spare. It
        stays unchanged as long as the returned array lives.
        """
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
                task = child_messages.Upload(operand, spec.shape, spec.dtype, number)
                self._connection.unwrap(
                    self._connection.request(task, blocks=blocks, handles=range(number, number + 1)),
                    child_messages.TaskDone,
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
        """Copies an array of the device to the host.

        It is in shared memory that the result owns, or in bytes of the answer.
        """
        blocks: list[Block] = []
        with self._connection.use():
            own = self._own(handle)
            try:
                block = self._place(own.spec.nbytes, blocks)
                task = child_messages.Download(own.number, block.handle.number if block is not None else 0)
                answer = self._connection.unwrap(
                    self._connection.request(task, blocks=blocks), child_messages.Downloaded
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
        """Asks the child for the memory of its device."""
        with self._connection.use():
            return self._connection.unwrap(
                self._connection.request(child_messages.AskMemory()), child_messages.MemoryNow
            ).memory

    def reclaim(self) -> int:
        """Frees cached memory on both sides; returns the bytes of device memory that were freed."""
        with self._connection.use():
            if self._connection.shared is not None:
                self._connection.shared.reclaim()
            # The task also tells of handles without a reference, and of shared memory that is gone.
            return self._connection.unwrap(
                self._connection.request(child_messages.ReclaimMemory()), child_messages.Reclaimed
            ).nbytes

    def kill(self) -> None:
        self._connection.child.process.kill()

    def close(self) -> None:
        self._connection.close()

    # -- arrays on their way. All of this is called with the lock held

    def _operands(self, call: _Call, blocks: list[Block]) -> tuple[WireOperand, ...]:
        """Copy the arguments to where the child reads them; shared memory for that is added to `blocks`."""
        pairs = zip(call.arguments, call.known.inputs, strict=True)
        return tuple([self._operand(argument, *facts, blocks) for argument, facts in pairs])

    def _operand(
        self, argument: HostArray | Handle, spec: Spec, dtype: np.dtype[Any] | None, nbytes: int, blocks: list[Block]
    ) -> WireOperand:
        """Puts one argument where the child can read it.

        Handles go by number, values in shared memory or in the message.
        """
        if not isinstance(argument, np.ndarray):
            return self._own(argument).number
        block = self._place(nbytes, blocks)
        if block is None:
            return argument.tobytes()
        segment: SharedSegment = block.handle
        np.copyto(segment.array(spec), argument)
        return InSegment(segment.number, nbytes)

    def _place(self, nbytes: int, blocks: list[Block]) -> Block | None:
        """Shared memory for an array, or none where it is better inside of the message."""
        return self._connection.place(nbytes, blocks) if nbytes > INLINE_BYTES else None

    def _number_of(self, handle: Handle) -> int:
        return self._own(handle).number

    def _own(self, handle: Handle) -> RemoteHandle:
        """Returns the handle as one of this worker.

        Raises `InvalidOption` for another device's, and `DeviceLost` for an old one.
        """
        if not isinstance(handle, RemoteHandle) or handle.worker.device.id != self._device.id:
            raise InvalidOption(f"{handle!r} is not on {self._device.id}: download it, and upload it here.")
        if handle.worker is not self:
            raise DeviceLost(self._device.id, detail="it was opened anew since", generation=handle.generation)
        return handle

    def __repr__(self) -> str:
        state = f"process {self.process_id}" if self.alive else "dead"
        return f"<worker of {self._device.id}, {state}, generation {self.generation}>"


def _with_transfers(account: Account, known: _Known, staged: Staged, fetched: bool) -> Account:
    """The child's account of a staged call, together with what crossed before and after its run."""
    own = set(staged.own)
    given = sum([facts[2] for operand, facts in zip(staged.operands, known.inputs, strict=True) if operand in own])
    returned = sum([nbytes for _, _, nbytes in known.results]) if fetched else 0
    return msgspec.structs.replace(
        account,
        bytes_to_device=account.bytes_to_device + given,
        bytes_to_host=account.bytes_to_host + returned,
        bytes_skipped=account.bytes_skipped - given - returned,
    )


def _from_bytes(data: bytes, spec: Spec, dtype: np.dtype[Any] | None) -> HostArray:
    # Bytes cannot be written to, and results can.
    return np.ndarray(spec.shape, dtype or numpy_dtype(spec.dtype), bytearray(data))


def _known_of(program: Program) -> _Known:
    """Returns spec, NumPy type and size of every argument and result, which are looked up once for each program."""
    inputs, results = (
        tuple([(spec, _type_of(spec), spec.nbytes) for spec in specs]) for specs in (program.inputs, program.results)
    )
    return _Known(inputs, results, sum([nbytes for _, _, nbytes in inputs + results]))


def _type_of(spec: Spec) -> np.dtype[Any] | None:
    """Returns NumPy's type of a spec; `None` for one that NumPy does not have."""
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
