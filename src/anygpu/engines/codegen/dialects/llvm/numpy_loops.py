"""Calls of NumPy's own loops: the same last bits as NumPy's, for a vector of lanes at once.

A loop takes arrays, so the lanes go through the stack: they stay in the nearest cache. Its address, and that of the
data that it takes, are symbols that the loader fills in (see `anygpu.engines.cpu.numpy_loops`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from anygpu.engines.codegen.dialects.llvm.functions import attributes_of
from anygpu.engines.codegen.dialects.llvm.values import BYTES, NativeTarget, Type, Value, Writer

#: How the functions of kernels are called that are loops of NumPy's.
PREFIX = "numpy."
#: The dtypes of compute types.
_DTYPE = {"float": "float32", "double": "float64"}
_LOOP = re.compile(r"^declare void @(numpy\.\w+\.\w+)\(", re.MULTILINE)


def called(w: Writer, target: NativeTarget, fn: str, args: Sequence[Value]) -> Value:
    """Return the results of a loop, in as many lanes as the widest operand has."""
    args = w.fitted(args)
    type = args[0].type
    loop = f"{fn}.{_DTYPE[type.elem]}"
    full = f"@call.{loop}x{type.lanes}"
    if full not in w.declared:
        w.declared.setdefault(
            f"@{loop}", f"declare void @{loop}(ptr, ptr, ptr, ptr)\n@{loop}.data = external global i8"
        )
        w.declared[full] = _text(full, loop, type, len(args), target)
    return w.op(f"call {type} {full}({', '.join(map(str, args))})", type)


def loops_of(module: str) -> tuple[str, ...]:
    """Return the loops that a module calls."""
    return tuple(sorted(set(_LOOP.findall(module))))


def _text(full: str, loop: str, type: Type, operands: int, target: NativeTarget) -> str:
    """Return a function of the module that puts its operands on the stack and calls a loop for them."""
    names = [f"%x{number}" for number in range(operands)]
    places = [*(f"{name}.at" for name in names), "%result.at"]
    count = len(places)
    size = BYTES[type.elem]
    lines = [f"  {place} = alloca {type}, align 64" for place in places]
    lines += [f"  %given = alloca [{count} x ptr]", "  %lanes = alloca i64", f"  %steps = alloca [{count} x i64]"]
    lines += [f"  store {type} {name}, ptr {name}.at, align 64" for name in names]
    for number, place in enumerate(places):
        lines.append(f"  %given{number} = getelementptr ptr, ptr %given, i64 {number}")
        lines.append(f"  store ptr {place}, ptr %given{number}")
        lines.append(f"  %step{number} = getelementptr i64, ptr %steps, i64 {number}")
        lines.append(f"  store i64 {size}, ptr %step{number}")
    lines.append(f"  store i64 {type.lanes}, ptr %lanes")
    lines.append(f"  call void @{loop}(ptr %given, ptr %lanes, ptr %steps, ptr @{loop}.data)")
    lines.append(f"  %result = load {type}, ptr %result.at, align 64")
    lines.append(f"  ret {type} %result")
    taken = ", ".join(f"{type} {name}" for name in names)
    head = f"define internal {type} {full}({taken}) alwaysinline nounwind {attributes_of(target)} {{"
    return "\n".join([head, *lines, "}"])
