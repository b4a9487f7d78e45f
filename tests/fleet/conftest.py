"""One cluster for all tests: a head and two nodes on this machine, with PoCL as the device of each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from tests.support.ray_processes import RayProcesses

#: The other engines take seconds to load, in every process.
ENGINES = "numpy,opencl"
#: What joining may take on a busy machine.
PATIENCE = 120.0


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayProcesses]:
    with RayProcesses(environment={"ANYGPU_ENGINES": ENGINES}) as made:
        made.add("node-1")
        made.add("node-2")
        yield made


@pytest.fixture(scope="package", autouse=True)
def few_engines() -> Iterator[None]:
    before = os.environ.get("ANYGPU_ENGINES")
    os.environ["ANYGPU_ENGINES"] = ENGINES
    yield
    if before is None:
        del os.environ["ANYGPU_ENGINES"]
    else:
        os.environ["ANYGPU_ENGINES"] = before


@pytest.fixture(scope="module")
def fleet(cluster: RayProcesses) -> Iterator[Fleet]:
    with ag.fleet.connect(cluster.address, devices="opencl", insecure=True) as connected:
        # A machine that was too busy to be probed is probed again.
        wanted = {"opencl:0@node-1", "opencl:0@node-2"}
        end = time.monotonic() + PATIENCE
        while wanted - {device.id for device in connected.devices()}:
            assert time.monotonic() < end, connected.unavailable()
            time.sleep(0.1)
        yield connected
