"""Pass events to call sites, one at a time, from any thread."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from anygpu.calls.lifecycle import RUNS_AS_IS, Event, step

if TYPE_CHECKING:
    from anygpu.calls.native_site import NativeSite, Runner

#: Held while a state changes. Reentrant: a signal handler may call a decorated function.
_telling = threading.RLock()
#: Sites with a traced call under way, or native code being compiled or compared.
_under_way: set[NativeSite] = set()


def tell(site: NativeSite, event: Event, code: Runner | None, reason: str | None, look_at: float) -> bool:
    """Change the state of a site, and what runs its next call; return whether the event changed anything."""
    with _telling:
        before = site.life
        life = step(before, event, reason=reason, look_at=look_at)
        if life is before:
            return False
        site.life = life
        if life.state in RUNS_AS_IS:
            site.run_by(None)
        elif code is not None:
            site.run_by(code)
        if life.state in ("tracing", "compiling"):
            _under_way.add(site)
        else:
            _under_way.discard(site)
        return True


def _in_child() -> None:
    """Free the lock in a forked child, and start again what other threads were doing."""
    global _telling
    _telling = threading.RLock()
    for site in list(_under_way):
        site.retry_after(1.0, "interrupted")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
