"""The inside of a child that is a worker: takes tasks from its link, does them one after the other, and answers.

It takes programs, which are data and are checked, never code. It ends when its link closes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import numpy_dtype
from anygpu.engines.protocol import ProgramEngine, tuning_limited_to
from anygpu.errors import InvalidOption
from anygpu.program import wire
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.workers import child_messages
from anygpu.workers.child_messages import ChildTask, Envelope, InSegment, TaskOutcome, error_to_message
from anygpu.workers.executor import Executor, Resident, open_engine, prepare_device
from anygpu.workers.link import Link, LinkClosed
from anygpu.workers.shared_memory import AttachedSegments

#: More than the worker's side expects to be here, so that it is seldom told otherwise.
PROGRAMS_KEPT = 1024

#: Standard error is a file, which a chatty driver must not fill the disk with.
_MOST_WORDS = 1 << 20
_LOOK_AT_WORDS_EVERY = 256


class UnknownProgramError(Exception):
    """The program was not sent, and it is not here."""


def serve(link: Link, engine: ProgramEngine | None = None, *, listed: bool = True) -> None:
    """Carries out tasks until the link closes.

    `engine` is loaded already, and has discovered its devices if they are `listed`. Ctrl-C is ignored: the terminal
    sends it to every process, and only the parent decides what it means.
    """
    # What the user types at the terminal goes to every process there; only the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = ChildServer(engine, listed=listed)
    count = 0
    while not server.finished:
        try:
            envelope = child_messages.decode_envelope(link.receive())
            outcome = server.answer(envelope, link.next_descriptor)
            if outcome is not None:
                link.send(child_messages.encode(child_messages.Answer(envelope.number, outcome)))
        except LinkClosed:
            return
        del envelope, outcome
        count += 1
        if count % _LOOK_AT_WORDS_EVERY == 0:
            _forget_old_words()


def _forget_old_words() -> None:
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > _MOST_WORDS:
            os.ftruncate(2, 0)


class ChildServer:
    """The state of a child: one open device, the programs and arrays that it was sent, and views of shared memory."""

    #: Whether an engine that works in the host's memory may read arguments where they are, as long as a run lasts.
    _lends = False

    def __init__(self, engine: ProgramEngine | None = None, *, listed: bool = True) -> None:
        """Starts without a device, which the first task opens."""
        self.finished = False
        self._engine = engine
        self._listed = listed
        self._executor: Executor | None = None
        self._programs: dict[str, Program] = {}
        self._residents: dict[int, Resident] = {}
        self._segments = AttachedSegments()

    def answer(self, envelope: Envelope, next_descriptor: Callable[[], int]) -> TaskOutcome | None:
        """Carries out what an envelope says, and returns the outcome; an exception becomes a message.

        Dropped arrays and forgotten segments come first, so that their memory is free for the task.
        """
        for number in envelope.dropped:
            self._residents.pop(number, None)
        self._segments.forget(envelope)
        try:
            self._segments.announce(envelope, next_descriptor)
            if isinstance(envelope.task, child_messages.OpenSide):
                return self._open_side(next_descriptor())
            return self._do(envelope.task) if envelope.task is not None else None
        except LinkClosed:
            raise
        except UnknownProgramError:
            return child_messages.UnknownProgram()
        except Exception as error:  # noqa: BLE001 - whatever it is, the one who waits for it is told
            return error_to_message(error)

    def _do(self, task: ChildTask) -> TaskOutcome:
        """Carries out one task."""
        match task:
            case child_messages.Run():
                return self._run(task)
            case child_messages.Upload(operand, shape, dtype, handle):
                self._residents[handle] = self._ready.upload(self._values(operand, Spec(shape, dtype)))
                return child_messages.TaskDone()
            case child_messages.Download(handle, segment):
                resident = self._resident(handle)
                if not segment:
                    return child_messages.Downloaded(self._ready.download(resident).tobytes())
                self._ready.download_into(resident, self._place(segment, resident.spec))
                return child_messages.Downloaded(b"")
            case child_messages.Supports(key, text):
                return child_messages.Lacks(self._ready.supports(self._program(key, text)))
            case child_messages.Reflect(source, entry, title):
                return child_messages.ReflectDone(self._ready.reflected(source, entry, title))
            case child_messages.Prepare(key, text, tuning):
                with tuning_limited_to(tuning):
                    return child_messages.PrepareDone(self._ready.prepare(self._program(key, text)))
            case child_messages.AskMemory():
                return child_messages.MemoryNow(self._ready.memory())
            case child_messages.ReclaimMemory():
                return child_messages.Reclaimed(self._ready.reclaim())
            case child_messages.Open():
                return self._open(task)
            case child_messages.OpenSide():
                raise InvalidOption("a side comes with its descriptor.")
            case child_messages.Close():
                self.finished = True
                self._residents.clear()
                if self._executor is not None:
                    self._executor.engine.close()
                return child_messages.TaskDone()

    def _open(self, task: child_messages.Open) -> TaskOutcome:
        """Open the device of the request. A probe that became a worker has its engine loaded already."""
        if self._engine is None:
            self._engine = open_engine(task.entry, task.device, task.budget)
        else:
            prepare_device(self._engine, task.device, task.budget, listed=self._listed)
        self._executor = Executor(self._engine, task.device)
        # What is there now stays: the garbage collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        return child_messages.Opened(self._executor.can_overlap)

    def _open_side(self, descriptor: int) -> TaskOutcome:
        """Serves uploads and downloads on a second link and thread, if the engine can transfer while it computes."""
        link = Link(socket.socket(fileno=descriptor), takes_descriptors=True)
        overlaps = self._ready.can_overlap
        if overlaps:
            threading.Thread(target=_serve_side, args=(link, SideServer(self)), name="side", daemon=True).start()
        else:
            link.close()
        return child_messages.SideOpened(overlaps)

    @property
    def _ready(self) -> Executor:
        if self._executor is None:
            raise InvalidOption("no device is open in this process: the first task opens it.")
        return self._executor

    def _run(self, task: child_messages.Run) -> TaskOutcome:
        """Run a program on operands from the message, from shared memory or on the device, and put results where
        asked.
        """
        program = self._program(task.program, task.text)
        arguments = [
            self._resident(each) if isinstance(each, int) else self._values(each, spec)
            for each, spec in zip(task.arguments, program.inputs, strict=True)
        ]
        for number in task.last_use:
            self._residents.pop(number, None)
        wanted = task.results
        targets = self._targets(wanted, program.results) if wanted is not None else None
        done = self._ready.run(
            program,
            arguments,
            keep=wanted is None,
            wait=task.wait,
            timed=task.timed,
            deliver=lambda position, values: self._delivered(wanted[position] if wanted is not None else 0, values),
            targets=targets,
            lend=self._lends,
            apart=task.apart,
        )
        # Those in a segment have no bytes to send.
        delivered = tuple([each or b"" for each in done.results]) if wanted is not None else ()
        if wanted is None:
            for number, (buffer, spec) in enumerate(zip(done.results, program.results, strict=True), task.handle):
                self._residents[number] = Resident(buffer, spec)
        return child_messages.RunDone(delivered, done.account)

    def _program(self, key: str, text: bytes | None) -> Program:
        """The program with this key, from the text or from those sent before.

        Raises `UnknownProgramError` without both.
        """
        known = self._programs.pop(key, None)
        if known is None:
            if text is None:
                raise UnknownProgramError
            known = wire.from_bytes(text)
            if known.key != key:
                raise InvalidOption(f"the program that was sent as {key} is {known.key}.")
        self._programs[key] = known
        while len(self._programs) > PROGRAMS_KEPT:
            del self._programs[next(iter(self._programs))]
        return known

    def _resident(self, number: int) -> Resident:
        """Returns the array that is kept under a number; raises `InvalidOption` if there is none."""
        found = self._residents.get(number)
        if found is None:
            raise InvalidOption(f"there is no array {number} on this device.")
        return found

    def _targets(self, wanted: Sequence[int], specs: Sequence[Spec]) -> list[HostArray | None]:
        """Returns for each result the memory that it is to be written to; `None` for one that is delivered."""
        return [self._place(number, spec) if number else None for number, spec in zip(wanted, specs, strict=True)]

    def _delivered(self, number: int, values: HostArray) -> bytes:
        """A result as the bytes of an answer; `number` is the place that it is wanted in, or 0."""
        return values.tobytes()

    def _place(self, number: int, spec: Spec) -> HostArray:
        """Returns the memory of a segment that a result is to be written to."""
        return self._segments.find(number, self._ready.device.id).array(spec)

    def _values(self, operand: bytes | InSegment, spec: Spec) -> HostArray:
        """Returns an argument's values as a view of the message or of shared memory."""
        _know(spec)
        if isinstance(operand, InSegment):
            return self._segments.find(operand.segment, self._ready.device.id).array(spec)
        values: HostArray = np.frombuffer(operand, numpy_dtype(spec.dtype)).reshape(spec.shape)
        return values


