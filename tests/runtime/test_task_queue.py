from __future__ import annotations

import gc
import random
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anygpu.errors import InvalidOption, QueueFull, QuotaExceeded
from anygpu.runtime.task_queue import LOOK, MOST, RESERVED, TaskQueue, Tenant
from tests.support.isolation import run_alone


@dataclass(eq=False)
class Item:
    """A task as the queue sees it."""

    name: str = ""
    kind: Hashable = "k"
    tenant: str = "default"
    priority: int = 0
    nbytes: int = 0
    cost: float = 1.0
    submitted: float = 0.0


def anything(item: Item) -> bool:
    return True


def names(items: list[Item]) -> str:
    return "".join(item.name for item in items)


def take_all(queue: TaskQueue[Item], fits: Callable[[Item], bool] = anything) -> str:
    taken = ""
    while found := queue.take(0.0, fits):
        taken += names(found)
    return taken


def filled(*items: Item, **options: Any) -> TaskQueue[Item]:
    """Pushed one after the other at time 0."""
    queue: TaskQueue[Item] = TaskQueue(**options)
    for item in items:
        queue.push(item, 0.0)
    return queue


# -- the order within a tenant


def test_equal_priorities_go_in_the_order_in_which_they_came() -> None:
    assert take_all(filled(*(Item(name) for name in "abcdef"))) == "abcdef"


def test_a_higher_priority_overtakes() -> None:
    assert take_all(filled(Item("a", priority=0), Item("b", priority=10), Item("c", priority=5))) == "bca"


def test_a_task_gains_one_level_for_each_ageing_seconds() -> None:
    queue: TaskQueue[Item] = TaskQueue(ageing=0.5)
    queue.push(Item("a", priority=0), 0.0)
    queue.push(Item("b", priority=3), 1.4)
    queue.push(Item("c", priority=3), 1.6)
    assert take_all(queue) == "bac"


def test_order_holds_across_kinds() -> None:
    items = [Item(name, kind=kind) for name, kind in zip("abcdef", "xyxzyx", strict=True)]
    assert take_all(filled(*items)) == "abcdef"


@pytest.mark.parametrize("priority", [-1, 11, 2.5, True, "high"])
def test_other_priorities_are_refused(priority: Any) -> None:
    queue: TaskQueue[Item] = TaskQueue()
    with pytest.raises(InvalidOption, match="from 0 to 10"):
        queue.push(Item(priority=priority), 0.0)
    assert len(queue) == 0


def test_a_task_cannot_take_less_than_no_bytes() -> None:
    with pytest.raises(InvalidOption, match="-5 bytes"):
        filled(Item(nbytes=-5))


