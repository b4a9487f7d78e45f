"""anygpu runs ordinary NumPy-style functions on whatever GPU the machine has, or on none, and says why.

Public names are exported here; beside those listed below, every name of the Python Array API standard 2024.12 is one
(`anygpu.namespace` lists them; they are loaded when the first of them is used). Everything else is private. Importing
the package opens no device and loads none of the optional libraries.

The package is read in the order the data flows: `array` (what the user holds), `program` (what is to be computed, as
data), `engines` (the libraries that compute), `runtime` (where programs meet devices). Beside that way stand `hardware`
(what there is, as frozen facts) and `workers` (the processes that touch devices).
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from anygpu._version import __version__
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
from anygpu.base.display import painters
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    CannotCompile,
    ClusterError,
    ClusterUnavailable,
    CopyNeeded,
    DeadlineExceeded,
    DeviceError,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InsecureCluster,
    InvalidKernel,
    InvalidOption,
    InvalidProgram,
    InvalidTensorFile,
    InvalidTransition,
    KernelError,
    KernelOutOfBounds,
    MissingExtra,
    NameTaken,
    NotANumber,
    NotHeld,
    NotRecordable,
    OutOfMemory,
    OverBudget,
    Overloaded,
    PoisonTask,
    QueueFull,
    QuotaExceeded,
    ResultMismatch,
    RuntimeClosed,
    StoreClosed,
    StoreError,
    TooBig,
    UnknownTensor,
    Unsupported,
    ValueNeeded,
    WrongKernel,
)

if TYPE_CHECKING:
    from anygpu import fft, fleet, image, linalg, nn, observe
    from anygpu.array.trace.tracing import record
    from anygpu.fallback_warnings import DeviceFallback, HostFallback, host_operations
    from anygpu.hardware.cards import Card
    from anygpu.hardware.device import Device, Unavailable
    from anygpu.hardware.diagnosis import Diagnosis
    from anygpu.hardware.diagnosis_context import Finding
    from anygpu.hardware.usage.usage import Usage
    from anygpu.kernels.kernel import Kernel
    from anygpu.namespace import *  # noqa: F403
    from anygpu.placement.offload import Result
    from anygpu.plan.plan import Plan
    from anygpu.program.batching import vmap
    from anygpu.program.graph import Program
    from anygpu.receipts import Attempt, HostOperation, Phases, Receipt
    from anygpu.runtime.future import Future
    from anygpu.runtime.health import Health
    from anygpu.runtime.mapping import Outcome
    from anygpu.runtime.runtime import Runtime
    from anygpu.serving.server import Server
    from anygpu.store.store import Store
    from anygpu.store.tensor import Tensor
    from anygpu.streams.report import Streamed
    from anygpu.tasks.tenants import Tenant

__array_api_version__ = "2024.12"

__all__ = [
    "AllocationError",
    "AnyGPUError",
    "Attempt",
    "CannotCompile",
    "Card",
    "ClusterError",
    "ClusterUnavailable",
    "CopyNeeded",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "DeviceFallback",
    "DeviceHung",
    "DeviceLost",
    "DevicePoisoned",
    "DeviceUnavailable",
    "Diagnosis",
    "Finding",
    "Future",
    "Health",
    "HostFallback",
    "HostOperation",
    "InsecureCluster",
    "InvalidKernel",
    "InvalidOption",
    "InvalidProgram",
    "InvalidTensorFile",
    "InvalidTransition",
    "Kernel",
    "KernelError",
    "KernelOutOfBounds",
    "MissingExtra",
    "NameTaken",
    "NotANumber",
    "NotHeld",
    "NotRecordable",
    "OutOfMemory",
    "Outcome",
    "OverBudget",
    "Overloaded",
    "Phases",
    "Plan",
    "PoisonTask",
    "Program",
    "QueueFull",
    "QuotaExceeded",
    "Receipt",
    "Result",
    "ResultMismatch",
    "Runtime",
    "RuntimeClosed",
    "Server",
    "Store",
    "StoreClosed",
    "StoreError",
    "Streamed",
    "Tenant",
    "Tensor",
    "TooBig",
    "Unavailable",
    "UnknownTensor",
    "Unsupported",
    "Usage",
    "ValueNeeded",
    "WrongKernel",
    "__array_api_version__",
    "__version__",
    "collect_receipts",
    "devices",
    "doctor",
    "explain",
    "fft",
    "fleet",
    "freeze_support",
    "host_operations",
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
    "vmap",
]

#: Names that are loaded when they are first used, and where they are.
_LATER = {
    "Attempt": "anygpu.receipts",
    "Card": "anygpu.hardware.cards",
    "Device": "anygpu.hardware.device",
    "DeviceFallback": "anygpu.fallback_warnings",
    "Diagnosis": "anygpu.hardware.diagnosis",
    "Finding": "anygpu.hardware.diagnosis_context",
    "Future": "anygpu.runtime.future",
    "Health": "anygpu.runtime.health",
    "HostFallback": "anygpu.fallback_warnings",
    "HostOperation": "anygpu.receipts",
    "Kernel": "anygpu.kernels.kernel",
    "Outcome": "anygpu.runtime.mapping",
    "Phases": "anygpu.receipts",
    "Plan": "anygpu.plan.plan",
    "Program": "anygpu.program.graph",
    "Receipt": "anygpu.receipts",
    "Result": "anygpu.placement.offload",
    "Runtime": "anygpu.runtime.runtime",
    "Server": "anygpu.serving.server",
    "Store": "anygpu.store.store",
    "Streamed": "anygpu.streams.report",
    "Tenant": "anygpu.tasks.tenants",
    "Tensor": "anygpu.store.tensor",
    "Unavailable": "anygpu.hardware.device",
    "Usage": "anygpu.hardware.usage.usage",
    "host_operations": "anygpu.fallback_warnings",
    "record": "anygpu.array.trace.tracing",
    "vmap": "anygpu.program.batching",
}


def __getattr__(name: str) -> Any:
    if name in ("fft", "fleet", "image", "linalg", "nn", "observe"):
        return importlib.import_module(f"anygpu.{name}")
    if name in _LATER:
        value = getattr(importlib.import_module(_LATER[name]), name)
    else:
        if name.startswith("_") and name != "__array_namespace_info__":
            raise AttributeError(f"module 'anygpu' has no attribute {name!r}")
        namespace = importlib.import_module("anygpu.namespace")
        if name not in namespace.__all__:
            raise AttributeError(f"module 'anygpu' has no attribute {name!r}")
        value = getattr(namespace, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *importlib.import_module("anygpu.namespace").__all__})


def _draw(value: Any) -> str | None:
    html: str | None = importlib.import_module("anygpu.notebook").html_of(value)
    return html


painters.append(_draw)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext anygpu`: the magics `%anygpu` and `%%offload`."""
    importlib.import_module("anygpu.notebook.magics").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext anygpu`."""
    importlib.import_module("anygpu.notebook.magics").unload(shell)


if os.environ.get("ANYGPU_OBSERVE"):
    importlib.import_module("anygpu.observe").observe_if_asked()
