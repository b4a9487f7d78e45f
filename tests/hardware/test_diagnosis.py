from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.hardware.device import Card, Cause, Device, Unavailable
from anygpu.hardware.diagnosis import SCHEMA, Diagnosis, diagnose
from anygpu.hardware.evidence import Container, DeviceNode, Evidence, Manifest
from anygpu.hardware.inventory import Finding, Severity, take_inventory
from anygpu.hardware.sysfs import PciDevice, vendor_name
from anygpu.testing import fake_device

CPU = fake_device("numpy", kind="cpu", state="verified")
LLVMPIPE = fake_device("webgpu:0", kind="cpu", form="software", name="llvmpipe", state="verified", vendor="Mesa")
RESTART = "Restart the machine afterwards."
NON_FREE = "   (from Debian's section non-free)"
RPM_FUSION = "   (from rpmfusion.org, which must be enabled)"
NVIDIA_ON_DEBIAN = f"sudo apt install nvidia-driver{NON_FREE}"
ON_THE_HOST = "On the host, update NVIDIA's driver and the NVIDIA Container Toolkit; the container uses those."
FROM_THE_MAKER = "Install the newest driver from your graphics card's maker; it brings Vulkan and OpenCL along."
TORCH = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"
GPUS_ALL = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics …"

DISTRIBUTIONS = {
    "debian": ("debian",),
    "ubuntu": ("ubuntu", "debian"),
    "mint": ("linuxmint", "ubuntu", "debian"),
    "fedora": ("fedora",),
    "rocky": ("rocky", "rhel", "centos", "fedora"),
    "arch": ("arch",),
    "tumbleweed": ("opensuse-tumbleweed", "opensuse", "suse"),
    "alpine": ("alpine",),
}
DRIVERS = {"NVIDIA": "nvidia", "AMD": "amdgpu", "Intel": "i915"}


def evidence(**facts: Any) -> Evidence:
    """A plain Debian machine of the user ada."""
    usual = {
        "system": "Linux",
        "release": "6.1.0-18-amd64",
        "machine": "x86_64",
        "python": "3.12.1",
        "distributions": ("debian",),
        "user": "ada",
    }
    return Evidence(**(usual | facts))


def card(card_id: str = "nvidia:0", **facts: Any) -> Card:
    vendor = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}[card_id.partition(":")[0]]
    usual: dict[str, Any] = {"vendor": vendor, "name": f"{vendor} Card", "source": "sysfs"}
    if vendor == "NVIDIA":
        usual |= {"name": "NVIDIA GeForce RTX 4090", "source": "nvml", "driver": "550.54.14", "driver_api": "12.4"}
        usual["compute_capability"] = "8.9"
    known = usual | facts
    maybe = ("memory_total", "memory_free", "driver", "driver_api", "compute_capability", "load", "uuid", "pci")
    unknown = {name: "it is a fake" for name in maybe if known.get(name) is None}
    return Card(id=card_id, unknown=unknown, **known)


def on_the_bus(vendor: str, address: str = "0000:01:00.0", **facts: Any) -> PciDevice:
    number = {"NVIDIA": 0x10DE, "AMD": 0x1002, "Intel": 0x8086}[vendor]
    usual = {"vendor_id": number, "device_id": 0x2684, "name": f"{vendor} on the bus", "kernel_driver": DRIVERS[vendor]}
    known: dict[str, Any] = usual | facts
    model = f"{known['vendor_id']:04x}:{known['device_id']:04x}"
    return PciDevice(pci=address, model=model, vendor=vendor_name(known["vendor_id"]), **known)


def gpu(device_id: str, **facts: Any) -> Device:
    return fake_device(device_id, **({"state": "verified", "name": "NVIDIA GeForce RTX 4090"} | facts))


def unavailable(item_id: str, cause: Cause, **facts: Any) -> Unavailable:
    usual: dict[str, Any] = {"state": "absent", "reason": f"{item_id} is not there."}
    return Unavailable(id=item_id, engine=item_id.partition(":")[0], cause=cause, **(usual | facts))


CPU_ONLY_TORCH = unavailable("torch:cuda", "cpu_only_build", detail="torch 2.13.0+cpu")
CPU_ONLY_JAX = unavailable("jax:cuda", "cpu_only_build", detail="jax 0.10.2")
NO_VULKAN_LOADER = unavailable("webgpu", "no_loader")
NO_VULKAN_DRIVER = unavailable("webgpu", "no_driver")
NO_VULKAN_DEVICE = unavailable("webgpu", "no_device")
NO_OPENCL_DRIVER = unavailable("opencl", "no_driver")


def examine(*items: Device | Unavailable | Card, **facts: Any) -> Diagnosis:
    return diagnose(take_inventory([CPU, *items]), evidence(**facts))


def the(code: str, diagnosis: Diagnosis) -> Finding:
    (finding,) = (each for each in diagnosis.findings if each.code == code)
    return finding


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


class TestTorch:
    def test_cpu_only_beside_an_nvidia_card(self) -> None:
        diagnosis = examine(CPU_ONLY_TORCH, card(driver_api="13.0"))
        assert the("torch_without_gpu", diagnosis) == Finding(
            code="torch_without_gpu",
            severity="problem",
            title="PyTorch cannot use your NVIDIA card: the installed build has no GPU support.",
            cause="torch 2.13.0+cpu is the CPU-only build. The card is fine; this copy of PyTorch cannot talk to it.",
            fix=("pip uninstall --yes torch && pip install torch",),
            about="torch:cuda",
        )
        assert diagnosis.verdict == "There is a GPU (NVIDIA GeForce RTX 4090), but nothing here can use it yet."

    @pytest.mark.parametrize(
        ("system", "driver_api", "capability", "fix"),
        [
            ("Linux", None, None, "pip uninstall --yes torch && pip install torch"),
            ("Linux", "13.0", "12.0", "pip uninstall --yes torch && pip install torch"),
            # PyPI has builds for CUDA 13 only, which need a driver of its time and a card from 2018 or later.
            ("Linux", "12.4", "8.9", TORCH + "cu126"),
            ("Linux", "12.8", "12.0", TORCH + "cu128"),
            ("Linux", "13.0", "6.1", TORCH + "cu126"),
            ("Windows", None, None, TORCH + "cu130"),
            ("Windows", "13.0", "8.9", TORCH + "cu130"),
            ("Windows", "12.4", "8.9", TORCH + "cu126"),
        ],
    )
    def test_the_build_fits_driver_and_card(
        self, system: str, driver_api: str | None, capability: str | None, fix: str
    ) -> None:
        found = card(driver_api=driver_api, compute_capability=capability)
        diagnosis = examine(CPU_ONLY_TORCH, found, system=system)
        assert the("torch_without_gpu", diagnosis).fix == (fix,)

    def test_a_driver_that_no_build_works_with_comes_first(self) -> None:
        finding = the("torch_without_gpu", examine(CPU_ONLY_TORCH, card(driver="440.33.01", driver_api="10.2")))
        assert finding.fix == (NVIDIA_ON_DEBIAN, RESTART, TORCH + "cu126")
        assert finding.cause.endswith(
            " But its driver serves CUDA up to 10.2 only, which is too old for any build of today."
        )

    @pytest.mark.parametrize(
        ("system", "fix"),
        [
            ("Linux", TORCH + "rocm7.2"),
            ("Windows", "Install AMD's own build for Windows: https://rocm.docs.amd.com/projects/radeon-ryzen"),
        ],
    )
    def test_cpu_only_beside_an_amd_card(self, system: str, fix: str) -> None:
        finding = the("torch_without_gpu", examine(CPU_ONLY_TORCH, card("amd:0"), system=system))
        assert finding.severity == "problem"
        assert finding.title == "PyTorch cannot use your AMD card: the installed build has no GPU support."
        assert finding.fix == (fix,)

    def test_cpu_only_beside_a_card_that_only_the_bus_knows(self) -> None:
        diagnosis = examine(CPU_ONLY_TORCH, pci=(on_the_bus("NVIDIA", kernel_driver=None),))
        assert the("torch_without_gpu", diagnosis).severity == "problem"

    @pytest.mark.parametrize("facts", [{}, {"pci": (on_the_bus("Intel"),)}])
    def test_cpu_only_is_right_where_it_could_not_be_otherwise(self, facts: dict[str, Any]) -> None:
        diagnosis = examine(CPU_ONLY_TORCH, CPU_ONLY_JAX, **facts)
        assert not {"torch_without_gpu", "jax_without_gpu", "cpu_only_build"} & set(codes(diagnosis))


