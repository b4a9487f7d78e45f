"""What native code needs before a call can be traced and compiled, loaded and started beside the calls."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from anygpu.base.forks import no_fork
from anygpu.base.this_process import usable_processors
from anygpu.calls import hints
from anygpu.calls.background import yielding
from anygpu.calls.loading import NATIVE, native

if TYPE_CHECKING:
    from anygpu.calls.native_site import NativeSite

#: The share of a processor that calls have to leave idle; otherwise they lose as much time as the import takes.
_SPARE = 0.75


def can_load_now(site: NativeSite) -> bool:
    """Return whether importing the modules of native code now takes little time from the calls of a site.

    Without bytecode on disk the import takes 0.5 s.
    """
    return _has_bytecode() and (site.known_faster or _has_spare_processor(site))


def _has_spare_processor(site: NativeSite) -> bool:
    """Return whether the calls so far have left enough of a processor idle."""
    clock, processor_clock = site.began
    used = (time.process_time() - processor_clock) / max(time.perf_counter() - clock, 1e-9)
    return usable_processors() - used >= _SPARE


@functools.cache
def _has_bytecode() -> bool:
    """Return whether Python has compiled what is to be loaded: of a copied or read-only package it may not have."""
    source = importlib.util.find_spec(NATIVE)
    return source is None or source.cached is None or os.access(source.cached, os.R_OK)


def begin_native(*, compiles: bool, site: NativeSite | None = None) -> None:
    """Begin to load what places native code, for this call site; with `compiles`, also what makes it.

    One after the other: two threads that load Python beside the calls take more from them than one that takes longer.
    """
    if compiles:
        later = [partial(mark_tried, site)] if site is not None else []
        native.begin(_trace_something, *later, first=_start_compiler)
    else:
        native.begin(_make_runtime, _trace_something)


def _start_compiler() -> None:
    """Start the compiling child, first of all: loading LLVM and compiling the shared runtime take it a while."""
    from anygpu.engines.cpu.compiler import start_compiler

    start_compiler()
    importlib.import_module("anygpu.engines.cpu.runtime")
    threading.Thread(target=_make_runtime_quietly, name="anygpu-runtime", daemon=True).start()


def _make_runtime_quietly() -> None:
    """Make the native runtime on a thread, without raising."""
    # The first use raises the error.
    with contextlib.suppress(Exception), no_fork(), yielding():
        _make_runtime()


def _make_runtime() -> None:
    """Compile or load what all native code needs."""
    from anygpu.engines.cpu.runtime import native_runtime

    native_runtime()


def _trace_something() -> None:
    """Trace a small function, which loads modules that tracing would otherwise load in a caller's time."""
    from anygpu.array.trace.tracing import trace_small

    # The comparison with NumPy loads late for the same reason.
    importlib.import_module("anygpu.agreement.analysis")
    importlib.import_module("anygpu.agreement.comparison")
    trace_small()


# -- marks for the next process


def mark_tried(site: NativeSite) -> None:
    """Have the next process not try native code so early, unless it turns out to be faster in this one."""
    _change(site, hints.NUMPY, is_set=True)
    _change(site, hints.NATIVE, is_set=False)


def mark_native(site: NativeSite) -> None:
    """Have the next process load what native code needs with the function, and try it with the first such call."""
    _change(site, hints.NATIVE, is_set=True)


def unmark_tried(site: NativeSite) -> None:
    """Take back `mark_tried`: native code was not tried in vain."""
    _change(site, hints.NUMPY, is_set=False)


def _change(site: NativeSite, name: str, *, is_set: bool) -> None:
    """Put such calls on a list, with their function, or take them off it."""
    path, code = hints.hints_path(name), site.table.code
    if path is not None and code is not None:
        calls = hints.mark_of_code(code, site.key)
        hints.change_marks(path, [hints.mark_of_code(code), calls] if is_set else [], [] if is_set else [calls])
