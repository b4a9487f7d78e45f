"""What an observed process tells of itself at a moment, as one record: for `anygpu top`, the dashboard, and anybody."""

from __future__ import annotations

import msgspec

from anygpu.hardware.usage.usage import Usage
from anygpu.observe.calls import Call, Fallback
from anygpu.observe.findings import Advice, Anomaly, DeviceMemory
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
