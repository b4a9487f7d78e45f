"""How a child is started: the command line that runs `anygpu.workers.child.main` in a process of its own.

An ordinary interpreter gets a line of Python to run, never the caller's main module. A frozen application has no
interpreter: there the application starts itself with an argument by which `serve_if_worker` knows, before any of its
own code has run, that this process is a child. PyInstaller's runtime hook (`anygpu._pyinstaller`) makes that call by
itself; other freezers need it as the first line of the application.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from anygpu.base.interpreter import interpreter

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
    setattr(sys, APPLICATION, os.path.abspath(sys.argv[0]) if _is_compiled() else sys.executable)  # noqa: PTH100
    if sys.argv[1:2] != [WORKER_ARGUMENT]:
        return
    del sys.argv[1]
    # An application without a console has none of these, and drivers' libraries print.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 - open for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
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
