"""What native code needs before a call can be traced and compiled, loaded and started beside the calls."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from anygpu.base.forks import no_fork
from anygpu.base.this_process import usable_processors
from anygpu.placement.background import at_leisure, yielding
from anygpu.placement.history import hints
from anygpu.placement.loading import NATIVE, native, segments

if TYPE_CHECKING:
    from anygpu.placement.native_site import NativeSite

#: Seconds of calls before anything is spent beside calls that leave less than this of a processor idle, which lose as
#: much time as is spent, and where Python has kept no bytecode of what is to be loaded, which takes 0.5 s then.
_SPARE, BEFORE_COSTLY = 0.75, 1.0


def begin_for(site: NativeSite) -> None:
    """Begin to load what native code needs, or have the site ask again later."""
    if site.seconds >= BEFORE_COSTLY or (_has_bytecode() and (site.is_marked or _has_spare_processor(site))):
        begin_native(compiles=not site.is_marked, site=site)
    else:
        site.look_again(1.5)


def _has_spare_processor(site: NativeSite) -> bool:
    """Whether the calls so far have left enough of a processor idle."""
    clock, processor_clock = site.began
    used = (time.process_time() - processor_clock) / max(time.perf_counter() - clock, 1e-9)
    return usable_processors() - used >= _SPARE


@functools.cache
def _has_bytecode() -> bool:
    """Whether Python has compiled what is to be loaded: of a copied or read-only package it may not have."""
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
    """First, because the child takes its time to load LLVM, and then to compile what all native code needs."""
    from anygpu.engines.cpu.compiler import start_compiler

    start_compiler()
    importlib.import_module("anygpu.engines.cpu.runtime")
    threading.Thread(target=_make_runtime_quietly, name="anygpu-runtime", daemon=True).start()


def _make_runtime_quietly() -> None:
    """Make the native runtime on a thread, without raising."""
    # Whoever needs it gets the error.
    with contextlib.suppress(Exception), no_fork(), yielding():
        _make_runtime()


def _make_runtime() -> None:
    """Compile or load what all native code needs."""
    from anygpu.engines.cpu.runtime import native_runtime

    native_runtime()


def _trace_something() -> None:
    """Tracing loads modules when it first meets an operation: not in the time of a caller."""
    from anygpu.array.trace.tracing import trace_small

    # What compares results with NumPy's likewise.
    importlib.import_module("anygpu.placement.agreement.analysis")
    importlib.import_module("anygpu.placement.agreement.comparison")
    trace_small()


#: What tracing loads when it first meets functions of NumPy's.
_FUNCTIONS = """
anygpu.array.functions.creation anygpu.array.functions.concatenation anygpu.array.functions.selection
anygpu.array.functions.products anygpu.array.functions.ranges anygpu.array.functions.sorting
anygpu.array.functions.numeric anygpu.program.wire anygpu.placement.automatic_deferral numpy.ma
"""


def begin_segments(*, soon: bool) -> None:
    """Begin to load what tries native code for segments: `soon`, or little by little where nobody has asked for it."""
    segments.begin(partial(_load_functions, yielding if soon else at_leisure))


def _load_functions(how: Callable[[], AbstractContextManager[None]]) -> None:
    """Load all that is needed later, so that neither a call nor a trial beside it has to."""
    for each in _FUNCTIONS.split():
        with how():
            importlib.import_module(each)


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
    path, code = hints.hints_path(name), site.known.code
    if path is not None and code is not None:
        calls = hints.mark_of_code(code, site.key)
        hints.change_marks(path, [hints.mark_of_code(code), calls] if is_set else [], [] if is_set else [calls])
