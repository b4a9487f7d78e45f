"""All checks in their order, and those that compare more than values: memory, faults, and times."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import anygpu as ag
from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.base.units import readable_bytes
from anygpu.engines.catalogue import entry_of
from anygpu.errors import AllocationError, InvalidOption
from anygpu.hardware.host import resident_bytes
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Gather, Iota, Primitive, Scatter
from anygpu.testing.cases import one_primitive
from anygpu.testing.verify import (
    ActCase,
    CallTiming,
    Subject,
    Tried,
    VerifyCase,
    VerifyCheck,
    judged,
    skipped_for_memory,
)
from anygpu.testing.verify.values import CONFORMANCE, DTYPES, PROGRAMS, SIZES, SPECIAL_VALUES, programs

# -- memory is given back: arrays come and go, and no more is in use afterwards than before


#: How often, after as many rounds in which caches fill, and how much each time.
ROUNDS = 24
ROUND_ELEMENTS = 1 << 20
#: What an allocator may keep of what was freed, where only the system counts.
_SLACK = 96 << 20


def _function(x: Any) -> Any:
    return np.sqrt(x * x + 1), x.sum()


def _round(subject: Subject, number: int) -> str:
    """Uploads an array, computes with it and drops it; a sentence if the sum is wrong."""
    handle = subject.handle
    x = np.full(ROUND_ELEMENTS, number, np.float32)
    program = record(_function, x)
    results = handle.run(program, [handle.upload(x)])
    total = float(handle.download(results[1]))
    is_right = total == number * float(ROUND_ELEMENTS)
    return "" if is_right else f"a sum of {ROUND_ELEMENTS:,} times {number} came as {total}."


def _comes_and_goes(subject: Subject) -> Tried:
    """Runs rounds of arrays twice, and compares the memory in use after each.

    Counted by the engine where it counts, exactly, and by the system otherwise, with `_SLACK`.
    """
    counted = [0, 0]
    for turn in range(2):
        for number in range(ROUNDS):
            wrong = _round(subject, number)
            if wrong:
                return Tried(wrong)
        gc.collect()
        subject.worker.reclaim()
        in_use = subject.worker.memory().in_use
        counted[turn] = resident_bytes(children=True) if in_use is None else in_use
    is_counted = subject.worker.memory().in_use is not None
    grown = counted[1] - counted[0]
    if grown > (0 if is_counted else _SLACK):
        return Tried(f"{ROUNDS} arrays that came and went have left {readable_bytes(grown)} in use.")
    return Tried()


def _many_at_once(subject: Subject) -> Tried:
    """Many small arrays live together, and each keeps its own values."""
    handle = subject.handle
    arrays = [np.arange(number, number + 97, dtype=np.int32) for number in range(256)]
    buffers = [handle.upload(each) for each in arrays]
    for number in range(0, 256, 3):
        buffers[number] = handle.upload(arrays[number])
    for number, (array, buffer) in enumerate(zip(arrays, buffers, strict=True)):
        if not np.array_equal(handle.download(buffer), array):
            return Tried(
                f"array {number} of 256 on the device at once was read back with other values than were written."
            )
    return Tried()


def _memory_cases(subject: Subject) -> Iterator[VerifyCase]:
    yield ActCase("arrays come and go", 0, _comes_and_goes)
    yield ActCase("256 arrays at once", 1, _many_at_once)


MEMORY = VerifyCheck(
    "memory", "Memory is given back, and arrays do not disturb each other.", 0.03, lambda subject: 2, _memory_cases
)


# -- mistakes and losses that are safe to cause: each must end in an error that says so, and leave a device that works
#
# Nothing here loops for ever or writes beyond an array on purpose without a guard: it runs on the machine, and perhaps
# on the display, of somebody who does us a favour.


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
#: WGSL keeps an index inside its array by itself. OpenCL C does not, so it is not tried there.
_BEYOND = _BROKEN["wgsl"].replace("misspelt[id.x]", "x[id.x + 1000u]")


def _works(subject: Subject) -> str:
    """A sentence if the device does not compute any more."""
    x = np.arange(1000, dtype=np.int32)
    (got,) = subject.run(one_primitive(Binary("add"), x, x), (x, x)).results
    return "" if np.array_equal(got, x + x) else "afterwards x + x is wrong."


def _refused(subject: Subject, wanted: tuple[type[Exception], ...], attempt: Callable[[], Any]) -> Tried:
    """Attempts something that must raise one of the errors; checks then that the device goes on."""
    names = " or ".join(each.__name__ for each in wanted)
    try:
        attempt()
    except wanted:
        return Tried(_works(subject))
    return Tried(f"{names} should have been raised, and nothing was.")


def _index(op: Primitive, index: int, *more: HostArray) -> Callable[[Subject], Tried]:
    """A case that indexes out of bounds, which must be an `IndexError`."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    indices = np.array([0, index, 1])

    def act(subject: Subject) -> Tried:
        program = one_primitive(op, x, indices, *more)
        return _refused(subject, (IndexError,), lambda: subject.run(program, (x, indices, *more)))

    return act


