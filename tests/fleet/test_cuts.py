"""The way to a machine is cut, with a node in a network namespace of its own: a real cut, of which nobody is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from tests.fleet.test_faults import TASKS, executed_once, failures, opened, through, until, wave
from tests.support.far_node import FarNode, can_cut
from tests.support.ray_processes import RayProcesses

FAR = "opencl:0@far"

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_cut(), reason="only root can make network namespaces")]


@pytest.fixture(scope="module")
def far(cluster: RayProcesses) -> Iterator[FarNode]:
    with FarNode(cluster, "far") as node:
        yield node


@pytest.fixture(scope="module")
def fleet(cluster: RayProcesses, far: FarNode) -> Iterator[Fleet]:
    with ag.fleet.connect(cluster.address, devices=["opencl@far", "opencl@node-1"], insecure=True) as connected:
        assert until(lambda: FAR in [device.id for device in connected.devices()])
        yield connected


def test_three_seconds_are_waited_out(fleet: Fleet, far: FarNode) -> None:
    opened(fleet, FAR)
    generation = fleet._places.generation(FAR)
    far.cut()
    mended = threading.Timer(3.0, far.mend)
    future = fleet.submit(wave, np.ones(512, np.float32), on=FAR, fallback="raise", deadline=60)
    mended.start()
    np.testing.assert_allclose(future.result(60), wave(np.ones(512, np.float32)), rtol=1e-5)
    mended.join()
    assert fleet._places.generation(FAR) == generation
    assert future.receipt is not None
    assert future.receipt.failures == ()


def test_twenty_seconds_are_not_waited_for(fleet: Fleet, far: FarNode) -> None:
    opened(fleet, FAR)
    timer = threading.Timer(20.0, far.mend)

    def cut() -> None:
        far.cut()
        timer.start()

    receipts = through(fleet, cut)
    assert len(receipts) == TASKS
    assert failures(receipts) <= {"DeviceLost", "DeviceUnavailable"}
    # It comes back by itself.
    timer.join()
    assert until(lambda: FAR in [device.id for device in fleet.devices()])

    def works() -> bool:
        try:
            return fleet.run(wave, np.ones(512, np.float32), on=FAR, fallback="raise").receipt.device == FAR
        except ag.AnyGPUError:
            return False

    assert until(works)
    assert executed_once(fleet)