@pytest.mark.parametrize("options", [{"most": 0}, {"most": 2.0}, {"ageing": 0.0}, {"ageing": float("nan")}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        TaskQueue[Item](**options)


def test_two_tenants_cannot_have_one_name() -> None:
    with pytest.raises(InvalidOption, match="'a'"):
        TaskQueue[Item](tenants=[Tenant(name="a"), Tenant(name="a", share=2)])


@pytest.mark.parametrize("ageing", [0.1, 0.5])
def test_priority_zero_is_not_starved_by_a_flood_of_priority_ten(ageing: float) -> None:
    """The bound of the docstring, with a device that needs 10 ms for a task, while 1.25 new ones of the flood come."""
    queue: TaskQueue[Item] = TaskQueue(most=1000, ageing=ageing)
    now, refused, waited = 0.0, 0, []
    humble = Item("humble", submitted=now)
    queue.push(humble, now)
    for step in range(8000):
        for _ in range(1 + (step % 4 == 0)):
            try:
                queue.push(Item("flood", priority=MOST, submitted=now), now)
            except QueueFull:
                refused += 1
        [item] = queue.take(now, anything)
        if item.name == "humble":
            waited.append(now - item.submitted)
            humble = Item("humble", submitted=now)
            queue.push(humble, now)
        else:
            assert item.submitted <= humble.submitted + MOST * ageing + 1e-9, "it came too late to go first"
        queue.finished(item)
        now += 0.01
    assert len(waited) >= 4
    assert refused > 0, "the queue was full for some time"
    assert max(waited) <= MOST * ageing + 1000 * 0.01 + 1e-6
    assert min(waited) >= MOST * ageing * 0.5, "priority 10 has overtaken"


# -- what fits, and batches


def test_what_does_not_fit_keeps_its_place_and_others_go_first() -> None:
    queue = filled(Item("a", kind="big"), Item("b", kind="small"), Item("c", kind="big"))
    assert names(queue.take(0.0, lambda item: item.kind == "small")) == "b"
    assert queue.take(0.0, lambda item: item.kind == "small") == []
    assert take_all(queue) == "ac"


def test_fits_is_asked_once_for_each_kind_and_tenant() -> None:
    asked: Counter[tuple[Hashable, str]] = Counter()

    def never(item: Item) -> bool:
        asked[item.kind, item.tenant] += 1
        return False

    queue = filled(*(Item(kind=i % 3, tenant="ab"[i % 2]) for i in range(600)))
    assert queue.take(0.0, never) == []
    assert asked == {(kind, tenant): 1 for kind in range(3) for tenant in "ab"}


def test_a_batch_is_the_first_that_fits_and_others_of_its_kind() -> None:
    queue = filled(*(Item(name, kind=kind) for name, kind in zip("abcdefg", "xyxxyxx", strict=True)))
    assert names(queue.take(0.0, anything, most=3)) == "acd"
    assert names(queue.take(0.0, anything, most=10)) == "be"
    assert names(queue.take(0.0, anything, most=10)) == "fg"


def test_how_many_may_depend_on_the_first_and_on_how_many_of_its_kind_wait() -> None:
    seen: list[tuple[str, int]] = []

    def half(first: Item, waiting: int) -> int:
        seen.append((first.name, waiting))
        return waiting // 2

    queue = filled(*(Item(name, tenant=tenant) for name, tenant in zip("abcdef", "xyxyxy", strict=True)))
    assert names(queue.take(0.0, anything, most=half)) == "ace"
    assert names(queue.take(0.0, anything, most=half)) == "b"
    assert names(queue.take(0.0, anything, most=half)) == "d"
    assert names(queue.take(0.0, anything, most=half)) == "f", "at least one, whatever is said"
    assert seen == [("a", 6), ("b", 3), ("d", 2), ("f", 1)]


def test_a_batch_has_its_own_tenant_first_and_then_others_by_their_turn() -> None:
    queue = filled(
        Item("a", tenant="x"),
        Item("b", tenant="y"),
        Item("c", tenant="z"),
        Item("d", tenant="x"),
        Item("e", tenant="z"),
    )
    queue.charge("y", 5.0)
    assert names(queue.take(0.0, anything, most=4)) == "adce"
    assert queue.waiting("x") == queue.waiting("z") == 0
    assert queue.waiting("y") == 1


def test_a_tenant_whose_head_does_not_fit_is_in_no_batch() -> None:
    queue = filled(Item("a", tenant="x"), Item("b", tenant="y"), Item("c", tenant="z"))
    assert names(queue.take(0.0, lambda item: item.tenant != "y", most=9)) == "ac"


def test_an_error_of_fits_changes_nothing() -> None:
    queue = filled(Item("a"), Item("b", kind="other"))

    def broken(item: Item) -> bool:
        if item.name == "b":
            raise KeyError(item.name)
        return False

    with pytest.raises(KeyError):
        queue.take(0.0, broken)
    assert take_all(queue) == "ab"


@pytest.mark.parametrize("tenants", [1, 3, 200])
def test_one_look_is_bounded_and_some_looks_find_everything(tenants: int) -> None:
    """500 kinds that cannot run here stand before one that can."""
    hidden = Item("found", kind="fits", tenant="last")
    queue = filled(*(Item(kind=i, tenant=f"t{i % tenants}") for i in range(500)), hidden)
    for other in range(100):
        queue.push(Item(kind=("other", other), tenant="last", priority=10), 0.0)
    asked = 0

    def fits(item: Item) -> bool:
        nonlocal asked
        asked += 1
        return item is hidden

    assert queue.take(0.0, anything, look=None)
    everything = len(queue)
    assert queue.take(0.0, lambda item: item.kind == "none", look=None) == []
    assert queue.take(0.0, fits, look=None) == [hidden]
    assert LOOK < asked <= everything
    queue.push(hidden, 0.0, again=True)
    asked = looks = 0
    while not (found := queue.take(0.0, fits, by="here")):
        assert asked <= LOOK
        assert looks < 1000, "everybody is looked at some time"
        asked, looks = 0, looks + 1
        # Somebody else looks in between, and goes its own round.
        assert queue.take(0.0, lambda item: False, by="elsewhere") == []
    assert found == [hidden]


# -- coming back, going away


def test_what_was_taken_before_comes_back_to_its_old_place() -> None:
    queue = filled(*(Item(name) for name in "abcd"))
    [a] = queue.take(0.0, anything)
    [b] = queue.take(0.0, anything)
    queue.push(b, 100.0, again=True)
    queue.push(a, 200.0, again=True)
    assert queue.oldest(200.0) == 200.0
    assert take_all(queue) == "abcd"


def test_what_comes_back_is_refused_by_no_limit() -> None:
    queue: TaskQueue[Item] = TaskQueue(most=1, tenants=[Tenant(name="a", bytes=10, queued=1)])
    queue.push(first := Item("x", tenant="a", nbytes=10), 0.0)
    assert queue.take(0.0, anything) == [first]
    queue.finished(first)
    queue.push(Item("y", tenant="a", nbytes=10), 0.0)
    queue.push(first, 1.0, again=True)
    assert (len(queue), queue.bytes_of("a")) == (2, 20)
    with pytest.raises(QueueFull):
        queue.push(Item(tenant="b"), 1.0)


def test_what_comes_back_may_be_of_another_kind() -> None:
    queue = filled(*(Item(name) for name in "abc"))
    [a] = queue.take(0.0, anything)
    a.kind = a
    queue.push(a, 1.0, again=True)
    assert queue.kinds() == {"k": 2, a: 1}
    assert names(queue.take(1.0, anything, most=5)) == "a"
    assert queue.count(a) == 0


def test_coming_back_twice_is_coming_back_once() -> None:
    queue = filled(Item("a"))
    [a] = queue.take(0.0, anything)
    queue.push(a, 0.0, again=True)
    queue.push(a, 0.0, again=True)
    assert take_all(queue) == "a"


def test_the_same_task_cannot_come_twice() -> None:
    queue = filled(a := Item("a"))
    with pytest.raises(InvalidOption, match="already"):
        queue.push(a, 0.0)
    queue.take(0.0, anything)
    with pytest.raises(InvalidOption, match="already"):
        queue.push(a, 0.0)
    queue.finished(a)
    queue.push(a, 0.0)
    assert len(queue) == 1


def test_what_is_removed_is_gone() -> None:
    a, b, c = (Item(name, nbytes=7) for name in "abc")
    queue = filled(a, b, c)
    assert queue.remove(b)
    assert not queue.remove(b)
    assert (len(queue), queue.count("k"), queue.bytes_of("default")) == (2, 2, 14)
    assert queue.remove(a)
    assert take_all(queue) == "c"
    assert not queue.remove(c), "what runs does not wait"
    assert queue.bytes_of("default") == 7


def test_one_can_be_taken_out_of_its_turn() -> None:
    first, second, third = items = [Item(name, tenant="a", nbytes=1) for name in "123"]
    queue = filled(*items)
    assert queue.take_this(second)
    assert not queue.take_this(second)
    assert not queue.take_this(Item("4"))
    assert len(queue) == 2
    assert queue.bytes_of("a") == 3
    queue.push(second, 1.0, again=True)
    assert queue.take_this(first)
    assert take_all(queue) == "23"
    for item in items:
        queue.finished(item)
    assert queue.bytes_of("a") == 0
    assert third not in list(queue)


def test_finished_may_be_said_of_what_waits_and_twice() -> None:
    queue = filled(a := Item("a", nbytes=3), Item("b"))
    queue.finished(a)
    queue.finished(a)
    assert queue.bytes_of("default") == 0
    assert take_all(queue) == "b"


def test_what_waits_can_be_listed() -> None:
    queue = filled(*(Item(name, kind=name, priority=priority) for name, priority in zip("abc", (0, 5, 9), strict=True)))
    assert names(list(queue)) == "abc"
    queue.take(0.0, anything)
    assert names(list(queue)) == "ab"
    assert (queue.oldest(2.5), TaskQueue[Item]().oldest(2.5)) == (2.5, None)


# -- limits


def test_a_full_queue_refuses_until_there_is_room() -> None:
    queue = filled(*(Item() for _ in range(3)), most=3)
    with pytest.raises(QueueFull) as caught:
        queue.push(Item(), 0.0)
    assert caught.value.limit == 3
    queue.take(0.0, anything)
    queue.push(Item(), 0.0)
    assert len(queue) == 3


def test_a_tenant_has_a_limit_of_waiting_tasks() -> None:
    queue: TaskQueue[Item] = TaskQueue(tenants=[Tenant(name="a", queued=2)])
    queue.push(Item(tenant="a"), 0.0)
    queue.push(Item(tenant="a"), 0.0)
    with pytest.raises(QuotaExceeded) as caught:
        queue.push(Item(tenant="a"), 0.0)
    assert (caught.value.tenant, caught.value.quota, caught.value.limit) == ("a", "queued tasks", 2)
    queue.push(Item(tenant="b"), 0.0)
    queue.take(0.0, lambda item: item.tenant == "a")
    queue.push(Item(tenant="a"), 0.0)


def test_bytes_count_until_a_task_is_finished() -> None:
    queue: TaskQueue[Item] = TaskQueue(tenants=[Tenant(name="a", bytes=100)])
    queue.push(first := Item(tenant="a", nbytes=60), 0.0)
    with pytest.raises(QuotaExceeded) as caught:
        queue.push(Item(tenant="a", nbytes=41), 0.0)
    assert (caught.value.tenant, caught.value.quota, caught.value.limit) == ("a", "bytes", 100)
    queue.push(second := Item(tenant="a", nbytes=40), 0.0)
    queue.take(0.0, anything)
    with pytest.raises(QuotaExceeded):
        queue.push(Item(tenant="a", nbytes=1), 0.0)
    queue.finished(first)
    assert queue.bytes_of("a") == 40
    queue.remove(second)
    queue.push(Item(tenant="a", nbytes=100), 0.0)


def test_a_refused_task_leaves_nothing_behind() -> None:
    queue: TaskQueue[Item] = TaskQueue(most=1)
    queue.push(Item(), 0.0)
    item = Item(tenant="b", nbytes=5, kind="other")
    with pytest.raises(QueueFull):
        queue.push(item, 0.0)
    assert (queue.waiting("b"), queue.bytes_of("b"), queue.count("other"), len(queue)) == (0, 0, 0, 1)
    assert not queue.remove(item)


def test_places_are_kept_for_the_tenants_that_are_named() -> None:
    named = [Tenant(name="a"), Tenant(name="b", share=3), Tenant(name="c", queued=0)]
    queue: TaskQueue[Item] = TaskQueue(most=100, tenants=named)
    kept = {"a": int(100 * RESERVED / 5), "b": int(100 * RESERVED * 3 / 5)}
    for _ in range(100 - sum(kept.values())):
        queue.push(Item(tenant="stranger"), 0.0)
    for refused in ("stranger", "other"):
        with pytest.raises(QueueFull) as caught:
            queue.push(Item(tenant=refused), 0.0)
        assert caught.value.limit == 100 - sum(kept.values())
    for tenant, places in kept.items():
        for _ in range(places):
            queue.push(Item(tenant=tenant), 0.0)
    assert len(queue) == 100
    with pytest.raises(QueueFull) as caught:
        queue.push(Item(tenant="a"), 0.0)
    assert caught.value.limit == 100
    # A place that becomes free is for all again only when those of its tenant are free.
    assert len(queue.take(0.0, lambda item: item.tenant == "b")) == 1
    with pytest.raises(QueueFull):
        queue.push(Item(tenant="stranger"), 0.0)
    queue.push(Item(tenant="b"), 0.0)
    assert len(queue.take(0.0, lambda item: item.tenant == "stranger")) == 1
    queue.push(Item(tenant="stranger"), 0.0)


def test_without_named_tenants_one_can_have_every_place() -> None:
    assert len(filled(*(Item() for _ in range(100)), most=100)) == 100


# -- fairness between tenants


@dataclass
class Device:
    """One device, a clock that it turns, and the seconds that each tenant had of it."""

    queue: TaskQueue[Item]
    now: float = 0.0
    used: Counter[str] = field(default_factory=Counter)
    #: What a task is charged when it is taken, corrected when it is done; None: charged when it is done.
    predict: Callable[[Item], float] | None = lambda item: item.cost

    def keep_waiting(self, tenant: str, number: int, cost: float = 1.0, priority: int = 0) -> None:
        """As a client would that has always so many in the queue, as far as it is let."""
        while self.queue.waiting(tenant) < number:
            try:
                self.queue.push(Item(tenant, kind=tenant, tenant=tenant, cost=cost, priority=priority), self.now)
            except QueueFull:
                return

    def run(self, most: int = 1) -> list[Item]:
        items = self.queue.take(self.now, anything, most=most)
        assert items, "the clock stands still when nothing runs"
        for item in items:
            predicted = 0.0 if self.predict is None else self.predict(item)
            self.queue.charge(item.tenant, predicted)
            self.now += item.cost
            self.used[item.tenant] += item.cost  # type: ignore[assignment]
            self.queue.charge(item.tenant, item.cost - predicted)
            self.queue.finished(item)
        return items

    def part(self, tenant: str) -> float:
        return self.used[tenant] / sum(self.used.values())


PREDICTIONS: dict[str, Callable[[Item], float] | None] = {
    "right": lambda item: item.cost,
    "too long": lambda item: item.cost * 5,
    "too short": lambda item: item.cost / 5,
    "none": None,
}


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize(
    ("cost", "waiting", "most"), [(1.0, 2, 1), (10.0, 2, 1), (0.1, 2, 1), (1.0, 900, 1), (10.0, 900, 1), (1.0, 64, 16)]
)
def test_equal_shares_get_half_each(prediction: str, cost: float, waiting: int, most: int) -> None:
    """Also when the tasks of one are ten times as long, when it floods the queue, and when it comes in batches."""
    device = Device(TaskQueue(tenants=[Tenant(name="a"), Tenant(name="b")]), predict=PREDICTIONS[prediction])
    while device.now < 1000:
        device.keep_waiting("a", waiting, cost, priority=MOST)
        device.keep_waiting("b", 2)
        device.run(most)
    assert device.part("a") == pytest.approx(0.5, abs=0.05)


def test_a_flood_that_fills_the_queue_first_at_every_chance_gets_its_half_only() -> None:
    device = Device(TaskQueue(most=50, tenants=[Tenant(name="a"), Tenant(name="b")]))
    while device.now < 500:
        device.keep_waiting("a", 10**6)
        device.keep_waiting("b", 3)
        device.run()
    assert device.part("a") == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("cost", [0.1, 1.0, 10.0])
def test_shares_of_two_to_one(cost: float) -> None:
    device = Device(TaskQueue(tenants=[Tenant(name="a", share=2.0), Tenant(name="b")]))
    while device.now < 3000:
        device.keep_waiting("a", 5, cost)
        device.keep_waiting("b", 5)
        device.run()
    assert device.part("a") == pytest.approx(2 / 3, abs=0.05)


def test_ten_tenants_that_nobody_named_share_equally() -> None:
    device = Device(TaskQueue())
    while device.now < 2000:
        for number in range(10):
            device.keep_waiting(f"t{number}", 3, cost=0.5 + number)
        device.run()
    for number in range(10):
        assert device.part(f"t{number}") == pytest.approx(0.1, abs=0.01)


def test_who_was_idle_has_saved_nothing_up_and_has_nothing_to_make_up_for() -> None:
    device = Device(TaskQueue(tenants=[Tenant(name="a"), Tenant(name="b")]))
    while device.now < 100:
        device.keep_waiting("a", 3)
        device.keep_waiting("b", 3)
        device.run()
    # b goes away, a has the machine for itself, and b returns: from then on half each, at once.
    while device.queue.waiting("b"):
        device.run()
    while device.now < 1000:
        device.keep_waiting("a", 3)
        device.run()
    device.used.clear()
    order = ""
    while device.now < 1040:
        device.keep_waiting("a", 3)
        device.keep_waiting("b", 3)
        order += names(device.run())
    assert "aaa" not in order
    assert "bbb" not in order
    assert device.part("a") == pytest.approx(0.5, abs=0.05)


def test_nobody_pays_for_having_used_a_machine_that_nobody_else_wanted() -> None:
    device = Device(TaskQueue())
    device.keep_waiting("a", 1, cost=1000.0)
    device.run()
    order = ""
    for _ in range(20):
        device.keep_waiting("b", 2)
        device.keep_waiting("a", 2)
        order += names(device.run())
    assert "bbb" not in order
    assert "aaa" not in order


def test_a_correction_gives_nothing_back_for_time_in_which_a_tenant_wanted_nothing() -> None:
    queue: TaskQueue[Item] = TaskQueue()
    device = Device(queue)
    queue.push(Item("a", tenant="a"), 0.0)
    [running] = queue.take(0.0, anything)
    queue.charge("a", 1000.0)
    for _ in range(500):
        device.keep_waiting("b", 2)
        device.run()
    device.keep_waiting("a", 100)
    queue.charge("a", -999.0)
    queue.finished(running)
    order = ""
    for _ in range(20):
        device.keep_waiting("b", 2)
        order += names(device.run())
    assert "aaa" not in order


def test_riding_along_is_not_held_against_a_tenant_when_nobody_else_wanted_the_time() -> None:
    """a has one task at a time, and b fills up its launches; then a wants more, of another kind."""
    device = Device(TaskQueue())
    for _ in range(100):
        for tenant, number in (("a", 1), ("b", 15)):
            while device.queue.waiting(tenant) < number:
                device.queue.push(Item(tenant, tenant=tenant), device.now)
        assert len(device.run(most=8)) == 8
    assert device.used["b"] > 6 * device.used["a"]
    order = ""
    for _ in range(60):
        device.keep_waiting("a", 20)
        device.keep_waiting("b", 2)
        order += names(device.run())
    assert order.count("a") == pytest.approx(30, abs=8)


def test_takes_before_any_charge_go_round() -> None:
    queue = filled(*(Item(tenant, tenant=tenant) for tenant in "aaaabbbbcccc"))
    assert "".join(names(queue.take(0.0, anything)) for _ in range(6)) == "abcabc"


def test_a_tenant_whose_task_does_not_fit_holds_up_nobody() -> None:
    queue = filled(Item("a", tenant="a", kind="big"), Item("b", tenant="b", kind="small"))
    queue.charge("b", 100.0)
    assert names(queue.take(0.0, lambda item: item.kind != "big")) == "b"
    queue.push(Item("c", tenant="b"), 0.0)
    assert names(queue.take(0.0, anything)) == "a"


@pytest.mark.parametrize("lanes", [2, 5])
def test_half_each_on_several_devices(lanes: int) -> None:
    queue: TaskQueue[Item] = TaskQueue(tenants=[Tenant(name="a"), Tenant(name="b")])
    clock = Device(queue)
    busy: list[tuple[float, Item] | None] = [None] * lanes
    while clock.now < 1000:
        clock.keep_waiting("a", 20, cost=7.0)
        clock.keep_waiting("b", 20, cost=1.0)
        for lane in range(lanes):
            if busy[lane] is None:
                [item] = queue.take(clock.now, anything)
                queue.charge(item.tenant, item.cost)
                busy[lane] = (clock.now + item.cost, item)
        running = [each for each in busy if each is not None]
        clock.now = min(end for end, _ in running)
        for lane, each in enumerate(busy):
            if each is not None and each[0] <= clock.now:
                clock.used[each[1].tenant] += each[1].cost  # type: ignore[assignment]
                queue.finished(each[1])
                busy[lane] = None
    assert clock.part("a") == pytest.approx(0.5, abs=0.05)


# -- against a model that is slow and obvious


@dataclass(eq=False)
class ModelTask:
    item: Item
    submitted: float
    sequence: int
    kind: Hashable
    waiting: bool = True

    @property
    def place(self) -> tuple[float, int]:
        return (self.submitted - self.item.priority * 0.5, self.sequence)


@dataclass
class ModelTenant:
    tenant: Tenant
    virtual: float
    floor: float
    turn: int
    places: int


class Model:
    """The rules of the docstrings, with one list of tasks that is sorted whenever somebody asks."""

    def __init__(self, most: int, tenants: list[Tenant]) -> None:
        self.most = most
        self.tasks: list[ModelTask] = []
        self.virtual = 0.0
        self.turns = 0
        self.sequence = 0
        self.tenants: dict[str, ModelTenant] = {}
        shares = sum(each.share for each in tenants)
        for each in tenants:
            places = int(most * RESERVED * each.share / shares)
            self.meet(each, places if each.queued is None else min(places, each.queued))

    def meet(self, tenant: Tenant, places: int = 0) -> ModelTenant:
        met = ModelTenant(tenant, self.virtual, self.virtual, self.turns, places)
        self.tenants[tenant.name] = met
        self.turns += 1
        return met

    def tenant(self, name: str) -> ModelTenant:
        return self.tenants[name] if name in self.tenants else self.meet(Tenant(name=name))

    def waiting(self, tenant: str | None = None) -> list[ModelTask]:
        return [task for task in self.tasks if task.waiting and tenant in (None, task.item.tenant)]

    def nbytes(self, tenant: str) -> int:
        return sum(task.item.nbytes for task in self.tasks if task.item.tenant == tenant)

    def find(self, item: Item) -> ModelTask:
        [task] = [task for task in self.tasks if task.item is item]
        return task

    def push(self, item: Item, now: float) -> str:
        """What becomes of it."""
        if not self.tasks:
            self.virtual = max([self.virtual, *(each.virtual for each in self.tenants.values())])
        met = self.tenant(item.tenant)
        waiting = len(self.waiting(item.tenant))
        kept = sum(max(0, each.places - len(self.waiting(name))) for name, each in self.tenants.items())
        if len(self.waiting()) >= self.most:
            return "full"
        if met.tenant.queued is not None and waiting >= met.tenant.queued:
            return "queued tasks"
        if met.tenant.bytes is not None and self.nbytes(item.tenant) + item.nbytes > met.tenant.bytes:
            return "bytes"
        if waiting >= met.places and len(self.waiting()) + kept >= self.most:
            return "full"
        self.join(met, waiting)
        self.tasks.append(ModelTask(item, now, self.sequence, item.kind))
        self.sequence += 1
        return "waits"

    def join(self, met: ModelTenant, waiting: int) -> None:
        if not waiting:
            met.floor = self.virtual
            met.virtual = max(met.virtual, self.virtual)

    def again(self, item: Item) -> None:
        task = self.find(item)
        self.join(self.tenant(item.tenant), len(self.waiting(item.tenant)))
        task.waiting, task.kind = True, item.kind

    def take(self, allowed: set[tuple[str, Hashable]], most: int) -> list[Item]:
        fitting = [task for task in self.waiting() if (task.item.tenant, task.kind) in allowed]
        if not fitting:
            return []

        def order(task: ModelTask) -> tuple[Any, ...]:
            met = self.tenants[task.item.tenant]
            return (met.virtual, met.turn, *task.place)

        first = min(fitting, key=order)
        fitting = [task for task in fitting if task.kind == first.kind]
        fitting.sort(key=lambda task: (task.item.tenant != first.item.tenant, *order(task)))
        served = self.tenants[first.item.tenant]
        self.virtual = max(self.virtual, served.virtual)
        served.turn = self.turns
        self.turns += 1
        for task in fitting[:most]:
            # Whose turn it is when a tenant's first comes along, and then it keeps the turn for all of its tasks.
            if task.item.tenant != first.item.tenant and min(self.waiting(), key=order).item.tenant == task.item.tenant:
                self.virtual = max(self.virtual, self.tenants[task.item.tenant].virtual)
            task.waiting = False
        return [task.item for task in fitting[:most]]

    def forget(self, item: Item) -> None:
        self.tasks.remove(self.find(item))

    def charge(self, tenant: str, seconds: float) -> None:
        met = self.tenant(tenant)
        met.virtual = max(met.virtual + seconds / met.tenant.share, met.floor)


NAMED = [Tenant(name="a"), Tenant(name="b", share=2.0, bytes=300), Tenant(name="c", share=0.5, queued=3)]
TENANTS = st.sampled_from(["a", "b", "c", "stranger", "other"])
KINDS = st.sampled_from(["k", "l", "m"])


def pushed(queue: TaskQueue[Item], item: Item, now: float) -> str:
    """What becomes of it, in the model's words."""
    try:
        queue.push(item, now)
    except QueueFull:
        return "full"
    except QuotaExceeded as error:
        return error.quota
    return "waits"


class QueueAgainstModel(RuleBasedStateMachine):
    @initialize(most=st.sampled_from([3, 12, 30]), named=st.booleans())
    def begin(self, most: int, named: bool) -> None:
        tenants = NAMED if named else []
        self.queue: TaskQueue[Item] = TaskQueue(most=most, tenants=tenants)
        self.model = Model(most, tenants)
        self.now = 0.0
        self.taken: list[Item] = []

    @rule(
        tenant=TENANTS,
        kind=KINDS,
        priority=st.integers(0, 10),
        nbytes=st.sampled_from([0, 50, 100]),
        later=st.sampled_from([0.0, 0.25, 1.0]),
        number=st.integers(1, 4),
    )
    def push(self, tenant: str, kind: str, priority: int, nbytes: int, later: float, number: int) -> None:
        self.now += later
        for _ in range(number):
            item = Item("", kind, tenant, priority, nbytes)
            assert pushed(self.queue, item, self.now) == self.model.push(item, self.now)

    @rule(
        allowed=st.sets(st.tuples(TENANTS, KINDS)) | st.just({(t, k) for t in ["a", "b", "c", "other"] for k in "klm"}),
        most=st.integers(1, 6),
        seconds=st.sampled_from([0.0, 0.5, 3.0]),
    )
    def take(self, allowed: set[tuple[str, Hashable]], most: int, seconds: float) -> None:
        taken = self.queue.take(self.now, lambda item: (item.tenant, item.kind) in allowed, most=most)
        assert taken == self.model.take(allowed, most)
        self.taken += taken
        for item in taken:
            self.charge(item.tenant, seconds)

    @rule(tenant=TENANTS, seconds=st.sampled_from([-2.0, -0.5, 0.75, 10.0]))
    def charge(self, tenant: str, seconds: float) -> None:
        self.queue.charge(tenant, seconds)
        self.model.charge(tenant, seconds)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), kind=KINDS)
    def again(self, data: st.DataObject, kind: str) -> None:
        item = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        item.kind = kind
        self.queue.push(item, self.now, again=True)
        self.model.again(item)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finished(self, data: st.DataObject) -> None:
        item = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        assert not self.queue.remove(item)
        self.queue.finished(item)
        self.model.forget(item)

    @precondition(lambda self: self.model.waiting())
    @rule(data=st.data(), as_finished=st.booleans())
    def remove(self, data: st.DataObject, as_finished: bool) -> None:
        item = data.draw(st.sampled_from(self.model.waiting())).item
        if as_finished:
            self.queue.finished(item)
        else:
            assert self.queue.remove(item)
        assert not self.queue.remove(item)
        self.model.forget(item)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        waiting = self.model.waiting()
        assert len(self.queue) == len(waiting)
        assert list(self.queue) == [task.item for task in waiting]
        assert self.queue.kinds() == Counter(task.kind for task in waiting)
        assert self.queue.oldest(self.now) == max((self.now - task.submitted for task in waiting), default=None)
        for tenant in ("a", "b", "c", "stranger", "other"):
            assert self.queue.waiting(tenant) == len(self.model.waiting(tenant))
            assert self.queue.bytes_of(tenant) == self.model.nbytes(tenant)
        for kind in "klm":
            assert self.queue.count(kind) == sum(task.kind == kind for task in waiting)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        everything = {(task.item.tenant, task.kind) for task in self.model.waiting()}
        while taken := self.queue.take(self.now, anything, most=2):
            assert taken == self.model.take(everything, 2)
            for item in taken:
                self.charge(item.tenant, 1.0)
        assert not self.model.waiting()


QueueAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestQueueAgainstModel = QueueAgainstModel.TestCase


def test_long_random_stories_agree_with_the_model() -> None:
    """As above, with queues long enough that taken beginnings are moved up."""
    chance = random.Random(6)
    queue: TaskQueue[Item] = TaskQueue(most=300, tenants=NAMED)
    model = Model(300, NAMED)
    everything: set[tuple[str, Hashable]] = {(tenant, kind) for tenant in ("a", "b", "c", "x") for kind in "kl"}
    taken: list[Item] = []
    now = 0.0
    for _ in range(4000):
        now += chance.choice([0.0, 0.01, 0.3])
        what = chance.random()
        if what < 0.7 or not len(queue):
            item = Item("", chance.choice("kl"), chance.choice("aaabcx"), chance.randrange(11), 10)
            assert pushed(queue, item, now) == model.push(item, now)
        elif what < 0.75:
            item = chance.choice(model.waiting()).item
            assert queue.remove(item)
            model.forget(item)
        elif what < 0.8 and taken:
            item = taken.pop()
            queue.push(item, now, again=True)
            model.again(item)
        else:
            most = chance.choice([1, 1, 2, 3, 40])
            found = queue.take(now, anything, most=most)
            assert found == model.take(everything, most)
            for item in found:
                seconds = chance.choice([0.1, 1.0])
                queue.charge(item.tenant, seconds)
                model.charge(item.tenant, seconds)
            taken += found
            for item in taken[:-5]:
                queue.finished(item)
                model.forget(item)
            del taken[:-5]


