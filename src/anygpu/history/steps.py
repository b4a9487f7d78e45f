"""What was found out about training steps: one small file for each. What it says is the business of `anygpu.pytorch`.

With `ANYGPU_HISTORY=off` nothing is read or written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from anygpu.base.cache_folder import cache_folder, sealed, unsealed, write_file
from anygpu.base.own_files import read_file
from anygpu.history.history import setting

#: Files that are kept; the oldest go.
MOST_FILES = 256
_MOST_BYTES = 1 << 20
#: Another meaning of the file gets another number.
_PURPOSE = b"anygpu.pytorch.step/1"


def read_step(key: str) -> bytes | None:
    return None if setting() == "off" else unsealed(read_file(_folder() / key, _MOST_BYTES), _PURPOSE)


def write_step(key: str, content: bytes) -> None:
    if setting() == "off":
        return
    path = _folder() / key
    if not path.exists():
        files = _oldest_first(path.parent)
        _remove(files[: max(0, len(files) - MOST_FILES + 1)])
    write_file(path, sealed(content, _PURPOSE))


def forget_steps() -> None:
    """With the history."""
    _remove(_oldest_first(_folder()))


def _folder() -> Path:
    return cache_folder() / "history" / "steps"


def _oldest_first(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir(), key=_when)
    return []


def _when(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
