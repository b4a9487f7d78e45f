"""A recording of the calls of a process as a trace, for Perfetto and chrome://tracing.

Every call leaves a note in a buffer; whoever fills it writes all of it to the file, so memory does not grow. Callers
have a track each and devices have a track each. A track gets another row where calls overlap: of a device that
several threads use at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anygpu.base import events
from anygpu.base.interrupts import TryAcquire
from anygpu.base.units import bytes_from, readable_bytes
from anygpu.errors import InvalidOption
from anygpu.hardware import host
from anygpu.observe.trace_calls import CallWriter, Threads
from anygpu.observe.trace_file import DEVICES, TraceFile, counter_event, instant_event
from anygpu.receipts.notes import Origin, Seen
from anygpu.workers.device_arrays.handle import WorkerEvent

#: The size of a file, unless the caller says otherwise. Viewers in a browser open files of some hundred megabytes.
LIMIT = 100_000_000
#: Calls that wait to be written; with more than the second number of them, calls wait for the file.
_BUFFERED, _MOST = 256, 16_384
#: How often the memory of devices is asked for, in seconds, and how long the end of a recording waits for an answer.
_PERIOD, _PATIENCE = 0.1, 1.0

_clock = time.perf_counter


class TraceIncomplete(UserWarning):
    """A trace has reached its limit: later calls are counted, and not drawn."""


class Recording:
    """Writes the calls of this process to a file, inside of a `with` block."""

    def __init__(self, path: str | os.PathLike[str], limit: int | str = LIMIT) -> None:
        self.path = Path(path)
        size = bytes_from(limit) if isinstance(limit, str) else limit
        if size is None or size < 1_000_000:
            raise InvalidOption(f'limit is a size of at least a megabyte, such as "100MB"; got {limit!r}.')
        self._limit = size
        self._process = os.getpid()
        self._pending: deque[tuple[Seen, float, int, Origin | None]] = deque()
        self._events: deque[tuple[WorkerEvent, float]] = deque()
        self._threads = Threads()
        self._local = threading.local()
        self._writing = threading.RLock()
        self._writer_thread: int | None = None
        self._over = threading.Event()
        self._sampler: threading.Thread | None = None
        self._file: TraceFile | None = None
        self._calls: CallWriter | None = None
        self._began = self._since = 0.0
        self._error: OSError | None = None

    # -- what has become of it

    @property
    def calls(self) -> int:
        """The calls that have been drawn."""
        return 0 if self._calls is None else self._calls.drawn

    @property
    def dropped(self) -> int:
        """The calls that found no room, and are only counted."""
        return 0 if self._calls is None else self._calls.dropped

    # -- its life

    def __enter__(self) -> Self:
        self._file = TraceFile(self.path, self._limit)
        self._calls = CallWriter(self._file, self._threads)
        self._began, self._since = _clock(), time.time()
        events.calls.append(self)
        events.workers.append(self._hear)
        self._sampler = threading.Thread(target=self._sample, name="anygpu-trace", daemon=True)
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording, write what is left, and complete the file."""
        if self in events.calls:
            events.calls.remove(self)
        if self._hear in events.workers:
            events.workers.remove(self._hear)
        if os.getpid() != self._process or self._file is None or self._calls is None:
            return
        self._over.set()
        assert self._sampler is not None
        self._sampler.join(_PATIENCE)
        self._write(wait=True)
        with self._writing:
            self._calls.flush()
            said = self._said(kind)
            self._file.close(said)
            self._file = None
        if self._error is not None and error is None:
            raise self._error
        if self.dropped and error is None:
            warnings.warn(
                f"{self.path} has reached its limit of {readable_bytes(self._limit)}: {self.dropped:,} of "
                f"{self.dropped + self.calls:,} calls are counted in it, and not drawn. Record less, or give it a "
                'higher limit, as in trace(path, limit="500MB").',
                TraceIncomplete,
                stacklevel=2,
            )

    def _said(self, kind: type[BaseException] | None) -> dict[str, Any]:
        """The description of a recording at the end of its file: its time, its calls, and what was dropped."""
        assert self._calls is not None
        return {
            "schema": "anygpu.trace/1",
            "process": self._process,
            "began": self._since,
            "seconds": _clock() - self._began,
            "calls": self._calls.drawn,
            "call_seconds": self._calls.drawn_seconds,
            "dropped_calls": self._calls.dropped,
            "dropped_seconds": self._calls.dropped_seconds,
            "limit_bytes": self._limit,
            "ended_by": None if kind is None else kind.__name__,
        }

    # -- what is heard

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        now = _clock()
        try:
            thread: int = self._local.number
        except AttributeError:
            thread = self._local.number = self._threads.add(threading.current_thread())
        pending = self._pending
        pending.append((seen, now, thread, origin))
        if len(pending) >= _BUFFERED:
            # A call may end in the middle of this on the same thread, by a signal or the garbage collector.
            self._write(wait=len(pending) > _MOST and self._writer_thread != threading.get_ident())

    def _hear(self, event: WorkerEvent) -> None:
        self._events.append((event, _clock()))

    def _write(self, *, wait: bool) -> None:
        """Write the pending calls to the file; without `wait`, only if no other thread does."""
        if os.getpid() != self._process:  # a fork: the file is the parent's
            self._pending.clear()
            return
        with TryAcquire(self._writing, None if wait else 0.0) as acquired:
            if not acquired:
                return
            self._writer_thread = threading.get_ident()
            try:
                if self._calls is None or self._file is None:
                    self._pending.clear()
                    return
                for _ in range(len(self._events)):
                    self._write_event(*self._events.popleft())
                for _ in range(len(self._pending)):
                    self._calls.add(*self._pending.popleft())
            except OSError as error:
                # A full disk is no reason for a call to fail. The end of the block says so.
                self._fail(error)
            finally:
                self._writer_thread = None

    def _fail(self, error: OSError) -> None:
        self._error = self._error or error
        if self._file is not None:
            self._file.full = True

    def _write_event(self, event: WorkerEvent, time: float) -> None:
        assert self._calls is not None
        assert self._file is not None
        track = self._calls.device_track(event.device, 0)
        if track is None:
            return
        text = self._file.text
        name = text(f"worker {event.what}")
        said = f'"generation":{event.generation},"seconds":{event.seconds:.6f},"why":{text(event.why)}'
        self._file.write([instant_event(DEVICES, track, name, round(time * 1e9), said)])

    # -- memory

    def _sample(self) -> None:
        """The memory of this process and of open devices, written where it has changed."""
        known: dict[str, int] = {}
        while True:
            now = {"memory of this process": host.resident_bytes()} | _memory_of_devices()
            at = round(_clock() * 1e9)
            with self._writing:
                if self._file is None or (self._over.is_set() and known):
                    return
                text = self._file.text
                changed = [counter_event(text(name), at, size) for name, size in now.items() if known.get(name) != size]
                if changed and not self._file.full:
                    try:
                        self._file.write(changed)
                    except OSError as error:
                        self._fail(error)
            known |= now
            if self._over.wait(_PERIOD):
                return


def _memory_of_devices() -> dict[str, int]:
    """Bytes of arrays on open devices, where the engine counts it. A busy device answers when it is free."""
    from anygpu.errors import AnyGPUError

    # Not imported for this: a process whose calls are few has none.
    loaded = sys.modules.get("anygpu.workers.device_arrays.registry")
    found: dict[str, int] = {}
    for worker in loaded.registry.open_workers() if loaded is not None and hasattr(loaded, "registry") else ():
        try:
            used = worker.memory().in_use
        except AnyGPUError:  # it has died, or is closed
            continue
        if used is not None:
            name = f"memory of {worker.device.id}"
            found[name] = found.get(name, 0) + used
    return found
