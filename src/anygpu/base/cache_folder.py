"""Where anygpu keeps what it can find out again, and the only way to read and write there.

Whatever lies in the folder, a call works: a file counts only when nobody but this user (or root) can have written it,
when it is whole, and when it is what it should be. Anything else is as good as no file. What cannot be written is not
kept, and nobody hears of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from anygpu.base.cache_location import cache_location
from anygpu.base.digest import blake2b

if TYPE_CHECKING:
    from pathlib import Path

Record = TypeVar("Record")

#: How the names of files begin that are being written, or were when their process died.
TEMPORARY = ".anygpu-new-"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`ANYGPU_CACHE_DIR`, or the folder that the system keeps for caches."""
    from pathlib import Path  # late, as all that a process which only reads does not need

    return Path(cache_location(environment))


def write_file(path: str | os.PathLike[str], content: bytes) -> bool:
    """Write a file that only this user can read, if that is possible. Others see the old one or the new one."""
    with contextlib.suppress(OSError, ValueError, MemoryError):
        import tempfile
        from pathlib import Path

        path = Path(path)
        make_folder(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY, delete=False) as file:
            try:
                file.write(content)
                file.close()
                Path(file.name).replace(path)
                return True
            except BaseException:
                file.close()
                Path(file.name).unlink(missing_ok=True)
                raise
    return False


def sealed(content: bytes, purpose: bytes) -> bytes:
    """With a checksum before it of what it is and of what it is for."""
    checksum = blake2b(blake2b(purpose).digest() + content, digest_size=32)
    return checksum.hexdigest().encode() + b"\n" + content


def unsealed(content: bytes | None, purpose: bytes) -> bytes | None:
    """What was sealed for that purpose, if nothing of it has changed."""
    if content is None:
        return None
    inner = content[65:]
    return inner if sealed(inner, purpose) == content else None


def decoded(decode: Callable[..., Any], content: bytes | None, type: type[Record]) -> Record | None:
    """The record by one of msgspec's functions; `None` for what is no such record, however it is broken."""
    if content is None:
        return None
    try:
        found: Record = decode(content, type=type)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        return None
    return found


def make_folder(path: Path) -> None:
    """With the folders above it that are missing, all of them this user's alone."""
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
