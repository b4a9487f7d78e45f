"""One driver: the real dispatcher, routing, lane worker and state machine, with lanes that are events of the clock.

Where a real lane has threads, `SimulatedLane` has events; where a real device computes, `SimulatedDriver._launch`
schedules an answer. Everything that decides is the code that runs in production, and is measured here.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import numpy as np

from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.disturbance import Conditions
from anygpu.calls.call_table import CallTable
from anygpu.calls.options import Options
from anygpu.errors import AnyGPUError, DeadlineExceeded, DeviceHung, DeviceLost, DeviceUnavailable, QueueFull
from anygpu.fleet.simulation.scenario import (
    OPENING,
    DecisionMeter,
    EventClock,
    Ledger,
    Scenario,
    SimulatedDevice,
    SimulatedFuture,
    SimulatedPlanner,
)
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.candidates import Prediction
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.plan.predicting import predict
from anygpu.placement.planner import Planner
from anygpu.placement.retry import LockedTask
from anygpu.receipts.receipt import Phases
from anygpu.runtime.batches import Batch
from anygpu.runtime.intake import DeadlineHeap
from anygpu.runtime.lane_worker import LaneWorker
from anygpu.runtime.lanes import Job, LaneIndex, LaneLoad
from anygpu.runtime.routing import Dispatcher, Routing
from anygpu.runtime.task_queue import TaskQueue, Tenant
from anygpu.workers.task_lifecycle import Expired, Fail, Kill, Started, Task

_NO_LINE = ("", 0)
#: A driver that is free sooner than this gets to a task at once: an event for that would tell nothing.
_AT_ONCE = 1e-4


class SimulatedLane(LaneLoad):
    """A lane whose threads are events."""

    def __init__(self, name: str, width: int, look_soon: Callable[[SimulatedLane], None]) -> None:
        """Makes a lane whose wake-ups are events; `woken` counts those that have not come yet."""
        super().__init__(name, width)
        self._look_soon = look_soon
        #: Idle threads that were woken and have not looked yet; and which of the scheduled looks still counts.
        self.woken = 0
        self.turn = 0

    def notify(self) -> None:
        if self.woken < self.idle:
            self.woken += 1
            self._look_soon(self)

    def start(self) -> None:
        self.started += 1
        self.idle += 1
        self.notify()


class _Work:
    """The tasks that one thread of a lane has taken and not yet launched."""

    __slots__ = ("jobs", "lane", "rest", "thread")

    def __init__(self, lane: SimulatedLane, thread: int, jobs: list[Job]) -> None:
        """Keeps the tasks that a thread has taken; `rest` are those not launched yet."""
        self.lane = lane
        self.thread = thread
        self.jobs = jobs
        self.rest: list[Job] = list(jobs)


class SimulatedLaunch:
    """Tasks that are on their way to a device, on it, or on their way back."""

    __slots__ = ("batch", "began", "choice", "done_at", "driver", "gone", "jobs", "seconds", "waited", "work")

    def __init__(
        self, driver: SimulatedDriver, work: _Work, jobs: Sequence[Job], choice: DeviceChoice, batch: Batch | None
    ) -> None:
        """Begins a launch now, by the simulated clock; `gone` is set when it has ended or is lost."""
        self.driver = driver
        self.work = work
        self.jobs = jobs
        self.choice = choice
        self.batch = batch
        self.began = driver.clock.now
        #: When its answer is there, what it takes on the device, and how long it waited for the driver's processor.
        self.done_at = self.seconds = self.waited = 0.0
        #: Whether no result will come.
        self.gone = False


class SimulatedDriver:
    """A runtime without threads. It is the host that the real lane worker reports to."""

    def __init__(
        self,
        scenario: Scenario,
        devices: Mapping[str, SimulatedDevice],
        tenants: Sequence[str],
        clock: EventClock,
        ledger: Ledger,
        draw: random.Random,
    ) -> None:
        """Makes a driver with the real queue, routing and lane worker, over simulated devices.

        Its own processor is simulated too: `_free_at` is when it can do the next thing.
        """
        self.clock = clock
        #: Nobody else wants it; it is for what locks in a runtime.
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.tenants = tenants
        self._scenario = scenario
        self._devices = devices
        self._ledger = ledger
        self._draw = draw
        self.planner = SimulatedPlanner(devices, clock, scenario)
        routing = Routing(self.planner, batching=scenario.batching, max_latency=0.25)
        self.queue: TaskQueue[Job] = TaskQueue(
            most=scenario.room, tenants=[Tenant(name=name) for name in tenants] if len(tenants) > 1 else ()
        )
        lanes = LaneIndex(self._make_lane)
        self.dispatcher = Dispatcher(self.queue, routing, lanes, self.planner.waiting)
        self._worker = LaneWorker(self.planner, routing, self, clock)
        self._deadlines: DeadlineHeap[Job] = DeadlineHeap()
        self._expiring: float | None = None
        self._numbers, self._threads = count(1), count(1)
        self._calls = [_calls(self.planner, kind, scenario, list(devices), draw) for kind in range(scenario.kinds)]
        #: Until when its processor is busy, and how long it was.
        self._free_at = self.busy_seconds = 0.0
        #: Lanes with a thread that was woken, in order.
        self._woken: deque[SimulatedLane] = deque()
        self.meter = DecisionMeter()
        self.open_jobs: set[Job] = set()

    # -- what the driver's processor takes

    def _occupy(self, seconds: float) -> float:
        """When it has done something that comes now and takes so long."""
        self.busy_seconds += seconds
        self._free_at = max(self.clock.now, self._free_at) + seconds
        return self._free_at

    # -- tasks

    def submit(self, tenant: str, kind: int, priority: int, on_end: Callable[[], None] | None) -> None:
        """A caller submits a task, which the driver gets to when its processor is free."""
        ready = self._occupy(self._scenario.driver_task / 2)
        self._ledger.submitted += 1
        if ready - self.clock.now > _AT_ONCE:
            self.clock.at(ready, self._admit, self.clock.now, tenant, kind, priority, on_end)
        else:
            self._admit(self.clock.now, tenant, kind, priority, on_end)

    def _admit(
        self, submitted: float, tenant: str, kind: int, priority: int, on_end: Callable[[], None] | None
    ) -> None:
        """Queue a task that has arrived, or count it as refused."""
        begin = self.meter.begin()
        number = next(self._numbers)
        calls, deadline = self._calls[kind], self._scenario.deadline
        future: Any = SimulatedFuture(self._ledger, on_end)
        job = Job(
            number,
            calls[number % len(calls)],
            future,
            LockedTask(Task(name=calls[0].site.task, devices=()), self.lock),
            priority=priority,
            tenant=tenant,
            submitted=submitted,
            until=None if deadline is None else submitted + deadline,
            nan="allow",
            idempotent=False,
            nbytes=self._scenario.nbytes,
            receipt_sinks=(),
            line=_NO_LINE,
        )
        try:
            self.queue.push(job, submitted)
        except QueueFull:
            self._ledger.refused += 1
            self._ledger.end()
            if on_end is not None:
                on_end()
            return
        self.open_jobs.add(job)
        if job.until is not None:
            self._deadlines.add(number, job, job.until)
            self._watch_deadlines()
        self._assign(job)
        self.meter.end(begin)

    def _assign(self, job: Job) -> None:
        """Assigns a task to a lane, and wakes that lane, as the real scheduler does."""
        now = self.clock.now
        lane = self.dispatcher.assign(job, now)
        lane.wake(now)
        self.dispatcher.rouse_others(job, lane)

    # -- lanes

    def _make_lane(self, name: str) -> SimulatedLane:
        return SimulatedLane(name, self._scenario.in_flight, self._look_soon)

    def _look_soon(self, lane: SimulatedLane) -> None:
        """A thread of the lane was woken. It looks for tasks when the driver's processor is free for it."""
        self._woken.append(lane)
        if len(self._woken) == 1:
            self.clock.at(self._free_at, self._look)

    def _look(self) -> None:
        """Lets the first lane that was woken take tasks. The next one follows when the processor is free."""
        lane = self._woken[0]
        lane.woken -= 1
        if lane.idle:
            lane.asleep = min(lane.asleep, lane.idle - 1)
            self._go_on(self._take, lane)
        self._woken.popleft()
        if self._woken:
            self.clock.at(self._free_at, self._look)

    def _look_again(self, lane: SimulatedLane, turn: int) -> None:
        """Look for tasks without having been woken, as the thread of a real lane does."""
        if lane.turn == turn and lane.idle and not lane.woken:
            self._go_on(self._take, lane)

    def _go_on(self, decide: Callable[[Any], SimulatedLaunch | None], about: Any) -> None:
        """Measure a decision, and make the launch that was decided."""
        begin = self.meter.begin()
        launch = decide(about)
        self.meter.end(begin)
        if launch is not None:
            self._launch(launch)

    def _take(self, lane: SimulatedLane) -> SimulatedLaunch | None:
        """Take the tasks that the lane launches next, if there are any."""
        now = self.clock.now
        lane.turn += 1
        jobs = self.dispatcher.take(lane, now) if len(self.queue) else []
        if not jobs:
            patience = lane.patience(len(self.dispatcher.lanes), look_again=len(self.queue) > 0)
            if patience is None:
                lane.asleep = lane.idle
            else:
                self.clock.at(now + patience, self._look_again, lane, lane.turn)
            return None
        lane.idle -= 1
        thread = next(self._threads)
        self.dispatcher.began(lane, thread, jobs, now)
        if lane.width > 1 and len(self.queue):
            lane.wake(now)
        return self._next_launch(_Work(lane, thread, jobs))

    def _next_launch(self, work: _Work) -> SimulatedLaunch | None:
        """The next launch of the work, or of what the lane takes after it."""
        routing = self.dispatcher.routing
        while work.rest:
            rest = work.rest
            choice = rest[0].forced or rest[0].choice
            assert choice is not None, "a task that is taken by a device was meant for it"
            batch = routing.plan_launch(rest, choice)
            if batch is not None:
                jobs, work.rest = rest[: batch.taken], rest[batch.taken :]
            else:
                jobs, work.rest = rest[:1], []
                if len(rest) > 1:
                    routing.not_together(routing.batches_of(jobs[0].call.site), len(rest) - 1)
                    for job in rest[1:]:
                        self.put_back(job)
            generation = self._devices[choice.candidate].generation
            start = Started(choice.candidate, generation, alone=batch is None, killable=batch is None)
            running = []
            for job in jobs:
                job.taken = False
                if self._worker.begin(job, choice, start):
                    running.append(job)
            if running:
                return SimulatedLaunch(self, work, running, choice, batch)
        self.dispatcher.ended(work.lane, work.thread)
        work.jobs.clear()
        work.lane.idle += 1
        return self._take(work.lane)

    # -- launches

    def _launch(self, launch: SimulatedLaunch) -> None:
        """Send tasks to a device: the driver's processor, the network and the device take their time."""
        scenario, device, tasks = self._scenario, self._devices[launch.choice.candidate], len(launch.jobs)
        cost = scenario.driver_launch / 2 + tasks * scenario.driver_task / 2
        sent = self._occupy(cost)
        launch.waited = sent - self.clock.now - cost
        self._ledger.launches += 1
        self._ledger.launched_tasks += tasks
        for job in launch.jobs:
            job.future.attempts += 1  # type: ignore[attr-defined]
        device.launches[launch] = None
        if device.back_at > sent and not device.noticed:
            self._lose(launch, sent + scenario.faults.actor_seen)
            return
        if device.back_at - sent > OPENING:
            launch.gone = True
            error = DeviceUnavailable(f'on="{device.name}"', [f"it was not open after {OPENING:g} s."])
            self.clock.at(sent + OPENING, self._failed, launch, error)
            return
        there = device.node.send(tasks * scenario.nbytes, max(sent, device.back_at), scenario)
        begin = max(there + scenario.call_seconds, device.free_at)
        launch.seconds = device.seconds_for(launch.batch.size if launch.batch else tasks, scenario, self._draw)
        device.free_at = begin + launch.seconds
        self._ledger.waits.extend(begin - job.submitted for job in launch.jobs)
        self._deliver_at(launch, device.free_at + scenario.network.latency)

    def _deliver_at(self, launch: SimulatedLaunch, when: float) -> None:
        launch.done_at = when
        self.clock.at(when, self._arrived, launch, when)

    def delay(self, launch: SimulatedLaunch, until: float) -> None:
        """Its answer cannot arrive before this time."""
        if not launch.gone and launch.done_at < until:
            self._deliver_at(launch, until)

    def _arrived(self, launch: SimulatedLaunch, when: float) -> None:
        """The answer of a launch has arrived, unless it was delayed or lost meanwhile.

        The driver handles it when it is free.
        """
        if launch.gone or launch.done_at != when:
            return
        launch.gone = True
        device = self._devices[launch.choice.candidate]
        device.launches.pop(launch, None)
        device.busy_seconds += launch.seconds
        cost = self._scenario.driver_launch / 2
        ready = self._occupy(cost)
        launch.waited += ready - self.clock.now - cost
        self.clock.at(ready, self._finished, launch)

    def _finished(self, launch: SimulatedLaunch) -> None:
        self._go_on(self._finish, launch)

    def _finish(self, launch: SimulatedLaunch) -> SimulatedLaunch | None:
        """Ends a launch: records what it took, resolves its tasks, and returns the next launch of its lane's thread."""
        now, name, site = self.clock.now, launch.choice.candidate, launch.jobs[0].call.site
        took = now - launch.began
        each = took / len(launch.jobs)
        disturbed = Conditions(took, self._scenario.driver_launch, launch.waited).disturbed
        if launch.batch is not None:
            batches = self.dispatcher.routing.batches_of(site)
            batches.took(each)
            batches.learn_compiled(launch.batch, self._devices[name].generation, 0.0, disturbed=False)
            batches.learn(launch.batch, took, disturbed=disturbed)
        for job in launch.jobs:
            if self._worker.finish(job, None, each):
                self._ledger.latencies.append(now - job.submitted)
                self._worker.resolve(job, None, None)
        if launch.batch is None:
            site.chooser.measured(name, took, busy=disturbed)
            self.planner.add_seconds(took)
            site.has_something_to_explore(self.planner)
        return self._next_launch(launch.work)

    # -- faults

    def lose(self, launch: SimulatedLaunch, seen: float) -> None:
        """The device, or the way to it, is gone; the driver sees that later."""
        if not launch.gone:
            self._lose(launch, seen)

    def _lose(self, launch: SimulatedLaunch, seen: float) -> None:
        """Loses a launch; the driver sees that at `seen`."""
        launch.gone = True
        self._ledger.lost_launches += 1
        name = launch.choice.candidate
        generation = launch.jobs[0].life.task.generation
        self.clock.at(seen, self._failed, launch, DeviceLost(name, detail="its actor died", generation=generation))

    def _failed(self, launch: SimulatedLaunch, error: AnyGPUError) -> None:
        """Hands the failure of a launch to the real retry logic, and goes on with the next one."""
        self._devices[launch.choice.candidate].launches.pop(launch, None)
        spent = Phases(other=self.clock.now - launch.began)
        for job in launch.jobs:
            self._worker.handle_failure(job, launch.choice.candidate, error, spent)
        self._go_on(self._next_launch, launch.work)

    def recovered(self, device: SimulatedDevice) -> None:
        """A device is back. One that calls have given up is tried in the background first."""
        held, device.held = device.held, None
        if held is not None:
            held.__exit__(None, None, None)
        device.noticed = True
        for calls in self._calls:
            chooser = calls[0].site.chooser
            track = chooser.tracks.get(device.name)
            if track is not None and track.suspended:
                chooser.tried(device.name, self._scenario.alone_seconds)

    # -- deadlines

    def _watch_deadlines(self) -> None:
        """Schedules the next deadline, if none before it is scheduled."""
        first = self._deadlines.first
        if first is not None and (self._expiring is None or first < self._expiring):
            self._expiring = first
            self.clock.at(first, self._expire_due)

    def _expire_due(self) -> None:
        """Expires every task whose deadline has come."""
        self._expiring = None
        while (first := self._deadlines.first) is not None and first <= self.clock.now:
            job = self._deadlines.pop()
            if job is not None:
                self._expire(job)
        self._watch_deadlines()

    def _expire(self, job: Job) -> None:
        """Carries out what the state machine says of an expired task."""
        waited = job.life.task.status == "queued"
        actions = job.life.tell(Expired())
        if waited and actions:
            self.dispatcher.unqueue(job)
        if any(isinstance(action, Kill) for action in actions) and job.choice is not None:
            self._kill(self._devices[job.choice.candidate])
        refused = next((action for action in actions if isinstance(action, Fail)), None)
        if refused is not None:
            job.future.set_exception(DeadlineExceeded(job.name, self._scenario.deadline or 0.0))
            if waited:
                self.forget(job)

    def _kill(self, device: SimulatedDevice) -> None:
        """Its actor is killed, because a task on it is late, and started again."""
        faults = self._scenario.faults
        device.generation += 1
        device.back_at = device.free_at = self.clock.now + faults.actor_back
        self.clock.at(device.back_at, self.recovered, device)
        for launch in list(device.launches):
            if not launch.gone:
                launch.gone = True
                self.clock.at(self.clock.now + faults.actor_seen, self._failed, launch, DeviceHung(device.name, 0.0))

    # -- what the lane worker reports

    def free_memory(self, job: Job) -> None:
        self.dispatcher.free_memory(job)

    def put_back(self, job: Job, seconds: float = 0.0) -> None:
        """Queues a task again after a failed attempt, if it is still wanted."""
        if self.dispatcher.returned(job, seconds):
            self.queue.push(job, self.clock.now, again=True)
            self._assign(job)

    def settle(self, job: Job, seconds: float, *, succeeded: bool) -> None:
        """Accounts for a finished task, and forgets its deadline."""
        if self._scenario.deadline is not None and self._deadlines.forget(job.number):
            self._deadlines.sweep()
        self.dispatcher.settle(job, seconds, succeeded=succeeded)

    def forget(self, job: Job) -> None:
        self.open_jobs.discard(job)


