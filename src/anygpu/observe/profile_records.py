"""The records of a profile."""

from __future__ import annotations

import msgspec

from anygpu.base.printable import encode_json

SCHEMA = "anygpu.profile/1"


class ScaleneLine(msgspec.Struct, frozen=True, kw_only=True):
    """Scalene's figures of a line: percentages of the script's time, and memory."""

    python_percent: float
    native_percent: float
    system_percent: float
    peak_megabytes: float
    allocated_megabytes: float
    copied_megabytes_a_second: float

    @property
    def percent(self) -> float:
        return self.python_percent + self.native_percent + self.system_percent


class LineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's own code."""

    file: str
    line: int
    code: str
    #: Seconds of the main thread, without the lines of the user's other functions that it calls. The seconds of
    #: all lines are the script's.
    seconds: float
    #: Calls of offloaded functions that were made or submitted here, on any thread, and what they took where they ran.
    calls: int = 0
    call_seconds: float = 0.0
    devices: dict[str, float] = {}
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    recompilations: int = 0
    scalene: ScaleneLine | None = None


class FunctionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An offloaded function on one device. Calls that it makes of others are not in its seconds."""

    function: str
    device: str
    calls: int
    errors: int
    seconds: float
    phases: dict[str, float]
    #: Measured by the device's own clock, of as many calls as that was measured for; `None` if for none.
    device_seconds: float | None
    bytes_to_device: int
    bytes_to_host: int
    bytes_skipped: int
    recompilations: int
    fallbacks: int
    #: Seconds of named parts of `run`, of calls that have some: a training step's are forward, backward and optimizer.
    parts: dict[str, float] = {}
    #: Attempts that failed and were made again on the same device, as a step is that was out of memory.
    repeats: int = 0
    #: The highest of the calls for which it was measured, and what had been predicted for that call.
    peak_bytes: int | None = None
    predicted_bytes: int | None = None


class OperationProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a program. Its seconds are a share of what its programs took, by estimated work."""

    operation: str
    device: str
    #: The user's line, as `file:line`.
    line: str | None
    seconds: float
    #: Runs of programs that have it.
    runs: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a script went."""

    schema: str = SCHEMA
    script: str
    arguments: tuple[str, ...]
    #: Seconds of the whole script, from its first line to its last.
    seconds: float
    exit_status: int
    #: Seconds of offloaded functions that the main thread waited for: measured, and all others sampled.
    call_seconds: float
    samples: int
    #: Seconds between two samples, on average.
    interval: float
    lines: tuple[LineProfile, ...]
    functions: tuple[FunctionProfile, ...]
    operations: tuple[OperationProfile, ...]
    #: Seconds of all calls by phase.
    phases: dict[str, float]
    #: Name and version of Scalene, if the script ran a second time under it.
    scalene: str | None = None

    @property
    def recompilations(self) -> int:
        return sum(each.recompilations for each in self.functions)

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All calls on one device."""

    device: str
    calls: int
    seconds: float
    run: float
    moving: float
    bytes_to_device: int
    bytes_to_host: int


def by_device(profile: Profile) -> list[DeviceProfile]:
    """The longest first."""
    found: dict[str, list[FunctionProfile]] = {}
    for each in profile.functions:
        found.setdefault(each.device, []).append(each)
    devices = [
        DeviceProfile(
            device=device,
            calls=sum(each.calls for each in functions),
            seconds=sum(each.seconds for each in functions),
            run=sum(each.phases.get("run", 0.0) for each in functions),
            moving=sum(each.phases.get("write", 0.0) + each.phases.get("read", 0.0) for each in functions),
            bytes_to_device=sum(each.bytes_to_device for each in functions),
            bytes_to_host=sum(each.bytes_to_host for each in functions),
        )
        for device, functions in found.items()
    ]
    return sorted(devices, key=lambda each: -each.seconds)
