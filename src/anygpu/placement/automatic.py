"""With `ANYGPU_DEFER=proved`, functions that cannot be traced are deferred if they are proved to leave nothing behind.

When a trace has failed and calls have taken long enough, the call is evaluated without values in the background (see
`escaping`). Where that proves that no array of a call outlives it but in what it returns, that no type is asked for,
and that nobody else writes to the memory of arguments, the next calls are deferred, under the rules of `deferred`: they
go back where that is no gain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from anygpu.placement.deferred import Deferred
from anygpu.placement.escaping.proof import Kinds, Proof, kinds_of
from anygpu.placement.kept_refusals import keep_refusal, kept_refusal
from anygpu.placement.native_calls import Called, background, on_numpy
from anygpu.placement.native_site import NativeSite
from anygpu.placement.offload import default_planner
from anygpu.placement.options import DEVICE
from anygpu.placement.switching import yielding

#: Calls that take less are not deferred by themselves.
LEAST_TO_DEFER = 100e-6
#: What the calls of a site have taken before it is evaluated; the share of that which an evaluation may take of the
#: processor; and what it may take at most. One that has no more time is tried again when calls have taken four times as
#: long: all of them together take less than a twentieth.
BEFORE_PROOF, SHARE, MOST_SECONDS = 1.0, 0.035, 2.0
#: The share of a call that it may take to look whether names still mean the same.
MOST_TO_LOOK = 0.02
#: What deferred calls may take more than plain ones, as a share of what the calls of a site have taken.
MOST_LOST = 0.02
#: Where a proof was for other arguments, or a name means something else: calls until another one is tried.
_MOST_OTHERS = 16


def defer_if_proved(site: NativeSite, why: str) -> None:
    """Once calls of a function that cannot be traced have taken long, find out whether they can be deferred."""
    if type(site) is NativeSite and not site.known.options.deferred and not os.environ.get(DEVICE):
        site.try_later(ProofTrial(site, why), BEFORE_PROOF)


class ProofTrial:
    """A call of such a site: it runs as it is, and is evaluated beside the next ones."""

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
            background.submit(partial(self.prove, function, kinds_of(arguments, keywords)))
        return on_numpy(site, Called(function, arguments, keywords, begin))

    def prove(self, function: Callable[..., Any], kinds: Kinds) -> None:
        """Evaluate a call, and have the next ones deferred or stay as they are."""
        site = self._site
        seconds = min(SHARE * max(site.seconds, BEFORE_PROOF), MOST_SECONDS)
        why_not = kept_refusal(site)
        deferred: Deferred[..., Any] | None = None
        if why_not is None:
            with yielding():
                try:
                    proof = Proof(function, kinds, seconds)
                    why_not = proof.why_not
                    if why_not is None:
                        deferred = Deferred(function, site.known.options, default_planner, proof)
                        why_not = deferred.why_plain
                        if proof.seconds > MOST_TO_LOOK * site.least:
                            why_not = "it depends on too many names, which are looked at before each call"
                except Exception as error:  # noqa: BLE001 - nothing may be raised here: what is not understood is not proved
                    why_not = f"{type(error).__name__}: {error}"
                else:
                    if proof.had_no_time and seconds < MOST_SECONDS:
                        site.look_again(4.0)
                        return
                    if proof.why_not is not None:
                        keep_refusal(site, proof.why_not, proof.files)
        if deferred is None or why_not is not None:
            why_not = str(why_not).rstrip(".")
            site.stay(f"{self._why} With offload(deferred=True) it can run as it is; not by itself, because {why_not}.")
        else:
            deferred.begin(site.key, site.least, MOST_LOST * site.seconds)
            site.use(DeferredCalls(site, function, deferred, proof))


class DeferredCalls:
    """All calls of a call site from then on."""

    def __init__(
        self, site: NativeSite, function: Callable[..., Any], deferred: Deferred[..., Any], proof: Proof
    ) -> None:
        self._site, self._function, self._deferred, self._proof = site, function, deferred, proof
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
        if function is not self._function or not self._proof.holds(arguments, keywords):
            self._others += 1
            if self._others > _MOST_OTHERS:
                # What was proved is for others: they run as they are, and it is tried again much later.
                site.say(
                    "it cannot be traced, and it was another function, or had other options, when it was deferred."
                )
                site.look_again(4.0)
            return on_numpy(site, Called(function, arguments, keywords, begin))
        self._others = 0
        return self._deferred.run_deferred(site.key, arguments, keywords)