class TestJax:
    @pytest.mark.parametrize(
        ("driver_api", "capability", "extra"),
        [("12.4", "8.9", "cuda12"), ("13.0", "8.9", "cuda13"), ("13.0", "7.0", "cuda12"), (None, None, "cuda12")],
    )
    def test_cpu_only_beside_an_nvidia_card(self, driver_api: str | None, capability: str | None, extra: str) -> None:
        found = card(driver_api=driver_api, compute_capability=capability)
        assert the("jax_without_gpu", examine(CPU_ONLY_JAX, found)) == Finding(
            code="jax_without_gpu",
            severity="problem",
            title="JAX cannot use your NVIDIA card: it is installed without its CUDA plug-in.",
            cause="jax 0.10.2 came without GPU support. The card is fine; JAX needs one more package to use it.",
            fix=(f"pip install 'jax[{extra}]'",),
            about="jax:cuda",
        )

    def test_an_old_driver_comes_first(self) -> None:
        finding = the("jax_without_gpu", examine(CPU_ONLY_JAX, card(driver_api="11.8")))
        assert finding.fix == (NVIDIA_ON_DEBIAN, RESTART, "pip install 'jax[cuda12]'")

    def test_there_is_no_such_plug_in_for_windows(self) -> None:
        finding = the("jax_without_gpu", examine(CPU_ONLY_JAX, card(driver_api="13.0"), system="Windows"))
        assert finding.fix == ("Use JAX inside WSL (Linux in Windows): it has no GPU support for Windows itself.",)


class TestDriverTooOld:
    TOO_OLD = unavailable(
        "torch:cuda",
        "no_device",
        reason="torch 2.13.0 is built for CUDA 13.0, but finds no usable card.",
        facts={"built_for_cuda": "13.0"},
    )

    def test_torch(self) -> None:
        diagnosis = examine(self.TOO_OLD, card())
        assert the("driver_too_old", diagnosis) == Finding(
            code="driver_too_old",
            severity="problem",
            title="The NVIDIA driver is too old for the installed torch.",
            cause="Driver 550.54.14 serves CUDA up to 12.4; torch is built for CUDA 13.0.",
            fix=(NVIDIA_ON_DEBIAN, RESTART, f"{TORCH}cu126   (instead, if the driver must stay)"),
            about="torch:cuda",
        )
        assert "engine_finds_no_card" not in codes(diagnosis)

    def test_the_plug_in_of_jax(self) -> None:
        item = unavailable("jax:cuda", "no_device", facts={"built_for_cuda": "13"})
        finding = the("driver_too_old", examine(item, card()))
        assert finding.title == "The NVIDIA driver is too old for the installed jax."
        assert finding.cause == "Driver 550.54.14 serves CUDA up to 12.4; jax is built for CUDA 13."
        assert finding.fix[-1] == (
            "pip uninstall --yes jax-cuda13-plugin jax-cuda13-pjrt && pip install 'jax[cuda12]'"
            "   (instead, if the driver must stay)"
        )

    def test_a_driver_that_no_build_works_with(self) -> None:
        finding = the("driver_too_old", examine(self.TOO_OLD, card(driver="440.33.01", driver_api="10.2")))
        assert finding.fix == (NVIDIA_ON_DEBIAN, RESTART)

    def test_in_a_container_the_driver_is_the_host_s(self) -> None:
        finding = the("driver_too_old", examine(self.TOO_OLD, card(), container="docker"))
        assert finding.fix == (ON_THE_HOST, f"{TORCH}cu126   (instead, if the driver must stay)")

    def test_in_wsl_the_driver_is_that_of_windows(self) -> None:
        finding = the("driver_too_old", examine(self.TOO_OLD, card(), wsl=True))
        assert finding.fix[0] == "Install the newest NVIDIA driver in Windows; Linux in WSL uses that one."

    def test_two_cards_have_one_driver(self) -> None:
        assert codes(examine(self.TOO_OLD, card(), card("nvidia:1"))).count("driver_too_old") == 1

    @pytest.mark.parametrize("driver_api", ["13.0", "13.2", None])
    def test_a_driver_that_is_new_enough_or_unknown(self, driver_api: str | None) -> None:
        assert "driver_too_old" not in codes(examine(self.TOO_OLD, card(driver_api=driver_api)))

    def test_an_older_minor_version_serves(self) -> None:
        item = unavailable("torch:cuda", "no_device", facts={"built_for_cuda": "12.8"})
        assert "driver_too_old" not in codes(examine(item, card()))


class TestEngineFindsNoCard:
    """Card, driver and build fit, and CUDA still finds nothing: what the library says must not be lost."""

    ITEM = unavailable(
        "torch:cuda",
        "no_device",
        reason="torch 2.9.0 is built for CUDA 12.8, but finds no usable card.",
        detail="CUDA error: system not yet initialized",
        facts={"built_for_cuda": "12.8"},
    )

    def test_in_the_words_of_the_library(self) -> None:
        assert the("engine_finds_no_card", examine(self.ITEM, card())) == Finding(
            code="engine_finds_no_card",
            severity="problem",
            title="torch 2.9.0 is built for CUDA 12.8, but finds no usable card.",
            cause="CUDA error: system not yet initialized",
            fix=("Restart the machine; in a container, restart the container first.",),
            about="torch:cuda",
        )

    @pytest.mark.parametrize(
        "facts",
        [
            {"variables": {"CUDA_VISIBLE_DEVICES": "-1"}},
            {"nodes": (DeviceNode(path="/dev/nvidia0", openable=False, group="video"),)},
        ],
    )
    def test_not_where_the_cause_is_known(self, facts: dict[str, Any]) -> None:
        assert "engine_finds_no_card" not in codes(examine(self.ITEM, card(), **facts))

    def test_not_without_a_card_of_that_vendor(self) -> None:
        assert "engine_finds_no_card" not in codes(examine(self.ITEM, card("amd:0")))
        assert codes(examine(unavailable("torch:rocm", "no_device"), card("amd:0"))) == ["engine_finds_no_card"]


