"""Calls as events of a trace: on the track of their caller, on that of their device, and the arrow between both."""

from __future__ import annotations

import threading
from itertools import count
from typing import NamedTuple

import msgspec

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
    thread: int
    submitted: int
    queue: int


class Threads:
    """The threads that were seen, numbered: the system gives the number of a thread that has ended to another one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[int, int] = {}
        self._adding = threading.Lock()

    def add(self, thread: threading.Thread) -> int:
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
    """Draws calls into a file, as far as there is room. One thread at a time uses it."""

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
        launch = self._launches.pop(thread, None)
        if launch is None:
            return
        own = msgspec.structs.replace(launch.receipt.phases, queue=0.0)
        receipt = msgspec.structs.replace(launch.receipt, phases=own)
        self._draw(receipt, launch.end, thread, len(launch.tasks), launch.tasks)

    # -- drawing

    def _draw(self, receipt: Receipt, end: int, thread: int, calls: int, tasks: list[_Task]) -> None:
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
        if self._file.write(events):
            self.drawn += calls
            self.drawn_seconds += seconds
        else:
            self._drop(calls, seconds)

    def _drop(self, calls: int, seconds: float) -> None:
        self.dropped += calls
        self.dropped_seconds += seconds


def _parts(phases: Phases, calls: int) -> list[tuple[str, int]]:
    named = [(name, round(getattr(phases, name) * calls * 1e9)) for name in ORDER]
    return [(name, length) for name, length in named if length > 0]
