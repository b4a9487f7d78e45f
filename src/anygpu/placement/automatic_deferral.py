"""Calls that are deferred without the option: what is looked at before the first of them, and before each.

The code of the function is looked at in the background. Where it can come to nothing but its arguments and what it
makes itself (see `closed_code`), the next calls are deferred, under the rules of `deferred`: they go back where that is
no gain.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.placement.automatic import forget, remember
from anygpu.placement.background import at_leisure
from anygpu.placement.closed_code import ClosedCode
from anygpu.placement.deferred import Deferred, DeferredRun
from anygpu.placement.native_calls import Called, background, on_numpy
from anygpu.placement.native_site import NativeSite
from anygpu.placement.options import Options
from anygpu.placement.segments import Segments

if TYPE_CHECKING:
    from anygpu.placement.plan.plan import Plan

#: The share of a call that it may take to look whether names still mean the same.
MOST_TO_LOOK = 0.02
#: What deferred calls may take more than plain ones, as a share of what the calls of a site have taken.
MOST_LOST = 0.02
#: Where it was found for other arguments, or a name means something else: calls until it is looked at again.
_MOST_OTHERS = 16


def look(site: NativeSite, function: Callable[..., Any], why: str) -> None:
    """Look at the code of a function that cannot be traced, and have its next calls deferred or stay as they are."""
    deferred: Deferred[..., Any] | None = None
    with at_leisure():
        try:
            _record_something()
            found = ClosedCode(function)
            why_not = found.why_not
            if why_not is None:
                deferred = Deferred(function, site.known.options, closed=found)
                why_not = deferred.why_plain
                if found.seconds > MOST_TO_LOOK * site.least:
                    why_not = "it depends on too many names, which are looked at before each call"
        except Exception as error:  # noqa: BLE001 - nothing may be raised here: what is not understood is not deferred
            why_not = f"{type(error).__name__}: {error}"
    if deferred is None or why_not is not None:
        why_not = str(why_not).rstrip(".")
        forget(site)
        site.stay(f"{why} With offload(deferred=True) it can run as it is; not automatically, because {why_not}.")
    else:
        deferred.begin(site.key, site.least, MOST_LOST * site.seconds)
        site.use(DeferredCalls(site, function, deferred, found))


@functools.cache
def _record_something() -> None:
    """Python runs code that it has run before in a fraction of the time: not the first call of a user pays for that."""

    def something(x: Any, y: Any) -> Any:
        z, rounds = x, 0
        while rounds < 4:
            new = np.where(y > 0.5, z * 0.5 + y, np.sqrt(np.abs(z)) - y / 2)
            new[1:] += 1.0
            change = float(np.abs(new - z).max()) + (new[:, None] - y[None, :2]).sum(axis=1).mean()
            if change < 0:
                break
            z, rounds = new, rounds + 1
        return z, change

    segments = Segments("", something, Options(check="always"))
    given = np.linspace(0.0, 1.0, 4096)
    for _ in range(3):
        DeferredRun(segments, something, trusts=True)((given, given + 0.25), {})


class DeferredCalls:
    """All calls of a call site from then on."""

    def __init__(
        self, site: NativeSite, function: Callable[..., Any], deferred: Deferred[..., Any], found: ClosedCode
    ) -> None:
        self._site, self._function, self._deferred, self._found = site, function, deferred, found
        self._others = 0
        self._is_remembered = False

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        site = self._site
        why = self._deferred.why_plain
        if why is not None:
            forget(site)
            site.stay(f"it cannot be traced, and its calls are plain ones: {why}")
            return on_numpy(site, Called(function, arguments, keywords, begin))
        if self._deferred.is_compiling or sys.gettrace() is not None:
            # Until there is native code, or while a debugger would see what stands for arrays, plain calls are better.
            site.say(f"it cannot be traced, and its calls are deferred, but not {self._when_not()}.")
            return on_numpy(site, Called(function, arguments, keywords, begin))
        if function is not self._function or not self._found.holds(arguments, keywords):
            self._others += 1
            if self._others > _MOST_OTHERS:
                # What was found is for others: they run as they are, and it is looked at again much later.
                site.say(
                    "it cannot be traced, and it was another function, or had other options, when it was deferred."
                )
                site.look_again(4.0)
            return on_numpy(site, Called(function, arguments, keywords, begin))
        self._others = 0
        value = self._deferred.run_deferred(site.key, arguments, keywords)
        if not self._is_remembered and self._deferred.is_faster(site.key):
            self._is_remembered = True
            background.submit(partial(remember, site))
        return value

    def _when_not(self) -> str:
        return "while native code for a segment is compiled" if self._deferred.is_compiling else "under a debugger"

    def explain(self) -> Plan:
        """The plan of the next deferred call."""
        return self._deferred.plan_of(self._site.key)
