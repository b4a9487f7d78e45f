"""The folder that the database is in: whose it is, whose turn it is, and what becomes of a file that is no good.

One process at a time uses the database, from opening it to closing it, by a lock on a file beside it. That is what
makes it safe to move a damaged database out of the way: SQLite finds its journal by name, so a file must not be
renamed while any process has it open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from anygpu.base.own_files import is_own

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: Files of SQLite's own beside a database; the first must never be separated from it while it counts.
_BESIDE = ("-journal", "-wal", "-shm")
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_PAUSE = 0.0005

#: A POSIX lock is a process's and not a thread's, and closing the file anywhere lets go of it.
_turn = threading.Lock()
#: How long a fork waits for a thread that is inside SQLite. A child that is forked off meanwhile would inherit locks of
#: SQLite's own, which nobody lets go of.
_FORK_SECONDS = 0.2
_fork = threading.local()
_forked_inside = False


#: The user may not write there.
NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
#: The process or the machine has no more of something now.
_NOT_NOW = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EINTR}


class Busy(Exception):
    """It is somebody else's turn, and will be for too long; or there is no way to find out now."""


class CannotLock(Exception):
    """What is in the place of the lock cannot be locked."""


def forked_inside_sqlite() -> bool:
    """Whether SQLite cannot be used here, because this process was forked off from within it."""
    return _forked_inside


@contextlib.contextmanager
def turn(lock: Path, deadline: float) -> Iterator[str | None]:
    """Be the only one, of all threads and processes. Raises `Busy` at `deadline` of `time.monotonic`, or `CannotLock`.

    What it gives is why the user cannot write there, if that is so: then there is no lock, and none is needed.
    """
    if not _turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise Busy
    with contextlib.ExitStack() as stack:
        stack.callback(_turn.release)
        why: str | None = None
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
            stack.callback(os.close, descriptor)  # this also lets go of the lock
            _wait_for(descriptor, deadline)
        except OSError as error:
            if error.errno in _NOT_NOW:
                raise Busy from error
            if error.errno not in NOT_ALLOWED:
                raise CannotLock(f"{lock} cannot be locked ({reason(error)}); remove it") from error
            why = reason(error)
        yield why


def _wait_for(descriptor: int, deadline: float) -> None:
    while True:
        try:
            return _try_lock(descriptor)
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= deadline:
                raise Busy from None
            time.sleep(_PAUSE)


def _try_lock(descriptor: int) -> None:
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def why_not_ours(folder: Path) -> str | None:
    """Why nothing in the folder can be relied on, or put there; `None` if nobody else can have written there."""
    try:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            return f"{folder} is not a folder; remove it"
        if not is_own(facts) or facts.st_mode & stat.S_ISVTX:
            return f"{folder} belongs to another user, or others can write to it; remove it"
        # Whoever can write to the folder above could put another in its place.
        if not is_own(folder.parent.stat()):
            return f"{folder.parent} belongs to another user, or others can write to it; set ANYGPU_CACHE_DIR"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be looked at ({reason(error)}); set ANYGPU_CACHE_DIR"
    return None


def why_not_a_database(path: Path, most_bytes: int) -> str | None:
    """Why a file must not be opened; `None` if it may be, or if there is none."""
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"cannot be looked at ({reason(error)})"
    if not stat.S_ISREG(facts.st_mode):
        return "is not a regular file"
    if not is_own(facts):
        return "belongs to another user, or others can write to it"
    if facts.st_size > most_bytes:
        return "is too large"
    return None


def set_aside(path: Path, aside: Path) -> bool:
    """Rename it, with what belongs to it, over what was set aside before; whether that worked.

    What belongs to it goes first: SQLite would take a journal that is left alone for that of the next database.
    """
    try:
        for suffix in _BESIDE:
            _replace(Path(f"{path}{suffix}"), Path(f"{aside}{suffix}"))
        _replace(path, aside)
    except (OSError, ValueError):
        return False
    return True


def _replace(path: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if target.is_dir() and not target.is_symlink():
            target.rmdir()  # raises when something is in it, which is not ours to remove
        else:
            target.unlink()
    with contextlib.suppress(FileNotFoundError):
        path.replace(target)


def remove_asides(aside: Path) -> None:
    """Remove what was set aside, if that is possible."""
    for suffix in ("", *_BESIDE):
        with contextlib.suppress(OSError, ValueError):
            Path(f"{aside}{suffix}").unlink(missing_ok=True)


def bytes_of(path: Path) -> int:
    """What the database takes on disk."""
    total = 0
    for suffix in ("", *_BESIDE):
        with contextlib.suppress(OSError, ValueError):
            total += Path(f"{path}{suffix}").lstat().st_size
    return total


def can_open_more() -> bool:
    """Whether this process may open as many files as a use of the database takes: it, its journal, and the lock."""
    with contextlib.ExitStack() as stack:
        try:
            for _ in range(5):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return False
    return True


def reason(error: Exception) -> str:
    """Without the path, which the sentence has already."""
    return getattr(error, "strerror", None) or str(error)


def _before_fork() -> None:
    _fork.waited = _turn.acquire(timeout=_FORK_SECONDS)


def _after_fork() -> None:
    if _fork.waited:
        _turn.release()


def _in_child() -> None:
    global _turn, _forked_inside
    _forked_inside = _forked_inside or not _fork.waited
    _turn = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
