"""Workers in threads and in children on every engine: the same suite, and what each isolation adds to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.engines import Isolation
from anygpu.engines.catalogue import EngineEntry, catalogue
from anygpu.errors import InvalidOption, OverBudget
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Input
from anygpu.receipts.receipt import DriverWork
from anygpu.testing import FakeEngine, check_worker, fake_device
from anygpu.workers.device_arrays.registry import DeviceRegistry
from anygpu.workers.thread import ThreadWorker
from anygpu.workers.worker import default_budget, isolation_of, open_worker
from tests.workers.programs import chain, doubled

ENGINES = ("numpy", "cpu", "webgpu", "opencl", "torch", "jax")


def entry_of(name: str) -> EngineEntry:
    return next(entry for entry in catalogue() if entry.name == name)


@pytest.fixture(scope="module")
def devices() -> dict[str, Device]:
    places = DeviceRegistry()
    found = {name: places.find(name).facts for name in ENGINES}
    places.close()
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_conformance(engine: str, isolation: Isolation, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=isolation)
    assert worker.isolation == isolation
    check_worker(worker)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_engine_of_somebody_elses(isolation: Isolation) -> None:
    engine = FakeEngine("other", [fake_device("other:0")])
    check_worker(open_worker(engine.entry(), fake_device("other:0"), isolation=isolation, generation=3))


def test_where_workers_live_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_ISOLATION", raising=False)
    found = {name: isolation_of(entry_of(name)) for name in ENGINES}
    threads, processes = ("numpy", "cpu", "torch", "jax"), ("webgpu", "opencl")
    assert found == {**dict.fromkeys(threads, "thread"), **dict.fromkeys(processes, "process")}
    assert isolation_of(entry_of("webgpu"), "thread") == "thread"
    monkeypatch.setenv("ANYGPU_ISOLATION", "process")
    assert isolation_of(entry_of("numpy")) == "process"
    monkeypatch.setenv("ANYGPU_ISOLATION", "elsewhere")
    with pytest.raises(InvalidOption, match="ANYGPU_ISOLATION"):
        isolation_of(entry_of("numpy"))


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_budget_bounds_the_memory_of_the_device(
    engine: str, isolation: Isolation, devices: dict[str, Device]
) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=isolation, budget=1 << 20)
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


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_the_steady_state_allocates_and_compiles_nothing(
    engine: str, isolation: Isolation, devices: dict[str, Device]
) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation=isolation)
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
    assert "not requested" in untimed.unknown["device_seconds"]
    worker.close()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_trials_of_kernels_are_no_part_of_what_a_call_did(
    engine: str, devices: dict[str, Device], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first call compiles and tries sizes of kernels on the device; its receipt is that of the program alone."""
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    size = 256
    a, b = (np.ones((size, size), np.float32) for _ in range(2))
    program = record(lambda a, b: a @ b, a, b)
    seen: list[tuple[int | None, DriverWork | None, int | None]] = []
    # All sizes are tried long before that.
    for seconds in ("0", "120"):
        monkeypatch.setenv("ANYGPU_TUNING_SECONDS", seconds)
        worker = open_worker(entry_of(engine), devices[engine], isolation="thread")
        assert isinstance(worker, ThreadWorker)
        for _ in range(2):
            ran = worker.run(program, [a, b])
            np.testing.assert_allclose(ran.results[0], np.full((size, size), size))
            seen.append((ran.kernels, ran.driver, ran.peak_bytes))
        tried = worker.engine.session(devices[engine]).counters.dispatches  # type: ignore[attr-defined]
        worker.close()
    (first, without, least), _, (kernels, driver, peak), (again, steady, _) = seen
    assert tried > 10, "sizes were tried"
    assert kernels == again == first
    assert without is not None
    assert driver is not None
    assert steady is not None
    assert driver.compilations == without.compilations >= 1
    assert driver.submits == steady.submits
    assert steady.compilations == 0
    assert peak == least


@pytest.mark.parametrize("engine", ["numpy", "cpu", "torch", "jax"])
def test_arguments_that_may_not_be_written_to_are_lent_as_well(engine: str, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation="thread")
    assert isinstance(worker, ThreadWorker)
    roomy = np.arange(1 << 18, dtype=np.float32)
    x = roomy[-roomy.ctypes.data % 64 // 4 :]  # jax takes memory as it is only where it begins so
    x.flags.writeable = False
    adopted: list[bool] = []
    execute = worker.engine.execute

    def watch(executable: Any, buffers: Any) -> Any:
        adopted.extend(np.shares_memory(np.asarray(buffer), x) for buffer in buffers)
        return execute(executable, buffers)

    worker.engine.execute = watch  # type: ignore[method-assign]
    (doubled_values,) = worker.run(doubled(x.size), [x]).results
    (same,) = worker.run(Program([Node(Input(x.shape, "float32"))], [0]), [x]).results
    assert adopted == [True, True]
    np.testing.assert_array_equal(doubled_values, 2 * x)
    np.testing.assert_array_equal(same, x)
    assert same.flags.writeable
    assert not np.shares_memory(same, x)
    worker.close()


@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_results_are_read_straight_into_the_memory_of_the_caller(
    engine: str, dtype: str, devices: dict[str, Device]
) -> None:
    """Whatever their length and wherever they begin: devices copy whole words."""
    worker = open_worker(entry_of(engine), devices[engine], isolation="thread")
    assert isinstance(worker, ThreadWorker)
    x = (np.arange(100_003) % 2).astype(dtype)
    for first, last in ((0, 100_003), (1, 100_002), (3, 8), (5, 5)):
        handle = worker.run(record(lambda x, a=first, b=last: x[a:b], x), [x], keep=True).results[0]
        whole = np.ones(last - first + 2, dtype)
        worker.engine.download_into(handle.buffer, whole[1:-1])  # type: ignore[attr-defined]
        np.testing.assert_array_equal(whole[1:-1], x[first:last])
        assert whole[0] == whole[-1] == 1, "nothing around it is touched"
    with pytest.raises(InvalidOption, match="does not fit"):
        worker.engine.download_into(worker.upload(x).buffer, np.empty(3, dtype))  # type: ignore[attr-defined]
    worker.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_is_launched_again_without_the_detour(engine: str, devices: dict[str, Device]) -> None:
    worker = open_worker(entry_of(engine), devices[engine], isolation="thread")
    assert isinstance(worker, ThreadWorker)
    x = np.arange(8, dtype=np.float32)
    program = record(lambda x: x * 2 + 1, x)
    handle = worker.upload(x)
    assert worker.launch(program, [handle]) is None
    worker.run(program, [handle], keep=True, wait=False)
    for _ in range(4):
        launched = worker.launch(program, [handle])
        assert launched is not None
        np.testing.assert_array_equal(worker.download(launched[0]), x * 2 + 1)
    # What `run` has something to say about is left to it.
    assert worker.launch(program, [x]) is None
    assert worker.launch(program, [worker.upload(x[:3])]) is None
    assert worker.launch(program, []) is None
    with pytest.raises(InvalidOption):
        worker.run(program, [worker.upload(x[:3])], keep=True)
    worker.close()
    assert worker.launch(program, [handle]) is None
