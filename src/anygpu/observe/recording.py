"""A recording of the calls of a process as a trace, for Perfetto and chrome://tracing.

Every call leaves a note in a buffer; whoever fills it writes all of it to the file, so memory does not grow. Callers
have a track each and devices have a track each. A track gets another row where calls overlap: of a device that several
threads use at once.

`Recording` is the `with` block: it hears calls and the events of workers, and samples memory. `CallWriter` draws calls:
on the track of their caller, on that of their device, and the arrow between both. `trace_file` has the format.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import deque
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from anygpu.base import events
from anygpu.base.interrupts import TryAcquire
from anygpu.base.units import bytes_from, readable_bytes
from anygpu.errors import InvalidOption
from anygpu.hardware import host
from anygpu.observe.statistics import add_parts
from anygpu.observe.trace_file import (
    CALLERS,
    DEVICES,
    ORDER,
    TraceFile,
    TraceSlice,
    TrackRows,
    arrow_events,
    counter_event,
    instant_event,
    phase_slices,
    slice_event,
    waiting_events,
)
from anygpu.receipts.notes import Failure, Note, Origin, Seen
from anygpu.receipts.receipt import Phases, Receipt
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
    """Writes the calls of this process to a file, inside of a `with` block.

    Calls are taken in on their own threads without a lock; one thread at a time writes. `InvalidOption` is raised for a
    limit below a megabyte. In a forked child nothing is recorded: the file is the parent's.
    """

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
        """Stop recording, write what is left, and complete the file.

        Raises the first `OSError` of writing unless the block raised, and warns with `TraceIncomplete` if calls were
        dropped.
        """
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
        """Takes in a call that has ended, and writes the buffer if it is full.

        It waits for the file only if another thread writes and `_MOST` calls are pending.
        """
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
        """Takes in the start, loss or end of a worker."""
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
        """Remembers the first error of the file, and writes no more events."""
        self._error = self._error or error
        if self._file is not None:
            self._file.full = True

    def _write_event(self, event: WorkerEvent, time: float) -> None:
        """Draws an event of a worker as a mark on the track of its device."""
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
        """The sampler's thread: the memory of this process and of open devices, written where it has changed."""
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


#: Calls of one device, or of one thread, that are drawn beside each other.
_ROWS = 64
#: A phase that is a smaller part of its call is not drawn.
_VISIBLE = 0.002
#: How long submitting a task seems to take: an arrow needs something to begin at.
_SUBMITTED = 500

_QUEUE = '"queue"'


class _Launch:
    """Tasks that were one launch, which their threads resolve one after the other."""

    __slots__ = ("end", "key", "receipt", "tasks")

    def __init__(self, key: tuple[object, ...], receipt: Receipt, end: int) -> None:
        self.key = key
        self.receipt = receipt
        self.end = end
        #: Where each was submitted, and how long it waited.
        self.tasks: list[_Task] = []


class _Task(NamedTuple):
    """One task of a launch: the thread that submitted it, when, and its time in the queue, in nanoseconds."""

    thread: int
    submitted: int
    queue: int


