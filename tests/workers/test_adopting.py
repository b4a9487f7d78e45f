"""The child that verified a device becomes its worker, so that a cold start costs one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anygpu.engines import catalogue
from anygpu.testing import FakeEngine, check_worker
from anygpu.workers.child_process import Child
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.probe_runner import ProbeDeadlines, run_probes
from anygpu.workers.process import ProcessWorker
from anygpu.workers.worker import open_worker
from tests.support.isolation import children_with
from tests.workers.programs import doubled

#: No child needs that long, on whatever machine.
DEADLINES = ProbeDeadlines(total=120.0, step=60.0)


def test_a_probe_stays_if_it_is_asked_to_and_becomes_a_worker() -> None:
    entry = FakeEngine("good").entry()
    adopt: dict[str, Child | None] = {"good": None}
    (device,) = run_probes([entry], deadlines=DEADLINES, with_cards=False, adopt=adopt)["good"]
    child = adopt["good"]
    assert child is not None
    worker = open_worker(entry, device, adopted=child)  # type: ignore[arg-type]
    assert isinstance(worker, ProcessWorker)
    assert worker.process_id == child.process.pid
    check_worker(worker)
    assert child.process.poll() is not None


def test_only_who_is_asked_to_and_has_verified_something_stays() -> None:
    entries = [
        FakeEngine("good").entry(),
        FakeEngine("bad", faults={"bad:0": "wrong_result"}).entry(),
        FakeEngine("worse", faults={"worse:0": "abort"}).entry(),
        FakeEngine("unasked").entry(),
    ]
    before = children_with(entries[0].target)
    adopt: dict[str, Child | None] = {"good": None, "bad": None, "worse": None}
    run_probes(entries, deadlines=DEADLINES, with_cards=False, adopt=adopt)
    good = adopt.pop("good")
    assert good is not None
    assert list(adopt.values()) == [None, None]
    assert [each.pid for each in children_with(entries[0].target) - before] == [good.process.pid]
    good.kill()
    good.close()


def test_places_adopt_what_a_fresh_look_has_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time a probe is made and kept; the second it is remembered, and there is nothing to adopt."""
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANYGPU_ENGINES", "opencl")
    first = DeviceRegistry()
    assert {device.id for device in first.devices()} >= {"numpy", "opencl:0"}
    child = first._adoptable["opencl"]
    worker = first.worker("opencl:0")
    assert isinstance(worker, ProcessWorker)
    assert worker.process_id == child.process.pid
    first.close()
    second = DeviceRegistry()
    assert [device.id for device in second.devices()] == [device.id for device in DeviceRegistry().devices()]
    assert second._adoptable == {}
    second.close()


def test_a_child_that_nobody_claims_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANYGPU_ENGINES", "opencl")
    places = DeviceRegistry()
    places.devices()
    child = places._adoptable["opencl"]
    places._reap_unclaimed({"opencl": child})
    assert child.process.poll() is not None
    assert places.worker("opencl:0").alive
    places.close()


def test_a_dead_worker_is_replaced_by_its_next_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = FakeEngine("other").entry()
    monkeypatch.setattr(catalogue, "_of_other_packages", lambda: (entry,))
    places = DeviceRegistry()
    place = places.find("other")
    x = np.ones(3, np.float32)
    old = place.upload(x)
    first = place.worker
    assert isinstance(first, ProcessWorker)
    first._connection.child.process.kill()
    (result,) = place.run(doubled(3), [old])
    assert place.download(result).tolist() == [2, 2, 2]
    assert places.worker("other:0") is place.worker is not first
    assert place.worker.generation == 2
    (loss,) = places.losses()
    assert (loss.generation, loss.restorable_from_copy) == (1, 1)
    assert place.download(old).tolist() == np.asarray(place.native(old)).tolist() == [1, 1, 1]
    places.close()
