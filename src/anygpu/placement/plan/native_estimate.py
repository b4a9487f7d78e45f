"""The work of a program as native code: its loop nests and the steps that stay NumPy's, known without compiling it.

`native_steps` schedules the program as the compiler would, which takes a millisecond for ten operations, and counts
instructions and bytes; `native_seconds` makes a time of it by the measured speed of this processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from anygpu.engines.codegen.kernel import lifetimes
from anygpu.engines.codegen.nests.inspection import work_of
from anygpu.engines.codegen.nests.schedule import nests
from anygpu.engines.codegen.nests.steps import PART, HostStep, Nest, NestProgram
from anygpu.engines.cpu.runtime import threads_for
from anygpu.engines.numpy.lowering import evaluate_constant
from anygpu.placement.plan.calibration import Calibration, NativeSpeed
from anygpu.placement.plan.predicting import Kernel, most_at_once, seconds_of, structure_of
from anygpu.program.graph import Program
from anygpu.program.ops.custom import with_references
from anygpu.program.primitives import Primitive
from anygpu.program.transforms import simplified

#: Programs with more operations are not made into nests for a prediction: that takes a millisecond for ten of them.
MOST_NODES = 1000


#: What Python does takes so many times what a call of the smallest program takes: for each argument and result more
#: than one, around host steps, for each of these, and for each of its operands.
_ARGUMENT, _STEP_BY_STEP, _HOST_STEP, _OPERAND = 0.25, 8.0, 3.0, 0.3


#: Seconds of a nest beside its work, and of waking other threads.
_NEST, _THREADS = 3e-7, 5e-6


class NestWork(NamedTuple):
    """One nest: its instructions, the bytes of its buffers, and in how many parts threads share it."""

    instructions: float
    bytes: float
    parts: int


class HostWork(NamedTuple):
    """A step that NumPy computes."""

    kernel: Kernel
    op: Primitive
    #: Of its first operand.
    shape: tuple[int, ...]
    operands: int


class NativeSteps(NamedTuple):
    """Native code of a program, as predictions see it."""

    nests: tuple[NestWork, ...]
    host: tuple[HostWork, ...]
    #: Arrays that come and go.
    arguments: int
    peak_bytes: int


@lru_cache(maxsize=1024)
def native_steps(program: Program, vector_bytes: int) -> NativeSteps:
    """The nests and host steps of a program, on a processor with registers of so many bytes."""
    if len(program.nodes) <= MOST_NODES:
        # What cannot be made into nests cannot be compiled either: the engine says so when it is to.
        with suppress(Exception):
            simple = simplified(with_references(program, None), evaluate_constant)
            return _scheduled(simple, nests(simple, vector_bytes=vector_bytes), vector_bytes)
    return _one_by_one(program, vector_bytes)


def native_seconds(steps: NativeSteps, calibration: Calibration, speed: NativeSpeed) -> float:
    """What one call takes."""

    seconds = calibration.launch * (1.0 + _ARGUMENT * max(0, steps.arguments - 2))
    for nest in steps.nests:
        threads = min(speed.threads, float(nest.parts))
        computing = nest.instructions * speed.instruction / threads
        seconds += max(computing, nest.bytes / speed.bytes_per_second) + _NEST + (_THREADS if threads > 1 else 0.0)
    if steps.host:
        seconds += calibration.launch * _STEP_BY_STEP
    for step in steps.host:
        # What threads have computed apart is copied to one place.
        threads = min(speed.threads, threads_for(step.op, step.shape, math.ceil(speed.threads)))
        seconds += seconds_of(step.kernel, calibration) * 2 / (1 + threads)
        seconds += calibration.launch * (_HOST_STEP + _OPERAND * step.operands)
    return seconds


def _scheduled(program: Program, scheduled: NestProgram, vector_bytes: int) -> NativeSteps:
    """The work of nests and host steps, and the memory that temporaries need at once."""
    found: list[NestWork] = []
    host: list[HostWork] = []
    used: list[Sequence[int]] = []
    alone: dict[int, Kernel] = {}
    if any(isinstance(step, HostStep) for step in scheduled.steps):
        alone = {kernel.nodes[0]: kernel for kernel in structure_of(program, fuses=False).kernels}
    for step in scheduled.steps:
        if isinstance(step, Nest):
            work = work_of(step, vector_bytes)
            found.append(NestWork(work.instructions, work.bytes, step.parts))
            used.append([buffer.slot for buffer in step.buffers])
        else:
            op, inputs = program.nodes[step.node]
            shape = program.specs[inputs[0]].shape if inputs else ()
            if step.node in alone:
                host.append(HostWork(alone[step.node], op, shape, len(inputs)))
            used.append([*step.sources, step.slot])
    roles = [slot.role for slot in scheduled.slots]
    held = sum(slot.nbytes for slot in scheduled.slots if slot.role != "temporary")
    between = [
        (scheduled.slots[slot].nbytes, *span) for slot, span in lifetimes(used).items() if roles[slot] == "temporary"
    ]
    return NativeSteps(tuple(found), tuple(host), _arguments(program), held + most_at_once(between))


def _one_by_one(program: Program, vector_bytes: int) -> NativeSteps:
    """As if each operation were a nest."""
    structure = structure_of(program, fuses=False)
    found = []
    for kernel in structure.kernels:
        instructions = (kernel.amount + kernel.elements) * 4 / vector_bytes
        found.append(NestWork(instructions, kernel.traffic, max(1, round(instructions / PART))))
    return NativeSteps(tuple(found), (), _arguments(program), structure.peak_bytes)


def _arguments(program: Program) -> int:
    return program.input_count + len(program.outputs)
