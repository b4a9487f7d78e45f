"""Several calls as one: arguments stacked and results split, of programs and, by their rows, of opaque tasks.

The first part stacks the inputs of traced programs along a new axis. The second joins the rows of opaque tasks, once it
is proved that rows are independent, and learns from times whether that pays. `OpaqueRunner`, at the end, runs them on
the thread of a lane; the first launch of several is compared with separate calls, whose results are delivered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.structure import flatten, unflatten
from anygpu.array.trace.traced import CallInputs, Traced
from anygpu.base.typing import HostArray
from anygpu.errors import AllocationError, AnyGPUError
from anygpu.placement.call import Call
from anygpu.placement.opaque import free_bytes, place_opaque
from anygpu.placement.opaque_form import OpaqueForm, predicted_peak
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.plan.chunking import SIZES, BatchTimes, weigh
from anygpu.placement.planner import Planner
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import Attempt, Phases, Receipt, attribute_to_line, warn_fallback
from anygpu.workers.task_lifecycle import Started, fault_of

if TYPE_CHECKING:
    from anygpu.runtime.lane_worker import LaneWorker, TaskHost
    from anygpu.runtime.lanes import Job, Lane
    from anygpu.runtime.routing import Routing

# -- stacks the arguments of several calls for one launch, and splits its results
#
# A row holds the inputs of one call, a column one input of all calls. Every caller gets results in memory of its own: a
# view would keep the whole launch alive.


#: For each input of the program, whether it is stacked.
Marks = tuple[bool, ...]

#: From this many bytes on, arrays are compared by address before they count as different: a shared matrix matters.
_LARGE = 16 << 10


def rows_of(traced: Traced, calls: Sequence[Call]) -> list[CallInputs]:
    """The inputs of the calls, up to the first call without any: for its values the function itself might raise."""
    rows: list[CallInputs] = []
    inputs = traced.inputs
    for call in calls:
        given = inputs(call.function, call.arguments, call.keywords)
        if given is None:
            break
        rows.append(given)
    return rows


def alike(program: Program, rows: list[CallInputs]) -> list[CallInputs]:
    """The rows up to the first that does not fit: by shape, or because it lacks the large array of the first two."""
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


def differing(program: Program, rows: Sequence[Sequence[Any]]) -> Marks:
    """Which inputs differ between the rows."""
    return tuple([_differs(spec, [row[position] for row in rows]) for position, spec in enumerate(program.inputs)])


def _differs(spec: Spec, column: Sequence[Any]) -> bool:
    """Whether an input has to be stacked. Numbers are compared by their bytes; large arrays only by their memory."""
    first = column[0]
    if all(value is first for value in column):
        return False
    if not spec.shape:
        # By their bits: 0 and -0 are equal, but 1/0 and 1/-0 are not.
        return any(value.tobytes() != first.tobytes() for value in column)
    return spec.nbytes < _LARGE or not all(_is_same(value, first) for value in column)


def _is_same(one: Any, other: Any) -> bool:
    """Whether both are the same memory with the same strides: `w.T` is a new object each time."""
    if one is other:
        return True
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return (
        one.strides == other.strides
        and one.dtype == other.dtype
        and one.__array_interface__["data"] == other.__array_interface__["data"]
    )


def covers(marks: Marks, needed: Marks) -> bool:
    """Whether a variant that stacks `marks` can run calls in which the inputs `needed` differ."""
    return all(mark or not must for mark, must in zip(marks, needed, strict=True))


def stack(column: Sequence[Any], spec: Spec, size: int) -> HostArray:
    """One array of the column, padded with its first value."""
    dtype = to_numpy_dtype(spec.dtype)
    whole = [*column, *(column[0],) * (size - len(column))]
    if not spec.shape:
        return np.array(whole, dtype)
    # Handles any memory order, without a Python step for each row.
    stacked: HostArray = np.empty((size * spec.shape[0], *spec.shape[1:]), dtype)
    np.concatenate(whole, out=stacked, casting="unsafe")
    return stacked.reshape(size, *spec.shape)


def as_given(value: Any, spec: Spec) -> HostArray:
    """Returns an argument as an array of the program's dtype."""
    return np.asarray(np.asarray(value) if isinstance(value, Array) else value, to_numpy_dtype(spec.dtype))


