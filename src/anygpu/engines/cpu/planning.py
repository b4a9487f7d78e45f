"""From the nests of a program to how it runs. Only what has to be compiled comes here."""

from __future__ import annotations

import msgspec

from anygpu.codegen.kernel import Slot
from anygpu.codegen.kernel_ir import Buffer
from anygpu.codegen.nests.steps import Nest, NestProgram, Step
from anygpu.engines.cpu.run_plan import HostRun, NestRun, RunPlan
from anygpu.program.primitives import Spec

#: A nest with more scratch than that has it in memory of its own for each part: stacks of threads may be short.
_MOST_STACK = 32 << 10
#: What a core is taken to do in a second at least.
_OPERATIONS, _FUNCTIONS, _BYTES = 4e9, 4e8, 1e10


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
