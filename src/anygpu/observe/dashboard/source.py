"""Where snapshots come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from anygpu.observe.snapshot import Snapshot


class Source(Protocol):
    """Asks processes what they are doing."""

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot]:
        """By process id, of all that answer. `since` has the number of the newest call that is known of each."""
        ...
