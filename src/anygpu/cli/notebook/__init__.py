"""Notebook output: receipts, plans, devices and programs as HTML, and the magics of `%load_ext anygpu`.

Nothing here runs or computes what it draws. The HTML has no scripts, asks for nothing from anywhere, and takes its
colours from the notebook's theme. `html_of` finds the function for a value by the name of its class, so that only the
module which draws it is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from anygpu.base.events import Listed

#: By class, the module beside this one and its function. Classes are named and not imported: some need torch.
_DRAWN_BY = {
    "anygpu.array.core.array.Array": ("outcomes", "array_html"),
    "anygpu.hardware.device.Device": ("outcomes", "device_html"),
    "anygpu.hardware.diagnosis.Diagnosis": ("outcomes", "diagnosis_html"),
    "anygpu.observe.statistics.Summary": ("receipts", "summary_html"),
    "anygpu.calls.offload.Result": ("outcomes", "result_html"),
    "anygpu.placement.plan.plan.Plan": ("receipts", "plan_html"),
    "anygpu.program.graph.Program": ("outcomes", "program_html"),
    "anygpu.pytorch.step.StepResult": ("outcomes", "step_html"),
    "anygpu.receipts.receipt.Receipt": ("receipts", "receipt_html"),
    "anygpu.runtime.future.Future": ("outcomes", "future_html"),
    "anygpu.runtime.runtime.Outcome": ("outcomes", "outcome_html"),
    "anygpu.store.report.Statistics": ("receipts", "store_html"),
    "anygpu.store.tensor.Tensor": ("outcomes", "tensor_html"),
    "anygpu.runtime.streams.pipeline.Streamed": ("outcomes", "streamed_html"),
}
#: For lists, by the class of all their items.
_LISTS_DRAWN_BY = {
    "anygpu.hardware.device.Device": ("outcomes", "devices_html"),
    "anygpu.receipts.receipt.Receipt": ("receipts", "receipts_html"),
    "anygpu.runtime.runtime.Outcome": ("outcomes", "outcomes_html"),
}


def html_of(value: Any) -> str | None:
    """The value as HTML; `None` for what we do not draw.

    A subclass is drawn as its base class is; a `Listed` only if all its items have one class.
    """
    if isinstance(value, Listed):
        kinds = {type(each) for each in value}
        drawn_by = _LISTS_DRAWN_BY.get(_name(kinds.pop())) if len(kinds) == 1 else None
    else:
        drawn_by = next((found for kind in type(value).__mro__ if (found := _DRAWN_BY.get(_name(kind)))), None)
    if drawn_by is None:
        return None
    module, function = drawn_by
    draw: Callable[[Any], str] = getattr(importlib.import_module(f"anygpu.cli.notebook.{module}"), function)
    return draw(value)


def _name(kind: type[Any]) -> str:
    """The full name of a class, as the tables have it."""
    return f"{kind.__module__}.{kind.__qualname__}"
