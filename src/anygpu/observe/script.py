"""A user's script: run as `python script.py` does with something around it, its lines, and decorators for it.

`python -m anygpu.observe.script` runs one under the profiler; `anygpu advise` runs one in its own process, and writes a
copy of it with `decorated`.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import importlib.machinery
import io
import os
import re
import signal
import sys
import tokenize
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

#: The exit status of a program that was interrupted, as shells report it.
INTERRUPTED = 128 + signal.SIGINT


def run_script(
    path: str,
    arguments: Sequence[str],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> int:
    """Run a script as `__main__`, and return its exit status. Only its own code runs inside of what is `around` it.

    `sys.argv`, `sys.path` and `sys.modules["__main__"]` become the script's, and stay so. What it raises is shown as
    Python shows it, without the frames of this module.
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
    """The exit status of `sys.exit(...)` as Python has it: a text is printed to stderr, and the status is 1."""
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


# -- its text


#: `str.splitlines` also splits at form feeds, U+2028 and others, which Python takes for parts of a line.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def decode_source(source: bytes) -> tuple[str, str]:
    """The text of a Python file, and its encoding. Raises `SyntaxError` or `ValueError` where Python does."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding), encoding


def source_lines(text: str) -> list[str]:
    """The lines of a text, with their ends."""
    return _LINE.findall(text)


DECORATOR, IMPORT = "@anygpu.offload", "import anygpu"


def decorated(source: bytes, lines: Iterable[int]) -> tuple[bytes, list[int]]:
    """The script with a decorator for the functions that begin on these lines, and the lines that got one.

    A function begins with its first decorator, as code objects have it. Ours comes last, directly above `def`: what is
    above it is given the offloaded function. Encoding and line ends stay what they are. A script in which that cannot
    be done without changing anything else is returned as it is.
    """
    tree = ast.parse(source)
    text, encoding = decode_source(source)
    rows = source_lines(text)
    end = next((row[len(row.rstrip("\r\n")) :] for row in rows if row.endswith(("\n", "\r"))), "\n")
    wanted = set(lines)
    found: dict[int, int] = {}
    for function in _functions(tree):
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        if first in wanted:
            found[function.lineno] = first
    at = _place_of_import(tree, min(found.values(), default=0))
    if not found or at is None:
        return source, []
    made: list[str] = []
    for number, row in enumerate(rows, 1):
        if number == at:
            made.append(f"{IMPORT}{end}")
        if number in found:
            made.append(f"{row[: len(row) - len(row.lstrip())]}{DECORATOR}{end}")
        made.append(row)
    copy = "".join(made).encode(encoding)
    return (copy, sorted(found.values())) if _is_decorated(copy, tree, set(found)) else (source, [])


def _place_of_import(tree: ast.Module, function: int) -> int | None:
    """The line above which the import goes: that of the first import if it is above the function, or what follows the
    docstring. `None` if there is no such line.
    """
    places = [(line, each) for line, each in _first_of_lines(tree) if line <= function]
    imports = [line for line, each in places if isinstance(each, ast.Import | ast.ImportFrom)]
    return next(iter([*imports, *(line for line, _ in places)]), None)


def _first_of_lines(tree: ast.Module) -> Iterator[tuple[int, ast.stmt]]:
    """The statements, without those that must come first, that begin on a line of their own; and these lines."""
    last = 0
    for number, each in enumerate(tree.body):
        decorators: list[ast.expr] = getattr(each, "decorator_list", [])
        line = min([each.lineno, *(decorator.lineno for decorator in decorators)])
        is_docstring = number == 0 and isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        is_future = isinstance(each, ast.ImportFrom) and each.module == "__future__"
        if line > last and not is_docstring and not is_future:
            yield line, each
        last = each.end_lineno or line


def _is_decorated(copy: bytes, tree: ast.Module, found: set[int]) -> bool:
    """Whether the copy is the script with our import and our decorators, and nothing else."""
    try:
        made = ast.parse(copy)
    except (SyntaxError, ValueError):
        return False
    ours = ast.dump(ast.parse(IMPORT).body[0])
    place = next((number for number, each in enumerate(made.body) if ast.dump(each) == ours), None)
    if place is None:
        return False
    del made.body[place]
    # Where the copy is right, the functions of both come in the same order.
    for function, before in zip(_functions(made), _functions(tree), strict=False):
        if before.lineno in found:
            if not function.decorator_list or ast.unparse(function.decorator_list[-1]) != DECORATOR[1:]:
                return False
            function.decorator_list.pop()
    return ast.dump(made) == ast.dump(tree)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """All functions of a module that are written with `def`, also inside of others, in the order of `ast.walk`."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


# -- under a profiler


def main() -> int:
    """Run a script under a profiler: `python -m anygpu.observe.script OUT SCRIPT …`.

    The profile is written to OUT at the very end, when the script's threads have ended too.
    """
    from anygpu.observe.profiler import Profiler

    out, script, *arguments = sys.argv[1:]
    profiler, process, status = Profiler(script), os.getpid(), 0

    def finish() -> None:
        if os.getpid() == process:
            Path(out).write_bytes(profiler.finish(arguments, status).to_json())

    # First registered, so it runs last.
    atexit.register(finish)
    status = run_script(script, arguments, lambda: profiler)
    return status


if __name__ == "__main__":
    sys.exit(main())
