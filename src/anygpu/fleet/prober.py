"""A short visit to another machine: which devices it has, how fast they are, and how far away it is."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from anygpu._version import __version__
from anygpu.engines.catalogue import every_engine
from anygpu.engines.disk_cache import version_of
from anygpu.hardware.device import Device, Unavailable, node_of
from anygpu.hardware.diagnosis_context import together
from anygpu.plan.calibration import Calibration

# -- whether another machine computes what this one does: versions of anygpu, of NumPy and of the engines' libraries
#
# A release may compute other values than the one before, and does not say so in its results. Machines whose minor
# version is another one are therefore refused, unless the caller has asked for them.


#: Libraries that every device depends on: NumPy computes what a device cannot.
COMMON = ("anygpu", "numpy")
#: The option of `connect` that admits other versions.
_OPTION = "other_versions=True"


class Difference(NamedTuple):
    """A distribution whose minor version is another one there."""

    distribution: str
    here: str
    there: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.there} (here {self.here})"


def installed_versions() -> dict[str, str]:
    """By distribution, what is installed in this process's environment of what results depend on."""
    names = dict.fromkeys((*COMMON[1:], *(entry.versions[0] for entry in every_engine() if entry.versions)))
    found = {name: version_of(name) for name in names}
    return {"anygpu": __version__, **{name: version for name, version in found.items() if version is not None}}


def library_of(engine: str) -> tuple[str, ...]:
    """The distribution that the engine stands on, if there is one."""
    entry = next((each for each in every_engine() if each.name == engine), None)
    return entry.versions[:1] if entry is not None else ()


def differences(names: Iterable[str], here: Mapping[str, str], there: Mapping[str, str]) -> tuple[Difference, ...]:
    """Those of the distributions that are in both places, and in another minor version."""
    return tuple(
        Difference(name, here[name], there[name])
        for name in names
        if name in here and name in there and minor_version(here[name]) != minor_version(there[name])
    )


def minor_version(version: str) -> tuple[str, ...]:
    """The first two numbers; of what has none, all of it."""
    found = re.match(r"\s*v?(?:\d+!)?(\d+)(?:\.(\d+))?", version)
    return (version,) if found is None else (str(int(found[1])), str(int(found[2] or 0)))


def refused(name: str, engine: str, found: tuple[Difference, ...]) -> Unavailable:
    """A device that is not used because of its versions, with the command that helps; `name` is that in the fleet."""
    node = node_of(name)
    packages = " ".join(f"'{each.distribution}=={each.here}'" for each in found)
    return Unavailable(
        id=name,
        engine=engine,
        state="present",
        cause="other_version",
        reason=f"{node} has {' and '.join(map(str, found))}, and may compute other values.",
        fix=f"On {node}: pip install {packages}   (then connect again; or pass {_OPTION} to use it as it is)",
        facts={each.distribution: each.there for each in found},
    )


def warnings_of(missing: Iterable[Unavailable], here: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each combination of versions for which machines are refused, however many these are."""
    nodes: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for each in missing:
        node = node_of(each.id)
        if each.cause == "other_version" and node is not None:
            nodes.setdefault(tuple(each.facts.items()), {})[node] = None
    for facts, names in nodes.items():
        found = [Difference(name, here.get(name, "none"), there) for name, there in facts]
        packages = " ".join(f"'{each.distribution}=={each.here}'" for each in found)
        yield (
            f"Devices of {together(names)} are not used, because they may compute other values: "
            f"{' and '.join(map(str, found))}. pip install {packages} there, or pass {_OPTION}."
        )


class Visited(msgspec.Struct, frozen=True):
    """The devices of a machine, its versions and its speed."""

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
        from anygpu.fleet.prober import installed_versions
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
    """Decode a machine's answer. From one in the form of another version, only the version is read."""
    try:
        found = msgspec.msgpack.decode(data, type=Visited)
    except msgspec.ValidationError:
        version = msgspec.msgpack.decode(data, type=_Version).version
        if version == __version__:
            raise
        return Visited((), (), {}, version, "", {"anygpu": version})
    return found if found.versions else msgspec.structs.replace(found, versions={"anygpu": found.version})
