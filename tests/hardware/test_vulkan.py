"""Vulkan through ctypes: against Mesa's llvmpipe where it is installed, and against a loader written in Python."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from anygpu.hardware import vulkan
from anygpu.hardware.vulkan import VulkanDevice, VulkanError

MIB = 1 << 20


@pytest.fixture(scope="module")
def devices() -> list[VulkanDevice]:
    try:
        return vulkan.read()
    except (OSError, VulkanError) as error:
        pytest.skip(f"no Vulkan here: {error}")


@pytest.fixture
def llvmpipe(devices: list[VulkanDevice]) -> VulkanDevice:
    for device in devices:
        if device.name.startswith("llvmpipe"):
            return device
    pytest.skip("Mesa's llvmpipe is not installed")


# Against real drivers


def test_llvmpipe_is_software(llvmpipe: VulkanDevice) -> None:
    assert llvmpipe.type == "software"
    assert llvmpipe.vendor_id == 0x10005
    assert llvmpipe.driver_name == "llvmpipe"
    assert "Mesa" in llvmpipe.driver_version
    assert llvmpipe.api_version.startswith("1.")
    assert len(llvmpipe.api_version.split(".")) == 3


def test_llvmpipe_has_memory_of_the_machine(llvmpipe: VulkanDevice) -> None:
    # Mesa 22 says 2 GiB on every machine, later ones say what the machine has.
    assert 1024 * MIB <= llvmpipe.memory_total <= psutil.virtual_memory().total * 1.01


def test_llvmpipe_is_on_no_bus(llvmpipe: VulkanDevice) -> None:
    assert llvmpipe.pci is None
    assert "no PCI bus" in llvmpipe.unknown["pci"]


def test_llvmpipe_has_uuids(llvmpipe: VulkanDevice) -> None:
    assert llvmpipe.uuid is not None
    assert len(llvmpipe.uuid) == 32
    assert llvmpipe.driver_uuid is not None
    assert bytes.fromhex(llvmpipe.driver_uuid).startswith(b"llvmpipe")


def test_devices_are_those_of_wgpu_in_the_same_order(devices: list[VulkanDevice]) -> None:
    wgpu = pytest.importorskip("wgpu")
    adapters = [
        (adapter.info["device"], adapter.info["vendor_id"], adapter.info["device_id"])
        for adapter in wgpu.gpu.enumerate_adapters_sync()
        if adapter.info["backend_type"] == "Vulkan"
    ]
    ours = iter([(device.name, device.vendor_id, device.device_id) for device in devices])
    # wgpu may leave out a device that does not serve WebGPU, so its list is ours with gaps.
    assert all(adapter in ours for adapter in adapters)
    assert adapters or all(device.type == "other" for device in devices)


def test_reading_twice_gives_the_same(devices: list[VulkanDevice]) -> None:
    assert [device.name for device in vulkan.read()] == [device.name for device in devices]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere drivers are found in other ways too")
@pytest.mark.usefixtures("devices")
def test_loader_without_drivers() -> None:
    program = """
from anygpu.hardware import vulkan
try:
    print("devices", vulkan.read())
except vulkan.VulkanError as error:
    print(error.call, error.code, error)
