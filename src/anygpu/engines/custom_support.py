"""A user's kernel on an engine that does not speak its language."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anygpu.engines.protocol import Lack
from anygpu.program.graph import Program
from anygpu.program.ops.custom import SPOKEN, Custom, reference_of


def why_not_here(op: Custom, engine: str, lacks: Callable[[Program], Sequence[Lack]]) -> str | None:
    """Why the engine cannot compute what the kernel means; `None` when it can."""
    if not op.reference:
        return (
            f"{engine} cannot run kernels in {SPOKEN[op.language]}, and {op.title} has no reference that can be traced"
        )
    return next((lack.reason for lack in lacks(reference_of(op))), None)
