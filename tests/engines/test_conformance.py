"""One suite for every engine. Each must be verified on this machine: a missing device is a failure, never a skip."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anygpu.engines import catalogue
from anygpu.engines.protocol import Engine
from anygpu.hardware.device import Device, Unavailable
from anygpu.testing import FakeEngine, check_engine_probe, fake_device

NAMES = ("numpy", "cpu", "webgpu", "opencl", "torch", "jax")


def load(name: str) -> Engine:
    return catalogue.load(next(entry for entry in catalogue.BUILT_IN if entry.name == name))


@pytest.mark.parametrize("deep", [False, True], ids=["usual", "deep"])
@pytest.mark.parametrize("name", NAMES)
def test_every_engine_conforms_and_has_a_verified_device_here(name: str, deep: bool) -> None:
    devices = check_engine_probe(load(name), deep=deep)
    assert devices, f"no verified device of {name}: run scripts/setup, then `anygpu doctor`"


def only_device(name: str) -> Device:
    return check_engine_probe(load(name))[0]


def test_llvmpipe_is_software_on_the_cpu_and_its_two_views_are_one() -> None:
    devices = check_engine_probe(load("webgpu"))
    (llvmpipe,) = [device for device in devices if "llvmpipe" in device.name]
    assert (llvmpipe.kind, llvmpipe.form, llvmpipe.api) == ("cpu", "software", "Vulkan")
    assert llvmpipe.also_through == ("OpenGL",)
    assert "Mesa" in (llvmpipe.driver or "")
    assert {"f16", "timestamps"} <= set(llvmpipe.features)
    assert llvmpipe.limits["max-buffer-size"] > 0


def test_the_processor_is_the_host_and_names_its_compiler() -> None:
    (device,) = check_engine_probe(load("cpu"))
    assert (device.id, device.kind, device.form) == ("cpu", "cpu", "host")
    assert device.api.startswith("LLVM ")
    assert "(llvmlite " in device.api


def test_pocl_is_software_on_the_cpu() -> None:
    device = only_device("opencl")
    assert (device.kind, device.form) == ("cpu", "software")
    assert "Portable Computing Language" in (device.driver or "")


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_cpu_only_build_says_so(name: str) -> None:
    (missing,) = [item for item in load(name).discover() if isinstance(item, Unavailable)]
    assert (missing.cause, missing.id) == ("cpu_only_build", f"{name}:cuda")


class Rude(FakeEngine):
    """Breaks one rule at a time, to show that the suite notices."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule

    def discover(self) -> list[Device | Unavailable]:
        good = fake_device("fake:0")
        broken: dict[str, list[Device | Unavailable]] = {
            "silent": [],
            "twice the same id": [good, good],
            "foreign id": [fake_device("other:0", engine="fake")],
            "foreign engine": [fake_device("fake:0", engine="other")],
            "verified too early": [fake_device("fake:0", state="verified")],
            "feature of its own": [fake_device("fake:0", features=("warp_drive",))],
            "software gpu": [fake_device("fake:0", form="software")],
            "more free than there is": [fake_device("fake:0", memory_total=1, memory_free=2)],
            "a load of 80": [fake_device("fake:0", load=80.0)],
            "no name": [fake_device("fake:0", name=" ")],
            "no sentence": [Unavailable(id="fake:0", engine="fake", state="absent", cause="failed", reason="ERR_42")],
        }
        return broken.get(self.rule, [good])

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        if self.rule == "never verified":
            return device
        if self.rule == "answers for another":
            return fake_device("fake:9", state="verified")
        return super().verify(device, deep=deep)

    def classify(self, error: BaseException, device: Device) -> None:
        if self.rule == "blames the user's error on the device":
            return super().classify(MemoryError(), device)  # type: ignore[return-value]
        return None


RULES = (
    "silent",
    "twice the same id",
    "foreign id",
    "foreign engine",
    "verified too early",
    "feature of its own",
    "software gpu",
    "more free than there is",
    "a load of 80",
    "no name",
    "no sentence",
    "never verified",
    "answers for another",
    "blames the user's error on the device",
)


@pytest.mark.parametrize("rule", RULES)
def test_the_suite_itself_can_fail(rule: str) -> None:
    with pytest.raises(AssertionError):
        check_engine_probe(Rude(rule))


def test_a_polite_fake_passes() -> None:
    engine = FakeEngine()
    assert [device.id for device in check_engine_probe(engine)] == ["fake:0"]
    assert engine.closed


def in_this_order(*makers: Callable[[], Engine]) -> None:
    for make in makers:
        check_engine_probe(make())


def test_engines_can_be_made_twice_in_one_process() -> None:
    in_this_order(lambda: load("webgpu"), lambda: load("webgpu"), lambda: load("opencl"), lambda: load("opencl"))
