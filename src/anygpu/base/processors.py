"""The processors that this process may use."""

from __future__ import annotations

import contextlib
import os


def usable_processors(cgroup: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The processors that this process may use, as far as it or its container is limited."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # No Linux, or no limit. And `open`, because loading `pathlib` takes longer than a first call may.
    with contextlib.suppress(OSError, ValueError), open(cgroup) as file:
        quota, period = map(int, file.read().split())
        return max(1, min(found, quota // period))
    return found
