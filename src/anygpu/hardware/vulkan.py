"""Facts of Vulkan devices that wgpu does not pass on: UUID, PCI address and memory.

Without these, a WebGPU adapter cannot be matched with a card when the machine has two of the same model, and nobody can
say whether data will fit. So this module asks the Vulkan loader itself, through ctypes and nothing else. It creates an
instance and destroys it; it never opens a device. Devices come in the loader's order, which is also wgpu's.

The structures follow the Vulkan specification field by field; `tests/hardware/test_vulkan.py` pins their sizes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from itertools import pairwise
from typing import Any, ClassVar, Literal

import msgspec

from anygpu.hardware.device import normal_uuid
from anygpu.hardware.sysfs import vendor_name
from anygpu.receipts.receipt import require_reasons

#: `software` is Vulkan that runs on the CPU, such as Mesa's llvmpipe.
DeviceType = Literal["discrete", "integrated", "virtual", "software", "other"]

#: The result of Vulkan when the loader is there and no driver is.
NO_DRIVER = -9

#: The names under which the loader is looked for.
LIBRARIES: tuple[str, ...] = ("libvulkan.so.1",)
_open: type[ctypes.CDLL] = ctypes.CDLL
if sys.platform == "win32":
    LIBRARIES = ("vulkan-1.dll",)
    _open = ctypes.WinDLL
elif sys.platform == "darwin":
    LIBRARIES = ("libvulkan.dylib", "libvulkan.1.dylib", "libMoltenVK.dylib")

_MEANINGS = {
    # The loader says this too when drivers are installed and none of them finds a device.
    -3: "no Vulkan driver found a GPU, or one could not be started",
    NO_DRIVER: "no Vulkan driver is installed, or none that works here",
}


class VulkanError(RuntimeError):
    """A Vulkan call failed; `code` is its VkResult."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{_MEANINGS.get(code, 'Vulkan reported an error')} ({call} returned VkResult {code})")


class VulkanDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One physical device, as its Vulkan driver describes it."""

    name: str
    #: PCI numbers for hardware; a driver without PCI has a vendor number of 0x10000 or more.
    vendor_id: int
    device_id: int
    type: DeviceType
    #: The Vulkan version that the device serves, as "1.3.230".
    api_version: str
    #: The driver's own name, or its vendor's where the driver is too old to tell.
    driver_name: str
    driver_version: str
    #: As 32 hexadecimal digits. NVIDIA's is the card's; Mesa makes one up from the PCI address, and llvmpipe's is the
    #: text of Mesa's version: equal on all machines, so it tells devices apart only within one machine.
    uuid: str | None
    driver_uuid: str | None
    pci: str | None
    #: Bytes in all heaps that are local to the device. An integrated GPU counts the host's memory that it may use.
    memory_total: int
    #: Bytes that this process may still take before the driver has to move things out.
    memory_free: int | None
    #: For each fact that is `None`: why it is not known.
    unknown: dict[str, str] = {}

    def __post_init__(self) -> None:
        require_reasons(self, ("uuid", "driver_uuid", "pci", "memory_free"))


def read() -> list[VulkanDevice]:
    """All physical devices, in the order of the loader.

    Raises `OSError` when there is no loader, and `VulkanError` when the loader or a driver fails.
    """
    library = _open_loader()
    instance = _create_instance(library)
    try:
        handles = _enumerate(library, "vkEnumeratePhysicalDevices", c_void_p, instance)
        return [_describe(library, c_void_p(handle)) for handle in handles]
    finally:
        library.vkDestroyInstance(instance, None)


# Structures. The names in Vulkan differ only in case: `s_type` is sType.


class _Chained(Structure):
    """The beginning of every structure that says what it is and which one follows."""

    S_TYPE: ClassVar[int]
    _fields_: ClassVar = [("s_type", c_int32), ("next", c_void_p)]


class _ApplicationInfo(_Chained):
    S_TYPE = 0
    _fields_: ClassVar = [
        ("application_name", c_char_p),
        ("application_version", c_uint32),
        ("engine_name", c_char_p),
        ("engine_version", c_uint32),
        ("api_version", c_uint32),
    ]


class _InstanceCreateInfo(_Chained):
    S_TYPE = 1
    _fields_: ClassVar = [
        ("flags", c_uint32),
        ("application_info", POINTER(_ApplicationInfo)),
        ("layer_count", c_uint32),
        ("layer_names", POINTER(c_char_p)),
        ("extension_count", c_uint32),
        ("extension_names", POINTER(c_char_p)),
    ]


class _ExtensionProperties(Structure):
    _fields_: ClassVar = [("name", c_char * 256), ("spec_version", c_uint32)]


class _DeviceProperties(Structure):
    _fields_: ClassVar = [
        ("api_version", c_uint32),
        ("driver_version", c_uint32),
        ("vendor_id", c_uint32),
        ("device_id", c_uint32),
        ("device_type", c_int32),
        ("device_name", c_char * 256),
        ("pipeline_cache_uuid", c_uint8 * 16),
        # Over a hundred limits that are not read here: only their room, 504 bytes aligned to 8.
        ("limits", c_uint64 * 63),
        ("sparse_properties", c_uint32 * 5),
    ]


class _DeviceProperties2(_Chained):
    S_TYPE = 1000059001
    _fields_: ClassVar = [("properties", _DeviceProperties)]


class _IDProperties(_Chained):
    S_TYPE = 1000071004
    _fields_: ClassVar = [
        ("device_uuid", c_uint8 * 16),
        ("driver_uuid", c_uint8 * 16),
        ("device_luid", c_uint8 * 8),
        ("device_node_mask", c_uint32),
        ("device_luid_valid", c_uint32),
    ]


class _DriverProperties(_Chained):
    S_TYPE = 1000196000
    _fields_: ClassVar = [
        ("driver_id", c_int32),
        ("driver_name", c_char * 256),
        ("driver_info", c_char * 256),
        ("conformance_version", c_uint8 * 4),
    ]


class _PCIBusInfoProperties(_Chained):
    S_TYPE = 1000212000
    _fields_: ClassVar = [("domain", c_uint32), ("bus", c_uint32), ("device", c_uint32), ("function", c_uint32)]


class _MemoryType(Structure):
    _fields_: ClassVar = [("property_flags", c_uint32), ("heap_index", c_uint32)]


class _MemoryHeap(Structure):
    _fields_: ClassVar = [("size", c_uint64), ("flags", c_uint32)]


class _MemoryProperties(Structure):
    _fields_: ClassVar = [
        ("type_count", c_uint32),
        ("types", _MemoryType * 32),
        ("heap_count", c_uint32),
        ("heaps", _MemoryHeap * 16),
    ]


class _MemoryProperties2(_Chained):
    S_TYPE = 1000059006
    _fields_: ClassVar = [("properties", _MemoryProperties)]


class _MemoryBudgetProperties(_Chained):
    S_TYPE = 1000237000
    _fields_: ClassVar = [("budget", c_uint64 * 16), ("usage", c_uint64 * 16)]


_DEVICE_TYPES: dict[int, DeviceType] = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}
_DEVICE_LOCAL = 1
_INCOMPLETE = 5
_VERSION_1_1 = (1 << 22) | (1 << 12)
_VERSION_1_2 = (1 << 22) | (2 << 12)


def _open_loader() -> Any:
    """Loads the Vulkan loader; raises OSError with every name that was tried."""
    errors = []
    for name in LIBRARIES:
        try:
            return _open(name)
        except OSError as error:
            errors.append(str(error))
    raise OSError(f"The Vulkan loader, the system library that finds GPU drivers, is missing: {'; '.join(errors)}")


def _create_instance(library: Any) -> c_void_p:
    """A Vulkan instance of the highest version that is asked for. Raises `VulkanError`."""
    offered = c_uint32()
    # The call itself came with Vulkan 1.1, and a loader without it serves nothing that is asked below.
    if not hasattr(library, "vkEnumerateInstanceVersion"):
        raise VulkanError("vkEnumerateInstanceVersion", NO_DRIVER)
    _check("vkEnumerateInstanceVersion", library.vkEnumerateInstanceVersion(byref(offered)))
    application = _new(_ApplicationInfo)
    application.application_name = b"anygpu"
    application.api_version = max(_VERSION_1_1, offered.value)
    info = _new(_InstanceCreateInfo)
    info.application_info = ctypes.pointer(application)
    # MoltenVK is not quite conformant, so the loader hides it from those who do not ask for such drivers.
    portability = b"VK_KHR_portability_enumeration"
    if sys.platform == "darwin" and portability in _extensions(library, "vkEnumerateInstanceExtensionProperties", None):
        info.flags = 1
        info.extension_count = 1
        info.extension_names = (c_char_p * 1)(portability)
    instance = c_void_p()
    _check("vkCreateInstance", library.vkCreateInstance(byref(info), None, byref(instance)))
    return instance


def _describe(library: Any, handle: c_void_p) -> VulkanDevice:
    """The facts of one physical device: its ids, driver, PCI address and memory, as far as its version tells."""
    all_properties = _new(_DeviceProperties2)
    properties = all_properties.properties
    library.vkGetPhysicalDeviceProperties(handle, byref(properties))
    version = properties.api_version
    identity = driver = pci = budget = None
    memory = _new(_MemoryProperties2)
    if version >= _VERSION_1_1:
        extensions = _extensions(library, "vkEnumerateDeviceExtensionProperties", handle, None)
        identity = _new(_IDProperties)
        if version >= _VERSION_1_2 or b"VK_KHR_driver_properties" in extensions:
            driver = _new(_DriverProperties)
        if b"VK_EXT_pci_bus_info" in extensions:
            pci = _new(_PCIBusInfoProperties)
        if b"VK_EXT_memory_budget" in extensions:
            budget = _new(_MemoryBudgetProperties)
        _chain(all_properties, identity, driver, pci)
        library.vkGetPhysicalDeviceProperties2(handle, byref(all_properties))
        _chain(memory, budget)
        library.vkGetPhysicalDeviceMemoryProperties2(handle, byref(memory))
    else:
        library.vkGetPhysicalDeviceMemoryProperties(handle, byref(memory.properties))

    kind = _DEVICE_TYPES.get(properties.device_type, "other")
    uuid = normal_uuid(bytes(identity.device_uuid)) if identity else None
    driver_uuid = normal_uuid(bytes(identity.driver_uuid)) if identity else None
    no_uuid = "the Vulkan driver left it empty" if identity else "the Vulkan driver is older than 1.1, which tells it"
    unknown = {name: no_uuid for name, value in (("uuid", uuid), ("driver_uuid", driver_uuid)) if value is None}
    if pci is None:
        unknown["pci"] = "the Vulkan driver does not tell PCI addresses (no VK_EXT_pci_bus_info)"
        if kind == "software":
            unknown["pci"] = "it is a program on the processor, which is on no PCI bus"
    if budget is None:
        unknown["memory_free"] = "the Vulkan driver does not tell free memory (no VK_EXT_memory_budget)"
    heaps = memory.properties.heaps[: memory.properties.heap_count]
    local = [index for index, heap in enumerate(heaps) if heap.flags & _DEVICE_LOCAL]
    return VulkanDevice(
        name=_text(properties.device_name),
        vendor_id=properties.vendor_id,
        device_id=properties.device_id,
        type=kind,
        api_version=_dotted(version),
        driver_name=(_text(driver.driver_name) if driver else "") or vendor_name(properties.vendor_id),
        driver_version=(_text(driver.driver_info) if driver else "") or _driver_version(properties),
        uuid=uuid,
        driver_uuid=driver_uuid,
        pci=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}" if pci else None,
        memory_total=sum(heaps[index].size for index in local),
        memory_free=sum(max(0, budget.budget[index] - budget.usage[index]) for index in local) if budget else None,
        unknown=unknown,
    )


def _new(kind: type[_Chained]) -> Any:
    return kind(s_type=kind.S_TYPE)


def _chain(*links: Any) -> None:
    for link, following in pairwise(link for link in links if link is not None):
        link.next = ctypes.addressof(following)


def _check(call: str, result: int) -> None:
    if result < 0:
        raise VulkanError(call, result)


def _enumerate(library: Any, call: str, item: type[Any], *leading: Any) -> list[Any]:
    """Calls a function of Vulkan that lists things, again if there were more by the second call.

    Raises `VulkanError`.
    """
    function: Callable[..., int] = getattr(library, call)
    while True:
        count = c_uint32()
        _check(call, function(*leading, byref(count), None))
        items = (item * count.value)()
        result = function(*leading, byref(count), items)
        # A device may be plugged in between the two calls; then the list is asked for again.
        if result != _INCOMPLETE:
            _check(call, result)
            return list(items[: count.value])


def _extensions(library: Any, call: str, *leading: Any) -> set[bytes]:
    return {extension.name for extension in _enumerate(library, call, _ExtensionProperties, *leading)}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace").strip()


def _dotted(version: int) -> str:
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def _driver_version(properties: _DeviceProperties) -> str:
    """Vendors pack their version as they like; these are the two that differ from Vulkan's own way."""
    raw: int = properties.driver_version
    if properties.vendor_id == 0x10DE:
        return f"{raw >> 22}.{raw >> 14 & 0xFF}.{raw >> 6 & 0xFF}.{raw & 0x3F}"
    if properties.vendor_id == 0x8086 and sys.platform == "win32":
        return f"{raw >> 14}.{raw & 0x3FFF}"
    return _dotted(raw)
