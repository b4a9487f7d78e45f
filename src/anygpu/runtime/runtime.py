"""The runtime: a queue in front of the devices, for many callers at once, that survives what devices do."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from types import TracebackType
from typing import Any, Self, Unpack

from anygpu.errors import DeadlineExceeded, InvalidOption, RuntimeClosed
from anygpu.notices import users_line
from anygpu.runtime.collecting import listeners
from anygpu.runtime.deadlines import Deadlines
from anygpu.runtime.future import Future
from anygpu.runtime.health import Health, health_of
from anygpu.runtime.intake import Intake, Parcel
from anygpu.runtime.jobs import Job, bytes_of
from anygpu.runtime.lanes import PLANNING, Lane
from anygpu.runtime.mapping import Outcome, Stop, map_over
from anygpu.runtime.mending import Life
from anygpu.runtime.offloading import Offloaded, Result, remembered
from anygpu.runtime.options import CallOptions, TaskOptions, options
from anygpu.runtime.places import Places
from anygpu.runtime.planner import Planner, default
from anygpu.runtime.progress import Progress
from anygpu.runtime.serving import Serving
from anygpu.runtime.signature import signature
from anygpu.tasks.machine import Cancelled, Expired, Kill, Refuse, Task
from anygpu.tasks.queue import TaskQueue, check_priority
from anygpu.tasks.tenants import Tenant

_log = logging.getLogger(__name__)

#: Functions that one runtime remembers, the latest last.
_MOST_FUNCTIONS = 256
_NO_KEYWORDS: dict[str, Any] = {}
#: A deadline beyond this is none.
_FOR_EVER = 1e8
#: How long `close` waits for tasks that run.
_PATIENCE = 10.0
#: What it takes to notice that a worker was killed.
_AFTER_A_KILL = 5.0


class Runtime:
    """A queue in front of the devices. Use it in a `with` block, which waits for what was submitted.

    `queue` tasks may wait at most, `deadline` seconds is what a task may take that has no deadline of its own. Calls
    of one function that wait together become one launch where that is predicted to pay, unless `batching` is false; no
    launch is made larger than `max_latency` seconds allow.
    """

    def __init__(
        self,
        *,
        queue: int = 1000,
        deadline: float | None = 300.0,
        tenants: Iterable[Tenant] = (),
        batching: bool = True,
        max_latency: float = 0.25,
        ageing: float = 0.5,
        known: Places | None = None,
    ) -> None:
        if deadline is not None and not deadline > 0:
            raise InvalidOption(f"deadline is a number of seconds, more than 0; got {deadline!r}.")
        if not max_latency > 0:
            raise InvalidOption(f"max_latency is a number of seconds, more than 0; got {max_latency!r}.")
        self._planner = default() if known is None else Planner(known=known)
        self._shares_planner = known is None
        self._deadline = deadline
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._queue: TaskQueue[Job] = TaskQueue(most=queue, ageing=ageing, tenants=tenants)
        self._lanes: dict[str, Lane] = {}
        self._deadlines: Deadlines[Job] = Deadlines(self._expire, time.monotonic, "anygpu-deadlines")
        self._intake = Intake(self._take_in)
        self._numbers = count(1)
        self._closed: str | None = None
        #: Whether lanes take nothing any more.
        self._ended = False
        #: Callers who are being told that their time is over, while the device may be done at any moment.
        self._telling = 0
        #: Device seconds of each tenant.
        self._used: dict[str, float] = {}
        self._functions: OrderedDict[Hashable, Offloaded[..., Any]] = OrderedDict()
        #: Tasks whose callers have not been told yet: those that wait, and those that run.
        self._jobs: dict[Future, Job] = {}
        self._serving = Serving(self._planner, self, batching=batching, max_latency=max_latency)
        _runtimes.add(self)

    # -- tasks

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Future:
        """Let the function run where it is fastest, some day soon. Returns at once.

        Arguments must not be changed before the future is done. Raises `QueueFull` or `QuotaExceeded` when no more
        tasks may wait.
        """
        future = Future(self._cancel)
        parcel = Parcel(future, function, arguments, given, time.monotonic(), listeners.get(), _callers_line())
        loop = asyncio._get_running_loop()
        if loop is not None:
            # Everything that takes time is done on another thread, once the loop has nothing else to do: whoever
            # awaits the future gets its errors there.
            self._check_open()
            self._queue.check_room(len(self._intake))
            future._hurry = self._intake.hurry
            self._intake.put_soon(parcel, loop)
            if self._ended:  # closed meanwhile
                self._take_in()
            return future
        job = self._job(parcel)
        if self.lock.acquire(blocking=False):
            try:
                self._let_in()
                self._check_open()
                self._admit(job)
            finally:
                self.lock.release()
        else:
            # Somebody is looking at the queue: no caller waits for that.
            self._check_open()
            self._queue.check(job, len(self._intake))
            self._jobs[future] = job
            self._intake.put(job)
            if self._ended:  # closed meanwhile
                self._cancel(future)
        return future

    def _job(self, parcel: Parcel) -> Job:
        """Checks everything that was asked for."""
        given, arguments = parcel.given.copy(), parcel.arguments
        priority, tenant = given.pop("priority", 0), given.pop("tenant", "default")
        seconds, nan = given.pop("deadline", None), given.pop("nan", "allow")
        idempotent = given.pop("idempotent", False)
        if seconds is None:
            seconds = self._deadline
        elif not seconds > 0:
            raise InvalidOption(f"deadline is a number of seconds, more than 0; got {seconds!r}.")
        if nan not in ("allow", "raise"):
            raise InvalidOption(f'nan is "allow" or "raise"; got {nan!r}.')
        check_priority(priority)
        function, keywords = parcel.function, _NO_KEYWORDS
        while type(function) is functools.partial:
            # One is made for each call, so only what is inside of it can be known from earlier ones.
            arguments, keywords = function.args + arguments, {**function.keywords, **keywords}
            function = function.func
        offloaded = self._function(function, given)
        call = offloaded.call(signature(arguments, keywords, floats=offloaded.floats), arguments, keywords)
        now = parcel.submitted
        return Job(
            next(self._numbers),
            call,
            parcel.future,
            Life(Task(name=call.state.task, devices=()), self.lock),
            priority=priority,
            tenant=tenant,
            submitted=now,
            until=None if seconds is None or seconds > _FOR_EVER else now + seconds,
            nan=nan,
            idempotent=idempotent,
            nbytes=bytes_of(arguments, keywords),
            hearing=parcel.hearing,
            line=parcel.line,
        )

    def run(self, function: Callable[..., Any], /, *arguments: Any, **given: Unpack[TaskOptions]) -> Result:
        """As `submit`, and wait: `.value` and `.receipt`."""
        future = self.submit(function, *arguments, **given)
        value = future.result()
        receipt = future.receipt
        assert receipt is not None, "a task that is done has a receipt"
        return Result(value, receipt)

    def map(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        progress: Progress = False,
        **given: Unpack[TaskOptions],
    ) -> list[Outcome]:
        """The function for every item, as Python's `map`: outcomes in order, each with its value or its own error.

        Waits when the queue is full. Items of one shape become batches where that pays.
        """
        return map_over(self, function, iterables, progress, given)

    async def amap(
        self,
        function: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        progress: Progress = False,
        **given: Unpack[TaskOptions],
    ) -> list[Outcome]:
        """`map` for asynchronous code: it waits on another thread, and the loop goes on."""
        stop = Stop()
        try:
            return await asyncio.to_thread(map_over, self, function, iterables, progress, given, stop)
        except asyncio.CancelledError:
            stop.stop()
            raise

    # -- the whole

    @property
    def waiting(self) -> int:
        """Tasks that wait for a device."""
        with self.lock:
            return len(self._queue)

    @property
    def limit(self) -> int:
        """Tasks that may wait."""
        return self._queue.most

    def health(self) -> Health:
        """What runs where, what waits, and what was lost; plain values."""
        with self.lock:
            return health_of(
                self._lanes.values(),
                self._queue,
                self._planner.places,
                self._used,
                closed=self._closed,
                open_tasks=len(self._jobs),
                now=time.monotonic(),
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more tasks, and wait for those that were submitted; whether all were done in time."""
        with self.lock:
            if self._closed is None:
                self._closed = "being drained"
            return self._settled.wait_for(self._is_idle, timeout)

    def close(self, timeout: float | None = _PATIENCE) -> None:
        """Take no more tasks, cancel those that wait, and wait so long for those that run. May be called twice.

        What still runs then in a process of its own is killed, and cancelled; a function that runs in this process
        cannot be stopped, and its future waits for it.
        """
        with self.lock:
            self._closed = self._closed if self._ended else "closed"
        self._cancel_waiting()
        with self.lock:
            over = self._settled.wait_for(self._is_idle, timeout)
            self._ended = True
            lanes = list(self._lanes.values())
            for lane in lanes:
                lane.ended = True
                lane.wakened.notify_all()
            stuck = [
                job for lane in lanes for jobs, _ in lane.running.values() for job in jobs if job.life.task.killable
            ]
            for job in stuck:
                self._serving.kill(job)
            if stuck:
                over = self._settled.wait_for(self._is_idle, _AFTER_A_KILL)
        # What came in the last moment, or back to the queue, is not taken any more.
        self._take_in()
        self._cancel_waiting()
        if over:
            self._deadlines.close()
            self._intake.close()
        for lane in lanes:
            for thread in lane.threads:
                if thread is not threading.current_thread():
                    thread.join(0.0 if lane.running else 5.0)
        if not self._shares_planner:
            self._planner.close()

    def _cancel_waiting(self) -> None:
        for job in list(self._jobs.values()):  # in one step: those that are done leave it at any moment
            if job.life.task.situation == "queued":
                self._cancel(job.future)

    def _is_idle(self) -> bool:
        if self._jobs or self._telling or self._intake:
            return False
        return not any(lane.running for lane in self._lanes.values())

    def _stay_behind(self) -> None:
        """In a process that was forked from ours: no thread came along, and nobody knows what they held."""
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._closed, self._ended, self._telling = "of the process that this one was forked from", True, 0
        self._lanes, self._jobs = {}, {}
        self._deadlines = Deadlines(self._expire, time.monotonic, "anygpu-deadlines")
        self._intake = Intake(self._take_in)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def __repr__(self) -> str:
        return f"<Runtime: {len(self._jobs)} open tasks, {self._closed or 'open'}>"

    # -- functions

    def _function(self, function: Callable[..., Any], given: CallOptions) -> Offloaded[..., Any]:
        """The same as the last time, with everything that is known of it."""
        if self._shares_planner:
            if isinstance(function, Offloaded) and not given:
                return function
            key: Hashable = (function, tuple(given.items()))
        else:
            key = (function, tuple(given.items()))
        try:
            found = self._functions.get(key)
        except TypeError:  # an option or a function that cannot be a key
            found, key = None, None
        if found is not None:
            return found
        with self.lock:
            if self._shares_planner:
                found = remembered(function, given)
            elif isinstance(function, Offloaded):
                wanted = options(**given) if given else function.options
                found = Offloaded(function.function, wanted, lambda: self._planner)
            else:
                found = Offloaded(function, options(**given), lambda: self._planner)
            if key is not None:
                self._functions[key] = found
                if len(self._functions) > _MOST_FUNCTIONS:
                    self._functions.popitem(last=False)
        return found

    # -- lanes. With the lock held

    def _check_open(self) -> None:
        if self._closed is not None:
            raise RuntimeClosed(self._closed)

    def _admit(self, job: Job, *, again: bool = False) -> None:
        self._queue.push(job, job.submitted, again=again)
        self._jobs[job.future] = job
        if job.until is not None:
            # Before a lane can see it: one that is done must not be added any more.
            self._deadlines.add(job.number, job, job.until)
        self._assign(job, job.submitted)

    def _let_in(self) -> None:
        """What came while the lock was taken, or from a loop. It was accepted then, and is not refused as too much."""
        for item in self._intake.take():
            if isinstance(item, Job):
                if item.life.task.situation == "queued":
                    self._admit(item, again=True)
                continue
            if not item.future.set_running_or_notify_cancel():
                continue
            try:
                if self._ended or self._closed == "closed":
                    raise RuntimeClosed(self._closed or "closed")
                job = self._job(item)
                self._queue.check_quotas(job)
                self._admit(job, again=True)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, its caller is told
                item.future.set_exception(error)

    def _assign(self, job: Job, now: float) -> None:
        """Decide which lane a task waits for, going by predicted finish, and wake it."""
        route = self._serving.recent_route(job, now)
        if route is None:
            route = self._serving.route(job, self._waiting(now), now)
        job.lane, job.seconds, job.choice = route.lane, route.seconds, route.choice
        lane, seconds = self._lane(route.lane), route.seconds
        lane.backlog += seconds
        lane.wake(now)
        if not lane.idle and job.forced is None:
            for name in self._serving.others(job, lane):
                self._lane(name).rouse()

    def _lane(self, name: str) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            width = min(4, os.cpu_count() or 1) if name == "numpy" else 1
            lane = self._lanes[name] = Lane(name, width, self.lock, self._work)
        return lane

    def _waiting(self, now: float) -> dict[str, float]:
        """For each lane, the seconds until a task that comes now would begin."""
        waiting = {
            name: lane.waiting(now) + lane.backlog / lane.width
            for name, lane in self._lanes.items()
            if lane.running or lane.backlog > 0
        }
        for device, seconds in self._planner.waiting().items():
            if seconds > waiting.get(device, 0.0):
                waiting[device] = seconds
        return waiting

    def _take(self, lane: Lane) -> list[Job]:
        """What this lane runs next."""
        if self._intake:
            self._let_in()
        if not len(self._queue):
            return []
        now = time.monotonic()
        waiting: dict[str, float] | None = None

        def fits(job: Job) -> bool:
            nonlocal waiting
            if not self._serving.has_room(lane, job):
                return False
            if job.lane == lane.name:
                return True
            if job.forced is not None or lane.name == PLANNING:
                return False
            if waiting is None:
                waiting = self._waiting(now)
                waiting.pop(lane.name, None)
            return self._serving.route(job, waiting).lane == lane.name

        jobs = self._queue.take(
            now, fits, most=lambda job, there: self._serving.how_many(lane, job, there), by=lane.name
        )
        if not jobs and lane.backlog > 0:
            # Something waits for this very lane, behind more than were looked at.
            jobs = self._queue.take(
                now, lambda job: job.lane == lane.name and self._serving.has_room(lane, job), look=None, by=lane.name
            )
        for job in jobs:
            planned = self._lanes[job.lane]
            planned.backlog = max(0.0, planned.backlog - job.seconds)
            if job.lane != lane.name:
                # It was meant for another, and is done sooner here.
                route = self._serving.route(job, waiting or {})
                job.lane, job.seconds, job.choice = lane.name, route.seconds, route.choice
            job.started = now
            self._queue.charge(job.tenant, job.seconds)
            job.held_bytes = self._serving.bytes_needed(job)
            lane.used_bytes += job.held_bytes
        return jobs

    # -- a lane's thread

    def _work(self, lane: Lane) -> None:
        me = threading.get_ident()
        while True:
            with self.lock:
                lane.idle += 1
                while not (jobs := [] if lane.ended else self._next(lane)):
                    if lane.ended:
                        lane.idle -= 1
                        return
                    lane.wait(look_again=len(self._queue) > 0)
                lane.idle -= 1
                lane.running[me] = (jobs, time.monotonic())
                if lane.width > 1 and len(self._queue):
                    # Two tasks may have come before the first of them woke anybody, and that woke only one.
                    lane.wake(time.monotonic())
            try:
                self._serving.serve(lane, jobs)
            except BaseException as error:  # noqa: BLE001 - a lane must not end with a task: others wait for it
                self._serving.give_up(jobs, error)
            finally:
                with self.lock:
                    del lane.running[me]
                    # The traceback of an error that a future has leads to those who had this list.
                    jobs.clear()
                    if self._closed is not None:
                        self._settled.notify_all()

    def _next(self, lane: Lane) -> list[Job]:
        try:
            return self._take(lane)
        except Exception:  # noqa: BLE001
            # A bug of ours must not cost a device its lane: it looks again in a moment.
            _log.exception("a lane of anygpu could not look for its next task")
            return []

    # -- what the lanes' work tells

    def _take_in(self) -> None:
        with self.lock:
            self._let_in()
            if self._closed is not None:
                self._settled.notify_all()

    def put_back(self, job: Job, seconds: float = 0.0) -> None:
        """It waits again, at its old place; its tenant has had so much of the device for nothing."""
        now = time.monotonic()
        with self.lock:
            self.left(job)
            self._queue.charge(job.tenant, seconds - job.seconds)
            if job.life.task.situation != "queued":  # cancelled, or late, while it was looked at
                return
            if not self._ended:
                self._queue.push(job, now, again=True)
                self._assign(job, now)
                return
        self._cancel(job.future)

    def settle(self, job: Job, seconds: float, *, succeeded: bool) -> None:
        """The device is done with it."""
        self._deadlines.forget(job.number)
        with self.lock:
            lane = self._lanes[job.lane]
            self.left(job)
            lane.busy_seconds += seconds
            if succeeded:
                lane.done += 1
            else:
                lane.failed += 1
            self._queue.charge(job.tenant, seconds - job.seconds)
            self._used[job.tenant] = self._used.get(job.tenant, 0.0) + seconds
            self._queue.finished(job)

    def left(self, job: Job) -> None:
        """It is on its lane no more."""
        lane = self._lanes[job.lane]
        lane.used_bytes -= job.held_bytes
        job.held_bytes = 0

    def closed(self, job: Job) -> None:
        """Its caller has been told."""
        self._jobs.pop(job.future, None)
        # Whoever closes it looks at the tasks that are left after having said so: one of both sees the other.
        if self._closed is not None and not self._jobs:
            with self.lock:
                self._settled.notify_all()
            if self._ended:
                self._deadlines.end()
                self._intake.end()

    # -- ends that come from outside

    def _cancel(self, future: Future) -> bool:
        with self.lock:
            job = self._jobs.get(future)
            if job is None and not future.done():  # on its way from a loop
                return concurrent.futures.Future.cancel(future)
            if job is None or future.done():
                return future.cancelled()
            if job.life.task.situation != "queued" and not self._serving.can_stop(job):
                return False
            waited = job.life.task.situation == "queued"
            job.life.tell(Cancelled())
            if waited:
                self._unqueue(job)
        if waited:
            self._deadlines.forget(job.number)
            if concurrent.futures.Future.cancel(future):
                future.set_running_or_notify_cancel()
            else:  # it has run before, and waits to be run again
                future.set_exception(concurrent.futures.CancelledError())
            self.closed(job)
        return True

    def _expire(self, job: Job) -> None:
        """From the thread that knows whose time is over."""
        with self.lock:
            waited = job.life.task.situation == "queued"
            actions = job.life.tell(Expired())
            if waited and actions:
                self._unqueue(job)
            if any(isinstance(action, Kill) for action in actions):
                # With the lock held, so that its lane has not begun with another one.
                self._serving.kill(job)
            refused = next((action for action in actions if isinstance(action, Refuse)), None)
            if refused is None:
                return
            self._telling += 1
        try:
            if refused.why == "cancelled":
                job.future.set_exception(concurrent.futures.CancelledError())
            else:
                seconds = (job.until or job.submitted) - job.submitted
                job.future.set_exception(DeadlineExceeded(job.name, seconds, still_running=refused.still_running))
        finally:
            with self.lock:
                self._telling -= 1
                if waited:
                    self._jobs.pop(job.future, None)
                if self._is_idle():
                    self._settled.notify_all()

    def _unqueue(self, job: Job) -> None:
        if self._queue.remove(job):
            lane = self._lanes[job.lane]
            lane.backlog = max(0.0, lane.backlog - job.seconds)
        self._queue.finished(job)


_runtimes: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _callers_line() -> tuple[str, int]:
    """As `users_line`, and quicker where `submit` was called by the user."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__", "anygpu.").startswith("anygpu."):
        return users_line()
    return frame.f_code.co_filename, frame.f_lineno


_default: Runtime | None = None
_making = threading.Lock()


def default_runtime() -> Runtime:
    """The runtime of `submit` and `map`, made when one of them is first called."""
    global _default
    if _default is None:
        with _making:
            if _default is None:
                _default = Runtime()
                atexit.register(_close_default)
    return _default


def _close_default() -> None:
    if _default is not None:
        _default.close()


def _forked() -> None:
    """In a process that was forked from ours there are none of its threads."""
    global _default, _making
    _default, _making = None, threading.Lock()
    for runtime in list(_runtimes):
        runtime._stay_behind()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