def split(traced: Traced, results: Sequence[HostArray], rows: Sequence[CallInputs]) -> list[Any]:
    """The return value of each call."""
    count = len(rows)
    columns: list[list[Any]] = []
    for result in results:
        taken = result[:count]
        columns.append([row.copy() for row in taken] if result.ndim > 1 else list(taken))
    return [traced.rebuild(made, given) for made, given in zip(zip(*columns, strict=True), rows, strict=True)]


def divided(phases: Phases, calls: int) -> Phases:
    """The phases of one call in a launch of several: an equal part of each."""
    return Phases(**{name: seconds / calls for name, seconds in msgspec.structs.asdict(phases).items()})


# -- batches of opaque tasks: waiting calls whose rows are proved to be independent become one call with all their rows
#
# There is no program to look into, so that the engine has to prove it, in the background. The first launch is compared
# with separate calls, and its size is chosen by what launches took, as for programs.


#: Before a launch was measured, it is expected to take this part of what its calls take one by one.
_EXPECTED = 0.5
#: Calls that run one by one after a launch was not worth it: fewer if that rests on disturbed times.
_PASSED_OVER, _PASSED_OVER_IN_DOUBT = 64, 8
#: Calls of a launch that is compared.
COMPARED = 4
#: Launches that are predicted to take less memory are made without a look at what is free.
_MUCH, _USABLE = 64 << 20, 0.8
#: Results may differ by so many units in the last place of the largest value: sums are added in another order.
_UNITS, _MOST_TOLERANCE = 1000, 0.05


class Stacked(NamedTuple):
    """Several calls as one."""

    call: Call
    #: The rows of each.
    rows: tuple[int, ...]


