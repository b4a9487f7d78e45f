"""Computes the chunks of a recorded stream: the program of a chunk, its execution, and its retries.

On NumPy a chunk runs as the user's own function, where that is certain to compute the same. `StreamDevices` says where
a chunk runs, and the state machine of tasks what follows a failure.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.structure import flatten
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.interrupts import is_of_a_handler
from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.calls.executing import Executing
from anygpu.engines.numpy import lowering
from anygpu.errors import AnyGPUError, InvalidOption, Unsupported, text_of
from anygpu.placement.machine import lacking
from anygpu.placement.plan.chunking import corrected, memory_needed
from anygpu.placement.planner import Planner
from anygpu.placement.retry import LockedTask, recover
from anygpu.placement.strategies import merge_runs
from anygpu.placement.values import narrowing
from anygpu.program.graph import Program
from anygpu.receipts.receipt import Attempt as FailedAttempt
from anygpu.receipts.receipt import HostOperation, Phases, ran_on_host
from anygpu.runtime.streams.devices import ChunkCheck, Stream, StreamDevices, returned_by
from anygpu.runtime.streams.sources import span_of
from anygpu.workers.overlap import WORTH_OVERLAPPING
from anygpu.workers.task_lifecycle import Requeue, Started, Task
from anygpu.workers.worker import Argument, Handle, Ran, Worker

# -- uploads ahead of their chunk


class ChunkKey(NamedTuple):
    """A chunk, and where it runs."""

    device: str
    start: int
    stop: int


class ChunkAttempt:
    """The first attempt to run a chunk, on a thread of its own."""

    def __init__(
        self,
        key: ChunkKey,
        piece: Program,
        given: list[Any],
        run: Callable[[], Ran],
        clock: Callable[[], float],
        ended: Callable[[], None],
    ) -> None:
        """Starts `run` on a daemon thread. `ended` is called there when it is over, whether it has raised or not."""
        self.key = key
        self.piece = piece
        self.given = given
        self.began = clock()
        self._ran: Ran | None = None
        self._error: BaseException | None = None

        def attempt() -> None:
            try:
                self._ran = run()
            except BaseException as error:  # noqa: BLE001 - raised where the chunk is computed
                self._error = error
            ended()

        self._thread = threading.Thread(target=attempt, name="anygpu-stream-ahead", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._ran is not None or self._error is not None

    def result(self) -> Ran:
        """Wait for the upload, and return its result."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._ran is not None, "it is over"
        return self._ran

    def leave(self) -> None:
        """Wait until nothing of it runs any more; what came of it is of no use."""
        self._thread.join()


def visible(phases: Phases, took: float) -> Phases:
    """The phases of an overlapped run as they were waited for: in `took` seconds, of which computing comes first."""
    run = min(phases.run + phases.compile, took)
    compile_ = min(phases.compile, run)
    rest = took - run
    moving = phases.write + phases.read + phases.other
    share = min(1.0, rest / moving) if moving > 0 else 0.0
    return Phases(
        compile=compile_,
        queue=max(0.0, rest - moving * share),
        write=phases.write * share,
        run=run - compile_,
        read=phases.read * share,
        other=phases.other * share,
    )


# -- chunks


#: An array that every chunk needs whole stays on the device if it has at least this many bytes.
_STAYS = 1 << 16


class FinishedSpan(NamedTuple):
    """A span of the results."""

    results: list[HostArray]
    start: int
    stop: int


