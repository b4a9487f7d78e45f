"""The syntax tree of a function, from its source: used only if it compiles to the code that the function has."""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import inspect
import linecache
import types
from typing import Any

#: Lines behind the last one with code that may belong to its statement.
_MOST_LINES_MORE = 40
_FUTURES = 0x1FE0000  # the flags of `from __future__ import …`
_NESTED = inspect.CO_NESTED

Definition = ast.FunctionDef | ast.Lambda


@functools.lru_cache(maxsize=512)
def definition_of(code: types.CodeType) -> Definition | None:
    """The definition of a function with this code; `None` where there is no source, or it says something else."""
    lines = linecache.getlines(code.co_filename)
    if not lines or code.co_firstlineno > len(lines):
        return None
    return _lambda(code, lines) if code.co_name == "<lambda>" else _function(code, lines)


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


def _lambda(code: types.CodeType, lines: list[str]) -> ast.Lambda | None:
    first, last = code.co_firstlineno - 1, _last_line(code)
    text = "".join(lines[first : min(last + 2, len(lines))])
    start = text.find("lambda")
    while start >= 0:
        for end in range(len(text), start, -1):
            if end < len(text) and text[end] not in ",)]}:\n #":
                continue
            part = text[start:end].rstrip().rstrip(",")
            try:
                tree = ast.parse(f"def __outside({', '.join(code.co_freevars)}):\n return (\n{part}\n)")
            except (SyntaxError, ValueError):
                continue
            returned = tree.body[0].body[0].value  # type: ignore[attr-defined]
            if isinstance(returned, ast.Lambda) and _is_of(tree, code):
                return returned
        start = text.find("lambda", start + 1)
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
