"""Matrix products: out[b, m, n] = sum over k of a[b, m, k] * b[b, k, n], in three forms that measuring chooses from.

"blocks" reads operands where they are, "tiles" shares them in a group's memory, "panels" copies one where a processor
reads it in order. The operands are reached only through accessor functions, so producers, views and windows are
fused into those; the store accessor has the epilogue.
"""

from __future__ import annotations

from typing import Unpack

from anygpu.codegen.target import ComputeType, Dialect
from anygpu.codegen.templates.matmul_lines import Blocks, MatmulBody
from anygpu.codegen.templates.matmul_panels import Panels
from anygpu.codegen.templates.matmul_syntax import TypedSyntax
from anygpu.codegen.templates.matmul_tiles import Tiles
from anygpu.codegen.templates.matmul_tiling import Form, Sizes, Tiling, Vectors, grid, parts, tilings
from anygpu.codegen.templates.stages import Surroundings, filled

__all__ = ["Sizes", "Tiling", "Vectors", "grid", "parts", "text", "tilings"]

_KERNELS: dict[Form, type[MatmulBody]] = {"blocks": Blocks, "tiles": Tiles, "panels": Panels}


def text(
    dialect: Dialect,
    type: ComputeType,
    sizes: Sizes,
    tiling: Tiling,
    vectors: Vectors,
    **around: Unpack[Surroundings],
) -> str:
    """The kernel. `tiling` is one of `tilings`; its tile is not larger than the result."""
    kernel = _KERNELS[tiling.form](TypedSyntax(dialect, type), sizes, tiling, vectors)
    return filled(dialect, f"matmul_{tiling.form}", kernel.values(), grid(sizes, tiling)[1], around)
