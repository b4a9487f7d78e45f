from __future__ import annotations

import pytest

from anygpu.hardware.device import Card, Device, assemble, normal_pci, normal_uuid, plain_name
from anygpu.testing import fake_device

UUIDS = [f"{n:032x}" for n in range(1, 20)]


def card(number: int, name: str = "NVIDIA GeForce RTX 4090", **facts: object) -> Card:
    usual: dict[str, object] = {
        "id": f"nvidia:{number}",
        "vendor": "NVIDIA",
        "name": name,
        "source": "nvml",
        "memory_total": 24 << 30,
        "memory_free": 20 << 30,
        "driver": "550.54",
        "driver_api": "12.4",
        "compute_capability": "8.9",
        "load": 0.25,
        "uuid": UUIDS[number],
        "pci": f"0000:{number:02x}:00.0",
        "model": "10de:2684",
    }
    facts = {**usual, **facts}
    unknown = {name: "not told" for name, value in facts.items() if value is None}
    return Card(**facts, unknown=unknown)  # type: ignore[arg-type]


def ways(cards: list[Card]) -> dict[str, list[tuple[str, str]]]:
    return {each.id: [(way.device, way.matched_by) for way in each.ways] for each in cards}


def test_one_card_seen_by_three_engines_is_one_card_with_three_ways_in() -> None:
    seen = [
        fake_device("torch:cuda:0", uuid=UUIDS[0]),
        fake_device("opencl:0", pci="0000:00:00.0"),
        fake_device("webgpu:0", model="10de:2684", name="NVIDIA GeForce RTX 4090"),
    ]
    devices, cards = assemble(seen, [card(0)])
    assert ways(cards) == {"nvidia:0": [("torch:cuda:0", "uuid"), ("opencl:0", "pci"), ("webgpu:0", "model")]}
    assert {device.card for device in devices} == {"nvidia:0"}


def test_a_device_learns_from_its_card_what_its_engine_cannot_know() -> None:
    (device,), _ = assemble([fake_device("torch:cuda:0", uuid=UUIDS[0])], [card(0)])
    assert (device.driver, device.load, device.compute_capability) == ("550.54", 0.25, "8.9")
    assert device.memory_total == 8 << 30, "what the engine itself says stays"
    assert device.unknown == {}


def test_eight_equal_cards_are_told_apart_by_identity_and_not_guessed_without() -> None:
    known = [card(number) for number in range(8)]
    seen = [fake_device(f"torch:cuda:{n}", uuid=UUIDS[7 - n]) for n in range(8)]
    vulkan = fake_device("webgpu:0", model="10de:2684", name="NVIDIA GeForce RTX 4090", api="Vulkan")
    devices, cards = assemble([*seen, vulkan], known)
    assert [device.card for device in devices[:8]] == [f"nvidia:{7 - n}" for n in range(8)]
    assert devices[8].card == "unmatched:webgpu:0"
    note = cards[-1].note
    assert note is not None
    assert "webgpu:0 is one of nvidia:0, nvidia:1" in note
    assert "Vulkan gives no UUID or PCI address" in note


def test_two_vendors_are_not_mixed_up() -> None:
    amd = card(3, "AMD Radeon RX 7900 XTX", id="amd:0", vendor="AMD", source="sysfs", uuid=None, model="1002:744c")
    seen = [
        fake_device("webgpu:0", name="AMD Radeon RX 7900 XTX (RADV NAVI31)", model="1002:744c"),
        fake_device("webgpu:1", name="NVIDIA GeForce RTX 4090", model="10de:2684"),
    ]
    _, cards = assemble(seen, [card(0), amd])
    assert ways(cards) == {"nvidia:0": [("webgpu:1", "model")], "amd:0": [("webgpu:0", "model")]}


def test_identities_that_differ_outweigh_an_equal_name() -> None:
    other = fake_device("torch:cuda:0", name="NVIDIA GeForce RTX 4090", uuid=UUIDS[9])
    devices, _ = assemble([other], [card(0)])
    assert devices[0].card == "unmatched:torch:cuda:0"


def test_a_name_matches_when_it_is_unique() -> None:
    _, cards = assemble([fake_device("jax:cuda:0", name="NVIDIA GeForce RTX 4090")], [card(0)])
    assert ways(cards) == {"nvidia:0": [("jax:cuda:0", "name")]}


def test_everything_that_runs_on_the_processor_is_one_card() -> None:
    seen: list[Device] = [
        fake_device("numpy", kind="cpu", name="Intel Xeon"),
        fake_device("webgpu:0", kind="cpu", form="software", name="llvmpipe"),
        fake_device("opencl:0", kind="cpu", form="software", name="pthread-Intel Xeon"),
    ]
    devices, cards = assemble(seen, [])
    assert [each.id for each in cards] == ["cpu"]
    assert cards[0].name == "Intel Xeon"
    assert len(cards[0].ways) == 3
    assert {device.card for device in devices} == {"cpu"}


def test_a_card_that_no_engine_reaches_is_still_there() -> None:
    devices, cards = assemble([fake_device("numpy", kind="cpu")], [card(0)])
    assert ways(cards)["nvidia:0"] == []
    assert devices[0].card == "cpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-0a1b2c3d-0000-1111-2222-333344445555", "0a1b2c3d000011112222333344445555"),
        ("0A1B2C3D-0000-1111-2222-333344445555", "0a1b2c3d000011112222333344445555"),
        (bytes(range(16)), "000102030405060708090a0b0c0d0e0f"),
        (bytes(16), None),
        ("MIG-x", None),
        ("", None),
        (None, None),
    ],
)
def test_identities_are_normalised(text: str | bytes | None, expected: str | None) -> None:
    assert normal_uuid(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:65:00.0", "0000:65:00.0"),
        ("65:00.0", "0000:65:00.0"),
        ("0001:C1:1F.7", "0001:c1:1f.7"),
        ("nonsense", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses_are_normalised(text: str | None, expected: str | None) -> None:
    assert normal_pci(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("AMD Radeon RX 6800 (RADV NAVI21)", "AMD Radeon RX 6800 (radeonsi, navi21, LLVM 15)"),
        ("NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090/PCIe/SSE2"),
        ("Intel(R) UHD Graphics 770", "Intel UHD Graphics 770"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe (LLVM 15.0.6)"),
    ],
)
def test_names_of_one_card_in_different_interfaces(one: str, other: str) -> None:
    assert plain_name(one) == plain_name(other) != ""
