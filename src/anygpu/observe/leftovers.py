"""Files of processes that were killed, which nobody has removed from the folder where processes meet."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import time
from pathlib import Path

from anygpu.observe.meeting_place import NEW, PORT, SOCKET, process_of

#: A listener takes milliseconds to be ready: after so many seconds it will not be.
_UNREADY_SECONDS = 60.0


def remove_leftovers(place: Path) -> None:
    """Those of processes that are not there and do not listen. Errors are no concern of a process that begins."""
    with contextlib.suppress(OSError):
        for path in place.iterdir():
            with contextlib.suppress(OSError):
                if path.name.startswith(NEW):
                    if time.time() - path.lstat().st_mtime > _UNREADY_SECONDS:
                        path.unlink()
                    continue
                pid = process_of(path.name)
                if pid is None or runs(pid):
                    continue
                # Of a container that shares the folder, numbers are others.
                if path.suffix == PORT or (path.suffix == SOCKET and _is_deaf(path)):
                    path.unlink()


def remove_refused(path: Path) -> bool:
    """Nobody listens there: whether that is for good, and it was removed. Its name will not be used again."""
    # Elsewhere than on Linux a socket is refused, too, when too many wait for it.
    if sys.platform != "linux" and runs(process_of(path.name) or 0):
        return False
    with contextlib.suppress(OSError):
        path.unlink()
    return True


def runs(pid: int) -> bool:
    """Whether there is a process of this number."""
    if sys.platform == "win32":
        return True  # there is no signal that does nothing
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return pid > 0


def _is_deaf(path: Path) -> bool:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(os.fspath(path))
        except ConnectionRefusedError:
            return True
    return False
