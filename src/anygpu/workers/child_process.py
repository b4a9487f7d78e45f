"""Child processes, as their parent sees them: how they are started, what they said last, and how they end.

A spare is a child with an engine's library loaded and no device open, from which a lost worker is replaced at once. On
Linux it makes a copy of itself for each worker, and can do so again and again. Elsewhere, and where the library has
started threads, the spare itself becomes the worker. What is inside of it is in `anygpu.workers.child`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from functools import cache
from typing import IO, NamedTuple, Protocol

import msgspec

from anygpu.base.forks import lock, no_fork
from anygpu.engines.catalogue import EngineEntry
from anygpu.workers.child_messages import (
    AskExit,
    ChildRequest,
    Copy,
    Exited,
    ServeRequest,
    SpareCopied,
    SpareMessage,
    SpareReady,
    decode_spare,
    encode_spare,
)
from anygpu.workers.child_start import child_command, waits_for_processor
from anygpu.workers.link import Invitation, Link, LinkClosed

_LAST_WORDS = 4000

#: The exit code of a process whose end was told to somebody else, who is gone.
UNKNOWN_CODE = 256


class ProcessLike(Protocol):
    """The methods of a process that a child needs: a `subprocess.Popen`, or a copy of a spare."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Child:
    """A process that was started as a Python command of its own, and imports nothing of the caller's."""

    process: ProcessLike
    link: Link | None
    #: Whether it has a low priority, for good.
    has_low_priority: bool
    #: Whether it is a copy of a spare.
    is_copy = False

    def __init__(self, request: ChildRequest, *, serves: bool, by_port: bool | None = None) -> None:
        """Starts the process; with `serves` it is told how to reach `link`.

        Raises OSError where no child can be started. Its standard input is never written to: it closes when this
        process ends, however it does, and the child ends with it. Its standard error is a file, so that a driver which
        floods it cannot block.
        """
        # A file and not a pipe: a driver that floods it cannot block, and it need not be read in time. Without a
        # buffer, as the pipes: a forked process could not close it while a thread of this one reads.
        self._stderr: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the child
        self.has_low_priority = request.low_priority
        self.link = None
        invitation: Invitation | None = None
        try:
            with no_fork():  # a process that is forked meanwhile would keep the ends of pipes that close here
                if serves:
                    invitation = Invitation() if by_port is None else Invitation(by_port=by_port)
                    request = msgspec.structs.replace(request, serve_at=invitation.address)
                self.process = subprocess.Popen(
                    child_command([msgspec.json.encode(request).decode()]),
                    bufsize=0,
                    # Never written to: it closes when this process ends, however it does.
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._stderr,
                    pass_fds=invitation.inherited if invitation is not None else (),
                )
                if invitation is not None:
                    self.link = invitation.accepted()
        except LinkClosed as error:
            raise OSError(f"the child did not respond: {error}") from error
        except BaseException:
            if invitation is not None:
                invitation.take_back()
            self._stderr.close()
            raise

    def collect(self, patience: float = 0.5) -> tuple[int, str]:
        """The exit code and the last words of a child that has closed its channel; it is killed if it lives on."""
        try:
            code = self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            ended = self._after_kill(patience)
            code = -signal.SIGKILL if ended is None else ended
        words = self.last_words()
        return code, words

    def _after_kill(self, patience: float) -> int | None:
        """The exit code of a process that was killed; `None` if it has not ended after so many seconds.

        A process that is stuck inside a driver cannot be reaped, and must not hold us up as well. One that only waits
        for a processor of a busy machine is waited for: it ends as soon as it gets one.
        """
        while True:
            try:
                return self.process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                if not waits_for_processor(self.process.pid):
                    return None

    def how_it_ended(self) -> str:
        """Why it is gone, as part of a sentence: its exit code and its last words."""
        code, words = self.collect()
        ended = f"its process ended {how_it_ended(code)}"
        return f"{ended}: {words}" if words else ended

    def last_words(self) -> str:
        """Returns the end of what the child has written to standard error; empty if that is closed."""
        try:
            self._stderr.seek(0, os.SEEK_END)
            self._stderr.seek(max(0, self._stderr.tell() - _LAST_WORDS))
            return self._stderr.read().decode("utf-8", "replace").strip("\0 \n")
        except (ValueError, OSError):  # it is closed, perhaps by another thread just now
            return ""

    def kill(self, patience: float = 1.0) -> None:
        """Kill it, and wait for its end; not longer than so many seconds for one that is stuck inside a driver."""
        self.process.kill()
        self._after_kill(patience)

    def close(self) -> None:
        """Close our ends of everything; a child that is alive notices, and ends."""
        if self.link is not None:
            self.link.close()
        for stream in (self.process.stdin, self.process.stdout, self._stderr):
            if stream is not None:
                stream.close()


