"""Where names of a function are looked up."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from typing import Any

from anygpu.placement.escaping.values import (
    Value,
    join,
)

_NESTED = (ast.FunctionDef, ast.Lambda, ast.GeneratorExp, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Environment = dict[str, Value]


class Scope:
    """Where names of a function are looked up."""

    def __init__(self, node: Any, function: types.FunctionType, parent: Scope | None) -> None:
        self.node, self.function, self.parent = node, function, parent
        first = min(node.lineno, *(each.lineno for each in getattr(node, "decorator_list", [])), sys.maxsize)
        #: What is to be added to a line of the tree for one of the file.
        self.line: int = function.__code__.co_firstlineno - first if parent is None else parent.line
        given = node.args
        names = {
            each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
        }
        outside: set[str] = set()
        captured: set[str] = set()
        body = node.body if isinstance(node.body, list) else [node.body]
        for each in _own(body):
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                names.add(each.id)
            elif isinstance(each, ast.FunctionDef | ast.ClassDef) or (
                isinstance(each, ast.ExceptHandler) and each.name
            ):
                names.add(each.name)
            elif isinstance(each, ast.Import | ast.ImportFrom):
                names.update((one.asname or one.name.partition(".")[0]) for one in each.names)
            elif isinstance(each, ast.Global | ast.Nonlocal):
                outside.update(each.names)
            if isinstance(each, _NESTED):
                captured.update(one.id for one in ast.walk(each) if isinstance(one, ast.Name))
                captured.update(*(one.names for one in ast.walk(each) if isinstance(one, ast.Nonlocal)))
        self.outside = outside
        self.names = names - outside
        #: Variables that functions inside see, whenever they run.
        self.captured = self.names & captured
        self._to_itself: dict[str, bool] = {}
        self.is_generator = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(body))

    def has_to_itself(self, name: str) -> bool:
        """Whether a variable is read only in ways that give nobody the object: `**x`, `x[…]`, `x.pop(…)`, `in x`."""
        if name not in self._to_itself:
            self._to_itself[name] = name in self.names - self.captured and _is_alone(self.node, name)
        return self._to_itself[name]


def _own(body: list[Any]) -> Iterator[ast.AST]:
    """All nodes of a function but those of functions inside, which come as one; with those of comprehensions."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, ast.FunctionDef):
            waiting += [*each.decorator_list, *each.args.defaults, *filter(None, each.args.kw_defaults)]
        elif isinstance(each, ast.Lambda):
            waiting += [*each.args.defaults, *filter(None, each.args.kw_defaults)]
        elif isinstance(each, ast.AnnAssign):
            waiting += [each.target, *([each.value] if each.value else [])]
        elif isinstance(each, ast.comprehension):
            waiting += [each.iter, *each.ifs]  # its variables are its own
        elif not isinstance(each, ast.ClassDef):
            waiting += ast.iter_child_nodes(each)


def _is_alone(node: Any, name: str) -> bool:
    allowed = 0
    for each in ast.walk(node):
        inner: list[Any] = []
        # Views of its items would show what is put into it later.
        is_method = isinstance(each, ast.Attribute) and each.attr in ("get", "pop", "setdefault")
        if is_method or isinstance(each, ast.Subscript) or (isinstance(each, ast.keyword) and each.arg is None):
            inner = [each.value]  # type: ignore[attr-defined]
        elif isinstance(each, ast.Compare):
            inner = each.comparators
        allowed += sum(isinstance(one, ast.Name) and one.id == name for one in inner)
    read = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    return allowed == sum(isinstance(each.ctx, ast.Load) for each in read)


def merged(found: list[Environment]) -> Environment:
    if len(found) == 1:
        return dict(found[0])
    names = {name for each in found for name in each}
    return {name: join(*[each.get(name) for each in found]) for name in names}
