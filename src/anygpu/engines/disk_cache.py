"""A cache on disk, shared by processes: tuning results, calibrations, compiled code.

A file is trusted only if it is this user's (see `anygpu.base.cache_folder`), complete (by its checksum) and meant for
exactly this use (kind, key, device, driver and versions). Any other file is a cache miss.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anygpu.base.cache_folder import bytes_on_disk, decoded, sealed, sweep, unsealed, write_file
from anygpu.base.own_files import blake2b, read_file
from anygpu.base.version import __version__
from anygpu.errors import InvalidOption

if TYPE_CHECKING:
    from anygpu.hardware.device import Device


# -- versions of the libraries that engines stand on


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; `None` where it is not installed."""
    from importlib import metadata  # late: it takes as long to load as a call may take to be planned

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def mark_of_llvmlite() -> str | None:
    """By which another llvmlite is noticed: the file in which it has its version and its revision.

    That takes a hundredth of the time of `version_of`, which native code on disk would otherwise wait for.
    """
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return None
    try:
        with open(os.path.join(os.path.dirname(found.origin), "_version.py"), encoding="utf-8") as file:
            return file.read()
    except OSError:  # in a frozen application
        return version_of("llvmlite")


# -- a cache on disk
#
# Shared by processes: tuning results, calibrations, compiled code.
#
# A file is trusted only if it is this user's (see `anygpu.base.cache_folder`), complete (by its checksum) and meant
# for exactly this use (kind, key, device, driver and versions). Any other file is a cache miss.


Record = TypeVar("Record")

MAX_BYTES = 256 << 20

_FORMAT = 2

_KIND = r"[a-z0-9]+(-[a-z0-9]+)*"
_OURS = _KIND + r"-[0-9a-f]{64}"


def stamp_of(device: Device, libraries: Iterable[str]) -> str:
    """A text that changes with everything that invalidates compiled code or timings of a device.

    `libraries` are names of distributions. Two cards of one model with one driver have one stamp.
    """
    facts = (device.engine, device.kind, device.vendor, device.model, device.name, device.api, device.driver)
    versions = {name: version_of(name) for name in libraries}
    capabilities = (device.compute_capability, device.features, device.limits)
    stamp = (facts, capabilities, versions, __version__, platform.system(), platform.machine())
    return msgspec.json.encode(stamp, order="sorted").decode()


class DiskCache:
    """Bytes and records by kind and key in a folder, valid for one `stamp` (see `stamp_of`).

    No method raises for the state of the disk. The folder is kept below `max_bytes`: the least recently used files are
    removed first. Several threads and processes may use one folder.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        stamp: str,
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """A cache in a folder, for entries of one `stamp`: device, driver and versions.

        Nothing is read or made before it is needed. Beyond `max_bytes` the entries that were used longest ago are
        removed.
        """
        self._directory = os.fspath(directory)
        self._stamp = stamp
        self._max_bytes = max_bytes
        self._clock = clock
        #: Bytes that may still be written before the folder is swept; 0 at first, because the size is unknown.
        self._room = 0

    def get(self, kind: str, key: str | bytes) -> bytes | None:
        """The bytes that were put under that key; `None` if there are none, or they cannot be trusted."""
        identity = self._identity(kind, key)
        path = self._path(kind, identity)
        data = unsealed(read_file(path, self._max_bytes), identity)
        if data is not None:
            with contextlib.suppress(OSError):
                now = self._clock()
                os.utime(path, (now, now))
        return data

    def put(self, kind: str, key: str | bytes, data: bytes) -> None:
        """Write the bytes under that key, if the folder is writable."""
        identity = self._identity(kind, key)
        path = self._path(kind, identity)
        content = sealed(data, identity)
        if bytes_on_disk(len(content)) > self._max_bytes or not write_file(path, content):
            return
        with contextlib.suppress(OSError):
            now = self._clock()
            os.utime(path, (now, now))
            self._room -= bytes_on_disk(len(content))
            if self._room < 0:
                self._make_room(now, self._max_bytes)

    def record(self, kind: str, key: str | bytes, of: type[Record]) -> Record | None:
        """The record that was put under that key, if there is one of that type."""
        return decoded(msgspec.msgpack.decode, self.get(kind, key), of)

    def put_record(self, kind: str, key: str | bytes, record: Any) -> None:
        """Write anything that msgspec can encode."""
        self.put(kind, key, msgspec.msgpack.encode(record))

    def clear(self) -> None:
        """Remove all files of any cache in the folder."""
        with contextlib.suppress(OSError):
            self._make_room(self._clock(), 0)

    def _identity(self, kind: str, key: str | bytes) -> bytes:
        """The digest by which an entry is found. Raises `InvalidOption` for a kind that cannot be a file's name."""
        if not re.fullmatch(_KIND, kind):
            raise InvalidOption(
                f"{kind!r} is not a kind of cached file: use lowercase letters, digits and single hyphens."
            )
        # Encoded as a whole, so that no two of them run together into a third.
        return blake2b(msgspec.msgpack.encode((_FORMAT, kind, key, self._stamp)), digest_size=32).digest()

    def _path(self, kind: str, identity: bytes) -> str:
        return os.path.join(self._directory, f"{kind}-{identity.hex()}")

    def _make_room(self, now: float, max_bytes: int) -> None:
        """Remove the files that were used longest ago, and note how much may be written before looking again."""
        total = sweep(self._directory, _is_ours, now=now, most_bytes=max_bytes)
        # Half of it: other processes write here too.
        self._room = (max_bytes - total) // 2


def _is_ours(name: str) -> bool:
    return re.fullmatch(_OURS, name) is not None
