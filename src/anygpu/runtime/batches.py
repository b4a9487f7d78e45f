"""Batches: waiting calls of one kind as one launch, with stacked arguments and split results.

An input that all calls share is passed once. The choice of stacked inputs is part of the compiled program, so only a
few such variants are kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from anygpu.agreement.trust import Filters, Sample, compared, is_finite
from anygpu.array.core.structure import flatten, unflatten
from anygpu.array.trace.traced import CallInputs, Traced
from anygpu.base.disturbance import DisturbanceWatch
from anygpu.calls.options import Options
from anygpu.engines.protocol import tuning_limited_to
from anygpu.errors import AllocationError, AnyGPUError
from anygpu.hardware.device import Device
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import pin
from anygpu.placement.machine import usable_bytes
from anygpu.placement.plan.calibration import Calibration, assumed
from anygpu.placement.plan.candidate_history import calls_between_samples
from anygpu.placement.plan.chunking import FILLED, SIZES, BatchPlan, BatchTimes, Missed, Weighed, weigh
from anygpu.placement.plan.predicting import predict
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.program.transforms import vmap
from anygpu.receipts.receipt import NetworkUse
from anygpu.runtime.stacking import Marks, alike, as_given, covers, differing, divided, rows_of, split, stack
from anygpu.workers.worker import Ran, Worker

#: Variants of a program that are kept. The last one stacks every input that has ever differed, and so fits all calls.
MOST_VARIANTS = 3
#: A shared input of at most this many bytes is stacked if that avoids another variant.
_SMALL = 4 << 10
#: Assumed cost of stacking and splitting before it was measured: seconds per call, and bytes per second.
_PER_CALL, _BYTES_PER_SECOND = 2e-6, 4e9
#: After an allocation failed, the byte limit grows by this factor with every launch that succeeds.
_GROWING = 1.02
#: A comparison that has not finished after this many skipped launches is started again.
_PATIENCE = 256

#: Calls that run one by one after a batch was not worth it: fewer if that rests on disturbed times.
_PASSED_OVER, _PASSED_OVER_IN_DOUBT = 64, 8
#: So many launches are made between calls that show again what one alone takes, if that was disturbed; none is needed
#: where a launch is better by such a factor.
_UNTIL_ALONE, _SURELY_BETTER = 16, 10.0

#: Whether a launch may be used.
CheckStatus = Literal["agreed", "compare", "wait"]

#: After _FAILURES failed launches in a row, calls run one by one, for longer each time up to _LONGEST_REST.
_FAILURES, _LONGEST_REST = 3, 1 << 12


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A planned launch of the first `taken` waiting calls."""

    plan: BatchPlan
    device: str
    #: The program for `size` calls.
    program: Program
    #: The traced function.
    traced: Traced
    #: The program's inputs, one row per call.
    rows: Sequence[CallInputs]
    #: The statistics that it updates.
    table: _VariantHistory

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
        """The launch in words, for receipts."""
        padded = f", padded to {self.size}" if self.size > self.taken else ""
        return f"in one launch of {self.taken} calls{padded}"


class BatchResults(NamedTuple):
    """The results of a launch."""

    #: The return values, in the order of the calls.
    values: list[Any]
    #: The whole launch, including stacking (in `write`), splitting (in `read`) and compiling; without its results.
    ran: Ran
    #: One call's share: seconds and bytes divided by the calls. Kernels and memory are those of the launch.
    share: Ran
    #: Whether no result has a NaN or an infinity.
    finite: bool


