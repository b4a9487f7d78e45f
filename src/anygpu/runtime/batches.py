"""Waiting calls of one kind as one launch: their arguments stacked, the program for many of them, its results split.

An input that is the same for all calls is passed once. Which inputs are stacked is a part of the compiled program, so
few such variants are kept. Every caller gets results in memory of its own: a view would keep the whole launch alive.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from anygpu.array.array import Array
from anygpu.array.place import to_numpy_dtype
from anygpu.array.tracing import Traced
from anygpu.engines.tuning_limit import tuning_limited_to
from anygpu.errors import AllocationError, AnyGPUError
from anygpu.hardware.device import Device
from anygpu.hardware.verification import Values
from anygpu.plan.batching import FILLED, SIZES, BatchPlan, BatchTimes, Missed, weigh
from anygpu.plan.calibration import Calibration
from anygpu.plan.predicting import predict
from anygpu.program.batching import vmap
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts import Phases
from anygpu.runtime.call import Call
from anygpu.runtime.options import Options
from anygpu.runtime.planner import Planner
from anygpu.runtime.state import State, usable_bytes
from anygpu.runtime.ways import Whole
from anygpu.workers.worker import Ran, Worker

#: For each input of the program whether each call has its own.
Marks = tuple[bool, ...]

#: Variants of a program that are kept. The last one stacks everything that has ever differed, and so fits all calls.
MOST_VARIANTS = 3
#: An input of at most so many bytes is stacked although all calls share it, if that spares another variant.
_SMALL = 4 << 10
#: From so many bytes on, two arrays are looked at closely before they count as different: a shared matrix is worth it.
_LARGE = 16 << 10
#: What stacking and splitting take before they have been measured: for each call, and by bytes.
_PER_CALL, _BYTES_PER_SECOND = 2e-6, 4e9
#: What turned out to be too many bytes may be none later: with each launch that succeeds a little more is tried.
_GROWING = 1.02
#: After so many launches in a row that failed, calls run one by one for a while, for longer each time.
_FAILURES, _LONGEST_REST = 3, 1 << 12


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A launch that was planned, with what it needs of its calls: they are the first `taken` of those that wait."""

    plan: BatchPlan
    device: str
    #: For many calls.
    program: Program
    #: The function that it is of.
    traced: Traced
    #: For each input of the program its value in each call.
    columns: Sequence[tuple[Any, ...]]
    #: Where what it takes is remembered.
    table: _OnDevice

    @property
    def size(self) -> int:
        return self.plan.size

    @property
    def taken(self) -> int:
        return self.plan.taken

    @property
    def seconds(self) -> float:
        return self.plan.seconds

    @property
    def how(self) -> str:
        """For receipts."""
        padded = f", padded to {self.size}" if self.size > self.taken else ""
        return f"in one launch of {self.taken} calls{padded}"


class Batched(NamedTuple):
    """What came out of a launch."""

    #: What each call returns, in their order.
    values: list[Any]
    #: Of the whole launch, stacking (in `write`), splitting (in `read`) and compiling included; without its results.
    ran: Ran
    #: A call's share of it: seconds and bytes by the number of calls. Kernels and memory are those of the launch.
    share: Ran


class _Variant:
    """The program for several calls with certain inputs stacked."""

    def __init__(self, program: Program, marks: Marks) -> None:
        self.marks = marks
        self._program = program
        self._programs: dict[int, Program] = {}
        specs = program.inputs
        self.stacked_bytes = sum(spec.nbytes for spec, mark in zip(specs, marks, strict=True) if mark)

    def program(self, size: int) -> Program:
        known = self._programs.get(size)
        if known is None:
            known = self._programs[size] = vmap(self._program, self.marks, size)
        return known


class _Predicted(NamedTuple):
    calibration: Calibration
    #: Of a launch, with stacking and splitting.
    seconds: float
    compiling: float
    peak_bytes: int


