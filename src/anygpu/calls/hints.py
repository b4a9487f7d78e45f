"""Lists of the functions for which earlier processes found out whether native code pays, for the first call to read.

The history itself is too large to load before it is known to be of use. A missing or outdated mark costs some
milliseconds and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from anygpu.base.cache_location import cache_location

#: The lists of functions that were faster as native code, and of those for which that was tried in vain.
NATIVE, NUMPY = "native", "numpy"

_MOST_MARKS = 1024
_DIGEST_BYTES = 16
_MOST_BYTES = _MOST_MARKS * (2 * _DIGEST_BYTES + 1)


def hints_path(name: str) -> str | None:
    """Return the file of the list `name`; `None` if the user wants nothing to be kept."""
    # A setting that is none of these is reported where the history is opened, and nothing is kept then.
    is_kept = os.environ.get("ANYGPU_HISTORY", "") in ("", "on", "anonymous")
    return _path(name) if is_kept else None


def forget_marks() -> None:
    """Delete both lists, as a part of clearing the history."""
    for name in (NATIVE, NUMPY):
        with contextlib.suppress(OSError):
            os.unlink(_path(name))


def _path(name: str) -> str:
    """Return the path of the list `name` in the folder of the history, whether it is there or not."""
    return os.path.join(cache_location(), "history", name)


def mark_of(function: Callable[..., Any]) -> bytes | None:
    """Return the mark of a Python function, a hexadecimal hash of its name and bytecode; `None` for other objects."""
    code = code_of(function)
    return None if code is None else mark_of_code(code)


#: The limit of decorators around one function: a function that wraps itself must not cause a hang.
_MOST_WRAPPERS = 8


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """Return the code object of a Python function or method; `None` for others, and for objects that raise when asked.

    For a function wrapped by a decorator it is the inner code: all functions of one decorator share the wrapper's code.
    """
    try:
        inner: Any = getattr(function, "__func__", function)
        for _ in range(_MOST_WRAPPERS):
            wrapped = getattr(inner, "__wrapped__", None) if type(inner) is FunctionType else None
            if type(wrapped) is not FunctionType:
                break
            inner = wrapped
        code = inner.__code__
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything when it is looked at
        return None
    return code if isinstance(code, CodeType) else None


def mark_of_code(code: CodeType, key: Iterable[Hashable] = ()) -> bytes:
    """Return the mark of a function with this code, or of its calls with this key.

    Of `key`, only shapes, names and names of types count: its numbers, such as tokens of classes, differ in every
    process.
    """
    from anygpu.base.own_files import blake2b  # late, as all that few processes need

    parts = [part if isinstance(part, tuple | str) else getattr(part, "__name__", type(part).__name__) for part in key]
    content = b"\0".join((code.co_qualname.encode(), code.co_code, repr((code.co_names, parts)).encode()))
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest().encode()


def is_marked(function: Callable[..., Any], name: str) -> bool:
    """Return whether earlier processes of this user have marked a function on this list."""
    marks = marks_on(name)
    return bool(marks) and mark_of(function) in marks


def marks_on(name: str) -> frozenset[bytes]:
    """Return all marks of earlier processes of this user on the list `name`; none if it cannot be read.

    Reading takes one `stat` while the file stays the same.
    """
    path = hints_path(name)
    try:
        return frozenset() if path is None else _marks_in(path, os.stat(path).st_mtime_ns)
    except OSError:
        return frozenset()


@lru_cache(maxsize=4)
def _marks_in(path: str, changed: int) -> frozenset[bytes]:
    """Return the marks in a file; the time of its last change, in nanoseconds, is part of the cache key."""
    return frozenset(_read(path))


def change_marks(path: str, marked: Collection[bytes], unmarked: Collection[bytes]) -> None:
    """Add marks to the list in `path` and remove others; drop the oldest beyond `_MOST_MARKS`.

    The file is replaced as a whole, without a lock: if two processes write at once, one mark may be lost, which costs
    its next process a few milliseconds.
    """
    before = _read(path)
    new = [mark for mark in marked if mark not in before]
    kept = [mark for mark in before if mark not in unmarked]
    if new or len(kept) < len(before):
        from anygpu.base.cache_folder import write_file

        write_file(path, b"\n".join([*new, *kept][:_MOST_MARKS]))


def _read(path: str) -> list[bytes]:
    """Return the marks in a file, the newest first; none if it is missing or not the user's own."""
    from anygpu.base.own_files import read_file

    return (read_file(path, _MOST_BYTES) or b"").split()