class OpaqueBatches:
    """The launches of one form of an opaque task. Any thread may use it."""

    def __init__(self) -> None:
        """Starts without a proof that rows are independent, which the first call with others waiting asks for.

        `off` is the reason why calls run one by one for good, and `compared` has the devices whose first launch agreed.
        """
        self._lock = threading.Lock()
        self.times = BatchTimes()
        #: The engine's proof; `None` as long as it was not asked.
        self.proof: Any = None
        self._is_proving = False
        #: Why calls run one by one for good.
        self.off: str | None = None
        #: The devices on which a launch was compared with separate calls.
        self.compared: set[str] = set()
        self._passed_over = 0
        #: The rows at which an allocation failed.
        self._too_many: int | None = None

    @property
    def reason(self) -> str | None:
        """Why calls run one by one; `None` if they need not, or that is not known yet."""
        return self.off or (self.proof.reason if self.proof is not None else None)

    def how_many(self, call: Call, there: int, latency: float) -> int:
        """How many of the waiting calls of its form to take at once. Quick: the queue's lock is held."""
        form, rows = call.form
        if there < 2 or rows is None or self.off is not None or form.disagreed:
            return 1
        name = best_device(call)
        if name is None:
            return 1  # the first call tells what one alone takes
        if self.proof is None:
            self._prove(call, name)
            return 1
        if not self.proof.is_proved:
            return 1
        if self._passed_over > 0:
            self._passed_over -= 1
            return 1
        if name not in self.compared:
            return min(there, COMPARED)
        return self._weighed(call, form, rows, name, there, latency)

    def _weighed(self, call: Call, form: OpaqueForm, rows: int, name: str, there: int, latency: float) -> int:
        """Returns how many calls to take, by what a launch of each size is expected to take on the device.

        Memory bounds it: the device's free bytes if the prediction is large, and fewer rows than those that ran out of
        memory before. If one by one is faster, the next calls are not weighed at all, for longer if the times are not
        doubtful.
        """
        single = call.site.chooser.estimate(name) or 0.0
        seen = form.seen(name)

        def bytes_of(size: int) -> int:
            return predicted_peak(seen, rows * min(size, there)) or 0

        room = None
        if bytes_of(there) >= _MUCH and (free := free_bytes(call, name)) is not None:
            room = int(free * _USABLE)
        with self._lock:
            if self._too_many is not None:
                limit = bytes_of(max(1, self._too_many // rows)) - 1
                room = limit if room is None else min(room, limit)
            plan = weigh(
                there,
                single=single,
                # A launch is not padded: it takes the rows that there are.
                together=lambda size: self.times.estimate(size, single * size * _EXPECTED) * min(1.0, there / size),
                compiling=lambda _: 0.0,
                bytes_of=bytes_of,
                room=room,
                latency=latency,
            ).plan
            for size in SIZES:
                if size <= there and (plan is None or plan.size != size):
                    self.times.passed_over(size, calm=call.planner.watch.is_calm)
            if plan is None:
                if there > SIZES[0]:
                    self._passed_over = _PASSED_OVER_IN_DOUBT if self.times.is_doubtful else _PASSED_OVER
                return 1
            return plan.taken

    # -- the proof

    def _prove(self, call: Call, name: str) -> None:
        """Starts the proof in the background, once at a time; calls run one by one meanwhile."""
        with self._lock:
            if self._is_proving:
                return
            self._is_proving = True
        call.planner.background.submit(lambda: self._proved(call, name))

    def _proved(self, call: Call, name: str) -> None:
        """Lets the engine prove that rows are independent, with a few rows of the call.

        Without a proof nothing is stacked. Runs in the background. Whatever is raised there is the reason why calls run
        one by one.
        """
        try:
            worker: Any = call.planner.worker(name, call.site.options)
            prove = getattr(worker.engine, "independence", None)
            if prove is None:
                self.off = f"{call.site.options.engine} cannot prove that rows are independent"
                return
            leaves, structure = flatten((call.arguments, call.keywords))
            if not all(isinstance(leaf, np.ndarray) or not hasattr(leaf, "shape") for leaf in leaves):
                self.off = "its arguments are not NumPy's arrays"
                return
            few = [worker.native(worker.upload(leaf[:4])) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            self.proof = prove(call.function, *unflatten(structure, few))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here, calls run one by one
            self.off = f"looking at it raised {type(error).__name__}"
        finally:
            self._is_proving = False

    def still_holds(self, call: Call, name: str) -> bool:
        """Whether the module is as it was when it was proved; else that is done again."""
        engine: Any = call.planner.worker(name, call.site.options).engine  # type: ignore[attr-defined]
        proof = self.proof
        if proof is not None and engine.still_holds(proof, call.function):
            return True
        with self._lock:
            if self.proof is proof:
                self.proof = None
                self.compared = set()
                self.times = BatchTimes()
        return False

    # -- launches

    def launched(self, call: Call, device: str, calls: int, seconds: float, *, disturbed: bool) -> None:
        """A launch of so many calls took so long; `call` is one of them."""
        size = next((each for each in SIZES if each >= calls), SIZES[-1])
        single = call.site.chooser.estimate(device) or 0.0
        with self._lock:
            # As if it had been full: it need not be.
            self.times.measured(size, seconds * size / calls, single * size * _EXPECTED, disturbed=disturbed)

    def failed(self, error: BaseException, rows: int) -> None:
        """A launch of so many rows failed: each call runs alone now, to see which of them is the cause."""
        if isinstance(error, AllocationError):
            with self._lock:
                self._too_many = rows if self._too_many is None else min(rows, self._too_many)
        else:
            self.pass_over()

    def pass_over(self) -> None:
        """The next calls run one by one."""
        self._passed_over = _PASSED_OVER

    def agreed(self, device: str) -> None:
        self.compared.add(device)

    def disagreed(self, call: Call, device: str) -> None:
        """Stacked rows gave other results: nothing is stacked any more, in this process and later ones."""
        self.off = "rows gave other results in one launch than in separate calls"
        form = call.form.form
        if form.program is not None:
            call.planner.recall.rows_disagreed(form.program, device)
        warn_fallback(
            f"{call.site.task} runs item by item: {self.off} on {device}, although every operator of it computes rows "
            "independently. Please report it, with the module.",
            cause=(call.site.task, self.off),
        )


def best_device(call: Call) -> str | None:
    """The device that has run such calls, and would run the next; `None` before the first."""
    with call.planner.lock:
        tracks = call.site.chooser.tracks
        known = [name for name, track in tracks.items() if track.recent and not track.suspended]
        return min(known, key=lambda name: call.site.chooser.estimate(name) or 0.0, default=None)


def alike_but_for_rows(calls: Sequence[Call]) -> int:
    """How many of the first calls can be stacked: arrays of NumPy's with rows, and all else equal."""
    first, structure = flatten((calls[0].arguments, calls[0].keywords))
    for number, call in enumerate(calls):
        leaves, other = flatten((call.arguments, call.keywords))
        if other != structure or not all(map(_fits, leaves, first)):
            return number
    return len(calls)


def _fits(leaf: Any, first: Any) -> bool:
    """Whether an argument can be one launch with the first call's.

    Arrays need rows of one shape, and all else is equal.
    """
    if type(leaf) is np.ndarray:
        return type(first) is np.ndarray and leaf.shape[1:] == first.shape[1:] and leaf.dtype == first.dtype
    if isinstance(leaf, bool | int | float | str | bytes | complex | type(None)):
        return type(leaf) is type(first) and repr(leaf) == repr(first)
    return leaf is first


def stacked(calls: Sequence[Call]) -> Stacked:
    """One call with the rows of all, in their order."""
    taken = [flatten((call.arguments, call.keywords))[0] for call in calls]
    structure = flatten((calls[0].arguments, calls[0].keywords))[1]
    columns: list[Any] = [
        np.concatenate(column) if type(column[0]) is np.ndarray else column[0] for column in zip(*taken, strict=True)
    ]
    arguments, keywords = unflatten(structure, columns)
    rows = tuple(call.form.rows or 0 for call in calls)
    return Stacked(calls[0].with_arguments(arguments, keywords), rows)


def cut(value: Any, rows: Sequence[int], axes: Sequence[int]) -> list[Any]:
    """The value of each call. A part of less than half is copied, so that it does not keep the memory of the rest.

    Raises `ValueError` when the value is not as the proof says.
    """
    leaves, structure = flatten(value)
    if len(leaves) != len(axes) or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise ValueError("the results are others than those that were proved to have rows")
    total = sum(rows)
    parts: list[list[HostArray]] = [[] for _ in rows]
    for leaf, axis in zip(leaves, axes, strict=True):
        each, left = divmod(leaf.shape[axis], total)
        if left:
            raise ValueError("the results do not have the rows of the arguments")
        begin = 0
        for number, count in enumerate(rows):
            part = leaf[(slice(None),) * axis + (slice(begin, begin + count * each),)]
            parts[number].append(part.copy() if 2 * part.nbytes < leaf.nbytes else part)
            begin += count * each
    return [unflatten(structure, each) for each in parts]


def same(found: Any, expected: Any) -> bool:
    """Whether results of a launch are those of a separate call, but for the order of additions."""
    one, structure = flatten(found)
    other, wanted = flatten(expected)
    return structure == wanted and all(map(_same_leaf, one, other))


def _same_leaf(found: Any, expected: Any) -> bool:
    """Whether one result is the same. Floats may differ by a few units of rounding of the largest finite value."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind not in "fc" and found.dtype.name != "bfloat16":
        return bool(np.array_equal(found, expected))
    unit = float(np.finfo(found.dtype).eps) if found.dtype.kind in "fc" else 2.0**-7
    wide = [each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (found, expected)]
    finite = np.abs(wide[1][np.isfinite(wide[1])])
    tolerance = min(_UNITS * unit, _MOST_TOLERANCE) * (float(finite.max()) if finite.size else 0.0)
    return bool(np.allclose(wide[0], wide[1], rtol=0.0, atol=tolerance, equal_nan=True))


# -- opaque tasks on the thread of a lane: each by itself, or the rows of several in one call
#
# An opaque task is a function that is called with a library's own arrays instead of being traced.


class OpaqueRunner:
    """Runs opaque tasks for the worker of the lanes, which begins and ends them."""

    def __init__(
        self, planner: Planner, routing: Routing, queue: TaskHost, tasks: LaneWorker, clock: Callable[[], float]
    ) -> None:
        """`clock` is the one that tasks are submitted by."""
        self._planner = planner
        self._routing = routing
        self._queue = queue
        self._tasks = tasks
        self._clock = clock

    def run(self, job: Job) -> None:
        """Call the function here, with that library's own arrays."""
        engine = job.call.site.options.engine
        assert engine is not None
        waited = max(0.0, self._clock() - job.submitted)
        if self._tasks.begin(job, DeviceChoice(engine, "only", ""), Started(engine, 0)):
            self._call(job, engine, waited)

    def _call(self, job: Job, engine: str, waited: float, judge: Callable[[Any], None] | None = None) -> None:
        """Call the function of a task that has begun, and deliver; `judge` sees its value before."""
        begin = self._planner.clock()
        try:
            value, receipt = place_opaque(job.call)
        except AnyGPUError as error:
            if fault_of(error) == "user":
                raise
            spent = Phases(other=self._planner.clock() - begin)
            self._tasks.handle_failure(job, engine, error.with_traceback(None), spent)
            return
        if judge is not None:
            judge(value)
        phases = msgspec.structs.replace(receipt.phases, queue=waited)
        attempts = (*job.attempts, Attempt(device=receipt.device, phases=phases))
        why = self._routing.opaque_batches_of(job).reason
        reason = receipt.reason if why is None else f"{receipt.reason} Its calls are not put into one launch: {why}."
        receipt = msgspec.structs.replace(receipt, phases=phases, attempts=attempts, reason=reason)
        self._tasks.deliver(job, value, receipt, self._planner.clock() - begin)

    def run_together(self, lane: Lane, jobs: Sequence[Job]) -> None:
        """One call with the rows of all. If it fails, any of them may be the cause, so each is called alone."""
        first, batches = jobs[0], self._routing.opaque_batches_of(jobs[0])
        calls = [job.call for job in jobs]
        device, engine = best_device(first.call), first.call.site.options.engine
        assert engine is not None
        count = alike_but_for_rows(calls) if device is not None and batches.still_holds(first.call, device) else 1
        for job in jobs[max(1, count) :]:  # another lane may take them
            self._queue.put_back(job)
        if count < 2 or device is None:
            batches.pass_over()
            self._tasks.run_alone(lane, first)
            return
        begun, choice, start = self._clock(), DeviceChoice(engine, "only", ""), Started(engine, 0, alone=False)
        with self._queue.lock:
            running = [job for job in jobs[:count] if self._tasks.begin(job, choice, start)]
        if not running:
            return
        begin = self._planner.clock()
        conditions = self._planner.watch.begin(begin)
        launch = None
        try:
            launch = stacked([job.call for job in running])
            value, receipt = place_opaque(launch.call)
            values = cut(value, launch.rows, batches.proof.axes)
        except BaseException as error:  # noqa: BLE001
            batches.failed(error, sum(launch.rows) if launch is not None else 0)
            self._call_each(running, engine, begun)
            return
        end = self._planner.clock()
        took, disturbed = end - begin, self._planner.watch.end(conditions, end)
        if receipt.device not in batches.compared:
            self._compare(running, values, receipt.device, batches, engine, begun)
            return
        batches.launched(running[0].call, receipt.device, len(running), took, disturbed=disturbed)
        share = _Share(receipt, len(running))
        with self._queue.lock:
            lane.batches += 1
            lane.batched += len(running)
            each = took / len(running)
            finish = self._tasks.finish
            told = [(job, part) for job, part in zip(running, values, strict=True) if finish(job, part, each)]
        for job, part in told:
            self._tasks.resolve(job, part, partial(share.receipt, begun - job.submitted, job.attempts))

    def _call_each(
        self,
        jobs: Sequence[Job],
        engine: str,
        begun: float,
        judges: Sequence[Callable[[Any], None]] | None = None,
    ) -> None:
        """Call the functions of tasks that have begun, one by one. An error is that of one task."""
        for number, job in enumerate(jobs):
            try:
                waited = max(0.0, begun - job.submitted)
                self._call(job, engine, waited, judges[number] if judges is not None else None)
            except BaseException as error:  # noqa: BLE001 - the user's own
                self._tasks.fail(job, error)

    def _compare(
        self,
        jobs: Sequence[Job],
        values: Sequence[Any],
        device: str,
        batches: OpaqueBatches,
        engine: str,
        begun: float,
    ) -> None:
        """The first launch is compared with separate calls, whose results are delivered."""
        agreed: list[bool] = []

        def judge(part: Any, value: Any) -> None:
            agreed.append(same(part, value))

        attribute_to_line(jobs[0].line)
        self._call_each(jobs, engine, begun, [partial(judge, part) for part in values])
        if not all(agreed):
            batches.disagreed(jobs[0].call, device)
        elif len(agreed) == len(jobs):
            batches.agreed(device)


class _Share(NamedTuple):
    """The receipt that the calls of one launch of an opaque task share."""

    whole: Receipt
    calls: int

    def receipt(self, waited: float, attempts: tuple[Attempt, ...]) -> Receipt:
        """One call's share: seconds and bytes divided by the calls. Memory is that of the launch."""
        whole, calls = self.whole, self.calls
        phases = msgspec.structs.replace(divided(whole.phases, calls), queue=max(0.0, waited))
        predicted = whole.predicted_seconds
        return msgspec.structs.replace(
            whole,
            phases=phases,
            attempts=(*attempts, Attempt(device=whole.device, phases=phases)),
            bytes_to_device=whole.bytes_to_device // calls,
            bytes_to_host=whole.bytes_to_host // calls,
            predicted_seconds=None if predicted is None else predicted / calls,
            how=f"in one launch of {calls} calls",
        )