# -- memory and time


def size_of(queue: TaskQueue[Item]) -> int:
    """Everything the queue refers to, in objects."""
    seen: set[int] = set()
    following: list[object] = [queue]
    while following:
        each = following.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen.add(id(each))
            following += gc.get_referents(each)
    return len(seen)


def push_a_hundred_thousand() -> None:
    queue: TaskQueue[Item] = TaskQueue(most=1000)
    refused = 0
    tracemalloc.start()
    try:
        for number in range(100_000):
            try:
                queue.push(Item("", number % 7, f"t{number % 3}", number % 11, 8), number * 1e-3)
            except QueueFull:
                refused += 1
            if number == 1000:
                full, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (refused, len(queue)) == (99_000, 1000)
    assert peak - full < 100_000


def test_a_hundred_thousand_pushes_against_a_thousand_places_leave_memory_flat() -> None:
    run_alone(push_a_hundred_thousand)


def churn(queue: TaskQueue[Item], rounds: int, seed: int) -> None:
    """Push, take in batches, give back, cancel, with 200 waiting and a new tenant every hundred tasks."""
    chance = random.Random(seed)
    for number in range(rounds):
        now = seed * rounds * 1e-3 + number * 1e-3
        own_kind = number % 5 == 0
        item = Item("", number % 7, f"{seed}-{number // 100}", number % 11, 8)
        if own_kind:
            item.kind = item
        queue.push(item, now)
        if len(queue) > 200:
            for taken in queue.take(now, anything, most=chance.choice([1, 1, 2])):
                queue.charge(taken.tenant, 0.001)
                if chance.random() < 0.2:
                    queue.push(taken, now, again=True)
                else:
                    queue.finished(taken)
        if number % 10 == 0:
            queue.remove(item)


