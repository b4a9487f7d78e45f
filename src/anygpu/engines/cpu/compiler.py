"""A compiler in a child process: a program or LLVM IR goes there, and an image of native code comes back.

Why a child, and not a thread of this process: LLVM answers some mistakes with `abort`, it may take long or much memory,
and it does not give back what it took. A child costs 0.1 s at its start, once, where a thread would wait 0.07 s for
llvmlite to load; after that both take the same time for a module. In return this process never loads LLVM at all,
which would add 90 MB to it. A child that has nothing to do ends after a minute. A program becomes loop nests and LLVM
IR there too, because calls that run on NumPy meanwhile need Python's lock.

Its priority is low: calls that run on NumPy meanwhile lose nothing to it, and programs that use every processor little.
It is not idle priority, at which such programs would never be compiled.

Where no child can be started (a frozen application has no interpreter), LLVM runs here.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pickle
import signal
import struct
import sys
from io import FileIO
from typing import IO, TYPE_CHECKING, Any

import msgspec

from anygpu.base.forks import fork_allowed, lock, no_fork
from anygpu.base.this_process import interpreter
from anygpu.base.version import __version__
from anygpu.engines.cpu import compile_child
from anygpu.errors import CannotCompile, MissingExtra

if TYPE_CHECKING:
    import subprocess

    from anygpu.program.graph import Program

#: Children that died one after the other over the same request before it is given up. Who is killed from outside has
#: done nothing wrong.
_MOST_CRASHES, _MOST_KILLS = 2, 8
_LAST_WORDS = 2000
#: How much nicer the child is than this process.
_NICER = 5
_KILLED = -getattr(signal, "SIGKILL", 9)
#: How a child ends that takes too long: it would do so again.
_OUT_OF_TIME = -getattr(signal, "SIGPROF", 27)


def compiled(text: str, target: dict[str, str], *, level: int = 2, link: bool = True) -> bytes:
    """The image of a module, or with `link=False` its object. Raises `CannotCompile` with what LLVM says."""
    return _ask(encoded(text=text, target=target, level=level, link=link))


def compiled_program(program: Program, target: dict[str, str], *, link: bool = True) -> bytes:
    """A `CompiledProgram`, encoded. Raises `CannotCompile` with what is wrong with it."""
    request = {"ask": "program", "version": __version__, "target": target, "link": link}
    return _ask(msgspec.json.encode(request) + b"\n" + pickle.dumps(program))


def encoded(**request: Any) -> bytes:
    """The request to compile a module, as the child takes it."""
    return msgspec.json.encode({"ask": "compile", **request})


def described_host() -> dict[str, str]:
    """The processor of this machine, as `anygpu.engines.cpu.compile_child.host` has it."""
    return msgspec.json.decode(_ask(b'{"ask": "host"}'), type=dict[str, str])


def start_compiler() -> None:
    """Start the child, if it is not there, so that it loads LLVM while its caller does something else."""
    with contextlib.suppress(_NoChild):
        _child.start()


def _ask(request: bytes) -> bytes:
    """The child's answer, or that of LLVM in this process where no child can be started. Raises `CannotCompile`."""
    try:
        reply = _child.ask(request)
    except _NoChild:
        llvmlite_folder()
        try:
            return compile_child.answer(request)
        except Exception as error:
            raise CannotCompile("cpu", compile_child.message_of(error)) from error
    if reply[:1] != b"+":
        raise CannotCompile("cpu", reply[1:].decode("utf-8", "replace"))
    return reply[1:]


def llvmlite_folder() -> str:
    """The folder that llvmlite is installed in; raises `MissingExtra` without it."""
    folder = _folder_of("llvmlite")
    if folder is None:
        raise MissingExtra("llvmlite", "cpu")
    return folder


def _folder_of(package: str) -> str | None:
    found = importlib.util.find_spec(package)
    return os.path.dirname(os.path.dirname(found.origin)) if found is not None and found.origin is not None else None


class _NoChild(Exception):
    """No child can be started here."""