class Threads:
    """The threads that were seen, numbered: the system gives the number of a thread that has ended to another one.

    `names` has the name of each by its number. May be used by several threads.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[int, int] = {}
        self._adding = threading.Lock()

    def add(self, thread: threading.Thread) -> int:
        """A new number for a thread that calls for the first time."""
        return self._add(thread.ident or 0, thread.name)

    def find(self, identifier: int) -> int:
        """The number of the thread that the system knows, or knew last, by this identifier."""
        number = self._numbers.get(identifier)
        if number is not None:
            return number
        names = (each.name for each in threading.enumerate() if each.ident == identifier)
        return self._add(identifier, next(names, f"thread {identifier}"))

    def _add(self, identifier: int, name: str) -> int:
        with self._adding:
            number = self._numbers[identifier] = len(self.names)
            self.names.append(name)
            return number


class CallWriter:
    """Draws calls into a file, as far as there is room. One thread at a time uses it.

    Times are nanoseconds of `time.perf_counter`. The calls of one launch are drawn as one slice, so they wait until a
    thread tells of another call. `drawn` and `dropped` count calls, with their seconds.
    """

    def __init__(self, file: TraceFile, threads: Threads) -> None:
        self.drawn = self.dropped = 0
        self.drawn_seconds = self.dropped_seconds = 0.0
        self._file = file
        self._threads = threads
        self._tracks: dict[tuple[int, str | int, int], int | None] = {}
        self._next_track = {CALLERS: 1, DEVICES: 1}
        self._rows: dict[tuple[int, str | int], TrackRows] = {}
        self._numbers = count(1)
        self._launches: dict[int, _Launch] = {}
        #: The memory that the last call on each device has needed at once.
        self._peaks: dict[str, int] = {}

    def add(self, seen: Seen, now: float, thread: int, origin: Origin | None) -> None:
        """Draw a call that a thread has seen end `now`."""
        if self._launches and thread in self._launches and (origin is None or not isinstance(seen, Receipt)):
            self._flush(thread)
        if isinstance(seen, Receipt):
            if origin is not None:
                self._add_task(seen, round(now * 1e9), thread, origin)
            else:
                self._draw(seen, round(now * 1e9), thread, 1, [])
        elif isinstance(seen, Failure):
            self._draw_failure(seen, thread, origin)
        else:
            self._draw_note(seen, thread)

    def flush(self) -> None:
        """Draw what waits for more of its launch."""
        for thread in list(self._launches):
            self._flush(thread)

    # -- kinds of calls

    def _draw_note(self, note: Note, thread: int) -> None:
        """A call of the user's own function on the host, of which every time is known."""
        said, *times = note
        begin, ready, end = (round(each * 1e9) for each in times)
        text = self._file.text
        fit = self._fit(CALLERS, thread, begin, end, thread)
        seconds = times[2] - times[0]
        if fit is None or end <= begin:
            self._drop(1, seconds)
            return
        track, begin, _ = fit
        events = [
            slice_event(CALLERS, track, text(said.task), begin, end, f'"device":"numpy","reason":{text(said.reason)}')
        ]
        least = (end - begin) * _VISIBLE
        ready = min(max(ready, begin), end)
        if ready - begin > least:
            events.append(slice_event(CALLERS, track, '"plan"', begin, ready))
        if end - ready > least:
            events.append(slice_event(CALLERS, track, '"run"', ready, end))
            device = self._fit(DEVICES, "numpy", ready, end, thread)
            if device is not None:
                events.append(slice_event(DEVICES, device[0], text(said.task), device[1], end))
        self._put(events, 1, seconds)

    def _draw_failure(self, failure: Failure, thread: int, origin: Origin | None) -> None:
        """Draws a call that raised: a slice with a mark at its end, or time in the queue for a submitted task."""
        seconds = failure.end - failure.begin
        begin, end = round(failure.begin * 1e9), max(round(failure.end * 1e9), round(failure.begin * 1e9) + 1)
        text = self._file.text
        said = f'"device":{text(failure.device)},"error":{text(failure.error)}'
        if origin is not None:
            # It may have waited most of the time, beside others.
            number, name = next(self._numbers), text(f"{failure.task} failed")
            self._put(waiting_events(number, name, begin, end), 1, seconds)
            return
        fit = self._fit(CALLERS, thread, begin, end, thread)
        if fit is None:
            self._drop(1, seconds)
            return
        track, begin, _ = fit
        events = [
            slice_event(CALLERS, track, text(failure.task), begin, end, said),
            instant_event(CALLERS, track, text(f"raised {failure.error}"), end, said),
        ]
        self._put(events, 1, seconds)

    def _add_task(self, receipt: Receipt, end: int, thread: int, origin: Origin) -> None:
        """Adds a submitted task to the launch that its thread tells of; another launch is drawn first."""
        phases = receipt.phases
        # The calls of one launch have an equal share of it, to the last digit.
        key = (
            receipt.task,
            receipt.device,
            receipt.program,
            receipt.how,
            receipt.device_seconds,
            phases.compile,
            phases.write,
            phases.run,
            phases.read,
            phases.other,
        )
        launch = self._launches.get(thread)
        if launch is None or launch.key != key:
            self._flush(thread)
            launch = self._launches[thread] = _Launch(key, receipt, end)
        submitted = round(origin.time * 1e9)
        launch.tasks.append(_Task(self._threads.find(origin.thread), submitted, round(phases.queue * 1e9)))

    def _flush(self, thread: int) -> None:
        """Draws the launch that waits on a thread, without the time that its tasks were queued."""
        launch = self._launches.pop(thread, None)
        if launch is None:
            return
        own = msgspec.structs.replace(launch.receipt.phases, queue=0.0)
        receipt = msgspec.structs.replace(launch.receipt, phases=own)
        self._draw(receipt, launch.end, thread, len(launch.tasks), launch.tasks)

    # -- drawing

    def _draw(self, receipt: Receipt, end: int, thread: int, calls: int, tasks: list[_Task]) -> None:
        """Draws a receipt of `calls` calls that ended together: its phases, parts, failures, tasks and device.

        Nothing of it is drawn, and all calls count as dropped, if its thread has too many rows or the file is full.
        """
        text, phases = self._file.text, receipt.phases
        parts = _parts(phases, calls)
        begin = end - sum(length for _, length in parts)
        seconds = calls * phases.total + sum(task.queue for task in tasks) / 1e9
        fit = self._fit(CALLERS, thread, begin, max(end, begin + 1), thread)
        if fit is None:
            self._drop(calls, seconds)
            return
        track, begin, inner = fit
        name = receipt.task if calls == 1 else f"{receipt.task} × {calls}"
        events = [slice_event(CALLERS, track, text(name), begin, max(end, begin + 1), self._arguments(receipt, calls))]
        slices = phase_slices(parts, begin, end, inner)
        least = (end - begin) * _VISIBLE
        events += [
            slice_event(CALLERS, track, f'"{each.name}"', each.begin, each.end)
            for each in slices
            if each.end - each.begin > least
        ]
        if receipt.parts and inner is None:
            events += self._part_events(receipt, slices, track, calls)
        for failed in receipt.failures:
            said = f'"message":{text(failed.message or "")}'
            events.append(instant_event(CALLERS, track, text(f"{failed.device}: {failed.error}"), begin, said))
        for task in tasks:
            events += self._task_events(task, receipt, track, begin)
        events += self._device_events(receipt, slices, calls, name, thread)
        self._put(events, calls, seconds)

    def _part_events(self, receipt: Receipt, slices: list[TraceSlice], track: int, calls: int) -> list[str]:
        """The parts of its run, one after the other, inside of it: a receipt has their sums, not their times."""
        sums: dict[str, float] = {}
        add_parts(sums, receipt.parts)
        lengths = [(name, round(seconds * calls * 1e9)) for name, seconds in sums.items()]
        return [
            slice_event(CALLERS, track, self._file.text(part.name), part.begin, part.end)
            for run in slices
            if run.name == "run"
            for part in phase_slices(lengths, run.begin, run.end, None)
        ]

    def _task_events(self, task: _Task, receipt: Receipt, track: int, begin: int) -> list[str]:
        """Where it was submitted, the arrow from there, and how long it waited."""
        text, number = self._file.text, next(self._numbers)
        events = []
        submitter = self._track(CALLERS, task.thread, 0)
        if submitter is not None:
            name = text(f"submit {receipt.task}")
            events = [
                slice_event(CALLERS, submitter, name, task.submitted, task.submitted + _SUBMITTED),
                *arrow_events(number, (submitter, task.submitted), (track, begin)),
            ]
        if task.queue:
            events += waiting_events(number, _QUEUE, begin - task.queue, begin)
        return events

    def _device_events(
        self, receipt: Receipt, slices: list[TraceSlice], calls: int, name: str, thread: int
    ) -> list[str]:
        """The transfers and the kernels of a call, on the track of its device."""
        there = [each for each in slices if each.name in ("write", "run", "read")]
        if not there:
            return []
        fit = self._fit(DEVICES, receipt.device, there[0].begin, there[-1].end, thread)
        if fit is None:
            return []
        text, (track, earliest, _) = self._file.text, fit
        events = []
        if receipt.peak_bytes is not None and self._peaks.get(receipt.device) != receipt.peak_bytes:
            self._peaks[receipt.device] = receipt.peak_bytes
            name_of_peak = text(f"peak of each call on {receipt.device}")
            events.append(counter_event(name_of_peak, there[0].begin, receipt.peak_bytes))
        for part, start, end in there:
            begin = max(start, earliest)
            if end <= begin:
                continue
            if part == "run":
                kernels = "" if receipt.kernels is None else f'"kernels":{receipt.kernels * calls}'
                events.append(slice_event(DEVICES, track, text(name), begin, end, kernels))
                if receipt.device_seconds is not None:
                    length = min(round(receipt.device_seconds * calls * 1e9), end - begin)
                    if length > 0:
                        events.append(slice_event(DEVICES, track, '"by the device\'s clock"', begin, begin + length))
            else:
                moved = (receipt.bytes_to_device if part == "write" else receipt.bytes_to_host) * calls
                events.append(slice_event(DEVICES, track, f'"{part}"', begin, end, f'"bytes":{moved}'))
        return events

    def _arguments(self, receipt: Receipt, calls: int) -> str:
        """The facts of a receipt as the fields of a JSON object without braces; sums are those of all calls."""
        text = self._file.text
        said = [f'"device":{text(receipt.device)}', f'"reason":{text(receipt.reason)}']
        for name in ("bytes_to_device", "bytes_to_host", "bytes_skipped"):
            size: int = getattr(receipt, name)
            if size:
                said.append(f'"{name}":{size * calls}')
        if receipt.peak_bytes is not None:
            said.append(f'"peak_bytes":{receipt.peak_bytes}')
        if receipt.predicted_bytes is not None:
            said.append(f'"predicted_bytes":{receipt.predicted_bytes}')
        if receipt.predicted_seconds is not None:
            said.append(f'"predicted_seconds":{receipt.predicted_seconds * calls:.9f}')
        if receipt.driver is not None:
            said.append(f'"allocations":{receipt.driver.allocations},"compilations":{receipt.driver.compilations}')
        if receipt.how is not None:
            said.append(f'"how":{text(receipt.how)}')
        if receipt.host_operations:
            listed = ", ".join(f"{each.operation} at {each.line}" for each in receipt.host_operations)
            said.append(f'"on_the_host":{text(listed)}')
        return ",".join(said)

    # -- tracks

    def _fit(
        self, process: int, of: str | int, begin: int, end: int, thread: int
    ) -> tuple[int, int, tuple[int, int] | None] | None:
        """The track for a slice, where the slice begins, and what is inside of it; `None` if there is no room."""
        if self._file.full:
            return None
        rows = self._rows.get((process, of))
        if rows is None:
            rows = self._rows[process, of] = TrackRows(_ROWS)
        fit = rows.fit(begin, end, thread)
        if fit is None:
            return None
        track = self._track(process, of, fit.row)
        return None if track is None else (track, fit.begin, fit.inner)

    def _track(self, process: int, of: str | int, row: int) -> int | None:
        """The number of a track of callers or devices, named in the file when it is first used; `None` without room."""
        key = (process, of, row)
        if key not in self._tracks:
            number = self._next_track[process]
            self._next_track[process] += 1
            name = of if isinstance(of, str) else self._threads.names[of]
            shown = name if row == 0 else f"{name} ({row + 1})"
            self._tracks[key] = number if self._file.name_track(process, number, shown) else None
        return self._tracks[key]

    def device_track(self, device: str, row: int) -> int | None:
        return self._track(DEVICES, device, row)

    # -- what there was room for

    def _put(self, events: list[str], calls: int, seconds: float) -> None:
        """Writes the events of some calls, and counts the calls as drawn, or as dropped if there was no room."""
        if self._file.write(events):
            self.drawn += calls
            self.drawn_seconds += seconds
        else:
            self._drop(calls, seconds)

    def _drop(self, calls: int, seconds: float) -> None:
        self.dropped += calls
        self.dropped_seconds += seconds


def _parts(phases: Phases, calls: int) -> list[tuple[str, int]]:
    """The phases that took time, in the order they are drawn, in nanoseconds of all calls together."""
    named = [(name, round(getattr(phases, name) * calls * 1e9)) for name in ORDER]
    return [(name, length) for name, length in named if length > 0]
