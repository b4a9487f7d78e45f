"""The cache folder: private files that are replaced as a whole, a lock between processes, and a limit on their size.

Whatever the folder contains, a call works: a file counts only if no other user (except root) can have written it, if it
is complete, and if it decodes to the expected record. Any other file counts as missing. Failed writes are not reported.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anygpu.base.cache_location import cache_location
from anygpu.base.own_files import blake2b, is_own

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path

Record = TypeVar("Record")

#: The prefix of files that are being written, or were when their process died.
TEMPORARY = ".anygpu-new-"

#: The age at which a temporary file is known to be abandoned.
_ABANDONED_SECONDS = 3600.0
_CHECKSUM_BYTES = 65
#: The size of a block on disk: a shorter file takes as much.
_DISK_BLOCK = 4096
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_LOCK_FILE = (
    os.O_RDWR | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
)  # fmt: skip


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`ANYGPU_CACHE_DIR`, or the folder that the system keeps for caches."""
    from pathlib import Path  # late, as all that a process which only reads does not need

    return Path(cache_location(environment))


# -- files


def write_file(path: str | os.PathLike[str], content: bytes) -> bool:
    """Replace a file by one that only this user can read, atomically; returns whether that worked."""
    with contextlib.suppress(OSError, ValueError, MemoryError):
        from pathlib import Path

        path = Path(path)
        make_folder(path.parent)
        temporary = path.with_name(TEMPORARY + os.urandom(8).hex())
        try:
            with open(os.open(temporary, _NEW_FILE, 0o600), "wb", buffering=0) as file:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
            temporary.replace(path)
            return True
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return False


def sealed(content: bytes, purpose: bytes) -> bytes:
    """The content after a checksum of itself and of its purpose."""
    return _checksum(content, purpose) + content


def unsealed(content: bytes | None, purpose: bytes) -> bytes | None:
    """The content that was sealed for that purpose; `None` if the checksum differs."""
    if content is None:
        return None
    inner = content[_CHECKSUM_BYTES:]
    return inner if content[:_CHECKSUM_BYTES] == _checksum(inner, purpose) else None


def _checksum(content: bytes, purpose: bytes) -> bytes:
    checksum = blake2b(blake2b(purpose).digest(), digest_size=32)
    checksum.update(content)
    return checksum.hexdigest().encode() + b"\n"


def decoded(decode: Callable[..., Any], content: bytes | None, type: type[Record]) -> Record | None:
    """The record by one of msgspec's functions; `None` for anything that is not such a record."""
    if content is None:
        return None
    try:
        found: Record = decode(content, type=type)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        return None
    return found


# -- folders


def make_folder(path: Path) -> None:
    """Create the folder and its missing parents, all with access for this user only."""
    missing = [path]
    while not missing[-1].parent.exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "geteuid") and not os.environ.get("ANYGPU_CACHE_DIR") and path.is_relative_to(cache_folder()):
        # Ours by its name. Where the user's group may write by default, an earlier version has let it.
        facts = path.stat()
        if facts.st_uid == os.geteuid() and facts.st_mode & 0o022:
            path.chmod(stat.S_IMODE(facts.st_mode) & ~0o022)


def why_not_own(folder: Path) -> str | None:
    """Why files in the folder cannot be trusted; `None` if only this user (or root) can have put them there."""
    try:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            return f"{folder} is not a folder; remove it"
        if not is_own(facts) or facts.st_mode & stat.S_ISVTX:
            return f"{folder} belongs to another user, or others can write to it; remove it"
        # Who can write to the parent could replace the folder.
        if not is_own(folder.parent.stat()):
            return f"{folder.parent} belongs to another user, or others can write to it; set ANYGPU_CACHE_DIR"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be read ({getattr(error, 'strerror', None) or error}); set ANYGPU_CACHE_DIR"
    return None


def why_not_private(facts: os.stat_result) -> str | None:
    """Why others may use a file or folder; `None` if only this user can."""
    if not hasattr(os, "geteuid"):
        return None  # Windows: files in a user's own folder are the user's
    if facts.st_uid != os.geteuid():
        return f"it belongs to user {facts.st_uid}, not to you"
    if facts.st_mode & 0o077:
        return f"others may use it (its mode is {stat.S_IMODE(facts.st_mode):04o})"
    return None


def sweep(
    folder: str | os.PathLike[str],
    is_ours: Callable[[str], bool],
    *,
    now: float,
    most_bytes: int | None = None,
    most_files: int | None = None,
) -> int:
    """Remove the least recently changed files beyond a limit, and temporary files of dead processes.

    Other files are never touched: the folder may be one in which the user has files too. Returns the bytes on disk that
    are left. Other processes may sweep at the same time.
    """
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            facts = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(facts.st_mode):
                continue
            if is_ours(entry.name):
                files.append((facts.st_mtime, bytes_on_disk(facts.st_size), entry.path))
            elif entry.name.startswith(TEMPORARY) and now - facts.st_mtime > _ABANDONED_SECONDS:
                os.unlink(entry.path)
    total, count = sum(size for _, size, _ in files), len(files)
    for _, size, path in sorted(files):
        if (most_bytes is None or total <= most_bytes) and (most_files is None or count <= most_files):
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total, count = total - size, count - 1
    return total


def bytes_on_disk(nbytes: int) -> int:
    """The size of a file in whole blocks."""
    return -(-nbytes // _DISK_BLOCK) * _DISK_BLOCK


# -- locks


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created, between all threads and processes.

    The system releases it however a process ends. Raises `TimeoutError` if others hold it for too long.
    """
    descriptor = os.open(path, _LOCK_FILE, 0o600)
    try:
        if not acquire_lock(descriptor, seconds):
            raise TimeoutError(f"{os.fspath(path)} was locked for {seconds:g} seconds")
        yield
    finally:
        release_lock(descriptor)


def acquire_lock(descriptor: int, seconds: float) -> bool:
    """Lock an open file exclusively within that time; returns whether it was acquired.

    Threads of one process exclude each other only with descriptors of their own.
    """
    deadline = time.monotonic() + seconds
    pause = 20e-6
    while not try_lock(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 5e-3)
    return True


def try_lock(descriptor: int) -> bool:
    """Lock an open file exclusively if no other descriptor has it locked."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def release_lock(descriptor: int) -> None:
    """Unlock and close. A process that was forked meanwhile has the descriptor too, so closing it is not enough."""
    try:
        if sys.platform != "win32":
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
