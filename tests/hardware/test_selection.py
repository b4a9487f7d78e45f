from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.errors import DeviceUnavailable, InvalidOption
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import matches_name, require, select
from anygpu.testing import fake_device

GIB = 1 << 30

NUMPY = fake_device("numpy", kind="cpu", state="verified", name="Intel Xeon", api="NumPy 2.4", card="cpu")
LLVMPIPE = fake_device(
    "webgpu:0", kind="cpu", form="software", state="verified", name="llvmpipe (LLVM 15)", api="Vulkan", card="cpu"
)
BIG = fake_device(
    "torch:cuda:1",
    state="verified",
    name="NVIDIA GeForce RTX 4090",
    api="CUDA 12.4",
    memory=24 * GIB,
    card="nvidia:1",
    vendor="NVIDIA",
)
SMALL = fake_device(
    "webgpu:1", state="verified", form="integrated", name="Intel(R) UHD Graphics 770", api="Vulkan", memory=4 * GIB
)
UNTRIED = fake_device("opencl:0", name="AMD Radeon RX 7600", api="OpenCL 2.1")
ALL = [NUMPY, LLVMPIPE, BIG, SMALL, UNTRIED]


def chosen(on: str | list[str] | None = None, **options: object) -> list[str]:
    return [device.id for device in select(ALL, prefer(on, **options)).chosen]  # type: ignore[arg-type]


def test_without_a_wish_every_verified_device_real_gpus_first_and_emulations_last() -> None:
    assert chosen() == ["torch:cuda:1", "webgpu:1", "numpy", "webgpu:0"]


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("gpu", ["torch:cuda:1", "webgpu:1"]),
        ("cpu", ["numpy"]),
        ("CPU", ["numpy"]),
        ("webgpu", ["webgpu:1", "webgpu:0"]),
        ("webgpu:0", ["webgpu:0"]),
        ("cuda:1", ["torch:cuda:1"]),
        ("cuda", ["torch:cuda:1"]),
        ("CUDA", ["torch:cuda:1"]),
        ("vulkan", ["webgpu:1", "webgpu:0"]),
        ("nvidia:1", ["torch:cuda:1"]),
        ("RTX 4090", ["torch:cuda:1"]),
        ("uhd graphics 770", ["webgpu:1"]),
        ("npu", []),
        ("cuda:0", []),
        ("1", []),
        ("torch:cuda", ["torch:cuda:1"]),
        ("nvidia", ["torch:cuda:1"]),
    ],
)
def test_devices_by_name(on: str, expected: list[str]) -> None:
    assert chosen(on) == expected


def test_cpu_is_the_engine_that_compiles_where_there_is_one() -> None:
    compiled = fake_device("cpu", name=NUMPY.name, kind="cpu", form="host", api="LLVM 20", state="verified")
    remote = fake_device("cpu@node-7", name=NUMPY.name, kind="cpu", form="host", api="LLVM 20", state="verified")
    own = fake_device("torch:cpu", name=NUMPY.name, kind="cpu", form="host", api="CPU", state="verified")
    found = select([NUMPY, own, remote, compiled], prefer(["cpu", "torch"]))
    assert [device.id for device in found.chosen] == ["cpu", "torch:cpu"]
    assert found.refused[0].sentence == (
        'numpy is not meant by "cpu", which is the device that compiles for the processor.'
    )
    assert [device.id for device in select([NUMPY, remote, compiled], prefer("cpu@node-7")).chosen] == ["cpu@node-7"]
    assert [device.id for device in select([own, NUMPY], prefer(["cpu", "torch"])).chosen] == ["numpy", "torch:cpu"]


def test_several_wishes_are_tried_in_order() -> None:
    assert chosen(["webgpu:0", "gpu"]) == ["webgpu:0", "torch:cuda:1", "webgpu:1"]


def test_power_prefers_the_form_that_suits_it() -> None:
    assert chosen("gpu", power="low") == ["webgpu:1", "torch:cuda:1"]
    assert chosen("gpu", power="high") == ["torch:cuda:1", "webgpu:1"]


def refusal(device_id: str, on: str | None = None, **options: object) -> str:
    refused = select(ALL, prefer(on, **options)).refused  # type: ignore[arg-type]
    return next(each.sentence for each in refused if each.device == device_id)