class _Variant:
    """The program for several calls with certain inputs stacked."""

    def __init__(self, program: Program, marks: Marks) -> None:
        """Keeps the program of a single call and which of its inputs are stacked.

        Batched programs are made when needed.
        """
        self.marks = marks
        self.single = program
        self._programs: dict[int, Program] = {}
        #: The last prediction for each size: devices that are alike have one calibration.
        self._predicted: dict[int, _Predicted] = {}
        specs = program.inputs
        self.stacked_bytes = sum(spec.nbytes for spec, mark in zip(specs, marks, strict=True) if mark)

    def program(self, size: int) -> Program:
        """Returns the program for `size` calls at once, which is made once."""
        known = self._programs.get(size)
        if known is None:
            known = self._programs[size] = vmap(self.single, self.marks, size)
        return known

    def predicted(self, calibration: Calibration, device: Device, size: int) -> _Predicted:
        """Returns the predicted seconds, compile time and memory of a launch of `size` calls.

        It is cached until there is another calibration. The compile time is scaled towards what is usual for such a
        device.
        """
        known = self._predicted.get(size)
        if known is None or known.calibration is not calibration:
            program = self.program(size)
            expected = predict(program, calibration, compiled=False)
            seconds, compiling = expected.seconds - expected.phases.compile, expected.phases.compile
            moved = size * self.stacked_bytes + sum(spec.nbytes for spec in program.results)
            seconds += size * _PER_CALL + moved / _BYTES_PER_SECOND
            if calibration.compile > 0:
                # A calibration compiles once, so it is easily disturbed: halfway to what such devices usually take.
                compiling *= math.sqrt(assumed(device).compile / calibration.compile)
            known = self._predicted[size] = _Predicted(calibration, seconds, compiling, expected.peak_bytes)
        return known


class _Predicted(NamedTuple):
    calibration: Calibration
    #: Seconds of a launch, with stacking and splitting.
    seconds: float
    compiling: float
    peak_bytes: int


class _VariantHistory:
    """Statistics of one variant on one device."""

    def __init__(self, variant: _Variant) -> None:
        """Starts without any launch. Dictionaries are by size of launch.

        `ready` has the worker's generation that compiled it.
        """
        self.variant = variant
        self.times = BatchTimes()
        self.missed = Missed()
        #: By size, the generation of the worker that has compiled it.
        self.ready: dict[int, int] = {}
        #: Whether the device does not support the batched program, although it supports a single call.
        self.lacks = False
        #: Failed launches in a row, and requests to skip because of them.
        self.failures = 0
        self.resting = 0
        #: By size: the generation of the worker whose launches agreed with NumPy, launches since then, and samples.
        self.agreed: dict[int, int] = {}
        self.unchecked: dict[int, int] = {}
        self.samples: dict[int, int] = {}
        #: Sizes under comparison, with the launches that were skipped meanwhile.
        self.comparing: dict[int, int] = {}
        self._predicted: dict[int, _Predicted] = {}
        #: The last time that calls ran one by one because the program was not compiled: its size, the seconds lost
        #: per call, and the calls that had run alone before.
        self._telling: tuple[int, float, int] | None = None

    def miss(self, weighed: Weighed, calls_alone: int) -> None:
        """Account for the time lost because the best size is not compiled."""
        if weighed.wanted is None:
            return
        if weighed.plan is not None:
            self.missed.add(weighed.wanted, weighed.missed * weighed.plan.taken)
        else:
            self._telling = (weighed.wanted, weighed.missed, calls_alone)

    def count(self, calls_alone: int) -> None:
        """Account for the calls that have run one by one since the last `miss`."""
        if self._telling is not None:
            wanted, missed, before = self._telling
            self.missed.add(wanted, missed * max(0, calls_alone - before))
            self._telling = None

    def predicted(self, calibration: Calibration, device: Device, size: int) -> _Predicted:
        """The prediction of the calibration."""
        known = self._predicted.get(size)
        if known is None or known.calibration is not calibration:
            known = self._predicted[size] = self.variant.predicted(calibration, device, size)
        return known

    def is_lacking(self, program: Program, worker: Worker) -> bool:
        """Whether the device does not support the program, although it supports a single call."""
        self.lacks = bool(worker.supports(program)) and not worker.supports(self.variant.single)
        return self.lacks

    def ready_for(self, size: int, generation: int, seconds: float, *, disturbed: bool) -> None:
        """Notes that a worker has compiled a size in so many seconds, from which later compile times are predicted."""
        self.ready[size] = generation
        self.missed.paid(size)
        if size in self._predicted:
            self.times.compiled(seconds, self._predicted[size].compiling, disturbed=disturbed)

    def succeeded(self, size: int, seconds: float, *, disturbed: bool) -> None:
        """A launch has succeeded: its time is learnt, and failures before it are forgotten."""
        self.failures = 0
        predicted = self._predicted.get(size)
        self.times.measured(size, seconds, predicted.seconds if predicted is not None else 0.0, disturbed=disturbed)

    def failed(self) -> None:
        """A launch has failed: after several, the variant rests for a number of plans that doubles each time."""
        self.failures += 1
        if self.failures >= _FAILURES:
            self.resting = min(1 << (4 + self.failures), _LONGEST_REST)

    def compiling(self, size: int) -> float:
        """The predicted compile time, corrected by earlier errors."""
        return self.times.compiling(self._predicted[size].compiling) if size in self._predicted else math.inf

    def bytes_of(self, size: int) -> int:
        """The predicted peak memory."""
        return self._predicted[size].peak_bytes if size in self._predicted else 0


