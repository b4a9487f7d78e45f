"""One cluster for all tests: a head and two nodes on this machine, with PoCL as the device of each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import anygpu as ag
from anygpu.fleet import Fleet
from tests.support.ray_processes import RayProcesses

#: The other engines take seconds to load, in every process.
ENGINES = "numpy,opencl"


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
        yield connected
