"""The classes that anygpu's functions take and return, for annotations and `isinstance`.

Each is loaded when it is first used. `moved` finds the names that were in `anygpu` itself before 0.1.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from anygpu import errors

if TYPE_CHECKING:
    from anygpu.calls.offload import Result as Result
    from anygpu.hardware.device import Card as Card
    from anygpu.hardware.device import Unavailable as Unavailable
    from anygpu.hardware.diagnosis import Diagnosis as Diagnosis
    from anygpu.hardware.inventory import Finding as Finding
    from anygpu.hardware.usage import Usage as Usage
    from anygpu.placement.plan.plan import Candidate as Candidate
    from anygpu.placement.plan.plan import Refused as Refused
    from anygpu.receipts.receipt import Attempt as Attempt
    from anygpu.receipts.receipt import HostOperation as HostOperation
    from anygpu.receipts.receipt import Phases as Phases
    from anygpu.runtime.health import Health as Health
    from anygpu.runtime.runtime import Outcome as Outcome
    from anygpu.runtime.streams.pipeline import Streamed as Streamed
    from anygpu.runtime.task_queue import Tenant as Tenant

_MODULES = {
    "Attempt": "anygpu.receipts.receipt",
    "Candidate": "anygpu.placement.plan.plan",
    "Card": "anygpu.hardware.device",
    "Diagnosis": "anygpu.hardware.diagnosis",
    "Finding": "anygpu.hardware.inventory",
    "Health": "anygpu.runtime.health",
    "HostOperation": "anygpu.receipts.receipt",
    "Outcome": "anygpu.runtime.runtime",
    "Phases": "anygpu.receipts.receipt",
    "Refused": "anygpu.placement.plan.plan",
    "Result": "anygpu.calls.offload",
    "Streamed": "anygpu.runtime.streams.pipeline",
    "Tenant": "anygpu.runtime.task_queue",
    "Unavailable": "anygpu.hardware.device",
    "Usage": "anygpu.hardware.usage",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'anygpu.types' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)


def moved(name: str) -> Any:
    """The object that was `anygpu.name` before 0.1, with a `DeprecationWarning` that says where it is now.

    The old names stay for one release: classes are in `anygpu.types`, leaf errors in `anygpu.errors`. The warning
    points at the code that asked `anygpu` for the name. Raises `AttributeError` for a name that never was there.
    """
    if name == "host_operations":
        place = "anygpu.observe"
    elif name in _MODULES:
        place = __name__
    elif isinstance(getattr(errors, name, None), type):
        place = "anygpu.errors"
    else:
        raise AttributeError(f"module 'anygpu' has no attribute {name!r}")
    message = f"anygpu.{name} is {place}.{name} now. The old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(place), name)
