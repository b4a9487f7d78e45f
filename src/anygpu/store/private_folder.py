"""The folder of a shared store: files that only this user can use, one lock, and the liveness of processes.

Each process holds a lock on a file of its own, which the kernel releases however the process ends. So processes need
not sign off, and no count can be wrong.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from anygpu.base.cache_folder import acquire_lock, release_lock, try_lock, why_not_private
from anygpu.errors import OutOfMemory, StoreError

if sys.platform != "win32":
    import fcntl

#: Seconds that a process waits for the folder lock, which others hold for less than a millisecond.
LOCK_SECONDS = 10.0

_LOCK = "lock"
_NEW = "new-"
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


class _Sections(threading.local):
    """Folders that this thread has locked. A finaliser that runs meanwhile must not wait for its own thread."""

    def __init__(self) -> None:
        self.inside = 0
        self.afterwards: list[Callable[[], None]] = []


_sections = _Sections()


def outside_of_locks(action: Callable[[], None]) -> None:
    """Call it now, or as soon as this thread has no folder locked."""
    if _sections.inside:
        _sections.afterwards.append(action)
    else:
        action()


class PrivateFolder:
    """A folder whose files are all opened through one descriptor, so that no process can substitute another folder."""

    def __init__(self, path: Path) -> None:
        """Create or open it. Raises FileNotFoundError if another process removed it in between."""
        self.path = path
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise StoreError(
                f"{path} cannot be made ({error.strerror}). Open the store within a folder that can be written."
            ) from error
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(path, f"it is not a folder that can be opened ({error.strerror})") from error
        try:
            _check(path, os.fstat(self.descriptor), folder=True)
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)  # noqa: PTH208 (by descriptor)

    def open(self, name: str, *, writing: bool = False, create: bool = False, new: bool = False) -> int:
        """A descriptor of a file that this user owns. Raises FileNotFoundError if there is none."""
        flags = os.O_RDWR if writing else os.O_RDONLY
        flags |= (os.O_CREAT if create or new else 0) | (os.O_EXCL if new else 0)
        # A pipe in place of the file would let the opening wait for ever.
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        path = self.path / name
        try:
            descriptor = os.open(name, flags, 0o600, dir_fd=self.descriptor)
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise no_room(0, self.descriptor) from error
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise StoreError(
                    f"{path} cannot be opened: this process has reached its limit of open files, and each attached "
                    "tensor takes one. Raise the limit (ulimit -n)."
                ) from error
            raise _refused(path, f"it is not a file that can be opened ({error.strerror})") from error
        try:
            _check(path, os.fstat(descriptor), folder=False)
        except StoreError:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, name: str, content: bytes, seconds: int) -> None:
        """Others see the old file or the new one, never a part. `seconds` becomes its time of last change."""
        new = _NEW + secrets.token_hex(8)
        descriptor = self.open(new, writing=True, new=True)
        try:
            try:
                with room_for(len(content), descriptor):
                    rest = memoryview(content)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
            finally:
                os.close(descriptor)
            os.utime(new, (seconds, seconds), dir_fd=self.descriptor)
            os.replace(new, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            self.remove(new)
            raise

    def changed_at(self, name: str) -> int:
        """Its time of last change in seconds, and 0 where there is none."""
        try:
            return int(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mtime)
        except FileNotFoundError:
            return 0

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def held(self, name: str) -> bool:
        """Whether any process holds the file. The caller must hold the folder lock."""
        try:
            descriptor = self.open(name)
        except (FileNotFoundError, StoreError):
            return False
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)

    def new_leftovers(self, names: list[str]) -> list[str]:
        """Files whose process died while writing them. The caller must hold the folder lock."""
        return [name for name in names if name.startswith(_NEW)]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """No other thread or process changes anything inside. Raises FileNotFoundError if the folder was removed."""
        descriptor = self._locked()
        _sections.inside += 1
        try:
            yield
        finally:
            _sections.inside -= 1
            release_lock(descriptor)
            while _sections.afterwards and not _sections.inside:
                _sections.afterwards.pop()()

    def _locked(self) -> int:
        """Acquire the folder's lock, and return its descriptor. Raises `StoreError` after `LOCK_SECONDS`."""
        while True:
            # Opened each time: threads of one process exclude each other only with descriptors of their own.
            descriptor = self.open(_LOCK, writing=True, create=True)
            try:
                if not acquire_lock(descriptor, LOCK_SECONDS):
                    raise StoreError(
                        f"another process has been changing {self.path} for {LOCK_SECONDS:g} seconds, so it seems "
                        "to be stopped. Let it go on, or end it; its lock goes with it."
                    )
                if os.fstat(descriptor).st_nlink:
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the last process removed it while we waited; there may be another by now

    def remove_all(self) -> None:
        """Remove the folder, the lock last: a process that arrives in between makes a new lock and keeps the folder."""
        self.clear()
        self.remove(_LOCK)
        with contextlib.suppress(OSError):
            here = self.path.lstat()
            if os.path.samestat(here, os.fstat(self.descriptor)):
                self.path.rmdir()

    def clear(self) -> None:
        for name in self.names():
            if name != _LOCK:
                self.remove(name)


@contextlib.contextmanager
def room_for(nbytes: int, descriptor: int) -> Iterator[None]:
    """Turns errors of the system that mean a lack of memory into `OutOfMemory`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise no_room(nbytes, descriptor) from error


def no_room(nbytes: int, descriptor: int) -> OutOfMemory:
    found = os.fstatvfs(descriptor)
    return OutOfMemory("the host's shared memory", nbytes, found.f_bavail * found.f_frsize)


def hold(descriptor: int) -> None:
    """Hold the file until every copy of the descriptor is closed. Waits only for processes that check it."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def _check(path: Path, found: os.stat_result, *, folder: bool) -> None:
    """Raises `StoreError` if the file or folder is of another kind, or if other users may use it."""
    if folder and not stat.S_ISDIR(found.st_mode):
        raise _refused(path, "it is not a folder")
    if not folder and not stat.S_ISREG(found.st_mode):
        raise _refused(path, "it is not an ordinary file")
    if (why := why_not_private(found)) is not None:
        raise _refused(path, why)


def _refused(path: Path, why: str) -> StoreError:
    """Returns the error for a file or folder that must not be used."""
    return StoreError(
        f"{path} is not used: {why}. Tensors are shared between processes of one user only. Remove it if it is yours, "
        "or use another name for the store."
    )
