"""Decide what comes next for a call site whose calls on NumPy have taken long enough, and begin it."""

from __future__ import annotations

from typing import NamedTuple

from anygpu.calls import loading
from anygpu.calls.lifecycle import NEVER, Event, Life
from anygpu.calls.native_site import NativeSite
from anygpu.native.loading import begin_native, can_load_now


class Facts(NamedTuple):
    """The facts for a decision."""

    #: The calls on NumPy so far: their number, their total seconds, and the shortest of them.
    calls: int
    seconds: float
    least: float
    #: Whether an earlier process has found native code to be faster.
    known_faster: bool
    #: Whether the modules of native code are imported, and whether a thread still imports something.
    is_loaded: bool
    is_loading: bool
    #: Whether an import now takes little time from the calls: bytecode is on disk, and a processor is idle.
    can_load: bool


#: Shorter calls stay on NumPy: native code cannot gain.
LEAST_FOR_NATIVE = 5e-6
#: Shorter calls wait until all imports have ended: tracing beside an import takes twice as long.
SHORT = 0.1
#: Seconds of calls after which the import is worth it in any case.
BEFORE_COSTLY = 1.0


def decide(life: Life, facts: Facts) -> tuple[Event, float] | None:
    """Return the event that follows, and the seconds of calls until the next decision; `None` to wait."""
    if life.state not in ("new", "waiting", "loading"):
        return None
    if facts.seconds < LEAST_FOR_NATIVE * facts.calls and not facts.known_faster:
        return ("postponed", 4 * max(life.look_at, facts.seconds)) if life.state != "loading" else None
    if not facts.is_loaded:
        if life.state == "loading":
            # A forked child has no thread that imports it, so the import is started again.
            return None if facts.is_loading else ("load", 1.5 * facts.seconds)
        if facts.seconds >= BEFORE_COSTLY or facts.can_load:
            return "load", 0.0
        return "postponed", 1.5 * facts.seconds
    if facts.least < SHORT and facts.is_loading and not facts.known_faster:
        return None
    return "ready", NEVER


def look(site: NativeSite) -> None:
    """Decide what comes next for a site, and begin it."""
    decision = decide(site.life, _facts(site))
    if decision is None:
        return
    event, look_at = decision
    if event == "ready":
        from anygpu.native.trial import NativeTrial  # it was imported beside the calls

        site.tell("ready", code=NativeTrial(site))
    elif site.tell(event, look_at=look_at) and event == "load":
        begin_native(compiles=not site.known_faster, site=site)


def _facts(site: NativeSite) -> Facts:
    is_loaded = loading.native.is_ready
    return Facts(
        calls=site.calls,
        seconds=site.seconds,
        least=site.least,
        known_faster=site.known_faster,
        is_loaded=is_loaded,
        is_loading=loading.native.is_under_way(),
        can_load=not is_loaded and site.life.state != "loading" and can_load_now(site),
    )
