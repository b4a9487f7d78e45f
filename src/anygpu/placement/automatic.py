"""Deferred calls that nobody has asked for: of functions that cannot be traced, and are proved to leave nothing behind.

When a trace has failed, the call is evaluated without values in the background (see `escaping`). Where that proves that
no array of a call outlives it but in what it returns, that no type is asked for, and that nobody else writes to the
memory of arguments, the next calls are deferred, under the rules of `deferred`: they go back where that is no gain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anygpu.placement.deferred import Deferred
from anygpu.placement.escaping.proof import Kinds, Proof, kinds_of
from anygpu.placement.native_calls import Called, background, on_numpy
from anygpu.placement.native_site import NativeSite
from anygpu.placement.offload import default_planner
from anygpu.placement.switching import yielding

#: Where a proof was for other arguments, or a name means something else: calls until another one is tried.
_MOST_OTHERS = 16


def defer_if_proved(site: NativeSite, call: Called, why: str) -> None:
    """Have it found out in the background whether calls of a function that cannot be traced can be deferred."""
    kinds = kinds_of(call.arguments, call.keywords)
    background.submit(partial(_prove, site, call.function, kinds, why))


def _prove(site: NativeSite, function: Callable[..., Any], kinds: Kinds, why: str) -> None:
    with yielding():
        try:
            proof = Proof(function, kinds)
            deferred: Deferred[..., Any] | None = None
            why_not = proof.why_not
            if why_not is None:
                deferred = Deferred(function, site.known.options, default_planner, proof)
                why_not = deferred.why_plain
        except Exception as error:  # noqa: BLE001 - nothing may be raised here: what is not understood is not proved
            deferred, why_not = None, f"{type(error).__name__}: {error}"
    if deferred is None or why_not is not None:
        why_not = str(why_not).rstrip(".")
        site.say(f"{why} With offload(deferred=True) it can run as it is; not by itself, because {why_not}.")
        return
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
        if function is not self._function or not self._proof.holds(arguments, keywords):
            self._others += 1
            if self._others > _MOST_OTHERS:
                # What was proved is for others: they run as they are, and it is tried again much later.
                site.stay(
                    "it cannot be traced, and it was another function, or had other options, when it was deferred."
                )
                site.look_again(4.0)
            return on_numpy(site, Called(function, arguments, keywords, begin))
        self._others = 0
        return self._deferred.run_deferred(site.key, arguments, keywords)
