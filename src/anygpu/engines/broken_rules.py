"""Rules of a program that only values can break, as kernels and nests report them: see `codegen.kernel.Check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anygpu.codegen.kernel import MINUS_ONE, Check
from anygpu.errors import KernelOutOfBounds


def raise_broken(checks: Sequence[Check], status: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Raise for the first rule that is broken by the words of the status, if one is."""
    for check in checks:
        word = int(status.view(np.uint32)[check.number])
        if word:
            raise broken_rule(check, word)


def broken_rule(check: Check, word: int) -> Exception:
    """What NumPy raises for the same mistake."""
    if check.error == "negative_power":
        return ValueError("integers to negative integer powers are not allowed; convert the base to float first.")
    if check.error == "kernel":
        index = (word - 1 + check.length) % (1 << 32)
        return KernelOutOfBounds(
            check.kernel, check.buffer, index if index < 1 << 31 else index - (1 << 32), check.length
        )
    value = -1 if word == MINUS_ONE else word - 1 if word <= 1 << 31 else word - 1 - (1 << 32)
    return IndexError(f"index {value} is out of bounds for an axis with size {check.length}.")
