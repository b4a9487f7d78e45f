"""`stream`: a function of arrays that are larger than memory, from where they are to where its results shall be.

The function is recorded for the whole arrays, without any of their values. If the program proves that one span of an
axis can be computed without the others, it is cut there. While one chunk is computed the next one is read, and the one
before is written. Chunks are as long as the memory allows, up to a size beyond which longer ones are no faster.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.array.core.recording import normal_axis
from anygpu.base.typing import HostArray
from anygpu.base.units import bytes_from
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import CallOptions, Options, options
from anygpu.errors import InvalidOption, OverBudget
from anygpu.hardware import host
from anygpu.hardware.host import resident_bytes
from anygpu.placement.place_call import receipt_of
from anygpu.placement.planner import Planner, default
from anygpu.receipts.notes import publish
from anygpu.receipts.receipt import Phases
from anygpu.runtime.future import Progress, showing
from anygpu.runtime.streams.devices import Stream, recorded, stand_in
from anygpu.runtime.streams.executor import ChunkExecutor, FinishedSpan
from anygpu.runtime.streams.items import Items
from anygpu.runtime.streams.pipeline import (
    CHUNK_BYTES,
    IN_FLIGHT,
    LEAST_BYTES,
    MOST_IN_FLIGHT,
    NOT_PREDICTED,
    USABLE,
    Channel,
    Clock,
    StageSeconds,
    StageState,
    Streamed,
    bytes_of_a_step,
    overlap,
)
from anygpu.runtime.streams.resuming import (
    StreamRecord,
    check_apart,
    digest_of,
    earlier_record,
    in_place,
    record_path_of,
    write_record,
)
from anygpu.runtime.streams.sinks import Collected, StreamSink, ToFile, sink_of
from anygpu.runtime.streams.sources import StreamSource, is_one_tensor, shortened, source_of

#: The default memory limit: the lesser of this, and a share of the free memory.
_MEMORY, _OF_FREE = 1 << 30, 0.25
#: Once libraries take more than this share of the limit, no further device is opened.
_FOR_LIBRARIES = 0.4
#: Seconds between two records of a resumable stream.
_RECORD_SECONDS = 1.0


def stream(
    function: Callable[..., Any],
    source: Any,
    sink: Any = None,
    *,
    axis: int = 0,
    memory: int | str | None = None,
    progress: Progress = False,
    resume: bool = False,
    per_chunk: bool = False,
    given: CallOptions | None = None,
    planner: Callable[[], Planner] = default,
) -> Streamed:
    """See `anygpu.stream`; `given` are the options of `offload`."""
    function, wanted = _function_and_options(function, given or {})
    budget = _budget(memory)
    task = getattr(function, "__qualname__", None) or repr(function)
    several = isinstance(source, tuple) and not is_one_tensor(source)
    with contextlib.ExitStack() as opened:
        sources: list[StreamSource] = []
        for each in source if several else (source,):
            found = source_of(each)
            if found is None:
                if several:
                    raise InvalidOption(
                        "several sources are read together: each has to be an array, or the path of one."
                    )
                return Items(task, function, wanted, planner, sink, resume=resume).run(source, axis, progress)
            opened.callback(found.close)
            sources.append(found)
        axis, length = _along(sources, axis)
        if wanted.engine is not None and not per_chunk:
            raise InvalidOption(f"a function of {wanted.engine}'s own arrays is streamed with per_chunk=True.")
        if per_chunk:
            items = Items(task, function, wanted, planner, sink, resume=resume)
            return items.chunks(sources, axis, length, budget, progress)
        shapes = [stand_in(each.shape, each.dtype) for each in sources]
        begin = time.perf_counter()
        work = recorded(task, function, shapes, axis, length, wanted)
        traced = time.perf_counter() - begin
        run = _Run(work, sources, axis, budget, planner())
        return run.run(sink, progress, resume=resume, traced=traced)


class _Chunk(NamedTuple):
    parts: list[HostArray]
    start: int
    stop: int
    #: Its buffers, which are reused.
    buffers: list[HostArray]


class _Ahead:
    """Gives a chunk to its device while another one is computed there."""

    def __init__(self, executor: ChunkExecutor, may_begin: Callable[[], bool]) -> None:
        self._executor = executor
        self._may_begin = may_begin

    def begin(self, chunk: _Chunk, ended: Callable[[], None]) -> None:
        if self._may_begin():
            self._executor.begin(chunk.parts, chunk.start, chunk.stop, ended)

    def is_ready(self, chunk: _Chunk) -> bool:
        return self._executor.is_ready(chunk.start)


class _Run:
    """A stream of a traced function."""

    def __init__(self, work: Stream, sources: list[StreamSource], axis: int, budget: int, planner: Planner) -> None:
        """Plans a stream within `budget` bytes: the length of its chunks, and how many of them are in flight.

        The longest chunk that fits is taken first. What is left is used for more chunks between the stages, or for one
        that is on its way to the device while another is computed there.
        """
        self._work = work
        self._sources = sources
        self._axis = axis
        self._budget = budget
        self._executor = ChunkExecutor(work, planner, self._may_open)
        self._rows_in = sum(bytes_of_a_step(each, axis) for each in sources if not each.in_memory)
        self._rows_out = sum(
            spec.nbytes // max(1, spec.shape[cut])
            for spec, cut in zip(work.program.results, work.axes, strict=True)
            if cut is not None
        )
        self._returned = work.returned
        self._resident, self._with_children = resident_bytes(), resident_bytes(children=True)
        self._length = self._longest()
        usable = int(budget * USABLE)
        more = [n for n in range(IN_FLIGHT, MOST_IN_FLIGHT + 1) if self._bytes_at(self._length, n) <= usable]
        self._flying = max(more, default=IN_FLIGHT)
        #: Whether there is memory to give a chunk to its device while another one is computed there.
        self._may_go_ahead = False
        # One is computed, one is on its way there, one is read, and one is between.
        beside = [n for n in range(4, self._flying + 1) if self._bytes_ahead(self._length, n) <= usable]
        if beside:
            self._may_go_ahead, self._flying = True, max(beside)
        self._clock = Clock()
        self._chunks = 0
        self._longest_chunk = 0

    def _may_open(self) -> bool:
        """Whether there is memory to open another device: libraries take hundreds of megabytes."""
        return resident_bytes(children=True) - self._with_children < self._budget * _FOR_LIBRARIES

    # -- the length of chunks

    def _bytes_at(self, length: int, flying: int = IN_FLIGHT) -> int:
        """Memory for chunks of this length: all in flight, and computing one."""
        # A worker in a child has its own copy of arguments and results, in shared memory.
        shared = (self._rows_in + self._rows_out) * length
        return flying * (self._rows_in + self._rows_out) * length + shared + self._executor.bytes_for(length)

    def _bytes_ahead(self, length: int, flying: int) -> int:
        """Returns the memory as `_bytes_at` does, with another chunk on its way to the device at the same time."""
        shared = (self._rows_in + self._rows_out) * length
        return self._bytes_at(length, flying) + shared + self._executor.bytes_for(length)

    def _longest(self) -> int:
        """The rows of a chunk: as many as fit into the memory with all that is in flight, up to `CHUNK_BYTES`."""
        usable = int(self._budget * USABLE)
        length = max(1, self._work.length)
        if self._work.way is None:
            self._require(length, usable)
            return length
        row = sum(bytes_of_a_step(each, self._axis) for each in self._sources) + self._rows_out
        length = min(length, max(1, CHUNK_BYTES // max(1, row)))
        while length > 1 and self._bytes_at(length) > usable:
            length = max(1, min(length // 2, length * usable // self._bytes_at(length)))
        self._require(length, usable)
        grains = [each.grain[self._axis] for each in self._sources if each.grain is not None]
        if grains and length > max(grains):
            length = length // max(grains) * max(grains)
        return length

    def _require(self, length: int, usable: int) -> None:
        if self._bytes_at(length) > usable:
            raise OverBudget("the host", int(self._bytes_at(length) / USABLE), self._budget)

    def _shorten(self) -> None:
        """Adapt the length of chunks to the memory that was used."""
        if self._work.way is None:
            return
        if self._executor.most is not None:
            self._length = min(self._length, self._executor.most)
        if self._may_go_ahead and self._bytes_ahead(self._length, self._flying) > self._budget:
            self._may_go_ahead = False
        if self._bytes_at(self._length, self._flying) > self._budget and self._length > 1:
            self._length = max(1, self._length // 2)
        grown = resident_bytes() - self._resident
        if grown > self._budget and self._length * (self._rows_in + self._rows_out) > LEAST_BYTES:
            self._length = max(1, self._length // 2)

    # -- stages

    def run(self, sink: Any, progress: Progress, *, resume: bool, traced: float) -> Streamed:
        """Run the stream, and check at its end that no source has changed meanwhile."""
        work = self._work
        sinks = self._sinks(sink, resume=resume)
        record = self._record(sinks) if resume else None
        before = [None if in_place(sinks, each) else each.identity() for each in self._sources]
        try:
            files = [each for each in sinks if isinstance(each, ToFile)]
            record_path = record_path_of(files[0].path) if record is not None else None
            if record is not None and record_path is not None:
                record = self._verified(
                    earlier_record(record, [each.partial for each in files], record_path), record, files
                )
            for each, array in zip(sinks, self._returned, strict=True):
                each.begin(array.spec, array.axis, self._length)
            # Results that the caller collects in memory do not count.
            self._resident += sum(
                array.spec.nbytes
                for each, array in zip(sinks, self._returned, strict=True)
                if isinstance(each, Collected)
            )
            self._clock.begin = time.perf_counter()
            with showing(progress, work.task, work.length) as advance:
                self._go(sinks, record, record_path, advance)
            for source, identity in zip(self._sources, before, strict=True):
                if identity is not None and source.identity() != identity:
                    raise InvalidOption(f"{identity.path} was written to while it was read. Run the stream again.")
            values = [each.finish() for each in sinks]
            if record_path is not None:
                record_path.unlink(missing_ok=True)
        finally:
            self._executor.devices.finish()
            for each in sinks:
                each.abandon()
        value = self._value(sink, values)
        return self._streamed(value, traced)

    def _read(self, start: int, stop: int, memory: list[HostArray]) -> list[HostArray]:
        """The rows `start` to `stop` of every source, in these buffers where they fit."""
        return [
            each.read(self._axis, start, stop, self._room(each, room, stop - start))
            for each, room in zip(self._sources, memory, strict=True)
        ]

    def _go(
        self, sinks: list[StreamSink], record: StreamRecord | None, record_path: Any, advance: Callable[[int], None]
    ) -> None:
        """Read, compute and write all chunks, and call `advance` with the rows that were written."""
        work, stages, clock = self._work, StageState(), self._clock
        buffers = [[self._buffer(each) for each in self._sources] for _ in range(self._flying)]
        free: Channel[list[HostArray]] = Channel(stages, self._flying, buffers)
        begin, length = record.done if record is not None else 0, work.length
        first = begin == 0
        recorded_at = float("-inf")

        def read() -> _Chunk | None:
            nonlocal begin
            if begin >= length and not (length == 0 and self._chunks == 0 and begin == 0):
                return None
            memory = free.take()
            start, stop = begin, min(begin + self._length, length)
            begin = max(stop, 1) if length == 0 else stop
            with clock.adding_to("read"):
                return _Chunk(self._read(start, stop, memory), start, stop, memory)

        def compute(chunk: _Chunk) -> Iterator[FinishedSpan]:
            yield from self._executor.compute(chunk.parts, chunk.start, chunk.stop)
            self._chunks += 1
            self._longest_chunk = max(self._longest_chunk, chunk.stop - chunk.start)
            self._shorten()
            free.put(chunk.buffers)

        def write(finished: FinishedSpan) -> None:
            """Write one span to all sinks, and the record for resuming after it."""
            nonlocal first, recorded_at, record
            with clock.adding_to("write"):
                written = [
                    (sink, finished.results[array.number])
                    for sink, array in zip(sinks, self._returned, strict=True)
                    if array.axis is not None or first
                ]
                if record is not None:
                    piece = (finished.start, finished.stop, digest_of([values for _, values in written]))
                    record = msgspec.structs.replace(record, done=finished.stop, pieces=(*record.pieces, piece))
                for sink, values in written:
                    sink.write(values, finished.start, finished.stop)
                first = False
                now = time.perf_counter()
                if record is not None and (now - recorded_at > _RECORD_SECONDS or finished.stop >= length):
                    for each in sinks:
                        if isinstance(each, ToFile):
                            each.sync()
                    write_record(record, record_path)
                    recorded_at = now
            advance(finished.stop)

        ahead = _Ahead(self._executor, lambda: self._may_go_ahead) if self._may_go_ahead else None
        try:
            overlap(stages, read, compute, write, between=self._flying - 2, ahead=ahead)
        except Exception:
            self._executor.leave()
            raise

    def _buffer(self, source: StreamSource) -> HostArray:
        """A buffer for the longest chunk; sources in memory need none."""
        if source.in_memory:
            return np.empty(0, np.uint8)
        return np.empty(bytes_of_a_step(source, self._axis) * self._length, np.uint8)

    def _room(self, source: StreamSource, buffer: HostArray, length: int) -> HostArray | None:
        """Returns the part of a buffer that a chunk of this length fills, as a view of the source's dtype and shape."""
        if source.in_memory:
            return None
        shape = shortened(source.shape, self._axis, length)
        flat = buffer[: math.prod(shape) * source.dtype.itemsize].view(source.dtype)
        return flat.reshape(shape)

    # -- ends

    def _sinks(self, sink: Any, *, resume: bool) -> list[StreamSink]:
        """Makes one sink for each returned array, and checks that none overwrites what has yet to be read."""
        work = self._work
        wanted = len(self._returned)
        given = [None] * wanted if sink is None else list(sink) if isinstance(sink, tuple | list) else [sink]
        if len(given) != wanted:
            raise InvalidOption(
                f"{work.task} returns {wanted} arrays, but {len(given)} sinks were given: pass one for each."
            )
        sinks = [sink_of(each, resume=resume) for each in given]
        check_apart(sinks, self._sources, [each.axis == self._axis for each in self._returned])
        return sinks

    def _verified(self, before: StreamRecord, now: StreamRecord, files: Sequence[ToFile]) -> StreamRecord:
        """The earlier record, if its data is still in the files; else the new one."""
        for number, (start, stop, digest) in enumerate(before.pieces):
            there = [
                file.part_of_earlier(array.spec, array.axis, start, stop)
                for file, array in zip(files, self._returned, strict=True)
                if array.axis is not None or number == 0
            ]
            if any(each is None for each in there) or digest_of(there) != digest:
                return now
        return before

    def _record(self, sinks: list[StreamSink]) -> StreamRecord:
        """Returns the identity of this stream, by which an interrupted one is recognised.

        Raises `InvalidOption` if sources or sinks are no files, so that nothing could be checked after a crash.
        """
        work = self._work
        identities = [each.identity() for each in self._sources]
        if not all(isinstance(each, ToFile) for each in sinks) or any(each is None for each in identities):
            raise InvalidOption(
                "resume=True needs sources and sinks that are files: nothing else can be checked after a crash."
            )
        used = {position for position in work.inputs if position is not None}
        return StreamRecord(
            program=work.program.key,
            surroundings=digest_of([value for n, value in enumerate(work.values) if n not in used]),
            axis=self._axis,
            sources=tuple(each for each in identities if each is not None),
            sinks=tuple(str(each.path.resolve()) for each in sinks if isinstance(each, ToFile)),
            length=work.length,
        )

    def _value(self, sink: Any, values: list[Any]) -> Any:
        """Returns the caller's value.

        Without sinks it is the function's own nest of arrays, else what each sink returns.
        """
        if sink is None:
            # The first of equal results: the others are copies, as the function would return them.
            first = {array.number: value for array, value in reversed(list(zip(self._returned, values, strict=True)))}
            return self._work.traced.rebuild([first[number] for number in range(len(first))])
        return tuple(values) if isinstance(sink, tuple | list) else values[0]

    def _streamed(self, value: Any, traced: float) -> Streamed:
        """Makes the report of the stream from its clock and its executor, and publishes its receipt."""
        work, executor, clock = self._work, self._executor, self._clock
        seconds = StageSeconds(
            read=clock.read,
            transfer=executor.seconds_transferring,
            compute=executor.seconds_computing,
            write=clock.write,
            total=clock.total,
            overlapped=executor.seconds_overlapped,
        )
        ran, done = executor.total, executor.devices.done
        device = max(done, key=lambda name: done[name]) if done else "numpy"
        cut = next((axis for axis in work.axes if axis is not None), self._axis)
        how = f"in {self._chunks} chunks of at most {self._longest_chunk} along axis {cut} of the result"
        found = executor.devices.kind_of(device)
        receipt = receipt_of(
            ran._replace(driver=None, host_operations=executor.host_operations),
            _phases(ran.phases, traced, executor.seconds_planning, seconds.total),
            task=work.task,
            device=device,
            kind=found,
            reason=executor.devices.reason(self._longest_chunk),
            attempts=tuple(executor.attempts),
            predicted=None,
            how=how,
            program=work.program.key,
            unknown={**ran.unknown, "predicted_seconds": NOT_PREDICTED},
        )
        publish(receipt)
        held = self._flying * (self._rows_in + self._rows_out) * self._longest_chunk
        one = max(executor.device_bytes, executor.bytes_for(max(1, self._longest_chunk)))
        peak = held + (2 * one if executor.seconds_overlapped else one)
        return Streamed(value, receipt, self._chunks, seconds, peak)


