"""The memory of this process on its host: the most that was taken at once, and how much more could be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anygpu.hardware import host

_PROCESS = Path("/proc/self")
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class HostMeter:
    """The resident memory of this process, whose high-water mark Linux lets a process reset.

    Resident memory is more than what is allocated: glibc keeps what is freed, unless it was mapped for itself. What it
    kept before `begin` and hands out again afterwards does not raise the mark, so `begin` gives it back first. glibc
    still keeps the end of each thread's heap: in a process that has freed much, a call is seen to take less. And it
    includes pages of files, such as libraries, which the system drops when it likes: with those the mark stays below
    what was allocated, so that what was dropped since `begin` is added.
    """

    def __init__(self, process: Path = _PROCESS) -> None:
        """Measures nothing yet; `process` is the folder of this process in procfs."""
        self._process = process
        self._resets = False
        self._of_files = 0
        self._trim = _malloc_trim()

    def begin(self) -> None:
        """Gives freed memory back to the system, and resets the high-water mark where the system lets it."""
        if self._trim is not None:
            self._trim(0)
        try:
            with (self._process / "clear_refs").open("w") as file:
                file.write("5")
            self._resets = True
        except OSError:  # a container may deny it; the mark is then that of the whole life of the process
            self._resets = False
        self._of_files = _status(self._process, "RssFile") or 0

    def now(self) -> int | None:
        return _status(self._process, "VmRSS")

    def peak(self) -> int | None:
        """Returns the most bytes that were resident since `begin`; `None` if the mark could not be reset."""
        mark = _status(self._process, "VmHWM") if self._resets else None
        if mark is None:
            return None
        of_files = _status(self._process, "RssFile")
        return mark if of_files is None else mark + max(0, self._of_files - of_files)

    def free(self) -> int | None:
        return available(process=self._process)


def _malloc_trim() -> Any:
    """Returns glibc's `malloc_trim`; `None` with another C library."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def available(
    *, process: Path = _PROCESS, cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO, limits: Iterable[int] | None = None
) -> int | None:
    """Bytes that this process may still allocate: the least that the machine, control groups and its limits leave.

    `limits` are those of its address space and of its data, -1 where there is none; without, they are asked for. It
    takes a third of a millisecond, as groups are in files: ask it once for a plan, not in every step.
    """
    found = [
        *_left_by_limits(process, _own_limits() if limits is None else tuple(limits)),
        *_left_by_groups(process, cgroup),
        *_left_by_machine(meminfo),
    ]
    return max(0, min(found)) if found else None


def _own_limits() -> tuple[int, ...]:
    """Returns the soft limits of address space and data in bytes, -1 where there is none; nothing on Windows."""
    try:
        import resource
    except ImportError:  # Windows has none
        return ()
    return tuple(
        -1 if soft == resource.RLIM_INFINITY else soft
        for soft, _ in (resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    )


def _left_by_limits(process: Path, limits: tuple[int, ...]) -> list[int]:
    """`limits` as in `_own_limits`; -1 is none."""
    if all(limit < 0 for limit in limits):
        return []
    used = [_status(process, "VmSize"), _status(process, "VmData")]
    return [limit - bytes_ for limit, bytes_ in zip(limits, used, strict=False) if limit >= 0 and bytes_ is not None]


def _left_by_groups(process: Path, root: Path) -> list[int]:
    """Of the process's group and of every group around it, in version 2 and in version 1."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, limit, use, cached = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            folder, limit, use, cached = (
                root / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        inner = folder / path.lstrip("/")
        # A container sees its own group as the root, whatever the path says.
        groups = [inner, *inner.parents] if inner.is_dir() else [folder]
        for group in groups:
            if not group.is_relative_to(folder):
                break
            most, used = _number(group / limit), _number(group / use)
            if most is not None and used is not None and most < 1 << 60:
                # Files that were read count as used, and make room when memory is wanted.
                found.append(most - used + _field(group / "memory.stat", cached))
    return found


def _left_by_machine(meminfo: Path) -> list[int]:
    """Returns what Linux says is available, or the host's free memory elsewhere."""
    try:
        text = meminfo.read_text()
    except OSError:
        return [host.memory_free()]
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return [int(line.split()[1]) * 1024]
    return []


def _number(file: Path) -> int | None:
    """Returns the number in a file; `None` if it has none, such as "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _field(file: Path, name: str) -> int:
    """Returns a field of a control group's statistics; 0 if it is not there."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _status(process: Path, field: str) -> int | None:
    """Bytes, from lines such as `VmHWM:   1234 kB`."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        descriptor = os.open(process / "status", os.O_RDONLY)
        try:
            text = os.read(descriptor, 1 << 14).decode()
        finally:
            os.close(descriptor)
        for line in text.splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None
