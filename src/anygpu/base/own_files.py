"""Files that only this user (or root) can have written, as no others are trusted, and the hash of keys and checksums.

`blake2b` is taken from the interpreter, because `hashlib` loads OpenSSL, which takes 5 ms.
"""

from __future__ import annotations

import contextlib
import os
import stat

try:
    from _blake2 import blake2b as blake2b  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from hashlib import blake2b as blake2b

#: A record of any kind has fewer bytes than this.
MOST_BYTES = 16 << 20

_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # a pipe must not make us wait for its other end
_ITSELF = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes | None:
    """The content of a regular file that no other user can have written or placed there; `None` for anything else."""
    with contextlib.suppress(OSError, ValueError, MemoryError), contextlib.ExitStack() as stack:
        flags = os.O_RDONLY | _AT_ONCE | _ITSELF | _BINARY
        if os.open in os.supports_dir_fd:
            # Through the folder that was looked at, so that it cannot be another one by now.
            parent, name = os.path.split(path)
            folder = os.open(parent or os.curdir, os.O_RDONLY | _AT_ONCE | getattr(os, "O_CLOEXEC", 0))
            stack.callback(os.close, folder)
            if not is_own(os.fstat(folder)):
                return None
            descriptor = os.open(name, flags, dir_fd=folder)
        else:
            if os.path.islink(path):
                return None
            descriptor = os.open(path, flags)
        stack.callback(os.close, descriptor)
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > most or not is_own(facts):
            return None
        return _read(descriptor, most)
    return None


def _read(descriptor: int, most: int) -> bytes | None:
    """Reads a descriptor to its end; `None` if it has more than `most` bytes."""
    parts: list[bytes] = []
    left = most + 1
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts) if left > 0 else None


def is_own(facts: os.stat_result) -> bool:
    """Whether only this user (or root) can write to the file, or put files into the folder."""
    if not hasattr(os, "geteuid"):
        return True
    # In a folder with the sticky bit others may make files, which are theirs, and touch none of ours.
    is_sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
    return facts.st_uid in (os.geteuid(), 0) and bool(is_sticky or not facts.st_mode & 0o022)
