"""Attention in one kernel: scores, softmax and the sum of values, with never more scores than a few keys have.

The greatest score so far is kept for every query; when a greater one comes, what was summed before is made smaller by
as much. "vectors" is for processors: queries are the components of long vectors. "lanes" is for wide machines: queries
are invocations, which share keys and values in the group's memory, or hand them to each other in a subgroup.
"""

from __future__ import annotations

from typing import Unpack

from anygpu.codegen.target import ComputeType, Dialect
from anygpu.codegen.templates.attention_lanes import InLanes
from anygpu.codegen.templates.attention_lines import AttentionKernel
from anygpu.codegen.templates.attention_tiling import (
    BiasOf,
    Meaning,
    Sizes,
    Tiling,
    Vectors,
    grid,
    shared_bytes,
    tilings,
    turns,
)
from anygpu.codegen.templates.attention_vectors import InVectors
from anygpu.codegen.templates.matmul_syntax import TypedSyntax
from anygpu.codegen.templates.stages import Surroundings, filled

__all__ = [
    "CALLS",
    "BiasOf",
    "Meaning",
    "Sizes",
    "Tiling",
    "Vectors",
    "grid",
    "shared_bytes",
    "text",
    "tilings",
    "turns",
]


def text(
    dialect: Dialect,
    sizes: Sizes,
    meaning: Meaning,
    tiling: Tiling,
    vectors: Vectors,
    *,
    calls: dict[str, str],
    exp2: str = "",
    **around: Unpack[Surroundings],
) -> str:
    """The kernel.

    `calls` has the names of functions, as in `CALLS`; `exp2` that of the dialect's own function where it is trusted.
    """
    syntax = TypedSyntax(dialect, "f32")
    kernel: AttentionKernel = InVectors(syntax, sizes, meaning, tiling, vectors)
    if tiling.form == "lanes":
        kernel = InLanes(syntax, sizes, meaning, tiling, vectors, exp2)
    return filled(dialect, f"attention_{tiling.form}", kernel.values(), grid(sizes, tiling)[1], around, calls)


CALLS: dict[str, tuple[str, ComputeType]] = {"nan": ("nan", "f32"), "infinity": ("infinity", "f32")}
