"""The inside of a child: a probe lists and verifies, and says at each step what it is about to do; a worker serves.

It is started as a Python command of its own and imports nothing of the caller's. The messages of a probe go out on what
was its standard output; that is then pointed at standard error, so that a library which prints cannot garble them. A
probe that is asked to stay becomes the worker of a device that it has verified. A spare waits to become one.

A spare has loaded an engine's library, and waits to be needed. Where it can, it makes copies of itself, one for each
worker that is to be replaced, and stays: a copy takes milliseconds, and loading the library most of a second. It can as
long as it has nothing that a copy would share or lack: it has opened no device, and the library has started no thread.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from anygpu.engines import catalogue
from anygpu.engines.protocol import Engine, ProgramEngine
from anygpu.errors import text_of
from anygpu.hardware import nvidia, sysfs
from anygpu.hardware.device import Card, Device, Unavailable
from anygpu.workers.child_messages import (
    AskExit,
    Copy,
    Discovered,
    Exited,
    Message,
    ProbeFinished,
    ProbeRequest,
    ProbeStarted,
    Raised,
    ServeRequest,
    Settled,
    SpareCopied,
    SpareReady,
    decode_request,
    decode_spare,
    encode_line,
    encode_spare,
)
from anygpu.workers.child_start import end_with_parent, lower_this_thread

if TYPE_CHECKING:
    from anygpu.workers.link import Link


#: Who knows of cards without any engine.
CARD_SOURCES: dict[str, Callable[[], list[Card | Unavailable]]] = {"nvidia": nvidia.read, "sysfs": sysfs.read}

SendMessage = Callable[[Message], None]


def main() -> None:
    """Does what the request on the command line asks for: probes, serves, or stands by as a spare. Never returns."""
    channel = _take_over_stdout()
    request = decode_request(sys.argv[1])
    is_spare = isinstance(request, ServeRequest) and request.spare_for is not None
    # A spare can copy itself only as long as it has one thread.
    end_with_parent(watch=not is_spare)
    # Without it Mesa prints a warning for every adapter that it lists.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    if (request.low_priority or not request.serve_at) and hasattr(os, "nice"):
        # Importing torch or jax takes seconds of a core, and the caller may be computing meanwhile. Not idle priority:
        # a probe has a deadline, which it would miss on a machine that is busy with something else.
        os.nice(10)
    engine = _probe(request, channel) if isinstance(request, ProbeRequest) else None
    channel.close()
    if request.serve_at:
        # Late, because a probe alone does not need it.
        from anygpu.workers.child_server import serve
        from anygpu.workers.link import taken_up

        link = taken_up(request.serve_at)
        if isinstance(request, ServeRequest) and is_spare:
            _serve_when_needed(link, request)
        else:
            serve(link, engine if isinstance(engine, ProgramEngine) else None)
    # Drivers crash in their exit handlers more often than anywhere else, and there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(0)


def _serve_when_needed(link: Link, request: ServeRequest) -> None:
    """Stands by as a spare, and serves once it is needed; returns if it never was."""
    from anygpu.workers.child_server import serve
    from anygpu.workers.link import LinkClosed

    try:
        link, engine = stand_by(link, request)
    except LinkClosed:
        return
    serve(link, engine, listed=False)


def _probe(request: ProbeRequest, channel: BinaryIO) -> Engine | None:
    """Probe an engine or the cards, send each finding, and return the engine with its devices discovered."""
    _end_after(request.seconds)
    engine: Engine | None = None

    def send(message: Message) -> None:
        channel.write(encode_line(message))
        channel.flush()

    try:
        if request.engine is None:
            read_cards(request, send)
        elif (engine := _load(request.engine, send)) is not None:
            probe_engine(engine, request, send)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library raises is reported, not lost
        send(Raised(error=type(error).__name__, message=text_of(error)))
    send(ProbeFinished())
    _end_after(None)
    return engine


def _load(entry: catalogue.EngineEntry, send: SendMessage) -> Engine | None:
    """Loads the engine; `None` if its library cannot be imported, which is sent as the probe's finding."""
    try:
        return catalogue.load(entry)
    except Exception as error:  # noqa: BLE001 - a broken install raises anything, OSError from its libraries most often
        send(Raised(error=type(error).__name__, message=text_of(error), importing=True))
        return None


def probe_engine(engine: Engine, request: ProbeRequest, send: SendMessage) -> None:
    """Lists the devices of an engine, and verifies each.

    Before each step the parent is told whom to blame if it hangs.
    """
    found = [item for item in engine.discover() if item.id not in request.skip]
    devices = [item for item in found if isinstance(item, Device)]
    send(Discovered(pending=tuple(device.id for device in devices), items=tuple(found)))
    for device in devices:
        send(ProbeStarted(device.id))
        send(Settled(name=device.id, items=(engine.verify(device, deep=request.deep),)))


def read_cards(request: ProbeRequest, send: SendMessage) -> None:
    """Reads the cards from the vendors' tools and from Linux, one source after the other."""
    sources = {name: read for name, read in CARD_SOURCES.items() if name not in request.skip}
    send(Discovered(pending=tuple(sources)))
    for name, read in sources.items():
        send(ProbeStarted(name))
        send(Settled(name=name, items=tuple(read())))


def _take_over_stdout() -> BinaryIO:
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return channel


def _end_after(seconds: float | None) -> None:
    """A child that hangs must not outlive its parent for long, even where nothing else ends it."""
    if hasattr(signal, "alarm"):
        # The default action needs no Python, so it works while a driver call blocks the interpreter.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(seconds) if seconds is not None else 0)


# -- spares


def stand_by(link: Link, request: ServeRequest) -> tuple[Link, ProgramEngine | None]:
    """Load the engine, and wait. Returns in each copy, or where there are none at once, with what it is to serve.

    Raises `LinkClosed` in the spare itself when it is not wanted any longer.
    """
    # All that a worker needs is loaded here, once.
    from anygpu.workers import child_server  # noqa: F401

    assert request.spare_for is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = _threads()
    loaded = _load_quietly(request.spare_for) if request.quietly else catalogue.load(request.spare_for)
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
    """Makes what a copy shares with its spare its own: standard streams, the end with its parent, and its link."""
    from anygpu.workers.link import Link

    os.dup2(stdin, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    os.close(stdin)
    os.close(stderr)
    end_with_parent()
    return Link(socket.socket(fileno=link), takes_descriptors=True)


def _fork() -> int:
    """Copies this process: returns 0 in the copy, and the copy's number here."""
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
    """Waits for the end of a copy, and returns its exit code; `None` if it was collected before."""
    try:
        _, status = os.waitpid(process, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def _load_quietly(entry: catalogue.EngineEntry) -> Engine:
    """Loads the engine at low priority, on a thread of its own: most systems let no process raise a priority again."""
    outcome: list[Engine | BaseException] = []

    def work() -> None:
        try:
            lower_this_thread()
            outcome.append(catalogue.load(entry))
        except BaseException as error:  # noqa: BLE001 - raised below
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (loaded,) = outcome
    if isinstance(loaded, BaseException):
        raise loaded
    return loaded


if __name__ == "__main__":
    main()
