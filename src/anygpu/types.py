"""The classes of what anygpu's functions take and return, for annotations and `isinstance`.

They are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anygpu.hardware.device import Card as Card
    from anygpu.hardware.device import Unavailable as Unavailable
    from anygpu.hardware.diagnosis import Diagnosis as Diagnosis
    from anygpu.hardware.inventory import Finding as Finding
    from anygpu.hardware.usage.usage import Usage as Usage
    from anygpu.placement.offload import Result as Result
    from anygpu.plan.plan import Candidate as Candidate
    from anygpu.plan.plan import Refused as Refused
    from anygpu.receipts.receipt import Attempt as Attempt
    from anygpu.receipts.receipt import HostOperation as HostOperation
    from anygpu.receipts.receipt import Phases as Phases
    from anygpu.runtime.health import Health as Health
    from anygpu.runtime.runtime import Outcome as Outcome
    from anygpu.runtime.streams.pipeline import Streamed as Streamed
    from anygpu.runtime.task_queue import Tenant as Tenant

_MODULES = {
    "Attempt": "anygpu.receipts.receipt",
    "Candidate": "anygpu.plan.plan",
    "Card": "anygpu.hardware.device",
    "Diagnosis": "anygpu.hardware.diagnosis",
    "Finding": "anygpu.hardware.inventory",
    "Health": "anygpu.runtime.health",
    "HostOperation": "anygpu.receipts.receipt",
    "Outcome": "anygpu.runtime.runtime",
    "Phases": "anygpu.receipts.receipt",
    "Refused": "anygpu.plan.plan",
    "Result": "anygpu.placement.offload",
    "Streamed": "anygpu.runtime.streams.pipeline",
    "Tenant": "anygpu.runtime.task_queue",
    "Unavailable": "anygpu.hardware.device",
    "Usage": "anygpu.hardware.usage.usage",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'anygpu.types' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
