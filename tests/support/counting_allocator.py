"""An allocator that counts what malloc gives out in a child process, and refuses beyond a budget.

The child is started with `environment()`; in it `CountingAllocator()` reads and sets the counters.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("counting_allocator.c")


def library() -> Path:
    """The compiled library, compiled once for each text of its source."""
    text = _SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"anygpu-counting-allocator-{os.getuid()}"
    found = folder / f"{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not found.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise RuntimeError("the counting allocator needs a C compiler: install gcc (Debian: apt install gcc)")
        folder.mkdir(mode=0o700, exist_ok=True)
        being_made = found.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O2", "-shared", "-fPIC", "-fno-builtin", "-o", str(being_made), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        being_made.replace(found)
    return found


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a process whose allocations are counted."""
    found = dict(os.environ if base is None else base)
    others = found.get("LD_PRELOAD", "").split()
    found["LD_PRELOAD"] = " ".join([str(library()), *others])
    return found


class CountingAllocator:
    """The counters of this process, which must have been started with `environment()`."""

    def __init__(self) -> None:
        this = ctypes.CDLL(None)
        try:
            self._current, self._peak = this.counting_allocator_current, this.counting_allocator_peak
            self._refused = this.counting_allocator_refused
            self._reset, self._budget = this.counting_allocator_reset, this.counting_allocator_budget
        except AttributeError:
            raise RuntimeError("this process does not count its allocations: start it with environment()") from None
        for counter in (self._current, self._peak, self._refused):
            counter.restype = ctypes.c_longlong
        self._budget.argtypes = [ctypes.c_longlong]

    def current(self) -> int:
        """Bytes that are allocated now."""
        return int(self._current())

    def peak(self) -> int:
        """The most that was allocated at once since the last `reset`."""
        return int(self._peak())

    def refused(self) -> int:
        """Requests that were refused since the process started."""
        return int(self._refused())

    def reset(self) -> None:
        self._reset()

    def limit(self, budget: int | None) -> None:
        """Refuse what would have more than `budget` bytes allocated; requests below 64 KiB are always served."""
        if budget is not None and budget <= 0:
            raise ValueError(f"a budget is a positive number of bytes, not {budget}")
        self._budget(budget or 0)
