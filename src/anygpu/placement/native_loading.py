"""What native code needs before a call can be traced and compiled, loaded and started beside the calls."""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any

from anygpu.placement.loading import native
from anygpu.placement.switching import yielding


def begin_native(*, compiles: bool) -> None:
    """Begin to load what places native code; with `compiles`, also what makes it."""
    if native.thread is None:
        runtime = threading.Thread(target=_start_runtime, args=(compiles,), name="anygpu-runtime", daemon=True)
        native.beside = runtime
        later = [_load_compiler, _trace_more] if compiles else []
        native.begin(_trace_something, *later, first=runtime.start)


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


def _trace_more() -> None:
    """The same for functions that are not in every program."""
    import numpy as np

    from anygpu.array.trace.tracing import trace

    def usual(x: Any) -> Any:
        y = np.where(x > 0, np.tanh(x) * 2, x @ x) + x.mean(axis=0)
        return np.clip(np.pad(y, 1, mode="edge")[:-2, 1:-1], 0, 1)

    trace(usual, (np.zeros((2, 2), np.float32),), {})


def _load_compiler() -> None:
    importlib.import_module("anygpu.codegen.nests.schedule")
    importlib.import_module("anygpu.codegen.dialects.llvm.module")
