"""What is known of the expressions of a function that is evaluated without values."""

from __future__ import annotations

import ast
import contextlib
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.scopes import Environment, Scope, merged
from anygpu.placement.escaping.values import (
    ARRAY,
    HOLDER,
    IS_ARRAY,
    IS_NUMBER,
    NUMBERS,
    OUTER,
    Data,
    Keywords,
    Known,
    NotProvedError,
    RaisesError,
    Tuple,
    Value,
    alternatives,
    is_atom,
    join,
)

if TYPE_CHECKING:
    from anygpu.placement.escaping.evaluating import Evaluation


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip


def _is_numbers_or_text(value: Value) -> bool:
    """Whether it is certainly none of NumPy's arrays or numbers."""
    return all(
        (isinstance(each, Data) and bool(each.flags & IS_NUMBER))
        or (isinstance(each, Known) and type(each.value) in (*NUMBERS, str, bytes, type(None)))
        for each in alternatives(value)
    )


class Expressions:
    """The variables of one function, and the values of its expressions."""

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

    # -- for `Body`

    def _store(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def _narrow(self, test: ast.expr, wanted: bool) -> None:
        raise NotImplementedError

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> Value:
        raise NotImplementedError

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
                value = guards.name(function.__builtins__, name)  # type: ignore[attr-defined]
        if value is MISSING:
            raise RaisesError
        return Known(value)

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
                self.evaluation.check_shown(each)

    def _e_boolop(self, node: ast.BoolOp) -> Value:
        is_and = isinstance(node.op, ast.And)
        found: Value | None = None
        before: Environment | None = None
        for each in node.values:
            try:
                value = self.value(each)
            except RaisesError:
                if found is None:
                    raise
                break  # it may have ended before
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
            self.variables = merged([self.variables, before])
        return found

    def _e_ifexp(self, node: ast.IfExp) -> Value:
        truth = self.evaluation.truth(self.value(node.test))
        found: Value | None = None
        before = dict(self.variables)
        for wanted, each in ((True, node.body), (False, node.orelse)):
            if truth in (wanted, None):
                self._narrow(node.test, wanted)
                with contextlib.suppress(RaisesError):
                    found = join(found, self.value(each))
                self.variables = before = merged([self.variables, before])
        if found is None:
            raise RaisesError
        return found

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
        if (mine | theirs) & HOLDER and isinstance(op, ast.Mod):
            raise NotProvedError("it shows an object that may hold an array")
        flags, certain = mine | theirs, mine & theirs & IS_NUMBER
        # An array without axes becomes a number. Lists may be joined, with what is in them.
        is_new = flags & IS_ARRAY or certain
        return Data((flags & ~(IS_ARRAY | IS_NUMBER | (OUTER if is_new else 0))) | certain)

    def _e_compare(self, node: ast.Compare) -> Value:
        left = self.value(node.left)
        flags = 0
        found: bool | None = True
        is_number = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            try:
                right = self._looked_in(right_node) if isinstance(op, ast.In | ast.NotIn) else self.value(right_node)
            except RaisesError:
                if found is not None:
                    raise
                break  # it may have ended before
            truth = self._compared(op, left, right)
            is_number &= isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot) or (
                _is_numbers_or_text(left) and _is_numbers_or_text(right)
            )
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
        # Arrays of nobody's are compared element by element too.
        return Known(True) if found else Data(IS_NUMBER if is_number else flags & ARRAY)

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
        flags = self._flags_compared(item)
        for each in alternatives(container):
            if not isinstance(each, Keywords):
                inside = self._flags_compared(self.evaluation.element(each))
                if flags & ARRAY and inside & OUTER:
                    raise NotProvedError("it looks for an array among others, one of which it may be")

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

    def _comprehension(self, node: Any, parts: list[ast.expr]) -> list[Value] | None:
        """What its parts are; `None` if it can have no elements, as they raise an error."""
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
        except RaisesError:
            return None
        finally:
            self._inner.pop()
            self.variables = before

    def _one(self, node: Any) -> Value | None:
        found = self._comprehension(node, [node.elt])
        return None if found is None else found[0]

    def _e_listcomp(self, node: ast.ListComp) -> Value:
        item = self._one(node)
        return self.evaluation.made(id(node), list, item)

    def _e_setcomp(self, node: ast.SetComp) -> Value:
        item = self._one(node)
        if item is not None:
            self.evaluation.check_key(item)
        return self.evaluation.made(id(node), set, item)

    def _e_generatorexp(self, node: ast.GeneratorExp) -> Value:
        item = self._one(node)
        return self.evaluation.made(id(node), types.GeneratorType, item)

    def _e_dictcomp(self, node: ast.DictComp) -> Value:
        pair = self._comprehension(node, [node.key, node.value])
        made = self.evaluation.made(id(node), dict, None)
        if pair is not None:
            self.evaluation.put(made, *pair)
        return made

    def _e_yield(self, node: ast.Yield) -> Value:
        self.yielded = join(self.yielded, Known(None) if node.value is None else self.value(node.value))
        return Data(ARRAY | HOLDER)

    def _e_yieldfrom(self, node: ast.YieldFrom) -> Value:
        self.yielded = join(self.yielded, self.evaluation.element(self.value(node.value)))
        return Data(ARRAY | HOLDER)
