"""What becomes of tasks when parts of a cluster die, hang or leave: none is lost, none is wrong, and receipts tell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from anygpu.fleet.machines import ActorWorker
from tests.fleet.conftest import ENGINES
from tests.support.ray_processes import RayProcesses

TASKS = 120
PAIR = ("opencl:0@node-1", "opencl:0@node-2")
#: A busy machine takes its time; what a fault really takes is measured by `benchmarks.fleet`.
PATIENCE = 90.0


def wave(x: Any) -> Any:
    return np.tanh(x) * 2 + 1


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def actor(fleet: Fleet, device: str) -> int:
    """The process of a device's actor, which is on this machine in truth."""
    worker = fleet._places.worker(device)
    assert isinstance(worker, ActorWorker)
    return worker.process_id_there


def opened(fleet: Fleet, *devices: str) -> None:
    for device in devices:
        for on in (device, "fleet"):
            fleet.run(wave, np.zeros(512, np.float32), on=on, fallback="allow")


def through(fleet: Fleet, fault: Callable[[], None], on: str = "fleet") -> list[ag.Receipt]:
    """Many tasks, and a fault among them: their receipts, all of them with the right result."""
    given = [np.full(512, number / TASKS, np.float32) for number in range(TASKS)]
    futures = []
    for number, each in enumerate(given):
        futures.append(fleet.submit(wave, each, on=on, fallback="allow", deadline=2 * PATIENCE))
        if number == TASKS // 3:
            fault()
    for future, each in zip(futures, given, strict=True):
        np.testing.assert_allclose(future.result(2 * PATIENCE), wave(each), rtol=1e-5)
    receipts = [future.receipt for future in futures]
    return [receipt for receipt in receipts if receipt is not None]


def is_busy(fleet: Fleet, device: str) -> bool:
    return any(lane.device == device and lane.running for lane in fleet.health().lanes)


def failures(receipts: list[ag.Receipt]) -> set[str | None]:
    return {failure.error for receipt in receipts for failure in receipt.failures}


def executed_once(fleet: Fleet) -> bool:
    """Whether actors say that they have executed what was answered here, and nothing again."""
    found = fleet._cluster.executions()
    return found.twice == 0 and found.executed == found.answered > 0


@pytest.fixture
def pair(fleet: Fleet) -> Iterator[Fleet]:
    """One connection for all of these tests, with both devices open."""
    opened(fleet, *PAIR)
    # A calibration that holds a device would meet the fault in place of the task.
    assert fleet._planner.settle(PATIENCE)
    yield fleet
    assert executed_once(fleet)


@contextlib.contextmanager
def joined(cluster: RayProcesses, fleet: Fleet, name: str) -> Iterator[tuple[str, int]]:
    """One more machine, whose device is open: that, and the process of its raylet."""
    raylet, device = cluster.add(name), f"opencl:0@{name}"
    assert until(lambda: device in [each.id for each in fleet.devices()])
    opened(fleet, device)
    processes = [psutil.Process(raylet), *psutil.Process(raylet).children(recursive=True)]
    try:
        yield device, raylet
    finally:
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def test_an_actor_that_is_killed(pair: Fleet) -> None:
    device = "opencl:0@node-1"
    victim, generation = actor(pair, device), pair._places.generation(device) or 0
    os.kill(victim, signal.SIGSTOP)
    future = pair.submit(wave, np.ones(512, np.float32), on=device, fallback="allow")
    assert until(lambda: is_busy(pair, device))
    os.kill(victim, signal.SIGKILL)
    np.testing.assert_allclose(future.result(PATIENCE), wave(np.ones(512, np.float32)), rtol=1e-5)
    assert future.receipt is not None
    assert failures([future.receipt]) == {"DeviceLost"}
    assert until(lambda: pair._places.generation(device) == generation + 1)
    assert (device, generation) in [(loss.device, loss.generation) for loss in pair.health().losses]


def test_an_actor_that_is_killed_among_many_tasks(pair: Fleet) -> None:
    victim = actor(pair, "opencl:0@node-2")
    assert len(through(pair, lambda: os.kill(victim, signal.SIGKILL))) == TASKS


