"""NVML's readings, from a stand-in for its library, through the real bindings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from anygpu.hardware.usage import READINGS, ProcessUsage, Usage
from tests.standins.nvidia import environment

CHILD = """
import sys
import msgspec
from anygpu.hardware.device import Device, unknown_facts
from anygpu.hardware.usage import reading

reading.PATIENCE = float(sys.argv[1])
reader = reading.UsageReader()
nothing = unknown_facts("-", "memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci")
devices = [
    Device(
        id=f"torch:cuda:{number}", engine="torch", kind="gpu", form="discrete", name="a card", state="verified",
        api="CUDA", card=f"nvidia:{number}", unknown=nothing,
    )
    for number in range(2)
]
reader.read(devices)
print(msgspec.json.encode(reader.read(devices)).decode())
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for NVML is a Linux shared library")


def read(library: Path, scenario: str, patience: float = 60.0) -> list[Usage]:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(patience)],
        env=environment(library=library, programs=library / "none", scenario=scenario),
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (child.returncode, child.stderr) == (0, "")
    return list(msgspec.json.decode(child.stdout, type=dict[str, Usage]).values())


def test_two_cards(nvml_library: Path) -> None:
    first, second = read(nvml_library, "two_cards")
    assert first == Usage(
        card="nvidia:0",
        source="nvml",
        memory_used=4564 << 20,
        memory_total=24564 << 20,
        load=0.37,
        temperature=62.0,
        power=450.25,
        power_limit=450.0,
        clock=2520e6,
        clock_limit=3105e6,
        throttled=(),
        processes=first.processes,
    )
    assert first.processes is not None
    known, unknown = first.processes
    assert (known.pid, known.memory, known.load) == (1, 4 << 30, 0.35)
    assert known.name
    assert unknown == ProcessUsage(
        pid=4000001,
        unknown={
            "name": "it has ended, or runs in another container",
            "memory": "NVML does not tell it here",
            "load": "NVML has no sample of it",
        },
    )
    assert second.throttled == (), "an idle card is not throttled"
    assert second.processes == ()
    assert str(first) == "nvidia:0: 37% busy, 4.5 GiB of 24.0 GiB used, 62 °C, 450 W"


def test_a_card_that_throttles(nvml_library: Path) -> None:
    first, _ = read(nvml_library, "throttling")
    assert first.throttled == ("power limit", "temperature")
    assert first.clock == 1200e6
    assert str(first).endswith("throttled: power limit, temperature")


def test_a_card_that_reports_nonsense(nvml_library: Path) -> None:
    first, second = read(nvml_library, "nonsense")
    assert first.unknown == {
        "memory_used": "the driver reports 72.0 GiB in use, and the card has 24.0 GiB",
        "load": "the driver reports 65535%, which cannot be",
        "temperature": "the driver reports 511 °C, which cannot be",
        "power": "the driver reports 4.29497e+06 W, which cannot be",
    }
    assert first.memory_total == 24564 << 20
    assert not second.unknown


def test_a_card_that_vanishes_while_it_is_read(nvml_library: Path) -> None:
    first, second = read(nvml_library, "vanishing")
    assert not first.unknown
    lost = "the machine has lost its connection to the card (fallen off the bus)"
    assert second.unknown == dict.fromkeys(READINGS, lost)


def test_a_card_that_never_answers_costs_its_readings(nvml_library: Path) -> None:
    first, second = read(nvml_library, "hang_power", patience=0.2)
    silent = "NVML has not answered within 200 ms"
    assert set(first.unknown.values()) == set(second.unknown.values()) == {silent}


@pytest.mark.parametrize("scenario", ["driver_not_loaded", "mismatch", "no_permission"])
def test_a_driver_that_does_not_run(nvml_library: Path, scenario: str) -> None:
    first, _ = read(nvml_library, scenario)
    (why,) = set(first.unknown.values())
    assert why.startswith("NVML cannot be used: ")
