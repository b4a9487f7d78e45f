"""The lines that both forms of attention share."""

from __future__ import annotations

from anygpu.codegen.templates.attention_tiling import Meaning, Sizes, Tiling, Vectors
from anygpu.codegen.templates.matmul_syntax import Lines, TypedSyntax, plus

LOG2_E = 1.4426950408889634
#: Below every score but that of what is not seen.
LOWEST = -3.402823466e38


class AttentionKernel:
    """The base of both forms."""

    def __init__(self, syntax: TypedSyntax, sizes: Sizes, meaning: Meaning, tiling: Tiling, vectors: Vectors) -> None:
        self.syntax, self.sizes, self.meaning, self.tiling, self.vectors = syntax, sizes, meaning, tiling, vectors
        self.blocks = -(-sizes.n // tiling.rows)
        #: Query i attends to the keys up to i + ahead.
        self.ahead = sizes.m - sizes.n

    def values(self) -> dict[str, Lines]:
        sizes, tiling = self.sizes, self.tiling
        kind = "causal attention" if self.meaning.causal else "attention"
        return {
            "title": [f"{kind}, {sizes.batch} times: [{sizes.n}, {sizes.d}] to [{sizes.m}, {sizes.d}, {sizes.e}]"],
            "rows": [str(tiling.rows)],
            "queries": [str(tiling.queries)],
            "keys": [str(tiling.keys)],
            "blocks": [str(self.blocks)],
            "end": ["end" if self.meaning.causal else str(sizes.m)],
            "last_key": self.last_key(),
            **self.own(),
        }

    def own(self) -> dict[str, Lines]:
        raise NotImplementedError

    def last_key(self) -> Lines:
        """Declares the end of the keys that any query of the group attends to."""
        if not self.meaning.causal:
            return []
        return [self.syntax.position("end", f"min({self.sizes.m}, {plus('first_row', self.tiling.rows + self.ahead)})")]

    @property
    def scale(self) -> str:
        """Scores are logarithms of weights to the base of two."""
        return self.number(self.meaning.scale * LOG2_E)

    def number(self, value: float) -> str:
        return repr(float(value)) if self.syntax.wgsl else f"{float(value)!r}f"

    @property
    def may_see_nothing(self) -> bool:
        """Whether there may be a query all of whose weights are zero."""
        return self.meaning.bias != "none" or (self.meaning.causal and self.ahead < 0)
