"""Where tasks should run, and how many of a kind together: questions that are asked with the queue's lock held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from anygpu.placement.call_site import CallSite, usable_bytes
from anygpu.placement.place_call import choose
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import Chunked
from anygpu.plan.batching import SIZES
from anygpu.plan.choosing import Choice
from anygpu.runtime.batches import Batches
from anygpu.runtime.jobs import Job
from anygpu.runtime.lanes import PLANNING, Lane

#: Assumed of a task of which nothing is known.
_UNKNOWN_SECONDS = 1e-3
#: Short functions are taken several at once, so that looking at the queue is not most of the work.
_SHORT_SECONDS, _SHORT_ROW = 2e-4, 16
#: A lane takes at most what fills it for so many times the latency bound, and leaves the rest to others.
_TURN = 4.0
#: What was thought of one task holds for others of its kind that come in the same moment.
_MOMENT = 2e-3


class Route(NamedTuple):
    """Where a task of some kind goes."""

    lane: str
    #: What it is expected to take there.
    seconds: float
    #: Why, if it was chosen.
    choice: Choice | None
    #: Until when it holds for others of its kind.
    until: float


class KindOfBatches(Batches):
    """The batches of one kind of tasks, with what the queue has to know of them."""

    def __init__(self, state: CallSite) -> None:
        super().__init__(state)
        #: What one call in a batch takes.
        self.seconds_each: float | None = None
        #: So many more are taken one by one before batches are thought of again.
        self.passed_over = 0


class Routing:
    """Where tasks should run, going by what is known of their kinds."""

    def __init__(self, planner: Planner, *, batching: bool, max_latency: float) -> None:
        self.max_latency = max_latency
        self._planner = planner
        self._batching = batching
        self._routes: WeakKeyDictionary[CallSite, Route] = WeakKeyDictionary()
        self._batches: WeakKeyDictionary[CallSite, KindOfBatches] = WeakKeyDictionary()

    def recent_route(self, job: Job, now: float) -> Route | None:
        """As for a task of its kind a moment ago, for which everything was thought about."""
        if job.forced is not None:
            return None
        known = self._routes.get(job.call.state)
        return known if known is not None and now < known.until else None

    def route(self, job: Job, waiting: Mapping[str, float], now: float = 0.0) -> Route:
        """The lane whose thread should run it, going by predicted finish; `waiting` is how long each is busy."""
        state = job.call.state
        if job.forced is not None:
            name = job.forced.candidate
            return Route(lane_of(name), self.seconds(state, name), job.forced, 0.0)
        found = self._route(job, waiting)
        if now and (found.choice is None or found.choice.checks is None):
            found = self._routes[state] = found._replace(until=now + _MOMENT)
        return found

    def _route(self, job: Job, waiting: Mapping[str, float]) -> Route:
        state = job.call.state
        engine = state.options.engine
        if engine is not None:
            return Route(engine, state.chooser.estimate(engine) or _UNKNOWN_SECONDS, None, 0.0)
        if state.skip_planning > 0 or state.fallback_reason is not None:
            return Route("numpy", self.seconds(state, "numpy"), None, 0.0)
        home = state.chooser.baseline
        if not state.evaluated:
            if home is None:
                return Route(PLANNING, _UNKNOWN_SECONDS, None, 0.0)
            return Route(lane_of(home), self.seconds(state, home), None, 0.0)
        busy: dict[str, float] = {}
        if waiting:
            for name, facts in state.predictions.items():
                seconds = max(waiting.get(device, 0.0) for device in facts.way.devices)
                if seconds > 0:
                    busy[name] = seconds
        choice = choose(job.call, busy)
        if choice.checks is not None:
            state.chooser.begin_sample(choice.checks)
        return Route(lane_of(choice.candidate), self.seconds(state, choice.candidate), choice, 0.0)

    def others(self, job: Job, lane: Lane) -> list[str]:
        """Lanes of other devices that are known to be able to run it: those that should look whether it still waits."""
        tracks = list(job.call.state.chooser.tracks.items())
        names = [lane_of(name) for name, track in tracks if track.recent and not track.suspended]
        return [name for name in names if name != lane.name]

    def seconds(self, state: CallSite, candidate: str) -> float:
        """What one more of its kind is expected to take there."""
        batches = self._batches.get(state) if candidate != "numpy" else None
        each = batches.seconds_each if batches is not None else None
        if each is not None:
            return each
        return state.chooser.estimate(candidate) or _UNKNOWN_SECONDS

    def bytes_needed(self, job: Job) -> int:
        """What it is predicted to need at most while it runs; its arguments, as long as nothing else is known."""
        facts = job.call.state.predictions.get(job.choice.candidate if job.choice is not None else "numpy")
        if facts is None or facts.plain is None:
            return job.nbytes
        return facts.way.chunks.peak_bytes if isinstance(facts.way, Chunked) else facts.plain.peak_bytes

    def has_room(self, lane: Lane, job: Job) -> bool:
        """Whether it fits beside what runs there now. What runs alone is cut into pieces if it must be."""
        if not lane.running or lane.width == 1:
            return True
        device = self._planner.numpy
        room = usable_bytes(device)
        return room is None or lane.used_bytes + self.bytes_needed(job) <= room

    def how_many(self, lane: Lane, job: Job, there: int) -> int:
        """How many of its kind are taken at once, of those that are there."""
        if there <= 1 or lane.name == PLANNING or job.forced is not None:
            return 1
        state = job.call.state
        if lane.name == "numpy":
            # One is left for each other thread: tasks may wait for each other, however short they have been.
            spare = there - lane.width + 1
            return max(1, min(spare, _SHORT_ROW)) if self.seconds(state, "numpy") < _SHORT_SECONDS else 1
        if not self._batching or state.has_anygpu_arrays or state.traced is None or job.choice is None:
            return 1
        if state.options.check == "always":
            return 1
        batches = self.batches_of(state)
        if batches.passed_over > 0:
            batches.passed_over -= 1
            return 1
        each = batches.seconds_each
        if each is None:
            # What a launch of many takes is not known: how many it is for is decided when they are looked at.
            alone = self.seconds(state, job.choice.candidate) > self.max_latency
            return 1 if alone else min(there, SIZES[-1])
        return max(1, min(there, SIZES[-1], int(_TURN * self.max_latency / each)))

    def batches_of(self, state: CallSite) -> KindOfBatches:
        found = self._batches.get(state)
        if found is None:
            found = self._batches[state] = KindOfBatches(state)
        return found

    def forget(self, state: CallSite) -> None:
        """More is known of such tasks now than a moment ago."""
        self._routes.pop(state, None)


def lane_of(candidate: str) -> str:
    """Of two devices, the one that is not the host."""
    return candidate.rpartition("+")[2]
