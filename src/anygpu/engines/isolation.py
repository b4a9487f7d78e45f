"""Where an engine's library runs. Apart from what else is known of engines, which the first calls need not load."""

from __future__ import annotations

from typing import Literal

#: thread: in this process, on the thread of the caller; process: a child of its own; actor: on another machine.
Isolation = Literal["thread", "process", "actor"]

#: Those that a caller may ask for: devices of other machines are always in an actor, and those of this one never.
ISOLATIONS_HERE: tuple[Isolation, ...] = ("thread", "process")
