"""The scheduler: waiting tasks, the lanes that run them, cancellation and deadlines.

One lock guards the queue, the lanes and all accounts; it is not held while a device works. Each lane has threads that
run `_work`; more are started for tasks that others wait for, and for large ones whose transfers can overlap.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from anygpu.base.interrupts import may_be_interrupted, uninterrupted
from anygpu.errors import DeadlineExceeded, RuntimeClosed
from anygpu.placement.planner import Planner
from anygpu.runtime.future import Future, here
from anygpu.runtime.health import Health, LaneHealth, Visit, Visits, health_of, lanes_of
from anygpu.runtime.intake import Deadlines, Intake, Submission
from anygpu.runtime.lane_worker import LaneWorker
from anygpu.runtime.lanes import PLANNING, Job, Lane, LaneIndex
from anygpu.runtime.routing import Dispatcher, Routing
from anygpu.runtime.task_queue import TaskQueue
from anygpu.workers.task_lifecycle import Cancelled, Expired, Fail, Kill

_log = logging.getLogger(__name__)

#: Seconds within which the death of a killed worker is noticed.
_AFTER_A_KILL = 5.0


class Scheduler:
    """A queue, and the lanes that take from it. Thread-safe; each device has a thread of its own."""

    def __init__(
        self, planner: Planner, queue: TaskQueue[Job], routing: Routing, make_job: Callable[[Submission], Job]
    ) -> None:
        """Makes a scheduler without threads or lanes; `make_job` checks a submission and makes its job.

        One lock guards the queue, the lanes and all accounts. Tasks run without it.
        """
        self._planner = planner
        self._make_job = make_job
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._queue = queue
        self._lanes = LaneIndex(self._make_lane)
        self._dispatcher = Dispatcher(queue, routing, self._lanes, planner.waiting)
        self._deadlines: Deadlines[Job] = Deadlines(self._expire, time.monotonic, "anygpu-deadlines")
        self._intake = Intake(self._admit_pending)
        self._closed: str | None = None
        #: Whether lanes have stopped taking tasks.
        self._ended = False
        #: Deadline errors being delivered, while the device may finish at any moment.
        self._telling = 0
        #: Device seconds of each tenant.
        self._used: dict[str, float] = {}
        #: Waiting and running tasks, whose futures are not done.
        self._jobs: dict[Future, Job] = {}
        self._visits = Visits(self._visit_ended)
        self._routing = routing
        self._lane_worker = LaneWorker(planner, routing, self)
        _schedulers.add(self)

    # -- tasks

    def put(self, submission: Submission, *, beyond: bool = False) -> None:
        """Admit a task, also `beyond` the queue's limit. Never waits for the queue's lock."""
        future = submission.future
        loop = asyncio._get_running_loop()
        if loop is not None:
            # Everything that takes time is done on another thread, after the loop's turn: errors are raised where the
            # future is awaited.
            self._check_open()
            if not beyond:
                self._queue.check_room(len(self._intake))
            future._hurry = self._intake.hurry
            self._intake.put_soon(submission, loop)
            if self._ended:  # closed meanwhile
                self._admit_pending()
            return
        job = self._make_job(submission)
        if may_be_interrupted():
            # One atomic step; the rest is done on other threads. Only a task that may be refused is waited for.
            self._check_open()
            if beyond or self._queue.surely_takes(job, len(self._intake)):
                self._intake.put(job)
                if self._ended:  # closed meanwhile
                    self.cancel(future)
            else:
                uninterrupted(lambda: self._put_now(job, again=False))
        elif self.lock.acquire(blocking=False):
            try:
                self._put_now(job, again=beyond)
            finally:
                self.lock.release()
        else:
            self._check_open()
            if not beyond:
                self._queue.check(job, len(self._intake))
            self._intake.put(job)
            if self._ended:  # closed meanwhile
                self.cancel(future)

    def _put_now(self, job: Job, *, again: bool) -> None:
        """Admits a task under the lock, after those that came before it.

        It raises if the runtime is closed or the queue is full.
        """
        with self.lock:
            self._admit_intake()
            self._check_open()
            self._admit(job, again=again)

    # -- tasks on their callers' own threads

    def visit(self, task: str, device: str, predicted: float) -> Visit | None:
        """Let the caller's own thread run a task there, if nothing else is open: there is no order to keep then."""
        if self._closed is not None or self._jobs or self._intake or self._visits:
            return None
        visit = self._visits.begin(task, device, predicted)
        # `drain` and `close` set `_closed` before they look at what is open, so one of the two sees the other.
        if self.state != "open":
            visit.end()
            return None
        return visit

    def visited(self, visit: Visit, tenant: str, seconds: float, *, succeeded: bool) -> None:
        """Account for a task that its caller has run."""
        with self.lock:
            self._lanes[visit.device].account(seconds, succeeded=succeeded)
            self._queue.charge(tenant, seconds)
            self._used[tenant] = self._used.get(tenant, 0.0) + seconds

    def _visit_ended(self) -> None:
        if self._closed is not None:
            with self.lock:
                self._settled.notify_all()

    # -- the whole

    @property
    def open_tasks(self) -> int:
        """The number of tasks that were submitted and are not done, visits included."""
        return len(self._jobs) + len(self._intake) + len(self._visits)

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._intake)

    @property
    def state(self) -> str:
        return self._closed or "open"

    def health(self) -> Health:
        """Running, waiting and lost tasks of each device, as plain values."""
        if self._intake:
            uninterrupted(self._admit_pending)
        with self.lock:
            return health_of(
                self._lanes,
                self._visits.open(),
                self._queue,
                self._planner.places,
                self._used,
                closed=self._closed,
                open_tasks=self.open_tasks,
                now=time.monotonic(),
                mismatches=self._planner.mismatches(),
            )

    def load(self, counts: Callable[[Job], bool]) -> tuple[float, tuple[LaneHealth, ...]]:
        """The predicted seconds of those waiting tasks that count, and what runs where."""
        with self.lock:
            queued = sum(job.seconds for job in self._queue if counts(job))
            return queued, lanes_of(self._lanes, self._visits.open(), self._planner.places, time.monotonic())

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more tasks, and wait for those that were submitted; whether all were done in time."""
        return uninterrupted(lambda: self._drain(timeout))

    def _drain(self, timeout: float | None) -> bool:
        """Refuses tasks from now on, and waits until nothing is open.

        Returns whether that came within `timeout` seconds.
        """
        with self.lock:
            if self._closed is None:
                self._closed = "being drained"
            self._admit_intake()
            return self._settled.wait_for(self._is_idle, timeout)

    def close(self, timeout: float | None) -> None:
        """See `Runtime.close`."""
        uninterrupted(lambda: self._close(timeout))

    def _close(self, timeout: float | None) -> None:
        """Ends the scheduler. What waits is cancelled.

        What runs has `timeout` seconds, and is killed then if it can be. A thread that still runs a task is left
        behind, as it is a daemon. Calling it again does no harm.
        """
        with self.lock:
            self._closed = self._closed if self._ended else "closed"
            self._admit_intake()
        self._cancel_waiting()
        with self.lock:
            over = self._settled.wait_for(self._is_idle, timeout)
            self._ended = True
            lanes = list(self._lanes)
            for lane in lanes:
                lane.ended = True
                lane.wakened.notify_all()
            stuck = [
                job for lane in lanes for jobs, _ in lane.running.values() for job in jobs if job.life.task.killable
            ]
            visits = self._visits.open()
            for job in stuck:
                self._lane_worker.kill(job)
            for visit in visits:
                self._planner.places.kill(visit.device)
            if stuck or visits:
                over = self._settled.wait_for(self._is_idle, _AFTER_A_KILL)
        # What came in the last moment, or back to the queue, is not taken any more.
        self._admit_pending()
        self._cancel_waiting()
        if over:
            self._deadlines.close()
            self._intake.close()
        for lane in lanes:
            for thread in (*lane.threads, *tuple(lane.spare)):
                if thread is not threading.current_thread():
                    thread.join(0.0 if lane.running else 5.0)

    def _cancel_waiting(self) -> None:
        """Cancels every task that waits."""
        for job in list(self._jobs.values()):  # in one step: those that are done leave it at any moment
            if job.life.task.status == "queued":
                self.cancel(job.future)

    def _is_idle(self) -> bool:
        """Whether nothing waits, runs or is being reported. The caller must hold the lock."""
        if self._jobs or self._telling or self._intake or self._visits:
            return False
        return not any(lane.running for lane in self._lanes)

    def stay_behind(self) -> None:
        """Called in a forked child: it has no threads, and locks may be held for ever."""
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._closed, self._ended, self._telling = "of the process that this one was forked from", True, 0
        self._lanes, self._jobs, self._visits = LaneIndex(self._make_lane), {}, Visits(self._visit_ended)
        self._dispatcher = Dispatcher(self._queue, self._routing, self._lanes, self._planner.waiting)
        self._deadlines = Deadlines(self._expire, time.monotonic, "anygpu-deadlines")
        self._intake = Intake(self._admit_pending)

    # -- lanes. With the lock held

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RuntimeClosed(self._closed)

    def _admit(self, job: Job, *, again: bool = False) -> None:
        """Puts a task into the queue with its deadline, and assigns it to a lane. The caller must hold the lock."""
        self._queue.push(job, job.submitted, again=again)
        self._jobs[job.future] = job
        if job.until is not None:
            # Before a lane can see it: one that is done must not be added any more.
            self._deadlines.add(job.number, job, job.until)
        self._assign(job, job.submitted)

    def _admit_intake(self) -> None:
        """Admit tasks that arrived while the lock was taken, or from a loop. They were accepted: no limit applies."""
        for item in self._intake.take():
            if item.future.cancelled():
                continue
            if isinstance(item, Job):
                if self._ended or self._closed == "closed":
                    concurrent.futures.Future.cancel(item.future)
                    item.future.set_running_or_notify_cancel()
                    continue
                self._admit(item, again=True)
                continue
            if not item.future.set_running_or_notify_cancel():
                continue
            try:
                if self._ended or self._closed == "closed":
                    raise RuntimeClosed(self._closed or "closed")
                job = self._make_job(item)
                self._queue.check_quotas(job)
                self._admit(job, again=True)
            except BaseException as error:  # noqa: BLE001 - every error is the caller's
                item.future.set_exception(error)

    def _assign(self, job: Job, now: float) -> None:
        """Choose the lane with the earliest predicted finish, and wake it."""
        lane = self._dispatcher.assign(job, now)
        if job.future._is_awaited:
            lane.awaited[job] = None
            self._start_spares(lane)
        lane.wake(now)
        if lane.running and not lane.idle:
            self._start_ahead(lane)
        self._dispatcher.rouse_others(job, lane)

    def _make_lane(self, name: str) -> Lane:
        """Makes the lane of a device: NumPy's runs several tasks at once, any other one."""
        width = min(4, os.cpu_count() or 1) if name == "numpy" else 1
        return Lane(name, width, self.lock, self._work)

    def _take(self, lane: Lane) -> list[Job]:
        """The tasks that this lane runs next."""
        if self._intake:
            self._admit_intake()
        if not len(self._queue):
            return []
        if lane.ahead is not None and lane.running:
            return self._next_ahead(lane)
        return self._dispatcher.take(lane, time.monotonic())

    # -- a lane's thread

    def _work(self, lane: Lane) -> None:
        """The loop of a lane's thread: takes tasks, runs them without the lock, and sleeps while there are none.

        Before it runs something it wakes another thread of a wide lane, and starts those that awaited or large tasks
        need.
        """
        here.seat = _LaneSeat(self, lane)
        while True:
            with self.lock:
                lane.idle += 1
                while not (jobs := [] if lane.ended else self._next(lane)):
                    if lane.ended:
                        lane.idle -= 1
                        return
                    lane.wait(len(self._lanes), look_again=len(self._queue) > 0)
                lane.idle -= 1
                self._dispatcher.began(lane, threading.get_ident(), jobs, time.monotonic())
                if lane.width > 1 and len(self._queue):
                    # Two tasks may have arrived before the first of them woke a thread, and that woke only one.
                    lane.wake(time.monotonic())
                self._start_spares(lane)
                if len(self._queue):
                    self._start_ahead(lane)
            self._run(lane, jobs)

    def _run(self, lane: Lane, jobs: list[Job]) -> None:
        """Runs tasks that were taken, and accounts for their end, whatever they raise."""
        try:
            self._lane_worker.serve(lane, jobs)
        except BaseException as error:  # noqa: BLE001 - a task must not end its lane
            self._lane_worker.give_up(jobs, error)
        finally:
            with self.lock:
                self._dispatcher.ended(lane, threading.get_ident())
                if here.waits:  # such as an `as_completed` that was not exhausted
                    here.waits = 0
                    lane.blocked -= 1
                # The traceback of an error that a future holds leads to frames with this list.
                jobs.clear()
                if self._closed is not None:
                    self._settled.notify_all()

    def _next(self, lane: Lane) -> list[Job]:
        """Returns the next tasks of a lane; an error of ours is logged, as it must not end the thread."""
        try:
            return self._take(lane)
        except Exception:  # noqa: BLE001
            # A bug must not cost a device its lane: it looks again in a moment.
            _log.exception("a lane could not take its next task")
            return []

    # -- tasks that wait for tasks

    def awaited(self, future: Future, soon: bool = False) -> None:
        """A lane thread, of this or another runtime, is about to wait for the future."""
        if soon:
            self.call(partial(self.awaited, future))
            return
        with self.lock:
            job = self._jobs.get(future)
            if job is not None and job.lane and job.life.task.status == "queued" and not job.taken:
                lane = self._lanes[job.lane]
                lane.awaited[job] = None
                self._start_spares(lane)

    def block(self, lane: Lane, thread: int) -> None:
        """A lane thread waits for a future. Other tasks that it has taken return to the queue."""
        with self.lock:
            jobs: list[Job] = lane.running[thread][0] if thread in lane.running else []
            others = [job for job in jobs if job.taken]
            for job in others:
                jobs.remove(job)
                job.taken = False
            lane.blocked += 1
            self._start_spares(lane)
        for job in others:
            self.put_back(job)

    def call(self, tell: Callable[[], None]) -> None:
        """Run a callback later, for a thread that must not wait for the lock."""
        self._intake.call(tell)

    def unblock(self, lane: Lane) -> None:
        with self.lock:
            lane.blocked -= 1

    def _start_spares(self, lane: Lane) -> None:
        """Start spare threads for awaited tasks, in place of blocked ones. The caller must hold the lock."""
        while lane.awaited and lane.active < lane.width and not lane.ended:
            if lane.idle:
                lane.wakened.notify()  # it calls this again after it has taken a task
                return
            jobs = self._next_awaited(lane)
            if not jobs:
                return
            self._start_beside(lane, jobs, "spare", partial(self._next_as_spare, lane))

    def _next_awaited(self, lane: Lane) -> list[Job]:
        """Takes the first task of the lane that a running task waits for, out of turn.

        Returns `[]` if there is none, or if it has to wait for memory of the tasks that run.
        """
        for job in list(lane.awaited):
            if lane.active > 0 and not self._routing.has_room(lane, job):
                continue  # there will be memory when a running task ends
            if self._queue.take_this(job):
                self._dispatcher.taken(lane, job, time.monotonic())
                return [job]
            del lane.awaited[job]
        return []

    def _next_as_spare(self, lane: Lane) -> list[Job]:
        """The next task of a spare thread; without any it ends. The caller must hold the lock."""
        return [] if lane.ended or lane.active >= lane.width else self._next_awaited(lane)

    # -- large tasks whose transfers overlap

    def _start_ahead(self, lane: Lane) -> None:
        """Start a second thread for the next large task, if one runs. The caller must hold the lock."""
        if lane.ahead is not None or lane.width > 1 or lane.active != 1 or lane.ended or lane.name == PLANNING:
            return
        if not all(self._routing.is_large(job) for jobs, _ in lane.running.values() for job in jobs):
            return
        jobs = self._next_ahead(lane)
        if jobs:
            lane.ahead = self._start_beside(lane, jobs, "ahead", partial(self._next_after_ahead, lane))

    def _next_ahead(self, lane: Lane) -> list[Job]:
        """Takes the next large task whose transfers may overlap those of the one that runs; `[]` if there is none."""
        now = time.monotonic()
        jobs = self._queue.take(now, lambda job: self._routing.may_overlap(lane, job), by=lane.name)
        for job in jobs:
            self._dispatcher.taken(lane, job, now)
        return jobs

    def _next_after_ahead(self, lane: Lane) -> list[Job]:
        """The next tasks of that thread; without any it ends. The caller must hold the lock."""
        jobs = [] if lane.ended or lane.active > 1 or not len(self._queue) else self._next_ahead(lane)
        if not jobs:
            lane.ahead = None
            lane.wakened.notify()
        return jobs

    # -- threads beside those of a lane: in place of blocked ones, and for transfers that overlap

    def _start_beside(
        self, lane: Lane, jobs: list[Job], what: str, following: Callable[[], list[Job]]
    ) -> threading.Thread:
        """Starts a thread that runs these tasks, and then those of `following` until there are none.

        The caller must hold the lock.
        """
        thread = threading.Thread(
            target=self._work_beside, args=(lane, jobs, following), name=f"anygpu-{lane.name}-{what}", daemon=True
        )
        # It is counted before it runs, so that no second one is started in the same place.
        lane.spare.add(thread)
        thread.start()
        assert thread.ident is not None
        self._dispatcher.began(lane, thread.ident, jobs, time.monotonic())
        return thread

    def _work_beside(self, lane: Lane, jobs: list[Job], following: Callable[[], list[Job]]) -> None:
        """The loop of such a thread."""
        here.seat = _LaneSeat(self, lane)
        with self.lock:  # until `_start_beside` has registered this thread
            pass
        while jobs:
            self._run(lane, jobs)
            with self.lock:
                jobs = following()
                if jobs:
                    self._dispatcher.began(lane, threading.get_ident(), jobs, time.monotonic())
                else:
                    lane.spare.discard(threading.current_thread())

    # -- reports of the lane worker

    def _admit_pending(self) -> None:
        """Admits what is in the intake, and wakes a thread that waits for the runtime to become idle."""
        with self.lock:
            self._admit_intake()
            if self._closed is not None:
                self._settled.notify_all()

    def put_back(self, job: Job, seconds: float = 0.0) -> None:
        """Queue it again at its old position, and charge its tenant for the seconds used."""
        now = time.monotonic()
        with self.lock:
            if not self._dispatcher.returned(job, seconds):
                return
            if not self._ended:
                self._queue.push(job, now, again=True)
                self._assign(job, now)
                return
        self.cancel(job.future)

    def settle(self, job: Job, seconds: float, *, succeeded: bool) -> None:
        """Account for a task that the device has finished."""
        self._deadlines.forget(job.number)
        with self.lock:
            self._dispatcher.settle(job, seconds, succeeded=succeeded)
            self._used[job.tenant] = self._used.get(job.tenant, 0.0) + seconds

    def free_memory(self, job: Job) -> None:
        """Return the task's memory to its lane."""
        self._dispatcher.free_memory(job)

    def forget(self, job: Job) -> None:
        """Forget a task whose future is done."""
        self._jobs.pop(job.future, None)
        # `close` sets `_closed` before it looks at the open tasks, so one of the two sees the other.
        if self._closed is not None and not self._jobs:
            with self.lock:
                self._settled.notify_all()
            if self._ended:
                self._deadlines.end()
                self._intake.end()

    # -- cancellation and deadlines

    def cancel(self, future: Future) -> bool:
        """Cancels the task of a future, to its end also when the caller is interrupted; whether it will not deliver."""
        return uninterrupted(lambda: self._cancel(future))

    def _cancel(self, future: Future) -> bool:
        """Cancels the task of a future; returns whether it will not deliver.

        A task that waits leaves the queue at once. One that runs in pieces is told, and stops after the present one;
        any other that runs goes on, and `False` is returned.
        """
        with self.lock:
            job = self._jobs.get(future)
            if job is None and not future.done():  # still in the intake
                if not concurrent.futures.Future.cancel(future):
                    return False
                future.set_running_or_notify_cancel()
                return True
            if job is None or future.done():
                return future.cancelled()
            if job.life.task.status != "queued" and not self._lane_worker.can_stop(job):
                return False
            waited = job.life.task.status == "queued"
            job.life.tell(Cancelled())
            if waited:
                self._dispatcher.unqueue(job)
        if waited:
            self._deadlines.forget(job.number)
            if concurrent.futures.Future.cancel(future):
                future.set_running_or_notify_cancel()
            else:  # it has run before, and waits for a retry
                future.set_exception(concurrent.futures.CancelledError())
            self.forget(job)
        return True

    def _expire(self, job: Job) -> None:
        """Called by the deadline thread."""
        with self.lock:
            waited = job.life.task.status == "queued"
            actions = job.life.tell(Expired())
            if waited and actions:
                self._dispatcher.unqueue(job)
            if any(isinstance(action, Kill) for action in actions):
                # Under the lock, so that its lane has not started another task.
                self._lane_worker.kill(job)
            refused = next((action for action in actions if isinstance(action, Fail)), None)
            if refused is None:
                return
            self._telling += 1
        try:
            if refused.why == "cancelled":
                job.fail(concurrent.futures.CancelledError())
            else:
                seconds = (job.until or job.submitted) - job.submitted
                job.fail(DeadlineExceeded(job.name, seconds, still_running=refused.still_running))
        finally:
            with self.lock:
                self._telling -= 1
                if waited:
                    self._jobs.pop(job.future, None)
                if self._is_idle():
                    self._settled.notify_all()


class _LaneSeat:
    """A lane thread, for `Waiting`."""

    __slots__ = ("_lane", "_scheduler")

    def __init__(self, scheduler: Scheduler, lane: Lane) -> None:
        self._scheduler = scheduler
        self._lane = lane

    def block(self, *, soon: bool = False) -> None:
        block = partial(self._scheduler.block, self._lane, threading.get_ident())
        self._scheduler.call(block) if soon else block()

    def unblock(self, *, soon: bool = False) -> None:
        unblock = partial(self._scheduler.unblock, self._lane)
        self._scheduler.call(unblock) if soon else unblock()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _forked() -> None:
    """Called in a forked child, which has none of the threads."""
    for scheduler in list(_schedulers):
        scheduler.stay_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
