"""The definition that a function's code was compiled from, and guards that its names mean what they meant.

A definition is used only if it compiles to the code that the function has. Guards are looked at before every call, so
they are quick.
"""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import inspect
import linecache
import types
from collections.abc import Mapping
from typing import Any

#: Lines behind the last one with code that may belong to its statement.
_MOST_LINES_MORE = 40
_FUTURES = 0x1FE0000  # the flags of `from __future__ import …`
_NESTED = inspect.CO_NESTED


@functools.lru_cache(maxsize=512)
def definition_of(code: types.CodeType) -> ast.FunctionDef | None:
    """The definition of a function with this code; `None` where there is no source, or it says something else."""
    lines = linecache.getlines(code.co_filename)
    if not lines or code.co_firstlineno > len(lines):
        return None
    return _function(code, lines)


def _last_line(code: types.CodeType) -> int:
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max(own, *(_last_line(each) for each in code.co_consts if isinstance(each, types.CodeType)), 0)


def _function(code: types.CodeType, lines: list[str]) -> ast.FunctionDef | None:
    first, last = code.co_firstlineno - 1, _last_line(code)
    is_inside = lines[first][:1] in " \t"
    head = f"def __outside({', '.join(code.co_freevars)}):\n" if is_inside else ""
    for end in range(last, min(last + _MOST_LINES_MORE, len(lines)) + 1):
        try:
            tree = ast.parse(head + "".join(lines[first:end]))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name and _is_of(tree, code):
                return node
        return None
    return None


def _is_of(tree: ast.Module, code: types.CodeType) -> bool:
    """Whether what the tree compiles to has this code in it."""
    try:
        compiled = compile(tree, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    waiting = [compiled]
    while waiting:
        each = waiting.pop()
        if each.co_name == code.co_name and _is_same(each, code):
            return True
        waiting += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
    return False


def _arguments(code: types.CodeType) -> tuple[int, ...]:
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_FUTURES & ~_NESTED


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    if _arguments(one) != _arguments(other):
        return False
    if (one.co_names, one.co_varnames, one.co_freevars, one.co_cellvars) != (
        other.co_names, other.co_varnames, other.co_freevars, other.co_cellvars
    ):  # fmt: skip
        return False
    if one.co_code != other.co_code and _steps(one) != _steps(other):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for mine, theirs in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, types.CodeType):
            if not (isinstance(theirs, types.CodeType) and _is_same(mine, theirs)):
                return False
        elif type(mine) is not type(theirs) or repr(mine) != repr(theirs):
            return False
    return True


#: How an attribute is called depends on whether the module imports the name before it, which is not seen here.
_LEFT_OUT = frozenset(("CACHE", "PRECALL", "PUSH_NULL", "NOP", "NOT_TAKEN", "EXTENDED_ARG"))
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _steps(code: types.CodeType) -> list[tuple[str, Any]]:
    """What the code does, whether it calls methods or attributes."""
    kept = [each for each in dis.get_instructions(code) if each.opname not in _LEFT_OUT]
    numbers = [each.offset for each in kept]
    found: list[tuple[str, Any]] = []
    for each in kept:
        if each.opcode in _JUMPS:
            found.append((each.opname, bisect.bisect_left(numbers, each.argval)))
        elif each.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            found.append(("LOAD_ATTR", each.argval))
        else:
            value = each.argval
            is_plain = isinstance(value, str | int | tuple | None) and not isinstance(value, types.CodeType)
            found.append((each.opname, value if is_plain and each.opname != "LOAD_CONST" else each.arg))
    return found


# -- guards

MISSING: Any = object()


class Guards:
    """Names, variables and contents that were read, and what was there."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        self._functions: dict[types.FunctionType, tuple[Any, Any, Any]] = {}
        self._contents: dict[int, tuple[Any, tuple[Any, ...]]] = {}

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

    def contents(self, container: Any) -> tuple[Any, ...]:
        """The elements of a list, set or tuple, or the keys and values of a dict."""
        found = _elements(container)
        if type(container) not in (tuple, frozenset):
            self._contents[id(container)] = (container, found)
        return found

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
        return True


def _contents_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _elements(container: Any) -> tuple[Any, ...]:
    return (*container, *container.values()) if isinstance(container, dict) else tuple(container)