def test_every_refusal_has_a_sentence() -> None:
    assert refusal("numpy", "gpu") == 'numpy is not "gpu": it is Intel Xeon, a CPU through numpy.'
    assert "software adapter that runs on the CPU" in refusal("webgpu:0", "gpu")
    assert refusal("opencl:0") == ("opencl:0 was not verified: it is only usable. Run `anygpu doctor` to see why.")
    assert refusal("webgpu:1", min_memory=8 * GIB) == "webgpu:1 has 4.0 GiB free, and 8.0 GiB are asked for."
    assert "its load is not known (it is a fake)" in refusal("webgpu:1", max_load=0.5)


def test_unknown_memory_is_refused_with_the_reason_and_not_taken_for_zero_or_plenty() -> None:
    device = fake_device(
        "webgpu:0",
        state="verified",
        memory_total=None,
        memory_free=None,
        unknown=dict.fromkeys(
            ("memory_total", "memory_free", "driver", "compute_capability", "load", "uuid", "pci"), "OpenGL is silent"
        ),
    )
    (refused,) = select([device], prefer(min_memory=1)).refused
    assert "its memory is not known (OpenGL is silent)" in refused.sentence
    assert select([device], prefer()).chosen == (device,)


def test_a_busy_device_is_refused() -> None:
    busy = fake_device("torch:cuda:0", state="verified", load=0.9)
    assert select([busy], prefer(max_load=0.5)).refused[0].sentence == (
        "torch:cuda:0 is 90% busy, and at most 50% is asked for."
    )
    assert select([busy], prefer(max_load=0.95)).chosen == (busy,)


def test_unverified_devices_only_on_request() -> None:
    assert "opencl:0" in [device.id for device in select(ALL, prefer(unverified=True)).chosen]


def test_require_raises_with_all_that_is_known() -> None:
    missing = Unavailable(
        id="torch:cuda",
        engine="torch",
        state="hung",
        cause="hung",
        reason="The card did not respond.",
        fix="Restart the machine.",
    )
    with pytest.raises(DeviceUnavailable) as caught:
        require([NUMPY], prefer("gpu", min_memory=GIB), [missing])
    assert 'on="gpu", min_memory=1.0 GiB' in str(caught.value)
    assert "The card did not respond. Restart the machine." in caught.value.refusals
    assert any(sentence.startswith("numpy is not") for sentence in caught.value.refusals)


@pytest.mark.parametrize("on", ["opencl@node-7", "opencl:0@node-7", "fleet", "@node-7"])
def test_a_machine_that_did_not_answer_is_named(on: str) -> None:
    """It may have had the device that was asked for."""
    reason = "The devices of node-7 are not known: it did not answer."
    missing = Unavailable(id="fleet@node-7", engine="fleet", state="absent", cause="failed", reason=reason)
    with pytest.raises(DeviceUnavailable) as caught:
        require([NUMPY], prefer(on), [missing])
    assert reason in caught.value.refusals


def test_options_that_make_no_sense() -> None:
    for options in ({"min_memory": -1}, {"max_load": 1.5}, {"power": "max"}, {"on": ""}, {"on": ["gpu", " "]}):
        with pytest.raises(InvalidOption):
            prefer(**options)


names = st.sampled_from(["gpu", "cpu", "webgpu", "cuda", "cuda:1", "vulkan", "4090", "nothing like that"])
subsets = st.lists(st.sampled_from(ALL), unique_by=lambda device: device.id)


@given(subsets, st.lists(names, max_size=3), st.integers(0, 32 * GIB), st.floats(0, 1))
def test_each_device_is_either_chosen_or_refused_and_the_order_of_asking_does_not_matter(
    devices: list[Device], on: list[str], memory: int, load: float
) -> None:
    preference = prefer(on, min_memory=memory, max_load=load)
    selection = select(devices, preference)
    assert sorted([device.id for device in selection.chosen] + [each.device for each in selection.refused]) == sorted(
        device.id for device in devices
    )
    assert {device.id for device in selection.chosen} == {
        device.id for device in select(devices[::-1], preference).chosen
    }
    if on:
        assert all(any(matches_name(device, name) for name in on) for device in selection.chosen)
    assert all((device.memory_free or 0) >= memory for device in selection.chosen)
