"""anygpu runs ordinary NumPy-style functions on whatever GPU the machine has, or on none, and says why.

Public names are exported here; beside those listed below, every name of the Python Array API standard 2024.12 is one
(`anygpu.array.namespace` lists them; they are loaded when the first of them is used). Everything else is private.
Importing the package opens no device and loads none of the optional libraries.

The package is read in the order the data flows: `array` (what the user holds), `program` (what is to be computed, as
data), `engines` (the libraries that compute), `runtime` (where programs meet devices). Beside that way stand `hardware`
(what there is, as frozen facts) and `workers` (the processes that touch devices).
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from anygpu import errors
from anygpu.api import (
    collect_receipts,
    devices,
    doctor,
    explain,
    freeze_support,
    last_receipt,
    map,
    offload,
    run,
    serve,
    statistics,
    stream,
    submit,
)
from anygpu.base import events
from anygpu.base.version import __version__
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeadlineExceeded,
    DeviceError,
    DeviceUnavailable,
    InvalidOption,
    MissingExtra,
    Overloaded,
    ResultMismatch,
    Unsupported,
)

if TYPE_CHECKING:
    from anygpu import fft, fleet, image, linalg, nn, observe, types
    from anygpu.array.namespace import *  # noqa: F403
    from anygpu.array.trace.tracing import record
    from anygpu.hardware.device import Device
    from anygpu.placement.kernels.kernel import Kernel
    from anygpu.placement.plan.plan import Plan
    from anygpu.program.graph import Program
    from anygpu.program.transforms import vmap
    from anygpu.receipts.receipt import Receipt
    from anygpu.runtime.future import Future
    from anygpu.runtime.runtime import Runtime
    from anygpu.runtime.serving.server import Server
    from anygpu.store.store import Store
    from anygpu.store.tensor import Tensor

__array_api_version__ = "2024.12"

__all__ = [
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

#: Names that are loaded when they are first used, and where they are.
_LATER = {
    "Device": "anygpu.hardware.device",
    "Future": "anygpu.runtime.future",
    "Kernel": "anygpu.placement.kernels.kernel",
    "Plan": "anygpu.placement.plan.plan",
    "Program": "anygpu.program.graph",
    "Receipt": "anygpu.receipts.receipt",
    "Runtime": "anygpu.runtime.runtime",
    "Server": "anygpu.runtime.serving.server",
    "Store": "anygpu.store.store",
    "Tensor": "anygpu.store.tensor",
    "record": "anygpu.array.trace.tracing",
    "vmap": "anygpu.program.transforms",
}


def __getattr__(name: str) -> Any:
    if name in ("fft", "fleet", "image", "linalg", "nn", "observe", "types"):
        return importlib.import_module(f"anygpu.{name}")
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
    elif name.startswith("_") and name != "__array_namespace_info__":
        raise AttributeError(f"module 'anygpu' has no attribute {name!r}")
    elif name in (namespace := importlib.import_module("anygpu.array.namespace")).__all__:
        value = getattr(namespace, name)
    else:
        return importlib.import_module("anygpu.types").moved(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *importlib.import_module("anygpu.array.namespace").__all__})


def _html_of(value: Any) -> str | None:
    html: str | None = importlib.import_module("anygpu.cli.notebook").html_of(value)
    return html


events.html_of = _html_of


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext anygpu`: the magics `%anygpu` and `%%offload`."""
    importlib.import_module("anygpu.cli.notebook.magics").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext anygpu`."""
    importlib.import_module("anygpu.cli.notebook.magics").unload(shell)


if os.environ.get("ANYGPU_OBSERVE"):
    importlib.import_module("anygpu.observe").observe_if_asked()