class TestNoVulkanDriver:
    @pytest.mark.parametrize(
        ("vendor", "system", "fix"),
        [
            ("Intel", "debian", "sudo apt install mesa-vulkan-drivers"),
            ("Intel", "ubuntu", "sudo apt install mesa-vulkan-drivers"),
            ("Intel", "fedora", "sudo dnf install mesa-vulkan-drivers"),
            ("Intel", "arch", "sudo pacman -S vulkan-intel"),
            ("Intel", "tumbleweed", "sudo zypper install libvulkan_intel"),
            ("AMD", "debian", "sudo apt install mesa-vulkan-drivers"),
            ("AMD", "ubuntu", "sudo apt install mesa-vulkan-drivers"),
            ("AMD", "mint", "sudo apt install mesa-vulkan-drivers"),
            ("AMD", "fedora", "sudo dnf install mesa-vulkan-drivers"),
            ("AMD", "arch", "sudo pacman -S vulkan-radeon"),
            ("AMD", "alpine", "Install the package that Debian calls mesa-vulkan-drivers"),
            ("NVIDIA", "debian", f"sudo apt install nvidia-vulkan-icd{NON_FREE}"),
            ("NVIDIA", "ubuntu", "sudo apt install ubuntu-drivers-common && sudo ubuntu-drivers install"),
            ("NVIDIA", "fedora", f"sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda{RPM_FUSION}"),
            ("NVIDIA", "rocky", f"sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda{RPM_FUSION}"),
            ("NVIDIA", "arch", "sudo pacman -S nvidia-utils"),
            ("NVIDIA", "alpine", "Install the package that Debian calls nvidia-vulkan-icd"),
        ],
    )
    def test_the_fix_is_the_package_of_that_system(self, vendor: str, system: str, fix: str) -> None:
        diagnosis = examine(NO_VULKAN_DRIVER, card(f"{vendor.lower()}:0"), distributions=DISTRIBUTIONS[system])
        assert the("no_vulkan_driver", diagnosis) == Finding(
            code="no_vulkan_driver",
            severity="problem",
            title="WebGPU finds no GPU: no working Vulkan driver is installed.",
            cause="WebGPU reaches GPUs through Vulkan. Its loader is there, but no driver is registered with it.",
            fix=(fix,),
            about="webgpu",
        )

    def test_drivers_that_do_not_work_are_named(self) -> None:
        drivers = (Manifest(path="/etc/vulkan/icd.d/a.json", changed=1.0), Manifest(path="/opt/b.json", changed=2.0))
        finding = the("no_vulkan_driver", examine(NO_VULKAN_DEVICE, card("amd:0"), vulkan_drivers=drivers))
        assert finding.cause == (
            "WebGPU reaches GPUs through Vulkan. Its loader is there, but none of its drivers works here "
            "(/etc/vulkan/icd.d/a.json, /opt/b.json)."
        )

    def test_two_vendors_need_two_drivers(self) -> None:
        items = (NO_VULKAN_DRIVER, card("intel:0"), card("nvidia:0"), card("nvidia:1"))
        assert the("no_vulkan_driver", examine(*items)).fix == (
            "sudo apt install mesa-vulkan-drivers",
            f"sudo apt install nvidia-vulkan-icd{NON_FREE}",
        )

    def test_root_needs_no_sudo(self) -> None:
        facts = {"user": "root", "distributions": DISTRIBUTIONS["ubuntu"]}
        assert the("no_vulkan_driver", examine(NO_VULKAN_DRIVER, card(), **facts)).fix == (
            "apt install ubuntu-drivers-common && ubuntu-drivers install",
        )

    def test_without_a_gpu_it_is_good_to_know(self) -> None:
        finding = the("no_vulkan_driver", examine(NO_VULKAN_DRIVER))
        assert (finding.severity, finding.fix) == ("note", ("sudo apt install mesa-vulkan-drivers",))

    def test_windows(self) -> None:
        finding = the("no_vulkan_driver", examine(NO_VULKAN_DEVICE, system="Windows", distributions=()))
        assert (finding.severity, finding.fix) == ("problem", (FROM_THE_MAKER,))

    def test_macos_has_no_vulkan_to_install(self) -> None:
        item = unavailable("webgpu", "no_device", reason="Metal offers no GPU on this Mac.", fix="Use a newer Mac.")
        diagnosis = examine(item, system="Darwin", distributions=())
        assert the("no_device", diagnosis).title == "Metal offers no GPU on this Mac."
        assert the("no_device", diagnosis).fix == ("Use a newer Mac.",)
        assert "no_vulkan_driver" not in codes(diagnosis)

    def test_drivers_without_a_driver_of_the_kernel_are_not_to_blame(self) -> None:
        broken = unavailable("nvidia", "driver_mismatch", state="present")
        assert codes(examine(NO_VULKAN_DEVICE, broken, pci=(on_the_bus("NVIDIA"),))) == ["driver_mismatch"]


class TestNoVulkanLoader:
    @pytest.mark.parametrize(
        ("system", "fix"),
        [
            ("debian", ("sudo apt install libvulkan1", "sudo apt install mesa-vulkan-drivers")),
            ("fedora", ("sudo dnf install vulkan-loader", "sudo dnf install mesa-vulkan-drivers")),
            ("arch", ("sudo pacman -S vulkan-icd-loader", "sudo pacman -S vulkan-radeon")),
        ],
    )
    def test_loader_then_driver(self, system: str, fix: tuple[str, ...]) -> None:
        diagnosis = examine(NO_VULKAN_LOADER, card("amd:0"), distributions=DISTRIBUTIONS[system])
        assert the("no_vulkan_loader", diagnosis) == Finding(
            code="no_vulkan_loader",
            severity="problem",
            title="WebGPU cannot look for a GPU: the Vulkan loader is not installed.",
            cause="WebGPU reaches GPUs through Vulkan. The small system library that finds Vulkan drivers is missing.",
            fix=fix,
            about="webgpu",
        )

    def test_one_sentence_is_not_said_twice(self) -> None:
        assert the("no_vulkan_loader", examine(NO_VULKAN_LOADER, system="Windows")).fix == (FROM_THE_MAKER,)


