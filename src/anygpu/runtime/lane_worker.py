"""The work of a lane thread: run tasks alone or in batches, retry failures, and deliver results.

`LaneWorker.serve` takes the jobs that a lane got from the queue: it plans those of an unknown kind, runs a batch where
that pays, and the rest one by one. After a failure the task's state machine decides what follows. Nothing here holds
the scheduler's lock while a device works.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from anygpu.agreement.trust import is_finite, number_kinds
from anygpu.array.core.structure import flatten
from anygpu.base import events
from anygpu.errors import AnyGPUError, DeadlineExceeded, DeviceLost, Unsupported, name_of, text_of
from anygpu.hardware.device import DeviceKind
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import hear_numpy, learn_from
from anygpu.placement.host_tasks import run_on_host
from anygpu.placement.place_call import choose, receipt_of, run_at, run_untraced, trace_and_predict
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.planner import Planner
from anygpu.placement.retry import handle_failure, next_choice, one_line, refusal, task_for
from anygpu.receipts.notes import made
from anygpu.receipts.receipt import Attempt, Phases, PhaseTimer, Receipt, attribute_to_line, queued_receipt
from anygpu.runtime.batches import Batch, BatchResults, CheckStatus, LaunchCheck
from anygpu.runtime.future import GivingWay
from anygpu.runtime.lanes import PLANNING, Job, Lane
from anygpu.runtime.routing import KindOfBatches, Routing
from anygpu.runtime.stacking import OpaqueRunner
from anygpu.workers.task_lifecycle import FINAL, Deliver, Fail, Failed, Finished, Requeue, Started
from anygpu.workers.worker import Ran

_log = logging.getLogger(__name__)

_ALL_FREE: Mapping[str, float] = {}
_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()
_FINISHED = Finished()
_AT_HOME = DeviceChoice("numpy", "baseline", "")
_STARTED_AT_HOME = Started("numpy", 0)
#: The deadline thread kills a worker in time; after this many more seconds the worker's own timeout applies.
_LATER = 0.5
#: How often a worker may be lost while a task waits for its turn there, before that counts as the task's own failure.
_WITHDRAWALS = 8


class TaskHost(Protocol):
    """The scheduler, as the lane worker reports to it."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def free_memory(self, job: Job) -> None: ...

    def put_back(self, job: Job, seconds: float = 0.0) -> None: ...

    def settle(self, job: Job, seconds: float, *, succeeded: bool) -> None: ...

    def forget(self, job: Job) -> None: ...


class _Withdrawn(BaseException):
    """Raised when a task is about to begin that was cancelled or has expired. No error of the program, nor a user's."""


class JobStopped(Exception):
    """Raised between pieces of a task that was cancelled or has expired."""


