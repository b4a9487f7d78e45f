"""Whose process is at the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct

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
