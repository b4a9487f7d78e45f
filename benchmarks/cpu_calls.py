"""What each step of a call of native code takes: `python -m benchmarks.cpu_calls [--check]`.

The least of many turns, in nanoseconds; compiling once, in milliseconds. Steps that cannot be timed alone are the
difference of two calls.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.engines.cpu.engine import CpuExecutable, executable
from anygpu.engines.cpu.runtime import native_runtime
from benchmarks.report import Figure, arguments, publish

TURNS, CALLS = 200, 1000

#: The most that each may be, in nanoseconds.
WHOLE_CALL, PARALLEL_REGION = 1500.0, 1000.0

LARGE = 1_000_000
OPERATIONS = (10, 100, 500, 2000)


def standardised(x: Any) -> Any:
    return (x - np.mean(x)) / np.std(x)


def doubled(x: Any) -> Any:
    return x + x


def least(run: Callable[[], object], *, calls: int = CALLS, turns: int = TURNS) -> float:
    """Nanoseconds of one call."""
    return 1e9 * min(timeit.repeat(run, number=calls, repeat=turns)) / calls


def of_call(compiled: CpuExecutable, *arrays: Any) -> float:
    """The compiled function alone, without `CpuExecutable.__call__`."""
    call = compiled.call
    if call(*arrays) is NotImplemented:
        raise TypeError("not an array that the program was compiled for")
    return 1e9 * min(timeit.repeat("call(*arrays)", number=CALLS, repeat=TURNS, globals=locals())) / CALLS


def figures() -> list[Figure]:
    x = np.random.default_rng(0).random(100)
    small = executable(record(standardised, x))
    least_work = executable(record(doubled, x))
    arrays = [x]
    refused = 1e9 * min(timeit.repeat("call(1)", number=CALLS, repeat=TURNS, globals={"call": small.call})) / CALLS
    call = of_call(small, x)
    whole = least(lambda: small(arrays))
    found = [
        Figure(name="100 numbers standardised: the whole call", value=whole, unit="ns", bound=WHOLE_CALL),
        Figure(name="of that, Python around the compiled function", value=max(0.0, whole - call), unit="ns"),
        Figure(name="the compiled function", value=call, unit="ns"),
        Figure(name="of that, from Python to its first check and back", value=refused, unit="ns"),
        Figure(name="of that, an array for the result, by numpy.empty", value=least(lambda: np.empty(100)), unit="ns"),
        Figure(name="the compiled function of x + x", value=of_call(least_work, x), unit="ns"),
        Figure(name="NumPy: 100 numbers standardised", value=least(lambda: standardised(x), calls=100), unit="ns"),
        Figure(name="the long way: a strided argument", value=least(lambda: small([x[::-1]]), calls=100), unit="ns"),
        Figure(name="a parallel region of two parts", value=parallel_region(), unit="ns", bound=PARALLEL_REGION),
    ]
    return [*found, *large_results()]


def parallel_region() -> float:
    """What a nest of two parts takes more on the pool than on one thread, the pool awake; the parts do nothing."""
    import ctypes

    from anygpu.engines.cpu.loader import host_processor, load

    runtime, processor = native_runtime(), host_processor()
    text = f"""target triple = "{processor.triple}"
target datalayout = "{processor.data_layout}"
declare void @pool_run(ptr, ptr, i64, i64)
define void @nothing(ptr %buffers, i64 %begin, i64 %end, i64 %part) nounwind {{
  ret void
}}
define void @regions(i64 %count) nounwind {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  call void @pool_run(ptr @nothing, ptr null, i64 2, i64 1)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %count
  br i1 %more, label %next, label %out
out:
  ret void
}}
"""
    code = load(text, processor, runtime.symbols, ["regions"])
    regions = ctypes.CFUNCTYPE(None, ctypes.c_int64)(code["regions"])
    threads = runtime.pool.threads
    runtime.pool.start(max(2, threads))
    taken = 1e9 * min(timeit.repeat(lambda: regions(1000), number=1, repeat=TURNS)) / 1000
    runtime.pool.start(threads)
    return taken


def large_results() -> list[Figure]:
    """A result of 8 MB in memory that was used before, and in new memory."""
    memory = native_runtime().memory
    x = np.random.default_rng(0).random(LARGE)
    compiled = executable(record(doubled, x))
    again = least(lambda: compiled([x]), calls=1)

    def with_new_memory() -> object:
        if memory is not None:
            memory.trim()
        return compiled([x])

    new = least(with_new_memory, calls=1)
    return [
        Figure(name="8 MB of results in memory used before", value=again, unit="ns"),
        Figure(name="8 MB of results in new memory", value=new, unit="ns"),
        Figure(name="NumPy: 8 MB of results", value=least(lambda: doubled(x), calls=1), unit="ns"),
    ]


def compiling() -> list[Figure]:
    """Making native code of a chain that was never compiled, with the child awake."""
    made = []
    x = np.ones(LARGE)
    for count in OPERATIONS:
        # Another number is another program: none is on disk.
        last = time.time_ns() % 1_000_003 + 1.5

        def chain(x: Any, count: int = count, last: float = last) -> Any:
            y = x * last
            for number in range(count // 2):
                y = y * (1.0 + number * 1e-6) + x
            return y

        program = record(chain, x)
        begin = time.perf_counter()
        executable(program)
        seconds = time.perf_counter() - begin
        made.append(Figure(name=f"compiling {count:,} operations", value=1e3 * seconds, unit="ms"))
    return made


def main() -> None:
    options = arguments(__doc__)
    publish([*figures(), *compiling()], options)


if __name__ == "__main__":
    main()
