"""The folder with the sockets of observed processes, which is this user's alone.

Every observed process has one file in it. Where the system has Unix sockets that is a socket; elsewhere it is a file
with the port and the secrets of a listener on the loopback address. Names are never used twice, so that what was found
dead can be removed at any time.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import stat
import struct
import sys
import tempfile
import time
from pathlib import Path

from anygpu.base.own_files import is_own
from anygpu.errors import AnyGPUError

#: Names the folder; without it there are usual ones.
VARIABLE = "ANYGPU_OBSERVE_DIR"

HAS_UNIX_SOCKETS = hasattr(socket, "AF_UNIX") and sys.platform != "win32"
SOCKET, PORT = ".sock", ".port"
#: How names of files begin that are not ready yet.
NEW = "new-"
#: The longest path of a socket, of which one byte is for the end: 108 on Linux, and 104 on macOS and the BSDs.
LONGEST = 107 if sys.platform == "linux" else 103
_LONGEST_NAME = len("/new-4194304-0123456789abcdef.sock")


class PlaceRefused(AnyGPUError):
    """The folder where processes would meet is not this user's alone."""


def new_name(ending: str) -> str:
    return f"{os.getpid()}-{secrets.token_hex(8)}{ending}"


def process_of(name: str) -> int | None:
    """The process that made a file of this name."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 20 else None


def places() -> list[Path]:
    """Folders that may have sockets of this user, the folder for a new process first.

    A service, a cron job and a login do not have the same variables: whoever looks has to look at all of these.
    Raises `PlaceRefused` if the one that was chosen cannot be used.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        place = Path(chosen).absolute()
        if HAS_UNIX_SOCKETS and not _has_room_for_names(place):
            most = LONGEST - _LONGEST_NAME
            raise PlaceRefused(f"{VARIABLE} is too long a path for sockets. Choose a folder of at most {most} bytes.")
        return [place]
    if not HAS_UNIX_SOCKETS or not hasattr(os, "getuid"):
        return [Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir(), "anygpu-observed")]
    user = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    found = [Path(given, "anygpu")] if given and Path(given).is_absolute() and _is_ours(Path(given)) else []
    found += [Path(f"/run/user/{user}/anygpu")] if _is_ours(Path(f"/run/user/{user}")) else []
    found += [Path(tempfile.gettempdir(), f"anygpu-{user}"), Path(f"/tmp/anygpu-{user}")]
    return [each for each in dict.fromkeys(found) if _has_room_for_names(each)]


def place_to_be() -> Path:
    """The folder for a new process, made if it is missing. Raises `PlaceRefused`."""
    why: PlaceRefused | None = None
    for place in places():
        try:
            _make(place)
            return place
        except PlaceRefused as error:
            why = why or error
    raise why or PlaceRefused(f"there is no folder for sockets. Name one in {VARIABLE}.")


def checked(place: Path) -> Path | None:
    """The folder if it is there; `None` if it is not. Raises `PlaceRefused` if others could have put things there."""
    try:
        facts = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PlaceRefused(f"{place} cannot be looked at: {error.strerror}.") from None
    if not stat.S_ISDIR(facts.st_mode):
        raise _refused(place, "it is not a folder")
    if not hasattr(os, "geteuid"):
        return place  # Windows: what is in a user's own folder is the user's
    if facts.st_uid != os.geteuid():
        raise _refused(place, f"it belongs to user {facts.st_uid}, not to you")
    if facts.st_mode & 0o077:
        raise _refused(place, f"others may use it: its mode is {stat.S_IMODE(facts.st_mode):04o}, not 0700")
    if not is_own(place.parent.stat()):
        raise _refused(place, "others may put another folder in its place")
    return place


def is_private(facts: os.stat_result) -> bool:
    """Whether a file is this user's, and no other user may use it."""
    return not hasattr(os, "geteuid") or (facts.st_uid == os.geteuid() and not facts.st_mode & 0o077)


def _make(place: Path) -> None:
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise PlaceRefused(f"{place} cannot be made: {error.strerror}.") from None
    if checked(place) is None:
        raise PlaceRefused(f"{place} was removed.")


def _has_room_for_names(place: Path) -> bool:
    return len(os.fsencode(place)) + _LONGEST_NAME <= LONGEST


def _is_ours(folder: Path) -> bool:
    try:
        return is_own(folder.stat())
    except OSError:
        return False


def _refused(place: Path, why: str) -> PlaceRefused:
    return PlaceRefused(f"{place} is not used: {why}. Remove it, or name another folder in {VARIABLE}.")


#: A listener takes milliseconds to be ready: after so many seconds it will not be.
_UNREADY_SECONDS = 60.0


def remove_leftovers(place: Path) -> None:
    """Remove files of processes that have ended. Errors are ignored: the process that begins has other work."""
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
    """Remove a socket that refuses connections, and return whether its process has ended. Names are not used again."""
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


#: On macOS and the BSDs, which have a structure of their own for it: its version, the user, and its groups.
_LOCAL_PEERCRED, _SOL_LOCAL = 1, 0


def peer_is_this_user(connection: socket.socket) -> bool:
    """Whether it is this user's. Unknown is no."""
    user = _peer(connection)
    return user is not None and user == os.geteuid()


def _peer(connection: socket.socket) -> int | None:
    try:
        return _by_linux(connection) if hasattr(socket, "SO_PEERCRED") else _by_bsd(connection)
    except (OSError, struct.error):
        return None


def _by_linux(connection: socket.socket) -> int:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    _, user, _ = struct.unpack("iII", found)
    return int(user)


def _by_bsd(connection: socket.socket) -> int | None:
    version, user = struct.unpack_from("II", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 256))
    return int(user) if version == 0 else None
