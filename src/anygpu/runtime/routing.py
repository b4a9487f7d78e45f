"""Where tasks should run, and how many of a kind together. The caller must hold the queue's lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from anygpu.disturbance import DisturbanceWatch
from anygpu.placement.call_site import CallSite
from anygpu.placement.place_call import choose
from anygpu.placement.planner import Planner, usable_bytes
from anygpu.placement.strategies import Chunked, SingleDevice
from anygpu.plan.batching import SIZES
from anygpu.plan.choosing import Choice
from anygpu.runtime.batches import Batches
from anygpu.runtime.jobs import Job
from anygpu.runtime.lanes import PLANNING, Lane
from anygpu.workers.overlap import WORTH_OVERLAPPING

#: Assumed seconds of a task that was never measured.
_UNKNOWN_SECONDS = 1e-3
#: Tasks shorter than this are taken up to _SHORT_ROW at once, so that the queue's overhead does not dominate.
_SHORT_SECONDS, _SHORT_ROW = 2e-4, 16
#: A lane takes at most this many latency bounds' worth of tasks, and leaves the rest to others.
_TURN = 4.0
#: Seconds that a route is reused for other tasks of its kind.
_MOMENT = 2e-3


class Route(NamedTuple):
    """The lane for tasks of one kind."""

    lane: str
    #: Predicted seconds there.
    seconds: float
    #: Why, if it was chosen.
    choice: Choice | None
    #: The time until which other tasks of the kind reuse it.
    until: float


class KindOfBatches(Batches):
    """The batches of one kind of tasks, with figures for the queue."""

    def __init__(self, site: CallSite, watch: DisturbanceWatch) -> None:
        super().__init__(site, watch)
        #: Seconds per call in a batch.
        self.seconds_each: float | None = None
        #: Tasks to run unbatched before batching is reconsidered.
        self.passed_over = 0


class Routing:
    """Decides where tasks should run, by the history of their kinds."""

    def __init__(self, planner: Planner, *, batching: bool, max_latency: float) -> None:
        self.max_latency = max_latency
        self._planner = planner
        self._batching = batching
        self._routes: WeakKeyDictionary[CallSite, Route] = WeakKeyDictionary()
        self._batches: WeakKeyDictionary[CallSite, KindOfBatches] = WeakKeyDictionary()

    def recent_route(self, job: Job, now: float) -> Route | None:
        """The cached route for this call site, if still fresh."""
        if job.forced is not None:
            return None
        known = self._routes.get(job.call.site)
        return known if known is not None and now < known.until else None

    def route(self, job: Job, waiting: Mapping[str, float], now: float = 0.0) -> Route:
        """The lane with the earliest predicted finish; `waiting` is how long each is busy."""
        site = job.call.site
        if job.forced is not None:
            name = job.forced.candidate
            return Route(lane_of(name), self.seconds(site, name), job.forced, 0.0)
        found = self._route(job, waiting)
        if now and (found.choice is None or found.choice.checks is None):
            found = self._routes[site] = found._replace(until=now + _MOMENT)
        return found

    def _route(self, job: Job, waiting: Mapping[str, float]) -> Route:
        site = job.call.site
        engine = site.options.engine
        if engine is not None:
            return Route(engine, site.chooser.estimate(engine) or _UNKNOWN_SECONDS, None, 0.0)
        if site.skip_planning > 0 or site.fallback_reason is not None:
            return Route("numpy", self.seconds(site, "numpy"), None, 0.0)
        home = site.chooser.baseline
        if not site.evaluated:
            if home is None:
                return Route(PLANNING, _UNKNOWN_SECONDS, None, 0.0)
            return Route(lane_of(home), self.seconds(site, home), None, 0.0)
        busy: dict[str, float] = {}
        if waiting:
            for name, facts in site.predictions.items():
                seconds = max(waiting.get(device, 0.0) for device in facts.way.devices)
                if seconds > 0:
                    busy[name] = seconds
        choice = choose(job.call, busy)
        if choice.checks is not None:
            site.chooser.begin_sample(choice.checks)
        return Route(lane_of(choice.candidate), self.seconds(site, choice.candidate), choice, 0.0)

    def others(self, job: Job, lane: Lane) -> list[str]:
        """Lanes of other devices that have run it before, and so could take it while it waits."""
        tracks = list(job.call.site.chooser.tracks.items())
        names = [lane_of(name) for name, track in tracks if track.recent and not track.suspended]
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
        facts = job.call.site.predictions.get(job.choice.candidate if job.choice is not None else "numpy")
        if facts is None or facts.plain is None:
            return job.nbytes
        return facts.way.chunks.peak_bytes if isinstance(facts.way, Chunked) else facts.plain.peak_bytes

    def has_room(self, lane: Lane, job: Job) -> bool:
        """Whether it fits beside the running tasks. A task that runs alone is split if necessary."""
        if not lane.running or lane.width == 1:
            return True
        device = self._planner.numpy
        room = usable_bytes(device)
        return room is None or lane.used_bytes + self.bytes_needed(job) <= room

    def may_overlap(self, lane: Lane, job: Job) -> bool:
        """Whether its transfers may overlap another task: both are large, go to that device whole, and fit there."""
        if not self.is_large(job) or job.lane != lane.name or not self._planner.places.overlaps(lane.name):
            return False
        if not all(self.is_large(each) for jobs, _ in lane.running.values() for each in jobs):
            return False
        device = self._planner.machine().device(lane.name)
        room = usable_bytes(device) if device is not None else None
        return room is None or lane.used_bytes + self.bytes_needed(job) <= room

    def is_large(self, job: Job) -> bool:
        """Whether it runs as a whole on one device, and its transfers are worth to be overlapped."""
        site, choice = job.call.site, job.choice
        if job.nbytes < WORTH_OVERLAPPING or choice is None or choice.checks is not None or job.forced is not None:
            return False
        if site.has_anygpu_arrays or site.options.isolation == "thread" or site.options.check == "always":
            return False
        facts = site.predictions.get(choice.candidate)
        return facts is not None and isinstance(facts.way, SingleDevice) and choice.candidate != "numpy"

    def how_many(self, lane: Lane, job: Job, there: int) -> int:
        """How many of the `there` waiting tasks of its kind to take at once."""
        if there <= 1 or lane.name == PLANNING or job.forced is not None:
            return 1
        site = job.call.site
        if lane.name == "numpy":
            # One is left for each other thread: even short tasks may wait for each other.
            spare = there - lane.width + 1
            return max(1, min(spare, _SHORT_ROW)) if self.seconds(site, "numpy") < _SHORT_SECONDS else 1
        if not self._batching or site.has_anygpu_arrays or site.traced is None or job.choice is None:
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

    def batches_of(self, site: CallSite) -> KindOfBatches:
        found = self._batches.get(site)
        if found is None:
            found = self._batches[site] = KindOfBatches(site, self._planner.watch)
        return found

    def forget(self, site: CallSite) -> None:
        """Drop the cached route, because more is known about such tasks now."""
        self._routes.pop(site, None)


def lane_of(candidate: str) -> str:
    """The lane of a candidate; of two devices, the one that is not the host."""
    return candidate.rpartition("+")[2]
