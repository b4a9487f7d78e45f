"""Targets that need no device, programs worth looking at, and what a schedule made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.engines.codegen.kernel import Kernel, Schedule
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec

#: The least that WebGPU promises, a graphics card, and a processor through OpenCL.
LEAST = Target(dialect="wgsl")
CARD = Target(dialect="wgsl", features=("f16", "f64", "i64"), group_limit=1024, group_memory=32768, bindings=16)
PROCESSOR = Target(
    dialect="opencl",
    features=("f64", "i64"),
    group_limit=4096,
    group_memory=1 << 21,
    bindings=64,
    binding_bytes=1 << 32,
    groups_per_dimension=None,
    loop_limit=(1 << 31) - 1,
)
TARGETS = {"least": LEAST, "card": CARD, "processor": PROCESSOR}


def spec(*shape: int, dtype: DType = "float32") -> Spec:
    return Spec(shape, dtype)


def plan(function: Callable[..., Any], *arguments: Any, target: Target = LEAST, **options: Any) -> Schedule:
    """The schedule of what the function does."""
    return schedule(record(function, *arguments), target, **options)


def with_limits(target: Target, **limits: Any) -> Target:
    return msgspec.structs.replace(target, **limits)


def names(planned: Schedule) -> list[str]:
    return [kernel.name for kernel in planned.kernels]


def roles(planned: Schedule) -> list[str]:
    """Of the slots that kernels or outputs use."""
    used = {slot for step in planned.steps for slot in slots_of(step)} | {each.slot for each in planned.outputs}
    return sorted(planned.slots[slot].role for slot in used)


def slots_of(step: Kernel) -> set[int]:
    return {binding.slot for binding in step.bindings}


def written(step: Kernel) -> set[int]:
    return {binding.slot for binding in step.bindings if binding.access != "read"}


def check_schedule(program: Program, planned: Schedule, target: Target) -> None:
    """What holds of every schedule; raises AssertionError with what does not."""
    ready = {slot for slot, each in enumerate(planned.slots) if each.role in ("input", "constant", "status")}
    for step in planned.steps:
        read = slots_of(step) - written(step)
        assert read <= ready, f"{step} reads what is not there yet: {read - ready}"
        changed = {slot for slot in written(step) if planned.slots[slot].role in ("input", "constant")}
        assert not changed, f"{step} writes to what belongs to others: {changed}"
        ready |= written(step)
    for output in planned.outputs:
        assert output.slot in ready or not output.spec.size, f"nobody computes {output}"
        assert output.offset + output.spec.nbytes <= max(planned.slots[output.slot].nbytes, 0), output
    assert [output.spec for output in planned.outputs] == list(program.results)
    assert [slot.nbytes for slot in planned.slots[: program.input_count]] == [each.nbytes for each in program.inputs]
    for kernel in planned.kernels:
        assert 0 < len(kernel.bindings) <= target.bindings, kernel.name
        assert 0 < kernel.group_size <= target.group_limit, kernel.name
        assert kernel.groups > 0, kernel.name
        for binding in kernel.bindings:
            if binding.window is not None:
                first, nbytes = binding.window
                assert 0 < nbytes <= target.binding_bytes, kernel.name
                assert first + nbytes <= planned.slots[binding.slot].nbytes, kernel.name
            else:
                assert planned.slots[binding.slot].nbytes <= target.binding_bytes, kernel.name
        shown = [(each.slot, each.window) for each in kernel.bindings]
        assert len(set(shown)) == len(shown), f"{kernel.name} binds the same twice: {shown}"


# -- programs


def softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5) * gain + bias


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def dense(x: Any, weights: Any, bias: Any) -> Any:
    return gelu(x @ weights + bias)


def sigmoid_chain(x: Any) -> Any:
    return 1 / (1 + np.exp(-(x * x / 2 + np.tanh(x) / 4 - 1)))
