"""What the engines that compile cannot do on a device, node by node, each with its reason."""

from __future__ import annotations

from anygpu.codegen.custom.lowering import refusal
from anygpu.codegen.lower import is_general_power
from anygpu.codegen.target import Target
from anygpu.codegen.types import missing_feature
from anygpu.engines.protocol import Lack, why_not_here
from anygpu.errors import InvalidKernel
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.ops.custom import Custom
from anygpu.program.primitives import Binary, Input, Linear, Primitive, Reduce, Scan, Spec

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
        elif isinstance(op, Binary) and op.fn == "power" and is_general_power(program, position):
            found.append(Lack(position, "complex powers of infinities and NaN are NumPy's own"))
        elif isinstance(op, Reduce | Scan) and op.fn == "prod" and KIND[specs[0].dtype] == "complex":
            found.append(Lack(position, "signs of zeros in complex products depend on their order"))
        elif isinstance(op, Custom):
            why = _why_not_custom(op, tuple(specs[:-1]), target, device)
            if why is not None:
                found.append(Lack(position, why))
    return found


def _why_not_custom(op: Custom, inputs: tuple[Spec, ...], target: Target, device: str) -> str | None:
    """A kernel in another language is as good as its reference."""
    if op.language == target.dialect:
        try:
            why = refusal(op, inputs, target)
        except InvalidKernel:
            # It is raised when it is compiled: a kernel that is wrong is wrong everywhere.
            return None
        return None if why is None else f"the kernel {op.title}: {why}"
    return why_not_here(op, device, lambda reference: why_not(reference, target, device))
