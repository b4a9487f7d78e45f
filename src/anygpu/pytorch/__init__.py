"""Helpers for those who train and infer with PyTorch: they measure what others guess, and fit into a loop that exists.

`Step` trains in the memory there is, `prefetch` has the next batch ready, `parallel` runs several modules at once, and
`settings` changes torch's settings for a block. None of it is a trainer.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from anygpu.errors import MissingExtra

if TYPE_CHECKING:
    from anygpu.pytorch.gradient_comparison import GradientsDiffer
    from anygpu.pytorch.prefetching import Batches, Prefetch, prefetch
    from anygpu.pytorch.side_by_side import ParallelResult, parallel
    from anygpu.pytorch.step import Step, StepResult
    from anygpu.pytorch.step_plans import StepPlan
    from anygpu.pytorch.torch_doctor import TorchDiagnosis, doctor
    from anygpu.pytorch.torch_settings import settings

__all__ = [
    "Batches",
    "GradientsDiffer",
    "ParallelResult",
    "Prefetch",
    "Step",
    "StepPlan",
    "StepResult",
    "TorchDiagnosis",
    "doctor",
    "parallel",
    "prefetch",
    "settings",
]

_MODULES = {
    "Batches": "prefetching",
    "GradientsDiffer": "gradient_comparison",
    "ParallelResult": "side_by_side",
    "Prefetch": "prefetching",
    "Step": "step",
    "StepPlan": "step_plans",
    "StepResult": "step",
    "TorchDiagnosis": "torch_doctor",
    "doctor": "torch_doctor",
    "parallel": "side_by_side",
    "prefetch": "prefetching",
    "settings": "torch_settings",
}

if find_spec("torch") is None:
    raise MissingExtra("torch", "torch")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'anygpu.pytorch' has no attribute {name!r}")
    return getattr(import_module(f"anygpu.pytorch.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
