"""Children: how they are started, what they said last, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import IO, Protocol

import msgspec

from anygpu.workers.child_start import child_command, waits_for_processor
from anygpu.workers.link import Invitation, Link, LinkClosed
from anygpu.workers.start_messages import ChildRequest

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
        """With `serves` the child is told how to reach `link`. Raises OSError where no child can be started."""
        # A file and not a pipe: a driver that floods it cannot block, and it need not be read in time.
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self.has_low_priority = request.low_priority
        self.link = None
        invitation: Invitation | None = None
        try:
            if serves:
                invitation = Invitation() if by_port is None else Invitation(by_port=by_port)
                request = msgspec.structs.replace(request, serve_at=invitation.address)
            self.process = subprocess.Popen(
                child_command([msgspec.json.encode(request).decode()]),
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
