"""Running a script as `python script.py` does, with something else around it."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import signal
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

#: What a shell says of a program that was interrupted.
INTERRUPTED = 128 + signal.SIGINT


def run_script(
    path: str,
    arguments: Sequence[str],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """Run a script as `__main__`, and return its exit status. Only its own code runs inside of what is `around` it.

    What it raises is shown as Python shows it, without the frames of this module.
    """
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None, __loader__=loader, __spec__=None)
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    folder = str(Path(path).resolve().parent)
    if sys.flags.safe_path:
        pass
    elif sys.path:
        sys.path[0] = folder
    else:
        sys.path.append(folder)
    code: Any = None
    try:
        with io.open_code(str(Path(path).absolute())) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        with around():
            exec(code, module.__dict__)
    except SystemExit as error:
        return _status_of(error)
    except BaseException as error:  # noqa: BLE001 - whatever the script raises is shown as Python does
        shown = error.with_traceback(_of_the_script(error.__traceback__, code))
        sys.excepthook(type(error), shown, shown.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stdout.flush()
    sys.stderr.write(f"{error.code}\n")
    return 1


def _of_the_script(traceback: types.TracebackType | None, code: types.CodeType | None) -> types.TracebackType | None:
    """The traceback from the script's first frame on; none for a syntax error."""
    while traceback is not None and traceback.tb_frame.f_code is not code:
        traceback = traceback.tb_next
    return traceback
