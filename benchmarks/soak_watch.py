"""What a process has at a moment: memory, threads, open files, shared memory, children; and how its memory grows."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import psutil

#: Of mallopt, and what both are when nothing has been freed yet.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 128 * 1024


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be as it was when everything is closed."""

    threads: tuple[str, ...]
    native_threads: int
    files: tuple[str, ...]
    #: Mappings of shared memory of ours.
    segments: int
    #: Of the files in /dev/shm that were made here, those that are there.
    names: tuple[str, ...]
    children: tuple[str, ...]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    #: Of this process, and of its children together.
    resident: int
    children: int
    #: Of this process without shared memory, whose pool breathes with the load.
    private: int
    threads: int
    files: int
    segments: int


class Clock:
    """Seconds in which its process could run, for whoever looks at it at least every second.

    A process that is stopped, or that gets no processor for long, looks late; what is too much of that does not count.
    """

    #: A look that comes so many seconds after the one before is late.
    LATE = 5.0

    def __init__(self, look: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._last = look()
        self._now = 0.0
        #: Seconds that did not count.
        self.lost = 0.0

    def start(self) -> None:
        self._last, self._now, self.lost = self._look(), 0.0, 0.0

    def now(self) -> float:
        moment = self._look()
        since, self._last = moment - self._last, moment
        if since > self.LATE:
            self.lost += since
        else:
            self._now += since
        return self._now

    def skip(self) -> None:
        """Whatever was waited for since the last look counts, however long it took."""
        moment = self._look()
        self._now += moment - self._last
        self._last = moment


def sample(seconds: float) -> Sample:
    process = psutil.Process()
    children = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            children += child.memory_info().rss
    return Sample(
        seconds=seconds,
        resident=process.memory_info().rss,
        children=children,
        private=private_bytes(),
        threads=_count("/proc/self/task"),
        files=_count("/proc/self/fd"),
        segments=_segments(),
    )


def held(names: Collection[str] = ()) -> Held:
    gc.collect()
    return Held(
        threads=tuple(sorted(thread.name for thread in threading.enumerate())),
        native_threads=_count("/proc/self/task"),
        files=tuple(sorted(_files())),
        segments=_segments(),
        names=tuple(sorted(name for name in names if (Path("/dev/shm") / name).exists())),
        children=tuple(sorted(_names(psutil.Process().children(recursive=True)))),
    )


def left_over(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """What is there now and was not before, as often as it is."""
    return sorted((Counter(after) - Counter(before)).elements())


def objects() -> Counter[str]:
    """Objects that the collector knows, by their types."""
    gc.collect()
    return Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


def give_back() -> None:
    """Collect garbage, and let the C library return the pages of its heap that nobody uses: what stays is in use."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc can
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def keep_little() -> None:
    """Let the C library keep next to nothing of what was freed, from now on.

    Otherwise glibc raises its own limits to the largest block that was ever freed: arrays of 4 MB then lie in the heap
    of the thread that made them, each of up to eight heaps a core keeps twice as much at its end, and `malloc_trim`
    gives back the end of the first heap only. Memory grows by such a step whenever a thread has its first large array.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for limit in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            libc.mallopt(limit, _KEPT_BYTES)


def middle_slope(places: Sequence[float], sizes: Sequence[float]) -> float:
    """The middle of the slopes between all pairs (Theil and Sen), which no single peak can move."""
    if len(places) < 3:
        return 0.0
    x, y = np.array(places, float), np.array(sizes, float)
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def slope(samples: Sequence[Sample], of: Literal["resident", "private"] = "resident") -> float:
    """MB an hour."""
    return middle_slope([each.seconds / 3600 for each in samples], [getattr(each, of) / 1e6 for each in samples])


def _files() -> list[str]:
    found = []
    for file in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the one that lists them is gone by now
            link = str(file.readlink())
            # A socket's number is of no interest, its being there is.
            found.append(link.partition(":[")[0] if ":[" in link else link)
    return found


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def private_bytes() -> int:
    """Of this process, without shared memory and without files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    return 0


def _segments() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:anygpu")


def _names(processes: Sequence[psutil.Process]) -> list[str]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.append(f"{process.name()} ({process.status()})")
    return found