class LaunchBatches:
    """The launches of one kind of calls, on all devices. Thread-safe.

    Calls with anygpu arrays are not batched: these are on a device already, where stacking them would be a program of
    its own. Nor are calls that a device can only run in pieces.
    """

    def __init__(self, site: CallSite, watch: DisturbanceWatch | None = None) -> None:
        """Makes the batches of a call site, which it does not keep alive; `watch` tells disturbed times."""
        # Weak, because a `WeakKeyDictionary` keeps batches by their call site.
        self._state = weakref.ref(site)
        self._watch = watch if watch is not None else DisturbanceWatch()
        #: Guards the statistics; never held while a program runs.
        self._lock = threading.Lock()
        self._forget(site.programs.current)

    def _forget(self, traced: Traced | None) -> None:
        """Starts anew for a function that was traced again.

        Programs, times and comparisons were those of the old trace.
        """
        self._traced = traced
        self._variants: list[_Variant] = []
        self._tables: dict[tuple[str, Marks], _VariantHistory] = {}
        #: By device, the bytes at which an allocation failed.
        self._too_many: dict[str, int] = {}
        #: Launches since a call ran alone.
        self._launches = 0

    @property
    def calls_to_pass_over(self) -> int:
        """The calls that run one by one after a batch was not worth it."""
        in_doubt = any(table.times.is_doubtful for table in list(self._tables.values()))
        return _PASSED_OVER_IN_DOUBT if in_doubt else _PASSED_OVER

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
    ) -> Batch | None:
        """The launch to make now on that device, given `waiting` calls; `None` if they should run one by one.

        `calls` are the first of them, in order. A call that does not fit with the others ends the launch, and so runs
        alone in the end, where its error is its own. `room` bounds the bytes of the launch further than the device.
        """
        site = self._state()
        if site is None:
            return None
        traced, facts = site.programs.current, site.candidates.predictions.get(device)
        if traced is None or site.has_anygpu_arrays or len(calls) < 2 or facts is None or facts.chunks is not None:
            return None
        found = planner.device(device)
        if found is None:
            return None
        with planner.lock:
            known, calls_alone = site.chooser.estimate(device), site.chooser.calls
            track = site.chooser.tracks.get(device)
        single = known if known is not None else facts.seconds
        # This way a disturbance of the measurements, or of the calibration, is on both sides of the comparison.
        factor = single / facts.plain.seconds if facts.plain.seconds > 0 else 1.0
        with self._lock:
            if traced is not self._traced:
                self._forget(traced)
            usable = _least(room, usable_bytes(found), self._too_many.get(device))
            offer = _Conditions(planner, found, single, factor, usable, latency, calls_alone, self._watch.is_calm)
            batch = self._look(traced, waiting, calls, offer)
            if batch is not None and track is not None and track.disturbed and self._shows_one_alone(batch, single):
                return None
        # The worker may be busy, so the lock is not held here.
        return batch if batch is not None and _is_supported(batch, planner, site.options) else None

    def _shows_one_alone(self, batch: Batch, single: float) -> bool:
        """Whether a call is to run alone, to show what that takes: it was disturbed when it was measured."""
        self._launches += 1
        if self._launches < _UNTIL_ALONE or not self._watch.is_calm:
            return False
        self._launches = 0
        return batch.seconds * _SURELY_BETTER > single * batch.taken

    def _look(self, traced: Traced, waiting: int, calls: Sequence[Call], offer: _Conditions) -> Batch | None:
        """Plan a launch of the first calls of the same shapes, or return `None` if they are faster one by one."""
        # A sample of the calls decides whether to look at all of them.
        last = min(len(calls), SIZES[-1]) - 1
        sample = alike(traced.program, rows_of(traced, (calls[0], calls[1], calls[last])))
        if len(sample) < 2:
            return None
        table = self._table(traced, offer.device.id, differing(traced.program, sample))
        plan = _weigh(table, waiting, offer)
        if plan is None:
            return None
        rows = alike(traced.program, sample[:2] + rows_of(traced, calls[2 : plan.taken]))
        marks = differing(traced.program, rows)
        if len(rows) < plan.taken or not covers(table.variant.marks, marks):
            # The others differ from the sample.
            table = self._table(traced, offer.device.id, marks)
            plan = _weigh(table, len(rows), offer)
            if plan is None:
                return None
        return Batch(plan, offer.device.id, table.variant.program(plan.size), traced, rows[: plan.taken], table)

    def _table(self, traced: Traced, device: str, needed: Marks) -> _VariantHistory:
        """The statistics of the variant for these inputs, or of another that fits nearly as well."""
        variant = self._variant(traced.program, needed)
        key = (device, variant.marks)
        if key not in self._tables:
            self._tables[key] = _VariantHistory(variant)
        return self._tables[key]

    def _variant(self, program: Program, needed: Marks) -> _Variant:
        """Returns the stacked program for these differing arguments: an existing one that covers them, or a new one.

        At most `MOST_VARIANTS` are kept. The last place is for the variant that stacks whatever any other one does, so
        that new combinations need no more programs; when all places are taken, the newest one is replaced.
        """
        variants = self._variants
        for each in variants:
            if each.marks == needed:
                return each
        fitting = [each for each in variants if covers(each.marks, needed)]
        if fitting:
            nearest = min(fitting, key=lambda each: each.stacked_bytes)
            exact = _Variant(program, needed)
            if len(variants) == MOST_VARIANTS or nearest.stacked_bytes - exact.stacked_bytes <= _SMALL:
                return nearest
        union = tuple([any(marks) for marks in zip(needed, *(each.marks for each in variants), strict=True)])
        if len(variants) == MOST_VARIANTS:
            gone = variants.pop()
            self._tables = {key: table for key, table in self._tables.items() if table.variant is not gone}
        # The last variant is for every input that has ever differed.
        has_union = any(each.marks == union for each in variants)
        variants.append(_Variant(program, needed if len(variants) + 1 < MOST_VARIANTS or has_union else union))
        return variants[-1]

    # -- agreement

    def check_status(self, batch: Batch, generation: int, home: float | None) -> CheckStatus:
        """Whether a launch may be used, has to be compared with NumPy first, or is being compared.

        `home` is the time of one call on NumPy.
        """
        table, size = batch.table, batch.size
        with self._lock:
            if size in table.comparing:
                table.comparing[size] += 1
                if table.comparing[size] <= _PATIENCE:
                    return "wait"
            elif table.agreed.get(size) == generation:
                table.unchecked[size] = table.unchecked.get(size, 0) + 1
                copying = size * table.variant.stacked_bytes / _BYTES_PER_SECOND
                samples = table.samples.get(size, 0)
                if home is None or table.unchecked[size] <= calls_between_samples(
                    home * batch.taken, batch.seconds, copying, samples=samples
                ):
                    return "agreed"
            table.comparing[size] = 0
            return "compare"

    def agreed(self, batch: Batch, generation: int) -> None:
        """Every call of such a launch agreed with NumPy."""
        table, size = batch.table, batch.size
        with self._lock:
            table.comparing.pop(size, None)
            table.samples[size] = table.samples.get(size, 0) + 1 if table.agreed.get(size) == generation else 0
            table.agreed[size] = generation
            table.unchecked[size] = 0

    def disagreed(self, batch: Batch) -> None:
        """The launch could not be compared, or was wrong: calls run one by one for a while."""
        with self._lock:
            batch.table.comparing.pop(batch.size, None)
            batch.table.agreed.pop(batch.size, None)
            batch.table.resting = _LONGEST_REST

    def given(self, batch: Batch) -> list[Any]:
        """The arguments of the launch: stacked, or shared by all calls."""
        marks = batch.table.variant.marks
        return [
            stack(column, spec, batch.size) if mark else as_given(column[0], spec)
            for column, spec, mark in zip(
                zip(*batch.rows, strict=True), batch.traced.program.inputs, marks, strict=True
            )
        ]

    def launch(self, batch: Batch, worker: Worker, given: Sequence[Any]) -> list[Any]:
        """The results alone, for a comparison."""
        self._compile(batch.table, batch.size, batch.program, worker)
        return worker.run(batch.program, given).results

    # -- running

    def run(self, batch: Batch, worker: Worker, timeout: float | None = None) -> BatchResults:
        """Run the launch and wait. An error may be due to a single call, so the caller runs them one by one."""
        clock = time.perf_counter
        begin = clock()
        try:
            self._compile(batch.table, batch.size, batch.program, worker)
            compiled = clock()
            conditions = self._watch.begin(compiled)
            given = self.given(batch)
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
        values = split(batch.traced, ran.results, batch.rows)
        end = clock()
        disturbed = self._watch.end(conditions, end)
        phases = msgspec.structs.replace(
            ran.phases,
            compile=ran.phases.compile + (compiled - begin),
            write=ran.phases.write + (stacked - compiled),
            read=ran.phases.read + (end - answered),
        )
        whole = ran._replace(results=[], phases=phases)
        self.learn(batch, end - compiled - ran.phases.compile, disturbed=disturbed)
        return BatchResults(values, whole, _share(whole, batch.taken), is_finite(ran.results))

    def learn(self, batch: Batch, seconds: float, *, disturbed: bool) -> None:
        """A launch took so long, beside compiling."""
        with self._lock:
            batch.table.succeeded(batch.size, seconds, disturbed=disturbed)
            if batch.device in self._too_many:
                self._too_many[batch.device] = int(self._too_many[batch.device] * _GROWING) + 1

    def learn_compiled(self, batch: Batch, generation: int, seconds: float, *, disturbed: bool) -> None:
        """The worker of that generation has compiled the program of the launch, which took so long."""
        with self._lock:
            batch.table.ready_for(batch.size, generation, seconds, disturbed=disturbed)

    def _compile(self, table: _VariantHistory, size: int, program: Program, worker: Worker) -> None:
        """Compile unless that worker has done so. Kernels are not tuned, because calls are waiting."""
        if table.ready.get(size) == worker.generation:
            return
        begin = time.perf_counter()
        conditions = self._watch.begin(begin)
        with tuning_limited_to(0.0):
            worker.prepare(program)
        end = time.perf_counter()
        disturbed = self._watch.end(conditions, end)
        with self._lock:
            table.ready_for(size, worker.generation, end - begin, disturbed=disturbed)


