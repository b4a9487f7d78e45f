"""Launches that repeat: what a run submits is worked out once for its blocks, and submitted again as it is.

A pool gives a call that repeats the very same blocks (see `anygpu.memory.pool`). So a run is recognised by the numbers
of its blocks, of which no two are ever the same, and the offsets in them. The first run of a kind is only noted: most
do not repeat.

What is prepared holds blocks of the library. It is forgotten when the first of them goes back to the library: because
memory is short, because the block was idle for long, or because the device is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anygpu.engines.driver import Block, Clear, Command, Dispatch, Move

#: The number and the offset of each argument's block, and the numbers of all others.
LaunchKey = tuple[int, ...]

#: Kinds of runs that are remembered of a program, noted or prepared.
MOST_OF_A_PROGRAM = 16


class ProgramLaunches:
    """Of one compiled program. The caller holds the lock of the device for everything in here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        #: What the driver made of it and the blocks in it; nothing for a run that was only noted.
        self._known: dict[LaunchKey, tuple[Any, tuple[Block, ...]]] = {}

    def get(self, key: LaunchKey) -> Any | None:
        known = self._known.get(key)
        return None if known is None else known[0]

    def __contains__(self, key: LaunchKey) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return sum(prepared is not None for prepared, _ in self._known.values())

    def put(self, key: LaunchKey, prepared: Any | None, blocks: tuple[Block, ...]) -> list[tuple[Block, LaunchKey]]:
        """Returns what was forgotten for it: blocks that are not used by that run any more."""
        forgotten = []
        if key not in self._known and len(self._known) >= MOST_OF_A_PROGRAM:
            oldest = next(iter(self._known))
            forgotten = [(block, oldest) for block in self._known.pop(oldest)[1]]
        self._known[key] = (prepared, blocks)
        return forgotten

    def forget(self, key: LaunchKey) -> tuple[Block, ...]:
        """Returns the blocks that it used."""
        known = self._known.pop(key, None)
        return () if known is None else known[1]


class PreparedLaunches:
    """Of all programs of a device, by block."""

    def __init__(self) -> None:
        self._users: dict[Block, set[tuple[ProgramLaunches, LaunchKey]]] = {}

    def note(self, launches: ProgramLaunches, key: LaunchKey) -> None:
        self._put(launches, key, None, ())

    def keep(self, launches: ProgramLaunches, key: LaunchKey, prepared: Any, commands: Sequence[Command]) -> None:
        self._put(launches, key, prepared, _blocks_of(commands))

    def forget(self, block: Block) -> None:
        """The block goes back to the library, and with it all that was prepared with it."""
        for launches, key in self._users.pop(block, ()):
            for other in launches.forget(key):
                self._unused(other, launches, key)

    def clear(self) -> None:
        for users in self._users.values():
            for launches, key in users:
                launches.forget(key)
        self._users.clear()

    def __len__(self) -> int:
        """Blocks that something is prepared with."""
        return len(self._users)

    def _put(self, launches: ProgramLaunches, key: LaunchKey, prepared: Any | None, blocks: tuple[Block, ...]) -> None:
        for block, old in launches.put(key, prepared, blocks):
            self._unused(block, launches, old)
        for block in blocks:
            self._users.setdefault(block, set()).add((launches, key))

    def _unused(self, block: Block, launches: ProgramLaunches, key: LaunchKey) -> None:
        users = self._users.get(block)
        if users is not None:
            users.discard((launches, key))
            if not users:
                del self._users[block]


def _blocks_of(commands: Sequence[Command]) -> tuple[Block, ...]:
    blocks: dict[Block, None] = {}
    for command in commands:
        match command:
            case Dispatch(extents=extents):
                blocks.update((extent.block, None) for extent in extents)
            case Move(source=source, target=target):
                blocks.update(((source.block, None), (target.block, None)))
            case Clear(extent=extent):
                blocks[extent.block] = None
    return tuple(blocks)