def _calls(
    planner: Planner, kind: int, scenario: Scenario, devices: Sequence[str], draw: random.Random
) -> tuple[Call, ...]:
    """Calls of one function with arguments of their own, which every device has run before."""

    def task(x: Any) -> Any:
        return x * (2 + kind) + 1

    arguments = [np.zeros(max(1, scenario.nbytes // 8), np.float32) for _ in range(2)]
    traced = trace(task, (arguments[0],), {})
    assert isinstance(traced, Traced), "this function can be traced"
    options = Options(fallback="allow", check="off")
    site = CallSite(f"task {kind}", options, None, has_anygpu_arrays=False)
    site.add_program(traced)
    expected = predict(traced.program, planner.calibration(planner.numpy))
    site.candidates.adopt(
        {
            name: Prediction(
                chunks=None,
                plain=expected,
                seconds=scenario.alone_seconds,
                once=0.0,
                tuning=0.0,
                calibrated=True,
                lacks=None,
                kind="gpu",
            )
            for name in devices
            if name != "numpy"
        }
    )
    site.candidates.end_calibrating()
    overhead = scenario.call_seconds + scenario.driver_launch + 2 * scenario.network.latency
    for name in devices:
        if name != "numpy":
            for _ in range(2):
                spread = draw.lognormvariate(0.0, scenario.noise) if scenario.noise else 1.0
                site.chooser.measured(name, scenario.alone_seconds * spread + overhead)
    table = CallTable(options)
    return tuple(Call(planner, task, site, (each,), {}, table=table, key=kind) for each in arguments)
