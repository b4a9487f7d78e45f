"""Where anygpu keeps what it can find out again, and how it writes there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: How the names of files begin that are being written, or were when their process died.
TEMPORARY = ".anygpu-new-"


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """`ANYGPU_CACHE_DIR`, or the folder that the system keeps for caches."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get("ANYGPU_CACHE_DIR"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        # A user without a home has no cache: below a file nothing can be read or written.
        home = Path(os.devnull)
    if sys.platform == "win32":
        return Path(environment.get("LOCALAPPDATA", str(home / "AppData/Local"))) / "anygpu" / "Cache"
    if sys.platform == "darwin":
        return home / "Library/Caches/anygpu"
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "anygpu"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that only this user can read. Others see the old one or the new one, never a part.

    Raises OSError when it cannot be written, and leaves nothing behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY, delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            file.close()
            Path(file.name).unlink(missing_ok=True)
            raise
