"""Calls on the one device that their caller allows, in this process and on NumPy's arrays: nothing is left to decide.

Planning a call takes a hundred microseconds, and native code for a hundred numbers less than one. So once such a call
has been planned, the next ones read their arguments, run, and leave a note for the receipt. Whatever is unusual about
one of them is left to planning: another program, an error, a mode of `np.errstate`, a result that is not finite.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anygpu.agreement.trust import (
    USUAL_MODES,
    is_finite,
    minded,
    mode_token,
    modes_now,
    only_numpy_knows,
    raising_modes,
    warns,
)
from anygpu.array.trace.traced import CallInputs, Traced
from anygpu.base import events
from anygpu.calls.site import NEEDS_PLANNING
from anygpu.engines.codegen.kernel import UNKNOWN
from anygpu.engines.protocol import DirectRun
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.receipts.notes import Repeated, listeners, made, publish
from anygpu.receipts.notes import last as last_receipt
from anygpu.receipts.receipt import Receipt
from anygpu.workers.thread import ThreadWorker

#: Calls until one is planned again, which measures it and sees what has changed.
_CALLS = 1000

_clock = time.perf_counter


class DirectCalls:
    """Runs the next calls of a call site without planning, while its program and its device stay the same."""

    __slots__ = ("_left", "_minded", "_receipt", "_run", "_site", "_traced", "_usual_modes", "_worker")

    def __init__(
        self,
        site: CallSite,
        traced: Traced,
        worker: ThreadWorker,
        run: DirectRun,
        receipt: Receipt,
    ) -> None:
        self._site = site
        self._traced = traced
        self._worker = worker
        self._run = run
        #: The receipt of the planned call; those of later calls differ only in their times.
        self._receipt = receipt
        #: The noted bits about which NumPy may warn.
        self._minded = minded(traced)
        self._left = _CALLS
        #: NumPy's modes when they were last seen to be the usual ones.
        self._usual_modes: object = None

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Run a call that began at `begin`; return its value, or `NEEDS_PLANNING` if the call has to be planned.

        After `_CALLS` calls one is planned, which measures it. Errors are not raised here: the planned call repeats
        them.
        """
        site, traced = self._site, self._traced
        if (
            self._left <= 0
            or site.programs.current is not traced
            or not site.candidates.evaluated
            or not self._worker.alive
        ):
            return NEEDS_PLANNING
        found = traced.arrays(function, arguments, keywords)
        if found is None:
            return NEEDS_PLANNING
        given, read = found
        if traced.lies_otherwise(given):
            return NEEDS_PLANNING
        is_watched = True
        token = mode_token()
        if token is not self._usual_modes:
            modes = modes_now()
            if raising_modes(modes) is not None:
                return NEEDS_PLANNING
            is_watched = warns(modes) or traced.warns_anyway
            if modes == USUAL_MODES:
                self._usual_modes = token
        ready = _clock()
        try:
            results, noted = self._run(given)
        except Exception:  # noqa: BLE001 - the call that is planned raises it too, or goes elsewhere
            return NEEDS_PLANNING
        if noted & self._minded and only_numpy_knows(traced, results) is not None:
            return NEEDS_PLANNING
        if is_watched and noted & self._minded and (noted & self._minded != UNKNOWN or not is_finite(results)):
            # NumPy would warn. Those who compute with infinities on purpose shall not do so twice in each call.
            site.host.plan_every_call()
            return NEEDS_PLANNING
        value = site.trust.in_order(traced, given, traced.rebuild(results, CallInputs(given, read)))
        note = Repeated(self._receipt, begin, ready, _clock())
        self._left -= 1
        if events.calls or listeners.get():
            publish(made(note), (function, arguments, keywords, value))
        else:
            last_receipt.set(note)
        return value


def direct_calls(call: Call, receipt: Receipt) -> DirectCalls | None:
    """Return what runs the calls after this planned one without planning; `None` if each has to be planned.

    It takes one candidate, in this process, on NumPy's arrays, with default options and no operation on the host.
    """
    site, options, traced = call.site, call.site.options, call.site.programs.current
    if traced is None or not call.cacheable or site.has_anygpu_arrays or site.chooser.baseline is not None:
        return None
    if options.precision is not None or options.check == "always" or options.timeout is not None:
        return None
    if len(receipt.attempts) != 1 or receipt.host_operations or receipt.program != traced.program.key:
        return None
    predictions = site.candidates.predictions
    if list(predictions) != [receipt.device] or predictions[receipt.device].chunks is not None:
        return None
    worker = call.planner.worker(receipt.device, options)
    if not isinstance(worker, ThreadWorker):
        return None
    run = worker.direct(traced.program)
    return DirectCalls(site, traced, worker, run, receipt) if run is not None else None