class CompileChild:
    """The compiling process. One request at a time; any thread may ask."""

    def __init__(self) -> None:
        """The child is started when it is first asked."""
        self._lock = lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: FileIO | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        with no_fork(), self._lock:
            self._started()

    def ask(self, request: bytes) -> bytes:
        """Its reply. A child that dies over it is replaced, until it is clear that the request is what kills them."""
        crashes = kills = 0
        with fork_allowed(), self._lock:
            while True:
                with no_fork():
                    process = self._started()
                try:
                    reply = _exchange(process, request)
                except OSError:
                    reply = None
                except BaseException:
                    # Its reply would come in place of the next one.
                    self._end()
                    raise
                if reply is not None:
                    return reply
                code, words = self._end()
                if code == _OUT_OF_TIME:
                    seconds = compile_child.COMPILE_SECONDS
                    return f"-LLVM was ended after {seconds:g} s of processor time.".encode()
                # Nothing was asked of one that had ended by itself because it was not needed.
                crashes += code not in (_KILLED, 0)
                kills += 1
                if crashes >= _MOST_CRASHES or kills >= _MOST_KILLS:
                    return f"-LLVM's process ended with code {code}. {words}".encode()

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the child, started if it is not running; call it with the lock held.

        Call it in `no_fork`: a process that is forked while pipes are being made would keep the ends that close here.
        It runs without the user's site packages and at a lower priority. Raises `_NoChild` where it cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        if getattr(sys, "frozen", False):
            raise _NoChild
        folders = {llvmlite_folder(), _folder_of("msgspec") or "", _folder_of("anygpu") or ""}
        # Late: most processes find all that they need on disk.
        import subprocess
        import tempfile

        # Without buffers: a forked process could not close them while a thread of this one reads.
        self._stderr = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the child
        try:
            self._process = subprocess.Popen(
                [interpreter(), "-I", "-S", compile_child.__file__, *folders],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                creationflags=getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0),
            )
        except OSError as error:
            raise _NoChild from error
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        return self._process

    def _end(self) -> tuple[int, str]:
        """Kill it, and return how it ended and what it said last."""
        process, self._process = self._process, None
        words = ""
        code = 0
        if process is not None:
            process.kill()
            code = process.wait()
            _close_streams(process)
        if self._stderr is not None:
            self._stderr.seek(0)
            words = self._stderr.read()[-_LAST_WORDS:].decode("utf-8", "replace").strip()
            self._stderr.close()
            self._stderr = None
        return code, words

    def forget(self) -> None:
        """In a process that was forked: the child is the parent's."""
        process, stderr = self._process, self._stderr
        self._process = self._stderr = None
        if stderr is not None:
            stderr.close()
        if process is not None:
            _close_streams(process)
            # Not ours to wait for.
            process.returncode = 0

    def kill(self) -> None:
        """End the child at the end of Python, which waits for nothing."""
        if (process := self._process) is not None:
            process.kill()
            process.returncode = 0  # not to be waited for

    def close(self) -> None:
        """End the child, if there is one. Whoever waits for it at that moment starts another one."""
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()
        elif (process := self._process) is not None:
            process.kill()


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> bytes | None:
    """Send a request and read its reply; `None` where the child has ended. Both are preceded by their lengths."""
    assert process.stdin is not None
    assert process.stdout is not None
    unsent = memoryview(struct.pack("<Q", len(request)) + request)
    while unsent:
        unsent = unsent[process.stdin.write(unsent) :]
    length = _read(process.stdout, 8)
    return None if length is None else _read(process.stdout, struct.unpack("<Q", length)[0])


def _read(stream: IO[bytes], count: int) -> bytes | None:
    """Read exactly `count` bytes from an unbuffered stream; return `None` if it ends before."""
    parts = []
    while count:
        parts.append(stream.read(count))
        if not parts[-1]:
            return None
        count -= len(parts[-1])
    return b"".join(parts)


def _close_streams(process: subprocess.Popen[bytes]) -> None:
    """Close the child's streams."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            # What could not be written is lost with the child.
            with contextlib.suppress(OSError):
                stream.close()


_child = CompileChild()


atexit.register(_child.kill)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_child.forget)
