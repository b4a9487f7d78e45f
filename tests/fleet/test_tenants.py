"""Tenants, priorities and deadlines over a fleet are those of a runtime: on a real cluster, with one device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from tests.runtime.holding import PATIENCE, Gate
from tests.support.ray_processes import RayProcesses

DEVICE = "opencl:0@node-1"
X = np.ones(1 << 16, np.float32)


def work(x: Any) -> Any:
    for _ in range(10):
        x = np.tanh(x) + 0.5
    return x


def connected(cluster: RayProcesses, **given: Any) -> Fleet:
    return ag.fleet.connect(
        cluster.address, devices="opencl@node-1", local=False, insecure=True, batching=False, **given
    )


def submit(fleet: Fleet, **given: Any) -> ag.Future:
    return fleet.submit(work, X, on=DEVICE, check="off", fallback="raise", **given)


def seconds(fleet: Fleet) -> dict[str, float]:
    return {each.tenant: each.seconds for each in fleet.health().tenants}


@pytest.mark.full
def test_two_tenants_share_a_device_though_one_floods_it(cluster: RayProcesses) -> None:
    with connected(cluster, tenants=[ag.types.Tenant(name="quiet"), ag.types.Tenant(name="flood")]) as fleet:
        submit(fleet, tenant="quiet").result(120)
        before = seconds(fleet)
        flood = [submit(fleet, tenant="flood") for _ in range(400)]
        for _ in range(30):
            # A few wait at any time: a tenant that waits for its results before it goes on does no more.
            for future in [submit(fleet, tenant="quiet") for _ in range(4)]:
                future.result(120)
            if fleet.health().waiting < 10:
                break
        used = seconds(fleet)
        for future in flood:
            future.cancel()
    ours = used["quiet"] - before["quiet"]
    share = ours / (ours + used["flood"])
    # It waits for its own results in between, and gets a little less than half then.
    assert 0.35 <= share <= 0.60, f"{share:.1%} of the device's time"


def test_a_quota_holds(cluster: RayProcesses) -> None:
    with connected(cluster, tenants=[ag.types.Tenant(name="small", queued=3)]) as fleet:
        submit(fleet).result(120)
        with pytest.raises(ag.errors.QuotaExceeded, match="small"):
            [submit(fleet, tenant="small") for _ in range(50)]


@pytest.mark.full
def test_urgent_tasks_come_first_and_late_ones_are_given_up(
    cluster: RayProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with connected(cluster) as fleet:
        # Ten levels are worth so long that a slow machine changes nothing.
        fleet._queue.ageing = 60.0
        submit(fleet).result(PATIENCE)
        order: list[str] = []
        # The only thread of the device is busy until all of them wait.
        worker = fleet._places.worker(DEVICE)
        run = worker.run
        monkeypatch.setattr(worker, "run", lambda *given, **named: gate(run)(*given, **named))
        first = submit(fleet)
        try:
            gate.wait()
            slow = [submit(fleet) for _ in range(10)]
            for future in slow:
                future.add_done_callback(lambda _: order.append("slow"))
            urgent = submit(fleet, priority=10)
            urgent.add_done_callback(lambda _: order.append("urgent"))
            with pytest.raises(ag.DeadlineExceeded):
                submit(fleet, deadline=1e-3).result(PATIENCE)
        finally:
            gate.open()
        for future in (first, urgent, *slow):
            future.result(PATIENCE)
    assert order == ["urgent"] + ["slow"] * 10
