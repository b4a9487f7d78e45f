"""Without stand-ins: calls that name no device use NumPy and GPUs, and look for GPUs where there may be one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.background import LOOK_SHARE
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.engines.catalogue import is_automatic, why_only_when_named
from anygpu.hardware import gpu_presence
from anygpu.hardware.device import Device, Unavailable, parse_device
from anygpu.hardware.inventory import in_a_few_words
from anygpu.placement.explore import why_not_elsewhere
from anygpu.placement.machine import numpy_device
from anygpu.placement.planner import NO_GPU, Planner
from anygpu.runtime.runtime import Runtime
from anygpu.testing import ManualClock
from anygpu.workers.device_arrays.registry import DeviceRegistry

X = np.ones((300, 300))


def chain(x: Any) -> Any:
    for _ in range(10):
        x = np.sqrt(x * x + 1)
    return x


def described(identity: str, **facts: Any) -> Device:
    made = msgspec.structs.replace(numpy_device(), id=identity, engine=parse_device(identity).engine)
    return msgspec.structs.replace(made, state="verified", **facts)


SOFTWARE = described("webgpu:1", form="software", name="llvmpipe")
GPU = described("webgpu:0", kind="gpu", form="discrete", name="a card")


@pytest.fixture(autouse=True)
def no_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpu_presence.VARIABLE, raising=False)


def machine_with(monkeypatch: pytest.MonkeyPatch, *, gpu: bool) -> None:
    monkeypatch.setattr(gpu_presence, "may_have_gpu", lambda: gpu)


class Unprobed(DeviceRegistry):
    """A registry that must not look at the machine."""

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        raise AssertionError("the machine was looked at")

    def of_engines(self, names: Collection[str], *, low_priority: bool = False) -> list[Device | Unavailable]:
        raise AssertionError(f"{names} were probed")


class OneByOne(DeviceRegistry):
    """A registry whose engines take long to probe, by a clock of its own; all have software, and webgpu a GPU."""

    def __init__(self, seconds: float = 0.5) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.probed: list[str] = []
        #: Engines that were probed by an earlier process.
        self.known: set[str] = set()
        self._seconds = seconds

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        raise AssertionError("everything was probed at once")

    def remembered(self, names: Collection[str]) -> set[str]:
        return self.known & set(names)

    def of_engines(self, names: Collection[str], *, low_priority: bool = False) -> list[Device | Unavailable]:
        assert low_priority
        if not self.known.issuperset(names):
            (name,) = names
            self.probed.append(name)
            self.clock.advance(self._seconds)
        software = [described(f"{name}:1", form="software", name="llvmpipe") for name in names]
        return [GPU, *software] if "webgpu" in names else [*software]


# -- which devices


@pytest.mark.parametrize("device", [SOFTWARE, described("torch:cpu"), described("jax:cpu@node-7")])
def test_what_computes_on_the_processor_has_to_be_named(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        why_only_when_named(device) == f'{device.id} computes on the processor: name it (on="{device.id}") to use it.'
    )
    assert not is_automatic(device.id, device)
    assert in_a_few_words(device).endswith("; used only when named")
    monkeypatch.setenv(gpu_presence.VARIABLE, "on")
    assert why_only_when_named(device) is None
    assert "named" not in in_a_few_words(device)


@pytest.mark.parametrize("device", [GPU, described("numpy"), described("numpy@node-7"), described("jax:0", kind="npu")])
def test_numpy_and_cards_need_not_be_named(device: Device) -> None:
    assert why_only_when_named(device) is None
    assert is_automatic(device.id, device)
    assert "named" not in in_a_few_words(device)


def test_a_device_that_is_not_known_may_be_a_card() -> None:
    assert is_automatic("webgpu:0", None)
    assert not is_automatic("cpu", None)


# -- a machine without a GPU


def test_without_a_gpu_nothing_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=False)
    planner = Planner(known=Unprobed())
    planner.seconds = 1000.0
    function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    for _ in range(20):
        np.testing.assert_array_equal(function(X), chain(X))
    receipt = function.run(X).receipt
    assert receipt.device == "numpy"
    assert receipt.reason.endswith(NO_GPU)
    assert planner.settle(60)
    assert not planner.is_looking
    assert [each.id for each in planner.machine_for(options()).devices] == ["numpy"]
    assert [each.id for each in planner.machine_for(options(min_memory=1)).devices] == ["numpy"]


def test_without_a_gpu_a_runtime_and_arrays_use_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=False)
    with Runtime(known=Unprobed()) as runtime:
        runtime._planner.add_seconds(1000.0)
        futures = [runtime.submit(chain, X) for _ in range(20)]
        for future in futures:
            np.testing.assert_array_equal(future.result(), chain(X))
            assert future.receipt is not None
            assert future.receipt.device == "numpy"
    assert ag.asarray(X).device == "numpy"


def test_what_is_named_is_looked_at_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=False)
    planner = Planner(known=DeviceRegistry())
    named: Offloaded[..., Any] = Offloaded(chain, options(on="opencl"), lambda: planner)
    assert named.run(X.astype(np.float32)).receipt.device == "opencl:0"
    # Who names none does not get it, though it is known and open now.
    anywhere: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    plan = anywhere.explain(X)
    assert (plan.chosen, [each.device for each in plan.candidates]) == ("numpy", ["numpy"])
    sentences = {each.device: each.sentence for each in plan.refused}
    assert sentences["opencl:0"] == 'opencl:0 computes on the processor: name it (on="opencl:0") to use it.'
    assert planner.settle(60)
    planner.places.close()


def test_an_explanation_names_what_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=False)
    planner = Planner(known=DeviceRegistry())
    plan = Offloaded(chain, options(), lambda: planner).explain(X)
    assert "webgpu:0 computes on the processor" in str(plan)
    planner.places.close()


def test_arrays_on_a_software_device_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has put them there has named it."""
    machine_with(monkeypatch, gpu=False)
    x = ag.asarray(X.astype(np.float32), device="opencl")
    result = ag.run(chain, x)
    assert (result.receipt.device, result.value.device) == ("opencl:0", "opencl:0")
    assert ag.explain(chain, x).chosen == "opencl:0"