def test_what_is_over_does_not_pile_up() -> None:
    queue: TaskQueue[Item] = TaskQueue(most=2000)
    churn(queue, 5000, 1)
    after_some = size_of(queue) / len(queue)
    churn(queue, 20_000, 2)
    after_many = size_of(queue) / len(queue)
    assert after_many < after_some * 1.5
    for item in list(queue):
        queue.remove(item)
    assert queue.kinds() == {}
    assert size_of(queue) < 5000, "tenants and what belongs to them"


def test_a_kind_that_never_ends_keeps_nothing_of_those_that_were_taken() -> None:
    queue = filled(*(Item() for _ in range(50)))
    before = size_of(queue)
    for step in range(5000):
        queue.push(Item(), step * 1e-3)
        [taken] = queue.take(step * 1e-3, anything)
        queue.finished(taken)
    assert size_of(queue) < 2 * before


def test_a_task_that_is_over_is_kept_by_nothing() -> None:
    """Its arguments may be gigabytes: they go at once, not at the next cleaning."""
    queue = filled(*(Item() for _ in range(20)))
    gc.collect()
    gc.disable()
    try:
        for item in list(queue)[3:6]:
            queue.remove(item)
        taken = queue.take(0.0, anything, most=5)
        watched = [weakref.ref(each) for each in [item, *taken]]
        for item in taken:
            queue.finished(item)
        del taken, item
        assert [each() for each in watched] == [None] * 6
    finally:
        gc.enable()


def seconds_for_one(queue: TaskQueue[Item], now: float, number: int) -> float:
    items = [Item("", index % 5, "default", index % 11) for index in range(number)]
    gc.disable()  # it would look at everything else that this process has
    try:
        begin = time.thread_time()
        for item in items:
            now += 1e-3
            queue.push(item, now)
            [taken] = queue.take(now, anything)
            queue.finished(taken)
        return (time.thread_time() - begin) / number
    finally:
        gc.enable()


def test_the_cost_of_a_task_hardly_depends_on_how_many_wait() -> None:
    short, long = (
        filled(*(Item("", index % 5, "default", index % 11) for index in range(waiting)), most=20_001)
        for waiting in (10, 20_000)
    )
    few, many = [], []
    for step in range(9):
        few.append(seconds_for_one(short, step * 1.0, 300))
        many.append(seconds_for_one(long, step * 1.0, 300))
    assert min(many) < 4 * min(few), f"{few} and {many}"
