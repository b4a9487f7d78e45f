"""What `import anygpu` promises: its names, that it is lean, and that it touches nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anygpu
import anygpu.testing
from anygpu.array import namespace

SOURCE = Path(anygpu.__file__).parent

#: Each optional or heavy library, and the one module that may import it.
OWNERS: dict[str, str | tuple[str, ...]] = {
    # The engines that fail on purpose are public test helpers, and nothing else imports them.
    "wgpu": ("engines/webgpu/", "testing/faulty_"),
    "pyopencl": ("engines/opencl/", "testing/faulty_"),
    "llvmlite": "engines/cpu/",
    "torch": ("engines/torch/", "pytorch/"),
    "jax": "engines/jax/",
    "pynvml": "hardware/nvidia.py",
    "psutil": ("hardware/host.py", "testing/"),
    "typer": "cli/",
    "rich": ("cli/", "runtime/future.py"),
    "grpc": "fleet/access.py",
    "zarr": "runtime/streams/sources.py",
    "sqlite3": "nobody",
    "uvicorn": "runtime/serving/http.py",
    "httptools": "runtime/serving/http.py",
    "uvloop": "runtime/serving/http.py",
    "IPython": "cli/notebook/magics.py",
    "textual": "cli/top/",
    "bokeh": "observe/dashboard/",
    "scalene": "observe/profile.py",
    "starlette": "nobody",
    "prometheus_client": "observe/metrics.py",
    # The types of its providers are named where it is asked for.
    "opentelemetry": ("observe/open_telemetry.py", "observe/__init__.py"),
    "ray": ("fleet/ray_cluster.py", "fleet/doctor.py"),
}


def test_old_names_stay_for_one_release_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"anygpu\.OutOfMemory is anygpu\.errors\.OutOfMemory now"):
        assert anygpu.OutOfMemory is anygpu.errors.OutOfMemory
    with pytest.warns(DeprecationWarning, match=r"anygpu\.types\.Tenant now"):
        assert anygpu.Tenant is anygpu.types.Tenant
    with pytest.warns(DeprecationWarning, match=r"anygpu\.observe\.host_operations now"):
        assert anygpu.host_operations is anygpu.observe.host_operations
    with pytest.raises(AttributeError, match="no attribute 'tanhh'"):
        _ = anygpu.tanhh


def test_the_exported_names() -> None:
    assert sorted(anygpu.__all__) == [
        "AllocationError",
        "AnyGPUError",
        "DeadlineExceeded",
        "Device",
        "DeviceError",
        "DeviceUnavailable",
        "Future",
        "InvalidOption",
        "Kernel",
        "MissingExtra",
        "Overloaded",
        "Plan",
        "Program",
        "Receipt",
        "ResultMismatch",
        "Runtime",
        "Server",
        "Store",
        "Tensor",
        "Unsupported",
        "__array_api_version__",
        "__version__",
        "collect_receipts",
        "devices",
        "doctor",
        "errors",
        "explain",
        "fft",
        "fleet",
        "freeze_support",
        "image",
        "last_receipt",
        "linalg",
        "map",
        "nn",
        "observe",
        "offload",
        "record",
        "run",
        "serve",
        "statistics",
        "stream",
        "submit",
        "types",
        "vmap",
    ]
    assert all(hasattr(anygpu, name) for name in anygpu.__all__)


#: The Python Array API standard 2024.12, and float16 and Array beside it.
STANDARD = """
Array __array_namespace_info__ abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype
atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool
broadcast_arrays broadcast_to can_cast ceil clip complex128 complex64 concat conj copysign cos cosh
count_nonzero cumulative_prod cumulative_sum diff divide e empty empty_like equal exp expand_dims expm1 eye
finfo flip float16 float32 float64 floor floor_divide from_dlpack full full_like greater greater_equal hypot
iinfo imag inf int16 int32 int64 int8 isdtype isfinite isinf isnan less less_equal linspace log log10 log1p log2
logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min
minimum moveaxis multiply nan negative newaxis nextafter nonzero not_equal ones ones_like permute_dims pi
positive pow prod real reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit sin
sinh sort sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu
trunc uint16 uint32 uint64 uint8 unique_all unique_counts unique_inverse unique_values unstack var vecdot where
zeros zeros_like
""".split()  # noqa: SIM905 - words are easier to compare with the standard


def test_the_array_namespace() -> None:
    assert sorted(namespace.__all__) == sorted(STANDARD)
    assert all(getattr(anygpu, name) is getattr(namespace, name) for name in STANDARD)
    assert set(STANDARD) <= set(dir(anygpu))
    assert not hasattr(anygpu, "no_such_name")


def test_the_exported_names_of_testing() -> None:
    assert sorted(anygpu.testing.__all__) == [
        "FakeEngine",
        "FakeMemory",
        "FakeProcessors",
        "Fault",
        "ManualClock",
        "check_engine_probe",
        "check_engine_programs",
        "check_no_leaks",
        "check_resource",
        "check_worker",
        "fake_device",
    ]


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
optional = {"wgpu", "torch", "jax", "pyopencl", "ray", "pynvml", "typer", "rich", "sqlite3", "uvicorn", "httptools"}
optional |= {"llvmlite", "IPython", "html", "anygpu.cli.notebook"}
loaded = optional & set(sys.modules)
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