class _OnDevice:
    """What is known of one variant on one device."""

    def __init__(self, variant: _Variant) -> None:
        self.variant = variant
        self.times = BatchTimes()
        self.missed = Missed()
        #: By size, the generation of the worker that has compiled it.
        self.ready: dict[int, int] = {}
        #: Whether the device lacks something that it does not lack for one call.
        self.lacks = False
        #: Launches in a row that failed, and how often it is not asked for therefore.
        self.failures = 0
        self.resting = 0
        self._predicted: dict[int, _Predicted] = {}

    def predicted(self, planner: Planner, device: Device, size: int) -> _Predicted:
        """What the calibration says."""
        calibration = planner.calibration(device)
        known = self._predicted.get(size)
        if known is None or known.calibration is not calibration:
            program = self.variant.program(size)
            expected = predict(program, calibration, compiled=False)
            compiling = expected.phases.compile
            moved = size * self.variant.stacked_bytes + sum(spec.nbytes for spec in program.results)
            seconds = expected.seconds - compiling + size * _PER_CALL + moved / _BYTES_PER_SECOND
            known = self._predicted[size] = _Predicted(calibration, seconds, compiling, expected.peak_bytes)
        return known

    def ready_for(self, size: int, generation: int, seconds: float) -> None:
        self.ready[size] = generation
        self.missed.paid(size)
        if size in self._predicted:
            self.times.compiled(seconds, self._predicted[size].compiling)

    def succeeded(self, size: int, seconds: float) -> None:
        self.failures = 0
        predicted = self._predicted.get(size)
        self.times.measured(size, seconds, predicted.seconds if predicted is not None else 0.0)

    def failed(self) -> None:
        self.failures += 1
        if self.failures >= _FAILURES:
            self.resting = min(1 << (4 + self.failures), _LONGEST_REST)

    def bytes_of(self, size: int) -> int:
        """As they were predicted."""
        return self._predicted[size].peak_bytes if size in self._predicted else 0