def _negative_power(subject: Subject) -> Tried:
    x, y = np.array([2, 3]), np.array([1, -1])
    return _refused(subject, (ValueError,), lambda: subject.run(one_primitive(Binary("power"), x, y), (x, y)))


def _too_much_memory(subject: Subject) -> Tried:
    program = Program([Node(Iota(TOO_MANY, "float32"))], [0])
    return _refused(subject, (MemoryError, ag.Unsupported), lambda: subject.run(program, ()))


def _killed(subject: Subject) -> Tried:
    """Kills the worker's process: arrays are restored, and calls go on.

    The handle opens the device again, as it does for a user.
    """
    x = np.arange(1000, dtype=np.int32)
    handle = subject.handle
    kept = handle.upload(x)
    generation = subject.worker.generation
    subject.worker.kill()
    (doubled,) = handle.run(one_primitive(Binary("add"), x, x), [kept, kept])
    if not np.array_equal(handle.download(doubled), x + x):
        return Tried("after its process was killed, an array that was on the device has other values.")
    if subject.worker.generation <= generation:
        return Tried("the process that was killed was not replaced.")
    return Tried(_works(subject))


def _broken_kernel(source: str) -> Callable[[Subject], Tried]:
    return lambda subject: _refused(subject, (ag.errors.InvalidKernel,), lambda: ag.Kernel(source))


def _kernel_beyond_its_array(subject: Subject) -> Tried:
    """Read beyond an array in WGSL: only values of the array itself, or zeros, may come out."""
    x = np.arange(100, dtype=np.float32)
    read = np.asarray(ag.Kernel(_BEYOND, timeout=30)(ag.asarray(x, device=subject.device.id)))
    if not np.isin(read, 2 * x).all():
        return Tried("a kernel read what lies beyond its array.")
    return Tried(_works(subject))


def _acts(subject: Subject) -> Iterator[tuple[str, Callable[[Subject], Tried]]]:
    """The mistakes and losses that this device can be put through, by name."""
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
        if language == "wgsl":
            yield "a kernel that reads beyond its array", _kernel_beyond_its_array


def _fault_cases(subject: Subject) -> Iterator[VerifyCase]:
    for number, (name, act) in enumerate(_acts(subject)):
        yield ActCase(name, number, act)


FAULTS = VerifyCheck(
    "faults",
    "Mistakes and losses end in the right error, and the device goes on.",
    0.04,
    lambda subject: sum(1 for _ in _acts(subject)),
    _fault_cases,
)


# -- A small part of the benchmarks: what calls take on the device and on NumPy, and that both return the same


ELEMENTS = (10_000, 1_000_000)
#: Calls of one kind: at least so many, and more as long as they take no longer than this together.
_FEWEST, _MOST = 3, 30
_SECONDS = 0.4


class Workload(NamedTuple):
    name: str
    function: Callable[..., Any]
    #: The arguments, for about so many elements.
    make: Callable[[int, np.random.Generator], tuple[HostArray, ...]]


def _add(x: Any) -> Any:
    return x + 1


def _chain(x: Any) -> Any:
    bend = x * x * 0.5 + np.tanh(x) * 0.25 - 1
    return np.sqrt(1 / (1 + np.exp(-bend)) + 0.5) * np.cos(bend) - np.abs(x)


def _sum(x: Any) -> Any:
    return x.sum()


def _softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _running_sum(x: Any) -> Any:
    return np.cumsum(x, axis=1)