class ChunkExecutor:
    """The stage that computes."""

    def __init__(self, stream: Stream, planner: Planner, may_open: Callable[[], bool]) -> None:
        """Makes the computing stage of one stream; its totals are read when the stream is over.

        `_resident` has the arrays that stay on a device from chunk to chunk, by device, its generation and input.
        `correction` is the measured peak memory by the predicted one, and only ever grows.
        """
        self._stream = stream
        self._planner = planner
        self._options = stream.options
        self._function = stream.function if stream.options.precision is None else narrowing(stream.function)
        #: By length of a chunk: the program of the user's function for it.
        self._host_programs: LRUCache[Program | None] = LRUCache(8)
        self._check = ChunkCheck(planner, stream.function, stream.task, stream.options)
        self.devices = StreamDevices(stream, planner, self._check, may_open)
        #: Arrays that stay on a device, by device, generation of its worker and position.
        self._resident: dict[tuple[str, int, int], Handle] = {}
        self._total: Ran | None = None
        self._told: dict[HostOperation, None] = {}
        self.attempts: list[FailedAttempt] = []
        #: The ratio of needed to predicted memory.
        self.correction = 1.0
        #: By length of a chunk, what was predicted.
        self._predicted_bytes: dict[int, int] = {}
        #: How long chunks may be after what has happened; `None` while nothing has.
        self.most: int | None = None
        #: Looking for devices, and opening them.
        self.seconds_planning = 0.0
        self.seconds_transferring = 0.0
        self.seconds_computing = 0.0
        #: Seconds of transfers that overlapped with computation.
        self.seconds_overlapped = 0.0
        self.device_bytes = 0
        #: By the start of a chunk: its first attempt, begun while the chunk before it was computed.
        self._attempts: dict[int, ChunkAttempt] = {}
        #: When the last chunk was there.
        self._last_end = 0.0

    # -- memory

    def bytes_for(self, length: int) -> int:
        """Predicted for one chunk where it runs, its inputs and results included."""
        if length not in self._predicted_bytes:
            if len(self._predicted_bytes) > 64:
                self._predicted_bytes.clear()
            self._predicted_bytes[length] = memory_needed(self._stream.piece(0, length))
        return int(self._predicted_bytes[length] * self.correction) + 1

    # -- chunks

    def begin(self, chunks: Sequence[HostArray], start: int, stop: int, ended: Callable[[], None]) -> None:
        """Give the chunk to its device now, if that can transfer while it computes another; `ended` is called then."""
        if start in self._attempts or not self._may_begin(stop - start):
            return
        name = self.devices.choose(stop - start)
        if name == "numpy" or name not in self.devices.done or not self._planner.places.overlaps(name):
            return
        piece, given = self._stream.piece(start, stop), self._stream.given(chunks, start, stop)
        if sum(spec.nbytes for spec in (*piece.inputs, *piece.results)) < WORTH_OVERLAPPING:
            return
        with contextlib.suppress(AnyGPUError):  # such as a device that is gone: it is said when the chunk is computed
            worker, arguments = self._arguments(name, given)
            run = partial(worker.run, piece, arguments, timeout=self._options.timeout)
            key = ChunkKey(name, start, stop)
            self._attempts[start] = ChunkAttempt(key, piece, given, run, self._planner.clock, ended)

    def _may_begin(self, length: int) -> bool:
        return self.most is None or length <= self.most

    def is_ready(self, start: int) -> bool:
        """Whether its first attempt is over, or was not begun."""
        attempt = self._attempts.get(start)
        return attempt is None or attempt.done

    def leave(self) -> None:
        """Wait for attempts that are not wanted any more."""
        while self._attempts:
            self._attempts.popitem()[1].leave()

    def compute(self, chunks: Sequence[HostArray], start: int, stop: int) -> Iterator[FinishedSpan]:
        """The results of a chunk, in one span or, if memory ran out, in several."""
        left = deque([(start, stop)])
        task: LockedTask | None = None
        attempt = self._attempts.pop(start, None)
        while left:
            begin, end = left.popleft()
            if self.most is not None and end - begin > self.most:
                # It was read before memory ran out.
                left.appendleft((begin + self.most, end))
                end, task = begin + self.most, None
            part = [self._part_of(chunk, number, begin - start, end - start) for number, chunk in enumerate(chunks)]
            before = self._planner.clock()
            if attempt is not None and attempt.key != (attempt.key.device, begin, end):
                attempt.leave()  # memory ran out since it began, and the chunk is cut
                attempt = None
            if attempt is not None:
                name = attempt.key.device
            else:
                name = self.devices.choose(end - begin) if task is None else next(iter(task.task.devices))
            failure: AnyGPUError | None = None
            self.seconds_planning += self._planner.clock() - before
            before = self._planner.clock()
            try:
                results = self._run(name, part, begin, end, attempt)
            except AnyGPUError as error:
                # The frames of the failed attempt hold its arrays, which must be freed before a retry.
                failure = error.with_traceback(None)
            attempt = None
            if failure is None:
                task = None
                yield FinishedSpan(results, begin, end)
                del results
                continue
            spent = Phases(other=self._planner.clock() - before)
            self.attempts.append(
                FailedAttempt(device=name, phases=spent, error=type(failure).__name__, message=text_of(failure))
            )
            left.appendleft((begin, end))
            task = self._after_failure(task, name, failure, end - begin)

    def _after_failure(
        self, task: LockedTask | None, name: str, failure: AnyGPUError, length: int
    ) -> LockedTask | None:
        """The task of the chunk if it is to run again on that device; else the device is excluded."""
        task = task or LockedTask(Task(name=self._stream.task, devices=(name,)))
        task.tell(Started(name, self._planner.places.generation(name) or 0))

        def halve() -> None:
            # Once for every attempt that lacked memory.
            self.most = max(1, length >> max(1, task.task.memory_retries))

        can_split = length > 1 and self._stream.way is not None
        following = recover(
            task, name, failure, self._planner, self._options, split_further=halve if can_split else None
        )
        if isinstance(following, Requeue):
            return task
        self.devices.exclude(name, failure)
        return None

    def _part_of(self, chunk: HostArray, number: int, start: int, stop: int) -> HostArray:
        position, way = self._stream.inputs[number], self._stream.way
        axis = way.inputs[position] if position is not None and way is not None else None
        return chunk if axis is None else chunk[span_of(axis, start, stop)]

    def _run(
        self, name: str, chunks: Sequence[HostArray], start: int, stop: int, attempt: ChunkAttempt | None
    ) -> list[HostArray]:
        """Run one chunk on a device, and record what it took.

        NumPy runs the function itself where that gives the same.
        """
        stream, planner, devices = self._stream, self._planner, self.devices
        piece = stream.piece(start, stop) if attempt is None else attempt.piece
        begin = planner.clock()
        if name == "numpy" and self._is_equivalent(piece, stop - start):
            results = self._on_host(chunks, piece)
            ran = _host_run(results, planner.clock() - begin)
        else:
            if name != "numpy" and name not in devices.done:
                # Which opens the device.
                lack = lacking(planner.worker_of(self._options), name, piece)
                self.seconds_planning += planner.clock() - begin
                begin = planner.clock()
                if lack is not None:
                    message = f"{name} cannot run the whole program."
                    raise Unsupported("the whole program", name, instead=lack, message=message)
            given = stream.given(chunks, start, stop) if attempt is None else attempt.given
            with planner.using(name, (devices.rate(name) or 0.0) * (stop - start)):
                if attempt is None:
                    ran = self._on_device(name, piece, given)
                else:
                    begin = max(attempt.began, self._last_end)
                    ran = attempt.result()
            results = ran.results
            if name != "numpy":
                ended = planner.clock()
                results = self._compared(name, piece, chunks, given, ran, stop - start)
                begin += planner.clock() - ended  # no part of what the device takes
            self._learn_memory(piece, ran)
            self._tell(ran)
        self._last_end = planner.clock()
        took = self._last_end - begin - ran.phases.compile
        planner.add_seconds(took)
        devices.measured(name, stop - start, took)
        self._count(ran, took)
        return results

    def _compared(
        self, name: str, piece: Program, chunks: Sequence[HostArray], given: list[Any], ran: Ran, length: int
    ) -> list[HostArray]:
        """The device's results, or NumPy's where the device has to be compared with it."""
        generation = self._planner.worker(name, self._options).generation
        rates = (self.devices.rate("numpy"), self.devices.rate(name))
        if not self._check.is_due(name, generation, length, rates):
            return ran.results
        if self._is_equivalent(piece, length):
            expected = self._on_host(chunks, piece)
        else:
            expected = [np.array(each) for each in lowering.run(piece, given)]
        why = self._check.compare(name, generation, piece, length, given, expected, ran.results)
        if why is not None:
            self.devices.distrust(name, why)
        return expected

    def _on_device(self, name: str, piece: Program, given: list[Any]) -> Ran:
        worker, arguments = self._arguments(name, given)
        return worker.run(piece, arguments, timeout=self._options.timeout)

    def _arguments(self, name: str, given: list[Any]) -> tuple[Worker, list[Argument]]:
        """The worker, and the arguments with those that stay on its device."""
        worker = self._planner.worker(name, self._options)
        arguments: list[Argument] = list(given)
        if name != "numpy":
            for position in self._stream.whole:
                if arguments[position].nbytes >= _STAYS:  # type: ignore[union-attr]
                    key = (name, worker.generation, position)
                    if key not in self._resident:
                        self._resident[key] = worker.upload(given[position])
                    arguments[position] = self._resident[key]
        return worker, arguments

    # -- on the host

    def _is_equivalent(self, piece: Program, length: int) -> bool:
        """Whether the user's function, called with a chunk, computes what the program of that chunk does.

        It does not if it uses the length of the whole, or where it is in it.
        """
        known = self._host_programs.get(length, lambda: self._host_program(length))
        return known is not None and known.key == piece.key

    def _host_program(self, length: int) -> Program | None:
        """Returns the program of one chunk as the function itself computes it; `None` if it cannot be told.

        That is so if an input is not a part of a source, the function cannot be traced or uses other arrays besides, or
        its return value is not just the results in order.
        """
        stream = self._stream
        shapes: list[HostArray] = []
        for number, position in enumerate(stream.inputs):
            if position is None:
                return None
            whole = stream.values[position]
            shapes.append(self._part_of(whole, number, 0, length))
        try:
            with Executing():
                found = trace(stream.function, tuple(shapes), {}, precision=self._options.precision, views=False)
                if isinstance(found, Traced) and self._uses_the_same(found, shapes):
                    is_plain = returned_by(found) == list(range(len(found.program.outputs)))
                    return found.program if is_plain else None
        except Exception as error:
            if is_of_a_handler(error):
                raise
            # Whatever it raises for a chunk, the program of the whole is right.
        return None

    def _uses_the_same(self, found: Traced, shapes: Sequence[HostArray]) -> bool:
        """Whether what it takes beside its arguments is what the whole takes."""
        values = found.inputs(self._stream.function, tuple(shapes), {})
        if values is None or len(values) != len(self._stream.values):
            return False
        used = {position for position in self._stream.inputs if position is not None}
        return all(
            values[n] is other or _same_bytes(values[n], other)
            for n, other in enumerate(self._stream.values)
            if n not in used
        )

    def _on_host(self, chunks: Sequence[HostArray], piece: Program) -> list[HostArray]:
        """Calls the user's function with one chunk, and returns its arrays. What shares the chunk's memory is copied.

        Raises `InvalidOption` if shapes or dtypes are others than those that were traced.
        """
        with Executing():
            value = self._function(*chunks)
        leaves = [np.asarray(each) for each in flatten(value)[0]]
        if [(each.shape, each.dtype.name) for each in leaves] != [(s.shape, s.dtype) for s in piece.results]:
            raise InvalidOption(f"{self._stream.task} returned something else for a chunk than when it was traced.")
        # The memory of a chunk is used again, so nothing may stay in it.
        return [each.copy() if any(np.may_share_memory(each, chunk) for chunk in chunks) else each for each in leaves]

    # -- afterwards

    def _learn_memory(self, piece: Program, ran: Ran) -> None:
        """Corrects predictions of memory by the peak that a device has measured."""
        if ran.peak_bytes is not None:
            self.device_bytes = max(self.device_bytes, ran.peak_bytes)
            predicted = int(memory_needed(piece) * self.correction) + 1
            self.correction = max(self.correction, corrected(self.correction, predicted, ran.peak_bytes))

    def _tell(self, ran: Ran) -> None:
        """Warns of operations that ran on the host: of each once for the whole stream."""
        for operation in ran.host_operations:
            if operation not in self._told:
                self._told[operation] = None
                if self._options.fallback == "warn":
                    ran_on_host(operation)

    def _count(self, ran: Ran, took: float) -> None:
        """Adds what one chunk took to the totals.

        Transfers that were hidden behind computing are counted as overlapped.
        """
        phases = ran.phases
        self.seconds_computing += phases.run + phases.compile
        moving = phases.total - phases.run - phases.compile
        if ran.overlapped:
            # It waited for its turn while another chunk was computed, and moved meanwhile.
            moving -= phases.queue
            phases = visible(phases, took + phases.compile)
            self.seconds_overlapped += max(0.0, moving - (phases.total - phases.run - phases.compile))
        self.seconds_transferring += moving
        ran = ran._replace(results=[], host_operations=(), phases=phases)
        before = self._total
        self._total = ran if before is None else merge_runs([before, ran], [])

    @property
    def total(self) -> Ran:
        """All chunks as one."""
        return self._total if self._total is not None else _host_run([], 0.0)

    @property
    def host_operations(self) -> tuple[HostOperation, ...]:
        return tuple(self._told)


def _host_run(results: list[HostArray], seconds: float) -> Ran:
    why = "the function ran untraced, in Python, where nothing is counted"
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), why)
    return Ran(list(results), Phases(run=seconds), 0, 0, 0, None, None, None, None, (), unknown)


def _same_bytes(one: HostArray, other: HostArray) -> bool:
    """Numbers that are equal need not be the same: 0.0 and -0.0 are not."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype.hasobject:
        return False
    here, there = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(here, there))
