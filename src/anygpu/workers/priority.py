"""Idle priority, for work that no caller waits for: it takes only the processor time that nobody else wants.

A child stays at the priority that it was given, because most systems let nobody but root raise one again. So a device
that is explored in the background is open in an explorer, a child apart from the worker that serves callers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

#: macOS: throttles the processor time, disk and network of a thread, or of a whole process.
_DARWIN_THREAD, _DARWIN_PROCESS, _DARWIN_BACKGROUND = 3, 4, 0x1000
_WINDOWS_IDLE_PRIORITY_CLASS, _WINDOWS_THREAD_LOWEST = 0x40, -2
#: On Linux, where 19 is the lowest.
_LOW_NICENESS = 10
#: Of prctl, on Linux.
_SET_PARENT_DEATH_SIGNAL = 1


def lower_this_process() -> None:
    """Run this process when nobody else wants the processor. Threads that it starts later inherit that."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        elif sys.platform == "darwin":
            os.setpriority(_DARWIN_PROCESS, 0, _DARWIN_BACKGROUND)
        elif sys.platform == "win32":
            import ctypes

            kernel = ctypes.windll.kernel32
            kernel.SetPriorityClass(kernel.GetCurrentProcess(), _WINDOWS_IDLE_PRIORITY_CLASS)
        else:
            os.nice(19)


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


def die_with_parent() -> None:
    """Have this process killed when the thread ends that has started it, however that ends, and even while paused.

    A child that is paused does not notice that its parent was killed. Only Linux kills it then.
    """
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def pause(process: int) -> None:
    """Stop a child until `resume`. Elsewhere than on Linux it goes on: see `die_with_parent`."""
    if sys.platform == "linux":
        _send(process, signal.SIGSTOP)


def resume(process: int) -> None:
    """Let a child go on that `pause` has stopped."""
    if sys.platform == "linux":
        _send(process, signal.SIGCONT)


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.kill(process, number)
