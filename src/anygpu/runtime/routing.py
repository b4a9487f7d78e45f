"""Where tasks should run, and how many of a kind together. The caller must hold the queue's lock.

`Routing` knows the history of each kind of tasks and chooses a lane for it; `Dispatcher` applies that to the queue and
the lanes, and keeps the accounts of both.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, NamedTuple
from weakref import WeakKeyDictionary

from anygpu.base.disturbance import DisturbanceWatch
from anygpu.errors import AnyGPUError
from anygpu.placement.call_site import CallSite
from anygpu.placement.candidates import Prediction
from anygpu.placement.machine import usable_bytes
from anygpu.placement.opaque_form import OpaqueForm
from anygpu.placement.place_call import choose
from anygpu.placement.plan.candidate_history import ChoiceKind, DeviceChoice, WaitingTimes
from anygpu.placement.plan.choosing import LOOKED_AT
from anygpu.placement.plan.chunking import SIZES
from anygpu.placement.planner import Planner
from anygpu.runtime.batches import Batch, LaunchBatches
from anygpu.runtime.lanes import PLANNING, Job, LaneIndex, LaneLoad, LaneType, LaneWaitingTimes
from anygpu.runtime.stacking import OpaqueBatches
from anygpu.runtime.task_queue import TaskQueue
from anygpu.workers.overlap import WORTH_OVERLAPPING

#: Assumed seconds of a task that was never measured.
_UNKNOWN_SECONDS = 1e-3
#: Tasks shorter than this are taken up to _SHORT_ROW at once, so that the queue's overhead does not dominate.
_SHORT_SECONDS, _SHORT_ROW = 2e-4, 16
#: After a batch of more than this many tasks was not worth it, some of the kind run one by one.
_MANY = 16
#: A lane takes at most this many latency bounds' worth of tasks, and leaves the rest to others.
_TURN = 4.0
#: Seconds that a route is reused for other tasks of its kind.
_MOMENT = 2e-3
#: A free lane takes a task that another one would finish sooner by less than this: it is noise, and that one has to
#: look for the task first.
_AS_GOOD = 0.9


#: Choices that say which device is best now, and not which it has to be.
_FREE_CHOICES: frozenset[ChoiceKind] = frozenset({"known", "trial", "untried"})


class Route(NamedTuple):
    """The lane for tasks of one kind."""

    lane: str
    #: Predicted seconds there.
    seconds: float
    #: Why, if it was chosen.
    choice: DeviceChoice | None
    #: The time until which other tasks of the kind reuse it.
    until: float


class KindOfBatches(LaunchBatches):
    """The batches of one kind of tasks, with figures for the queue."""

    def __init__(self, site: CallSite, watch: DisturbanceWatch) -> None:
        """Starts without figures: `seconds_each` is `None` until a launch was measured."""
        super().__init__(site, watch)
        #: Seconds per call in a batch.
        self.seconds_each: float | None = None
        #: Tasks to run unbatched before batching is reconsidered.
        self.passed_over = 0

    def took(self, each: float) -> None:
        """A launch took so many seconds for each of its calls, beside compiling."""
        self.seconds_each = each if self.seconds_each is None else (self.seconds_each + each) / 2


class Routing:
    """Decides where tasks should run, by the history of their kinds."""

    def __init__(self, planner: Planner, *, batching: bool, max_latency: float) -> None:
        """Makes the routing of one scheduler, which shares the planner with calls outside of it.

        Everything is kept by call site or by form, in weak dictionaries: what is known of a function goes with it.
        `max_latency` bounds in seconds how long the first call of a batch waits for the others.
        """
        self.max_latency = max_latency
        self._planner = planner
        self._batching = batching
        self._routes: WeakKeyDictionary[CallSite, Route] = WeakKeyDictionary()
        self._batches: WeakKeyDictionary[CallSite, KindOfBatches] = WeakKeyDictionary()
        self._opaque: WeakKeyDictionary[OpaqueForm, OpaqueBatches] = WeakKeyDictionary()
        #: The predictions whose devices are known to be candidates.
        self._seen: WeakKeyDictionary[CallSite, Mapping[str, Prediction]] = WeakKeyDictionary()

    def recent_route(self, job: Job, now: float) -> Route | None:
        """The cached route for this call site, if still fresh."""
        if job.forced is not None:
            return None
        known = self._routes.get(job.call.site)
        return known if known is not None and now < known.until else None

    def new_candidates(self, job: Job) -> Collection[str]:
        """The candidates of its kind, if there are so many that they are not all looked at, and they are new."""
        site = job.call.site
        predictions = site.candidates.predictions
        if len(predictions) <= LOOKED_AT or self._seen.get(site) is predictions:
            return ()
        self._seen[site] = predictions
        return predictions

    def route(self, job: Job, waiting: WaitingTimes, now: float = 0.0) -> Route:
        """The lane with the earliest predicted finish; `waiting` is how long each is busy."""
        site = job.call.site
        if job.forced is not None:
            name = job.forced.candidate
            return Route(name, self.seconds(site, name), job.forced, 0.0)
        found = self._route(job, waiting)
        if now and (found.choice is None or found.choice.checks is None):
            found = self._routes[site] = found._replace(until=now + _MOMENT)
        return found

    def _route(self, job: Job, waiting: WaitingTimes) -> Route:
        """Chooses a lane for a task of which no fresh route is cached.

        A device that the caller named is taken as it is, and a call that stays on the host goes to NumPy's lane. Before
        the first plan of its kind it goes to `PLANNING`, whose thread traces it. A choice that is a sample of a device
        is counted as begun here, because the task may wait for long.
        """
        site = job.call.site
        engine = site.options.engine
        if engine is not None:
            return Route(engine, site.chooser.estimate(engine) or _UNKNOWN_SECONDS, None, 0.0)
        if site.host.skip_planning > 0 or site.candidates.fallback_reason is not None:
            return Route("numpy", self.seconds(site, "numpy"), None, 0.0)
        home = site.chooser.baseline
        # Devices may go at any moment, and with them the only candidates.
        with self._planner.lock:
            choice = choose(job.call, waiting) if site.candidates.evaluated else None
        if choice is None:
            if home is None:
                return Route(PLANNING, _UNKNOWN_SECONDS, None, 0.0)
            return Route(home, self.seconds(site, home), None, 0.0)
        if choice.checks is not None:
            site.chooser.begin_sample(choice.checks)
        return Route(choice.candidate, self.seconds(site, choice.candidate), choice, 0.0)

    def route_here(self, job: Job, lane: LaneLoad, waiting: WaitingTimes) -> Route | None:
        """The route of a task that waits for another lane, if this one, which is free, finishes it before any other.

        Among many it has to be sooner than that lane only: asking all of them costs more than another would gain, and
        one of many that happens to be fastest must not keep all others from work.
        """
        if len(job.call.site.chooser.tracks) > LOOKED_AT:
            return self._sooner_here(job, lane, waiting)
        best = self.route(job, waiting)
        return best if best.lane == lane.name else None

    def _sooner_here(self, job: Job, lane: LaneLoad, waiting: WaitingTimes) -> Route | None:
        """Returns a route to this lane for a task that was assigned to another one.

        `None` if it should go on waiting there. Only free choices may move: neither a device that was named or pinned,
        nor a trial whose lane is idle, as that is there to measure it. This lane must have run the kind before, and win
        by a margin, so that tasks do not change lanes for noise.
        """
        site, choice = job.call.site, job.choice
        if choice is None or choice.kind not in _FREE_CHOICES or site.chooser.pinned is not None:
            return None
        mine = self._measured(site, lane.name)
        if mine is None:
            return None
        if choice.kind == "trial" and waiting.get(job.lane) <= job.seconds:
            return None  # it measures that lane, which has nothing else to do
        if site.chooser.tracks[lane.name].disturbed:
            # Disturbances only ever add, so it is no reason to leave the task to a lane that is busy.
            mine = min(mine, job.seconds)
        # What waits for that lane includes the task itself, as long as it was expected to take when it was queued.
        there = max(waiting.get(job.lane), self.seconds(site, choice.candidate))
        if mine * _AS_GOOD > there:
            return None
        sentence = f"{choice.candidate} is busy, so {lane.name} finishes sooner."
        return Route(lane.name, mine, DeviceChoice(lane.name, "known", sentence), 0.0)

    def route_with(self, first: Job) -> Route:
        """The route of tasks that are taken together with the first of their kind, which waited for the lane."""
        choice = first.choice
        if choice is not None and choice.checks is not None:  # one sample is enough
            choice = choice._replace(kind="baseline", checks=None)
        return Route(first.lane, first.seconds, choice, 0.0)

    def _measured(self, site: CallSite, name: str) -> float | None:
        """Predicted seconds there, if it has run such tasks before and may run them."""
        return self.seconds(site, name) if site.has_run_at(name) and site.chooser.may_run(name) else None

    def has_run(self, job: Job, name: str) -> bool:
        """Whether such tasks have run there, and may run there again."""
        site = job.call.site
        return site.has_run_at(name) and site.chooser.may_run(name)

    def others(self, job: Job, lane: LaneLoad) -> list[str]:
        """Lanes of other devices that have run it before, and so could take it while it waits."""
        tracks = list(job.call.site.chooser.tracks.items())
        names = [name for name, track in tracks if track.recent and not track.suspended]
        return [name for name in names if name != lane.name]

    def seconds(self, site: CallSite, candidate: str) -> float:
        """Predicted seconds of one more task of the kind there."""
        batches = self._batches.get(site) if candidate != "numpy" else None
        each = batches.seconds_each if batches is not None else None
        if each is not None:
            return each
        return site.chooser.estimate(candidate) or _UNKNOWN_SECONDS

    def bytes_needed(self, job: Job) -> int:
        """Predicted peak memory of the task; the size of its arguments without a prediction."""
        facts = job.call.site.candidates.predictions.get(job.choice.candidate if job.choice is not None else "numpy")
        if facts is None:
            return job.nbytes
        return facts.chunks.peak_bytes if facts.chunks is not None else facts.plain.peak_bytes

    def has_room(self, lane: LaneLoad, job: Job) -> bool:
        """Whether it fits beside the running tasks. A task that runs alone is split if necessary."""
        if not lane.running or lane.width == 1:
            return True
        device = self._planner.numpy
        room = usable_bytes(device)
        return room is None or lane.used_bytes + self.bytes_needed(job) <= room

    def may_overlap(self, lane: LaneLoad, job: Job) -> bool:
        """Whether its transfers may overlap another task: both are large, go to that device whole, and fit there."""
        if not self.is_large(job) or job.lane != lane.name or not self._planner.places.overlaps(lane.name):
            return False
        if not all(self.is_large(each) for jobs, _ in lane.running.values() for each in jobs):
            return False
        device = self._planner.device(lane.name)
        room = usable_bytes(device) if device is not None else None
        return room is None or lane.used_bytes + self.bytes_needed(job) <= room

    def is_large(self, job: Job) -> bool:
        """Whether it runs as a whole on one device, and its transfers are worth to be overlapped."""
        site, choice = job.call.site, job.choice
        if job.nbytes < WORTH_OVERLAPPING or choice is None or choice.checks is not None or job.forced is not None:
            return False
        if site.has_anygpu_arrays or site.options.isolation == "thread" or site.options.check == "always":
            return False
        facts = site.candidates.predictions.get(choice.candidate)
        return facts is not None and facts.chunks is None and choice.candidate != "numpy"

    def how_many(self, lane: LaneLoad, job: Job, there: int) -> int:
        """How many of the `there` waiting tasks of its kind to take at once."""
        if there <= 1 or lane.name == PLANNING or job.forced is not None:
            return 1
        site = job.call.site
        if site.options.engine is not None:
            is_batched = self._batching and job.kind is job.call.form.form
            return self.opaque_batches_of(job).how_many(job.call, there, self.max_latency) if is_batched else 1
        if lane.name == "numpy":
            # One is left for each other thread: even short tasks may wait for each other.
            spare = there - lane.width + 1
            return max(1, min(spare, _SHORT_ROW)) if self.seconds(site, "numpy") < _SHORT_SECONDS else 1
        if not self._batching or site.has_anygpu_arrays or site.programs.current is None or job.choice is None:
            return 1
        if site.options.check == "always":
            return 1
        batches = self.batches_of(site)
        if batches.passed_over > 0:
            batches.passed_over -= 1
            return 1
        each = batches.seconds_each
        if each is None:
            # The time of a batch is not known yet: its size is decided when the calls are looked at.
            alone = self.seconds(site, job.choice.candidate) > self.max_latency
            return 1 if alone else min(there, SIZES[-1])
        return max(1, min(there, SIZES[-1], int(_TURN * self.max_latency / each)))

    def plan_launch(self, jobs: Sequence[Job], choice: DeviceChoice) -> Batch | None:
        """The launch to make for the first of these tasks of one kind; `None` if one should run alone."""
        if len(jobs) < 2:
            return None
        batches = self.batches_of(jobs[0].call.site)
        # If the device is gone, the single run reports that, and is retried.
        with contextlib.suppress(AnyGPUError):
            return batches.plan(
                len(jobs), [job.call for job in jobs], choice.candidate, self._planner, self.max_latency
            )
        return None

    def not_together(self, batches: KindOfBatches, left: int) -> None:
        """A launch was not worth it, and so many tasks go back to the queue: some of the kind run one by one."""
        if left > _MANY:
            batches.passed_over = batches.calls_to_pass_over

    def batches_of(self, site: CallSite) -> KindOfBatches:
        """Returns the batches of one kind of calls, which are made for the first of them."""
        found = self._batches.get(site)
        if found is None:
            found = self._batches[site] = KindOfBatches(site, self._planner.watch)
        return found

    def opaque_batches_of(self, job: Job) -> OpaqueBatches:
        """Returns the launches of the opaque task's form. Calls that differ only in their rows share one form."""
        form = job.call.form.form
        found = self._opaque.get(form)
        if found is None:
            found = self._opaque[form] = OpaqueBatches()
        return found

    def forget(self, site: CallSite) -> None:
        """Drop the cached route, because more is known about such tasks now."""
        self._routes.pop(site, None)