class Batches:
    """The launches of one kind of calls, on whichever devices. Several threads may use it at once.

    Calls with anygpu's own arrays are not batched: those are on a device already, where stacking them would be a
    program of its own; nor are calls that a device can only do in pieces.
    """

    def __init__(self, state: State) -> None:
        # Weak, so that whoever keeps batches by their state forgets both together.
        self._state = weakref.ref(state)
        #: Held around everything that is remembered; never while something runs.
        self._lock = threading.Lock()
        self._forget(state.traced)

    def _forget(self, traced: Traced | None) -> None:
        self._traced = traced
        self._variants: list[_Variant] = []
        self._tables: dict[tuple[str, Marks], _OnDevice] = {}
        #: For each device the bytes that turned out to be too many.
        self._too_many: dict[str, int] = {}

    # -- planning

    def plan(
        self,
        waiting: int,
        calls: Sequence[Call],
        device: str,
        planner: Planner,
        latency: float,
        *,
        room: int | None = None,
        alone: int = 1,
    ) -> Batch | None:
        """The launch to make now on that device, if so many calls wait; `None` when they should run one by one.

        `calls` are those that come first, in order; the launch takes the first of them. A call that does not fit with
        the others ends it, and so runs alone in the end, where its error is its own. `room` are the bytes that the
        launch may use, if that is less than what is usable there; `alone` is how many calls run one by one before the
        next question, if the answer is `None`: what they miss counts for compiling.
        """
        state = self._state()
        if state is None:
            return None
        traced, facts = state.traced, state.facts.get(device)
        if traced is None or state.ours or len(calls) < 2 or facts is None or not isinstance(facts.way, Whole):
            return None
        found = planner.machine().device(device)
        if found is None or not traced.unchanged():
            return None
        with planner.lock:
            known = state.cell.estimate(device)
            factor = planner.corrections.factor(device, state.kind)
        single = known if known is not None else facts.seconds
        with self._lock:
            if traced is not self._traced:
                self._forget(traced)
            usable = _least(room, usable_bytes(found), self._too_many.get(device))
            offer = _Offer(planner, found, single, factor, usable, latency, alone)
            batch = self._look(traced, waiting, calls, offer)
        # Asking the worker may take as long as it is busy.
        return batch if batch is not None and _is_supported(batch, planner, state.options) else None

    def _look(self, traced: Traced, waiting: int, calls: Sequence[Call], offer: _Offer) -> Batch | None:
        # A few calls tell whether it is worth looking at all of them.
        last = min(len(calls), SIZES[-1]) - 1
        sample = _alike(traced.program, _rows(traced, (calls[0], calls[1], calls[last])))
        if len(sample) < 2:
            return None
        table = self._table(traced, offer.device.id, _differing(traced.program, sample))
        plan = _weigh(table, waiting, offer)
        if plan is None:
            return None
        rows = _alike(traced.program, _rows(traced, calls[: plan.taken]))
        marks = _differing(traced.program, rows)
        if len(rows) < plan.taken or not _covers(table.variant.marks, marks):
            # The others are not like those few.
            table = self._table(traced, offer.device.id, marks)
            plan = _weigh(table, len(rows), offer)
            if plan is None:
                return None
        columns = list(zip(*rows[: plan.taken], strict=True))
        return Batch(plan, offer.device.id, table.variant.program(plan.size), traced, columns, table)

    def _table(self, traced: Traced, device: str, needed: Marks) -> _OnDevice:
        """Of the variant for calls that differ in these inputs, or of another one that fits them nearly as well."""
        variant = self._variant(traced.program, needed)
        key = (device, variant.marks)
        if key not in self._tables:
            self._tables[key] = _OnDevice(variant)
        return self._tables[key]

    def _variant(self, program: Program, needed: Marks) -> _Variant:
        variants = self._variants
        fitting = [each for each in variants if _covers(each.marks, needed)]
        if fitting:
            nearest = min(fitting, key=lambda each: each.stacked_bytes)
            exact = _Variant(program, needed)
            if len(variants) == MOST_VARIANTS or nearest.stacked_bytes - exact.stacked_bytes <= _SMALL:
                return nearest
        union = tuple([any(marks) for marks in zip(needed, *(each.marks for each in variants), strict=True)])
        if len(variants) == MOST_VARIANTS:
            gone = variants.pop()
            self._tables = {key: table for key, table in self._tables.items() if table.variant is not gone}
        # The last one that may be made is for everything that has ever differed.
        has_union = any(each.marks == union for each in variants)
        variants.append(_Variant(program, needed if len(variants) + 1 < MOST_VARIANTS or has_union else union))
        return variants[-1]

    # -- running

    def run(self, batch: Batch, worker: Worker, timeout: float | None = None) -> Batched:
        """Run it and wait. What it raises may be because of one of its calls: then they are to run one by one."""
        clock = time.perf_counter
        begin = clock()
        try:
            self._compile(batch, worker)
            compiled = clock()
            given = [
                _stacked(column, spec, batch.size) if mark else _shared(column[0], spec)
                for column, spec, mark in zip(
                    batch.columns, batch.traced.program.inputs, batch.table.variant.marks, strict=True
                )
            ]
            stacked = clock()
            ran = worker.run(batch.program, given, timeout=timeout)
        except AnyGPUError as error:
            with self._lock:
                if isinstance(error, AllocationError):
                    self._too_many[batch.device] = max(0, batch.table.bytes_of(batch.size) - 1)
                else:
                    batch.table.failed()
            raise
        answered = clock()
        values = _split(batch, ran.results)
        end = clock()
        phases = msgspec.structs.replace(
            ran.phases,
            compile=ran.phases.compile + (compiled - begin),
            write=ran.phases.write + (stacked - compiled),
            read=ran.phases.read + (end - answered),
        )
        whole = ran._replace(results=[], phases=phases)
        with self._lock:
            batch.table.succeeded(batch.size, end - compiled - ran.phases.compile)
            if batch.device in self._too_many:
                self._too_many[batch.device] = int(self._too_many[batch.device] * _GROWING) + 1
        return Batched(values, whole, _share(whole, batch.taken))

    def _compile(self, batch: Batch, worker: Worker) -> None:
        """Unless that worker has it. Sizes of its kernels are not looked for: calls are waiting."""
        if batch.table.ready.get(batch.size) == worker.generation:
            return
        begin = time.perf_counter()
        with tuning_limited_to(0.0):
            worker.prepare(batch.program)
        with self._lock:
            batch.table.ready_for(batch.size, worker.generation, time.perf_counter() - begin)


class _Offer(NamedTuple):
    """What a device could do, and under which conditions."""

    planner: Planner
    device: Device
    #: Seconds of a call alone.
    single: float
    #: What predictions for such programs there have been wrong by.
    factor: float
    room: int | None
    latency: float
    #: Calls that run one by one before the next question.
    alone: int


def _weigh(table: _OnDevice, waiting: int, offer: _Offer) -> BatchPlan | None:
    if table.resting > 0:
        table.resting -= 1
        return None
    if table.lacks:
        return None
    times, missed = table.times, table.missed

    def predicted(size: int) -> _Predicted:
        return table.predicted(offer.planner, offer.device, size)

    def compiling(size: int) -> float:
        return 0.0 if size in table.ready else missed.left(size, times.compiling(predicted(size).compiling))

    weighed = weigh(
        waiting,
        single=offer.single,
        together=lambda size: times.estimate(size, predicted(size).seconds, offer.factor),
        compiling=compiling,
        bytes_of=lambda size: predicted(size).peak_bytes,
        room=offer.room,
        latency=offer.latency,
    )
    plan = weighed.plan
    if weighed.wanted is not None:
        running = plan.taken if plan is not None else min(offer.alone, waiting)
        missed.add(weighed.wanted, weighed.missed * running)
    for size in table.ready:
        if FILLED * size <= waiting and (plan is None or plan.size != size):
            times.passed_over(size)
    return plan


