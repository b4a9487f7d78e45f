"""From a program to how it runs and the text of its native code. This runs in the compiling child, without NumPy.

What stands between Python and the nests is part of the text: `@segment<k>` does the nests between two host steps.
"""

from __future__ import annotations

import msgspec

from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.dialects.llvm.numpy_loops import loops_of
from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
from anygpu.engines.codegen.kernel import Slot
from anygpu.engines.codegen.kernel_ir import Buffer
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import Nest, NestProgram, NestTooLarge, Step
from anygpu.engines.cpu.run_plan import HostRun, NestRun, RunPlan, aligned, segments_of
from anygpu.errors import CannotCompile
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

#: A nest with more scratch than that has it in memory of its own for each part: stacks of threads may be short.
_MOST_STACK = 32 << 10
#: What a core is taken to do in a second at least.
_OPERATIONS, _FUNCTIONS, _BYTES = 4e9, 4e8, 1e10


def native_module(program: Program, target: NativeTarget) -> tuple[RunPlan, str]:
    """How a program runs, and the text of its module. Raises `CannotCompile`."""
    try:
        scheduled = nests(program, vector_bytes=target.vector_bytes)
        in_slots = with_scratch_in_slots(scheduled)
        plan = run_plan(in_slots, program.inputs, own=len(scheduled.slots))
        text = module_text(in_slots, target, noted=plan.noted)
        plan = msgspec.structs.replace(plan, loops=loops_of(text))
        return plan, text + entry_text(plan)
    except NestTooLarge as error:
        raise CannotCompile("cpu", f"The program became too large for native code: {error}.") from error


def with_scratch_in_slots(nests: NestProgram) -> NestProgram:
    """The same, with much scratch of a nest as buffers of it: `run_plan` sees to it that each part has its own."""
    slots = list(nests.slots)
    steps: list[Step] = []
    for step in nests.steps:
        if isinstance(step, Nest) and sum(each.nbytes for each in step.scratch) > _MOST_STACK:
            buffers = list(step.buffers)
            for each in step.scratch:
                buffers.append(Buffer(each.name, len(slots), each.dtype, each.size, "read_write"))
                slots.append(Slot(each.nbytes, "temporary"))
            step = msgspec.structs.replace(step, buffers=tuple(buffers), scratch=())
        steps.append(step)
    return msgspec.structs.replace(nests, slots=tuple(slots), steps=tuple(steps))


def run_plan(nests: NestProgram, inputs: tuple[Spec, ...], own: int) -> RunPlan:
    """How nests are run. Each part of a nest has slots from `own` on for itself."""
    steps: list[NestRun | HostRun] = []
    seconds = 0.0
    for step in nests.steps:
        if isinstance(step, Nest):
            slots = tuple(buffer.slot for buffer in step.buffers)
            scratch = tuple(slot for slot in slots if slot >= own)
            steps.append(NestRun(step.name, slots, step.count, step.grain, scratch))
            cost = step.cost
            seconds += cost.operations / _OPERATIONS + cost.functions / _FUNCTIONS + cost.bytes / _BYTES
        else:
            steps.append(HostRun(step.node, step.sources, step.slot))
    return RunPlan(inputs, nests.slots, tuple(steps), nests.outputs, nests.status, nests.checks, seconds)


_DECLARATIONS = """
declare void @pool_run(ptr, ptr, i64, i64)
declare ptr @memory_take(i64)
declare void @memory_give(ptr)
"""


def entry_text(plan: RunPlan) -> str:
    """The module's text after that of the nests."""
    segments = [segment for segment in segments_of(plan) if isinstance(segment, tuple)]
    parts = [_own_scratch_text(plan, nest) for segment in segments for nest in segment if nest.scratch]
    parts += [_segment_text(number, segment) for number, segment in enumerate(segments)]
    return "\n".join([_DECLARATIONS, *parts])


def _own_scratch_text(plan: RunPlan, nest: NestRun) -> str:
    """The nest with memory for its scratch, for each part. Without memory it does nothing, and marks the table."""
    offsets = [0]
    for slot in nest.scratch:
        offsets.append(offsets[-1] + aligned(plan.slots[slot].nbytes))
    lines = [f"define private void @{nest.name}.own(ptr %given, i64 %begin, i64 %end, i64 %part) nounwind {{"]
    lines.append(f"  %table = alloca [{plan.table_size} x ptr], align 16")
    lines.append(f"  %own = getelementptr ptr, ptr %table, i64 {plan.noted}")
    lines.append("  store ptr null, ptr %own")
    for slot in nest.slots:
        if slot not in nest.scratch:
            lines.append(f"  %from{slot} = getelementptr ptr, ptr %given, i64 {slot}")
            lines.append(f"  %slot{slot} = load ptr, ptr %from{slot}")
            lines.append(f"  %to{slot} = getelementptr ptr, ptr %table, i64 {slot}")
            lines.append(f"  store ptr %slot{slot}, ptr %to{slot}")
    lines.append(f"  %memory = call ptr @memory_take(i64 {offsets[-1]})")
    lines.append("  %none = icmp eq ptr %memory, null")
    lines.append("  br i1 %none, label %lacking, label %run")
    lines.append("run:")
    for slot, offset in zip(nest.scratch, offsets, strict=False):
        lines.append(f"  %slot{slot} = getelementptr i8, ptr %memory, i64 {offset}")
        lines.append(f"  %to{slot} = getelementptr ptr, ptr %table, i64 {slot}")
        lines.append(f"  store ptr %slot{slot}, ptr %to{slot}")
    lines.append(f"  call void @{nest.name}(ptr %table, i64 %begin, i64 %end, i64 %part)")
    lines.append("  call void @memory_give(ptr %memory)")
    lines.append("  %noted = load i64, ptr %own")
    lines.append("  %fine = icmp eq i64 %noted, 0")
    lines.append("  br i1 %fine, label %out, label %mark")
    lines.append("lacking:")
    lines.append("  br label %mark")
    lines.append("mark:")
    lines.append(f"  %entry = phi i64 [ {plan.noted}, %run ], [ {plan.lacking}, %lacking ]")
    lines.append("  %bits = phi i64 [ %noted, %run ], [ 1, %lacking ]")
    lines.append("  %at = getelementptr ptr, ptr %given, i64 %entry")
    lines.append("  %before = atomicrmw or ptr %at, i64 %bits monotonic")
    lines.append("  br label %out")
    lines.append("out:")
    lines.append("  ret void")
    return "\n".join([*lines, "}", ""])


def _segment_text(number: int, nests: tuple[NestRun, ...]) -> str:
    """The function that runs nests one after the other: those of one part here, others on the pool's threads."""
    lines = [f"define void @segment{number}(ptr %buffers) nounwind {{"]
    for nest in nests:
        name = f"{nest.name}.own" if nest.scratch else nest.name
        if nest.parts == 1:
            lines.append(f"  call void @{name}(ptr %buffers, i64 0, i64 {nest.count}, i64 0)")
        elif nest.parts:
            lines.append(f"  call void @pool_run(ptr @{name}, ptr %buffers, i64 {nest.count}, i64 {nest.grain})")
    return "\n".join([*lines, "  ret void", "}", ""])
