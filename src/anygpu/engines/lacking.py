"""What the engines that compile cannot do on a device, node by node, each with its reason."""

from __future__ import annotations

from anygpu.codegen.target import Target
from anygpu.codegen.types import missing_feature
from anygpu.engines.protocol import Lack
from anygpu.program.graph import Program
from anygpu.program.primitives import Input, Linear, Primitive

#: Without a kernel of their own.
_WITHOUT: tuple[type[Primitive], ...] = (Linear,)
#: Positions in kernels are 32-bit integers with a sign.
_MOST_ELEMENTS = (1 << 31) - 1
_NAMES = {"f64": "64-bit floating point", "i64": "64-bit integers"}


def why_not(program: Program, target: Target, device: str) -> list[Lack]:
    found: list[Lack] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, Input):
            continue
        specs = [program.specs[source] for source in inputs] + [program.specs[position]]
        missing = next((need for spec in specs if (need := missing_feature(spec.dtype, target))), None)
        if missing is not None:
            found.append(Lack(position, f"{device} has no {_NAMES[missing]}"))
        elif any(spec.size > _MOST_ELEMENTS for spec in specs):
            found.append(Lack(position, f"{target.dialect} kernels count elements in 31 bits"))
        elif isinstance(op, _WITHOUT) and program.specs[position].size:
            found.append(Lack(position, f"anygpu has no kernel for {op.name}"))
    return found