def _is_supported(batch: Batch, planner: Planner, options: Options) -> bool:
    """Whether the device does all of it that it does of one call."""
    table = batch.table
    if batch.size not in table.ready:
        worker = planner.worker(batch.device, options)
        table.lacks = bool(worker.supports(batch.program)) and not worker.supports(batch.traced.program)
    return not table.lacks


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


# -- arguments: a row is what one call gives to the program, a column what all calls give to one input


def _rows(traced: Traced, calls: Sequence[Call]) -> list[list[Any]]:
    """Up to the first call that has none: its numbers may be such that the function itself would raise."""
    rows: list[list[Any]] = []
    inputs = traced.inputs
    for call in calls:
        try:
            rows.append(inputs(call.arguments, call.keywords))
        except Exception:  # noqa: BLE001 - whatever it is, the call meets it again when it runs alone
            break
    return rows


def _alike(program: Program, rows: list[list[Any]]) -> list[list[Any]]:
    """Up to the first call that does not fit, by its shape or because it has not the large array of the first two."""
    count = len(rows)
    if count < 2:
        return rows
    for position, spec in enumerate(program.inputs):
        first, shape = rows[0][position], spec.shape
        shares = spec.nbytes >= _LARGE and _is_same(first, rows[1][position])
        for number in range(count):
            value = rows[number][position]
            if value is first and number:
                continue
            fits = (isinstance(value, np.ndarray) and value.shape == shape) or isinstance(value, Array)
            if not fits or (shares and not _is_same(value, first)):
                count = number
                break
    return rows[:count]


def _differing(program: Program, rows: Sequence[Sequence[Any]]) -> Marks:
    """The inputs that are not the same for all."""
    return tuple([_differs(spec, [row[position] for row in rows]) for position, spec in enumerate(program.inputs)])


def _differs(spec: Spec, column: Sequence[Any]) -> bool:
    first = column[0]
    if all(value is first for value in column):
        return False
    if not spec.shape:
        # By their bits: 0 and -0 are equal, and one divided by them is not.
        return any(value.tobytes() != first.tobytes() for value in column)
    return spec.nbytes < _LARGE or not all(_is_same(value, first) for value in column)


def _is_same(one: Any, other: Any) -> bool:
    """Whether it is the same memory, seen in the same way: `w.T` is another array each time that it is written."""
    if one is other:
        return True
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return (
        one.strides == other.strides
        and one.dtype == other.dtype
        and one.__array_interface__["data"] == other.__array_interface__["data"]
    )


def _covers(marks: Marks, needed: Marks) -> bool:
    return all(mark or not must for mark, must in zip(marks, needed, strict=True))


def _stacked(column: Sequence[Any], spec: Spec, size: int) -> Values:
    """One array of them all. Padding is the first call again, which has nothing in it that is not there already."""
    dtype = to_numpy_dtype(spec.dtype)
    whole = [*column, *(column[0],) * (size - len(column))]
    if not spec.shape:
        return np.array(whole, dtype)
    # In rows whatever the order of each, and without a step of Python's for each.
    stacked: Values = np.empty((size * spec.shape[0], *spec.shape[1:]), dtype)
    np.concatenate(whole, out=stacked, casting="unsafe")
    return stacked.reshape(size, *spec.shape)


def _shared(value: Any, spec: Spec) -> Values:
    return np.asarray(np.asarray(value) if isinstance(value, Array) else value, to_numpy_dtype(spec.dtype))


# -- results


def _split(batch: Batch, results: Sequence[Values]) -> list[Any]:
    """What each call returns, in memory of its own."""
    rebuild = batch.traced.rebuild
    columns: list[list[Any]] = []
    for result in results:
        taken = result[: batch.taken]
        columns.append([row.copy() for row in taken] if result.ndim > 1 else list(taken))
    return [rebuild(row) for row in zip(*columns, strict=True)]


def _share(whole: Ran, calls: int) -> Ran:
    phases = msgspec.structs.asdict(whole.phases)
    return whole._replace(
        phases=Phases(**{name: seconds / calls for name, seconds in phases.items()}),
        bytes_to_device=whole.bytes_to_device // calls,
        bytes_to_host=whole.bytes_to_host // calls,
        bytes_skipped=whole.bytes_skipped // calls,
        device_seconds=whole.device_seconds / calls if whole.device_seconds is not None else None,
    )
