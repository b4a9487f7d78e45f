"""The statements of a function that is evaluated without values."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from anygpu.placement.escaping.expressions import Expressions
from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.scopes import Environment, merged
from anygpu.placement.escaping.values import (
    ARRAY,
    HOLDER,
    Data,
    Function,
    Keywords,
    Known,
    Made,
    NotProvedError,
    RaisesError,
    Tuple,
    Value,
    alternatives,
    join,
)


class Body(Expressions):
    """The statements of one function."""

    def run(self) -> Value | None:
        """What is returned; `None` if it never returns."""
        node = self.scope.node
        if isinstance(node, ast.Lambda):
            return self.value(node.body)
        if self._block(node.body):
            self.returned = join(self.returned, Known(None))
        return self.returned

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
                    elif isinstance(one, Known) and each is node.exc:
                        # Its traceback keeps the variables of this function, and it stays.
                        raise NotProvedError("it raises an error that was there before")
                if any(isinstance(one, Made) for one in alternatives(raised)):
                    self.evaluation.check_returned(raised, "it raises an error that holds an array")
        return False

    def _assert(self, node: ast.Assert) -> None:
        self.evaluation.truth(self.value(node.test))
        if node.msg is not None:
            with contextlib.suppress(RaisesError):
                self.evaluation.check_returned(self.value(node.msg), "an error holds an array")

    def _delete(self, node: ast.Delete) -> None:
        for each in node.targets:
            if isinstance(each, ast.Subscript):
                base = self.value(each.value)
                self.evaluation.write_to(base)
                if not all(isinstance(one, Made) for one in alternatives(base)):
                    raise NotProvedError("it deletes an element of what may be an array")
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
        self.variables = merged(ends) if ends else before
        return bool(ends)

    def _narrow(self, test: ast.expr, wanted: bool) -> None:
        """Leave out what a variable cannot be where a test has come out like that."""
        if any(isinstance(each, ast.NamedExpr) for each in ast.walk(test)):
            return  # what it is afterwards is not what was tested
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

        def begin() -> bool | None:
            try:
                self._store(node.target, item)
            except RaisesError:
                return False  # unless there is nothing to store
            return None

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
            again = merged([start, *continues])
            if again == start:
                break
            start = again
        else:
            raise NotProvedError("a loop does not come to an end")
        self.variables = dict(start)
        ends = list(breaks)
        if truth is not True and self._block(after):
            ends.append(self.variables)
        self.variables = merged(ends) if ends else start
        return bool(ends)

    def _break(self, node: ast.Break) -> bool:
        self._loops[-1][0].append(dict(self.variables))
        return False

    def _continue(self, node: ast.Continue) -> bool:
        self._loops[-1][1].append(dict(self.variables))
        return False

    def _try(self, node: ast.Try) -> bool:
        if not node.finalbody:
            ends = self._tried(node)
            self.variables = merged(ends) if ends else self.variables
            return bool(ends)
        # Whatever has happened, and wherever it goes on from here.
        seen = dict(self.variables)
        self._tries.append(seen)
        around = self._loops[-1] if self._loops else ([], [])
        leaving: tuple[list[Environment], list[Environment]] = ([], [])
        if self._loops:
            self._loops[-1] = leaving
        try:
            ends = self._tried(node)
        finally:
            self._tries.pop()
            if self._loops:
                self._loops[-1] = around
        self.variables = merged([seen, *ends])
        self._block(node.finalbody)
        for found, kept in zip(leaving, around, strict=True):
            for self.variables in found:
                if self._block(node.finalbody):
                    kept.append(self.variables)
        if not ends:
            return False
        self.variables = merged(ends)
        return self._block(node.finalbody)

    def _tried(self, node: ast.Try) -> list[Environment]:
        """What variables may be behind the body and the handlers."""
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
        return ends

    def _with(self, node: ast.With) -> bool:
        catches = False
        hides = 0
        for item in node.items:
            try:
                value, may_catch, is_warnings = self.evaluation.enter(self.value(item.context_expr))
            except RaisesError:
                if catches:
                    return True  # one before has caught that
                raise
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
        self.variables = merged([before, self.variables] if is_reached else [before])
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
