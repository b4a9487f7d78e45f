"""The inside of a spare: a child that has loaded an engine's library, and waits to be needed.

Where it can, it makes copies of itself, one for each worker that is to be replaced, and stays: a copy takes
milliseconds, and loading the library most of a second. It can as long as it has nothing that a copy would share or
lack: it has opened no device, and the library has started no thread.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import warnings

from anygpu.engines.catalogue import EngineEntry, load
from anygpu.engines.protocol import Engine, ProgramEngine
from anygpu.workers import child_server  # noqa: F401 - all that a worker needs is loaded here, once
from anygpu.workers.child_start import end_with_parent, lower_this_thread
from anygpu.workers.link import Link
from anygpu.workers.start_messages import (
    AskExit,
    Copy,
    Exited,
    ServeRequest,
    SpareCopied,
    SpareReady,
    decode_spare,
    encode_spare,
)


def stand_by(link: Link, request: ServeRequest) -> tuple[Link, ProgramEngine | None]:
    """Load the engine, and wait. Returns in each copy, or where there are none at once, with what it is to serve.

    Raises `LinkClosed` in the spare itself when it is not wanted any longer.
    """
    assert request.spare_for is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = _threads()
    loaded = _load_quietly(request.spare_for) if request.quietly else load(request.spare_for)
    engine = loaded if isinstance(loaded, ProgramEngine) else None
    copies = request.may_copy and _threads() == before
    # What is there now is in every copy: a garbage collector that looks at it would make each copy's memory its own.
    gc.collect()
    gc.freeze()
    link.send(encode_spare(SpareReady(copies)))
    if not copies:
        end_with_parent()
        return link, engine
    while True:
        message = decode_spare(link.receive())
        if isinstance(message, Copy):
            descriptors = [link.next_descriptor() for _ in range(3)]
            process = _fork()
            if not process:
                link.close()
                return _settled(*descriptors), engine
            for descriptor in descriptors:
                os.close(descriptor)
            link.send(encode_spare(SpareCopied(process)))
        elif isinstance(message, AskExit):
            link.send(encode_spare(Exited(_exit_code(message.process))))


def _settled(link: int, stdin: int, stderr: int) -> Link:
    """In a copy: what it shares with the spare until here becomes its own."""
    os.dup2(stdin, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    os.close(stdin)
    os.close(stderr)
    end_with_parent()
    return Link(socket.socket(fileno=link), takes_descriptors=True)


def _fork() -> int:
    with warnings.catch_warnings():
        # From Python 3.12 on it warns of threads. Those that NumPy's library has started end before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _threads() -> int:
    """The threads of this process; 0 where that is not known, and nothing is copied."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only their number
    except OSError:
        return 0


def _exit_code(process: int) -> int | None:
    try:
        _, status = os.waitpid(process, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def _load_quietly(entry: EngineEntry) -> Engine:
    """Load it at low priority, on a thread of its own: most systems let nobody raise a priority again."""
    outcome: list[Engine | BaseException] = []

    def work() -> None:
        try:
            lower_this_thread()
            outcome.append(load(entry))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (loaded,) = outcome
    if isinstance(loaded, BaseException):
        raise loaded
    return loaded
