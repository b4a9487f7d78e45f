"""How a child is started, that it ends with its parent, and its priority."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from anygpu.base.this_process import interpreter

# -- how a child is started: the command line that runs `anygpu.workers.child.main` in a process of its own
#
# An ordinary interpreter gets a line of Python to run, never the caller's main module. A frozen application has no
# interpreter: there the application starts itself with an argument by which `serve_if_worker` knows, before any of its
# own code has run, that this process is a child. PyInstaller's runtime hook (`anygpu._pyinstaller`) makes that call by
# itself; other freezers need it as the first line of the application.


#: As the first argument of a frozen application: this process is a child, and what follows are the child's arguments.
WORKER_ARGUMENT = "--anygpu-worker"

#: Set on `sys` once the application is known to look at its first argument: the file to start. It is kept there, as
#: `sys.frozen` is, so that the runtime hook can set it without importing anygpu at the start of every application.
APPLICATION = "_anygpu_application"

#: Appends rather than prepends, so that nothing in the caller's folders can shadow a library in the child. Whoever
#: observes the caller observes its calls, and not the children that have devices open for it.
_BOOTSTRAP = (
    "import os, sys; os.environ.pop('ANYGPU_OBSERVE', 0); sys.path.append(sys.argv.pop(1)); from {module} import main; "
    "main()"
)
_CHILD = "anygpu.workers.child"


def is_frozen() -> bool:
    """Whether this is an application built by PyInstaller, cx_Freeze, py2app, Nuitka or the like."""
    return bool(getattr(sys, "frozen", False)) or _is_compiled()


def child_command(arguments: Sequence[str], module: str = _CHILD) -> list[str]:
    """The command of a child, which runs the `main` of a module. That finds the arguments in `sys.argv[1:]`.

    Raises OSError, which says what to do, where a child cannot be started.
    """
    if is_frozen() and module != _CHILD:
        raise OSError(f"a frozen application cannot run {module}: use an ordinary interpreter for that")
    if is_frozen():
        application: str = getattr(sys, APPLICATION, "")
        if not application:
            # Started again, the application would not know that it is a child: it would open a second window, and
            # that one a third.
            raise OSError(
                "this frozen application does not know how to run a child of anygpu. Call anygpu.freeze_support() as "
                "the first line of its main module; with PyInstaller, collect anygpu with the hook that it brings"
            )
        return [application, WORKER_ARGUMENT, *arguments]
    root = str(Path(__file__).parents[2])
    return [interpreter(), "-P", "-c", _BOOTSTRAP.format(module=module), root, *arguments]


def serve_if_worker() -> None:
    """In a frozen application: if this process was started as a child, be one and never return. Else do nothing."""
    if not is_frozen():
        return
    # Nuitka's sys.executable names an interpreter that is not there.
    setattr(sys, APPLICATION, os.path.abspath(sys.argv[0]) if _is_compiled() else sys.executable)
    if sys.argv[1:2] != [WORKER_ARGUMENT]:
        return
    del sys.argv[1]
    # An application without a console has none of these, and drivers' libraries print.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        from anygpu.workers.child import main

        main()
    except BaseException:  # noqa: BLE001 - a windowed application would show it in a dialogue and wait for a click
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _is_compiled() -> bool:
    # Nuitka alone leaves `sys.frozen` unset. It marks each module that it has compiled, also where it has compiled
    # modules for an ordinary interpreter; only the application that stands alone has none.
    return bool(getattr(globals().get("__compiled__"), "standalone", False))


# -- no child outlives its parent, however that ends


def end_with_parent(*, watch: bool = True) -> None:
    """End this process when the parent closes its end of standard input, on purpose or by being killed.

    Without `watch` no thread is started, and only Linux ends it.
    """
    if sys.platform == "linux":
        import fcntl

        # The kernel then sends a signal, whose default action ends the process even inside of a driver call that
        # holds the interpreter's lock.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    if watch:
        threading.Thread(target=wait, daemon=True).start()


# -- low priority, for work that no caller waits for, and how long others have waited for a processor


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
    """Returns the seconds that a thread has waited in the run queue, from Linux's schedstat; 0 where there is none."""
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