# -- which lane a task waits for, and what a lane takes next: decisions without threads, clocks or devices
#
# The scheduler of a runtime performs them with threads, and `anygpu fleet simulate` with events of a simulated clock.


#: Free lanes that are asked whether they could take a task that waits for another lane.
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
        """Joins the queue, the routing and the lanes of one scheduler, and owns none of them.

        `busy` tells for how many seconds devices are busy with work outside of this runtime.
        """
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

    def waiting(self, now: float, *, without: str | None = None) -> LaneWaitingTimes:
        """Returns for each lane the seconds until a task that comes now would begin."""
        return self.lanes.waiting(now, self._busy(), without=without)

    # -- going

    def take(self, lane: LaneType, now: float) -> list[Job]:
        """The tasks that this lane runs next."""
        queue, routing = self.queue, self.routing
        waiting: LaneWaitingTimes | None = None
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
        """Charges the tenant the predicted seconds and the lane the predicted memory of a task that begins now.

        Both are estimates: `settle` corrects the seconds by those that were measured, and `free_memory` returns the
        bytes.
        """
        job.taken, job.started = True, now
        self.queue.charge(job.tenant, job.seconds)
        job.held_bytes = self.routing.bytes_needed(job)
        lane.used_bytes += job.held_bytes

    def left_queue(self, job: Job) -> None:
        """Takes a task off the backlog of its lane, as it waits there no longer."""
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
        self.free_memory(job)
        self.lanes[job.lane].account(seconds, succeeded=succeeded)
        self.queue.charge(job.tenant, seconds - job.seconds)
        self.queue.finished(job)

    def free_memory(self, job: Job) -> None:
        """Return the task's memory to its lane."""
        lane = self.lanes[job.lane]
        lane.used_bytes -= job.held_bytes
        job.held_bytes = 0
