"""That names still mean what they meant when a call was evaluated: looked at before every call, so it is quick."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

MISSING: Any = object()


class Guards:
    """Names, variables and contents that were read, and what was there."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        self._functions: dict[types.FunctionType, tuple[Any, Any, Any]] = {}
        self._contents: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._reads: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []

    def name(self, space: Mapping[str, Any], name: str) -> Any:
        """What a name means there; `MISSING` if nothing."""
        value = space.get(name, MISSING)
        self._names.setdefault(id(space), (space, {}))[1][name] = value
        return value

    def cell(self, cell: types.CellType) -> Any:
        """What a variable of a closure is; `MISSING` if it has no value."""
        value = _contents_of(cell)
        self._cells[id(cell)] = (cell, value)
        return value

    def function(self, function: types.FunctionType) -> None:
        """A function that is followed."""
        self._functions[function] = (function.__code__, function.__defaults__, function.__kwdefaults__)
        if function.__kwdefaults__:
            self.contents(function.__kwdefaults__)

    @property
    def files(self) -> frozenset[str]:
        """The files of the functions that are followed."""
        return frozenset(each.__code__.co_filename for each in self._functions)

    def contents(self, container: Any) -> tuple[Any, ...]:
        """The elements of a list, set or tuple, or the keys and values of a dict."""
        found = _elements(container)
        if type(container) not in (tuple, frozenset):
            self._contents[id(container)] = (container, found)
        return found

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns, if it is to be the same object at each call."""
        value = function(*arguments)
        self._reads.append((function, arguments, value))
        return value

    def hold(self) -> bool:
        """Whether everything is as it was."""
        missing = MISSING
        for space, names in self._names.values():
            get = space.get
            for name, value in names.items():
                if get(name, missing) is not value:
                    return False
        for function, (code, defaults, more) in self._functions.items():
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not more:
                return False
        for cell, value in self._cells.values():
            if _contents_of(cell) is not value:
                return False
        for container, found in self._contents.values():
            now = _elements(container)
            if len(now) != len(found) or any(one is not other for one, other in zip(now, found, strict=True)):
                return False
        return all(function(*arguments) is value for function, arguments, value in self._reads)


def _contents_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _elements(container: Any) -> tuple[Any, ...]:
    return (*container, *container.values()) if isinstance(container, dict) else tuple(container)