def how_it_ended(code: int) -> str:
    """The end of a sentence: "by SIGSEGV", "with exit code 1"."""
    if code == UNKNOWN_CODE:
        return "for an unknown reason"
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


# -- spares


#: Loading torch takes most of it, on a machine that is busy.
START_SECONDS = 60.0
#: It answers in milliseconds, or never.
ANSWER_SECONDS = 10.0
END_SECONDS = 5.0


@cache
def can_copy() -> bool:
    """Whether this system lets a process be copied, and watched by one that is not its parent."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):  # an old system, or one that forbids it
        return False
    return True


class _Surroundings(NamedTuple):
    """Environment, folder and the like, which a child inherits from its parent, and a copy from the spare."""

    environment: dict[str, str]
    folder: str
    processors: frozenset[int]


def _surroundings() -> _Surroundings:
    """Reads what a child that is started now would inherit."""
    folder = ""
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()  # noqa: PTH109 - compared, not used
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return _Surroundings(dict(os.environ), folder, frozenset(processors))


class Spare:
    """One spare, which is starting, ready or gone."""

    def __init__(self, entry: EngineEntry, *, quietly: bool = False, may_copy: bool | None = None) -> None:
        """Starts it; with `quietly` it takes only time that others leave, and makes no copies.

        Raises OSError where no child can be started.
        """
        self.entry = entry
        #: Once it is ready, whether it makes copies; `None` before.
        self.copies: bool | None = None
        #: Whether it was given away or closed.
        self.gone = False
        self._last_words = ""
        self._surroundings = _surroundings()
        self._lock = lock()
        may_copy = (can_copy() if may_copy is None else may_copy) and not quietly
        self._child = Child(ServeRequest(spare_for=entry, may_copy=may_copy, quietly=quietly), serves=True)
        _spares.add(self)

    @property
    def process_id(self) -> int:
        return self._child.process.pid

    def wait(self, timeout: float = START_SECONDS) -> None:
        """Waits until it is ready; raises OSError with its last words if it does not become so."""
        with self._lock:
            answer = self._answer(timeout)
            if not isinstance(answer, SpareReady):
                raise OSError(f"the spare of {self.entry.name} did not start: {self._last_words}")
            self.copies = answer.copies

    def suits(self, entry: EngineEntry) -> bool:
        """Whether a child of that engine that is started now would be the same."""
        return self.entry == entry and self._surroundings == _surroundings()

    def take(self) -> Child | None:
        """A child that waits for its first task; `None` if the spare is not ready, or not any longer."""
        if self.copies is None:  # without the lock, which is held while it starts
            return None
        with self._lock:
            if self.gone or self._child.process.poll() is not None:
                return None
            if self.copies:
                return self._copy()
            self.gone = True
            return self._child

    def _copy(self) -> Child | None:
        """Asks the spare for a copy of itself, and returns it as a child; `None` if it made none.

        The copy gets a link, a standard input whose other end is ours, and a file for its standard error. It ends when
        its standard input does, so that one which was made too late does no harm.
        """
        stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the copy
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        stdin = os.fdopen(writing, "wb", 0)
        copied: Child | None = None
        try:
            answer = self._ask(Copy(), (theirs.fileno(), reading, stderr.fileno()))
            if isinstance(answer, SpareCopied):
                copied = _Copy(CopiedProcess(answer.process, stdin, self), Link(ours), stderr)
        except ProcessLookupError:  # it has ended, and the spare with it
            copied = None
        finally:
            theirs.close()
            os.close(reading)
            if copied is None:
                # A copy that was made all the same ends when its standard input does.
                for each in (ours, stdin, stderr):
                    each.close()
        return copied

    def exit_code(self, process: int) -> int:
        """How a copy ended that is over."""
        with self._lock:
            answer = self._ask(AskExit(process)) if not self.gone else None
        known = answer.code if isinstance(answer, Exited) else _exit_code_of_orphan(process)
        return UNKNOWN_CODE if known is None else known

    def _ask(self, message: SpareMessage, descriptors: tuple[int, ...] = ()) -> SpareMessage | None:
        """Its answer; `None` if it has none, and then it is of no use any longer."""
        link = self._child.link
        assert link is not None
        try:
            link.send(encode_spare(message), descriptors)
        except LinkClosed:
            self._end()
            return None
        except BaseException:
            # It is unknown how much of it was sent.
            self._end()
            raise
        return self._answer(ANSWER_SECONDS)

    def _answer(self, timeout: float) -> SpareMessage | None:
        """Waits for the spare's next message. One that does not come in time, or is no message, ends the spare."""
        link = self._child.link
        assert link is not None
        try:
            return decode_spare(link.receive(timeout))
        except (LinkClosed, TimeoutError, msgspec.DecodeError):
            self._end()
            return None
        except BaseException:
            # Ctrl-C: the answer that is still to come would be taken for the next one.
            self._end()
            raise

    def kill(self) -> None:
        """End it, also while another thread waits for it; copies go on."""
        if not self.gone:
            self._child.process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        """Kills the spare's process, and closes our ends. Copies of it go on."""
        if not self.gone:
            self.gone = True
            self._child.kill(END_SECONDS)
            self._last_words = self._child.last_words()
            self._child.close()

    def forked(self) -> None:
        """Closes our ends in a process that was forked from the one that keeps it: the spare is not ours."""
        if not self.gone:
            self.gone = True
            self._child.close()


