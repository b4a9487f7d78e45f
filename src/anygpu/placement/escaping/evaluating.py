"""A call evaluated without values: every statement that it can come to, with what is known of each variable."""

from __future__ import annotations

import ast
import builtins
import contextlib
import operator
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from anygpu.placement.escaping.calling import Calling
from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.source import definition_of
from anygpu.placement.escaping.values import (
    ARRAY,
    HOLDER,
    IS_ARRAY,
    IS_NUMBER,
    OUTER,
    Data,
    Function,
    Keywords,
    Known,
    Made,
    NoTimeError,
    NotProvedError,
    RaisesError,
    Tuple,
    TypeAskedError,
    Value,
    alternatives,
    is_atom,
    join,
)

_MOST_ROUNDS, _MOST_CALLS, _MOST_DEEP = 8, 3000, 40
_NESTED = (ast.FunctionDef, ast.Lambda, ast.GeneratorExp, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip

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
        if (isinstance(each, ast.keyword) and each.arg is None) or isinstance(each, ast.Subscript | ast.Attribute):
            inner = [each.value]
        elif isinstance(each, ast.Compare):
            inner = each.comparators
        allowed += sum(isinstance(one, ast.Name) and one.id == name for one in inner)
    read = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    return allowed == sum(isinstance(each.ctx, ast.Load) for each in read)


class Evaluation(Calling):
    """Evaluates calls, and follows every function that they can come to."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._until = time.thread_time() + seconds
        self._scopes: dict[int, Scope] = {}
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
            found = self._scopes.get(id(node))
            if found is None:
                found = self._scopes[id(node)] = Scope(node, function, parent)
            return found
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
            bound[given.vararg.arg] = self.made((id(given), "*"), list, one)
        if given.kwarg is not None:
            rest = self.made((id(given), "**"), dict, None)
            for value in (one, *exact.values()):
                self.put(rest, Data(), value)
            bound[given.kwarg.arg] = rest
        return bound

    def _call(self, scope: Scope, bound: Environment | None) -> Value:
        if bound is None:
            raise RaisesError
        key = (id(scope), self.answers, tuple(bound.items()))
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
        body = _Body(self, scope, bound)
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
        """What it returns if that is the same for NumPy's type and for ours. Raises `TypeAskedError` else."""
        found = []
        for self.answers in ("NumPy's", "ours"):
            try:
                found.append(_Body(self, scope, bound).run())
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


class _Body:
    """The statements of one function, with its variables."""

    def __init__(self, evaluation: Evaluation, scope: Scope, bound: Environment) -> None:
        self.evaluation, self.scope = evaluation, scope
        self.variables: Environment = {}
        self.returned: Value | None = None
        self.yielded: Value | None = None
        #: What variables may be where a handler of exceptions begins; and at the ends of loops.
        self._tries: list[Environment] = []
        self._loops: list[tuple[list[Environment], list[Environment]]] = []
        #: Variables of the comprehensions that are evaluated.
        self._inner: list[set[str]] = []
        for name, value in bound.items():
            self.bind(name, value)

    def run(self) -> Value | None:
        """What is returned; `None` if it never returns."""
        node = self.scope.node
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        if self._block(node.body):
            self.returned = join(self.returned, Known(None))
        return self.returned

    # -- variables

    def bind(self, name: str, value: Value) -> None:
        if any(name in each for each in self._inner):
            self.variables[name] = value
            return
        if name in self.scope.outside:
            owner = self._owner(name)
            if owner is None:
                raise NotProvedError(f"it sets the variable {name}, which outlives the call")
            self.evaluation.add_to_cell((id(owner), name), value)
            return
        if name in self.scope.captured:
            self.evaluation.add_to_cell((id(self.scope), name), value)
            return
        self.variables[name] = value
        for each in self._tries:
            each[name] = join(each.get(name), value)

    def _owner(self, name: str) -> Scope | None:
        """The function of this call that a variable of the functions around belongs to."""
        around = self.scope.parent
        while around is not None:
            if name in around.names:
                return around
            around = around.parent
        return None

    def load(self, name: str) -> Value:
        if any(name in each for each in self._inner):
            return self.variables.get(name, Data())
        if name in self.scope.names and name not in self.scope.captured:
            if name not in self.variables:
                raise RaisesError
            return self.variables[name]
        if name in self.scope.names:
            return self.evaluation.cell((id(self.scope), name))
        owner = self._owner(name)
        if owner is not None:
            if name in owner.captured:
                return self.evaluation.cell((id(owner), name))
            raise NotProvedError(f"the variable {name} is not understood")
        guards, function = self.evaluation.guards, self.scope.function
        if name in function.__code__.co_freevars:
            value = guards.cell((function.__closure__ or ())[function.__code__.co_freevars.index(name)])
        else:
            value = guards.name(function.__globals__, name)
            if value is MISSING:
                value = guards.name(vars(builtins), name)
        if value is MISSING:
            raise RaisesError
        return Known(value)

    # -- statements

    def _block(self, statements: list[ast.stmt]) -> bool:
        """Run statements; whether what is behind them is reached."""
        for each in statements:
            try:
                if not self._statement(each):
                    return False
            except RaisesError:
                return False
            except NotProvedError as error:
                if error.place is None:
                    line = each.lineno + self.scope.line
                    error.place = f"{self.scope.function.__code__.co_filename}:{line}"
                raise
        return True

    def _statement(self, node: ast.stmt) -> bool:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotProvedError(f"{type(node).__name__} is not understood")
        return method(node) is not False

    def _expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _pass(self, node: ast.Pass) -> None:
        pass

    _global = _nonlocal = _pass

    def _return(self, node: ast.Return) -> bool:
        self.returned = join(self.returned, Known(None) if node.value is None else self.value(node.value))
        return False

    def _raise(self, node: ast.Raise) -> bool:
        for each in (node.exc, node.cause):
            if each is not None:
                raised = self.value(each)
                for one in alternatives(raised):
                    if isinstance(one, Known) and isinstance(one.value, type):
                        self.evaluation.call(one, [], {})
                if any(isinstance(one, Made) for one in alternatives(raised)):
                    self.evaluation.check_returned(raised, "it raises an error that holds an array")
        return False

    def _assert(self, node: ast.Assert) -> None:
        self.evaluation.truth(self.value(node.test))
        if node.msg is not None:
            self.evaluation.check_returned(self.value(node.msg), "an error holds an array")

    def _delete(self, node: ast.Delete) -> None:
        for each in node.targets:
            if isinstance(each, ast.Subscript):
                self.evaluation.write_to(self.value(each.value))
            elif not isinstance(each, ast.Name):
                raise NotProvedError("it deletes an attribute")

    def _assign(self, node: ast.Assign) -> None:
        value = self._keywords(node) or self.value(node.value)
        for each in node.targets:
            self._store(each, value)

    def _keywords(self, node: ast.Assign) -> Value | None:
        """A dict of which all keys are known, where nobody else gets it: `options = dict(axis=0)`."""
        (target, *others), given = node.targets, node.value
        if others or not isinstance(target, ast.Name) or not self.scope.has_to_itself(target.id):
            return None
        if isinstance(given, ast.Dict):
            names = [each.value if isinstance(each, ast.Constant) else None for each in given.keys]
            values = given.values
        elif isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and not given.args:
            if self.value(given.func) != Known(dict):
                return None
            names, values = [each.arg for each in given.keywords], [each.value for each in given.keywords]
        else:
            return None
        if not all(isinstance(each, str) for each in names):
            return None
        return Keywords(tuple({str(name): self.value(each) for name, each in zip(names, values, strict=True)}.items()))

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        target = node.target
        read: Any = ast.copy_location(
            ast.Name(target.id, ast.Load())
            if isinstance(target, ast.Name)
            else ast.Attribute(target.value, target.attr, ast.Load())
            if isinstance(target, ast.Attribute)
            else ast.Subscript(target.value, target.slice, ast.Load()),
            target,
        )
        before, other = self.value(read), self.value(node.value)
        self._store(target, self.evaluation.in_place(before, other, self._operate(node.op, before, other)))

    def _store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.bind(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self._store(target.value, value)
        elif isinstance(target, ast.Subscript):
            base, index = self.value(target.value), self._index(target.slice)
            is_own = isinstance(target.value, ast.Name) and self.scope.has_to_itself(target.value.id)
            if isinstance(base, Keywords) and is_own and isinstance(index, Known) and isinstance(index.value, str):
                self.bind(target.value.id, Keywords(tuple({**dict(base.items), index.value: value}.items())))  # type: ignore[attr-defined]
            else:
                self.evaluation.store_item(base, index, value)
        elif isinstance(target, ast.Attribute):
            self.evaluation.store_attribute(self.value(target.value), target.attr, value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        has_star = any(isinstance(each, ast.Starred) for each in targets)
        if isinstance(value, Tuple) and len(value.items) == len(targets) and not has_star:
            for each, item in zip(targets, value.items, strict=True):
                self._store(each, item)
            return
        item = self.evaluation.element(value)
        for each in targets:
            if isinstance(each, ast.Starred):
                item = self.evaluation.made((id(each), "list"), list, item)
            self._store(each, item)

    def _if(self, node: ast.If) -> bool:
        truth = self.evaluation.truth(self.value(node.test))
        before = dict(self.variables)
        ends = []
        for wanted, block in ((True, node.body), (False, node.orelse)):
            if truth in (wanted, None):
                self.variables = dict(before)
                self._narrow(node.test, wanted)
                if self._block(block):
                    ends.append(self.variables)
        self.variables = _merged(ends) if ends else before
        return bool(ends)

    def _narrow(self, test: ast.expr, wanted: bool) -> None:
        """Leave out what a variable cannot be where a test has come out like that."""
        names = {each.id for each in ast.walk(test) if isinstance(each, ast.Name)}
        for name in names & self.variables.keys():
            value = self.variables[name]
            found = list(alternatives(value))
            if len(found) < 2:
                continue
            kept = []
            for each in found:
                self.variables[name] = each
                with contextlib.suppress(RaisesError):
                    if self.evaluation.truth(self.value(test)) in (wanted, None):
                        kept.append(each)
            self.variables[name] = join(*kept) if kept else value

    def _while(self, node: ast.While) -> bool:
        def begin() -> bool | None:
            return self.evaluation.truth(self.value(node.test))

        return self._loop(begin, node.body, node.orelse)

    def _for(self, node: ast.For) -> bool:
        item = self.evaluation.element(self.value(node.iter))

        def begin() -> None:
            self._store(node.target, item)

        return self._loop(begin, node.body, node.orelse)

    def _loop(self, begin: Callable[[], bool | None], body: list[ast.stmt], after: list[ast.stmt]) -> bool:
        start = dict(self.variables)
        for _ in range(30):
            self.variables = dict(start)
            truth = begin()
            breaks: list[Environment] = []
            continues: list[Environment] = []
            if truth is not False:
                self._loops.append((breaks, continues))
                try:
                    if self._block(body):
                        continues.append(self.variables)
                finally:
                    self._loops.pop()
            merged = _merged([start, *continues])
            if merged == start:
                break
            start = merged
        else:
            raise NotProvedError("a loop does not come to an end")
        self.variables = dict(start)
        ends = list(breaks)
        if truth is not True and self._block(after):
            ends.append(self.variables)
        self.variables = _merged(ends) if ends else start
        return bool(ends)

    def _break(self, node: ast.Break) -> bool:
        self._loops[-1][0].append(dict(self.variables))
        return False

    def _continue(self, node: ast.Continue) -> bool:
        self._loops[-1][1].append(dict(self.variables))
        return False

    def _try(self, node: ast.Try) -> bool:
        seen = dict(self.variables)
        self._tries.append(seen)
        try:
            is_reached = self._block(node.body)
        finally:
            self._tries.pop()
        ends = []
        if is_reached and self._block(node.orelse):
            ends.append(self.variables)
        for handler in node.handlers:
            self.variables = dict(seen)
            if handler.type is not None:
                self.value(handler.type)
            if handler.name:
                self.bind(handler.name, Data(HOLDER | ARRAY))
            if self._block(handler.body):
                ends.append(self.variables)
        # Whatever has happened.
        self.variables = _merged([seen, *ends])
        is_final = self._block(node.finalbody)
        if ends:
            self.variables = _merged(ends)
            is_final = self._block(node.finalbody)
        return bool(ends) and is_final

    def _with(self, node: ast.With) -> bool:
        catches = False
        hides = 0
        for item in node.items:
            value, may_catch, is_warnings = self.evaluation.enter(self.value(item.context_expr))
            catches |= may_catch
            hides += is_warnings
            if item.optional_vars is not None:
                self._store(item.optional_vars, value)
        before = dict(self.variables)
        self.evaluation.hidden += hides
        self._tries.append(before)
        try:
            is_reached = self._block(node.body)
        finally:
            self._tries.pop()
            self.evaluation.hidden -= hides
        if not catches:
            return is_reached
        self.variables = _merged([before, self.variables] if is_reached else [before])
        return True

    def _functiondef(self, node: ast.FunctionDef) -> None:
        made = self._function(node)
        for each in reversed(node.decorator_list):
            made = self.evaluation.call(self.value(each), [made], {})
        self.bind(node.name, made)

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> Value:
        given = node.args
        for number, each in enumerate(given.defaults):
            self.evaluation.add_to_cell((id(node), number), self.value(each))
        for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if value is not None:
                self.evaluation.add_to_cell((id(node), one.arg), self.value(value))
        return Function(node, self.scope)

    def _import(self, node: ast.Import) -> None:
        for each in node.names:
            module = self._module(each.name)
            if each.asname is None and "." in each.name:
                module = self._module(each.name.partition(".")[0])
            self.bind(each.asname or each.name.partition(".")[0], module)

    def _importfrom(self, node: ast.ImportFrom) -> None:
        name = node.module or ""
        if node.level:
            package = str(self.scope.function.__globals__.get("__package__")).split(".")
            name = ".".join([*package[: len(package) - node.level + 1], *([name] if name else [])])
        module = self._module(name)
        for each in node.names:
            if each.name == "*":
                raise NotProvedError("it imports everything")
            self.bind(each.asname or each.name, self.evaluation.attribute(module, each.name))

    def _module(self, name: str) -> Known:
        module = self.evaluation.guards.name(sys.modules, name)
        if module is MISSING:
            raise NotProvedError(f"it imports {name}, which is not loaded yet")
        return Known(module)

    # -- expressions

    def value(self, node: ast.expr) -> Value:
        """What is known of an expression."""
        method = getattr(self, f"_e_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotProvedError(f"{type(node).__name__} is not understood")
        found: Value = method(node)
        return found

    def _e_constant(self, node: ast.Constant) -> Value:
        return Known(node.value)

    def _e_name(self, node: ast.Name) -> Value:
        return self.load(node.id)

    def _e_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self._store(node.target, value)
        return value

    def _e_tuple(self, node: ast.Tuple) -> Value:
        items: list[Value] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                value = self.value(each.value)
                if not isinstance(value, Tuple):
                    # However many there are: as a list, which is no wider.
                    all_of = [*items, *map(self.value, [one for one in node.elts if not isinstance(one, ast.Starred)])]
                    stars = [self.value(one.value) for one in node.elts if isinstance(one, ast.Starred)]
                    return Data(self.evaluation.flags(join(*all_of, *map(self.evaluation.element, stars))))
                items += value.items
            else:
                items.append(self.value(each))
        return Tuple(tuple(items))

    def _e_list(self, node: ast.List | ast.Set) -> Value:
        items = [
            self.evaluation.element(self.value(each.value)) if isinstance(each, ast.Starred) else self.value(each)
            for each in node.elts
        ]
        kind = list if isinstance(node, ast.List) else set
        for each in items if kind is set else ():
            self.evaluation.check_key(each)
        return self.evaluation.made(id(node), kind, join(*items) if items else None)

    _e_set = _e_list

    def _e_dict(self, node: ast.Dict) -> Value:
        made = self.evaluation.made(id(node), dict, None)
        for key, each in zip(node.keys, node.values, strict=True):
            value = self.value(each)
            if key is None:
                self.evaluation.put_all(made, value)
                continue
            name = self.value(key)
            self.evaluation.put(made, name, value)
        return made

    def _e_joinedstr(self, node: ast.JoinedStr) -> Value:
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                self._formatted(self.value(each.value))
                if each.format_spec is not None:
                    self.value(each.format_spec)
        return Data()

    def _formatted(self, value: Value) -> None:
        """A value becomes text: those of classes of Python's may do anything then."""
        for each in alternatives(value):
            if isinstance(each, Known) and (type(each.value) is type or isinstance(each.value, types.FunctionType)):
                continue
            if not (isinstance(each, Known) and callable(each.value) and type(each.value).__module__ == "numpy"):
                self.evaluation.flags(each)

    def _e_boolop(self, node: ast.BoolOp) -> Value:
        is_and = isinstance(node.op, ast.And)
        found: Value | None = None
        before: Environment | None = None
        for each in node.values:
            value = self.value(each)
            truth = self.evaluation.truth(value)
            if truth is not None and truth is not is_and:
                found = join(found, value)  # it ends here
                break
            if truth is None:
                found = join(found, value)
            last = value
            before = before or dict(self.variables)
            self._narrow(each, is_and)
        else:
            found = join(found, last)
        if before is not None:
            self.variables = _merged([self.variables, before])
        return found

    def _e_ifexp(self, node: ast.IfExp) -> Value:
        truth = self.evaluation.truth(self.value(node.test))
        found: Value | None = None
        before = dict(self.variables)
        for wanted, each in ((True, node.body), (False, node.orelse)):
            if truth in (wanted, None):
                self._narrow(node.test, wanted)
                found = join(found, self.value(each))
                self.variables = before = _merged([self.variables, before])
        return Data() if found is None else found

    def _e_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.evaluation.truth(value)
            return Data(IS_NUMBER) if truth is None else Known(not truth)
        if isinstance(value, Known) and type(value.value) in (int, float, complex):
            for kind, function in ((ast.USub, operator.neg), (ast.UAdd, operator.pos)):
                if isinstance(node.op, kind):
                    return Known(function(value.value))
        return Data(self.evaluation.flags(value) & ~OUTER)

    def _e_binop(self, node: ast.BinOp) -> Value:
        return self._operate(node.op, self.value(node.left), self.value(node.right))

    def _operate(self, op: ast.operator, one: Value, other: Value) -> Value:
        if isinstance(one, Known) and isinstance(other, Known):
            function = _OPERATORS.get(type(op))
            small = all(
                type(each.value) in (bool, float, complex) or (type(each.value) is int and abs(each.value) < 2**63)
                for each in (one, other)
            )
            classes = (type, types.UnionType, types.NoneType)
            if isinstance(op, ast.BitOr) and isinstance(one.value, classes) and isinstance(other.value, classes):
                union: Any = operator.or_(one.value, other.value)
                return Known(union)
            texts = type(one.value) is str and type(other.value) is str and isinstance(op, ast.Add)
            if function is not None and (small or texts):
                try:
                    return Known(function(one.value, other.value))
                except (TypeError, ValueError, ArithmeticError):
                    raise RaisesError from None
        if isinstance(one, Tuple) and isinstance(other, Tuple) and isinstance(op, ast.Add):
            return Tuple((*one.items, *other.items))
        mine, theirs = self.evaluation.flags(one), self.evaluation.flags(other)
        flags, certain = mine | theirs, mine & theirs & IS_NUMBER
        # An array without axes becomes a number. Lists may be joined, with what is in them.
        is_new = flags & IS_ARRAY or certain
        return Data((flags & ~(IS_ARRAY | IS_NUMBER | (OUTER if is_new else 0))) | certain)

    def _e_compare(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        flags = 0
        found: bool | None = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self._looked_in(right_node) if isinstance(op, ast.In | ast.NotIn) else self.value(right_node)
            truth = self._compared(op, left, right)
            if truth is None:
                if not isinstance(op, ast.Is | ast.IsNot):
                    if isinstance(op, ast.In | ast.NotIn):
                        self._looked_for(left, right)
                    else:
                        flags |= self._flags_compared(left) | self._flags_compared(right)
                found = None if found is not False else False
            elif not truth:
                return Known(False)
            left = right
        return Known(True) if found else Data(flags & ARRAY if flags & ARRAY else IS_NUMBER)

    def _looked_in(self, node: ast.expr) -> Value:
        """What something is looked for in: the elements of a list or set that is written there are known."""
        if isinstance(node, ast.List | ast.Set) and not any(isinstance(each, ast.Starred) for each in node.elts):
            return Tuple(tuple([self.value(each) for each in node.elts]))
        return self.value(node)

    def _flags_compared(self, value: Value) -> int:
        """Functions, classes and modules compare by identity."""
        flags = 0
        for each in alternatives(value):
            plain = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
            if isinstance(each, Known) and (isinstance(each.value, plain) or type(each.value) is type):
                continue
            if isinstance(each, Known) and type(each.value).__module__ == "numpy":
                flags |= OUTER if is_atom(each.value) is False else 0
                continue
            flags |= self.evaluation.flags(each)
        return flags

    def _looked_for(self, item: Value, container: Value) -> None:
        self._flags_compared(item)
        for each in alternatives(container):
            if not isinstance(each, Keywords):
                self._flags_compared(self.evaluation.element(each))

    def _compared(self, op: ast.cmpop, left: Value, right: Value) -> bool | None:
        found = {self._compared_one(op, one, other) for one in alternatives(left) for other in alternatives(right)}
        return found.pop() if len(found) == 1 else None

    def _compared_one(self, op: ast.cmpop, left: Value, right: Value) -> bool | None:
        if isinstance(op, ast.Is | ast.IsNot):
            same = self.evaluation.is_same(left, right)
            return None if same is None else same is isinstance(op, ast.Is)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(left, Known) and isinstance(right, Keywords):
            return (left.value in dict(right.items)) is isinstance(op, ast.In)
        known = isinstance(left, Known) and is_atom(left.value)
        if isinstance(op, ast.In | ast.NotIn) and known and isinstance(right, Known | Tuple):
            if isinstance(right, Tuple):
                if not all(isinstance(each, Known) and is_atom(each.value) for each in right.items):
                    return None
                contents: Any = [each.value for each in right.items]  # type: ignore[attr-defined]
            elif type(right.value) in (dict, list, tuple, set, frozenset):
                contents = right.value
                if not all(map(is_atom, self.evaluation.guards.contents(contents)[: len(contents)])):
                    return None
            elif type(right.value) is str:
                contents = right.value
            else:
                return None
            try:
                return bool(_COMPARISONS[type(op)](left.value, contents))  # type: ignore[attr-defined]
            except TypeError:
                return None
        if known and isinstance(right, Known) and is_atom(right.value):
            try:
                return bool(_COMPARISONS[type(op)](left.value, right.value))  # type: ignore[attr-defined]
            except (TypeError, ValueError, KeyError):
                return None
        return None

    def _e_attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Call) and node.attr in ("__name__", "__qualname__", "__module__"):
            function = self.value(node.value.func)
            if isinstance(function, Known) and function.value is type and len(node.value.args) == 1:
                self.value(node.value.args[0])
                return Data()  # a text, which is NumPy's for arrays of ours too
        return self.evaluation.attribute(self.value(node.value), node.attr)

    def _index(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Slice):
            parts = [Known(None) if each is None else self.value(each) for each in (node.lower, node.upper, node.step)]
            if all(isinstance(each, Known) and isinstance(each.value, int | None) for each in parts):
                return Known(slice(*[each.value for each in parts]))  # type: ignore[attr-defined]
            return Data(self.evaluation.flags(Tuple(tuple(parts))) & ~IS_NUMBER)
        if isinstance(node, ast.Tuple):
            return Tuple(tuple([self._index(each) for each in node.elts]))
        if isinstance(node, ast.Starred):
            return self.evaluation.element(self.value(node.value))
        return self.value(node)

    def _e_subscript(self, node: ast.Subscript) -> Value:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        base = self.value(node.value)
        keeps_axes = any(isinstance(each, ast.Slice) for each in parts)
        return self.evaluation.item(base, self._index(node.slice), keeps_axes=keeps_axes)

    _e_slice = _index
    _e_starred = _index

    def _changed_keywords(self, node: ast.Call, arguments: list[Value]) -> Value | None:
        """What `pop` or `setdefault` of `**options` gives, which then are others."""
        function = node.func
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and arguments):
            return None
        name, key = function.value.id, arguments[0]
        options = self.variables.get(name)
        if not (isinstance(options, Keywords) and isinstance(key, Known) and isinstance(key.value, str)):
            return None
        if not self.scope.has_to_itself(name):
            return None
        found = dict(options.items)
        if function.attr == "pop":
            if key.value not in found and len(arguments) == 1:
                raise RaisesError
            value = found.pop(key.value) if key.value in found else arguments[1]
        elif function.attr == "setdefault" and len(arguments) == 2:
            value = found.setdefault(key.value, arguments[1])
        else:
            return None
        self.bind(name, Keywords(tuple(found.items())))
        return value

    def _e_call(self, node: ast.Call) -> Value:
        function = self.value(node.func)
        arguments: list[Value] = []
        is_open = False
        for each in node.args:
            if isinstance(each, ast.Starred):
                value = self.value(each.value)
                known = self.evaluation.known_items(value)
                if known is None:
                    is_open = True
                    arguments.append(self.evaluation.element(value))
                else:
                    arguments += known
            else:
                arguments.append(self.value(each))
        keywords: dict[str, Value] = {}
        for one in node.keywords:
            value = self.value(one.value)
            if one.arg is not None:
                keywords[one.arg] = value
                continue
            named = self.evaluation.known_keywords(value)
            if named is None:
                is_open = True
                keywords["**"] = self.evaluation.element_of_dict(value)
            else:
                keywords.update(named)
        changed = self._changed_keywords(node, arguments)
        if changed is not None:
            return changed
        return self.evaluation.call(function, arguments, keywords, is_open=is_open, body=self, node=node)

    def _e_lambda(self, node: ast.Lambda) -> Value:
        return self._function(node)

    def _comprehension(self, node: Any, parts: list[ast.expr]) -> list[Value]:
        targets = {one.id for each in node.generators for one in ast.walk(each.target) if isinstance(one, ast.Name)}
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr) or (
                isinstance(each, ast.Lambda)
                and targets & {one.id for one in ast.walk(each) if isinstance(one, ast.Name)}
            ):
                raise NotProvedError("a comprehension has a function or an assignment in it")
        before = dict(self.variables)
        first = self.evaluation.element(self.value(node.generators[0].iter))
        self._inner.append(targets)
        try:
            for each in node.generators:
                if each.is_async:
                    raise NotProvedError("an asynchronous comprehension")
                is_first = each is node.generators[0]
                self._store(each.target, first if is_first else self.evaluation.element(self.value(each.iter)))
                for test in each.ifs:
                    self.evaluation.truth(self.value(test))
                    self._narrow(test, True)
            return [self.value(each) for each in parts]
        finally:
            self._inner.pop()
            self.variables = before

    def _e_listcomp(self, node: ast.ListComp) -> Value:
        (item,) = self._comprehension(node, [node.elt])
        return self.evaluation.made(id(node), list, item)

    def _e_setcomp(self, node: ast.SetComp) -> Value:
        (item,) = self._comprehension(node, [node.elt])
        self.evaluation.check_key(item)
        return self.evaluation.made(id(node), set, item)

    def _e_generatorexp(self, node: ast.GeneratorExp) -> Value:
        (item,) = self._comprehension(node, [node.elt])
        return self.evaluation.made(id(node), types.GeneratorType, item)

    def _e_dictcomp(self, node: ast.DictComp) -> Value:
        key, item = self._comprehension(node, [node.key, node.value])
        made = self.evaluation.made(id(node), dict, None)
        self.evaluation.put(made, key, item)
        return made

    def _e_yield(self, node: ast.Yield) -> Value:
        self.yielded = join(self.yielded, Known(None) if node.value is None else self.value(node.value))
        return Data(ARRAY | HOLDER)

    def _e_yieldfrom(self, node: ast.YieldFrom) -> Value:
        self.yielded = join(self.yielded, self.evaluation.element(self.value(node.value)))
        return Data(ARRAY | HOLDER)


def _merged(found: list[Environment]) -> Environment:
    if len(found) == 1:
        return dict(found[0])
    names = {name for each in found for name in each}
    return {name: join(*[each.get(name) for each in found]) for name in names}
