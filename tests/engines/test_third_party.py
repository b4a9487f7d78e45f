"""An engine that another package brings can do all that the built-in ones can: each place that asks for its traits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import anygpu as ag
from anygpu.array.trace.traced import NotTraceable
from anygpu.array.trace.tracing import trace
from anygpu.calls.options import options
from anygpu.engines import catalogue
from anygpu.engines.catalogue import EngineEntry, library_version, traits_of
from anygpu.engines.traits import EngineTraits
from anygpu.errors import AllocationError, CopyNeeded
from anygpu.hardware.device import Device
from anygpu.placement.call_site import CallSite
from anygpu.placement.kernels.first_use import device_for, engines_for
from anygpu.placement.plan.calibration import assumed
from anygpu.placement.planner import Planner
from anygpu.testing import check_engine_probe, fake_device
from anygpu.workers.device_arrays.registry import registry
from anygpu.workers.thread import ThreadWorker
from anygpu.workers.worker import isolation_of, open_worker
from tests.support.toy_engine import ToyEngine
from tests.support.toy_engine_traits import TRAITS
from tests.workers.programs import chain

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = """\
[anygpu.engines]
toy = tests.support.toy_engine:ToyEngine
broken = tests.support.toy_engine:ToyEngine
plain = tests.support.toy_engine:ToyEngine

[anygpu.engine_traits]
toy = tests.support.toy_engine_traits:TRAITS
broken = tests.support.no_such_module:TRAITS
"""

DOUBLE = """
__kernel void twice(__global const float *a, __global float *y) {
    size_t i = get_global_id(0);
    y[i] = 2 * a[i];
}
"""


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package is there, as pip would leave it: for this process and for its children."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "anygpu_toy-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: anygpu-toy\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("ANYGPU_ENGINES", "toy")
        catalogue._of_other_packages.cache_clear()
        with pytest.warns(RuntimeWarning, match="The engine broken is used without its traits"):
            catalogue.catalogue()
        # Tests before these may have looked at the machine, without this engine.
        patch.setattr("anygpu.placement.planner._default", Planner())
        yield
    catalogue._of_other_packages.cache_clear()


@pytest.fixture(scope="module")
def device() -> Device:
    return registry.find("toy").facts


def entry() -> EngineEntry:
    return next(each for each in catalogue.catalogue() if each.name == "toy")


def test_the_catalogue_has_it_with_its_traits() -> None:
    assert entry().traits == TRAITS
    assert traits_of("toy") == TRAITS
    assert traits_of("plain") == traits_of("broken") == traits_of("no such engine") == EngineTraits()
    assert library_version("toy") == "1.5"


def test_it_conforms() -> None:
    assert [device.id for device in check_engine_probe(ToyEngine())] == ["toy:0"]


def test_it_is_probed_in_a_child() -> None:
    found = {device.id: device for device in ag.devices()}
    assert found["toy:0"].verified


def test_workers_live_where_it_says(device: Device) -> None:
    assert isolation_of(entry()) == "thread"
    assert isinstance(registry.find("toy").worker, ThreadWorker)
    assert isolation_of(entry(), "process") == "process"


def test_a_worker_counts_reads_the_clock_and_keeps_a_budget(device: Device) -> None:
    values = np.ones(1 << 16, np.float32)
    program = chain(values.size)
    for isolation in ("thread", "process"):
        worker = open_worker(entry(), device, isolation=isolation, budget=1 << 20)
        ran = worker.run(program, [values], timed=True)
        np.testing.assert_allclose(ran.results[0], np.tanh(values) + values, rtol=1e-6)
        assert ran.kernels == 1
        assert ran.peak_bytes is not None
        assert ran.peak_bytes >= 2 * values.nbytes
        assert ran.device_seconds is not None
        with pytest.raises(AllocationError):
            worker.upload(np.ones(1 << 20, np.float32))
        worker.close()


def test_rates_are_assumed_as_it_says(device: Device) -> None:
    assert device.form == "software"
    found = assumed(device)
    assert (found.launch, found.fuses) == (7e-4, True)
    other = fake_device("plain", form="software", kind="cpu")
    assert assumed(other).launch == EngineTraits().rates_of("software").launch


@pytest.mark.software_devices("a call that names no device has candidates that compute on the processor")
def test_a_plan_counts_the_tuning_of_kernels(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {}
    for seconds in (0.0, 3.0):
        monkeypatch.setenv("ANYGPU_TUNING_SECONDS", str(seconds))
        planner = Planner()
        site = CallSite("tanh", options(), "numpy", has_anygpu_arrays=False)
        traced = trace(lambda a: np.tanh(a) + 1, (np.ones(1 << 10, np.float32),), {})
        assert not isinstance(traced, NotTraceable)
        site.programs.current = traced
        site.candidates.consider(planner)
        expected[seconds] = site.candidates.predictions["toy:0"].tuning
    assert expected == {0.0: 0.0, 3.0: 3.0}


def test_a_function_is_offloaded_to_it() -> None:
    values = np.linspace(0, 1, 1000, dtype=np.float32)
    result = ag.run(lambda a: np.sort(a)[::-1] * 2, values, on="toy")
    np.testing.assert_array_equal(result.value, np.sort(values)[::-1] * 2)
    assert result.receipt.device == "toy:0"


def test_views_share_memory_as_it_says(device: Device) -> None:
    store = ag.Store(device="toy")
    tensor = store.put("t", np.arange(24, dtype=np.float32).reshape(6, 4))
    view = tensor.view(slice(2, 4), copy="never")
    np.testing.assert_array_equal(np.asarray(view), np.arange(8, 16, dtype=np.float32).reshape(2, 4))
    with pytest.raises(CopyNeeded, match="as arrays on toy have them"):
        tensor.view((slice(None), slice(0, 2)), copy="never")


def test_it_compiles_kernels_in_its_language() -> None:
    assert engines_for("opencl") == ["opencl", "toy"]
    assert engines_for("wgsl") == ["webgpu"]
    found, why = device_for("opencl")
    assert found is not None, why
    assert found.id == "toy:0"
    kernel = ag.Kernel(DOUBLE)
    values = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(kernel(values)), 2 * values)
    on_device = ag.asarray(values, device="toy")
    np.testing.assert_array_equal(np.asarray(kernel(on_device)), 2 * values)
    assert device_for("wgsl")[1].endswith("leaves out webgpu.")
