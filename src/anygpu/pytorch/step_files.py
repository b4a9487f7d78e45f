"""Plans of training steps on disk: one small file for each. `anygpu history clear` removes them, also without torch.

With `ANYGPU_HISTORY=off` nothing is read or written.
"""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

from anygpu.base.cache_folder import cache_folder, sealed, sweep, unsealed, write_file
from anygpu.base.own_files import read_file
from anygpu.history.history import setting

#: Files that are kept; the oldest are removed.
MOST_FILES = 256
_MOST_BYTES = 1 << 20
#: Another meaning of the file gets another number.
_PURPOSE = b"anygpu.pytorch.step/1"


def read_step(key: str) -> bytes | None:
    """The content that was written for a step; `None` if there is none."""
    return None if setting() == "off" else unsealed(read_file(_folder() / key, _MOST_BYTES), _PURPOSE)


def write_step(key: str, content: bytes) -> None:
    """Write the content for a step, if the cache folder is writable."""
    if setting() != "off" and write_file(_folder() / key, sealed(content, _PURPOSE)):
        _remove_oldest(MOST_FILES)


def forget_steps() -> None:
    """Remove all files."""
    _remove_oldest(0)


def _folder() -> Path:
    return cache_folder() / "history" / "steps"


def _remove_oldest(most_files: int) -> None:
    with contextlib.suppress(OSError):
        sweep(_folder(), _is_key, now=time.time(), most_files=most_files)


def _is_key(name: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", name) is not None
