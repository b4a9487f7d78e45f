"""The exact commands that fix things, for the system at hand. Pure: anygpu never runs them."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.hardware.device import Card
from anygpu.hardware.evidence import Evidence

#: For each kind of system, its package manager's command and what the packages are called there.
_MANAGERS: dict[str, tuple[str, dict[str, str]]] = {
    "debian": (
        "apt install",
        {
            "vulkan-loader": "libvulkan1",
            "vulkan-mesa": "mesa-vulkan-drivers",
            "vulkan-nvidia": "nvidia-vulkan-icd",
            "nvidia": "nvidia-driver",
            "opencl-cpu": "pocl-opencl-icd",
            "opencl-intel": "intel-opencl-icd",
            "opencl-amd": "mesa-opencl-icd",
            "opencl-nvidia": "nvidia-opencl-icd",
        },
    ),
    "ubuntu": (
        "apt install",
        {
            "vulkan-loader": "libvulkan1",
            "vulkan-mesa": "mesa-vulkan-drivers",
            "nvidia": "ubuntu-drivers-common && {root}ubuntu-drivers install",
            "opencl-cpu": "pocl-opencl-icd",
            "opencl-intel": "intel-opencl-icd",
            "opencl-amd": "mesa-opencl-icd",
        },
    ),
    "fedora": (
        "dnf install",
        {
            "vulkan-loader": "vulkan-loader",
            "vulkan-mesa": "mesa-vulkan-drivers",
            "nvidia": "akmod-nvidia xorg-x11-drv-nvidia-cuda",
            "opencl-cpu": "pocl",
            "opencl-intel": "intel-compute-runtime",
            "opencl-amd": "mesa-libOpenCL",
            "opencl-nvidia": "xorg-x11-drv-nvidia-cuda",
        },
    ),
    "arch": (
        "pacman -S",
        {
            "vulkan-loader": "vulkan-icd-loader",
            "vulkan-amd": "vulkan-radeon",
            "vulkan-intel": "vulkan-intel",
            "vulkan-mesa": "vulkan-swrast",
            "vulkan-nvidia": "nvidia-utils",
            "nvidia": "nvidia-open",
            "opencl-cpu": "pocl",
            "opencl-intel": "intel-compute-runtime",
            "opencl-amd": "opencl-mesa",
            "opencl-nvidia": "opencl-nvidia",
        },
    ),
    "suse": (
        "zypper install",
        {
            "vulkan-loader": "libvulkan1",
            "vulkan-amd": "libvulkan_radeon",
            "vulkan-intel": "libvulkan_intel",
            "vulkan-mesa": "libvulkan_lvp",
            "opencl-cpu": "pocl",
        },
    ),
}
_FAMILIES = {"rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse", "manjaro": "arch"}

#: NVIDIA's packages are not in what these systems enable by default.
_SOURCES_OF_NVIDIA = {"debian": "from Debian's section non-free", "fedora": "from rpmfusion.org, which must be enabled"}

_FORCE_TORCH = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/"


def install(evidence: Evidence, *wanted: str) -> str:
    """The command that installs the first of `wanted` which this system has a package for."""
    if evidence.system == "Windows":
        return "Install the newest driver from your graphics card's maker; it brings Vulkan and OpenCL along."
    if evidence.system == "Darwin":
        return "Update macOS: its graphics drivers are a part of it."
    family = next((known for each in evidence.distributions if (known := _family(each))), None)
    command, packages = _MANAGERS[family] if family else ("", {})
    in_debian = _MANAGERS["debian"][1]
    here = next((name for name in wanted if name in packages), None)
    name = here or next((name for name in wanted if name in in_debian), wanted[0])
    if "nvidia" in name and evidence.wsl:
        return "Install the newest NVIDIA driver in Windows; Linux in WSL uses that one."
    if "nvidia" in name and evidence.container is not None:
        return "On the host, update NVIDIA's driver and the NVIDIA Container Toolkit; the container uses those."
    if here is None or family is None:
        return f"Install the package that Debian calls {in_debian.get(name, name)}"
    root = _as_root(evidence)
    hint = _SOURCES_OF_NVIDIA.get(family) if "nvidia" in name else None
    return f"{root}{command} {packages[name].format(root=root)}" + (f"   ({hint})" if hint else "")


def _family(name: str) -> str | None:
    known = name if name in _MANAGERS else _FAMILIES.get(name)
    return known or next((family for family in _MANAGERS if name.startswith(family)), None)


def open_nodes(evidence: Evidence, paths: Sequence[str], group: str | None) -> tuple[str, ...]:
    """The command that lets this user open the device nodes of `group`."""
    if evidence.container is not None:
        # The groups inside a container are not the host's; only the host's number counts.
        return (f"{_container_program(evidence)} run --group-add $(stat -c %g {paths[0]}) …   (typed on the host)",)
    join = f"sudo usermod -aG {{}} {evidence.user or '$USER'}   (then log out and in again)"
    if group in (None, "root"):
        # Membership in root would open far more than a card.
        return (f"sudo chgrp render {' '.join(paths)} && sudo chmod 660 {' '.join(paths)}", join.format("render"))
    return (join.format(group),)


def gpu_torch(evidence: Evidence, vendor: str, card: Card | None = None) -> tuple[str, ...]:
    """torch on PyPI is a build for CUDA 13 on Linux, and a CPU build on Windows; other builds have an index each."""
    if vendor == "AMD":
        if evidence.system == "Windows":
            return ("Install AMD's own build for Windows: https://rocm.docs.amd.com/projects/radeon-ryzen",)
        return (_FORCE_TORCH + "rocm7.2",)
    index = _torch_index(card)
    if index is not None:
        return (*_newer_driver(evidence, card), _FORCE_TORCH + index)
    if evidence.system == "Windows":
        return (_FORCE_TORCH + "cu130",)
    return ("pip uninstall --yes torch && pip install torch",)


def _torch_index(card: Card | None) -> str | None:
    """The index for what a build for CUDA 13 does not serve; `None` where it does, or where nothing is known."""
    if card is None or _serves_cuda_13(card):
        return None
    # The builds for CUDA 12.6 know no card of the generation Blackwell, which is 10.0 and newer.
    return "cu128" if version(card.compute_capability) >= (10,) else "cu126"


def _serves_cuda_13(card: Card) -> bool:
    """Unless driver or card are known to be too old: it needs a driver of its own time, and Turing or newer."""
    return not () < version(card.driver_api) < (13,) and not () < version(card.compute_capability) < (7, 5)


def gpu_jax(evidence: Evidence, card: Card | None = None) -> tuple[str, ...]:
    if evidence.system == "Windows":
        return ("Use JAX inside WSL (Linux in Windows): it has no GPU support for Windows itself.",)
    # The builds for CUDA 12 work with more drivers, so they are the better guess.
    serves_13 = card is not None and card.driver_api is not None and _serves_cuda_13(card)
    return (*_newer_driver(evidence, card), f"pip install 'jax[cuda{13 if serves_13 else 12}]'")


def without_new_driver(evidence: Evidence, engine: str, card: Card) -> tuple[str, ...]:
    """The command that installs a build for an old driver, if there is one."""
    if is_outdated(card):
        return ()
    commands = {
        "jax": ("pip uninstall --yes jax-cuda13-plugin jax-cuda13-pjrt && pip install 'jax[cuda12]'",),
        "torch": gpu_torch(evidence, "NVIDIA", card),
    }
    return tuple(f"{command}   (instead, if the driver must stay)" for command in commands.get(engine, ()))


def newest_driver(evidence: Evidence) -> tuple[str, ...]:
    line = install(evidence, "nvidia")
    return (line,) if evidence.container is not None else (line, "Restart the machine afterwards.")


def is_outdated(card: Card) -> bool:
    """No build of today works with a driver that serves CUDA 11 or older."""
    return () < version(card.driver_api) < (12,)


def _newer_driver(evidence: Evidence, card: Card | None) -> tuple[str, ...]:
    return newest_driver(evidence) if card is not None and is_outdated(card) else ()


def open_container(evidence: Evidence, vendor: str = "NVIDIA") -> str:
    """How to start this container so that it gets the cards of a vendor."""
    program = _container_program(evidence)
    if vendor == "NVIDIA":
        capabilities = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
        if evidence.container == "kubernetes":
            return f'In the pod: resources.limits "nvidia.com/gpu: 1", env {capabilities}'
        return f"{program} run --gpus all -e {capabilities} …"
    if evidence.container == "kubernetes":
        return f'In the pod: resources.limits "{"amd.com/gpu" if vendor == "AMD" else "gpu.intel.com/i915"}: 1"'
    return f"{program} run --device /dev/dri{' --device /dev/kfd' if vendor == 'AMD' else ''} …"


def unset(evidence: Evidence, variable: str) -> str:
    return f"set {variable}=" if evidence.system == "Windows" else f"unset {variable}"


def version(text: str | None) -> tuple[int, ...]:
    """`12.4` as (12, 4), which compares as versions do; what is unknown or no number is empty."""
    parts = (text or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def _container_program(evidence: Evidence) -> str:
    return "podman" if evidence.container == "podman" else "docker"


def _as_root(evidence: Evidence) -> str:
    return "" if evidence.user == "root" else "sudo "
