"""Which lane a task waits for, and what a lane takes next: decisions without threads, clocks or devices.

The scheduler of a runtime performs them with threads, and `anygpu fleet simulate` with events of a simulated clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Generic

from anygpu.plan.choosing import LOOKED_AT
from anygpu.runtime.jobs import Job
from anygpu.runtime.lane_index import LaneIndex, LaneType, Waiting
from anygpu.runtime.lanes import PLANNING, LaneLoad
from anygpu.runtime.routing import Route, Routing
from anygpu.tasks.queue import TaskQueue

#: Of many lanes that are free, so many are asked for one that could take a task that waits for another lane.
_ASKED = 4


class Dispatcher(Generic[LaneType]):
    """The queue, the lanes and what each of them is charged. The caller must hold the scheduler's lock.

    `busy` says how long devices are busy with something else than tasks of the lanes.
    """

    def __init__(
        self,
        queue: TaskQueue[Job],
        routing: Routing,
        lanes: LaneIndex[LaneType],
        busy: Callable[[], Mapping[str, float]],
    ) -> None:
        self.queue = queue
        self.routing = routing
        self.lanes = lanes
        self._busy = busy

    # -- coming

    def assign(self, job: Job, now: float) -> LaneType:
        """Choose the lane with the earliest predicted finish. The caller wakes it."""
        route = self.routing.recent_route(job, now)
        if route is None:
            self.lanes.expect(self.routing.new_candidates(job))
            route = self.routing.route(job, self.waiting(now), now)
        job.lane, job.seconds, job.choice = route.lane, route.seconds, route.choice
        lane = self.lanes[route.lane]
        lane.backlog += route.seconds
        self.lanes.changed(lane)
        return lane

    def rouse_others(self, job: Job, lane: LaneType) -> None:
        """The lane of the task is busy: other lanes that could take the task look at the queue."""
        if lane.idle or job.forced is not None:
            return
        if len(job.call.site.chooser.tracks) <= LOOKED_AT:
            for name in self.routing.others(job, lane):
                self.lanes[name].rouse()
        else:
            for name in self.lanes.free(_ASKED):
                if self.routing.has_run(job, name):
                    self.lanes[name].rouse(also_polling=True)
                    break

    def waiting(self, now: float, *, without: str | None = None) -> Waiting:
        """For each lane, the seconds until a task that comes now would begin."""
        return self.lanes.waiting(now, self._busy(), without=without)

    # -- going

    def take(self, lane: LaneType, now: float) -> list[Job]:
        """The tasks that this lane runs next."""
        queue, routing = self.queue, self.routing
        waiting: Waiting | None = None
        route: Route | None = None

        def fits(job: Job) -> bool:
            nonlocal waiting, route
            if not routing.has_room(lane, job):
                return False
            if job.lane == lane.name:
                return True
            if job.forced is not None or lane.name == PLANNING:
                return False
            if waiting is None:
                waiting = self.waiting(now, without=lane.name)
            found = routing.route_here(job, lane, waiting)
            if found is not None:
                route = found
            elif len(self.lanes) > LOOKED_AT and (own := self.lanes[job.lane]).idle:
                own.wake()  # it has looked when other tasks were first, and may not look again soon
            return found is not None

        def most(job: Job, there: int) -> int:
            number, candidates = routing.how_many(lane, job, there), len(job.call.site.chooser.tracks)
            if number > 1 and candidates > LOOKED_AT:
                # One of many lanes leaves the others their share: they are free soon, and would find nothing.
                number = min(number, math.ceil(there / candidates))
            return number

        jobs = queue.take(now, fits, most=most, by=lane.name)
        if not jobs and lane.backlog > 0:
            # A task waits for this very lane, behind more heads than were tried.
            jobs = queue.take(
                now, lambda job: job.lane == lane.name and routing.has_room(lane, job), look=None, by=lane.name
            )
        for job in jobs:
            self.left_queue(job)
            if job.lane != lane.name:
                # It was meant for another lane, and finishes sooner here, or with the first of its kind.
                here = route or routing.route_with(jobs[0])
                job.lane, job.seconds, job.choice = lane.name, here.seconds, here.choice
            self._charge(lane, job, now)
        return jobs

    def taken(self, lane: LaneType, job: Job, now: float) -> None:
        """The lane has taken a task that waits for it."""
        self.left_queue(job)
        self._charge(lane, job, now)

    def _charge(self, lane: LaneType, job: Job, now: float) -> None:
        job.taken, job.started = True, now
        self.queue.charge(job.tenant, job.seconds)
        job.held_bytes = self.routing.bytes_needed(job)
        lane.used_bytes += job.held_bytes

    def left_queue(self, job: Job) -> None:
        lane = self.lanes[job.lane]
        lane.backlog = max(0.0, lane.backlog - job.seconds)
        lane.awaited.pop(job, None)
        self.lanes.changed(lane)

    def unqueue(self, job: Job) -> None:
        """It was cancelled or has expired."""
        if self.queue.remove(job):
            self.left_queue(job)
        self.queue.finished(job)

    # -- a lane's work

    def began(self, lane: LaneType, thread: int, jobs: list[Job], now: float) -> None:
        lane.running[thread] = (jobs, now)
        self.lanes.changed(lane)

    def ended(self, lane: LaneType, thread: int) -> None:
        del lane.running[thread]
        self.lanes.changed(lane)

    def returned(self, job: Job, seconds: float) -> bool:
        """A lane gives a task back after so many seconds, which its tenant is charged; whether it is still wanted."""
        self.free_memory(job)
        self.queue.charge(job.tenant, seconds - job.seconds)
        return job.life.task.status == "queued"  # neither cancelled nor expired meanwhile

    def settle(self, job: Job, seconds: float, *, succeeded: bool) -> None:
        """Account for a task that the device has finished."""
        lane: LaneLoad = self.lanes[job.lane]
        lane.used_bytes -= job.held_bytes
        job.held_bytes = 0
        lane.busy_seconds += seconds
        if succeeded:
            lane.done += 1
        else:
            lane.failed += 1
        self.queue.charge(job.tenant, seconds - job.seconds)
        self.queue.finished(job)

    def free_memory(self, job: Job) -> None:
        """Return the task's memory to its lane."""
        lane = self.lanes[job.lane]
        lane.used_bytes -= job.held_bytes
        job.held_bytes = 0
