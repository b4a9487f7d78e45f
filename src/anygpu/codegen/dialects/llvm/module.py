"""A program of loop nests as one module of LLVM IR: a function for each nest."""

from __future__ import annotations

from math import gcd

from anygpu.codegen.dialects.llvm import loops
from anygpu.codegen.dialects.llvm.functions import Compiler, attributes_of
from anygpu.codegen.dialects.llvm.index import Counter, Multiple
from anygpu.codegen.dialects.llvm.memory import Memory, Region, stored_type
from anygpu.codegen.dialects.llvm.native import NativeTarget
from anygpu.codegen.dialects.llvm.statements import Body, Unit, written_by
from anygpu.codegen.dialects.llvm.values import I64, Value, Writer, constant
from anygpu.codegen.nests.steps import MOST_LINES, Nest, NestProgram, TooLarge
from anygpu.program.dtypes import is_floating

__all__ = ["NativeTarget", "module_text"]

_NODES = """
!0 = !{}
!1 = !{!"branch_weights", i32 1, i32 2000}
!2 = !{!"llvm.loop.unroll.disable"}
!3 = !{!"llvm.loop.vectorize.enable", i1 false}
"""


def module_text(nests: NestProgram, target: NativeTarget, *, noted: int | None = None) -> str:
    """The text of a module with a function `void <name>(ptr buffers, i64 begin, i64 end, i64 part)` for each nest.

    `buffers` is the table of the slots' addresses. `begin` is a multiple of the nest's grain, and `end` is one as well
    or the nest's count. What a nest notes (`RESULT`, `HIDDEN`, `WRAPPED`) becomes bits of entry `noted` of the table,
    if that is given. Raises `TooLarge` where that is more than LLVM should be given.
    """
    declared: dict[str, str] = {}
    defined: list[str] = []
    lines = 0
    for step in nests.steps:
        if isinstance(step, Nest):
            defined.append(_nest(step, nests, target, declared, noted))
            lines += defined[-1].count("\n")
            if lines > MOST_LINES:
                raise TooLarge(f"its loops have more than {MOST_LINES:,} instructions")
    head = f'target triple = "{target.triple}"\ntarget datalayout = "{target.data_layout}"\n'
    return "\n\n".join([head, *declared.values(), *defined, _NODES])


def _nest(nest: Nest, nests: NestProgram, target: NativeTarget, declared: dict[str, str], noted: int | None) -> str:
    w = Writer(declared)
    compiler = Compiler(w, target)
    written = written_by(nest.body)
    slots = {each.slot for each in nest.buffers if each.name in written}
    written |= {each.name for each in nest.buffers if each.slot in slots}
    regions: dict[str, Region] = {}
    for buffer in nest.buffers:
        pointer = _table_entry(w, buffer.name, buffer.slot)
        watched = noted is not None and is_floating(buffer.dtype) and nests.slots[buffer.slot].role == "output"
        is_written = buffer.name in written
        regions[buffer.name] = Region(pointer, buffer.dtype, buffer.size, not is_written, watched)
    for scratch in nest.scratch:
        elem = stored_type(scratch.dtype, target.halves)
        pointer = f"%{scratch.name}.data"
        w.first.append(f"  {pointer} = alloca [{scratch.size} x {elem}], align 64")
        regions[scratch.name] = Region(pointer, scratch.dtype, scratch.size, constant=False)
    if "status" not in regions and nests.status is not None:
        regions["status"] = Region(_table_entry(w, "status", nests.status), "uint32", len(nests.checks), constant=False)
    fewest = nest.count - (nest.parts - 1) * nest.grain
    unit = Unit(w, compiler, Memory(w, compiler, regions, notes=noted is not None), fewest, loops.write)
    grain, common = nest.grain, gcd(nest.grain, nest.count)
    counters = {
        "begin": Counter(Value("%begin", I64), Multiple(grain, 0)),
        "end": Counter(Value("%end", I64), Multiple(common, 0)),
        "part": Counter(Value("%part", I64)),
    }
    Body(unit, counters, {}).run(nest.body)
    if noted is not None and (found := unit.memory.noted()) is not None:
        w.add_line(f"br {w.compare('ne', found, constant(0, I64))}, label %noted, label %done")
        w.lines.append("noted:")
        w.add_line(f"%noted.at = getelementptr ptr, ptr %buffers, i64 {noted}")
        w.add_line(f"%noted.before = atomicrmw or ptr %noted.at, {found} monotonic")
        w.add_line("br label %done")
        w.lines.append("done:")
    # Never inlined: a nest takes what it only reads for invariable, and the caller has other nests that write it.
    attributes = f"noinline nounwind {attributes_of(target)}"
    return w.text(f"void @{nest.name}(ptr noalias %buffers, i64 %begin, i64 %end, i64 %part) {attributes}")


def _table_entry(w: Writer, name: str, slot: int) -> str:
    """The address of a slot, loaded at the very beginning."""
    w.first.append(f"  %{name}.at = getelementptr ptr, ptr %buffers, i64 {slot}")
    w.first.append(f"  %{name}.data = load ptr, ptr %{name}.at, align 8, !invariant.load !0")
    return f"%{name}.data"
