"""Files that commands write: whole or not at all, never over an input, and with the mode that they had."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import typer

from anygpu.errors import InvalidOption


def check_output(path: Path | None, inputs: Iterable[str | Path], option: str) -> None:
    """Raise `typer.BadParameter` before any work is done if `path` cannot be written, or is one of the inputs."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {str(folder)!r}", param_hint=option)
    if path.is_dir():
        raise typer.BadParameter(f"{str(path)!r} is a folder; give the name of a file", param_hint=option)
    for each in inputs:
        if _is_same(path, each):
            raise typer.BadParameter(
                f"{str(path)!r} is an input, which would be overwritten; give another name", param_hint=option
            )


def write_output(path: Path, content: bytes) -> None:
    """Write the file beside its place and rename it. A file that is replaced keeps its mode; links are followed."""
    try:
        before = path.stat() if path.exists() else None
        if before is not None and not stat.S_ISREG(before.st_mode):
            path.write_bytes(content)  # a pipe or a terminal, such as /dev/stdout
            return
        target = Path(os.path.realpath(path))
        beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.partial")
        _create(beside, content, None if before is None else stat.S_IMODE(before.st_mode))
        try:
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InvalidOption(f"cannot write {str(path)!r}: {error.strerror}.") from None


def write_new(names: Iterable[Path], content: bytes, mode: int | None = None) -> Path:
    """Write to the first of the names that is free, and return it. A link is not free, wherever it leads."""
    path = None
    for path in names:
        try:
            _create(path, content, mode)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidOption(f"cannot write {str(path)!r}: {error.strerror}.") from None
        return path
    raise InvalidOption(f"cannot write {str(path)!r}: it and all other names for it are taken.")


def numbered(path: Path, separator: str = "-") -> Iterable[Path]:
    """The path, then the same name with 2, 3 and so on before its suffix."""
    yield path
    for number in range(2, 1000):
        yield path.with_name(f"{path.stem}{separator}{number}{path.suffix}")


def _create(path: Path, content: bytes, mode: int | None) -> None:
    """Create a file that does not exist; without a mode it gets the one that the process' umask allows."""
    # A file with a mode of its own is private until it has it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if mode is not None:
            path.chmod(mode)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _is_same(one: Path, other: str | Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of them does not exist
        return False


def find_function(name: str, example: str) -> Callable[..., Any]:
    """The function `module:name`, or `module:Class.name`; modules of the current folder come first, as for scripts."""

    def wrong(why: str) -> NoReturn:
        raise typer.BadParameter(f"{why}. For example: {example}", param_hint="MODULE:FUNCTION")

    module_name, colon, path = name.partition(":")
    if not (colon and module_name and path):
        wrong(f"{name!r} is not of the form module:function")
    if module_name.endswith(".py") or "/" in module_name:
        instead = Path(module_name).stem
        wrong(f"{module_name!r} is a file; name the module instead, as in {instead}:{path}")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it needs is not
        wrong(f"there is no module {error.name!r}, neither installed nor in {here}")
    for part in path.split("."):
        if not hasattr(found, part):
            wrong(f"{module_name} has no {path!r}{_did_you_mean(found)}")
        found = getattr(found, part)
    if not callable(found):
        wrong(f"{name} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _did_you_mean(module: Any) -> str:
    own = [
        name
        for name, each in vars(module).items()
        if callable(each) and not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]
    return f"; it has {', '.join(sorted(own)[:8])}" if own else ""
