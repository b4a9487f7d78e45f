"""Atomic writes: a file gets its name when it is complete, and leftovers of dead processes are removed.

A file is written beside its target under a name of its own, and locked while its process lives: one that can be
locked is a leftover. The system releases the lock however a process ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from anygpu.base.interrupts import completed

if sys.platform != "win32":  # there an open file cannot be removed, which is lock enough
    import fcntl

_UNFINISHED = re.compile(r"\.anygpu-saving-([0-9a-f]{16})")
_PART = re.compile(r"model-([0-9a-f]{16})-\d{5,}-of-\d{5,}\.safetensors")


class Unfinished:
    """A file that is being written. `token` is in its name, and in those of other files that belong to it."""

    def __init__(self, folder: Path, *, like: os.stat_result | None) -> None:
        """Names a new file in the folder, which `begin` creates with the permissions of the file that it replaces."""
        self._folder = folder
        self._like = like
        self._name()
        self._file: io.FileIO | None = None

    def _name(self) -> None:
        self.token = secrets.token_hex(8)
        self.path = self._folder / f".anygpu-saving-{self.token}"

    def begin(self) -> io.FileIO:
        """Create the file. The caller must call `abandon` in the end, also when this raises."""
        while True:
            self._file = file = new_file(self.path, self._like)
            if self._locked(file):
                return file
            file.close()
            self._name()

    def take_name(self, target: Path) -> None:
        """Complete the file: flush it, rename it, and flush the folder."""
        assert self._file is not None, "it was begun"
        sync_file(self._file)
        if sys.platform == "win32":
            self._file.close()  # Windows renames no open file
        self.path.replace(target)
        self._file.close()
        sync_folder(target.parent)

    def abandon(self) -> None:
        """May be called after `take_name`, and then does nothing."""
        if self._file is not None:
            self._file.close()
        self.path.unlink(missing_ok=True)

    def _locked(self, file: io.FileIO) -> bool:
        """Lock the file; `False` if another process removed it as a leftover just before."""
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # a file system without locks: no other process can lock it either
                fcntl.flock(file, fcntl.LOCK_EX)
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def new_file(path: Path, like: os.stat_result | None) -> io.FileIO:
    """A file for writing, with the permissions of `like` if that exists."""
    return completed(lambda: _new_file(path, like))  # whose descriptor an interrupt could lose


def _new_file(path: Path, like: os.stat_result | None) -> io.FileIO:
    """Creates the file, which must not exist, with owner and permissions of `like` as far as the system lets it."""
    mode = 0o666 if like is None else 0o600
    file = open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
    if like is not None and sys.platform != "win32":
        own = os.fstat(file.fileno())
        with contextlib.suppress(OSError):  # another's file: its content can be replaced, its owner not
            if (like.st_uid, like.st_gid) != (own.st_uid, own.st_gid):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
        with contextlib.suppress(OSError):  # a file system without permissions
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode) & 0o777)
    return file


def clear_unfinished(folder: Path) -> set[str]:
    """Remove files of dead processes; returns the tokens of active writers."""
    alive = set()
    for each in sorted(os.listdir(folder)):  # noqa: PTH208 - only the names
        if (match := _UNFINISHED.fullmatch(each)) and not _removed_as_dead(folder / each):
            alive.add(match[1])
    return alive


def part_name(token: str, number: int, count: int) -> str:
    """The name of one file of a sharded save."""
    return f"model-{token}-{number:05}-of-{count:05}.safetensors"


def is_part_of_a_save(name: str) -> bool:
    """Whether the name is that of one file of a sharded save."""
    return _PART.fullmatch(name) is not None


def token_of_part(name: str) -> str | None:
    """Returns the token of the save that a file belongs to; `None` for another file."""
    match = _PART.fullmatch(name)
    return None if match is None else match[1]


def write_all(file: io.FileIO, piece: memoryview) -> None:
    """Writes all bytes, however few the system takes at a time."""
    done = 0
    while done < len(piece):
        done += file.write(piece[done:])


def sync_file(file: io.FileIO) -> None:
    """Flushes the file to the disk itself."""
    if sys.platform == "darwin":
        # There fsync gives the bytes to the disk, which may keep them to itself for a while.
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the folder, so that a new name survives a power failure."""
    if sys.platform != "win32":
        completed(lambda: _sync_opened(folder))  # whose descriptor an interrupt could lose


def _sync_opened(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system say which file they are about, also where the system does not (a full disk)."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _removed_as_dead(path: Path) -> bool:
    """Removes the file of a process that is gone; returns `False` if it is locked, so that its process lives."""
    try:
        with contextlib.ExitStack() as stack:
            if sys.platform != "win32":
                fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except FileNotFoundError:
        return True
    except OSError:  # locked, or not ours to remove
        return False
    return True