class SideServer(ChildServer):
    """Uploads and downloads on a thread of their own, while the first one is busy with a run.

    It sees the same device and arrays. Its segments are others, so that neither link waits for news from the other.
    """

    def __init__(self, main: ChildServer) -> None:
        super().__init__(main._engine)
        self._executor = main._executor
        self._residents = main._residents

    def _do(self, task: ChildTask) -> TaskOutcome:
        """Carry out one transfer while the main connection runs a program."""
        match task:
            case child_messages.Upload(operand, shape, dtype, handle):
                self._residents[handle] = self._ready.upload_apart(self._values(operand, Spec(shape, dtype)))
                return child_messages.TaskDone()
            case child_messages.Download(handle, segment, last_use):
                resident = self._resident(handle)
                self._ready.download_apart(resident, self._place(segment, resident.spec))
                if last_use:
                    self._residents.pop(handle, None)
                return child_messages.Downloaded(b"")
            case _:
                raise InvalidOption("the side transfers, and does nothing else.")

    def withdraw(self, task: ChildTask | None) -> None:
        """Drop the results of a task whose caller has left."""
        if isinstance(task, child_messages.Upload):
            self._residents.pop(task.handle, None)


def _serve_side(link: Link, server: SideServer) -> None:
    """Answer transfers on the second link until it closes."""
    while True:
        task: ChildTask | None = None
        try:
            envelope = child_messages.decode_envelope(link.receive())
            task = envelope.task
            outcome = server.answer(envelope, link.next_descriptor)
            if outcome is not None:
                link.send(child_messages.encode(child_messages.Answer(envelope.number, outcome)))
        except LinkClosed:
            server.withdraw(task)
            link.close()
            return
        del envelope, outcome


def _know(spec: Spec) -> None:
    """NumPy knows bfloat16 only once ml_dtypes is imported, as it is in the sender."""
    if spec.dtype == "bfloat16":
        with contextlib.suppress(ImportError):
            import ml_dtypes  # noqa: F401
