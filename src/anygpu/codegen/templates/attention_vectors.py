"""Attention for processors: queries are the components of long vectors."""

from __future__ import annotations

from anygpu.codegen.syntax import indented
from anygpu.codegen.templates.attention_lines import LOG2_E, AttentionKernel
from anygpu.codegen.templates.matmul_syntax import Lines, guarded, plus


class InVectors(AttentionKernel):
    """Queries are the components of vectors. The last group has the last queries, and stores only its own."""

    def own(self) -> dict[str, Lines]:
        sizes, tiling = self.sizes, self.tiling
        vectors = tiling.queries
        kind = self.syntax.vector(tiling.vector)
        return {
            "vector": [kind],
            "integers": [kind.replace("float", "int")],
            "vectors": [str(vectors)],
            "key_block": [str(tiling.key_block)],
            "queries_size": [str(sizes.d * vectors)],
            "totals_size": [str(sizes.e * vectors)],
            "weights_size": [str(tiling.keys * vectors)],
            "row": [self.syntax.position("row", self.first_row())],
            "load_queries": self.load_queries(),
            "scores": self.scores(tiling.key_block),
            "scores_rest": self.scores_rest(),
            "add_values": self.add_values(),
            "store": self.store(),
        }

    def first_row(self) -> str:
        moved = self.sizes.n % self.tiling.rows
        return f"min(first_row, {self.sizes.n - self.tiling.rows})" if moved else "first_row"

    def load_queries(self) -> Lines:
        rows = self.tiling.rows
        place = f"((__local float *)queries)[d * {rows} + r]"
        return [
            f"for (int r = 0; r < {rows}; r++) {{",
            f"    for (int d = 0; d < {self.sizes.d}; d++) {{",
            f"        {place} = load_q(${{pass}}batch, row + r, d) * {self.scale};",
            "    }",
            "}",
        ]

    def scores(self, block: int) -> Lines:
        """Scores of a block of keys: products along d, then the bias, then the causal mask."""
        kind, vectors = self.syntax.vector(self.tiling.vector), self.tiling.queries
        each = ["#pragma unroll", f"for (int a = 0; a < {block}; a++) {{"]
        inner = ["#pragma unroll", f"for (int j = 0; j < {vectors}; j++) {{"]
        lines = [
            f"{kind} score[{block}][{vectors}];",
            *each,
            *indented([*inner, "    score[a][j] = 0.0f;", "}"]),
            "}",
            f"for (int d = 0; d < {self.sizes.d}; d++) {{",
            *indented(
                [
                    *each,
                    f"    const {kind} key = ({kind})(load_k(${{pass}}batch, step + i + a, d));",
                    *indented([*inner, f"    score[a][j] += key * queries[d * {vectors} + j];", "}"]),
                    "}",
                ]
            ),
            "}",
        ]
        if self.meaning.bias != "none":
            bias = f"{self.bias('step + i + a')} * {self.number(LOG2_E)}"
            add = [*inner, f"    score[a][j] += {bias};", "}"]
            lines += [*each, *indented(add), "}"]
        if self.meaning.causal:
            hidden = f"({self.whole_numbers()} + ({plus(f'row + j * {self.tiling.vector}', self.ahead)}))"
            seen = f"select(score[a][j], ({kind})(-INFINITY), step + i + a > {hidden})"
            mask = [*each, *indented([*inner, f"    score[a][j] = {seen};", "}"]), "}"]
            lines += guarded(mask, [f"step + i + {block - 1} > {plus('row', self.ahead)}"])
        keep = [
            f"    weights[(i + a) * {vectors} + j] = score[a][j];",
            "    now[j] = fmax(now[j], score[a][j]);",
        ]
        return [*lines, *each, *indented([*inner, *keep, "}"]), "}"]

    def whole_numbers(self) -> str:
        width = self.tiling.vector
        return f"(int{width})({', '.join(map(str, range(width)))})" if width > 1 else "0"

    def bias(self, key: str) -> str:
        kind, width = self.syntax.vector(self.tiling.vector), self.tiling.vector
        if self.meaning.bias == "keys":
            return f"({kind})(load_bias(${{pass}}batch, 0, {key}))"
        if self.vectors.bias:
            return f"load_bias_vector(${{pass}}batch, row + j * {width}, {key})"
        return self.syntax.made([f"load_bias(${{pass}}batch, row + j * {width} + {c}, {key})" for c in range(width)])

    def scores_rest(self) -> Lines:
        """Keys that are no whole block."""
        if not self.meaning.causal and self.sizes.m % self.tiling.key_block == 0:
            return []
        return ["for (; i < count; i++) {", *indented(self.scores(1)), "}"]

    def add_values(self) -> Lines:
        e, block = self.sizes.e, min(self.tiling.value_block, self.sizes.e)
        lines = [f"for (int e = 0; e <= {e - block}; e += {block}) {{", *indented(self.add_block(block)), "}"]
        if e % block:
            lines += ["{", *indented([f"const int e = {e - e % block};", *self.add_block(e % block)]), "}"]
        return lines

    def add_block(self, block: int) -> Lines:
        kind, vectors = self.syntax.vector(self.tiling.vector), self.tiling.queries
        each = ["#pragma unroll", f"for (int a = 0; a < {block}; a++) {{"]
        inner = ["#pragma unroll", f"for (int j = 0; j < {vectors}; j++) {{"]
        place = f"totals[(e + a) * {vectors} + j]"
        return [
            f"{kind} total[{block}][{vectors}];",
            *each,
            *indented([*inner, f"    total[a][j] = {place} * factor[j];", "}"]),
            "}",
            "for (i = 0; i < count; i++) {",
            *indented(
                [
                    *each,
                    f"    const {kind} value = ({kind})(load_v(${{pass}}batch, step + i, e + a));",
                    *indented([*inner, f"    total[a][j] += value * weights[i * {vectors} + j];", "}"]),
                    "}",
                ]
            ),
            "}",
            *each,
            *indented([*inner, f"    {place} = total[a][j];", "}"]),
            "}",
        ]

    def store(self) -> Lines:
        rows, vectors = self.tiling.rows, self.tiling.queries
        moved = self.sizes.n % rows
        return [
            f"for (int j = 0; j < {vectors}; j++) {{",
            "    sum[j] = 1.0f / sum[j];",
            f"    for (int e = 0; e < {self.sizes.e}; e++) {{",
            f"        totals[e * {vectors} + j] *= sum[j];",
            "    }",
            "}",
            f"for (int r = {'first_row - row' if moved else '0'}; r < {rows}; r++) {{",
            f"    for (int e = 0; e < {self.sizes.e}; e++) {{",
            f"        store_out(${{pass}}batch, row + r, e, ((__local float *)totals)[e * {rows} + r]);",
            "    }",
            "}",
        ]
