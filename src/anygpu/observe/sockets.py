"""Sockets of observed processes: the private folder in which they listen, and the messages that go through them.

First the messages (a length, then MessagePack), then the folder (which one, whether it is private, the removal of what
dead processes left), then who is at the other end of a Unix socket.
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

import msgspec

from anygpu.base.cache_folder import why_not_private
from anygpu.base.own_files import is_own
from anygpu.base.printable import encode_msgpack
from anygpu.errors import AnyGPUError
from anygpu.observe.snapshot import Snapshot

# -- the messages between an observed process and its clients: a length in four bytes, and so many bytes of MessagePack
#
# One question a connection. Lengths are looked at before anything is read, and what is not exactly a question is
# nothing.


#: A question is a few dozen bytes; an answer with 200 functions on five devices and a thousand calls, some 600,000.
MOST_QUESTION, MOST_ANSWER = 1 << 10, 16 << 20
#: Characters of the tokens of listeners on the loopback address.
MOST_TOKEN = 64

_LENGTH = struct.Struct(">I")
HEAD = _LENGTH.size


class Question(msgspec.Struct, frozen=True, tag="snapshot", tag_field="ask", forbid_unknown_fields=True):
    """Asks for a snapshot."""

    #: Single calls after this number are wanted; `None` for no single calls.
    since: int | None = 0
    #: On the loopback address, who asks must know it.
    token: str = ""


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, with a token that proves its sender."""

    snapshot: Snapshot
    token: str = ""


_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(SnapshotAnswer)


class NoMessage(Exception):
    """The bytes that came are no message, or come from one who may not ask; the text says why."""


def framed(message: Question | SnapshotAnswer) -> bytes:
    """The message as bytes: its length in four bytes, big-endian, then MessagePack."""
    content = encode_msgpack(message)
    return _LENGTH.pack(len(content)) + content


def length_of(head: bytes | bytearray, most: int) -> int:
    """The length of the message that follows its head. Raises `NoMessage` if it is 0 or more than `most`.

    It is checked before the message is read, so that a client cannot make the process allocate.
    """
    (length,) = _LENGTH.unpack(head[:HEAD])
    if not 0 < length <= most:
        raise NoMessage(f"a message of {length} bytes, and at most {most} are allowed")
    return int(length)


def question_of(content: bytes | bytearray) -> Question:
    """Decodes a question. Raises `NoMessage` for other bytes, unknown fields, and numbers or tokens out of range."""
    try:
        question = _questions.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoMessage("not a question") from error
    if not (question.since is None or 0 <= question.since < 1 << 63) or len(question.token) > MOST_TOKEN:
        raise NoMessage("not a question")
    return question


def answer_of(content: bytes | bytearray) -> SnapshotAnswer:
    """Decodes an answer. Raises `NoMessage` for other bytes, such as the answer of another version of anygpu."""
    try:
        return _answers.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoMessage("not an answer of this version of anygpu") from error


# -- the private folder in which observed processes listen: one socket each, and the removal of leftovers
#
# Without Unix sockets, the file of a process has the port and the secrets of a listener on the loopback address. Names
# are never used twice, so the file of a dead process can be removed at any time.


#: Names the folder; the default depends on the system.
VARIABLE = "ANYGPU_OBSERVE_DIR"

HAS_UNIX_SOCKETS = hasattr(socket, "AF_UNIX") and sys.platform != "win32"
SOCKET, PORT = ".sock", ".port"
#: The prefix of files of listeners that are not ready yet.
NEW = "new-"
#: The longest path of a socket, of which one byte is for the end: 108 on Linux, and 104 on macOS and the BSDs.
LONGEST = 107 if sys.platform == "linux" else 103
_LONGEST_NAME = len("/new-4194304-0123456789abcdef.sock")
#: A listener takes milliseconds to be ready: after so many seconds it will not be.
_UNREADY_SECONDS = 60.0


class SocketFolderRefused(AnyGPUError):
    """The folder for sockets of observed processes is not private, or cannot be made; the message says what to do."""


def new_name(ending: str) -> str:
    """A name for a file of this process: its number, 16 random hex digits, and the ending."""
    return f"{os.getpid()}-{secrets.token_hex(8)}{ending}"


