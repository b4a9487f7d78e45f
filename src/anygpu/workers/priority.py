"""Low priority, for work that no caller waits for, and how long others have waited for a processor."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

#: macOS: throttles the processor time, disk and network of a thread.
_DARWIN_THREAD, _DARWIN_BACKGROUND = 3, 0x1000
_WINDOWS_THREAD_LOWEST = -2
#: On Linux, where 19 is the lowest.
_LOW_NICENESS = 10


def lower_this_thread() -> None:
    """Let other threads and processes go first, as far as the system has priorities of threads."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_NICENESS)
        elif sys.platform == "darwin":
            os.setpriority(_DARWIN_THREAD, 0, _DARWIN_BACKGROUND)
        elif sys.platform == "win32":
            import ctypes

            kernel = ctypes.windll.kernel32
            kernel.SetThreadPriority(kernel.GetCurrentThread(), _WINDOWS_THREAD_LOWEST)


def seconds_without_processor(process: int) -> float:
    """How long the thread of a process that waited longest for a processor has done so; 0 where that is not known."""
    longest = 0.0
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            longest = max(longest, _seconds_waited(process, thread))
    return longest


def thread_seconds_without_processor(thread: int) -> float:
    """How long a thread of this process, by its native id, has waited for a processor; 0 where that is not known."""
    return _seconds_waited("self", thread)


def _seconds_waited(process: int | str, thread: int | str) -> float:
    path = f"/proc/{process}/task/{thread}/schedstat"
    with contextlib.suppress(OSError, ValueError, IndexError), open(path) as file:
        # It may have ended since, or the system does not tell.
        return int(file.read().split()[1]) / 1e9
    return 0.0


def waits_for_processor(process: int) -> bool:
    """Whether a process would go on at once if it had a processor; `False` where that is not known."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/stat") as file:
        # The name, which comes before the state, may have spaces and brackets of its own.
        return file.read().rpartition(")")[2].split()[0] == "R"
    return False
