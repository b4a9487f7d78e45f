"""Workers in both homes on every engine: the same suite, and what each home adds to it."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.errors import InvalidOption, OverBudget
from anygpu.hardware.device import Device
from anygpu.runtime.places import Places
from anygpu.testing import FakeEngine, check_worker, fake_device
from anygpu.workers.opening import default_budget, home_of, open_worker
from anygpu.workers.worker import Home
from tests.workers.programs import chain

ENGINES = ("numpy", "webgpu", "opencl", "torch", "jax")


def entry_of(name: str) -> EngineEntry:
    return next(entry for entry in catalogue() if entry.name == name)


@pytest.fixture(scope="module")
def devices() -> dict[str, Device]:
    places = Places()
    found = {name: places.find(name).facts for name in ENGINES}
    places.close()
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("home", ["thread", "process"])
def test_conformance(engine: str, home: Home, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=home)
    assert worker.home == home
    check_worker(worker)


@pytest.mark.parametrize("home", ["thread", "process"])
def test_an_engine_of_somebody_elses(home: Home) -> None:
    engine = FakeEngine("other", [fake_device("other:0")])
    check_worker(open_worker(engine.entry(), fake_device("other:0"), isolation=home, generation=3))


def test_where_workers_live_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_ISOLATION", raising=False)
    homes = {name: home_of(entry_of(name)) for name in ENGINES}
    assert homes == {"numpy": "thread", "torch": "thread", "jax": "thread", "webgpu": "process", "opencl": "process"}
    assert home_of(entry_of("webgpu"), "thread") == "thread"
    monkeypatch.setenv("ANYGPU_ISOLATION", "process")
    assert home_of(entry_of("numpy")) == "process"
    monkeypatch.setenv("ANYGPU_ISOLATION", "elsewhere")
    with pytest.raises(InvalidOption, match="ANYGPU_ISOLATION"):
        home_of(entry_of("numpy"))


@pytest.mark.parametrize("home", ["thread", "process"])
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_budget_bounds_the_memory_of_the_device(engine: str, home: Home, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=home, budget=1 << 20)
    x = np.ones(50_000, np.float32)
    ran = worker.run(chain(x.size), [x])
    assert ran.peak_bytes is not None
    assert 2 * x.nbytes <= ran.peak_bytes <= 1 << 20
    with pytest.raises(OverBudget) as caught:
        worker.upload(np.ones(1 << 20, np.float32))
    assert caught.value.limit == 1 << 20
    small = worker.run(chain(10), [x[:10]])
    assert small.peak_bytes is not None
    assert small.peak_bytes < ran.peak_bytes, "the peak is that of one call"
    worker.close()


def test_the_budget_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_MEMORY", raising=False)
    assert default_budget() is None
    for text, wanted in (("2GB", 2 * 10**9), ("512MiB", 512 << 20), ("4096", 4096), ("1.5 kb", 1500)):
        monkeypatch.setenv("ANYGPU_MEMORY", text)
        assert default_budget() == wanted
    monkeypatch.setenv("ANYGPU_MEMORY", "much")
    with pytest.raises(InvalidOption, match=r"ANYGPU_MEMORY.*512MiB.*'much'"):
        default_budget()


@pytest.mark.parametrize("home", ["thread", "process"])
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_the_steady_state_allocates_and_compiles_nothing(engine: str, home: Home, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=home)
    x = np.ones(2000, np.float32)
    for _ in range(3):
        worker.run(chain(x.size), [x])
    ran = worker.run(chain(x.size), [x], timed=True)
    assert ran.driver is not None
    assert (ran.driver.allocations, ran.driver.compilations) == (0, 0)
    assert ran.kernels == ran.driver.dispatches >= 1
    assert ran.device_seconds is not None
    assert ran.device_seconds > 0
    untimed = worker.run(chain(x.size), [x])
    assert untimed.device_seconds is None
    assert "timed=True" in untimed.unknown["device_seconds"]
    worker.close()
