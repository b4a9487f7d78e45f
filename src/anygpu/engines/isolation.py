"""Where an engine's library runs. Apart from what else is known of engines, which the first calls need not load."""

from __future__ import annotations

from typing import Literal

#: thread: in this process, on the thread of the caller; process: a child of its own.
Isolation = Literal["thread", "process"]
