"""The life of a task: every pair of status and event, every reachable state, and long random lives."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from anygpu.errors import InvalidTransition
from anygpu.workers.task_lifecycle import (
    DEATHS,
    FINAL,
    Action,
    Cancelled,
    Deliver,
    DeviceFree,
    EvictBuffers,
    Expired,
    Fail,
    Failed,
    Finished,
    Kill,
    Probe,
    Reclaim,
    Replace,
    Requeue,
    SplitFurther,
    Started,
    Status,
    Task,
    TaskEvent,
    TaskFault,
    describe,
    step,
)

FAULTS: tuple[TaskFault, ...] = get_args(TaskFault)
SITUATIONS: tuple[Status, ...] = get_args(Status)

Expected = tuple[Status, list[Action]]
#: What is expected of a pair: a status with actions, nothing at all, or an error.
Outcome = Expected | Literal["nothing", "impossible"]


def failed(fault: TaskFault, *, cuttable: bool = False, begun: bool = True, overdue: bool = False) -> Failed:
    return Failed(fault, "SomeError", "what it said.\nmore", cuttable=cuttable, begun=begun, overdue=overdue)


def lived(task: Task, *events: TaskEvent) -> Task:
    for event in events:
        task, _ = step(task, event)
    return task


def launches(start: Started, *failures: Failed) -> list[TaskEvent]:
    """One launch after the other on the same worker, with how each of them failed."""
    return [event for failure in failures for event in (start, failure)]


def life(task: Task, *events: TaskEvent) -> list[tuple[Action, ...]]:
    """What was to be done after each event."""
    done = []
    for event in events:
        task, actions = step(task, event)
        done.append(actions)
    return done


def fresh(*devices: str, repeatable: bool = True) -> Task:
    return Task(name="blur", devices=devices or ("a", "b"), repeatable=repeatable)


ON_A = Started("a", 1)
ON_A_SHARED = Started("a", 1, alone=False)
ON_A_KILLABLE = Started("a", 1, killable=True)
ON_B = Started("b", 1)
DONE, CANCEL, EXPIRE = Finished(), Cancelled(), Expired()


# -- every pair of status and event

BY_STATUS: dict[str, Task] = {
    "queued": fresh(),
    "running": lived(fresh(), ON_A),
    "running with others": lived(fresh(), ON_A_SHARED),
    "running, once only": lived(fresh(repeatable=False), ON_A),
    "running, killable": lived(fresh(), ON_A_KILLABLE),
    "stopping": lived(fresh(), ON_A, CANCEL),
    "stopping, killable": lived(fresh(), ON_A_KILLABLE, CANCEL),
    "abandoned": lived(fresh(), ON_A, EXPIRE),
    "abandoned, killed": lived(fresh(), ON_A_KILLABLE, EXPIRE),
    "abandoned, cancelled": lived(fresh(), ON_A, CANCEL, EXPIRE),
    "done": lived(fresh(), ON_A, DONE),
    "failed": lived(fresh(), ON_A, failed("user")),
    "cancelled": lived(fresh(), CANCEL),
}

EVENTS: dict[str, TaskEvent] = {
    "started": ON_A,
    "finished": DONE,
    "cancelled": CANCEL,
    "expired": EXPIRE,
    **{fault: failed(fault, cuttable=True) for fault in FAULTS},
}

_IMPOSSIBLE: dict[str, Outcome] = dict.fromkeys(EVENTS, "impossible")
_OVER: dict[str, Outcome] = {**_IMPOSSIBLE, "cancelled": "nothing", "expired": "nothing"}
_RUNNING: dict[str, Outcome] = {
    "started": "impossible",
    "finished": ("done", [Deliver()]),
    "cancelled": ("running", []),
    "expired": ("abandoned", [Fail("late", still_running=True)]),
    "too big": ("queued", [SplitFurther("a"), Requeue("a")]),
    "no memory": ("queued", [Reclaim("a"), Requeue("a")]),
    "over budget": ("queued", [EvictBuffers("a"), Requeue("a")]),
    "lost": ("queued", [Replace("a"), Requeue()]),
    "poisoned": ("queued", [Replace("a"), Requeue()]),
    "missing": ("queued", [Requeue()]),
    "hung": ("failed", [Fail("hung"), Probe("a")]),
    "unsupported": ("queued", [Requeue()]),
    "unavailable": ("queued", [Requeue()]),
    "late": ("failed", [Fail("late")]),
    "user": ("failed", [Fail("user")]),
}
_STOPPING: dict[str, Outcome] = {
    "started": "impossible",
    "finished": ("cancelled", [Fail("cancelled")]),
    "cancelled": "nothing",
    "expired": ("abandoned", [Fail("cancelled", still_running=True)]),
    **{fault: ("cancelled", [Fail("cancelled")]) for fault in FAULTS},
    "lost": ("cancelled", [Fail("cancelled"), Replace("a")]),
    "poisoned": ("cancelled", [Fail("cancelled"), Replace("a")]),
    "hung": ("cancelled", [Fail("cancelled"), Probe("a")]),
}
_ABANDONED: dict[str, Outcome] = {
    "started": "impossible",
    "finished": ("failed", [DeviceFree("a")]),
    "cancelled": "nothing",
    "expired": "nothing",
    **{fault: ("failed", [DeviceFree("a")]) for fault in FAULTS},
    "lost": ("failed", [Replace("a"), DeviceFree("a")]),
    "poisoned": ("failed", [Replace("a"), DeviceFree("a")]),
    "hung": ("failed", [Probe("a"), DeviceFree("a")]),
}


def _ending_as(status: Status, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    """The same, where every event that ends the task ends it so."""
    return {
        name: each if isinstance(each, str) else (status if each[0] in FINAL else each[0], each[1])
        for name, each in outcomes.items()
    }


TABLE: dict[str, dict[str, Outcome]] = {
    "queued": {
        **_IMPOSSIBLE,
        "started": ("running", []),
        "cancelled": ("cancelled", [Fail("cancelled")]),
        "expired": ("failed", [Fail("late")]),
    },
    "running": _RUNNING,
    "running with others": {
        **_RUNNING,
        **{fault: ("queued", [Requeue("a")]) for fault in ("too big", "no memory", "over budget")},
        **{fault: ("queued", [Requeue("a")]) for fault in ("missing", "unsupported")},
        "hung": ("queued", [Probe("a"), Requeue()]),
    },
    "running, once only": {
        **_RUNNING,
        **{fault: ("failed", [Fail(fault)]) for fault in FAULTS},
        "lost": ("failed", [Fail("lost"), Replace("a")]),
        "poisoned": ("failed", [Fail("poisoned"), Replace("a")]),
        "hung": ("failed", [Fail("hung"), Probe("a")]),
    },
    "running, killable": {**_RUNNING, "expired": ("abandoned", [Kill("a"), Fail("late")])},
    "stopping": _STOPPING,
    "stopping, killable": {**_STOPPING, "expired": ("abandoned", [Kill("a"), Fail("cancelled")])},
    "abandoned": _ABANDONED,
    "abandoned, killed": {
        **_ABANDONED,
        **{name: ("failed", [Probe("a"), DeviceFree("a")]) for name in ("finished", *FAULTS)},
    },
    "abandoned, cancelled": _ending_as("cancelled", _ABANDONED),
    "done": _OVER,
    "failed": _OVER,
    "cancelled": _OVER,
}


def test_the_table_is_complete() -> None:
    assert {task.status for task in BY_STATUS.values()} == set(SITUATIONS)
    assert set(TABLE) == set(BY_STATUS)
    assert all(set(row) == set(EVENTS) for row in TABLE.values())


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("status", BY_STATUS)
def test_every_pair_of_situation_and_event(status: str, event: str) -> None:
    task = BY_STATUS[status]
    expected = TABLE[status][event]
    if expected == "impossible":
        with pytest.raises(InvalidTransition) as caught:
            step(task, EVENTS[event])
        assert caught.value.story == describe(task)
        assert task.name in str(caught.value)
        assert all(sentence in str(caught.value) for sentence in describe(task))
    elif expected == "nothing":
        assert step(task, EVENTS[event]) == (task, ())
    else:
        after, actions = step(task, EVENTS[event])
        assert (after.status, list(actions)) == expected
        assert after.history == (*task.history, (EVENTS[event], actions))


# -- what follows what


def test_too_big_is_cut_three_times_and_then_goes_elsewhere() -> None:
    cut = (SplitFurther("a"), Requeue("a"))
    too_big = failed("too big", cuttable=True)
    assert life(fresh(), *launches(ON_A, *[too_big] * 4))[1::2] == [cut, cut, cut, (Requeue(),)]
    assert lived(fresh(), *launches(ON_A, *[too_big] * 4)).excluded == ("a",)


def test_what_cannot_be_cut_goes_elsewhere_at_once_and_is_refused_in_the_end() -> None:
    done = life(fresh(), ON_A, failed("too big"), ON_B, failed("too big"))
    assert done == [(), (Requeue(),), (), (Fail("too big"),)]


def test_no_memory_is_tried_twice_more_and_then_goes_elsewhere() -> None:
    no_memory = failed("no memory", cuttable=True)
    done = life(fresh(), *launches(ON_A, *[no_memory] * 3))[1::2]
    assert done == [(Reclaim("a"), Requeue("a")), (Reclaim("a"), SplitFurther("a"), Requeue("a")), (Requeue(),)]


def test_no_memory_for_what_cannot_be_cut() -> None:
    done = life(fresh("a"), *launches(ON_A, *[failed("no memory")] * 3))[1::2]
    assert done == [(Reclaim("a"), Requeue("a"))] * 2 + [(Fail("no memory"),)]


def test_over_budget_evicts_once_then_cuts_then_is_refused() -> None:
    cut = (SplitFurther("a"), Requeue("a"))
    done = life(fresh("a"), *launches(ON_A, *[failed("over budget", cuttable=True)] * 5))[1::2]
    assert done == [(EvictBuffers("a"), Requeue("a")), cut, cut, cut, (Fail("over budget"),)]
    assert life(fresh("a"), *launches(ON_A, *[failed("over budget")] * 2))[1::2] == [done[0], done[-1]]


def test_cuts_are_counted_together_whatever_asked_for_them() -> None:
    task = lived(
        fresh(),
        *launches(ON_A, *[failed("too big", cuttable=True)] * 3),
        ON_A,
        failed("no memory", cuttable=True),
        ON_A,
    )
    assert step(task, failed("no memory", cuttable=True))[1] == (Reclaim("a"), Requeue("a"))
    assert task.cuts == 3


def test_another_device_begins_anew_and_the_same_one_does_not() -> None:
    task = lived(
        fresh(), ON_A, failed("no memory"), ON_A, failed("over budget"), ON_A, failed("too big", cuttable=True)
    )
    assert (task.memory_retries, task.evictions, task.cuts) == (1, 1, 1)
    task = lived(task, ON_A, failed("lost"))
    same, other = lived(task, Started("a", 2)), lived(task, ON_B)
    assert (same.memory_retries, same.evictions, same.cuts) == (1, 1, 1)
    assert (other.memory_retries, other.evictions, other.cuts) == (0, 0, 0)
    assert same.deaths == other.deaths == 1


@pytest.mark.parametrize("fault", ["lost", "poisoned"])
def test_the_third_worker_that_dies_of_it_makes_it_poison(fault: TaskFault) -> None:
    task = lived(fresh(), ON_A, failed(fault), ON_B, failed(fault), Started("a", 2))
    after, actions = step(task, failed(fault))
    assert (after.status, after.deaths) == ("failed", 3)
    assert actions == (Fail("poison"), Replace("a"))


@pytest.mark.parametrize("fault", ["lost", "hung", "too big", "unsupported", "missing"])
def test_who_failed_with_others_runs_alone_from_then_on(fault: TaskFault) -> None:
    task = lived(fresh(), ON_A_SHARED, failed(fault))
    assert task.suspect
    assert (task.deaths, task.cuts, task.restores, task.excluded) == (0, 0, 0, ())
    with pytest.raises(InvalidTransition, match="with others cannot happen to blur, which is queued to run alone"):
        step(task, ON_A_SHARED)
    assert lived(task, ON_A).status == "running"


def test_an_endless_one_is_found_among_others_and_then_not_repeated() -> None:
    done = life(fresh(), ON_A_SHARED, failed("hung"), Started("a", 2), failed("hung"))
    assert done == [(), (Probe("a"), Requeue()), (), (Fail("hung"), Probe("a"))]


@pytest.mark.parametrize("start", [ON_A, ON_A_SHARED])
def test_a_worker_that_was_killed_at_the_tasks_own_deadline_means_late(start: Started) -> None:
    assert life(fresh(), start, failed("hung", overdue=True))[1] == (Fail("late"), Probe("a"))


def test_missing_arguments_are_restored_three_times() -> None:
    done = life(fresh("a"), *launches(ON_A, *[failed("missing")] * 4))[1::2]
    assert done == [(Requeue(),)] * 3 + [(Fail("missing"),)]


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("user", "late", "hung")])
def test_what_was_not_begun_may_be_tried_again_even_if_it_is_not_repeatable(fault: TaskFault) -> None:
    task = lived(fresh(repeatable=False), ON_A)
    assert step(task, failed(fault))[0].status == "failed"
    assert step(task, failed(fault, begun=False))[0].status == "queued"


def test_a_device_that_was_given_up_and_one_that_it_does_not_wait_for_are_refused() -> None:
    gone = lived(fresh(), ON_A, failed("unavailable"))
    with pytest.raises(
        InvalidTransition, match="Started on a cannot happen to blur, which is queued, and has given up a"
    ):
        step(gone, ON_A)
    waits = lived(fresh(), ON_A, failed("no memory"))
    with pytest.raises(InvalidTransition, match="Started on b cannot happen to blur, which is queued for a"):
        step(waits, ON_B)
    with pytest.raises(InvalidTransition, match="Started on c cannot happen to blur, which is queued for a or b"):
        step(fresh(), Started("c", 1))


def test_an_error_carries_the_whole_story() -> None:
    task = lived(fresh(), ON_A, failed("no memory"), ON_A, failed("lost"), Started("b", 4, killable=True), EXPIRE)
    with pytest.raises(InvalidTransition) as caught:
        step(task, ON_A)
    assert list(caught.value.story) == [
        "it started alone on a (worker 1).",
        "it failed on a (no memory; SomeError: what it said): memory was reclaimed on a and it was queued for a.",
        "it started alone on a (worker 1).",
        "it failed on a (lost; SomeError: what it said): "
        "a got a new worker and it was queued for any device that is left.",
        "it started alone on b (worker 4).",
        "its time was over: the worker of b was killed and its caller got an error (late).",
    ]


# -- every state that there is


def _every_event(task: Task) -> Iterator[TaskEvent]:
    """In every variant that makes a difference somewhere."""
    for device in task.devices:
        yield Started(device, 1)
        yield Started(device, 1, alone=False)
        yield Started(device, 1, killable=True)
    yield Started("elsewhere", 1)
    yield DONE
    yield CANCEL
    yield EXPIRE
    for fault in FAULTS:
        for begun in (True,) if task.repeatable else (True, False):
            yield failed(fault, begun=begun)
            if fault in ("too big", "no memory", "over budget"):
                yield failed(fault, begun=begun, cuttable=True)
            if fault == "hung":
                yield failed(fault, begun=begun, overdue=True)


def _attempt(task: Task, event: TaskEvent) -> tuple[Task, tuple[Action, ...]] | None:
    """The step, after a look whether it was right; `None` for an event that is impossible."""
    try:
        after, actions = step(task, event)
    except InvalidTransition as error:
        refused = error.story
    else:
        assert _may_happen(task, event)
        check(task, event, after, actions)
        return after, actions
    assert not _may_happen(task, event)
    assert len(refused) == len(task.history)
    return None


def _essence(task: Task) -> Task:
    """Without what decides nothing any more, so that there are few enough to look at them all."""
    if task.status in FINAL:
        return Task(name=task.name, devices=task.devices, status=task.status, cancelled=task.cancelled)
    if task.status == "queued":
        return replace(task, history=(), generation=0, alone=True, killable=False)
    return replace(task, history=())


def _may_happen(task: Task, event: TaskEvent) -> bool:
    if isinstance(event, Cancelled | Expired):
        return True
    if isinstance(event, Finished | Failed):
        return task.status in ("running", "abandoned")
    return (
        task.status == "queued"
        and event.device in set(task.devices) - set(task.excluded)
        and task.pinned_device in (None, event.device)
        and (event.alone or not task.suspect)
    )


def _answered(task: Task) -> bool:
    return task.status == "abandoned" or task.status in FINAL


def check(before: Task, event: TaskEvent, after: Task, actions: tuple[Action, ...]) -> None:
    """What is true of every single step; together these make every life a right one."""
    answers = [action for action in actions if isinstance(action, Deliver | Fail)]
    assert len(answers) == _answered(after) - _answered(before), "one answer, when its caller is done with it"
    assert (Deliver() in actions) == (after.status == "done" != before.status)
    assert not (after.cancelled and Deliver() in actions)
    assert after.cancelled >= before.cancelled
    assert before.status not in FINAL or (after is before and not actions), "nothing after the end"
    requeued = [action for action in actions if isinstance(action, Requeue)]
    assert len(requeued) == (after.status == "queued" != before.status)
    if requeued:
        assert isinstance(event, Failed)
        assert event.fault not in ("user", "late")
        assert before.repeatable or not event.begun
        assert requeued[0].device == after.pinned_device
        assert actions[-1] is requeued[0], "everything is ready before it waits"
        assert set(after.devices) - set(after.excluded), "there is a device to wait for"
        assert not isinstance(requeued[0].device, str) or requeued[0].device not in after.excluded
    freed = any(isinstance(action, DeviceFree) for action in actions)
    assert freed == (before.status == "abandoned" != after.status), "an abandoned task frees its device"
    if isinstance(event, Failed) and event.fault in ("lost", "poisoned", "hung"):
        assert Replace(before.device or "") in actions or Probe(before.device or "") in actions, (
            "a dead worker is mended"
        )
    assert after.deaths <= DEATHS
    assert after.deaths < DEATHS or Fail("poison") in actions or before.deaths == DEATHS
    assert set(before.excluded) <= set(after.excluded) <= set(after.devices)
    if after.status == "running":
        assert after.device not in after.excluded
        assert after.alone or not after.suspect
    assert after is before or after.history == (*before.history, (event, actions))


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize(("devices", "repeatable", "longest"), [("ab", True, 114), ("a", True, 28), ("a", False, 28)])
def test_every_state_that_a_task_can_come_to(devices: str, repeatable: bool, longest: int) -> None:
    """Not a sample: all of them. Every step is right, and every life ends."""
    start = fresh(*devices, repeatable=repeatable)
    events = list(_every_event(start))
    following: dict[Task, set[Task]] = {}
    unseen = [start]
    while unseen:
        task = unseen.pop()
        if task in following:
            continue
        steps = [taken[0] for event in events if (taken := _attempt(task, event)) is not None]
        following[task] = {_essence(after) for after in steps if after is not task}
        unseen += following[task]
    assert {task.status for task in following} == set(SITUATIONS)
    assert {task.status for task in following if not following[task]} == FINAL, "nothing else is an end"
    assert _longest_way(start, following) == longest


def _longest_way(start: Task, following: dict[Task, set[Task]]) -> int:
    """In events, to an end. There is one only if no state leads back to itself."""
    before: dict[Task, list[Task]] = {task: [] for task in following}
    for task, states in following.items():
        for state in states:
            before[state].append(task)
    unfinished = {task: len(states) for task, states in following.items()}
    longest = {task: 0 for task, count in unfinished.items() if not count}
    ready = list(longest)
    while ready:
        state = ready.pop()
        for task in before[state]:
            longest[task] = max(longest.get(task, 0), longest[state] + 1)
            unfinished[task] -= 1
            if not unfinished[task]:
                ready.append(task)
    assert not any(unfinished.values()), "some state leads back to itself"
    return longest[start]


# -- lives


def _some_event(draw: random.Random, task: Task) -> TaskEvent:
    kind = draw.random()
    if kind < 0.4:
        device = (
            task.pinned_device
            if task.pinned_device is not None and draw.random() < 0.9
            else draw.choice(sorted(task.devices))
        )
        alone = draw.random() < (0.95 if task.suspect else 0.6)
        return Started(device, draw.randrange(1, 4), alone=alone, killable=draw.random() < 0.5)
    if kind < 0.45:
        return DONE
    if kind < 0.47:
        return draw.choice((CANCEL, EXPIRE))
    fault = draw.choice(FAULTS[:-2]) if draw.random() < 0.97 else draw.choice(FAULTS)
    flags = draw.random() < 0.5, draw.random() < 0.7, draw.random() < 0.1
    return failed(fault, cuttable=flags[0], begun=flags[1], overdue=flags[2])


def test_ten_thousand_random_lives() -> None:
    draw = random.Random(6)
    ends: dict[str, int] = dict.fromkeys(SITUATIONS, 0)
    impossible = starts = 0
    for _ in range(10_000):
        task = fresh(*"abc"[: draw.randrange(1, 4)], repeatable=draw.random() < 0.9)
        answers: list[Action] = []
        for _ in range(40):
            event = _some_event(draw, task)
            taken = _attempt(task, event)
            if taken is None:
                impossible += 1
                continue
            after, actions = taken
            answers += [action for action in actions if isinstance(action, Deliver | Fail)]
            starts += isinstance(event, Started)
            task = after
        assert len(answers) == _answered(task)
        assert not (task.cancelled and Deliver() in answers)
        assert len(describe(task)) == len(task.history)
        ends[task.status] += 1
    # That the lives were worth living: each end was reached, and tasks were tried again.
    assert min(ends[status] for status in FINAL) > 200, ends
    assert starts > 20_000
    assert impossible > 20_000


@pytest.mark.parametrize("devices", [1, 2, 5])
def test_nobody_is_tried_for_ever(devices: int) -> None:
    """Whatever goes wrong each time: there is an end, after a number of launches that grows with the devices only."""
    draw = random.Random(devices)
    names = tuple(f"device:{number}" for number in range(devices))
    retried = [fault for fault in FAULTS if fault not in ("user", "late", "hung")]
    most = 0
    for _ in range(300):
        task, tries = fresh(*names), 0
        while task.status not in FINAL:
            left = [name for name in names if name not in task.excluded and task.pinned_device in (None, name)]
            task = lived(task, Started(draw.choice(left), 1), failed(draw.choice(retried), cuttable=True))
            tries += 1
            most = max(most, tries)
            assert tries <= 7 * (devices + 6)
    assert most > devices


class Lives(RuleBasedStateMachine):
    """A driver that obeys: it knows only what the actions say, and what it has told itself."""

    @initialize(devices=st.integers(1, 3), repeatable=st.booleans())
    def submit(self, devices: int, repeatable: bool) -> None:
        self.task = fresh(*"abc"[:devices], repeatable=repeatable)
        self.waits = True
        self.pinned_device: str | None = None
        self.busy: str | None = None
        self.answers: list[Action] = []
        self.cancelled_in_time = False

    def tell(self, event: TaskEvent) -> None:
        after, actions = step(self.task, event)
        check(self.task, event, after, actions)
        self.task = after
        for action in actions:
            if isinstance(action, Requeue):
                self.waits, self.pinned_device = True, action.device
            elif isinstance(action, Deliver | Fail):
                self.answers.append(action)
                self.waits = False
            elif isinstance(action, Kill):
                assert action.device == self.busy, "nobody else's worker is killed"

    @precondition(lambda self: self.waits)
    @rule(data=st.data(), shared=st.booleans(), killable=st.booleans())
    def start(self, data: st.DataObject, shared: bool, killable: bool) -> None:
        left = [name for name in self.task.devices if name not in self.task.excluded]
        self.busy = self.pinned_device or data.draw(st.sampled_from(left))
        self.waits, self.pinned_device = False, None
        self.tell(Started(self.busy, 1, alone=self.task.suspect or not shared, killable=killable))

    @precondition(lambda self: self.busy)
    @rule()
    def finish(self) -> None:
        self.busy = None
        self.tell(DONE)

    @precondition(lambda self: self.busy)
    @rule(fault=st.sampled_from(FAULTS), cuttable=st.booleans(), begun=st.booleans(), overdue=st.booleans())
    def fail(self, fault: TaskFault, cuttable: bool, begun: bool, overdue: bool) -> None:
        self.busy = None
        self.tell(failed(fault, cuttable=cuttable, begun=begun, overdue=overdue))

    @rule()
    def cancel(self) -> None:
        self.cancelled_in_time |= not self.answers
        self.tell(CANCEL)

    @rule()
    def expire(self) -> None:
        self.tell(EXPIRE)

    @invariant()
    def has_one_answer_at_most(self) -> None:
        assert len(self.answers) <= 1
        over = not self.waits and self.busy is None
        assert over == (self.task.status in FINAL)
        assert not over or len(self.answers) == 1

    @invariant()
    def delivers_nothing_that_was_cancelled(self) -> None:
        assert not (self.cancelled_in_time and Deliver() in self.answers)

    @invariant()
    def tells_everything(self) -> None:
        assert len(describe(self.task)) == len(self.task.history)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


# -- cost


def _best(work: Callable[[], object], rounds: int = 2000) -> float:
    begin = time.thread_time()
    for _ in range(rounds):
        work()
    return time.thread_time() - begin


def test_a_life_without_trouble_costs_hardly_more_than_its_records() -> None:
    task = fresh()

    def lives() -> object:
        running, _ = step(task, ON_A)
        return step(running, DONE)

    def records() -> object:
        return replace(replace(task, status="running", device="a"), status="done", history=((DONE, ()),))

    took = [(_best(lives), _best(records)) for _ in range(7)]
    ratio = min(life for life, _ in took) / min(record for _, record in took)
    assert ratio < 8, f"{ratio:.1f} times"
