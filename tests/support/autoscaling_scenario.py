"""A fleet that grows and shrinks, in namespaces of its own: what happened, for `tests/fleet/test_autoscaling.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.fleet import Fleet, Scaling
from tests.support.autoscaled_cluster import ADDRESS, LABEL, VALUE, say, start_head

#: A busy machine takes its time; what it really takes is measured by `benchmarks.fleet_scaling`.
PATIENCE = 150.0
SIZE = 1 << 19
#: Some seconds of work.
WAITING = 300


def work(x: Any) -> Any:
    for _ in range(20):
        x = np.tanh(x) * 1.5 + 0.1
    return x


def until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            missing = [each.reason for each in fleet.unavailable()]
            raise TimeoutError(f"{fleet.health()}\n{[node.name for node in fleet.nodes()]}\n{missing}")
        time.sleep(0.02)


def remote(fleet: Fleet) -> list[str]:
    return [device.id for device in fleet.devices() if device.node is not None]


def flooded(fleet: Fleet, condition: Callable[[], bool]) -> list[ag.Future]:
    """Tasks that wait until the condition holds."""
    futures: list[ag.Future] = []
    given = [np.full(SIZE, number, np.float32) for number in range(5)]

    def holds() -> bool:
        while fleet.waiting < WAITING:
            which = given[len(futures) % 5]
            futures.append(fleet.submit(work, which, on="opencl", fallback="allow", check="off"))
        return condition()

    until(fleet, holds)
    return futures


def wrong(futures: list[ag.Future]) -> int:
    expected = [work(np.full(SIZE, number, np.float32)) for number in range(5)]
    return sum(
        not np.allclose(future.result(PATIENCE), expected[number % 5], rtol=1e-4)
        for number, future in enumerate(futures)
    )


def drain(node: str) -> None:
    """As a cloud does that takes a machine away."""
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={ADDRESS}", f"--node-id={node}"),
            *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=taken away"),
            "--deadline-remaining-seconds=600",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def constraints() -> str:
    """What the autoscaler is asked for, as it knows it."""
    code = f"""
import ray
ray.init({ADDRESS!r}, log_to_driver=False)
from ray.autoscaler.v2.sdk import get_cluster_resource_state
state = get_cluster_resource_state(ray._private.worker.global_worker.gcs_client)
print("asked for", sum(each.count for found in state.cluster_resource_constraints for each in found.resource_requests))
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return next(line for line in said.splitlines() if line.startswith("asked for"))


def leave_without_a_word() -> None:
    """A process that has asked for machines, and is killed."""
    code = f"""
import anygpu as ag, time
fleet = ag.fleet.connect({ADDRESS!r}, devices="opencl", insecure=True)
fleet.scale(gpu=1, labels={{{LABEL!r}: "none"}})
while not fleet.health().asked:
    time.sleep(0.02)
print("asked", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        end = time.monotonic() + PATIENCE
        while constraints() != "asked for 1" and time.monotonic() < end:
            pass
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while (left := constraints()) != "asked for 0" and time.monotonic() < end:
        pass
    say(name="withdrawn", left=left)


def main() -> None:
    start_head()
    os.nice(5)  # what runs here must not keep the machines from starting
    scaling = Scaling(most=1, labels={LABEL: VALUE}, target=0.5, idle=5.0)
    with ag.fleet.connect(ADDRESS, devices="opencl", scaling=scaling, insecure=True, batching=False) as fleet:
        futures = flooded(fleet, lambda: bool(remote(fleet)))
        health = fleet.health()
        say(name="grown", asked=health.asked, nodes=len(fleet.nodes()), text=str(health))
        (device,) = remote(fleet)
        result = fleet.run(work, np.zeros(SIZE, np.float32), on=device, fallback="raise", check="off")
        say(name="used", node=result.receipt.node)
        until(fleet, lambda: not fleet.waiting)
        say(name="tasks", count=len(futures), wrong=wrong(futures))
        until(fleet, lambda: len(fleet.nodes()) == 1)
        say(name="shrunk", devices=remote(fleet), asked=fleet.health().asked, text=str(fleet.health()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fleet.scale(gpu=1, labels={LABEL: "h100"})
            until(fleet, lambda: bool(fleet.health().missing))
        say(name="missing", missing=fleet.health().missing, warned=[str(each.message) for each in caught])
        there = fleet.scale(gpu=1, timeout=PATIENCE)
        (node,) = [each for each in fleet.nodes() if each.labels.get(LABEL) == VALUE]
        (device,) = remote(fleet)
        futures = [
            fleet.submit(work, np.full(SIZE, number % 5, np.float32), on=device, fallback="allow", check="off")
            for number in range(30)
        ]
        drain(node.id)
        until(fleet, lambda: not remote(fleet))
        missed = wrong(futures)
        nodes = {future.receipt.node for future in futures if future.receipt is not None}
        say(name="drained", there=there, wrong=missed, nodes=sorted(map(str, nodes)))
    leave_without_a_word()


if __name__ == "__main__":
    main()