def _phases(ran: Phases, traced: float, planned: float, total: float) -> Phases:
    """The phases of the whole stream as its caller waited for it, without overlapped work."""
    named = planned + ran.compile + ran.queue + ran.write + ran.run + ran.read
    return msgspec.structs.replace(ran, trace=traced, plan=planned, other=max(0.0, total - named))


def _along(sources: Sequence[StreamSource], axis: int) -> tuple[int, int]:
    """The non-negative axis, and its length, which all sources must share."""
    dimensions = min(len(each.shape) for each in sources)
    if not -dimensions <= axis < dimensions:
        raise InvalidOption(f"there is no axis {axis} in a source of shape {min((s.shape for s in sources), key=len)}.")
    if axis < 0 and len({len(each.shape) for each in sources}) > 1:
        raise InvalidOption("count the axis from 0: the sources do not have the same number of axes.")
    axis = normal_axis(axis, dimensions)
    lengths = [each.shape[axis] for each in sources]
    if len(set(lengths)) > 1:
        raise InvalidOption(f"the sources have lengths {lengths} along axis {axis}: they must be the same.")
    return axis, lengths[0]


def _budget(memory: int | str | None) -> int:
    """Returns the memory of a stream in bytes, from a number, a text such as "1GB", or the free memory of the host."""
    if memory is None:
        return min(_MEMORY, int(host.memory_free() * _OF_FREE))
    found = bytes_from(memory) if isinstance(memory, str) else memory
    if not isinstance(found, int) or found <= 0:
        raise InvalidOption(f'memory is a number of bytes, or a string such as "1GB"; got {memory!r}.')
    return found


def _function_and_options(function: Callable[..., Any], given: CallOptions) -> tuple[Callable[..., Any], Options]:
    """Returns the plain function and its options; those of an offloaded function hold unless others are given."""
    if isinstance(function, Offloaded):
        if all(value is None for value in given.values()):
            return function.function, function.options
        function = function.function
    if not callable(function):
        raise InvalidOption(f"stream takes a function; got {function!r}.")
    return function, options(**given)
