"""What a user's kernel cannot do to its caller: `python -m benchmarks.hostile_kernels [--count 10000] [--check]`.

Three things are tried. *Sources*: good kernels of both languages with their text mutated, by bytes and by words; what
still compiles is run in the child, and in WGSL what is right even then, beside the caller's arrays. *Indices*: reads
and writes in WGSL at random indices, near and far, before and behind, of arrays that lie between sentinels.
*Traps*: endless loops, too much memory for a group, wrong types, broken text. Only typed errors may come out, no
sentinel may change, and no child may be left at the end. OpenCL C promises nothing of indices out of bounds, so its
mutants stay in the child. A mutant that hangs costs a deadline, so theirs is short.
"""

from __future__ import annotations

import collections
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import psutil

import anygpu as ag
from anygpu.errors import (
    AnyGPUError,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InvalidKernel,
    WrongKernel,
)
from anygpu.placement.kernels.first_use import samples, trials
from anygpu.program.ops.custom import Language
from anygpu.program.primitives import Spec
from anygpu.workers.device_arrays.registry import registry
from benchmarks.hostile_sources import CORPUS, Good, mutated
from benchmarks.report import Figure, options_parser, publish

ENGINES: dict[Language, str] = {"wgsl": "webgpu", "opencl": "opencl"}

#: Elements of the arrays that kernels get, and of the sentinels beside them.
LENGTH = 128
#: Indices that one launch uses.
INDICES = 100
#: What a mutant may take.
SECONDS = 2.0
_FORTY_TWO = 0x2A2A2A2A


class Never(Figure, frozen=True, kw_only=True):
    """A count of what must not happen."""

    unit: str = ""
    bound: float | None = 0.0

    @property
    def share(self) -> float:
        return 2.0 if self.value else 0.0


class Tally(msgspec.Struct, kw_only=True):
    """What came of many kernels."""

    tried: int = 0
    #: Those that compiled, and those of them that were as right as before.
    made: int = 0
    right: int = 0
    #: Those that have ended the child.
    killed: int = 0
    #: By the class of the error.
    errors: collections.Counter[str] = msgspec.field(default_factory=collections.Counter)
    #: What no user should see, the first of each kind in full.
    untyped: dict[str, str] = msgspec.field(default_factory=dict)
    sentinels_changed: int = 0
    wrong_values: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


class Sentinels:
    """Arrays on a device that nobody gave to a kernel."""

    def __init__(self, engine: str, count: int = 4) -> None:
        self._expected = np.full(LENGTH, _FORTY_TWO, np.int32)
        self.arrays = [ag.asarray(self._expected, device=engine).compute() for _ in range(count)]

    def changed(self) -> int:
        return sum(not np.array_equal(np.asarray(each), self._expected) for each in self.arrays)


# -- mutated sources


def arguments_of(kernel: ag.Kernel, engine: str | None = None) -> tuple[list[Any], dict[str, int | float]]:
    """Something that fits what the kernel says it takes."""
    read = [each for each in kernel.parameters if each.role != "output"]
    arrays: list[Any] = list(samples([Spec((LENGTH,), each.dtype) for each in read]))
    if engine is not None:
        arrays = [ag.asarray(each, device=engine) for each in arrays]
    usual = {"n": LENGTH, "alpha": 2, "first": 1, "step": 1}
    return arrays, {each.name: usual.get(each.name, 1) for each in kernel.numbers}


def try_mutant(good: Good, source: str, tally: Tally, seconds: float = SECONDS) -> None:
    """Make it, check it in the child, and if it passes use it on arrays of the device."""
    begin = time.perf_counter()
    tally.tried += 1
    try:
        kernel = ag.Kernel(
            source, good.reference, language=good.language, updates=good.updates, timeout=seconds, tolerance=1e-4
        )
        tally.made += 1
        arrays, numbers = arguments_of(kernel)
        kernel.check(*arrays, **numbers)
        if good.language == "wgsl":
            found = kernel(*arguments_of(kernel, ENGINES[good.language])[0], **numbers)
            for each in found if isinstance(found, tuple) else (found,):
                np.asarray(each)
        tally.right += 1
    except AnyGPUError as error:
        tally.errors[type(error).__name__] += 1
        if isinstance(error.__cause__, DeviceLost | DevicePoisoned):
            tally.killed += 1
            if good.language == "wgsl":  # which should not be able to
                sys.stderr.write(f"\n{error}\n{source}\n")
    except Exception as error:  # noqa: BLE001 - whatever else comes out is what is looked for
        tally.errors[type(error).__name__] += 1
        tally.untyped.setdefault(type(error).__name__, f"{error}\n{source}")
    taken = time.perf_counter() - begin
    tally.seconds += taken
    tally.slowest = max(tally.slowest, taken)


