"""A short visit to another machine: which devices it has, how fast they are, and how far away it is."""

from __future__ import annotations

import platform

import msgspec

from anygpu._version import __version__
from anygpu.hardware.device import Device, Unavailable
from anygpu.plan.calibration import Calibration


class Visited(msgspec.Struct, frozen=True):
    """What there is on a machine."""

    devices: tuple[Device, ...]
    unavailable: tuple[Unavailable, ...]
    calibrations: dict[str, Calibration]
    version: str
    python: str
    #: By distribution; earlier versions of anygpu do not tell.
    versions: dict[str, str] = {}


class _Version(msgspec.Struct, frozen=True):
    """The part of `Visited` that every version of anygpu can read."""

    version: str


class Prober:
    """Inside of a Ray actor that lives as long as the visit."""

    def probe(self, seconds: float) -> bytes:
        """`Visited`, packed. Takes so long at most."""
        from anygpu.fleet.versions import installed_versions
        from anygpu.placement.calibrate import recalled
        from anygpu.workers.discovery import discover

        inventory = discover(timeout=seconds, with_cards=True)
        devices = tuple(device for device in inventory.devices if device.verified)
        known = {device.id: found for device in devices if (found := recalled(device)) is not None}
        versions = installed_versions()
        return msgspec.msgpack.encode(
            Visited(devices, inventory.unavailable, known, __version__, platform.python_version(), versions)
        )

    def echo(self, returns: int, part: int, *parts: bytes) -> bytes | list[bytes]:
        """As many parts of that size as are wanted, whatever came."""
        return bytes(part) if returns == 1 else [bytes(part)] * returns


def decode(data: bytes) -> Visited:
    """What a machine has answered. Of an answer in the form of another version, that version is all that is known."""
    try:
        found = msgspec.msgpack.decode(data, type=Visited)
    except msgspec.ValidationError:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version == __version__:
            raise
        return Visited((), (), {}, version, "", {"anygpu": version})
    return found if found.versions else msgspec.structs.replace(found, versions={"anygpu": found.version})