@pytest.mark.long
def test_an_actor_that_hangs(pair: Fleet) -> None:
    device = "opencl:0@node-1"
    victim, generation = actor(pair, device), pair._places.generation(device)
    os.kill(victim, signal.SIGSTOP)
    result = pair.run(wave, np.ones(512, np.float32), on=device, fallback="allow")
    np.testing.assert_allclose(result.value, wave(np.ones(512, np.float32)), rtol=1e-5)
    # None, if what waited there was not this task but a calibration: what it learns is recorded all the same.
    assert failures([result.receipt]) <= {"DeviceLost"}
    assert until(lambda: (pair._places.generation(device) or 0) > (generation or 0))
    losses = [loss.why for loss in pair.health().losses if (loss.device, loss.generation) == (device, generation)]
    assert len(losses) == 1
    assert "has not answered" in losses[0]
    assert until(lambda: not psutil.pid_exists(victim))


@pytest.mark.full
def test_an_actor_that_dies_while_nobody_needs_it(pair: Fleet) -> None:
    """It is there again before the next task comes."""
    device = "opencl:0@node-2"
    generation = pair._places.generation(device) or 0
    pair._places._reopened.clear()  # as if the last loss was long ago
    os.kill(actor(pair, device), signal.SIGKILL)
    assert until(lambda: (pair._places.generation(device) or 0) > generation)


def test_arrays_of_a_lost_actor_are_restored(pair: Fleet) -> None:
    there = ag.asarray(np.arange(1000, dtype=np.float32), device="opencl:0@node-2") * 2
    there.compute()
    os.kill(actor(pair, "opencl:0@node-2"), signal.SIGKILL)
    np.testing.assert_array_equal(np.asarray(there + 1), 2 * np.arange(1000, dtype=np.float32) + 1)


@pytest.mark.full
def test_arrays_of_a_machine_that_has_left(cluster: RayProcesses, pair: Fleet) -> None:
    given = np.arange(1000, dtype=np.float32)
    with joined(cluster, pair, "leaving") as (device, _):
        uploaded = ag.asarray(given, device=device)
        computed = (uploaded * 2).compute()
        cluster.remove("leaving")
        assert until(lambda: device not in [each.id for each in pair.devices()])
        with pytest.warns(ag.errors.HostFallback, match=f"{device} is gone"):
            np.testing.assert_array_equal(np.asarray(computed), 2 * given)
        np.testing.assert_array_equal(np.asarray(uploaded), given)
        result = pair.run(wave, computed, on="fleet")
        np.testing.assert_allclose(result.value, wave(2 * given), rtol=1e-5)
        assert any(loss.device == device and not loss.lost for loss in pair.health().losses)


