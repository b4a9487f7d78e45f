"""A trial of native code for a segment: the caller copies what went in and came out, and waits for nothing else.

A segment is a function that we have written, of its arrays and numbers alone. So it can be traced when the call is over
and on another thread, which no function of a user's can.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

import numpy as np

from anygpu.placement import background as beside
from anygpu.placement import native_calls
from anygpu.placement.native import again_after_errors, kept_calls, reported, traced_for, try_out
from anygpu.placement.native_calls import Called, inputs_after
from anygpu.placement.segments import SegmentSite
from anygpu.placement.trust import Filters, Sample, Trust, loud, modes_now, sample_of

#: Seconds before the background begins: the call that the segment is of would otherwise wait for Python's lock.
_FIRST_PAUSE = 0.02

_clock = time.perf_counter


def try_segment(site: SegmentSite, *given: Any) -> Any:
    """Run a segment on NumPy, and have native code for it traced, compiled and compared in the background.

    `given` is the call, as of all that runs the calls of a site; the function may not be written yet.
    """
    arguments, allowance = given[1], native_calls.allowance
    allowance.earn(site.seconds - site.paid)
    site.paid = site.seconds
    modes = modes_now()
    if loud(modes) is not None or not (site.is_marked or allowance.affords_one()):
        site.look_again(1.5)
        return _on_numpy(site)
    site.wait()
    site.tries += 1
    with again_after_errors(site):
        value = _on_numpy(site)
    begin = _clock()
    copied = None
    with contextlib.suppress(MemoryError):
        copied = _copied(arguments, value)
    if copied is None:
        site.stay("its results are views, or there is no memory for copies.")
    else:
        site.say("native code for it is being compiled and compared with numpy.")
        native_calls.background.submit(partial(_trace_and_try, site, *copied, dict(modes), Filters.now()))
    allowance.spend(_clock() - begin)
    return value


def _on_numpy(site: SegmentSite) -> Any:
    """What NumPy gives for the segment, whose time counts."""
    begin = _clock()
    value = site.call_on_host(None, (), {})
    site.add(_clock() - begin)
    return value


def _copied(arguments: tuple[Any, ...], value: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Copies that lie in memory as these do; `None` where there are none, or where results share memory."""
    results = value if isinstance(value, tuple) else (value,)
    arrays = [each for each in results if isinstance(each, np.ndarray)]
    inputs = [each for each in arguments if isinstance(each, np.ndarray)]
    for number, each in enumerate(arrays):
        if not each.flags.writeable or any(np.may_share_memory(each, other) for other in (*inputs, *arrays[:number])):
            return None
    copies: dict[int, Any] = {}
    for each in (*inputs, *arrays):
        if id(each) not in copies:
            copies[id(each)] = copy = each.copy("K")
            if copy.strides != each.strides:
                return None
    copied = tuple([copies.get(id(each), each) for each in results])
    return tuple([copies.get(id(each), each) for each in arguments]), copied if isinstance(value, tuple) else copied[0]


def _trace_and_try(
    site: SegmentSite, arguments: tuple[Any, ...], value: Any, modes: dict[str, Any], filters: Filters
) -> None:
    """In the background: trace the segment with copies, and try out native code with what NumPy gave for them.

    `modes` and `filters` are those of the call.
    """
    operation = site.least / site.operations
    beside.pause(_FIRST_PAUSE)
    with reported(site):
        begin = _clock()
        with beside.at_leisure(operation), np.errstate(**modes):
            call = Called(site.written(), arguments, {}, begin)
            found = _traced(site, call, value)
        if found is None:
            return
        sample, trust = found
        trust.filters = filters
        with beside.at_leisure(operation):
            try_out(site, call.function, sample, trust, _clock() - begin)


def _traced(site: SegmentSite, call: Called, value: Any) -> tuple[Sample, Trust] | None:
    """What native code is compared with, and what is known of it; `None` where there is nothing to be tried."""
    traced, heard = traced_for(site, call, None)
    if traced is None:
        return None
    kept = kept_calls(site, call.function, traced) if site.is_marked and not heard else None
    if kept is not None:
        site.use(kept)
        return None
    trust = Trust()
    trust.constant_flags = heard
    given = inputs_after(site, call, traced, trust, value)
    return None if given is None else (sample_of(traced, given, value, ours=False), trust)
