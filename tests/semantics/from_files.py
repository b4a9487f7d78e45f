"""Cases of files that know nothing of the corpus: tables of functions, and scripts that decorate functions.

A table is `FUNCTIONS` (or `CASES`), which maps a name to a function and to what makes its arguments: `make(n)` gives
the positional arguments of the n-th call, or these and the named ones. Of a script, the cases are the functions that it
decorates with `offload`, with the arguments that it calls them with; it is run until there are enough calls of each.
"""

from __future__ import annotations

import contextlib
import copy
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import anygpu as ag
from tests.semantics.cases import Case, Given, World

#: Calls of each function, with other arguments each.
_CALLS = 19

Table = dict[str, tuple[Callable[..., Any], Callable[[int], Any]]]


def cases_of_table(path: Path, within: float = 1.0) -> dict[str, Case]:
    """The functions that a file has. It is run anew for each run of a case, which may change what is in it."""

    def made(name: str) -> Case:
        def make() -> World:
            function, arguments = _table(path)[name]
            return World(function, lambda call: _given(arguments(call)))

        return Case(name, make, either=True, within=within)

    return {name: made(name) for name in _table(path)}


def _table(path: Path) -> Table:
    with _beside(path):
        found = runpy.run_path(str(path))
    table: Table = found.get("FUNCTIONS") or found["CASES"]
    return table


def _given(made: Any) -> Given:
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict):
        return Given(*made)
    return Given(tuple(made), {})


class _Enough(BaseException):
    """All functions were called often enough."""


def cases_of_script(command: str, within: float = 1.0, calls: int = _CALLS) -> dict[str, Case]:
    """The functions that a script decorates. `command` is its path, with arguments."""
    path, *arguments = shlex.split(command)
    seen: dict[str, tuple[Callable[..., Any], list[Given]]] = {}

    def offload(function: Callable[..., Any]) -> Callable[..., Any]:
        given: list[Given] = []
        seen[f"{Path(path).stem}.{function.__name__}"] = (function, given)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if len(given) < calls:
                given.append(_copied(Given(arguments, keywords)))
            elif all(len(each) >= calls for _, each in seen.values()):
                raise _Enough
            return function(*arguments, **keywords)

        return call

    with (
        mock.patch.object(sys, "argv", [path, *arguments]),
        mock.patch.object(ag, "offload", offload),
        _beside(Path(path)),
        contextlib.suppress(_Enough),
    ):
        runpy.run_path(path, run_name="__main__")

    def made(name: str) -> Case:
        function, given = seen[name]
        return Case(
            name,
            lambda: World(function, lambda call: _copied(given[call % len(given)])),
            either=True,
            within=within,
        )

    return {name: made(name) for name in seen if seen[name][1]}


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[None]:
    """With the modules that lie beside a file, which are forgotten then: they are run anew for the next file."""
    before = set(sys.modules)
    with mock.patch.object(sys, "path", [str(path.parent), *sys.path]):
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                at = getattr(sys.modules[name], "__file__", None)
                if at is not None and Path(at).parent == path.parent:
                    del sys.modules[name]


def _copied(given: Given) -> Given:
    """The same arguments once more. Arrays that cannot be written to are such again."""
    made: Given = copy.deepcopy(given)
    pairs = [*zip(given.arguments, made.arguments, strict=True)]
    pairs += [(each, made.keywords[name]) for name, each in given.keywords.items()]
    for one, other in pairs:
        if isinstance(one, np.ndarray) and not one.flags.writeable:
            other.setflags(write=False)
    return made