def _product(x: Any, y: Any) -> Any:
    return x @ y


def _distances(x: Any, y: Any) -> Any:
    return (x * x).sum(axis=1)[:, None] - 2 * (x @ y.T) + (y * y).sum(axis=1)


def _transposed(x: Any) -> Any:
    return x.T + 1


def _sorted(x: Any) -> Any:
    return np.sort(x, axis=1)


def _spectrum(x: Any) -> Any:
    return np.abs(np.fft.rfft(x, axis=1))


def _line(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (rng.standard_normal(elements, np.float32),)


def _rows(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return (rng.standard_normal((max(1, elements // 256), 256), np.float32),)


def _squares(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    side = round((elements / 2) ** 0.5)
    return rng.standard_normal((side, side), np.float32), rng.standard_normal((side, side), np.float32)


def _points(elements: int, rng: np.random.Generator) -> tuple[HostArray, ...]:
    return rng.standard_normal((elements // 32, 16), np.float32), rng.standard_normal((64, 16), np.float32)


WORKLOADS = (
    Workload("add", _add, _line),
    Workload("chain of 12", _chain, _line),
    Workload("sum", _sum, _line),
    Workload("softmax of rows", _softmax, _rows),
    Workload("running sums of rows", _running_sum, _rows),
    Workload("matrix product", _product, _squares),
    Workload("distances", _distances, _points),
    Workload("transpose", _transposed, _rows),
    Workload("sort of rows", _sorted, _rows),
    Workload("spectrum of rows", _spectrum, _rows),
)


def _attempt(workload: Workload, elements: int, subject: Subject) -> Tried:
    """Calls a workload on the device, compares its result, and times it beside NumPy."""
    arguments = workload.make(elements, np.random.default_rng(elements))
    try:
        value = subject.call(workload.function, *arguments).value
        seconds = _median(lambda: subject.call(workload.function, *arguments))
    except AllocationError as refusal:
        return skipped_for_memory(refusal)
    found = judged(record(workload.function, *arguments), arguments, [np.asarray(value)], set())
    numpy_seconds = _median(lambda: workload.function(*arguments))
    timing = CallTiming(
        workload=workload.name,
        elements=elements,
        seconds=float(f"{seconds:.4g}"),
        numpy_seconds=float(f"{numpy_seconds:.4g}"),
    )
    return Tried(found.wrong, skipped=found.skipped, timings=(timing,))


def _median(call: Callable[[], object]) -> float:
    """The median seconds of a call: `_FEWEST` calls at least, `_MOST` or `_SECONDS` seconds at most."""
    taken: list[float] = []
    while len(taken) < _FEWEST or (len(taken) < _MOST and sum(taken) < _SECONDS):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _grid_cases(subject: Subject) -> Iterator[VerifyCase]:
    kinds = [(workload, elements) for elements in ELEMENTS for workload in WORKLOADS]
    for number, (workload, elements) in enumerate(kinds):
        yield ActCase(
            f"{workload.name}, {elements:,} elements",
            number,
            partial(_attempt, workload, elements),
        )


GRID = VerifyCheck(
    "grid",
    "Calls of NumPy functions are right, and timed.",
    0.06,
    lambda subject: len(WORKLOADS) * len(ELEMENTS),
    _grid_cases,
)


# -- all checks, in the order in which they are tried. The random programs come last, and get what time is left


NAMES = ("dtypes", "sizes", "memory", "faults", "grid", "conformance", "special-values", "programs")


def all_checks(count: int = PROGRAMS, *, first: int = 0) -> tuple[VerifyCheck, ...]:
    """All checks in the order in which they are tried, with so many random programs from a first seed on."""
    return (DTYPES, SIZES, MEMORY, FAULTS, GRID, CONFORMANCE, SPECIAL_VALUES, programs(count, first=first))


def chosen(names: tuple[str, ...], checks: tuple[VerifyCheck, ...]) -> tuple[VerifyCheck, ...]:
    """Those of these names; all where there are none. Raises `InvalidOption` for a name that there is not."""
    known = {check.name: check for check in checks}
    for name in names:
        if name not in known:
            raise InvalidOption(f"there is no check {name!r}; available: {', '.join(known)}.")
    return tuple(check for check in checks if not names or check.name in names)
