"""Engines: the libraries that compute, each imported by one module alone, and where their workers live."""

from __future__ import annotations

from typing import Literal

#: thread: in this process, on the thread of the caller; process: a child of its own; actor: on another machine.
Isolation = Literal["thread", "process", "actor"]

#: Those that a caller may ask for: devices of other machines are always in an actor, and those of this one never.
ISOLATIONS_HERE: tuple[Isolation, ...] = ("thread", "process")
