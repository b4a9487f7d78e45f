"""Which values of a program are one number everywhere, so that engines choose a short way for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.base.float_errors import float_errors_ignored
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.primitives import Broadcast, Cast, Constant, Reshape, Spec


def uniform_numbers(program: Program) -> dict[int, Any]:
    """By node: the Python number that it is everywhere, where that is a part of the program."""
    found: dict[int, Any] = {}
    for position, (op, inputs) in enumerate(program.nodes):
        spec = program.specs[position]
        number = None
        if isinstance(op, Constant) and spec.size == 1 and spec.dtype != "bfloat16":
            number = np.frombuffer(op.data, op.dtype)[0].item()
        elif isinstance(op, Broadcast | Reshape | Cast) and inputs[0] in found:
            number = _as(found[inputs[0]], spec)
        if number is not None:
            found[position] = number
    return found


def whole_exponent(exponent: Any) -> int | None:
    """The exponent of a complex power that NumPy multiplies out; `None` for other exponents and non-constants."""
    if exponent is None or exponent != exponent or exponent.imag or exponent.real != exponent.real // 1:
        return None
    return int(exponent.real) if abs(exponent.real) < 100 else None


@float_errors_ignored
def _as(number: Any, spec: Spec) -> Any:
    """The same number after a cast; `None` when Python has none like it."""
    if spec.dtype == "bfloat16":
        return None
    real = number.real if KIND[spec.dtype] not in ("complex", "bool") else number
    return np.asarray(real).astype(spec.dtype).item()