def mutants(
    language: Language,
    count: int,
    seed: int = 1,
    *,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> Tally:
    """So many mutated sources of one language, with sentinels on the device where the right ones run."""
    tally = Tally()
    corpus = [good for good in CORPUS if good.language == language]
    sentinels = Sentinels(ENGINES[language])
    for number in range(count):
        rng = random.Random(f"{language} {seed} {number}")
        good = corpus[number % len(corpus)]
        try_mutant(good, mutated(good, rng), tally, seconds)
        if number % 100 == 99 or number == count - 1:
            tally.sentinels_changed += sentinels.changed()
            tell(f"{language}: {number + 1} sources, {tally.made} made, {tally.right} right, {dict(tally.errors)}")
    return tally


# -- indices

READER = """
@group(0) @binding(0) var<storage, read> at: array<i32>;
@group(0) @binding(1) var<storage, read> a: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(64)
fn look(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&at)) { y[id.x] = a[at[id.x]]; }
}
"""
WRITER = """
@group(0) @binding(0) var<storage, read> at: array<i32>;
@group(0) @binding(1) var<storage, read_write> x: array<i32>;
@compute @workgroup_size(64)
fn put(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&at)) { x[at[id.x]] = -7; }
}
"""


def outside(rng: random.Random, length: int) -> int:
    """An index that is not inside: just beside the array, in what lies next to it, or anywhere."""
    near = rng.choice((-1, -2, length, length + 1, -length, 2 * length))
    close = rng.choice((rng.randint(-4096, -1), rng.randint(length, length + 4096)))
    far = rng.choice((rng.randint(-(2**31), -1), rng.randint(length, 2**31 - 1)))
    return rng.choice((near, close, far, -(2**31), 2**31 - 1))


def wild_indices(count: int, seed: int = 2) -> Tally:
    """Reads and writes outside in WGSL, each between sentinels and others that are inside."""
    tally = Tally()
    kernels = [ag.Kernel(READER, results="at"), ag.Kernel(WRITER, updates=["x"], grid=(INDICES,))]
    rng = random.Random(f"wgsl {seed}")
    begin = time.perf_counter()
    values = np.arange(1, LENGTH + 1, dtype=np.int32)
    for kernel in kernels:  # so that they have passed their first use, and run beside the sentinels from here on
        kernel.check(np.arange(INDICES, dtype=np.int32), values)
    for number in range(-(-count // INDICES)):
        indices = np.array([outside(rng, LENGTH) for _ in range(INDICES)], np.int32)
        kernel = kernels[number % 2]
        before = Sentinels("webgpu", 2)
        array = ag.asarray(values, device="webgpu").compute()
        behind = Sentinels("webgpu", 2)
        tally.tried += INDICES
        try:
            found = np.asarray(kernel(ag.asarray(indices, device="webgpu"), array))
            # A read outside gives something of the array itself or 0, and never what lies beside it.
            inside = np.isin(found, np.concatenate([[0], values, [-7]]))
            tally.wrong_values += int(np.count_nonzero(~inside))
            tally.right += INDICES
        except AnyGPUError as error:
            tally.errors[type(error).__name__] += INDICES
        except Exception as error:  # noqa: BLE001 - as above
            tally.untyped.setdefault(type(error).__name__, str(error))
        tally.sentinels_changed += before.changed() + behind.changed()
        tally.wrong_values += int(np.count_nonzero(np.asarray(array) != values))
    tally.seconds = time.perf_counter() - begin
    return tally


# -- traps

_FLOATS = np.ones(LENGTH, np.float32)
_HEAD = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
"""
_BODY = "@compute @workgroup_size(64)\nfn trap(@builtin(global_invocation_id) id: vec3<u32>) {"


class Trap(msgspec.Struct, frozen=True):
    """A kernel that is bad on purpose, and the errors that may tell."""

    name: str
    language: Language
    source: str
    expected: tuple[type[AnyGPUError], ...]


_C = "__kernel void trap(__global const float *a, __global float *y) { int i = get_global_id(0); "

TRAPS: tuple[Trap, ...] = (
    # lavapipe ends a loop by itself, and what it has by then is wrong.
    Trap("endless loop", "wgsl", f"{_HEAD}{_BODY} loop {{ y[id.x] += 1.0; if (y[id.x] < 0.0) {{ break; }} }} }}",
         (DeviceHung, WrongKernel)),
    Trap("endless loop", "opencl", _C + "volatile int go = 1; while (go) y[i] += 1.0f; }", (DeviceHung,)),
    Trap("64 kB for a group", "wgsl", f"{_HEAD}var<workgroup> w: array<f32, 16384>;\n{_BODY} w[id.x] = a[id.x]; "
         "workgroupBarrier(); y[id.x] = 2.0 * w[id.x]; }", (DeviceUnavailable,)),
    Trap("64 MB for a group", "opencl", _C + "__local float w[16777216]; w[i] = a[i]; barrier(CLK_LOCAL_MEM_FENCE); "
         "y[i] = 2 * w[i]; }", (DeviceUnavailable,)),
    Trap("wrong types", "wgsl", f"{_HEAD}{_BODY} y[id.x] = id.x; }}", (InvalidKernel,)),
    Trap("wrong types", "opencl", _C + "y[i] = &a; }", (InvalidKernel,)),
    Trap("broken text", "wgsl", f"{_HEAD}{_BODY} y[id.x] = ; }}", (InvalidKernel,)),
    Trap("broken text", "opencl", _C + "y[i] = ; }", (InvalidKernel,)),
    Trap("unknown name", "wgsl", f"{_HEAD}{_BODY} y[id.x] = a[id.x] * beta; }}", (InvalidKernel,)),
    Trap("unknown name", "opencl", _C + "y[i] = beta; }", (InvalidKernel,)),
    Trap("recursion", "wgsl", f"{_HEAD}fn f(x: f32) -> f32 {{ return f(x); }}\n{_BODY} y[id.x] = f(a[id.x]); }}",
         (InvalidKernel,)),
    Trap("no pointer", "opencl", _C + "y[i] = *(__global float *)8; }", (InvalidKernel,)),
    Trap("far outside", "opencl", _C + "y[i + (1L << 40)] = 1.0f; }", (InvalidKernel,)),
    Trap("wrong", "wgsl", f"{_HEAD}{_BODY} y[id.x] = a[id.x] + 1.5; }}", (WrongKernel,)),
    Trap("wrong", "opencl", _C + "y[i] = a[i] + 1.5f; }", (WrongKernel,)),
)  # fmt: skip


def fall_into(trap: Trap, seconds: float = 5.0) -> tuple[Exception | None, float]:
    """What came out, and how long that took."""
    begin = time.perf_counter()
    try:
        kernel = ag.Kernel(
            trap.source,
            lambda a: a * 2,
            name=trap.name,
            language=trap.language,
            timeout=seconds,
        )
        kernel.check(_FLOATS)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error, time.perf_counter() - begin
    return None, time.perf_counter() - begin


# -- figures


def tallied(name: str, tally: Tally) -> list[Figure]:
    for kind, text in tally.untyped.items():
        sys.stderr.write(f"\n{name}: {kind} came out: {text}\n")
    figures = [
        Figure(name=f"{name}: tried", value=tally.tried, unit=""),
        Figure(name=f"{name}: ran without an error", value=tally.right, unit=""),
        *(Figure(name=f"{name}: {error}", value=n, unit="") for error, n in sorted(tally.errors.items())),
        Never(name=f"{name}: kinds of errors that are not ours", value=len(tally.untyped)),
        Never(name=f"{name}: sentinels changed", value=tally.sentinels_changed),
        Never(name=f"{name}: values from elsewhere", value=tally.wrong_values),
        Figure(name=f"{name}: on average", value=1e3 * tally.seconds / max(tally.tried, 1), unit="ms"),
    ]
    if tally.slowest:
        figures += [
            Figure(name=f"{name}: compiled", value=tally.made, unit=""),
            Figure(name=f"{name}: killed the child", value=tally.killed, unit=""),
            Figure(name=f"{name}: slowest", value=tally.slowest, unit="s"),
        ]
    return figures


def trap_figures(languages: Sequence[Language]) -> list[Figure]:
    figures: list[Figure] = []
    for trap in TRAPS:
        if trap.language not in languages:
            continue
        error, seconds = fall_into(trap)
        told = isinstance(error, trap.expected)
        kind = type(error).__name__ if error is not None else "nothing"
        if not told:
            sys.stderr.write(f"\n{trap.name} ({trap.language}): {kind} came out: {error}\n")
        name = f"{trap.name}, {trap.language}"
        figures += [
            Never(name=f"{name}: not told", value=float(not told)),
            Figure(name=f"{name}: {kind} after", value=seconds, unit="s", bound=15.0),
        ]
    return figures


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text}   ")


def children_left() -> int:
    """Once everything is closed."""
    trials.close()
    registry.close()
    return len(psutil.Process().children(recursive=True))


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="of sources, and of indices; half in each language")
    parser.add_argument("--what", default="traps,indices,sources")
    parser.add_argument("--languages", default="wgsl,opencl")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # What earlier runs have found out must not spare this one anything.
    os.environ["ANYGPU_CACHE_DIR"] = tempfile.mkdtemp(prefix="anygpu-hostile-")
    os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
    languages: list[Language] = [each for each in ENGINES if each in options.languages.split(",")]
    share = -(-options.count // len(languages))
    figures: list[Figure] = []
    if "traps" in options.what:
        figures += trap_figures(languages)
    for language in languages:
        if "indices" in options.what and language == "wgsl":
            figures += tallied("indices, wgsl", wild_indices(share, options.seed))
        if "sources" in options.what:
            figures += tallied(f"sources, {language}", mutants(language, share, options.seed, tell=_tell))
    figures.append(Never(name="children left", value=children_left()))
    publish(figures, options)


if __name__ == "__main__":
    main()
