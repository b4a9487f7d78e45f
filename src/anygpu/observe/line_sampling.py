"""Samples the line of the user's own code that the main thread is at.

Calls of offloaded functions are measured, to the microsecond, whether or not a sample meets them; samples say only how
the seconds of a line's calls are spread over the lines inside of the function, and how all other seconds are spread
over lines. So the seconds of all lines are those of the script, and calls are exact.
"""

from __future__ import annotations

import site
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

#: Seconds between two samples.
INTERVAL = 0.005

Line = tuple[str, int]

#: Where calls that leave receipts come in: modules of ours, and functions of theirs.
_MODULES = frozenset(("anygpu.placement.offload", "anygpu.pytorch.step"))
_ENTRIES = frozenset(("__call__", "run"))


class Where(NamedTuple):
    """The position of a thread."""

    #: The innermost line of the user's own code.
    line: Line | None
    #: The line that made the innermost call of an offloaded function, and the one that made the outermost.
    caller: Line | None
    outermost: Line | None
    #: How many such calls are inside of each other.
    depth: int


class UsersFiles:
    """Decides which files are the user's own: not Python's, not installed, and not anygpu's."""

    def __init__(self, script: str) -> None:
        self._known = {script: True}
        folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        if site.ENABLE_USER_SITE:
            folders.append(site.getusersitepackages())
        folders.append(str(Path(__file__).parents[1]))
        self._folders = tuple({str(Path(each).resolve()) + "/" for each in folders if each})

    def has(self, file: str) -> bool:
        known = self._known.get(file)
        if known is None:
            # Code that was made while running has no file: "<string>", "<frozen importlib._bootstrap>".
            known = not file.startswith("<") and not self._is_installed(file)
            self._known[file] = known
        return known

    def _is_installed(self, file: str) -> bool:
        path = str(Path(file).resolve()).replace("\\", "/")
        return "/site-packages/" in path or path.startswith(self._folders)

    def where(self, frame: FrameType | None) -> Where:
        line: Line | None = None
        caller: Line | None = None
        outermost: Line | None = None
        depth, wanted = 0, False
        known = self._known
        while frame is not None:
            code = frame.f_code
            if code.co_name in _ENTRIES and frame.f_globals.get("__name__") in _MODULES:
                depth, wanted = depth + 1, True
            else:
                file = code.co_filename
                users = known.get(file)
                if users or (users is None and self.has(file)):
                    here: Line = (file, frame.f_lineno or code.co_firstlineno)
                    if line is None:
                        line = here
                    if wanted:
                        wanted, outermost = False, here
                        if caller is None:
                            caller = here
            frame = frame.f_back
        return Where(line, caller, outermost, depth)


class LineSampler:
    """Samples the main thread, in a `with` block."""

    def __init__(self, files: UsersFiles, measured: Callable[[], float], clock: Callable[[], float]) -> None:
        """`measured` are the seconds of calls so far that the main thread waited for."""
        self._files = files
        self._measured = measured
        self._clock = clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        #: Seconds by line outside of calls; and inside, by the line that made the call, and the line inside.
        self.outside: dict[Line, float] = {}
        self.inside: dict[Line, dict[Line, float]] = {}
        self.samples = 0
        self.seconds = 0.0
        #: Seconds that samples have seen of the call that is under way.
        self._under_way = 0.0

    def __enter__(self) -> LineSampler:
        main = threading.get_ident()
        self._begin = self._clock()
        self._thread = threading.Thread(target=self._work, args=(main,), name="anygpu-profile", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = self._clock() - self._begin
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _work(self, main: int) -> None:
        last, calls = self._begin, self._measured()
        while not self._over.wait(INTERVAL):
            frame = sys._current_frames().get(main)
            where = self._files.where(frame)
            del frame  # it holds the script's arrays
            now, sum_of_calls = self._clock(), self._measured()
            self.add(where, now - last, sum_of_calls - calls)
            last, calls = now, sum_of_calls

    def add(self, where: Where, elapsed: float, measured: float) -> None:
        """A sample after so many seconds, in which calls of so many seconds ended."""
        self.samples += 1
        line = where.line
        if line is None:
            return
        if where.outermost is not None:
            spread = self.inside.setdefault(where.outermost, {})
            spread[line] = spread.get(line, 0.0) + elapsed
            self._under_way += elapsed - measured
        else:
            # The samples of a line that only runs between short calls still count for something.
            rest = max(elapsed - max(0.0, measured - self._under_way), 0.01 * elapsed)
            self.outside[line] = self.outside.get(line, 0.0) + rest
            self._under_way = 0.0


def seconds_by_line(
    seconds: float,
    calls: dict[Line, float],
    outside: dict[Line, float],
    inside: dict[Line, dict[Line, float]],
    first: Line,
) -> dict[Line, float]:
    """The seconds of a script by line: those of `calls` by the line that made them, and all others, as sampled.

    What no sample has met belongs to the `first` line.
    """
    found: dict[Line, float] = {}

    def give(line: Line, part: float) -> None:
        found[line] = found.get(line, 0.0) + part

    for caller, took in calls.items():
        spread = inside.get(caller) or {caller: 1.0}
        whole = sum(spread.values())
        for line, part in spread.items():
            give(line, took * part / whole)
    rest = max(0.0, seconds - sum(calls.values()))
    whole = sum(outside.values())
    for line, part in outside.items():
        give(line, rest * part / whole)
    if not whole and rest:
        give(first, rest)
    return found