class LaneWorker:
    """Runs tasks on the lane threads."""

    def __init__(
        self, planner: Planner, routing: Routing, host: TaskHost, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is the one that tasks are submitted and expire by."""
        self._planner = planner
        self._routing = routing
        self._host = host
        self._clock = clock
        self._opaque = OpaqueRunner(planner, routing, host, self, clock)

    def can_stop(self, job: Job) -> bool:
        """Whether the task runs in pieces, between which it can be stopped."""
        facts = job.call.site.candidates.predictions.get(job.choice.candidate) if job.choice is not None else None
        return facts is not None and facts.chunks is not None

    def kill(self, job: Job) -> None:
        """Kill the worker that runs the task."""
        if job.choice is None:
            return
        self._planner.places.kill(job.choice.candidate)

    # -- work, on the thread of a lane

    def serve(self, lane: Lane, jobs: Sequence[Job]) -> None:
        """Runs jobs that a lane has taken from the queue.

        The planning lane only traces them and queues them again. While the device is being opened, they go back to the
        queue for other lanes, and this thread waits for it. On NumPy they run one by one, elsewhere several of a kind
        together where that pays.
        """
        if lane.name == PLANNING:
            for job in jobs:
                self._plan(job)
            del job
        elif self._planner.places.is_opening(lane.name):
            self._wait_for_opening(lane, jobs)
        elif lane.name == "numpy" or len(jobs) == 1:
            # Some of them return to the queue if one of them waits for other tasks.
            for job in jobs:
                with self._host.lock:
                    wanted, job.taken = job.taken, False
                if wanted:
                    self.run_alone(lane, job)
            del job
        elif jobs[0].call.site.options.engine is not None:
            self._opaque.run_together(lane, jobs)
        else:
            self._run_batches(lane, jobs)

    def _wait_for_opening(self, lane: Lane, jobs: Sequence[Job]) -> None:
        """Wait without the tasks: another lane may take them meanwhile."""
        with self._host.lock:
            for job in jobs:
                self._routing.forget(job.call.site)
                self._host.put_back(job)
        # If it cannot be opened, whoever tries it next is told.
        with contextlib.suppress(AnyGPUError):
            self._planner.places.worker(lane.name)

    def give_up(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Fail the jobs after an unexpected error. Raises nothing: the lane has to go on."""
        for job in jobs:
            try:
                if not job.future.done():
                    self.fail(job, error)
            except BaseException:  # noqa: BLE001
                _log.exception("a task could not be told that it failed")
            try:
                if not job.future.done() and job.life.task.status in FINAL:
                    job.fail(error)
                if job.future.done():
                    self._host.forget(job)
            except BaseException:  # noqa: BLE001
                _log.exception("a task could not be closed")

    def _plan(self, job: Job) -> None:
        """Trace the function and evaluate the devices, before the task is queued for one of them."""
        attribute_to_line(job.line)
        begin = self._planner.clock()
        try:
            trace_and_predict(job.call, PhaseTimer(self._planner.clock))
            job.planning += self._planner.clock() - begin
        except BaseException as error:  # noqa: BLE001 - the user's own errors, or an unavailable device
            self.fail(job, error)
            del job
        else:
            self._requeue(job)

    def _requeue(self, job: Job) -> None:
        """Queue it again, for the device that is best by what is known now."""
        with self._host.lock:
            self._routing.forget(job.call.site)
            if not job.call.cacheable:
                job.alone()
            self._host.put_back(job)

    def _start(self, site: CallSite, name: str, *, alone: bool = True) -> Started:
        """The event for tasks that start there now."""
        if name == "numpy":
            return _STARTED_AT_HOME
        places = self._planner.places
        home = places.isolation(name, site.options.isolation)
        return Started(name, places.generation(name) or 0, alone=alone, killable=alone and home != "thread")

    def begin(self, job: Job, choice: DeviceChoice, start: Started) -> bool:
        """Mark the task as running, unless it was cancelled or has expired since it was taken."""
        with self._host.lock:
            if job.life.task.status != "queued":
                self._host.free_memory(job)
                return False
            if not job.life.task.devices:
                job.life.task = task_for(job.call, choice.candidate, idempotent=job.idempotent)
            job.choice = choice
            job.life.tell(start)
            if not job.begun:
                # Under the lock: from now on the task may expire, which completes its future.
                job.begun = True
                if not job.future.running():
                    job.future.set_running_or_notify_cancel()
        return True

    def _choose_again(
        self, call: Call, choice: DeviceChoice | None, timer: PhaseTimer, *, is_forced: bool
    ) -> DeviceChoice:
        """Trace the call of a job that a lane has taken, and choose its device by what is known now.

        It does not get the job: the traceback of the user's error, which the job's future holds, holds this frame.
        """
        with timer.phase("plan"):
            call.site.host.flush_timings(self._planner)
            if not is_forced:
                # Captured values may have changed since another such task has run.
                trace_and_predict(call, timer)
                if choice is None or not _is_candidate(call.site, choice):
                    choice = choose(call, _ALL_FREE)
        assert choice is not None, "a task that is taken by a device was meant for it"
        return choice

    def run_alone(self, lane: Lane, job: Job) -> None:
        """Run one job, and deliver its result, its error, or the job to where it is tried next."""
        call, site, planner = job.call, job.call.site, self._planner
        if lane.name == "numpy" and site.host.skip_planning > 0 and job.forced is None:
            if self.begin(job, _AT_HOME, _STARTED_AT_HOME):
                self._run_settled(job)
            del job, call  # as below
            return
        timer = PhaseTimer(planner.clock)
        timer.waited(max(0.0, self._clock() - job.submitted), job.planning)
        attribute_to_line(job.line)
        begin = planner.clock()
        choice = job.forced or job.choice
        waiting = False
        try:
            if site.options.engine is not None:
                self._opaque.run(job)
                return
            choice = self._choose_again(call, choice, timer, is_forced=job.forced is not None)
            if choice.candidate != lane.name:
                # Now that it was traced, another device is known to be faster.
                self._requeue(job)
                return
            chosen, start = choice, self._start(site, choice.candidate)

            def starting() -> None:
                nonlocal begin
                if not self.begin(job, chosen, self._start(site, chosen.candidate)):
                    raise _Withdrawn
                begin = planner.clock()

            if start.killable:
                # When its worker is free for it: until then it can be cancelled, and a kill is another task's.
                call.starting, waiting = starting, True
            elif not self.begin(job, choice, start):
                return
            self._limit(job)
            with job.modes.hold() if job.modes is not None else _NOTHING:
                value, receipt = run_at(call, choice, timer, job.attempts)
        except _Withdrawn:
            return
        except AnyGPUError as error:
            call.starting = None  # it holds the task
            if waiting and self._has_not_begun(job, choice, error):
                return
            if choice is None or choice.candidate == "numpy" or job.life.task.status == "queued":
                self.fail(job, error)
            else:
                spent = Phases(other=planner.clock() - begin)
                self.handle_failure(job, choice.candidate, error.with_traceback(None), spent)
        except JobStopped:
            self.fail(job, concurrent.futures.CancelledError())
        except BaseException as error:  # noqa: BLE001 - the user's own error is raised where the result is awaited
            call.starting = None
            self.fail(job, error)
            # The error's traceback holds this frame, and the task holds the error: only the collector would free them.
            del job, call
        else:
            self.deliver(job, value, receipt, planner.clock() - begin)

    def _has_not_begun(self, job: Job, choice: DeviceChoice | None, error: AnyGPUError) -> bool:
        """Whether a failed attempt is none of the task's: it waited, and has ended, or has to wait anew."""
        if choice is None or choice.candidate == "numpy" or job.life.task.status != "queued":
            return self._has_ended(job)
        if isinstance(error, DeviceLost) and not error.started and job.withdrawals < _WITHDRAWALS:
            job.withdrawals += 1
            self._host.put_back(job)
            return True
        # It failed on its way to the device, as when that could not be opened.
        return not self.begin(job, choice, self._start(job.call.site, choice.candidate))

    def _run_settled(self, job: Job) -> None:
        """Run a call on the processor without planning, as `Offloaded` does."""
        site, call, clock = job.call.site, job.call, self._planner.clock
        begin = clock()
        try:
            with job.modes.hold() if job.modes is not None else _NOTHING:
                value, note = run_on_host(call)
        except BaseException as error:  # noqa: BLE001
            self.fail(job, error)
            del job, call
            return
        end = clock()
        site.host.ran(end - begin)
        waited = max(0.0, self._clock() - job.submitted - (end - begin))
        self.deliver(job, value, lambda: queued_receipt(made(note), waited), end - begin)

    def _limit(self, job: Job) -> None:
        """Bounds the time of the call by the task's deadline.

        A call in pieces looks between them whether it is still wanted. The worker gets a moment longer than the
        deadline: the task expires first, and only one that hangs is killed.
        """
        call = job.call
        if job.until is not None:
            left = max(1e-3, job.until - self._clock()) + _LATER
            call.timeout = left if call.timeout is None else min(call.timeout, left)
        if self.can_stop(job):
            call.between = lambda: _stop_if_unwanted(job)

    def _has_ended(self, job: Job) -> bool:
        """Whether the task was cancelled or expired before it started."""
        with self._host.lock:
            over = job.life.task.status in FINAL
            if over:
                self._host.free_memory(job)
        return over

    def handle_failure(self, job: Job, name: str, failure: AnyGPUError, spent: Phases) -> None:
        """After a failed attempt: queue the job again for another device or another try, or fail its future."""
        if self._has_ended(job):
            return
        attribute_to_line(job.line)
        job.attempts += (Attempt(device=name, phases=spent, error=type(failure).__name__, message=text_of(failure)),)

        def refused(why: Fail) -> None:
            """Fail the future with the error for this reason; it is not tried again."""
            self._host.settle(job, spent.total, succeeded=False)
            if why.why == "late" and job.until is not None:
                job.fail(DeadlineExceeded(job.name, job.until - job.submitted))
            elif why.why == "cancelled":
                job.fail(concurrent.futures.CancelledError())
            else:
                job.fail(refusal(job.call, job.life.task, why, failure))
            self._host.forget(job)

        overdue = job.until is not None and self._clock() >= job.until
        following = handle_failure(job.call, job.life, name, failure, overdue=overdue, refused=refused)
        if isinstance(following, Requeue):
            job.alone()
            job.forced = next_choice(job.call, job.life.task, following.device, name, failure)
            self._host.put_back(job, spent.total)
        elif not isinstance(following, Fail):  # the task was abandoned, and the device is free again
            self._host.settle(job, spent.total, succeeded=False)
            self._host.forget(job)

    # -- several in one launch

    def _run_batches(self, lane: Lane, jobs: Sequence[Job]) -> None:
        """Run jobs of one kind in as few launches as pay off, and the rest one by one."""
        first = jobs[0]
        batches, choice = self._routing.batches_of(first.call.site), first.choice
        assert choice is not None, "a task that is taken by a device was meant for it"
        rest = list(jobs)
        while rest:
            planned = self._routing.plan_launch(rest, choice)
            if planned is not None:
                standing = self._check_status(planned, batches, first.call.site)
                if standing == "compare":
                    taken, rest = rest[: planned.taken], rest[planned.taken :]
                    self._start_comparison(taken, planned, batches)
                    continue
                planned = planned if standing == "agreed" else None
            if planned is None:
                alone, *rest = rest
                self._routing.not_together(batches, len(rest))
                for job in rest:  # another lane may take them
                    self._host.put_back(job)
                self.run_alone(lane, alone)
                return
            taken, rest = rest[: planned.taken], rest[planned.taken :]
            self._run_batch(lane, taken, planned, choice, batches)

    def _check_status(self, planned: Batch, batches: KindOfBatches, site: CallSite) -> CheckStatus:
        """Whether the launch may be used now."""
        if site.trust.flags and site.trust.is_shown(site.trust.flags, ""):
            # NumPy has to warn, call by call.
            return "wait"
        if not site.chooser.checked:
            return "agreed"
        with contextlib.suppress(AnyGPUError):
            worker = self._planner.worker(planned.device, site.options)
            home = site.chooser.estimate("numpy") if site.chooser.baseline == "numpy" else None
            return batches.check_status(planned, worker.generation, home)
        return "wait"

    def _start_comparison(self, jobs: Sequence[Job], planned: Batch, batches: KindOfBatches) -> None:
        """Run the calls on NumPy one by one, and compare their values with those of the launch."""
        call = jobs[0].call
        try:
            check = LaunchCheck(self._planner, call.site, call.function, batches, planned)
        except Exception:  # noqa: BLE001 - arguments that cannot be copied cannot be compared
            batches.disagreed(planned)
            check = None
        why = f"a launch of {len(jobs)} calls on {planned.device} is compared with NumPy before it is used."
        for number, job in enumerate(jobs):
            job.witness = partial(check.witness, number) if check is not None else None
            job.alone()
            job.forced = DeviceChoice("numpy", "sample", why)
            self._host.put_back(job)

    def _run_batch(
        self, lane: Lane, jobs: Sequence[Job], planned: Batch, choice: DeviceChoice, batches: KindOfBatches
    ) -> None:
        """Run one launch for all jobs. If it fails, any of them may be the cause, so each is retried alone."""
        planner = self._planner
        begun = self._clock()
        begin = planner.clock()
        # A job that was cancelled since is computed all the same, and its result dropped.
        start = self._start(jobs[0].call.site, choice.candidate, alone=False)
        with self._host.lock:
            running = [job for job in jobs if self.begin(job, choice, start)]
            if running:
                lane.batches += 1
                lane.batched += len(running)
        if not running:
            return
        try:
            with planner.using(choice.candidate, planned.seconds):
                worker = planner.worker(choice.candidate, jobs[0].call.site.options)
                made = batches.run(planned, worker, _timeout(running, begun))
        except BaseException as error:  # noqa: BLE001
            failure = _failure_of_batch(error, choice.candidate)
            spent = Phases(other=(planner.clock() - begin) / len(running))
            for job in running:
                self.handle_failure(job, choice.candidate, failure, spent)
            return
        took = planner.clock() - begin
        each = took / len(jobs)
        lasting = (took - made.ran.phases.compile) / len(jobs)
        batches.took(lasting)
        planner.add_seconds(took)
        device = planner.device(choice.candidate)
        launch = _Launch(
            jobs[0].call.site.task,
            choice,
            device.kind if device is not None else "cpu",
            made.share,
            planned.seconds / planned.taken,
            planned.how,
            planned.traced.program.key,
        )
        begun_with = set(map(id, running))
        told: list[tuple[Job, Any]] = []
        values, again = self._in_numpy_order(jobs, planned, made, choice.candidate)
        for job in again:
            if id(job) in begun_with and not self._numpy_has_warned(job):
                begun_with.discard(id(job))
                self._rerun_on_numpy(job, choice.candidate)
        way = GivingWay(wanted=jobs[0].future.is_of_a_loop)
        with self._host.lock:
            # All under one lock: concurrent submissions do not wait for it.
            for job, value in zip(jobs, values, strict=True):
                way.pause()
                if id(job) in begun_with and self.finish(job, value, each):
                    told.append((job, value))
        for job, value in told:
            way.pause()
            note = _BatchShare(launch, begun - job.submitted, job.attempts)
            self.resolve(job, value, note.receipt)

    def _in_numpy_order(
        self, jobs: Sequence[Job], planned: Batch, made: BatchResults, device: str
    ) -> tuple[list[Any], list[Job]]:
        """The values in the memory order that NumPy gives them, and the jobs that NumPy has to run as well.

        NumPy might warn of their results, or the device was never compared with it for such arguments.
        """
        site, program = jobs[0].call.site, planned.traced.program.key
        trust, automatic = site.trust, site.chooser.baseline is not None
        values: list[Any] = []
        again: list[Job] = []
        way = GivingWay(wanted=jobs[0].future.is_of_a_loop)
        for number, (job, value) in enumerate(zip(jobs, made.values, strict=True)):
            way.pause()
            inputs = planned.rows[number]
            is_new = (
                not is_finite(flatten(value)[0])
                if not made.finite and site.programs.may_warn(planned.traced)
                else False
            )
            is_new = is_new and trust.may_be_shown(planned.traced, inputs, "")
            kinds = number_kinds(planned.traced, inputs)
            is_compared = trust.knows_order(inputs) and trust.knows_numbers(program, device, kinds)
            if is_new or (automatic and not is_compared):
                again.append(job)
            values.append(trust.in_order(planned.traced, inputs, value))
        return values, again

    def _numpy_has_warned(self, job: Job) -> bool:
        """Let NumPy warn for a device that the caller asked for; the device's result stays."""
        if job.call.site.chooser.baseline is not None:
            return False
        attribute_to_line(job.line)
        try:
            hear_numpy(job.call)
        except BaseException:  # noqa: BLE001 - raised again by the second run
            return False
        return True

    def _rerun_on_numpy(self, job: Job, device: str) -> None:
        """Run the job again on NumPy, which may have to warn, and compare the device with it."""
        attribute_to_line(job.line)
        begin = self._planner.clock()
        timer = PhaseTimer(self._planner.clock)
        timer.waited(max(0.0, self._clock() - job.submitted), job.planning)
        why = f"the result of {device} is not finite, or its arguments are of a new kind; NumPy computes it again."
        try:
            value, receipt = run_untraced(job.call, DeviceChoice("numpy", "baseline", why, device), timer, job.attempts)
        except BaseException as error:  # noqa: BLE001 - the user's own
            self.fail(job, error)
            del job
        else:
            if job.call.site.programs.current is not None:
                learn_from(job.call, value)
            self.deliver(job, value, receipt, self._planner.clock() - begin)

    # -- ends

    def deliver(self, job: Job, value: Any, receipt: Any, seconds: float) -> None:
        """Finishes a job, and resolves its future unless it was abandoned meanwhile."""
        if self.finish(job, value, seconds):
            self.resolve(job, value, receipt)

    def finish(self, job: Job, value: Any, seconds: float) -> bool:
        """Record that the device has finished; returns whether to deliver the value."""
        if job.witness is not None:
            job.witness(value, True)
            job.witness = None
        try:
            job.check(value)
        except AnyGPUError as error:
            self.fail(job, error, seconds)
            return False
        with self._host.lock:
            actions = job.life.tell(_FINISHED)
            self._host.settle(job, seconds, succeeded=True)
        if actions and isinstance(actions[0], Deliver):
            return True
        # A result that arrives after its task expired or was cancelled is dropped.
        if any(isinstance(action, Fail) for action in actions):
            job.fail(concurrent.futures.CancelledError())
        self._host.forget(job)
        return False

    def resolve(self, job: Job, value: Any, receipt: Any) -> None:
        """Hand the value and the receipt to the caller, after those who observe calls or collect receipts."""
        job.future._receipt = receipt
        if job.receipt_sinks or events.calls:
            made = receipt() if callable(receipt) else receipt
            if events.calls:
                events.calls.tell(made, job.origin)
                if events.returned:
                    call = job.call
                    events.returned.tell(made, (call.function, call.arguments, call.keywords, value), job.line)
            for collected in job.receipt_sinks:
                collected.append(made)
        job.future.set_result(value)
        self._host.forget(job)

    def fail(self, job: Job, error: BaseException, seconds: float | None = None) -> None:
        """Fail the job with an error that is raised unchanged where the result is awaited.

        `seconds` is the device time used, by default the time since the job was taken.
        """
        if job.witness is not None:
            job.witness(None, False)
            job.witness = None
        if self._has_ended(job):
            return
        with self._host.lock:
            if job.life.task.status == "queued":
                job.life.task = task_for(job.call, "numpy", idempotent=job.idempotent)
                job.life.tell(Started("numpy", 0))
            actions = job.life.tell(Failed("user", name_of(error), text_of(error)))
        self._host.settle(job, self._clock() - job.started if seconds is None else seconds, succeeded=False)
        if any(isinstance(action, Fail) for action in actions):
            job.fail(error)
        self._host.forget(job)


def _stop_if_unwanted(job: Job) -> None:
    """Raises `JobStopped` between two pieces of a task that was cancelled or has expired."""
    task = job.life.task
    if task.stopping or task.status == "abandoned":
        raise JobStopped


class _Launch(NamedTuple):
    """The facts that the calls of one launch share, without arguments and results."""

    task: str
    choice: DeviceChoice
    kind: DeviceKind
    share: Ran
    predicted: float
    how: str
    program: str


class _BatchShare(NamedTuple):
    """A call's share of its launch, from which a receipt is made on demand."""

    launch: _Launch
    waited: float
    attempts: tuple[Attempt, ...]

    def receipt(self) -> Receipt:
        """The receipt of one call of the launch, with its own waiting time."""
        launch = self.launch
        share, device = launch.share, launch.choice.candidate
        phases = msgspec.structs.replace(share.phases, queue=share.phases.queue + max(0.0, self.waited))
        return receipt_of(
            share,
            phases,
            task=launch.task,
            device=device,
            kind=launch.kind,
            reason=launch.choice.sentence,
            attempts=self.attempts,
            predicted=launch.predicted,
            how=launch.how,
            program=launch.program,
            unknown=share.unknown,
        )


def _timeout(running: Sequence[Job], begun: float) -> float | None:
    """Seconds after which the worker of a batch is killed: when the last of its jobs has expired."""
    untils = [job.until for job in running]
    latest = max((until for until in untils if until is not None), default=None)
    return None if latest is None or None in untils else max(1e-3, latest - begun) + _LATER


def _failure_of_batch(error: BaseException, device: str) -> AnyGPUError:
    """The failure of every job of a batch; an error of one, such as an index out of bounds, is found by retrying."""
    if isinstance(error, AnyGPUError):
        return error.with_traceback(None)
    message = f"{device} cannot run these calls in one launch."
    return Unsupported("one launch", device, instead=one_line(text_of(error)), message=message)


def _is_candidate(site: CallSite, choice: DeviceChoice) -> bool:
    """Whether the choice is still valid after the function was traced again."""
    return choice.candidate == "numpy" or choice.candidate in site.chooser.tracks
