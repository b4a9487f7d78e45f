"""What was found by looking at a process: what it holds, what is not as it was, and what to change."""

from __future__ import annotations

import msgspec


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What this process holds on one device."""

    bytes: int
    peak_bytes: int
    by_owner: dict[str, int] = {}


class Anomaly(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it was."""

    #: "slower", "faster", "slower than predicted", "leak", "throttled" or "memory runs out".
    kind: str
    #: The function or device that it is about.
    subject: str
    device: str | None
    #: One sentence for a person.
    sentence: str
    #: Seconds since 1970.
    time: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the program that would save time."""

    #: What kind of mistake: the name of its section on the page about advice, as "upload-again".
    kind: str
    #: The line, as `file:line`.
    line: str | None
    #: Seconds that it has cost so far.
    cost: float
    #: One sentence: what happens. And one: what to write instead.
    finding: str
    instead: str
