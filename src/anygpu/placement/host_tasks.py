"""Tasks of a runtime on the processor: native code where that is ready and faster, or the user's own function."""

from __future__ import annotations

import time
from typing import Any

from anygpu.calls.call_table import note_of_new
from anygpu.calls.executing import Executing
from anygpu.calls.native_site import NativeSite
from anygpu.calls.site import NEEDS_PLANNING
from anygpu.placement.call import Call
from anygpu.placement.planner import default
from anygpu.receipts.notes import Note, Repeated, last, of_task
from anygpu.receipts.receipt import Receipt

_clock = time.perf_counter


def run_on_host(call: Call) -> tuple[Any, Note | Repeated | Receipt]:
    """Run a task whose place is the processor; return its value, and the facts for its receipt.

    It runs as a decorated function's call does: as native code once that was compiled and compared. The caller
    publishes the receipt, and reports errors.
    """
    token = of_task.set(call.function)
    try:
        site = native_site(call)
        if site is None:
            begin = _clock()
            value = call.site.host.run_on_host(call.function, call.arguments, call.keywords)
            return value, (call.site.host.note, begin, begin, _clock())
        return _run(site, call)
    finally:
        of_task.reset(token)


def _run(site: NativeSite, call: Call) -> tuple[Any, Note | Repeated | Receipt]:
    """Run a call by native code if there is some, else on NumPy; its value and the note for its receipt."""
    begin = _clock()
    if not site.runs_as_is:
        value = site.run(call.function, call.arguments, call.keywords, begin)
        if value is not NEEDS_PLANNING:
            return value, last.get() or (site.note, begin, begin, _clock())
    ready = _clock()
    with Executing():
        value = call.function(*call.arguments, **call.keywords)
    end = _clock()
    site.ran(end - ready)
    return value, (site.note, begin, ready, end)


def native_site(call: Call) -> NativeSite | None:
    """The call site that its decorated calls would have; `None` where they are not for native code."""
    table, key = call.table, call.key
    # Another planner has other machines to choose from.
    may_be_native = table.options.allows_native and call.planner is default()
    if not may_be_native or key is None or key in table.planned or call.site.has_anygpu_arrays:
        return None
    site = table.native.get(key)
    if site is None:
        assert isinstance(key, tuple), "a signature is a tuple"
        site = NativeSite(table, key, note_of_new(call.site.task, table.options))
        table.remember_native(key, site)
    return site
