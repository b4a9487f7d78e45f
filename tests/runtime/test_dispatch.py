"""What a lane takes of the queue, with routes that a test decides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.runtime.lanes import LaneIndex, LaneLoad
from anygpu.runtime.routing import Dispatcher, Route, Routing
from anygpu.runtime.task_queue import TaskQueue


class FakeLane(LaneLoad):
    def __init__(self, name: str) -> None:
        super().__init__(name, 1)

    def notify(self) -> None:
        pass

    def start(self) -> None:
        self.started += 1


class FakeRouting:
    """A lane may take the tasks of some tenants, and as many as there are."""

    route_with = Routing.route_with

    def __init__(self, *tenants: str) -> None:
        self.tenants = tenants

    def has_room(self, lane: LaneLoad, job: Any) -> bool:
        return True

    def bytes_needed(self, job: Any) -> int:
        return 0

    def how_many(self, lane: LaneLoad, job: Any, there: int) -> int:
        return there

    def route_here(self, job: Any, lane: LaneLoad, waiting: Any) -> Route | None:
        if job.tenant not in self.tenants:
            return None
        return Route(lane.name, 2.0, DeviceChoice(lane.name, "known", "it is free."), 0.0)


def job_of(tenant: str, lane: str) -> Any:
    return SimpleNamespace(
        kind="one kind",
        tenant=tenant,
        priority=0,
        nbytes=0,
        forced=None,
        lane=lane,
        seconds=1.0,
        choice=DeviceChoice(lane, "known", "it was best."),
        call=SimpleNamespace(site=SimpleNamespace(chooser=SimpleNamespace(tracks={}))),
    )


def dispatcher_of(routing: Any, *jobs: Any) -> Dispatcher[FakeLane]:
    queue: TaskQueue[Any] = TaskQueue()
    dispatcher = Dispatcher(queue, routing, LaneIndex(FakeLane), dict)
    for job in jobs:
        queue.push(job, 0.0)
        dispatcher.lanes[job.lane].backlog += job.seconds
    return dispatcher


def test_a_task_that_is_taken_by_another_lane_runs_there() -> None:
    # The lane may have the first tenant's task and not the second's, which is asked about last.
    mine, theirs = job_of("a", "busy"), job_of("b", "busy")
    dispatcher = dispatcher_of(FakeRouting("a"), mine, theirs)
    assert dispatcher.take(dispatcher.lanes["free"], 1.0) == [mine]
    assert (mine.lane, mine.seconds, mine.choice.candidate) == ("free", 2.0, "free")
    assert (theirs.lane, theirs.choice.candidate) == ("busy", "busy")
    assert dispatcher.lanes["busy"].backlog == 1.0
    assert dispatcher.lanes["free"].backlog == 0.0


def test_tasks_that_are_taken_together_run_where_the_first_does() -> None:
    first, second = job_of("a", "free"), job_of("a", "busy")
    dispatcher = dispatcher_of(FakeRouting(), first, second)
    assert dispatcher.take(dispatcher.lanes["free"], 1.0) == [first, second]
    assert (second.lane, second.choice.candidate) == ("free", "free")
    assert dispatcher.lanes["busy"].backlog == dispatcher.lanes["free"].backlog == 0.0