def process_of(name: str) -> int | None:
    """The number of the process that made a file of this name; `None` if the name is not one of ours."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() and len(number) < 20 else None


def socket_folders() -> list[Path]:
    """The folders in which processes of this user may listen, the one for a new process first.

    A service, a cron job and a login have different variables, so all of these have to be searched.
    Raises `SocketFolderRefused` if the one that was chosen cannot be used.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        place = Path(chosen).absolute()
        if HAS_UNIX_SOCKETS and not _has_room_for_names(place):
            most = LONGEST - _LONGEST_NAME
            raise SocketFolderRefused(
                f"{VARIABLE} is too long a path for sockets. Choose a folder of at most {most} bytes."
            )
        return [place]
    if not HAS_UNIX_SOCKETS or not hasattr(os, "getuid"):
        return [Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir(), "anygpu-observed")]
    user = os.geteuid()
    given = os.environ.get("XDG_RUNTIME_DIR")
    found = [Path(given, "anygpu")] if given and Path(given).is_absolute() and _is_ours(Path(given)) else []
    found += [Path(f"/run/user/{user}/anygpu")] if _is_ours(Path(f"/run/user/{user}")) else []
    found += [Path(tempfile.gettempdir(), f"anygpu-{user}"), Path(f"/tmp/anygpu-{user}")]
    return [each for each in dict.fromkeys(found) if _has_room_for_names(each)]


def listening_folder() -> Path:
    """Create the folder for a new process, or return the existing one. Raises `SocketFolderRefused`."""
    why: SocketFolderRefused | None = None
    for place in socket_folders():
        try:
            _make(place)
            return place
        except SocketFolderRefused as error:
            why = why or error
    raise why or SocketFolderRefused(f"there is no folder for sockets. Name one in {VARIABLE}.")


def checked(place: Path) -> Path | None:
    """The folder if it exists, otherwise `None`. Raises `SocketFolderRefused` if others can use it.

    Links are not followed. It has to be a folder of this user that nobody else may read or write, inside of one in
    which others cannot put another in its place.
    """
    try:
        facts = place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SocketFolderRefused(f"{place} cannot be looked at: {error.strerror}.") from None
    if not stat.S_ISDIR(facts.st_mode):
        raise _refused(place, "it is not a folder")
    if (why := why_not_private(facts)) is not None:
        raise _refused(place, why)
    if not is_own(place.parent.stat()):
        raise _refused(place, "others may put another folder in its place")
    return place


def _make(place: Path) -> None:
    """Makes the folder with mode 700, or checks the one that is there. Raises `SocketFolderRefused`."""
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise SocketFolderRefused(f"{place} cannot be made: {error.strerror}.") from None
    if checked(place) is None:
        raise SocketFolderRefused(f"{place} was removed.")


def remove_leftovers(place: Path) -> None:
    """Remove files of processes that do not run and do not listen. Errors are ignored.

    Files whose listener never became ready are removed after a minute.
    """
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
                # A container that shares the folder has other process numbers.
                if path.suffix == PORT or (path.suffix == SOCKET and _is_deaf(path)):
                    path.unlink()


def remove_refused(path: Path) -> bool:
    """Remove the file of a listener that refused a connection; `False` if its process may still listen."""
    # Other systems than Linux also refuse connections when too many are pending.
    if sys.platform != "linux" and runs(process_of(path.name) or 0):
        return False
    with contextlib.suppress(OSError):
        path.unlink()
    return True


def runs(pid: int) -> bool:
    """Whether there is a process of this number, of any user. Always true on Windows, where it cannot be asked."""
    if sys.platform == "win32":
        return True  # there is no signal that does nothing
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return pid > 0


def _has_room_for_names(place: Path) -> bool:
    """Whether the path of a socket in this folder is short enough for the system's limit."""
    return len(os.fsencode(place)) + _LONGEST_NAME <= LONGEST


def _is_ours(folder: Path) -> bool:
    """Whether the folder exists and belongs to this user; `False` if it cannot be looked at."""
    try:
        return is_own(folder.stat())
    except OSError:
        return False


def _refused(place: Path, why: str) -> SocketFolderRefused:
    """The error for a folder that must not be used, with the two ways out."""
    return SocketFolderRefused(f"{place} is not used: {why}. Remove it, or name another folder in {VARIABLE}.")


def _is_deaf(path: Path) -> bool:
    """Whether the path is a Unix socket on which no process listens: connecting to it is refused."""
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
    """Whether the process at the other end of a Unix socket runs as this user.

    `False` where the system does not say.
    """
    user = _peer(connection)
    return user is not None and user == os.geteuid()


def _peer(connection: socket.socket) -> int | None:
    """The user id of the other end, `None` if the system does not tell."""
    try:
        return _by_linux(connection) if hasattr(socket, "SO_PEERCRED") else _by_bsd(connection)
    except (OSError, struct.error):
        return None


def _by_linux(connection: socket.socket) -> int:
    """The user id of the peer by `SO_PEERCRED`: a structure of process, user and group."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    _, user, _ = struct.unpack("iII", found)
    return int(user)


def _by_bsd(connection: socket.socket) -> int | None:
    """The user id of the peer by `LOCAL_PEERCRED` of macOS and the BSDs.

    `None` for another version of its structure.
    """
    version, user = struct.unpack_from("II", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 256))
    return int(user) if version == 0 else None