class _Conditions(NamedTuple):
    """A device and the conditions of a launch on it."""

    planner: Planner
    device: Device
    #: Seconds of a single call.
    single: float
    #: The error of the prediction for one call, as a factor.
    factor: float
    room: int | None
    latency: float
    #: Calls that have run one by one so far.
    calls_alone: int
    #: Whether nothing else has the processors now.
    calm: bool


def _weigh(table: _VariantHistory, waiting: int, offer: _Conditions) -> BatchPlan | None:
    """The launch with the least time per call, compiling included; `None` if single calls are faster."""
    if table.resting > 0:
        table.resting -= 1
        return None
    if table.lacks:
        return None
    table.count(offer.calls_alone)
    times, missed = table.times, table.missed
    calibration = offer.planner.calibration(offer.device)

    def predicted(size: int) -> _Predicted:
        return table.predicted(calibration, offer.device, size)

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
    table.miss(weighed, offer.calls_alone)
    for size in table.ready:
        if FILLED * size <= waiting and (plan is None or plan.size != size):
            times.passed_over(size, calm=offer.calm)
    return plan


def _is_supported(batch: Batch, planner: Planner, options: Options) -> bool:
    """Whether the device supports the batched program as it supports a single call."""
    table = batch.table
    return batch.size in table.ready or not table.is_lacking(batch.program, planner.worker(batch.device, options))


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _share(whole: Ran, calls: int) -> Ran:
    """The figures of one call in a launch: an equal part of its times and bytes."""
    return whole._replace(
        phases=divided(whole.phases, calls),
        bytes_to_device=whole.bytes_to_device // calls,
        bytes_to_host=whole.bytes_to_host // calls,
        bytes_skipped=whole.bytes_skipped // calls,
        device_seconds=whole.device_seconds / calls if whole.device_seconds is not None else None,
        network=_network_share(whole.network, calls),
    )


