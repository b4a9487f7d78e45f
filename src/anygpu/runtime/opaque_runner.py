"""Running opaque tasks on the thread of a lane: each by itself, or the rows of several in one call.

An opaque task is a function that is called with a library's own arrays instead of being traced. The first launch of
several is compared with separate calls, whose results are delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from anygpu.errors import AnyGPUError
from anygpu.placement.opaque import place_opaque
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import Attempt, Phases, Receipt, attribute_to_line
from anygpu.runtime.lanes import Job, Lane
from anygpu.runtime.routing import Routing
from anygpu.runtime.stacking import OpaqueBatches, alike_but_for_rows, best_device, cut, same, stacked
from anygpu.workers.task_lifecycle import Started, fault_of


class Queue(Protocol):
    """The scheduler, as far as launches need it."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def put_back(self, job: Job) -> None: ...


class LaneTasks(Protocol):
    """The methods of a lane's worker that tasks of every kind need."""

    def begin(self, job: Job, choice: DeviceChoice, start: Started) -> bool: ...

    def run_alone(self, lane: Lane, job: Job) -> None: ...

    def handle_failure(self, job: Job, name: str, failure: AnyGPUError, spent: Phases) -> None: ...

    def deliver(self, job: Job, value: Any, receipt: Any, seconds: float) -> None: ...

    def finish(self, job: Job, value: Any, seconds: float) -> bool: ...

    def resolve(self, job: Job, value: Any, receipt: Any) -> None: ...

    def fail(self, job: Job, error: BaseException) -> None: ...


class OpaqueRunner:
    """Runs opaque tasks for the worker of the lanes, which begins and ends them."""

    def __init__(
        self, planner: Planner, routing: Routing, queue: Queue, tasks: LaneTasks, clock: Callable[[], float]
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
        shares = {name: seconds / calls for name, seconds in msgspec.structs.asdict(whole.phases).items()}
        phases = msgspec.structs.replace(Phases(**shares), queue=max(0.0, waited))
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
