"""With `ANYGPU_DEFER=on`, functions that cannot be traced are deferred where their code shows that it is safe.

When a trace has failed and calls have taken long enough, the code of the function is looked at in the background. Where
it can come to nothing but its arguments and what it makes itself (see `closed_code`), the next calls are deferred,
under the rules of `deferred`: they go back where that is no gain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from anygpu.placement.closed_code import ClosedCode
from anygpu.placement.deferred import Deferred
from anygpu.placement.native_calls import Called, background, on_numpy
from anygpu.placement.native_site import NativeSite
from anygpu.placement.options import DEVICE
from anygpu.placement.switching import yielding

#: Calls that take less are not deferred by themselves.
LEAST_TO_DEFER = 100e-6
#: What the calls of a site have taken before its code is looked at.
BEFORE_LOOKING = 1.0
#: The share of a call that it may take to look whether names still mean the same.
MOST_TO_LOOK = 0.02
#: What deferred calls may take more than plain ones, as a share of what the calls of a site have taken.
MOST_LOST = 0.02
#: Where it was found for other arguments, or a name means something else: calls until it is looked at again.
_MOST_OTHERS = 16


def defer_if_closed(site: NativeSite, why: str) -> None:
    """Once calls of a function that cannot be traced have taken long, find out whether they can be deferred."""
    if type(site) is NativeSite and not site.known.options.deferred and not os.environ.get(DEVICE):
        site.try_later(Trial(site, why), BEFORE_LOOKING)


class Trial:
    """A call of such a site: it runs as it is, and its code is looked at beside the next ones."""

    def __init__(self, site: NativeSite, why: str) -> None:
        self._site, self._why = site, why

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        site = self._site
        if site.least < LEAST_TO_DEFER:
            site.stay(self._why)  # an array that waits takes some microseconds for each operation
        else:
            site.wait()
            background.submit(partial(self.look, function))
        return on_numpy(site, Called(function, arguments, keywords, begin))

    def look(self, function: Callable[..., Any]) -> None:
        """Look at the code, and have the next calls deferred or stay as they are."""
        site = self._site
        deferred: Deferred[..., Any] | None = None
        with yielding():
            try:
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
            site.stay(f"{self._why} With offload(deferred=True) it can run as it is; not by itself, because {why_not}.")
        else:
            deferred.begin(site.key, site.least, MOST_LOST * site.seconds)
            site.use(DeferredCalls(site, function, deferred, found))


class DeferredCalls:
    """All calls of a call site from then on."""

    def __init__(
        self, site: NativeSite, function: Callable[..., Any], deferred: Deferred[..., Any], found: ClosedCode
    ) -> None:
        self._site, self._function, self._deferred, self._found = site, function, deferred, found
        self._others = 0

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        site = self._site
        why = self._deferred.why_plain
        if why is not None:
            site.stay(f"it cannot be traced, and its calls are plain ones: {why}")
            return on_numpy(site, Called(function, arguments, keywords, begin))
        if self._deferred.is_compiled or sys.gettrace() is not None:
            # Until there is native code, or while a debugger would see what stands for arrays, plain calls are better.
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
        return self._deferred.run_deferred(site.key, arguments, keywords)