def _exit_code_of_orphan(process: int) -> int | None:
    """How a process ended whose parent is gone: told to this one if it is the first of its container."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


class CopiedProcess:
    """A copy of a spare. It is the spare's child and not ours, so that the spare has to say how it ended."""

    def __init__(self, pid: int, stdin: IO[bytes], spare: Spare) -> None:
        """Takes over `stdin`, the writing end of the copy's standard input.

        It raises ProcessLookupError if it has ended already.
        """
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = None
        self._spare = spare
        self._code: int | None = None
        self._collecting = lock()
        # Not the number: that may be another process's once this one is gone and the spare is, too.
        self._descriptor = -1
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._code if self._code is not None or not self._is_over(0) else self._collected()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process, and returns its exit code; raises `subprocess.TimeoutExpired`."""
        if self._code is not None:
            return self._code
        if not self._is_over(timeout):
            raise subprocess.TimeoutExpired(f"a copy of the spare of {self._spare.entry.name}", timeout or 0.0)
        return self._collected()

    def kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _is_over(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout is None else 1000 * timeout))

    def _collected(self) -> int:
        """Asks the spare for the exit code once, and keeps it."""
        with self._collecting:  # it is told once
            if self._code is None:
                self._code = self._spare.exit_code(self.pid)
            return self._code

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _Copy(Child):
    """A copy as a child."""

    is_copy = True

    def __init__(self, process: CopiedProcess, link: Link, stderr: IO[bytes]) -> None:
        """Takes over the process, the link and the file of its standard error."""
        self.process = process
        self.link = link
        self.has_low_priority = False
        self._stderr = stderr


#: The spares of this process.
_spares: weakref.WeakSet[Spare] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked process that kept its copies of a spare's channels would keep the spare alive when the parent ends."""
    for spare in list(_spares):
        spare.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