# -- a machine that may have one


def test_engines_are_probed_one_by_one_for_a_share_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=True)
    places = OneByOne()
    planner = Planner(known=places, clock=places.clock)
    looked_at: list[int] = []
    for _ in range(200):
        planner.add_seconds(1.0)
        planner.wake()
        assert planner.settle(60)
        assert planner.pace.looked <= planner.seconds * LOOK_SHARE
        assert planner.awake == (planner.seconds > 6), "recording is loaded before children are paid for"
        looked_at.append(len(places.probed))
    assert looked_at[:33] == [0] * 33, "calls have not paid for a child yet"
    assert looked_at[33:49] == [1] * 16
    assert looked_at[-1] == len(places.probed) == len(set(places.probed)) > 1
    assert places.probed[0] == "webgpu"
    assert "cpu" not in places.probed
    assert planner.awake
    known = {each.id for each in planner.machine_for(options()).devices}
    assert {"numpy", "webgpu:0", "webgpu:1"} <= known


def test_what_is_found_first_is_used_before_the_rest_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=True)
    places = OneByOne(seconds=100.0)
    planner = Planner(known=places, clock=places.clock)
    planner.add_seconds(40.0)
    planner.wake()
    assert planner.settle(60)
    assert planner.awake
    assert places.probed == ["webgpu"]
    assert [each.id for each in planner.machine_for(options()).devices] == ["numpy", "webgpu:0", "webgpu:1"]
    assert planner.device("webgpu:0") == GPU


def test_what_was_probed_lately_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=True)
    places = OneByOne(seconds=100.0)
    places.known = {"webgpu", "torch"}
    planner = Planner(known=places, clock=places.clock)
    planner.add_seconds(7.0)
    planner.wake()
    assert planner.settle(60)
    known = [each.id for each in planner.machine_for(options()).devices]
    assert {"numpy", "webgpu:0", "webgpu:1", "torch:1"} <= set(known)
    assert places.probed == []
    planner.add_seconds(40.0)
    assert planner.settle(60)
    assert places.probed == ["opencl"]


def test_earlier_processes_have_paid_for_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=True)
    places = OneByOne()
    planner = Planner(known=places, clock=places.clock)
    planner.wake(pays=True)
    assert planner.settle(60)
    assert len(places.probed) > 1


def test_receipts_say_when_devices_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, gpu=True)
    planner = Planner(known=Unprobed())
    function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    assert function.run(X).receipt.device == "numpy"
    (site,) = function._table.sites.values()
    assert why_not_elsewhere(planner, site).endswith("other devices are probed after 6.67 s of calls.")