"""
    nowhere = {"VK_ICD_FILENAMES": "/nonexistent/driver.json", "VK_DRIVER_FILES": "/nonexistent/driver.json"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | nowhere, capture_output=True, text=True, check=True
    ).stdout
    assert answer.startswith(f"vkCreateInstance {vulkan.NO_DRIVER} no Vulkan driver is installed")


def test_no_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "LIBRARIES", ("libanygpu-is-not-here.so.1",))
    with pytest.raises(OSError, match=r"The Vulkan loader, .* is missing: .*libanygpu-is-not-here"):
        vulkan.read()


# What no driver here has: PCI addresses, free memory, old versions, failures


class FakeLoader:
    """Answers as a Vulkan loader with one device, by writing into the structures that it is handed."""

    def __init__(self, *, extensions: tuple[bytes, ...] = (), version: int = (1 << 22) | (3 << 12) | 230) -> None:
        self.extensions = extensions
        self.version = version
        self.vendor_id = 0x10DE
        self.driver_version = (550 << 22) | (54 << 14) | (15 << 6)
        self.driver_info = b"550.54.15"
        self.device_uuid = bytes(range(16))
        self.results: dict[str, list[int]] = {}
        self.instances = 0
        self.requested_version = 0
        self.requested_extensions: list[bytes] = []
        self.flags = 0
        self.chained: list[int] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("vk"):
            raise AttributeError(name)
        answer = getattr(self, f"answer_{name.removeprefix('vk')}")

        def call(*arguments: Any) -> int:
            # `byref` objects keep what they refer to.
            answer(*(getattr(argument, "_obj", argument) for argument in arguments))
            results = self.results.get(name)
            return results.pop(0) if results else 0

        return call

    def answer_EnumerateInstanceVersion(self, version: Any) -> None:  # noqa: N802
        version.value = (1 << 22) | (4 << 12)

    def answer_CreateInstance(self, info: Any, _allocator: None, instance: Any) -> None:  # noqa: N802
        assert info.s_type == 1
        self.requested_version = info.application_info.contents.api_version
        self.requested_extensions = [info.extension_names[index] for index in range(info.extension_count)]
        self.flags = info.flags
        self.instances += 1
        instance.value = 1

    def answer_DestroyInstance(self, instance: Any, _allocator: None) -> None:  # noqa: N802
        assert instance.value == 1
        self.instances -= 1

    def answer_EnumeratePhysicalDevices(self, _instance: Any, count: Any, handles: Any) -> None:  # noqa: N802
        count.value = 1
        if handles is not None:
            handles[0] = 7

    def answer_EnumerateInstanceExtensionProperties(self, _layer: None, count: Any, items: Any) -> None:  # noqa: N802
        count.value = 1
        if items is not None:
            items[0].name = b"VK_KHR_portability_enumeration"

    def answer_EnumerateDeviceExtensionProperties(  # noqa: N802
        self, handle: Any, _layer: None, count: Any, items: Any
    ) -> None:
        assert handle.value == 7
        count.value = len(self.extensions)
        for index, name in enumerate(self.extensions if items is not None else ()):
            items[index].name = name

    def answer_GetPhysicalDeviceProperties(self, _handle: Any, properties: Any) -> None:  # noqa: N802
        properties.api_version = self.version
        properties.driver_version = self.driver_version
        properties.vendor_id, properties.device_id = self.vendor_id, 0x2684
        properties.device_type = 2
        properties.device_name = b"NVIDIA GeForce RTX 4090"

    def answer_GetPhysicalDeviceProperties2(self, handle: Any, properties: Any) -> None:  # noqa: N802
        assert properties.s_type == 1000059001
        self.answer_GetPhysicalDeviceProperties(handle, properties.properties)
        for link in self.links(properties.next):
            if isinstance(link, vulkan._IDProperties):
                ctypes.memmove(link.device_uuid, self.device_uuid, 16)
                ctypes.memmove(link.driver_uuid, b"driver of nvidia", 16)
            elif isinstance(link, vulkan._DriverProperties):
                link.driver_name, link.driver_info = b"NVIDIA", self.driver_info
            elif isinstance(link, vulkan._PCIBusInfoProperties):
                link.domain, link.bus, link.device, link.function = 0x10000, 0x65, 0, 1

    def answer_GetPhysicalDeviceMemoryProperties(self, _handle: Any, memory: Any) -> None:  # noqa: N802
        memory.heap_count = 3
        for index, (size, flags) in enumerate([(24000 * MIB, 1), (64000 * MIB, 0), (256 * MIB, 3)]):
            memory.heaps[index].size, memory.heaps[index].flags = size, flags
        # Whatever a driver leaves beyond its count is not to be read.
        memory.heaps[3].size, memory.heaps[3].flags = 1 << 50, 1

    def answer_GetPhysicalDeviceMemoryProperties2(self, handle: Any, memory: Any) -> None:  # noqa: N802
        assert memory.s_type == 1000059006
        self.answer_GetPhysicalDeviceMemoryProperties(handle, memory.properties)
        for link in self.links(memory.next):
            for index, (budget, usage) in enumerate([(20000, 1000), (60000, 0), (200, 240), (9, 0)]):
                link.budget[index], link.usage[index] = budget * MIB, usage * MIB

    def links(self, address: int | None) -> list[Any]:
        known = (
            vulkan._IDProperties,
            vulkan._DriverProperties,
            vulkan._PCIBusInfoProperties,
            vulkan._MemoryBudgetProperties,
        )
        links: list[Any] = []
        while address:
            kind = ctypes.c_int32.from_address(address).value
            self.chained.append(kind)
            link: Any = next(one for one in known if kind == one.S_TYPE).from_address(address)
            links.append(link)
            address = link.next
        return links


def read_with(loader: FakeLoader, monkeypatch: pytest.MonkeyPatch) -> VulkanDevice:
    monkeypatch.setattr(vulkan, "_open", lambda _name: loader)
    [device] = vulkan.read()
    assert loader.instances == 0
    return device


def test_all_facts_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader(extensions=(b"VK_KHR_swapchain", b"VK_EXT_pci_bus_info", b"VK_EXT_memory_budget"))
    assert read_with(loader, monkeypatch) == VulkanDevice(
        name="NVIDIA GeForce RTX 4090",
        vendor_id=0x10DE,
        device_id=0x2684,
        type="discrete",
        api_version="1.3.230",
        driver_name="NVIDIA",
        driver_version="550.54.15",
        uuid="000102030405060708090a0b0c0d0e0f",
        driver_uuid=b"driver of nvidia".hex(),
        pci="10000:65:00.1",
        memory_total=24256 * MIB,
        # A heap that is used beyond its budget has nothing free; it does not take from the others.
        memory_free=19000 * MIB,
    )
    assert loader.requested_version == (1 << 22) | (4 << 12)


@pytest.mark.parametrize(("platform", "asked"), [("darwin", True), ("linux", False)])
def test_only_on_macos_are_drivers_asked_for_that_do_not_conform(
    monkeypatch: pytest.MonkeyPatch, platform: str, asked: bool
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    loader = FakeLoader()
    read_with(loader, monkeypatch)
    assert loader.requested_extensions == [b"VK_KHR_portability_enumeration"] * asked
    assert loader.flags == int(asked)


def test_extensions_that_are_not_listed_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    device = read_with(loader, monkeypatch)
    assert loader.chained == [1000071004, 1000196000]
    assert device.pci is None
    assert device.memory_free is None
    assert "VK_EXT_pci_bus_info" in device.unknown["pci"]
    assert "VK_EXT_memory_budget" in device.unknown["memory_free"]


def test_vulkan_1_0_device_is_asked_only_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader(extensions=(b"VK_EXT_pci_bus_info",), version=(1 << 22) | 65)
    device = read_with(loader, monkeypatch)
    assert loader.chained == []
    assert device.api_version == "1.0.65"
    assert (device.driver_name, device.driver_version) == ("NVIDIA", "550.54.15.0")
    assert device.memory_total == 24256 * MIB
    assert set(device.unknown) == {"uuid", "driver_uuid", "pci", "memory_free"}
    assert "older than 1.1" in device.unknown["uuid"]


def test_vulkan_1_1_device_tells_its_driver_through_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    version = (1 << 22) | (1 << 12)
    without = read_with(FakeLoader(version=version), monkeypatch)
    assert without.driver_version == "550.54.15.0"
    loader = FakeLoader(version=version, extensions=(b"VK_KHR_driver_properties",))
    assert read_with(loader, monkeypatch).driver_version == "550.54.15"


def test_driver_version_of_other_vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    loader.vendor_id, loader.driver_version, loader.driver_info = 0x1002, (2 << 22) | (0 << 12) | 279, b""
    assert read_with(loader, monkeypatch).driver_version == "2.0.279"


def test_empty_uuid_is_no_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    loader.device_uuid = bytes(16)
    device = read_with(loader, monkeypatch)
    assert device.uuid is None
    assert device.unknown["uuid"] == "the Vulkan driver left it empty"


def test_list_that_grows_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    loader.results["vkEnumeratePhysicalDevices"] = [0, 5, 0, 0]
    read_with(loader, monkeypatch)
    assert loader.results["vkEnumeratePhysicalDevices"] == []


def test_failing_call_is_named_and_the_instance_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FakeLoader()
    loader.results["vkEnumeratePhysicalDevices"] = [-3]
    monkeypatch.setattr(vulkan, "_open", lambda _name: loader)
    with pytest.raises(VulkanError, match="no Vulkan driver found a GPU") as caught:
        vulkan.read()
    assert (caught.value.call, caught.value.code) == ("vkEnumeratePhysicalDevices", -3)
    assert loader.instances == 0


def test_loader_older_than_1_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan, "_open", lambda _name: object())
    with pytest.raises(VulkanError) as caught:
        vulkan.read()
    assert caught.value.code == vulkan.NO_DRIVER


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8, reason="the sizes are those of 64 bits")
@pytest.mark.parametrize(
    ("structure", "size"),
    [
        ("_ApplicationInfo", 48),
        ("_InstanceCreateInfo", 64),
        ("_ExtensionProperties", 260),
        ("_DeviceProperties", 824),
        ("_DeviceProperties2", 840),
        ("_IDProperties", 64),
        ("_DriverProperties", 536),
        ("_PCIBusInfoProperties", 32),
        ("_MemoryProperties", 520),
        ("_MemoryProperties2", 536),
        ("_MemoryBudgetProperties", 272),
    ],
)
def test_structures_have_the_size_that_a_c_compiler_gives_them(structure: str, size: int) -> None:
    assert ctypes.sizeof(getattr(vulkan, structure)) == size
