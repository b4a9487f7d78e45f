"""A worker in a child process: a driver that crashes, hangs or leaks takes that process, and not the caller's.

The calling thread sends a task and waits for its answer. Arrays of some size lie in shared memory, which belongs to
this side: arguments are copied in, and results are arrays in it. A watching thread learns of the child's death at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from anygpu.engines.catalogue import EngineEntry
from anygpu.engines.host_types import numpy_dtype
from anygpu.engines.protocol import Lack, Memory
from anygpu.engines.recent import Recent
from anygpu.engines.tuning_limit import tuning_limit
from anygpu.errors import (
    DeadlineExceeded,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InvalidOption,
    Unsupported,
)
from anygpu.hardware.device import Device
from anygpu.hardware.verification import Values
from anygpu.memory.resource import Block
from anygpu.program import wire
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts import Phases
from anygpu.workers import calls
from anygpu.workers.calls import Attached, Envelope, InSegment, Operand, Outcome, Task
from anygpu.workers.crossing import read
from anygpu.workers.executing import check_arguments, native_order, spec_of
from anygpu.workers.hosting import line_of
from anygpu.workers.link import MOST_DESCRIPTORS, Link, LinkClosed
from anygpu.workers.messages import ServeRequest
from anygpu.workers.shared import Kind, Segment, SharedMemory
from anygpu.workers.starting import Child, how_it_ended
from anygpu.workers.worker import Argument, Handle, Home, Ran

#: Arrays of so many bytes travel inside of the messages; from about twice as many on a segment is faster.
INLINE_BYTES = 32 << 10

#: Programs that the child is taken to have. It keeps more, and says so when one is gone.
PROGRAMS_SENT = 512

#: When so many bytes on the device wait to be free, the child is told at once.
DROPPED_BYTES = 64 << 20

OPEN_SECONDS = 120.0
CLOSE_SECONDS = 5.0
#: How often shared memory that nobody uses is looked for.
_TIDY_SECONDS = 15.0

#: The type is `None` where NumPy does not have it.
_Facts = tuple[Spec, np.dtype[Any] | None, int]

Expected = TypeVar("Expected", bound=Outcome)


class RemoteHandle:
    """An array on the device of a child."""

    __slots__ = ("__weakref__", "generation", "number", "spec", "worker")

    def __init__(self, worker: ProcessWorker, number: int, spec: Spec) -> None:
        self.worker = worker
        self.number = number
        self.spec = spec
        self.generation = worker.generation

    def __del__(self) -> None:
        self.worker._drop(self)

    def __repr__(self) -> str:
        return f"<{self.spec} on {self.worker.device.id}>"


class _Held:
    """A lock that was taken, and is let go of at the end of a `with` block."""

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Known(NamedTuple):
    """What a call has to know of a program: of each argument and result what it looks like, its type and its bytes."""

    inputs: tuple[_Facts, ...]
    results: tuple[_Facts, ...]


class _Abandoned(NamedTuple):
    """A call whose caller left before its answer came: what the child may still use, and what it may still make."""

    blocks: list[Block]
    handles: range


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
        memory_kind: Kind | None = None,
    ) -> None:
        """Takes the child over, and waits until it has opened the device."""
        if child.link is None:
            raise InvalidOption("this child was not asked to serve.")
        self._child = child
        self._link: Link = child.link
        self._device = device
        self._generation = generation
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        #: Why it is not open any more.
        self._end: str | None = None
        self._shared = SharedMemory(device.id, kind=memory_kind) if self._link.passes_descriptors else None
        self._number = 0
        self._next_handle = 1
        self._dropped: deque[int] = deque()
        self._dropped_bytes = 0
        self._abandoned: dict[int, _Abandoned] = {}
        self._sent: dict[str, None] = {}
        self._known: Recent[_Known] = Recent()
        self._lacks: Recent[list[Lack]] = Recent()
        _workers.add(self)
        # Also when the worker is collected without having been closed, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _let_go, child, self._process_id)
        watcher = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._link), name=f"anygpu-watch-{device.id}", daemon=True
        )
        watcher.start()
        try:
            with self._open(None):
                outcome = self._exchange(calls.Open(entry, device, budget), timeout=OPEN_SECONDS, doing="it was opened")
                self._expect(outcome, calls.Opened)
        except BaseException:
            self._finish("it could not be opened")
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
        memory_kind: Kind | None = None,
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
    def home(self) -> Home:
        return "process"

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def alive(self) -> bool:
        return self._end is None

    @property
    def process_id(self) -> int:
        return self._child.process.pid

    @property
    def shared_bytes(self) -> int:
        """Shared memory that exists now: what results are in, and what is kept for the next calls."""
        return self._shared.live_bytes if self._shared is not None else 0

    # -- what a worker does

    def supports(self, program: Program) -> list[Lack]:
        def ask() -> list[Lack]:
            with self._open(None):
                outcome = self._about(program, lambda key, text: calls.Supports(key, text))
                return self._expect(outcome, calls.Lacks).lacks

        return self._lacks.get(program.key, ask)

    def prepare(self, program: Program) -> float:
        with self._open(None):
            outcome = self._about(program, lambda key, text: calls.Prepare(key, text, tuning_limit()))
            return self._expect(outcome, calls.Prepared).seconds

    def run(
        self,
        program: Program,
        arguments: Sequence[Argument],
        *,
        keep: bool = False,
        timeout: float | None = None,
        wait: bool = True,
        timed: bool = False,
    ) -> Ran:
        clock = time.perf_counter
        begin = clock()
        known = self._known.get(program.key, lambda: _known_of(program))
        given = arguments if _fit(arguments, known) else check_arguments(program, arguments)
        blocks: list[Block] = []
        checked = clock()
        with self._open(timeout):
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
                copied = clock()
                remaining = None if timeout is None else max(1e-3, timeout - (copied - begin))

                def task(key: str, text: bytes | None) -> Task:
                    return calls.Run(key, text, operands, wanted, handles.start, wait, timed)

                outcome = self._about(program, task, remaining, blocks, handles)
                answered = clock()
                done = self._expect(outcome, calls.Done)
                results: list[Any] = []
                if keep:
                    results = [
                        RemoteHandle(self, number, spec) for number, (spec, _, _) in zip(handles, specs, strict=True)
                    ]
                else:
                    for block, (spec, dtype, _), data in zip(places, specs, done.values, strict=True):
                        results.append(_from_bytes(data, spec, dtype) if block is None else self._result(block, spec))
                    del blocks[inputs:]
            finally:
                # Those of a call that was abandoned are not in the list any more, nor those that became results.
                for block in blocks:
                    self._release(block)
        end = clock()
        write = done.write + (copied - entered)
        read_seconds = done.read + (end - answered)
        named = (entered - checked) + write + done.compile + done.run + read_seconds
        phases = Phases(
            compile=done.compile,
            queue=entered - checked,
            write=write,
            run=done.run,
            read=read_seconds,
            other=max(0.0, end - begin - named),
        )
        hosted = tuple(
            [msgspec.structs.replace(operation, line=line_of(program, node)) for node, operation in done.hosted]
        )
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
        )

    def upload(self, values: Values) -> RemoteHandle:
        values = native_order(values)
        spec = spec_of(values)
        blocks: list[Block] = []
        with self._open(None):
            number = self._next_handle
            self._next_handle += 1
            try:
                operand = self._operand(values, spec, values.dtype, values.nbytes, blocks)
                if isinstance(operand, int):
                    raise InvalidOption("upload takes values of the host.")
                task = calls.Upload(operand, spec.shape, spec.dtype, number)
                self._expect(self._exchange(task, blocks=blocks, handles=range(number, number + 1)), calls.Finished)
            finally:
                for block in blocks:
                    self._release(block)
        return RemoteHandle(self, number, spec)

    def download(self, handle: Handle) -> Values:
        blocks: list[Block] = []
        with self._open(None):
            own = self._own(handle)
            try:
                block = self._place(own.spec.nbytes, blocks)
                task = calls.Download(own.number, block.handle.number if block is not None else 0)
                answer = self._expect(self._exchange(task, blocks=blocks), calls.Values)
                blocks.clear()
            finally:
                for each in blocks:
                    self._release(each)
            if block is not None:
                return self._result(block, own.spec)
            return _from_bytes(answer.data, own.spec, None)

    def native(self, handle: Handle) -> Values:
        """A copy on the host: what the device's library calls an array is in another process."""
        return self.download(handle)

    def adopt(self, array: Any) -> RemoteHandle:
        return self.upload(np.from_dlpack(array))

    def memory(self) -> Memory:
        with self._open(None):
            return self._expect(self._exchange(calls.AskMemory()), calls.MemoryNow).memory

    def close(self) -> None:
        with self._lock:
            if self._end is not None:
                return
            with contextlib.suppress(DeviceLost, DeviceHung):
                self._exchange(calls.Close(), timeout=CLOSE_SECONDS, doing="it was closed")
            self._finish("it was closed")

    # -- arrays on their way. All of this is called with the lock held

    def _operand(
        self, argument: Values | Handle, spec: Spec, dtype: np.dtype[Any] | None, nbytes: int, blocks: list[Block]
    ) -> Operand:
        if not isinstance(argument, np.ndarray):
            return self._own(argument).number
        block = self._place(nbytes, blocks)
        if block is None:
            return argument.tobytes()
        segment: Segment = block.handle
        np.copyto(segment.array(spec), argument)
        return InSegment(segment.number)

    def _place(self, nbytes: int, blocks: list[Block]) -> Block | None:
        """Shared memory for an array, or none where it is better inside of the message."""
        if nbytes <= INLINE_BYTES or self._shared is None:
            return None
        block = self._shared.allocate(nbytes)
        blocks.append(block)
        return block

    def _release(self, block: Block) -> None:
        if self._shared is not None:
            self._shared.release(block)

    def _result(self, block: Block, spec: Spec) -> Values:
        if self._shared is None:
            raise InvalidOption("there is no shared memory.")
        return self._shared.result(block, spec)

    def _own(self, handle: Handle) -> RemoteHandle:
        if not isinstance(handle, RemoteHandle) or handle.worker.device.id != self._device.id:
            raise InvalidOption(f"{handle!r} is not on {self._device.id}: download it, and upload it here.")
        if handle.worker is not self:
            raise DeviceLost(self._device.id, detail="it was opened anew since", generation=handle.generation)
        return handle

    def _drop(self, handle: RemoteHandle) -> None:
        """From a finaliser: on any thread, at any moment."""
        if self._end is not None:
            return
        self._dropped.append(handle.number)
        self._dropped_bytes += handle.spec.nbytes
        if self._dropped_bytes >= DROPPED_BYTES:
            self._tidy()

    def _tidy(self) -> None:
        """Tell the child what is not needed any more, unless somebody is using it: then they do."""
        if not self._lock.acquire(False):
            return
        try:
            dropped, forgotten = tuple(self._dropped), self._forgotten()
            if self._end is None and (dropped or forgotten):
                if self._link.send_if_free(calls.encode(Envelope(0, None, dropped, forgotten))):
                    self._told(dropped)
                elif self._shared is not None:
                    self._shared.forgotten.extend(forgotten)
        finally:
            self._lock.release()

    def _told(self, dropped: Sequence[int]) -> None:
        for _ in dropped:
            self._dropped.popleft()
        self._dropped_bytes = 0

    def _forgotten(self) -> tuple[int, ...]:
        taken = []
        while self._shared is not None and self._shared.forgotten:
            taken.append(self._shared.forgotten.popleft())
        return tuple(taken)

    # -- the exchange

    def _about(
        self,
        program: Program,
        task: Any,
        timeout: float | None = None,
        blocks: list[Block] | None = None,
        handles: range = range(0),
    ) -> Outcome:
        """A task that concerns a program, which is sent along if the child does not have it."""
        key = program.key
        known = key in self._sent
        outcome = self._exchange(
            task(key, None if known else _text_of(program)), timeout=timeout, blocks=blocks, handles=handles
        )
        if isinstance(outcome, calls.UnknownProgram):
            outcome = self._exchange(task(key, _text_of(program)), timeout=timeout, blocks=blocks, handles=handles)
        self._sent.pop(key, None)
        self._sent[key] = None
        if len(self._sent) > PROGRAMS_SENT:
            del self._sent[next(iter(self._sent))]
        return outcome

    def _exchange(
        self,
        task: Task,
        *,
        timeout: float | None = None,
        blocks: list[Block] | None = None,
        handles: range = range(0),
        doing: str = "it ran a program",
    ) -> Outcome:
        self._number += 1
        number = self._number
        try:
            self._send(number, task)
        except LinkClosed:
            raise self._lost() from None
        except BaseException:
            # Nobody knows how much of it was sent.
            self._finish("it was interrupted")
            raise
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                left = None if deadline is None else max(1e-3, deadline - time.monotonic())
                answer = calls.decode_answer(self._link.receive(left))
            except LinkClosed:
                raise self._lost() from None
            except msgspec.DecodeError:
                self._finish("it answered with something unreadable")
                raise DeviceLost(self._device.id, detail=self._end or "", generation=self._generation) from None
            except TimeoutError:
                self._finish(f"it did not answer within {timeout:g} s")
                raise DeviceHung(self._device.id, timeout or 0.0, doing=doing) from None
            except BaseException:
                # Ctrl-C: the child goes on, and its answer is thrown away when it comes.
                self._abandoned[number] = _Abandoned(list(blocks or ()), handles)
                if blocks is not None:
                    blocks.clear()
                raise
            if answer.number == number:
                return answer.outcome
            self._forget(answer.number)

    def _send(self, number: int, task: Task) -> None:
        shared = self._shared
        if not self._dropped and (shared is None or not (shared.unannounced or shared.forgotten)):
            self._post(Envelope(number, task), ())
            return
        attached: list[Segment] = []
        waiting = shared.unannounced if shared is not None else deque[Segment]()
        while waiting:
            segment = waiting.popleft()
            if segment.closed:  # given back before anybody used it
                continue
            attached.append(segment)
            if len(attached) == MOST_DESCRIPTORS and waiting:
                self._post(Envelope(0, None, attached=_announced(attached)), attached)
                attached = []
        dropped = tuple(self._dropped)
        envelope = Envelope(number, task, dropped, self._forgotten(), _announced(attached))
        self._post(envelope, attached)
        if dropped:
            self._told(dropped)

    def _post(self, envelope: Envelope, attached: Sequence[Segment]) -> None:
        descriptors = [segment.descriptor for segment in attached if segment.descriptor >= 0]
        self._link.send(calls.encode(envelope), descriptors)
        for segment in attached:
            segment.sent()

    def _forget(self, number: int) -> None:
        """The answer of an abandoned call has come: nobody uses its memory now, and nobody wants its results."""
        abandoned = self._abandoned.pop(number, None)
        if abandoned is not None:
            for block in abandoned.blocks:
                self._release(block)
            self._dropped.extend(abandoned.handles)

    def _expect(self, outcome: Outcome, kind: type[Expected]) -> Expected:
        if isinstance(outcome, kind):
            return outcome
        if not isinstance(outcome, calls.Failed):
            self._finish("it answered another question")
            raise DeviceLost(self._device.id, detail=self._end or "", generation=self._generation)
        error = read(outcome, self._device.id)
        if isinstance(error, DeviceLost):
            error.generation = self._generation
        if isinstance(error, DeviceLost | DevicePoisoned):
            # Only a new process can use it again.
            self._finish("it was lost earlier")
        raise error

    # -- life and death

    def _open(self, timeout: float | None) -> _Held:
        """Around every use of the child: takes the lock, which `with` lets go of."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise DeadlineExceeded(f"a task for {self._device.id}", timeout or 0.0, still_running=True)
        if self._end is not None:
            self._lock.release()
            raise DeviceLost(self._device.id, detail=self._end, generation=self._generation)
        return _Held(self._lock)

    def _lost(self) -> DeviceLost:
        """The child is gone. Its exit code and its last words say why."""
        if self._end is None:
            code, words = self._child.collect()
            ended = f"its process ended {how_it_ended(code)}"
            self._finish(f"{ended}: {words}" if words else ended)
        return DeviceLost(self._device.id, detail=self._end or "", generation=self._generation)

    def _finish(self, why: str) -> None:
        """With the lock held: kill the child if it is there, and give back what can be given back."""
        if self._end is None:
            self._end = why
        self._finalizer()
        for abandoned in self._abandoned.values():
            for block in abandoned.blocks:
                self._release(block)
        self._abandoned.clear()
        self._dropped.clear()
        if self._shared is not None:
            self._shared.close()

    def _died(self) -> None:
        """From the watcher: whoever waits for an answer sees it too, and says so first."""
        with self._lock:
            if self._end is None:
                self._lost()

    def _look_after(self) -> None:
        if self._shared is not None:
            self._shared.expire()
        self._tidy()

    def _forked(self) -> None:
        """In a process that was forked from the worker's own: the child is not ours."""
        self._lock = threading.Lock()
        self._end = "it belongs to the process that this one was forked from"
        self._child.close()

    def __repr__(self) -> str:
        state = f"process {self.process_id}" if self.alive else "dead"
        return f"<worker of {self._device.id}, {state}, generation {self._generation}>"


