"""A call evaluated without values: every function that it can come to."""

from __future__ import annotations

import ast
import time
import types
from typing import Any

from anygpu.placement.escaping.calling import Calling
from anygpu.placement.escaping.scopes import Environment, Scope
from anygpu.placement.escaping.source import definition_of
from anygpu.placement.escaping.statements import Body
from anygpu.placement.escaping.values import (
    CERTAIN,
    Data,
    Function,
    Keywords,
    Known,
    NoTimeError,
    NotProvedError,
    RaisesError,
    Tuple,
    TypeAskedError,
    Value,
    is_atom,
    join,
)

_MOST_ROUNDS, _MOST_CALLS, _MOST_DEEP = 8, 3000, 40


class Evaluation(Calling):
    """Evaluates calls, and follows every function that they can come to."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._until = time.thread_time() + seconds
        self._scopes: dict[Any, Scope] = {}
        self._running: list[Any] = []
        self._memo: dict[Any, Value | None] = {}
        #: What calls have returned in the round before.
        self._results: dict[Any, Value | None] = {}
        self._recursive: set[Any] = set()
        self._calls = 0

    def evaluate(self, function: Value, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """What is known of what the function returns. Raises `NotProvedError`."""
        for _ in range(_MOST_ROUNDS):
            self.is_changed = False
            self._memo.clear()
            result = self.call(function, arguments, keywords)
            if not self.is_changed:
                self.check_records()
                return result
        raise NotProvedError("what it puts into its lists and objects does not come to an end")

    # -- functions

    def call_python(
        self, function: types.FunctionType, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        """Follow a function that was there before the call."""
        self.guards.function(function)
        node = definition_of(function.__code__)
        if node is None:
            raise NotProvedError(f"there is no source of {function.__qualname__}")
        scope = self._scope(node, function, None)
        defaults: list[Value] = [Known(each) for each in function.__defaults__ or ()]
        named: dict[str, Value] = {name: Known(each) for name, each in (function.__kwdefaults__ or {}).items()}
        return self._call(scope, self._bound(scope.node.args, arguments, keywords, defaults, named, is_open=is_open))

    def call_made(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        """Follow a function that is defined in the call."""
        given = function.node.args
        scope = self._scope(function.node, function.scope.function, function.scope)
        defaults = [self.cell((id(function.node), number)) for number in range(len(given.defaults))]
        named = {
            one.arg: self.cell((id(function.node), one.arg))
            for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            if value is not None
        }
        return self._call(scope, self._bound(scope.node.args, arguments, keywords, defaults, named, is_open=is_open))

    def _scope(self, node: Any, function: types.FunctionType, parent: Scope | None) -> Scope:
        if parent is not None:
            within = id(node), id(parent)
            if within not in self._scopes:
                self._scopes[within] = Scope(node, function, parent)
            return self._scopes[within]
        # One definition may have been run many times, with other variables around it each time.
        key = id(function)
        if key not in self._scopes:
            self._scopes[key] = Scope(node, function, None)
        return self._scopes[key]

    def _bound(
        self,
        given: ast.arguments,
        arguments: list[Value],
        keywords: dict[str, Value],
        defaults: list[Value],
        named: dict[str, Value],
        *,
        is_open: bool,
    ) -> Environment | None:
        """The variables that a function begins with; `None` where it cannot be called like that."""
        if not is_open:
            return _bound(given, arguments, keywords, defaults, named)
        # Any argument that is not named may be any of these.
        exact = {name: value for name, value in keywords.items() if name != "**"}
        one = join(*arguments, *([keywords["**"]] if "**" in keywords else ()))
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        positional = names[: len(given.posonlyargs) + len(given.args)]
        bound: Environment = dict.fromkeys(names, one)
        for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
            bound[name] = join(one, value)
        for name, value in named.items():
            bound[name] = join(one, value)
        bound.update({name: value for name, value in exact.items() if name in names})
        if given.vararg is not None:
            bound[given.vararg.arg] = Data(self.flags(one) & ~CERTAIN)
        if given.kwarg is not None:
            rest = self.made((id(given), "**"), dict, None)
            for value in (one, *exact.values()):
                self.put(rest, Data(), value)
            bound[given.kwarg.arg] = rest
        return bound

    def _call(self, scope: Scope, bound: Environment | None) -> Value:
        if bound is None:
            raise RaisesError
        key = (id(scope), self.answers, self.hidden > 0, tuple(bound.items()))
        if key in self._memo:
            # Of a function that calls itself: what has come out so far, and again until no more comes out.
            result = self._memo[key]
            if key in self._running:
                self._recursive.add(key)
        else:
            self._calls += 1
            if time.thread_time() > self._until:
                raise NoTimeError("it calls too many functions")
            if self._calls > _MOST_CALLS or len(self._running) > _MOST_DEEP:
                raise NotProvedError("it calls too many functions")
            self._memo[key] = self._results.get(key)
            self._running.append(key)
            try:
                result = self._evaluated(scope, bound)
            finally:
                self._running.pop()
            self._memo[key] = result
            if key in self._recursive and result != self._results.get(key):
                self._results[key] = result
                self.is_changed = True
        if result is None:
            raise RaisesError
        return result

    def _evaluated(self, scope: Scope, bound: Environment) -> Value | None:
        """What the function returns; `None` if it never does."""
        body = Body(self, scope, bound)
        try:
            result = body.run()
        except RaisesError:
            return None
        except TypeAskedError:
            if self.answers is not None or scope.is_generator:
                raise
            return self._whatever_the_type(scope, bound)
        if scope.is_generator:
            return self.made((id(scope.node), "generator"), types.GeneratorType, body.yielded)
        return result

    def _whatever_the_type(self, scope: Scope, bound: Environment) -> Value:
        """What it returns if that is the same for NumPy's type and for ours, and it writes to nothing meanwhile."""
        found = []
        for self.answers in ("NumPy's", "ours"):
            try:
                found.append(Body(self, scope, bound).run())
            except RaisesError:
                found.append(None)
            finally:
                self.answers = None
        if found[0] == found[1] and isinstance(found[0], Known) and is_atom(found[0].value):
            return found[0]
        raise TypeAskedError("it asks for the type of an object")


def _bound(
    given: ast.arguments,
    arguments: list[Value],
    keywords: dict[str, Value],
    defaults: list[Value],
    named: dict[str, Value],
) -> Environment | None:
    """The variables that a function begins with; `None` where it cannot be called like that."""
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    only = {each.arg for each in given.posonlyargs}
    bound: Environment = dict(zip(positional, arguments, strict=False))
    if len(arguments) > len(positional) and given.vararg is None:
        return None
    if given.vararg is not None:
        bound[given.vararg.arg] = Tuple(tuple(arguments[len(positional) :]))
    more: dict[str, Value] = {}
    by_name = {each.arg for each in given.kwonlyargs}
    for name, value in keywords.items():
        if (name in positional and name not in only) or name in by_name:
            if name in bound:
                return None
            bound[name] = value
        elif given.kwarg is None:
            return None
        else:
            more[name] = value
    for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        bound.setdefault(name, value)
    for name, value in named.items():
        bound.setdefault(name, value)
    if given.kwarg is not None:
        bound[given.kwarg.arg] = Keywords(tuple(more.items()))
    return bound if all(name in bound for name in (*positional, *by_name)) else None
