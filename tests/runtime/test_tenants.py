"""Limits of a runtime: full queues, quotas of tenants, and the order in which tasks run."""

from __future__ import annotations

import concurrent.futures
from functools import partial
from typing import Any

import numpy as np
import pytest

from anygpu.errors import InvalidOption, Overloaded, QueueFull, QuotaExceeded
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.task_queue import Tenant
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.runtime.holding import PATIENCE, Held

X = np.ones(1000, np.float32)


def same(x: Any) -> Any:
    return x


def test_a_full_queue_refuses_with_its_limit_and_takes_tasks_again_later(known: DeviceRegistry) -> None:
    with Runtime(queue=5, known=known) as runtime:
        with Held(runtime):
            waiting = [runtime.submit(same, number) for number in range(5)]
            with pytest.raises(QueueFull, match="5 tasks are waiting") as refused:
                runtime.submit(same, 6)
            assert isinstance(refused.value, Overloaded)
            assert refused.value.limit == runtime.limit == runtime.waiting == 5
            # One that is cancelled makes room.
            assert waiting[2].cancel()
            again = runtime.submit(same, 7)
        assert [each.result(PATIENCE) for each in (*waiting[:2], *waiting[3:], again)] == [0, 1, 3, 4, 7]


def test_a_tenant_with_too_many_tasks_is_refused_and_others_are_not(known: DeviceRegistry) -> None:
    with Runtime(known=known, tenants=[Tenant(name="few", queued=2)]) as runtime, Held(runtime):
        futures = [runtime.submit(same, number, tenant="few") for number in range(2)]
        with pytest.raises(QuotaExceeded, match="'few' would exceed its quota of 2 queued tasks") as refused:
            runtime.submit(same, 3, tenant="few")
        assert (refused.value.tenant, refused.value.quota, refused.value.limit) == ("few", "queued tasks", 2)
        runtime.submit(same, 4)
        assert futures[0].cancel()
        runtime.submit(same, 5, tenant="few")


def test_a_tenants_bytes_count_until_its_task_is_done(known: DeviceRegistry) -> None:
    with Runtime(known=known, tenants=[Tenant(name="small", bytes=X.nbytes)]) as runtime:
        with pytest.raises(QuotaExceeded, match=r"quota of 3\.9 KiB"):
            runtime.submit(same, np.ones(1001, np.float32), tenant="small")
        with Held(runtime):
            first = runtime.submit(same, X, tenant="small")
            with pytest.raises(QuotaExceeded) as refused:
                runtime.submit(same, X[:1], tenant="small")
            assert refused.value.quota == "bytes"
            (tenant,) = [each for each in runtime.health().tenants if each.tenant == "small"]
            assert (tenant.waiting, tenant.bytes) == (1, X.nbytes)
        assert first.result(PATIENCE) is X
        # A future is done a moment before its bytes are free: whoever drains knows that they are.
        runtime.drain(PATIENCE)
        (tenant,) = [each for each in runtime.health().tenants if each.tenant == "small"]
        assert (tenant.waiting, tenant.bytes) == (0, 0)


def test_higher_priorities_go_first_and_equal_ones_in_their_order(known: DeviceRegistry) -> None:
    done: list[int] = []
    # Ten levels are worth so long that a slow machine changes nothing.
    with Runtime(known=known, ageing=60.0) as runtime, Held(runtime) as held:
        priorities = [0, 3, 10, 3, 0, 7]
        futures = [runtime.submit(done.append, number, priority=each) for number, each in enumerate(priorities)]
        held.open_one()
        concurrent.futures.wait(futures, PATIENCE)
    assert done == [2, 5, 1, 3, 0, 4]


def test_two_tenants_take_turns_although_one_came_first_with_everything(known: DeviceRegistry) -> None:
    done: list[str] = []
    with Runtime(known=known, batching=False) as runtime, Held(runtime) as held:
        # A function of its own for each, so that none of them rides along with another.
        futures = [
            runtime.submit(partial(done.append, tenant), tenant=tenant) for tenant in (*["many"] * 20, *["few"] * 5)
        ]
        held.open_one()
        concurrent.futures.wait(futures, PATIENCE)
    assert done[:12].count("few") >= 4


@pytest.mark.parametrize("priority", [-1, 11, 1.5, True, "high"])
def test_a_priority_that_makes_no_sense(known: DeviceRegistry, priority: Any) -> None:
    with Runtime(known=known) as runtime:
        with pytest.raises(InvalidOption, match="priority"):
            runtime.submit(same, 1, priority=priority)
        assert runtime.health().open_tasks == 0
