"""Mistakes and losses that are safe to cause: each must end in an error that says so, and leave a device that works.

Nothing here loops for ever or writes beyond an array on purpose without a guard: it runs on the machine, and perhaps on
the display, of somebody who does us a favour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import entry_of
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Gather, Input, Iota, Primitive, Scatter
from anygpu.verify.cases import ActCase, Case, Check, Tried
from anygpu.verify.subject import Subject

#: 2 to the power of 48 numbers of 4 bytes, a petabyte: no machine begins to give it.
TOO_MANY = 1 << 48

_BROKEN = {
    "wgsl": """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn twice(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&y)) { y[id.x] = 2.0 * misspelt[id.x]; }
}
""",
    "opencl": """
__kernel void twice(__global const float *x, __global float *y) {
    int i = get_global_id(0);
    y[i] = 2.0f * misspelt[i];
}
""",
}
_BEYOND = {
    "wgsl": _BROKEN["wgsl"].replace("misspelt[id.x]", "x[id.x + 1000u]"),
    "opencl": _BROKEN["opencl"].replace("misspelt[i]", "x[i + 1000]"),
}


def _works(subject: Subject) -> str:
    """A sentence if the device does not compute any more."""
    x = np.arange(1000, dtype=np.int32)
    (got,) = subject.run(_one(Binary("add"), x, x), (x, x)).results
    return "" if np.array_equal(got, x + x) else "afterwards x + x is wrong."


def _one(op: Primitive, *inputs: HostArray) -> Program:
    nodes = [Node(Input(each.shape, each.dtype.name)) for each in inputs]  # type: ignore[arg-type]
    return Program([*nodes, Node(op, tuple(range(len(inputs))))], [len(inputs)])


def _refused(subject: Subject, wanted: tuple[type[Exception], ...], attempt: Callable[[], Any]) -> Tried:
    """Whether the right error comes, and the device goes on."""
    names = " or ".join(each.__name__ for each in wanted)
    try:
        attempt()
    except wanted:
        return Tried(_works(subject))
    return Tried(f"{names} should have been raised, and nothing was.")


def _index(op: Primitive, index: int, *more: HostArray) -> Callable[[Subject], Tried]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    indices = np.array([0, index, 1])

    def act(subject: Subject) -> Tried:
        return _refused(subject, (IndexError,), lambda: subject.run(_one(op, x, indices, *more), (x, indices, *more)))

    return act


def _negative_power(subject: Subject) -> Tried:
    x, y = np.array([2, 3]), np.array([1, -1])
    return _refused(subject, (ValueError,), lambda: subject.run(_one(Binary("power"), x, y), (x, y)))


def _too_much_memory(subject: Subject) -> Tried:
    program = Program([Node(Iota(TOO_MANY, "float32"))], [0])
    return _refused(subject, (MemoryError, ag.Unsupported), lambda: subject.run(program, ()))


def _killed(subject: Subject) -> Tried:
    """Arrays are restored, and calls go on: the handle opens the device again, as it does for a user."""
    x = np.arange(1000, dtype=np.int32)
    handle = subject.handle
    kept = handle.upload(x)
    generation = subject.worker.generation
    subject.worker.kill()
    (doubled,) = handle.run(_one(Binary("add"), x, x), [kept, kept])
    if not np.array_equal(handle.download(doubled), x + x):
        return Tried("after its process was killed, an array that was on the device has other values.")
    if subject.worker.generation <= generation:
        return Tried("the process that was killed was not replaced.")
    return Tried(_works(subject))


def _broken_kernel(source: str) -> Callable[[Subject], Tried]:
    return lambda subject: _refused(subject, (ag.errors.InvalidKernel,), lambda: ag.Kernel(source))


def _kernel_beyond_its_array(source: str) -> Callable[[Subject], Tried]:
    def act(subject: Subject) -> Tried:
        x = ag.asarray(np.arange(100, dtype=np.float32), device=subject.device.id)
        return _refused(subject, (ag.errors.KernelOutOfBounds,), lambda: np.asarray(ag.Kernel(source, timeout=30)(x)))

    return act


def _acts(subject: Subject) -> Iterator[tuple[str, Callable[[Subject], Tried]]]:
    update = np.zeros((3, 3), np.float32)
    yield "an index beyond the array", _index(Gather(1), 4)
    yield "a negative index", _index(Gather(1), -1)
    yield "a huge index", _index(Gather(1), 1 << 40)
    yield "writing to an index beyond the array", _index(Scatter("set", 1), 4, update)
    yield "adding at a negative index", _index(Scatter("add", 1), -1, update)
    yield "a negative power of a whole number", _negative_power
    yield "a petabyte of memory", _too_much_memory
    if subject.isolation == "process":
        yield "its process is killed", _killed
    for language in entry_of(subject.device.id).traits.languages:
        if language in _BROKEN:
            yield "a kernel that does not compile", _broken_kernel(_BROKEN[language])
            yield "a kernel that reads beyond its array", _kernel_beyond_its_array(_BEYOND[language])


def _cases(subject: Subject) -> Iterator[Case]:
    for number, (name, act) in enumerate(_acts(subject)):
        yield ActCase(name, number, act)


FAULTS = Check(
    "faults",
    "Mistakes and losses end in the right error, and the device goes on.",
    0.04,
    lambda subject: sum(1 for _ in _acts(subject)),
    _cases,
)
