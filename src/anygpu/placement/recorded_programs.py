"""Programs as functions are recorded, for those who profile a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anygpu.program.graph import Program

#: Called with every program that a function was recorded as. Empty unless somebody profiles the process.
listeners: list[Callable[[Program], None]] = []


def tell(program: Program) -> None:
    for listener in listeners:
        listener(program)
