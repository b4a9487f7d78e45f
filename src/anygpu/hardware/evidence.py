"""Facts of the machine, read from files, nodes and environment only: no driver is loaded, nothing can hang.

It serves two ends: `diagnosis` explains from it why a GPU is not used, and the probe cache is valid as long as it does
not change.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from anygpu.hardware.sysfs import PciDevice, pci_gpus

#: Libraries whose versions matter to what a probe finds and to what is wrong.
LIBRARIES = ("anygpu", "numpy", "llvmlite", "wgpu", "pyopencl", "torch", "jax", "jaxlib", "nvidia-ml-py")

#: Variables that change which devices the drivers show.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "VK_ICD_FILENAMES",
    "VK_DRIVER_FILES",
    "VK_LOADER_DRIVERS_DISABLE",
    "OCL_ICD_VENDORS",
    "OCL_ICD_FILENAMES",
    "ANYGPU_OPENCL_SUBDEVICES",
    "LIBGL_ALWAYS_SOFTWARE",
    "WGPU_BACKEND_TYPE",
    "JAX_PLATFORMS",
    "LD_LIBRARY_PATH",
    "ANYGPU_ENGINES",
)

_LIBRARY_FOLDERS = (
    "usr/lib/*-linux-gnu*",
    "lib/*-linux-gnu*",
    "usr/lib64",
    "lib64",
    "usr/lib",
    "lib",
    "usr/local/lib",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
)
_ICD_FOLDERS = ("etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
_NODES = ("dev/dri/renderD*", "dev/nvidia[0-9]*", "dev/nvidiactl", "dev/nvidia-uvm", "dev/kfd", "dev/dxg")

Container = Literal["docker", "podman", "kubernetes", "container"]


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node under /dev."""

    path: str
    openable: bool
    group: str | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A file that registers a Vulkan or OpenCL driver, and when it was last changed."""

    path: str
    changed: float


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, as far as files tell."""

    system: str
    release: str
    machine: str
    python: str
    #: `ID` and `ID_LIKE` of /etc/os-release, so that a fix can name the right package manager.
    distributions: tuple[str, ...] = ()
    container: Container | None = None
    wsl: bool = False
    user: str = ""
    pci: tuple[PciDevice, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    vulkan_loader: str | None = None
    vulkan_drivers: tuple[Manifest, ...] = ()
    opencl_drivers: tuple[Manifest, ...] = ()
    #: Version of the NVIDIA kernel module that is loaded.
    nvidia_module: str | None = None
    nvidia_smi: str | None = None
    libraries: dict[str, str] = {}
    variables: dict[str, str] = {}


def gather(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Evidence:
    """Read the facts of the machine from files and the environment. No driver is loaded."""
    environment = os.environ if environment is None else environment
    return Evidence(
        system=platform.system(),
        release=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        distributions=_distributions(root),
        container=_container(root, environment),
        wsl="microsoft" in platform.release().lower(),
        user=_user(),
        pci=tuple(pci_gpus(root)),
        nodes=tuple(_nodes(root)),
        vulkan_loader=_find_library(root, "libvulkan.so.1", environment),
        vulkan_drivers=tuple(_vulkan_drivers(root, environment)),
        opencl_drivers=tuple(_opencl_drivers(root, environment)),
        nvidia_module=_first_line(root / "sys/module/nvidia/version"),
        nvidia_smi=shutil.which("nvidia-smi", path=environment.get("PATH", os.defpath)),
        libraries=dict(_library_versions(LIBRARIES)),
        variables={name: environment[name] for name in VARIABLES if name in environment},
    )


def _distributions(root: Path) -> tuple[str, ...]:
    """Returns the names of the Linux distribution and of those that it is like, from os-release."""
    fields = {}
    for line in _lines(root / "etc/os-release") or _lines(root / "usr/lib/os-release"):
        name, _, value = line.partition("=")
        fields[name] = value.strip().strip("\"'")
    return tuple(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split())


def _container(root: Path, environment: Mapping[str, str]) -> Container | None:
    """Returns the kind of container that this process is in; `None` outside of any."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "container" if environment.get("container") else None


def _user() -> str:
    """Returns the user's name, or the number of one without a name."""
    # getpass.getuser() trusts the environment; the effective user is what the kernel asks about.
    if sys.platform == "win32":
        return os.environ.get("USERNAME", "")
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _nodes(root: Path) -> Iterable[DeviceNode]:
    """Yields the device nodes of GPUs, with their group and whether this user may open them."""
    for pattern in _NODES:
        for path in sorted(root.glob(pattern)):
            yield DeviceNode(
                path="/" + str(path.relative_to(root)),
                openable=os.access(path, os.R_OK | os.W_OK),
                group=_group(path),
            )


def _group(path: Path) -> str | None:
    """Returns the name of a file's group; `None` if it has none, or on Windows."""
    try:
        return path.group()
    except (KeyError, OSError, NotImplementedError):
        return None


def _find_library(root: Path, name: str, environment: Mapping[str, str]) -> str | None:
    """Returns the path of a shared library, looked for as the loader would; `None` if there is none."""
    for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and (Path(folder) / name).exists():
            return str(Path(folder) / name)
    for pattern in _LIBRARY_FOLDERS:
        for path in sorted(root.glob(f"{pattern}/{name}")):
            return "/" + str(path.relative_to(root))
    return None


def _vulkan_drivers(root: Path, environment: Mapping[str, str]) -> Iterable[Manifest]:
    """Yields the manifests of Vulkan drivers: those that a variable names, or else those of the usual folders."""
    named = environment.get("VK_DRIVER_FILES") or environment.get("VK_ICD_FILENAMES")
    if named:
        for path in (Path(text) for text in named.split(os.pathsep) if text):
            yield from _manifests(sorted(path.glob("*.json")) if path.is_dir() else [path])
        return
    for folder in _ICD_FOLDERS:
        yield from _manifests(sorted((root / folder).glob("*.json")))


def _opencl_drivers(root: Path, environment: Mapping[str, str]) -> Iterable[Manifest]:
    named = environment.get("OCL_ICD_VENDORS")
    folder = Path(named) if named else root / "etc/OpenCL/vendors"
    yield from _manifests([folder] if folder.suffix == ".icd" else sorted(folder.glob("*.icd")))


def _manifests(paths: Iterable[Path]) -> Iterable[Manifest]:
    """Yields the manifests that exist, with their times of change."""
    for path in paths:
        try:
            yield Manifest(path=str(path), changed=path.stat().st_mtime)
        except OSError:
            continue


def _library_versions(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yields the installed libraries with their versions, without importing them."""
    from importlib import metadata  # here, because importing anygpu must not pay for it

    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _lines(path: Path) -> list[str]:
    """Returns the lines of a file; none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: Path) -> str | None:
    lines = _lines(path)
    return lines[0].strip() if lines else None
