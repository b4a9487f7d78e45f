"""What engines that compile keep on disk between processes: results of tuning, and what a compiler made.

A kept file is trusted only when it is ours (see `anygpu.base.cache_folder`), whole (by its checksum) and meant for
exactly this use (kind, key, device, driver and versions). Anything else is as good as no file: the worst that a
cache can cost is the time to do the work again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anygpu._version import __version__
from anygpu.base.cache_folder import TEMPORARY, decoded, sealed, unsealed, write_file
from anygpu.base.digest import blake2b
from anygpu.base.own_files import read_file
from anygpu.engines.distributions import version_of
from anygpu.errors import InvalidOption

if TYPE_CHECKING:
    from anygpu.hardware.device import Device

Record = TypeVar("Record")

MAX_BYTES = 256 << 20

_FORMAT = 2

#: What a file takes on disk, however short it is.
_DISK_BLOCK = 4096
#: A file that has been written for so long will never be finished.
_ABANDONED_SECONDS = 3600.0

_KIND = r"[a-z0-9]+(-[a-z0-9]+)*"
#: Nothing else is ever removed: the folder may be one in which a user has other files.
_OURS = _KIND + r"-[0-9a-f]{64}"


def stamp_of(device: Device, libraries: Iterable[str]) -> str:
    """Everything that can make what was compiled or measured for a device wrong for it.

    `libraries` are names of distributions. Two cards of one model with one driver have one stamp.
    """
    facts = (device.engine, device.kind, device.vendor, device.model, device.name, device.api, device.driver)
    versions = {name: version_of(name) for name in libraries}
    capabilities = (device.compute_capability, device.features, device.limits)
    stamp = (facts, capabilities, versions, __version__, platform.system(), platform.machine())
    return msgspec.json.encode(stamp, order="sorted").decode()


class DiskCache:
    """Named bytes and records in a folder, for one device as `stamp` has it.

    No method raises for what is or is not on disk. The folder is kept below `max_bytes`; what was not asked for the
    longest time goes first. Several threads and processes may use one folder.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        stamp: str,
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = os.fspath(directory)
        self._stamp = stamp
        self._max_bytes = max_bytes
        self._clock = clock
        #: What may still be written before the folder is looked through; unknown at first.
        self._room = 0

    def get(self, kind: str, key: str | bytes) -> bytes | None:
        """What was put under that key, if it is there and beyond doubt."""
        identity = self._identity(kind, key)
        path = self._path(kind, identity)
        data = unsealed(read_file(path, self._max_bytes), identity)
        if data is not None:
            with contextlib.suppress(OSError):
                now = self._clock()
                os.utime(path, (now, now))
        return data

    def put(self, kind: str, key: str | bytes, data: bytes) -> None:
        """Keep it, in place of what was there, if the folder can be written."""
        identity = self._identity(kind, key)
        path = self._path(kind, identity)
        content = sealed(data, identity)
        if _on_disk(len(content)) > self._max_bytes or not write_file(path, content):
            return
        with contextlib.suppress(OSError):
            now = self._clock()
            os.utime(path, (now, now))
            self._room -= _on_disk(len(content))
            if self._room < 0:
                self._make_room(now)

    def record(self, kind: str, key: str | bytes, of: type[Record]) -> Record | None:
        """A record that was put under that key, if it is there and of that type."""
        return decoded(msgspec.msgpack.decode, self.get(kind, key), of)

    def put_record(self, kind: str, key: str | bytes, record: Any) -> None:
        """Keep anything that msgspec can encode: a struct, or what structs are made of."""
        self.put(kind, key, msgspec.msgpack.encode(record))

    def _identity(self, kind: str, key: str | bytes) -> bytes:
        if not re.fullmatch(_KIND, kind):
            raise InvalidOption(
                f"{kind!r} is not a kind of cached file: use lowercase letters, digits and single hyphens."
            )
        # Encoded as a whole, so that no two of them run together into a third.
        return blake2b(msgspec.msgpack.encode((_FORMAT, kind, key, self._stamp)), digest_size=32).digest()

    def _path(self, kind: str, identity: bytes) -> str:
        return os.path.join(self._directory, f"{kind}-{identity.hex()}")

    def _make_room(self, now: float) -> None:
        """Remove what was not used for the longest time. Others may be at the same: a file that is gone is gone."""
        files = []
        for entry in os.scandir(self._directory):
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(facts.st_mode):
                    continue
                if re.fullmatch(_OURS, entry.name):
                    files.append((facts.st_mtime, _on_disk(facts.st_size), entry.path))
                elif entry.name.startswith(TEMPORARY) and now - facts.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(entry.path)
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
        # Half of it: others write here too.
        self._room = (self._max_bytes - total) // 2


def _on_disk(nbytes: int) -> int:
    return -(-nbytes // _DISK_BLOCK) * _DISK_BLOCK
