"""What an observed process tells of itself at a moment, as one record: for `anygpu top`, the dashboard, and anybody."""

from __future__ import annotations

import msgspec

from anygpu.hardware.usage.usage import Usage
from anygpu.observe.calls import Call, Fallback
from anygpu.observe.statistics import Summary
from anygpu.runtime.health import Health


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """Which process it is."""

    pid: int
    #: As it was started, shortened to 200 characters.
    command: str
    version: str
    #: When it was begun to be observed, in seconds since 1970.
    since: float
    #: Of this process, without its workers.
    processor_seconds: float
    memory_bytes: int


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


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An observed process at a moment."""

    schema: str = "anygpu.snapshot/1"
    #: Seconds since 1970.
    time: float
    process: Process
    statistics: Summary
    #: Calls after the number that was asked for, the newest last, at most a thousand.
    calls: tuple[Call, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    #: Of the runtime behind `submit` and `map`; `None` as long as neither was called.
    runtime: Health | None = None
    usage: dict[str, Usage] = {}
    #: By device; those whose memory could not be asked for in time are absent.
    memory: dict[str, DeviceMemory] = {}
    anomalies: tuple[Anomaly, ...] = ()
    advice: tuple[Advice, ...] = ()