def _network_share(whole: NetworkUse | None, calls: int) -> NetworkUse | None:
    """The asks are those of the launch: it was asked for as a whole."""
    if whole is None:
        return None
    return NetworkUse(whole.bytes_sent // calls, whole.bytes_received // calls, whole.asks)


# -- A launch of many calls is a program of its own, so it is compared with NumPy before it is used


class LaunchCheck:
    """Compares one launch: its calls run on NumPy one by one, and after the last the device computes them together."""

    def __init__(
        self, planner: Planner, site: CallSite, function: Callable[..., Any], batches: LaunchBatches, batch: Batch
    ) -> None:
        """Copies the arguments of the launch, because their callers may change them before it is compared."""
        self._planner = planner
        self._state = site
        self._function = function
        self._batches = batches
        self._batch = batch
        #: Copies: callers may write to their arrays as soon as they have their results.
        self._given = [np.array(each) for each in batches.given(batch)]
        self._rows = [[np.array(each) for each in row] for row in batch.rows]
        self._expected: dict[int, Any] = {}
        self._left = batch.taken
        self._lock = threading.Lock()

    def witness(self, number: int, value: Any, succeeded: bool) -> None:
        """Record the value that one call returned on NumPy, before its caller gets it; or that the call failed."""
        if succeeded:
            leaves, structure = flatten(self._batch.traced.without_arguments(value))
            value = unflatten(structure, [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])
        with self._lock:
            if succeeded:
                self._expected[number] = value
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._planner.background.submit(self._judge)

    def _judge(self) -> None:
        """Runs the launch on its device beside the callers, and compares each row with what its call returned on NumPy.

        A row that differs pins the function to NumPy. Whatever goes wrong, calls run one by one for a while.
        """
        batch, site, planner = self._batch, self._state, self._planner
        with contextlib.suppress(Exception):  # whatever goes wrong here, calls run one by one
            with planner.trying((batch.device,)):
                worker = planner.worker(batch.device, site.options)
                results = self._batches.launch(batch, worker, self._given)
            program = batch.traced.program
            for number, expected in self._expected.items():
                sample = Sample(batch.traced, self._as_program_takes(number), expected, False, Filters.now())
                row = [np.asarray(result[number]) for result in results]
                judgement = compared(sample, row, site.trust.usual.get(program.key, ()))
                if judgement.difference is not None:
                    pin(planner, site, batch.device, self._function, sample, judgement.difference, before_use=True)
                if judgement.verdict != "agree":
                    break
            else:
                if self._expected:
                    self._batches.agreed(batch, worker.generation)
                    return
        self._batches.disagreed(batch)

    def _as_program_takes(self, number: int) -> list[Any]:
        specs = self._batch.traced.program.inputs
        return [np.asarray(each, spec.dtype) for each, spec in zip(self._rows[number], specs, strict=True)]
