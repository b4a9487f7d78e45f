"""What native code needs before a call can be traced and compiled, loaded and started beside the calls."""

from __future__ import annotations

import contextlib
import threading

from anygpu.placement.loading import native
from anygpu.placement.switching import yielding


def begin_native(*, compiles: bool) -> None:
    """Begin to load what places native code; with `compiles`, also what makes it."""
    if native.thread is None:
        runtime = threading.Thread(target=_start_runtime, args=(compiles,), name="anygpu-runtime", daemon=True)
        native.beside = runtime
        native.begin(_trace_something, *([_load_compiler] if compiles else []), first=runtime.start)


def _start_runtime(compiles: bool) -> None:
    """What all native code needs may have to be compiled too: by a child, which takes its time to load LLVM."""
    with contextlib.suppress(Exception), yielding():
        if compiles:
            from anygpu.engines.cpu.compiler import start_compiler

            start_compiler()
        from anygpu.engines.cpu.runtime import native_runtime

        native_runtime()


def _trace_something() -> None:
    """Tracing loads modules when it first meets an operation: not in the time of a caller."""
    import numpy as np

    from anygpu.array.trace.tracing import trace

    trace(lambda x: (np.tanh(x) * 2 + x.sum(axis=0))[:1], (np.zeros((2, 2), np.float32),), {})


def _load_compiler() -> None:
    """The first text that is made reads the definitions of functions."""
    import numpy as np

    from anygpu.array.trace.traced import Traced
    from anygpu.array.trace.tracing import trace
    from anygpu.engines.cpu.executable import module_of
    from anygpu.engines.cpu.target import host_processor

    traced = trace(lambda x: np.exp(x) + x.sum(), (np.zeros(3),), {})
    if isinstance(traced, Traced):
        module_of(traced.program, host_processor())