class TestOverride:
    @pytest.mark.parametrize("variable", ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"])
    def test_no_driver_because_of_a_variable(self, variable: str) -> None:
        diagnosis = examine(NO_VULKAN_DRIVER, card(), variables={variable: "/nowhere.json"})
        assert the("vulkan_driver_overridden", diagnosis) == Finding(
            code="vulkan_driver_overridden",
            severity="problem",
            title=f"WebGPU finds no GPU: the variable {variable} leaves Vulkan without a working driver.",
            cause=f"{variable} is set to /nowhere.json, so Vulkan looks at nothing else.",
            fix=(f"unset {variable}",),
            about="webgpu",
        )
        assert "no_vulkan_driver" not in codes(diagnosis)

    def test_only_software_because_of_a_variable(self) -> None:
        diagnosis = examine(LLVMPIPE, card("amd:0"), variables={"VK_ICD_FILENAMES": "/usr/share/lvp.json"})
        finding = the("vulkan_driver_overridden", diagnosis)
        assert finding.title == "WebGPU finds no GPU: the variable VK_ICD_FILENAMES hides the driver of your AMD Card."
        assert finding.fix == ("unset VK_ICD_FILENAMES",)
        assert "only_software_adapter" not in codes(diagnosis)

    def test_the_newer_variable_wins(self) -> None:
        variables = {"VK_ICD_FILENAMES": "/old.json", "VK_DRIVER_FILES": "/new.json"}
        finding = the("vulkan_driver_overridden", examine(NO_VULKAN_DRIVER, card(), variables=variables))
        assert finding.fix == ("unset VK_DRIVER_FILES",)


class TestOnlySoftware:
    def test_beside_a_real_card(self) -> None:
        assert the(
            "only_software_adapter", examine(LLVMPIPE, card("amd:0", name="Navi 21 [Radeon RX 6800]"))
        ) == Finding(
            code="only_software_adapter",
            severity="problem",
            title="WebGPU only finds a software adapter, not your Navi 21 [Radeon RX 6800].",
            cause="llvmpipe imitates a GPU on the CPU: right answers, no speed. The Vulkan driver of the real card is "
            "missing.",
            fix=("sudo apt install mesa-vulkan-drivers",),
            about="webgpu:0",
        )

    def test_two_adapters_beside_two_cards(self) -> None:
        other = fake_device("webgpu:1", kind="cpu", form="software", name="SwiftShader", state="verified")
        finding = the("only_software_adapter", examine(LLVMPIPE, other, card(), card("nvidia:1", name="Tesla T4")))
        assert finding.title == "WebGPU only finds a software adapter, not your NVIDIA GeForce RTX 4090 and Tesla T4."
        assert finding.cause.startswith("llvmpipe and SwiftShader imitate a GPU on the CPU:")

    def test_software_is_all_there_can_be_without_a_card(self) -> None:
        assert codes(examine(LLVMPIPE)) == ["no_gpu"]

    def test_a_real_adapter_beside_it(self) -> None:
        assert codes(examine(LLVMPIPE, gpu("webgpu:1"), card())) == []

    def test_the_driver_of_the_kernel_is_the_cause(self) -> None:
        broken = unavailable("nvidia", "driver_mismatch", state="present")
        assert codes(examine(LLVMPIPE, broken, pci=(on_the_bus("NVIDIA"),))) == ["driver_mismatch"]


class TestPermission:
    @staticmethod
    def node(path: str, group: str | None = "render", *, openable: bool = False) -> DeviceNode:
        return DeviceNode(path=path, openable=openable, group=group)

    def test_a_node_that_may_not_be_opened(self) -> None:
        diagnosis = examine(LLVMPIPE, card("intel:0"), nodes=(self.node("/dev/dri/renderD128"),))
        assert the("no_permission", diagnosis) == Finding(
            code="no_permission",
            severity="problem",
            title="You may not open /dev/dri/renderD128, so its GPU cannot be used.",
            cause="The node belongs to the group render, and the user ada is not a member of it.",
            fix=("sudo usermod -aG render ada   (then log out and in again)",),
            about="/dev/dri/renderD128",
        )
        assert codes(diagnosis) == ["no_permission"], "the software adapter is a consequence"

    def test_eight_nodes_are_one_finding(self) -> None:
        nodes = tuple(self.node(f"/dev/nvidia{index}", "video") for index in range(3))
        finding = the("no_permission", examine(card(), nodes=nodes))
        assert (
            finding.title
            == "You may not open /dev/nvidia0, /dev/nvidia1 and /dev/nvidia2, so their GPUs cannot be used."
        )
        assert finding.cause == "The nodes belong to the group video, and the user ada is not a member of it."
        assert finding.fix == ("sudo usermod -aG video ada   (then log out and in again)",)

    def test_a_finding_for_each_group(self) -> None:
        nodes = (self.node("/dev/dri/renderD128"), self.node("/dev/nvidia0", "video"))
        assert [each.about for each in examine(card(), nodes=nodes).findings] == ["/dev/dri/renderD128", "/dev/nvidia0"]

    @pytest.mark.parametrize("group", ["root", None])
    def test_nobody_is_told_to_join_root(self, group: str | None) -> None:
        assert the("no_permission", examine(card(), nodes=(self.node("/dev/kfd", group),))).fix == (
            "sudo chgrp render /dev/kfd && sudo chmod 660 /dev/kfd",
            "sudo usermod -aG render ada   (then log out and in again)",
        )

    def test_in_a_container_the_number_of_the_group_counts(self) -> None:
        nodes = (self.node("/dev/dri/renderD128", None), self.node("/dev/dri/renderD129", None))
        finding = the("no_permission", examine(card("amd:0"), nodes=nodes, container="podman"))
        assert finding.fix == ("podman run --group-add $(stat -c %g /dev/dri/renderD128) …   (typed on the host)",)

    def test_a_node_is_a_sign_of_a_gpu_where_there_is_no_bus(self) -> None:
        diagnosis = examine(nodes=(self.node("/dev/dri/renderD128"),))
        assert the("no_permission", diagnosis).severity == "problem"
        assert diagnosis.verdict == "There seems to be a GPU, but nothing here can use it yet."

    def test_open_nodes_say_nothing(self) -> None:
        nodes = (self.node("/dev/dri/renderD128", openable=True),)
        assert codes(examine(gpu("webgpu:0"), card(), nodes=nodes)) == []


class TestContainer:
    def test_without_graphics(self) -> None:
        diagnosis = examine(LLVMPIPE, card(), container="docker")
        assert the("container_without_graphics", diagnosis) == Finding(
            code="container_without_graphics",
            severity="problem",
            title="This container may compute on NVIDIA GeForce RTX 4090, but WebGPU cannot see it.",
            cause="The container was started without the driver's graphics capability, and Vulkan is a part of that. "
            "NVIDIA_DRIVER_CAPABILITIES is not set.",
            fix=(GPUS_ALL,),
            about="webgpu",
        )
        assert codes(diagnosis) == ["container_without_graphics"], "the software adapter is a consequence"

    def test_two_cards_from_nvidia_smi(self) -> None:
        found = (card(source="nvidia-smi"), card("nvidia:1", name="Tesla T4", source="nvidia-smi"))
        finding = the("container_without_graphics", examine(NO_VULKAN_DRIVER, *found, container="docker"))
        assert finding.title == (
            "This container may compute on NVIDIA GeForce RTX 4090 and Tesla T4, but WebGPU cannot see them."
        )

    @pytest.mark.parametrize("item", [NO_VULKAN_DRIVER, NO_VULKAN_DEVICE])
    def test_nobody_is_told_to_install_a_driver_in_it(self, item: Unavailable) -> None:
        assert codes(examine(item, card(), container="docker")) == ["container_without_graphics"]

    def test_a_loader_is_needed_as_well(self) -> None:
        diagnosis = examine(NO_VULKAN_LOADER, card(), container="docker", user="root")
        assert codes(diagnosis) == ["no_vulkan_loader", "container_without_graphics"]
        assert the("no_vulkan_loader", diagnosis).fix == ("apt install libvulkan1",)

    @pytest.mark.parametrize(
        ("container", "fix"),
        [
            ("docker", GPUS_ALL),
            ("podman", GPUS_ALL.replace("docker", "podman")),
            (
                "kubernetes",
                'In the pod: resources.limits "nvidia.com/gpu: 1", env '
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics",
            ),
        ],
    )
    def test_how_to_start_it(self, container: Container, fix: str) -> None:
        variables = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        finding = the("container_without_graphics", examine(LLVMPIPE, card(), container=container, variables=variables))
        assert finding.fix == (fix,)
        assert finding.cause.endswith("NVIDIA_DRIVER_CAPABILITIES is compute,utility.")

    @pytest.mark.parametrize("given", ["all", "compute,graphics"])
    def test_not_with_graphics(self, given: str) -> None:
        diagnosis = examine(LLVMPIPE, card(), container="docker", variables={"NVIDIA_DRIVER_CAPABILITIES": given})
        assert codes(diagnosis) == ["only_software_adapter"]
        assert the("only_software_adapter", diagnosis).fix == (ON_THE_HOST,)

    def test_not_when_webgpu_never_got_to_look(self) -> None:
        hung = unavailable("webgpu", "hung", state="hung", reason="webgpu did not respond within 6 s.")
        diagnosis = examine(hung, card(), container="docker")
        assert codes(diagnosis) == ["hung"]
        assert the("hung", diagnosis).title == "webgpu did not respond within 6 s."

    @pytest.mark.parametrize(
        ("vendor", "container", "fix"),
        [
            ("NVIDIA", "docker", GPUS_ALL),
            ("AMD", "docker", "docker run --device /dev/dri --device /dev/kfd …"),
            ("Intel", "podman", "podman run --device /dev/dri …"),
            ("AMD", "kubernetes", 'In the pod: resources.limits "amd.com/gpu: 1"'),
            ("Intel", "kubernetes", 'In the pod: resources.limits "gpu.intel.com/i915: 1"'),
        ],
    )
    def test_that_was_not_given_the_card(self, vendor: str, container: Container, fix: str) -> None:
        """The host's bus can be seen from inside, its device nodes cannot."""
        diagnosis = examine(LLVMPIPE, pci=(on_the_bus(vendor),), container=container)
        finding = the("container_without_card", diagnosis)
        assert finding.severity == "problem"
        assert finding.title == f"This container was not given {vendor} on the bus."
        assert finding.fix == (fix,)
        assert codes(diagnosis) == ["container_without_card"]

    def test_that_was_given_the_card(self) -> None:
        nodes = (DeviceNode(path="/dev/dri/renderD128", openable=True, group="render"),)
        assert codes(examine(LLVMPIPE, card("amd:0"), container="docker", nodes=nodes)) == ["only_software_adapter"]


class TestOpenCL:
    @pytest.mark.parametrize(
        ("vendor", "system", "fix"),
        [
            ("Intel", "debian", "sudo apt install intel-opencl-icd"),
            ("AMD", "debian", "sudo apt install mesa-opencl-icd"),
            ("NVIDIA", "debian", f"sudo apt install nvidia-opencl-icd{NON_FREE}"),
            ("NVIDIA", "ubuntu", "sudo apt install ubuntu-drivers-common && sudo ubuntu-drivers install"),
            ("NVIDIA", "fedora", f"sudo dnf install xorg-x11-drv-nvidia-cuda{RPM_FUSION}"),
            ("AMD", "fedora", "sudo dnf install mesa-libOpenCL"),
            ("Intel", "arch", "sudo pacman -S intel-compute-runtime"),
            ("NVIDIA", "arch", "sudo pacman -S opencl-nvidia"),
        ],
    )
    def test_a_loader_without_a_platform(self, vendor: str, system: str, fix: str) -> None:
        diagnosis = examine(NO_OPENCL_DRIVER, card(f"{vendor.lower()}:0"), distributions=DISTRIBUTIONS[system])
        assert the("no_opencl_driver", diagnosis) == Finding(
            code="no_opencl_driver",
            severity="problem",
            title="OpenCL finds nothing: no OpenCL driver is installed.",
            cause="The part that looks for OpenCL drivers works, and no driver is registered with it (on Linux they "
            "are listed in /etc/OpenCL/vendors).",
            fix=(fix,),
            about="opencl",
        )

    def test_without_a_gpu(self) -> None:
        finding = the("no_opencl_driver", examine(NO_OPENCL_DRIVER))
        assert (finding.severity, finding.fix) == ("note", ("sudo apt install pocl-opencl-icd",))


class TestNvidiaCard:
    @pytest.mark.parametrize(
        ("driver", "why"),
        [
            ("nouveau", "driven by nouveau, which CUDA cannot use."),
            (None, "and no driver is loaded for it."),
            ("nvidia", "and the kernel's part of the driver is loaded, but NVIDIA's libraries are not installed."),
        ],
    )
    def test_without_nvidia_s_driver(self, driver: str | None, why: str) -> None:
        found = on_the_bus("NVIDIA", name="AD102 [GeForce RTX 4090]", kernel_driver=driver)
        diagnosis = examine(LLVMPIPE, pci=(found,))
        assert diagnosis.findings == (
            Finding(
                code="gpu_without_driver",
                severity="problem",
                title="AD102 [GeForce RTX 4090] has no NVIDIA driver.",
                cause=f"It is on the bus at 0000:01:00.0, {why}",
                fix=(NVIDIA_ON_DEBIAN, RESTART),
                about="0000:01:00.0",
            ),
        )
        assert diagnosis.verdict == "There is a GPU (AD102 [GeForce RTX 4090]), but nothing here can use it yet."

    @pytest.mark.parametrize(
        ("system", "fix"),
        [
            ("ubuntu", "sudo apt install ubuntu-drivers-common && sudo ubuntu-drivers install"),
            ("fedora", f"sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda{RPM_FUSION}"),
            ("arch", "sudo pacman -S nvidia-open"),
            ("tumbleweed", "Install the package that Debian calls nvidia-driver"),
        ],
    )
    def test_the_driver_s_name(self, system: str, fix: str) -> None:
        diagnosis = examine(pci=(on_the_bus("NVIDIA", kernel_driver=None),), distributions=DISTRIBUTIONS[system])
        assert the("gpu_without_driver", diagnosis).fix == (fix, RESTART)

    def test_set_aside_for_a_virtual_machine(self) -> None:
        """One of two cards: NVML lists the other one only."""
        given_away = on_the_bus("NVIDIA", "0000:65:00.0", name="TU104 [Tesla T4]", kernel_driver="vfio-pci")
        diagnosis = examine(
            card(pci="0000:01:00.0"), gpu("webgpu:0", pci="0000:01:00.0"), pci=(on_the_bus("NVIDIA"), given_away)
        )
        finding = the("gpu_without_driver", diagnosis)
        assert finding.title == "TU104 [Tesla T4] has no NVIDIA driver."
        assert finding.cause.endswith("set aside for a virtual machine by the Linux driver vfio-pci.")
        assert finding.fix == ("Use it inside that virtual machine, or give it back to the driver nvidia.",)
        assert diagnosis.verdict.endswith(" Nothing here can use TU104 [Tesla T4] yet.")

    def test_eight_equal_cards_are_one_finding(self) -> None:
        bus = tuple(on_the_bus("NVIDIA", f"0000:{n:02x}:00.0", name=None, kernel_driver=None) for n in (1, 2))
        finding = the("gpu_without_driver", examine(pci=bus))
        assert finding.title == "2 × NVIDIA 10de:2684 have no NVIDIA driver."
        assert (
            finding.cause == "They are on the bus at 0000:01:00.0 and 0000:02:00.0, and no driver is loaded for them."
        )

    def test_what_nvidia_s_own_tool_says_comes_first(self) -> None:
        item = unavailable("nvidia", "no_driver", reason="NVIDIA's driver is not running.", fix="Start it.")
        assert codes(examine(item, pci=(on_the_bus("NVIDIA", kernel_driver=None),))) == ["no_driver"]

    def test_on_the_bus_and_not_found_by_its_driver(self) -> None:
        item = unavailable("nvidia", "no_device", reason="NVIDIA's driver is running, but it finds no card.")
        finding = the("no_device", examine(item, pci=(on_the_bus("NVIDIA"),)))
        assert (finding.severity, finding.title) == ("problem", item.reason)

    def test_a_driver_without_a_card(self) -> None:
        item = unavailable("nvidia", "no_device", reason="NVIDIA's driver is running, but it finds no card.")
        diagnosis = examine(item)
        assert [(each.severity, each.code) for each in diagnosis.findings] == [
            ("note", "no_gpu"),
            ("note", "no_device"),
        ]
        assert diagnosis.verdict == "There is no GPU here; your code runs on the CPU."


class TestAsReported:
    """What a probe met and no rule improves on: its own sentence, its own fix, its own words."""

    @pytest.mark.parametrize(
        ("item_id", "cause", "state", "reason", "fix"),
        [
            (
                "nvidia",
                "driver_mismatch",
                "present",
                "The kernel module of NVIDIA's driver that is loaded (535.104.05) and the library that programs use "
                "(550.54.14) differ in version, as after an update of the driver.",
                "Restart the machine, or reload the modules.",
            ),
            ("nvidia", "no_permission", "present", "This user may not open NVIDIA's cards.", "Join the group."),
            ("nvidia:1", "lost", "present", "The machine has lost its connection to the card nvidia:1.", "Reset it."),
            ("webgpu:0", "hung", "hung", "Fake GPU (Vulkan) did not respond within 6 s.", "Restart the machine."),
            (
                "webgpu:0",
                "crashed",
                "present",
                "Fake GPU (Vulkan) made the probing process crash (SIGSEGV).",
                "Update.",
            ),
            ("opencl:0", "garbage", "present", "opencl sent an unreadable response.", "See what prints."),
            ("torch:cuda:0", "wrong_result", "present", "Fake GPU computes wrong results through CUDA.", "Update."),
            ("opencl:0", "failed", "present", "Fake GPU cannot be used through OpenCL 3.0: LogicError.", None),
            ("jax", "import_failed", "absent", "jax could not be imported: it raised OSError.", "Install it again."),
            ("nvidia", "driver_too_old", "present", "NVIDIA's driver is too old to tell about its cards.", "Update."),
            ("amd:0", "no_driver", "present", "Navi 21 is in the machine, but Linux has no driver for it.", "modprobe"),
        ],
    )
    def test_words(self, item_id: str, cause: Cause, state: str, reason: str, fix: str | None) -> None:
        item = unavailable(item_id, cause, state=state, reason=reason, fix=fix, detail="the library's words")
        # A GPU works beside it, and still it is a problem.
        diagnosis = examine(item, gpu("webgpu:7"), card())
        assert diagnosis.findings == (
            Finding(
                code=cause,
                severity="problem",
                title=reason,
                cause="the library's words",
                fix=(fix,) if fix else (),
                about=item_id,
            ),
        )

    def test_without_any_detail(self) -> None:
        finding = the("hung", examine(unavailable("webgpu:0", "hung", state="hung")))
        assert finding.cause == "The probe gave no further detail."

    def test_two_findings_about_one_thing(self) -> None:
        items = (unavailable("nvidia", "garbage", reason="A."), unavailable("nvidia", "lost", reason="B."))
        assert [each.title for each in examine(*items).findings] == ["A.", "B."]

    def test_a_gpu_that_only_shows_in_its_troubles(self) -> None:
        diagnosis = examine(unavailable("nvidia", "hung", state="hung"))
        assert diagnosis.verdict == "There seems to be a GPU, but nothing here can use it yet."
        assert "no_gpu" not in codes(diagnosis)

    def test_troubles_of_the_cpu_are_not_nothing(self) -> None:
        diagnosis = examine(unavailable("opencl:0", "crashed", state="present"))
        assert diagnosis.verdict == "There is no GPU here; your code runs on the CPU."
        assert the("no_gpu", diagnosis).cause == "Neither the bus nor any driver lists one. Your code runs on the CPU."


class TestExtras:
    def test_not_installed(self) -> None:
        item = unavailable("jax", "not_installed", reason="jax is not installed.", fix="pip install jax")
        assert the("extra_not_installed", examine(item)) == Finding(
            code="extra_not_installed",
            severity="note",
            title="Not installed: jax.",
            cause="They are optional: anygpu works without them, and uses each one that is there.",
            fix=("pip install jax",),
            about="jax",
        )

    def test_no_compiler_for_the_processor(self) -> None:
        item = unavailable("cpu", "not_installed", reason="llvmlite is not installed.", fix="pip install llvmlite")
        assert the("no_compiler", examine(item)) == Finding(
            code="no_compiler",
            severity="note",
            title="Nothing is compiled for the processor.",
            cause='llvmlite is not installed. Without it on="cpu" is NumPy, which is slower.',
            fix=("pip install llvmlite",),
            about="cpu",
        )
        assert "extra_not_installed" not in codes(examine(item))

    def test_left_out_on_request(self) -> None:
        finding = the("engines_left_out", examine(variables={"ANYGPU_ENGINES": "numpy,webgpu"}))
        assert (finding.severity, finding.title) == ("note", "Only some engines were looked at: numpy,webgpu.")
        assert finding.fix == ("unset ANYGPU_ENGINES",)


class TestHiddenByVariable:
    @pytest.mark.parametrize(
        ("variable", "card_id", "whom"),
        [
            ("CUDA_VISIBLE_DEVICES", "nvidia:0", "CUDA and ROCm"),
            ("CUDA_VISIBLE_DEVICES", "amd:0", "CUDA and ROCm"),
            ("HIP_VISIBLE_DEVICES", "amd:0", "ROCm"),
            ("ROCR_VISIBLE_DEVICES", "amd:0", "ROCm"),
        ],
    )
    @pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
    def test_every_card(self, variable: str, card_id: str, whom: str, value: str) -> None:
        assert the("hidden_by_variable", examine(card(card_id), variables={variable: value})) == Finding(
            code="hidden_by_variable",
            severity="problem",
            title=f"The variable {variable} hides every card from {whom}.",
            cause=f'It is set to "{value}", which means none.',
            fix=(f"unset {variable}",),
            about=variable,
        )

    def test_windows_has_another_command(self) -> None:
        diagnosis = examine(card(), system="Windows", variables={"CUDA_VISIBLE_DEVICES": "-1"})
        assert the("hidden_by_variable", diagnosis).fix == ("set CUDA_VISIBLE_DEVICES=",)

    @pytest.mark.parametrize("found", [[], [card("intel:0")], [card(), gpu("webgpu:0")]])
    def test_nothing_is_lost_by_it(self, found: list[Device | Card]) -> None:
        finding = the("hidden_by_variable", examine(*found, variables={"CUDA_VISIBLE_DEVICES": "-1"}))
        assert finding.severity == "note"

    def test_some_cards_are_still_shown(self) -> None:
        assert "hidden_by_variable" not in codes(examine(card(), variables={"CUDA_VISIBLE_DEVICES": "0,1"}))


class TestNoGpu:
    @pytest.mark.parametrize(
        ("container", "where", "fix"),
        [
            (None, "this machine", ()),
            (
                "docker",
                "this docker container",
                (
                    f"{GPUS_ALL}   (only if the host has an NVIDIA card)",
                    "docker run --device /dev/dri …   (only if the host has an Intel or AMD GPU)",
                ),
            ),
            (
                "podman",
                "this podman container",
                (
                    f"{GPUS_ALL.replace('docker', 'podman')}   (only if the host has an NVIDIA card)",
                    "podman run --device /dev/dri …   (only if the host has an Intel or AMD GPU)",
                ),
            ),
            (
                "kubernetes",
                "this kubernetes container",
                (
                    'In the pod: resources.limits "nvidia.com/gpu: 1", env '
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics   (only if the host has an NVIDIA card)",
                ),
            ),
        ],
    )
    def test_places(self, container: Container | None, where: str, fix: tuple[str, ...]) -> None:
        diagnosis = examine(LLVMPIPE, CPU_ONLY_TORCH, CPU_ONLY_JAX, container=container)
        assert diagnosis.verdict == "There is no GPU here; your code runs on the CPU."
        assert diagnosis.findings == (
            Finding(
                code="no_gpu",
                severity="note",
                title=f"No GPU was found in {where}.",
                cause="Neither the bus nor any driver lists one. Your code runs on the CPU, and nothing is broken.",
                fix=fix,
                about="gpu",
            ),
        )
        assert diagnosis.problems == ()

    def test_a_container_of_an_unknown_kind(self) -> None:
        assert the("no_gpu", examine(container="container")).title == "No GPU was found in this container."

    def test_only_linux_lets_us_look_at_the_bus(self) -> None:
        assert the("no_gpu", examine(system="Windows")).cause.startswith("No driver lists one.")

    @pytest.mark.parametrize(
        "found",
        [
            on_the_bus("Intel", accelerator=True, name="Meteor Lake NPU"),
            on_the_bus("Intel", vendor_id=0x1AF4, name="Virtio 1.0 GPU", kernel_driver="virtio-pci"),
            on_the_bus("Intel", vendor_id=0x15AD, name="SVGA II Adapter", kernel_driver="vmwgfx"),
        ],
    )
    def test_what_is_no_gpu(self, found: PciDevice) -> None:
        assert codes(examine(LLVMPIPE, pci=(found,))) == ["no_gpu"]

    def test_an_accelerator_of_amd_is_one(self) -> None:
        found = on_the_bus("AMD", accelerator=True, name="Aqua Vanjaram [Instinct MI300X]")
        assert examine(pci=(found,)).verdict.startswith("There is a GPU (Aqua Vanjaram [Instinct MI300X])")

    def test_a_tpu_is_no_gpu(self) -> None:
        tpu = fake_device("jax:tpu:0", kind="npu", form="discrete", name="TPU v5", state="verified")
        assert examine(tpu).verdict == "There is no GPU here; your code runs on the CPU."


class TestUnmatched:
    """Two equal cards, and an interface that does not tell which of them it means."""

    TWINS = (card(pci="0000:01:00.0"), card("nvidia:1", pci="0000:02:00.0"))

    def test_note(self) -> None:
        diagnosis = examine(gpu("jax:cuda:0"), *self.TWINS)
        assert the("card_not_matched", diagnosis) == Finding(
            code="card_not_matched",
            severity="note",
            title="It is not certain which card NVIDIA GeForce RTX 4090 is.",
            cause="jax:cuda:0 is one of nvidia:0, nvidia:1, but Fake gives no UUID or PCI address to tell which.",
            about="unmatched:jax:cuda:0",
        )

    def test_it_is_not_one_more_card(self) -> None:
        diagnosis = examine(gpu("jax:cuda:0"), gpu("jax:cuda:1"), *self.TWINS, CPU_ONLY_TORCH)
        assert diagnosis.verdict == "Your 2 GPUs work: 2 × NVIDIA GeForce RTX 4090 through jax."
        assert the("torch_without_gpu", diagnosis).severity == "advice"


class TestSeverity:
    MISSING_WAYS = (CPU_ONLY_TORCH, CPU_ONLY_JAX, NO_OPENCL_DRIVER, NO_VULKAN_DRIVER)

    @pytest.mark.parametrize(("works", "severity"), [(False, "problem"), (True, "advice")])
    def test_a_missing_way_is_advice_where_another_works(self, works: bool, severity: Severity) -> None:
        ways = [gpu("vulkano:0")] if works else []
        diagnosis = examine(*self.MISSING_WAYS, card(), *ways)
        assert [(each.severity, each.code) for each in diagnosis.findings] == [
            (severity, "torch_without_gpu"),
            (severity, "jax_without_gpu"),
            (severity, "no_vulkan_driver"),
            (severity, "no_opencl_driver"),
        ]
        assert len(diagnosis.problems) == (0 if works else 4)

    def test_listed_is_not_working(self) -> None:
        assert the("torch_without_gpu", examine(CPU_ONLY_TORCH, card(), gpu("webgpu:0", state="usable"))).severity == (
            "problem"
        )

    def test_another_vendor_s_gpu_does_not_help(self) -> None:
        """A laptop whose small GPU works, and whose large one does not."""
        small = card("intel:0", name="Intel UHD Graphics", pci="0000:00:02.0")
        diagnosis = examine(
            gpu("webgpu:0", name="Intel UHD Graphics", pci="0000:00:02.0"),
            small,
            card(pci="0000:01:00.0"),
            CPU_ONLY_TORCH,
        )
        assert the("torch_without_gpu", diagnosis).severity == "problem"
        assert diagnosis.verdict == (
            "Your GPU works: Intel UHD Graphics through webgpu:0. Nothing here can use NVIDIA GeForce RTX 4090 yet."
        )

    def test_problems_come_first(self) -> None:
        items = (
            unavailable("jax", "not_installed"),
            CPU_ONLY_TORCH,
            gpu("webgpu:0"),
            card(),
            unavailable("opencl:0", "crashed", state="present"),
        )
        diagnosis = examine(*items, variables={"CUDA_VISIBLE_DEVICES": ""})
        severities = [each.severity for each in diagnosis.findings]
        assert severities == ["problem", "advice", "note", "note"]
        assert [each.code for each in diagnosis.problems] == ["crashed"]


class TestEightGpus:
    NVIDIA = tuple(
        card(f"nvidia:{n}", name="NVIDIA H100 80GB HBM3", uuid=f"{n + 1:032x}", pci=f"0000:{n + 1:02x}:00.0")
        for n in range(4)
    )
    AMD = tuple(
        card(f"amd:{n}", name="AMD Instinct MI300X", pci=f"0000:{n + 0x81:02x}:00.0", driver="amdgpu") for n in range(4)
    )

    @staticmethod
    def ways() -> list[Device]:
        found = []
        for n in range(4):
            amd = {"name": "AMD Instinct MI300X", "vendor": "AMD", "pci": f"0000:{n + 0x81:02x}:00.0"}
            nvidia = {"name": "NVIDIA H100 80GB HBM3", "vendor": "NVIDIA", "uuid": f"{n + 1:032x}"}
            found += [gpu(f"torch:rocm:{n}", **amd), gpu(f"webgpu:{n}", **nvidia)]
            found += [gpu(f"opencl:{n}", **nvidia), gpu(f"webgpu:{n + 4}", **amd)]
        return found

    def bus(self) -> tuple[PciDevice, ...]:
        return tuple(on_the_bus(each.vendor, each.pci or "") for each in self.NVIDIA + self.AMD)

    def test_all_work(self) -> None:
        diagnosis = examine(*self.ways(), *self.NVIDIA, *self.AMD, pci=self.bus(), container="docker")
        assert diagnosis.verdict == (
            "Your 8 GPUs work: 4 × NVIDIA H100 80GB HBM3 through webgpu and opencl; "
            "4 × AMD Instinct MI300X through torch and webgpu."
        )
        assert diagnosis.problems == ()

    def test_one_is_lost(self) -> None:
        lost = unavailable("nvidia:3", "lost", state="present", reason="The card is lost.", pci="0000:04:00.0")
        ways = [device for device in self.ways() if device.uuid != f"{4:032x}"]
        diagnosis = examine(*ways, *self.NVIDIA[:3], *self.AMD, lost, pci=self.bus())
        assert diagnosis.verdict == (
            "Your 7 GPUs work: 3 × NVIDIA H100 80GB HBM3 through webgpu and opencl; "
            "4 × AMD Instinct MI300X through torch and webgpu. Nothing here can use NVIDIA on the bus yet."
        )
        assert codes(diagnosis) == ["lost"]

    def test_none_works(self) -> None:
        diagnosis = examine(*self.NVIDIA, *self.AMD, pci=self.bus())
        assert diagnosis.verdict == (
            "There are 8 GPUs (4 × NVIDIA H100 80GB HBM3 and 4 × AMD Instinct MI300X), "
            "but nothing here can use them yet."
        )

    def test_one_card_through_three_ways(self) -> None:
        ways = [gpu(name, uuid=f"{1:032x}") for name in ("webgpu:0", "opencl:0", "torch:cuda:0")]
        verdict = examine(*ways, card(uuid=f"{1:032x}", pci="0000:01:00.0"), pci=(on_the_bus("NVIDIA"),)).verdict
        assert verdict == "Your GPU works: NVIDIA GeForce RTX 4090 through webgpu:0, opencl:0 and torch:cuda:0."

    def test_a_card_without_an_address_is_not_counted_twice(self) -> None:
        verdict = examine(card(pci=None), pci=(on_the_bus("NVIDIA"),)).verdict
        assert verdict == "There is a GPU (NVIDIA GeForce RTX 4090), but nothing here can use it yet."


NOT_WORTH_A_FINDING = ("cpu_only_build", "no_device", "not_installed")
IDS = (
    "webgpu",
    "webgpu:0",
    "opencl",
    "opencl:1",
    "torch:cuda",
    "torch:rocm",
    "jax:cuda",
    "nvidia",
    "nvidia:1",
    "amd:0",
)

items = st.builds(
    unavailable,
    st.sampled_from(IDS),
    st.sampled_from(get_args(Cause)),
    state=st.sampled_from(["absent", "present", "hung"]),
    pci=st.sampled_from([None, "0000:01:00.0"]),
    facts=st.sampled_from([{}, {"built_for_cuda": "13.0"}, {"built_for_cuda": "None"}]),
)
machines = st.fixed_dictionaries(
    {
        "system": st.sampled_from(["Linux", "Windows", "Darwin"]),
        "distributions": st.sampled_from(list(DISTRIBUTIONS.values())),
        "container": st.sampled_from([None, *get_args(Container)]),
        "pci": st.sampled_from(
            [(), (on_the_bus("NVIDIA"),), (on_the_bus("AMD"), on_the_bus("Intel", "0000:00:02.0", kernel_driver=None))]
        ),
        "nodes": st.sampled_from([(), (DeviceNode(path="/dev/nvidia0", openable=False, group="root"),)]),
        "variables": st.sampled_from([{}, {"VK_ICD_FILENAMES": "x"}, {"CUDA_VISIBLE_DEVICES": ""}]),
    }
)
cards = st.lists(
    st.sampled_from([card(), card("nvidia:1", driver_api="10.2"), card("amd:0")]), unique_by=lambda c: c.id
)
devices = st.lists(st.sampled_from([LLVMPIPE, gpu("torch:cuda:0"), gpu("opencl:0", state="usable")]), unique_by=id)


@given(st.lists(items, max_size=4), cards, devices, machines)
def test_whatever_was_found(
    found: list[Unavailable], seen: list[Card], ways: list[Device], machine: dict[str, Any]
) -> None:
    """Nothing is dropped, problems come first, sentences are sentences, and the report survives JSON."""
    diagnosis = examine(*found, *seen, *ways, **machine)
    about = {finding.about for finding in diagnosis.findings}
    assert {item.id for item in found if item.cause not in NOT_WORTH_A_FINDING} <= about
    order = ["problem", "advice", "note"]
    assert [each.severity for each in diagnosis.findings] == sorted(
        (each.severity for each in diagnosis.findings), key=order.index
    )
    assert diagnosis.problems == tuple(each for each in diagnosis.findings if each.severity == "problem")
    for finding in diagnosis.findings:
        assert finding.title.endswith(".")
        assert all(step.strip() == step and step for step in finding.fix)
        assert len(set(finding.fix)) == len(finding.fix)
    assert msgspec.json.decode(diagnosis.to_json(), type=Diagnosis) == diagnosis


def test_the_json_says_which_schema_it_follows() -> None:
    document = msgspec.json.decode(examine(card(), CPU_ONLY_TORCH).to_json())
    assert document["schema"] == SCHEMA == "anygpu.doctor/1"
    assert list(document) == ["schema", "verdict", "findings", "inventory", "evidence"]
