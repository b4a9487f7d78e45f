"""The exact commands that mend things, for the system at hand. Pure: what to type, never typed by us."""

from __future__ import annotations

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
            "nvidia": "ubuntu-drivers-common && sudo ubuntu-drivers install",
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
            "nvidia": "akmod-nvidia",
            "opencl-cpu": "pocl",
            "opencl-intel": "intel-compute-runtime",
            "opencl-amd": "mesa-libOpenCL",
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
            "nvidia": "nvidia",
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


def install(evidence: Evidence, *wanted: str) -> str:
    """The command that installs the first of `wanted` which this system has a package for."""
    if evidence.system == "Windows":
        return "Install the newest driver from your graphics card's maker; it brings Vulkan and OpenCL along."
    if evidence.system == "Darwin":
        return "Update macOS: its graphics drivers are a part of it."
    family = next((known for name in evidence.distributions if (known := _family(name))), None)
    if family is not None:
        command, packages = _MANAGERS[family]
        for name in wanted:
            if name in packages:
                return f"{_as_root(evidence)}{command} {packages[name]}"
    packages = _MANAGERS["debian"][1]
    name = next((name for name in wanted if name in packages), wanted[0])
    return f"Install the package that Debian calls {packages.get(name, name)}"


def _family(name: str) -> str | None:
    known = name if name in _MANAGERS else _FAMILIES.get(name)
    return known or next((family for family in _MANAGERS if name.startswith(family)), None)


def join_group(evidence: Evidence, group: str) -> str:
    user = evidence.user or "$USER"
    return f"sudo usermod -aG {group} {user}   (then log out and in again)"


def gpu_torch(evidence: Evidence, vendor: str) -> str:
    """torch on PyPI is a CUDA build for Linux, and a CPU build for Windows."""
    if vendor == "AMD":
        return "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm6.4"
    if evidence.system == "Windows":
        return "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
    return "pip uninstall --yes torch && pip install torch"


def gpu_jax(driver_api: str | None) -> str:
    major = int(driver_api.split(".")[0]) if driver_api else 12
    return f"pip install 'jax[cuda{13 if major >= 13 else 12}]'"


def open_container(evidence: Evidence, *, graphics: bool) -> str:
    capabilities = "compute,utility,graphics" if graphics else "compute,utility"
    if evidence.container == "kubernetes":
        return f'In the pod: resources.limits "nvidia.com/gpu: 1", env NVIDIA_DRIVER_CAPABILITIES={capabilities}'
    program = "podman" if evidence.container == "podman" else "docker"
    return f"{program} run --gpus all -e NVIDIA_DRIVER_CAPABILITIES={capabilities} …"


def _as_root(evidence: Evidence) -> str:
    return "" if evidence.user == "root" else "sudo "
