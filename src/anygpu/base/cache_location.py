"""Where the cache is, as text: the first call of a process asks, and loads nothing for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def cache_location(environment: Mapping[str, str] = os.environ) -> str:
    """`ANYGPU_CACHE_DIR`, or the folder that the system keeps for caches."""
    if chosen := environment.get("ANYGPU_CACHE_DIR"):
        return chosen
    home = os.path.expanduser("~")
    if home == "~":
        # A user without a home has no cache: below a file nothing can be read or written.
        home = os.devnull
    if sys.platform == "win32":
        return os.path.join(environment.get("LOCALAPPDATA", os.path.join(home, "AppData/Local")), "anygpu", "Cache")
    if sys.platform == "darwin":
        return os.path.join(home, "Library/Caches/anygpu")
    return os.path.join(environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "anygpu")