@pytest.mark.long
def test_a_task_that_takes_too_long_is_given_up(pair: Fleet) -> None:
    device = "opencl:0@node-1"
    victim = actor(pair, device)
    os.kill(victim, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(ag.DeadlineExceeded):
        pair.run(wave, np.zeros(512, np.float32), on=device, deadline=1.0, fallback="raise")
    assert time.monotonic() - begin < PATIENCE
    assert until(lambda: not psutil.pid_exists(victim))
    # The device is there again.
    np.testing.assert_allclose(pair.run(wave, np.zeros(512, np.float32), on=device).value, 1.0)


@pytest.mark.long
def test_a_node_that_is_killed(cluster: RayProcesses, pair: Fleet) -> None:
    with joined(cluster, pair, "victim") as (device, raylet):
        orphan = actor(pair, device)
        receipts = through(pair, lambda: os.kill(raylet, signal.SIGKILL))
        assert len(receipts) == TASKS
        assert until(lambda: not psutil.pid_exists(orphan), 5.0), "the actor outlived its node"
        assert until(lambda: all(each.node != "victim" for each in pair.devices()))


@pytest.mark.long
def test_a_node_that_is_stopped(cluster: RayProcesses, pair: Fleet) -> None:
    """All of it, as a machine that is suspended: nothing is closed, and nothing answers."""
    with joined(cluster, pair, "frozen") as (device, raylet):
        os.kill(actor(pair, device), signal.SIGSTOP)
        receipts = through(pair, lambda: os.kill(raylet, signal.SIGSTOP))
        assert len(receipts) == TASKS
        assert failures(receipts) <= {"DeviceLost", "DeviceUnavailable"}


@pytest.mark.long
def test_a_cluster_that_grows_and_shrinks_while_it_works(cluster: RayProcesses, pair: Fleet) -> None:
    assert "opencl:0@late" not in [device.id for device in pair.devices()]
    with joined(cluster, pair, "late"):
        receipts = through(pair, lambda: cluster.remove("late"))
        assert len(receipts) == TASKS
        assert until(lambda: "opencl:0@late" not in [device.id for device in pair.devices()])
        with pytest.raises(ag.DeviceUnavailable, match="late"):
            pair.run(wave, np.zeros(512, np.float32), on="@late", fallback="raise")


@pytest.mark.long
def test_lost_messages(cluster: RayProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question in five and three answers in ten never arrive: each is asked again until it is there."""
    calls = 10
    chances = {"num_failures": 30, "req_failure_prob": 20, "resp_failure_prob": 30, "in_flight_failure_prob": 0}
    rules = {"CoreWorkerService.grpc_client.PushTask": chances}
    monkeypatch.setenv("RAY_testing_rpc_failure", msgspec.json.encode(rules).decode())
    with ag.fleet.connect(cluster.address, devices="opencl@node-1", local=False, insecure=True) as fleet:
        device = "opencl:0@node-1"
        results = [fleet.run(wave, np.full(64, i, np.float32), on=device, fallback="raise") for i in range(calls)]
        assert executed_once(fleet)
    for number, result in enumerate(results):
        np.testing.assert_allclose(result.value, wave(np.full(64, number, np.float32)), rtol=1e-5)
    assert sum(result.receipt.asks for result in results) > calls, "no message was lost"


def test_a_device_that_cannot_be_opened(cluster: RayProcesses) -> None:
    with ag.fleet.connect(cluster.address, devices="opencl@node-1", insecure=True) as fleet:
        found = fleet._machines.find("opencl:0@node-1")
        fleet._machines._devices["opencl:0@node-1"] = msgspec.structs.replace(found, gpus=1.0)
        with pytest.raises(ag.DeviceUnavailable, match="offers 0 GPUs, and 1 are needed"):
            fleet.run(wave, np.zeros(10, np.float32), on="@node-1", fallback="raise")
        # Whoever comes next is told at once.
        begin = time.monotonic()
        with pytest.raises(ag.DeviceUnavailable):
            fleet.run(wave, np.zeros(10, np.float32), on="@node-1", fallback="raise")
        assert time.monotonic() - begin < PATIENCE, "nobody waits for Ray again"


@pytest.mark.full
def test_the_users_process_ends_without_a_word(cluster: RayProcesses) -> None:
    code = f"""
import os, numpy as np, anygpu as ag
fleet = ag.fleet.connect({cluster.address!r}, devices="opencl@node-1", insecure=True)
fleet.run(np.tanh, np.zeros(512, np.float32), on="@node-1")
print(fleet._cluster.process_id, fleet._places.worker("opencl:0@node-1").process_id_there, flush=True)
os.kill(os.getpid(), 9)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    driver, there = map(int, said.stdout.split())
    assert until(lambda: not psutil.pid_exists(driver) and not psutil.pid_exists(there))


@pytest.mark.long
def test_the_head_is_killed() -> None:
    """In a process of its own cluster: this one lives, local devices go on, and it is told why the others are gone."""
    with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as own:
        own.add("node-1")
        with ag.fleet.connect(own.address, devices="opencl", insecure=True) as fleet:
            opened(fleet, "opencl:0@node-1")
            there = actor(fleet, "opencl:0@node-1")
            receipts = through(fleet, lambda: os.kill(own.gcs(), signal.SIGKILL))
            assert len(receipts) == TASKS
            assert until(lambda: fleet._cluster.ended is not None)
            assert "head of the cluster is gone" in (fleet._cluster.ended or "")
            assert not psutil.pid_exists(there), "the actor outlived its driver"
            health = fleet.health()
            assert not health.ok
            assert health.nodes == 0
            assert "head of the cluster is gone" in (health.lost or "")
            with pytest.warns(ag.errors.DeviceFallback, match="the cluster is gone: .*head of the cluster is gone"):
                fleet.run(np.sin, np.zeros(10), on="fleet")
            with pytest.raises(ag.DeviceUnavailable, match="head of the cluster is gone"):
                fleet.run(wave, np.zeros(10, np.float32), on="opencl:0@node-1", fallback="raise")
            assert fleet.run(wave, np.zeros(10, np.float32)).receipt.node is None


def test_nothing_is_left_of_a_fleet_that_was_closed(cluster: RayProcesses) -> None:
    with ag.fleet.connect(cluster.address, devices="opencl@node-1", insecure=True) as fleet:
        opened(fleet, "opencl:0@node-1")
        there, driver = actor(fleet, "opencl:0@node-1"), fleet._cluster.process_id
    assert until(lambda: not psutil.pid_exists(there) and not psutil.pid_exists(driver), 10.0)
