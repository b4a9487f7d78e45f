"""Functions by the name that was typed: `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer


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
