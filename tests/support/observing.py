"""Calls that were never made, for those who observe a process."""

from __future__ import annotations

from anygpu.base import events
from anygpu.receipts.notes import Origin, Seen


def tell(seen: Seen, origin: Origin | None = None) -> None:
    """A call ended."""
    events.calls.tell(seen, origin)
