"""What `import anygpu` promises: its names, that it is lean, and that it touches nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import anygpu
import anygpu.testing

SOURCE = Path(anygpu.__file__).parent

#: Each optional or heavy library, and the one module that may import it.
OWNERS = {
    "wgpu": "engines/webgpu.py",
    "pyopencl": "engines/opencl.py",
    "torch": "engines/torch.py",
    "jax": "engines/jax.py",
    "pynvml": "hardware/nvidia.py",
    "psutil": "hardware/host.py",
    "typer": "cli/",
    "rich": "cli/",
}


def test_the_exported_names() -> None:
    assert sorted(anygpu.__all__) == [
        "AllocationError",
        "AnyGPUError",
        "Attempt",
        "Card",
        "DeadlineExceeded",
        "Device",
        "DeviceError",
        "DeviceHung",
        "DeviceLost",
        "DevicePoisoned",
        "DeviceUnavailable",
        "Diagnosis",
        "Finding",
        "HostOperation",
        "InvalidOption",
        "InvalidProgram",
        "MissingExtra",
        "OutOfMemory",
        "OverBudget",
        "Phases",
        "Receipt",
        "TooBig",
        "Unavailable",
        "Unsupported",
        "__version__",
        "devices",
        "doctor",
    ]
    assert all(hasattr(anygpu, name) for name in anygpu.__all__)


def test_the_exported_names_of_testing() -> None:
    assert sorted(anygpu.testing.__all__) == ["FakeEngine", "Fault", "ManualClock", "check_engine_probe", "fake_device"]


def test_importing_loads_no_optional_library_and_opens_no_device() -> None:
    script = """
import sys
opened = []
def watch(event, arguments):
    if event == "open" and str(arguments[0]).startswith("/dev/") and str(arguments[0]) != "/dev/null":
        opened.append(arguments[0])
    if event in ("subprocess.Popen", "ctypes.dlopen", "socket.connect"):
        opened.append((event, str(arguments[0])))
import numpy  # what numpy itself does is not ours to judge
sys.addaudithook(watch)
import anygpu
loaded = {"wgpu", "torch", "jax", "pyopencl", "ray", "pynvml", "typer", "rich"} & set(sys.modules)
assert not loaded, loaded
assert not opened, opened
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_library_is_imported_by_its_owner_alone() -> None:
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                owner = OWNERS.get(name.split(".")[0])
                assert owner is None or place.startswith(owner), f"{place} imports {name}, which belongs to {owner}"
