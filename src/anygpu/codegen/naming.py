"""Kernels that differ only in which nodes of a program they stand for get the same text, and are compiled once.

Names in kernels are made of the numbers of nodes, so that a person can find them in the program. In a model of six
equal layers that makes six texts of one kernel, each compiled and tuned for itself. Here nodes are renumbered in each
kernel, in the order in which they appear.
"""

from __future__ import annotations

import re

import msgspec

from anygpu.codegen.kernel import Kernel

#: Inputs as `input_a` or `input_x30`, and `t17`, `sum_17`, `read_17_0`. No language has words of its own like these.
_NAME = re.compile(r"\b(?:((?:[a-z_]*_)?input_)([a-z]\d*)|((?:[a-z_]*_)?t|[a-z][a-z_]*_)(\d+))(?=_|\b)")


def renumbered(kernel: Kernel) -> Kernel:
    """The same kernel with numbers of its own. What a user wrote stays as it is."""
    if kernel.own is not None:
        return kernel
    ranks: dict[str, int] = {}
    inputs: dict[str, int] = {}

    def renamed(match: re.Match[str]) -> str:
        input_prefix, name, prefix, number = match.groups()
        if name is not None:
            rank = inputs.setdefault(name, len(inputs))
            return f"{input_prefix}{chr(ord('a') + rank) if rank < 26 else f'x{rank}'}"
        return f"{prefix}{ranks.setdefault(number, len(ranks))}"

    source = _NAME.sub(renamed, kernel.source)
    return msgspec.structs.replace(kernel, source=source, name=_NAME.sub(renamed, kernel.name))
