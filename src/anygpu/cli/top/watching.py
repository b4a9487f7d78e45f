"""What one picture of `anygpu top` is made from: all processes, and the devices of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anygpu.base.printable import encode_json
from anygpu.cli.top.devices import Card, cards
from anygpu.hardware.device import Device
from anygpu.hardware.usage.reading import UsageReader
from anygpu.hardware.usage.usage import Usage
from anygpu.observe.looking import Following, Look
from anygpu.observe.snapshot import Snapshot


class Picture(NamedTuple):
    """Everything at a moment."""

    looks: tuple[Look, ...]
    cards: tuple[Card, ...]
    usage: dict[str, Usage]


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has not answered."""

    pid: int
    why: str


class TopDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `anygpu top --once --json` prints."""

    schema: str = "anygpu.top/1"
    #: Seconds since 1970.
    time: float
    processes: tuple[Snapshot, ...]
    silent: tuple[Silent, ...] = ()
    #: Of the devices of this machine, by their ids.
    usage: dict[str, Usage] = {}

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)


class Watching:
    """Takes one picture after the other. For one thread at a time."""

    def __init__(self, following: Following | None = None, devices: Sequence[Device] = ()) -> None:
        self._following = following or Following()
        self._reader = UsageReader()
        #: Those of this machine, once they are known.
        self.devices: Sequence[Device] = devices

    def look(self) -> Picture:
        looks = self._following.look()
        devices = self.devices
        usage = self._reader.read([each for each in devices if not each.software])
        return Picture(tuple(looks), tuple(cards(usage, devices, looks)), usage)

    def close(self) -> None:
        self._following.close()


def document(picture: Picture) -> TopDocument:
    answered = [look for look in picture.looks if look.trouble is None and look.snapshot is not None]
    silent = [look for look in picture.looks if look.trouble is not None and look.ended is None]
    return TopDocument(
        time=time.time(),
        processes=tuple(look.snapshot for look in answered if look.snapshot is not None),
        silent=tuple(Silent(pid=look.process.pid, why=look.trouble or "") for look in silent),
        usage=picture.usage,
    )
