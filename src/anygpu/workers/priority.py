"""Idle priority, for work that no caller waits for: it takes only the processor time that nobody else wants.

A child stays at the priority that it was given, because most systems let nobody but root raise one again. So a device
that is explored in the background is open in an explorer, a child apart from the worker that serves callers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

#: macOS: throttles the processor time, disk and network of a whole process.
_DARWIN_PROCESS, _DARWIN_BACKGROUND = 4, 0x1000
_WINDOWS_IDLE_PRIORITY_CLASS = 0x40


def lower_this_process() -> None:
    """Run this process when nobody else wants the processor. Threads that it starts later inherit that."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            for thread in Path("/proc/self/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        elif sys.platform == "darwin":
            os.setpriority(_DARWIN_PROCESS, 0, _DARWIN_BACKGROUND)
        elif sys.platform == "win32":
            import ctypes

            kernel = ctypes.windll.kernel32
            kernel.SetPriorityClass(kernel.GetCurrentProcess(), _WINDOWS_IDLE_PRIORITY_CLASS)
        else:
            os.nice(19)


def pause(process: int) -> bool:
    """Stop a child until `resume`; whether that is possible here."""
    return _signal(process, "SIGSTOP")


def resume(process: int) -> bool:
    """Let a child go on that `pause` has stopped."""
    return _signal(process, "SIGCONT")


def _signal(process: int, name: str) -> bool:
    number = getattr(signal, name, None)
    if number is None:
        return False
    try:
        os.kill(process, number)
    except OSError:  # it has ended
        return False
    return True