def _let_go(child: Child, process_id: int) -> None:
    """End the child, unless this process has only inherited it."""
    if os.getpid() != process_id:
        return
    if child.link is not None:
        child.link.shut_down()
    child.process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(timeout=0.5)
    child.close()


def _watch(reference: weakref.ref[ProcessWorker], link: Link) -> None:
    """Until the child closes its end, which it does when it dies; now and then, look for memory that nobody uses."""
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    # Nothing is asked for: the end of the other side is always told.
    poll.register(link.fileno(), 0)
    while True:
        ended = poll.poll(_TIDY_SECONDS * 1000)
        worker = reference()
        if worker is None or not worker.alive:
            return
        if ended:
            worker._died()
            return
        worker._look_after()
        del worker


def _announced(segments: Sequence[Segment]) -> tuple[Attached, ...]:
    return tuple([Attached(each.number, each.nbytes, each.name) for each in segments])


def _text_of(program: Program) -> bytes:
    # Without lines: two programs of one key may have different ones, so they are filled in on this side.
    return wire.to_bytes(program, lines=False)


def _from_bytes(data: bytes, spec: Spec, dtype: np.dtype[Any] | None) -> Values:
    # Bytes cannot be written to, and results can.
    return np.ndarray(spec.shape, dtype or numpy_dtype(spec.dtype), bytearray(data))


def _known_of(program: Program) -> _Known:
    inputs, results = (
        tuple([(spec, _type_of(spec), spec.nbytes) for spec in specs]) for specs in (program.inputs, program.results)
    )
    return _Known(inputs, results)


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


_workers: weakref.WeakSet[ProcessWorker] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in list(_workers):
        worker._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
