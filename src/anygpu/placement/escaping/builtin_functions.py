"""Functions of Python that ask for types and attributes, or iterate, in a call that is evaluated without values."""

from __future__ import annotations

import ast
import contextlib
import functools
import types
import warnings
from abc import ABCMeta
from collections.abc import Collection, Container, Hashable, Iterable, Reversible
from collections.abc import Sized as SizedABC
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.deferred.standing_in import StandIn
from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.objects import ITERATORS, static
from anygpu.placement.escaping.values import (
    ARRAY,
    CERTAIN,
    CLOSED,
    HOLDER,
    IS_ARRAY,
    IS_NUMBER,
    IS_TYPE,
    NUMBERS,
    Attribute,
    Data,
    Function,
    Keywords,
    Known,
    Made,
    Method,
    NotProvedError,
    OneOf,
    RaisesError,
    Tuple,
    TypeAskedError,
    Value,
    alternatives,
    is_atom,
    join,
)

if TYPE_CHECKING:
    from anygpu.placement.escaping.calling import Calling


#: Data, with what some of NumPy's functions and attributes give besides.
_CLOSED_AND_RESULTS = (
    *CLOSED,
    *(type(function(np.eye(1))) for function in (np.linalg.eigh, np.linalg.eig, np.linalg.qr, np.linalg.svd)),
    type(np.linalg.slogdet(np.eye(1))),
    *(type(function(np.zeros(1))) for function in (np.unique_all, np.unique_counts, np.unique_inverse)),
    type(np.zeros(1).flags),
)


def _classes(value: Value) -> tuple[type, ...] | None:
    if isinstance(value, Tuple):
        found: list[type] = []
        for each in value.items:
            inner = _classes(each)
            if inner is None:
                return None
            found += inner
        return tuple(found)
    if isinstance(value, OneOf):
        return None
    if isinstance(value, Known):
        if isinstance(value.value, type):
            return (value.value,)
        if isinstance(value.value, types.UnionType):
            return _classes(Tuple(tuple(map(Known, value.value.__args__))))
        if isinstance(value.value, tuple):
            return _classes(Tuple(tuple(map(Known, value.value))))
    return None


def _types_of(value: Value, calling: Calling) -> tuple[type, ...] | None:
    """The types that a value may be of; `None` where that is not known."""
    if isinstance(value, Data):
        if value.flags & HOLDER:
            return None
        return (np.ndarray,) if value.flags & IS_ARRAY else NUMBERS if value.flags & IS_NUMBER else _CLOSED_AND_RESULTS
    if isinstance(value, Known):
        return (type(value.value),)
    if isinstance(value, Tuple):
        return (tuple,) if not value.names else None
    if isinstance(value, Keywords):
        return (dict,)
    if isinstance(value, Function):
        return (types.FunctionType,)
    if isinstance(value, Made):
        kind = calling.records[value.site].kind
        return None if kind in ITERATORS else (kind,)
    return None


def _check_asked(value: Value, kinds: tuple[type, ...]) -> None:
    """Classes answer by code of their own, or by methods, which arrays and numbers of ours have alike."""
    for kind in kinds:
        is_plain = type(kind) in (type, ABCMeta) or type(kind).__module__ == "numpy"
        if not is_plain or not _answers_plainly(kind):
            raise NotProvedError(f"{kind.__name__} answers isinstance itself")
        if kind in _CLASSES_OF_BOTH and isinstance(value, Data) and value.flags & ARRAY and not value.flags & IS_ARRAY:
            raise NotProvedError(f"it asks whether a number is {kind.__name__}")


def _answers_plainly(kind: type) -> bool:
    found = static(kind, "__subclasshook__")
    return found is vars(object)["__subclasshook__"] or kind.__module__ in ("collections.abc", "numbers", "os")


_CLASSES_OF_BOTH = frozenset((Collection, Container, Hashable, Iterable, Reversible, SizedABC))
_NAMES_OF_BOTH = frozenset(("__contains__", "__hash__", "__iter__", "__len__", "__setitem__", *StandIn.__slots__))


def _isinstance(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    kinds = _classes(arguments[1]) if len(arguments) == 2 else None
    if kinds is None:
        raise NotProvedError("isinstance asks for something that is not known")
    for each in alternatives(arguments[0]):
        _check_asked(each, kinds)
    found: set[bool | None] = set()
    for each in alternatives(arguments[0]):
        types_of = _types_of(each, calling)
        found |= {None} if types_of is None else {issubclass(one, kinds) for one in types_of}
    return Known(found.pop()) if len(found) == 1 and None not in found else Data(IS_NUMBER)


def _hasattr(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if len(arguments) == 2 and isinstance(arguments[1], Known):
        found: set[bool | None] = set()
        for each in alternatives(arguments[0]):
            found.add(_has(calling, each, str(arguments[1].value)))
        if len(found) == 1 and None not in found:
            return Known(found.pop())
    else:
        raise NotProvedError("hasattr asks for something that is not known")
    return Data(IS_NUMBER)


def _has(calling: Calling, value: Value, name: str) -> bool | None:
    if name in _NAMES_OF_BOTH and isinstance(value, Data) and value.flags & ARRAY:
        raise NotProvedError(f"it asks for {name}, which arrays and numbers of ours have alike")
    if isinstance(value, Known) and type(value.value) is types.ModuleType:
        found_in = calling.guards.name(vars(value.value), name) is not MISSING
        return found_in if found_in or not hasattr(value.value, "__getattr__") else None
    if isinstance(value, Known | Made) and _types_of(value, calling) != (list,):
        # Properties are asked, and do what they do.
        kind = type(value.value) if isinstance(value, Known) else calling.records[value.site].kind
        if calling.guards.read(static, kind, name) is not MISSING:
            with contextlib.suppress(RaisesError):
                calling.attribute(value, name)
        elif static(kind, "__getattr__") is not MISSING:
            raise NotProvedError(f"the attributes of {kind.__name__} are not known")
        return None
    types_of = _types_of(value, calling) if not isinstance(value, Made) else None
    if types_of is None:
        return None
    found = {hasattr(each, name) for each in types_of}
    return found.pop() if len(found) == 1 else None


def _getattr(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if len(arguments) < 2 or not isinstance(arguments[1], Known) or not isinstance(arguments[1].value, str):
        raise NotProvedError("getattr asks for something that is not known")
    name = arguments[1].value
    found: list[Value] = []
    for each in alternatives(arguments[0]):
        has = _has(calling, each, name)
        if len(arguments) > 2 and has is not True:
            found.append(arguments[2])
        if has is not False:
            try:
                found.append(calling.attribute(each, name))
            except RaisesError:
                if len(arguments) < 3:
                    raise
    return join(*found)


def _type(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if len(arguments) != 1:
        raise NotProvedError("it makes a class")
    found: list[Value] = []
    for each in alternatives(arguments[0]):
        if isinstance(each, Known):
            found.append(Known(type(each.value)))
        elif isinstance(each, Tuple | Keywords | Function | Made) and (kinds := _types_of(each, calling)):
            found.append(Known(kinds[0]))
        elif isinstance(each, Data) and not each.flags & (ARRAY | HOLDER):
            found.append(Data() if each.flags & (IS_ARRAY | IS_NUMBER) else Data(IS_TYPE))
        elif calling.answers is not None and isinstance(each, Data) and each.flags & IS_ARRAY:
            found.append(Known(np.ndarray if calling.answers == "NumPy's" else StandIn))
        else:
            raise TypeAskedError("it asks for the type of an object")
    return join(*found)


def _issubclass(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    kinds = _classes(arguments[1]) if len(arguments) == 2 else None
    if kinds is None:
        raise NotProvedError("issubclass asks for something that is not known")
    found: set[bool | None] = set()
    for each in alternatives(arguments[0]):
        _check_asked(each, kinds)
        if isinstance(each, Known) and isinstance(each.value, type):
            found.add(issubclass(each.value, kinds))
        elif isinstance(each, Data) and not each.flags & HOLDER:
            found.add(None)
        else:
            raise NotProvedError("issubclass asks for something that is not known")
    return Known(found.pop()) if len(found) == 1 and None not in found else Data(IS_NUMBER)


def _callable(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    found: set[bool | None] = set()
    for each in alternatives(arguments[0]):
        if isinstance(each, Known):
            found.add(callable(each.value))
        elif isinstance(each, Data):
            found.add(False if each.flags & CERTAIN else None)
        else:
            found.add(isinstance(each, Function | Method | Attribute))
    return Known(found.pop()) if len(found) == 1 and None not in found else Data(IS_NUMBER)


def _len(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    value = arguments[0] if arguments else Data()
    if isinstance(value, Tuple | Keywords):
        return Known(len(value.items))
    if isinstance(value, Known) and type(value.value) in (tuple, str):
        return Known(len(value.value))
    if isinstance(value, Known) and (value.value is None or type(value.value) in NUMBERS):
        raise RaisesError
    for each in alternatives(value):
        if isinstance(each, Known) and type(each.value) not in (*Sized, *NUMBERS, type(None)):
            raise NotProvedError("it asks for a length that is not known")
        if isinstance(each, Made) and calling.records[each.site].kind not in (list, dict, set):
            raise NotProvedError("it asks for a length that is not known")
    return Data(IS_NUMBER)


Sized = (list, dict, set, frozenset, np.ndarray, str, bytes, tuple, range)


def _iterating(kind: type) -> Any:
    def iterated(calling: Calling, arguments: list[Value], keywords: dict[str, Value], body: Any, node: Any) -> Value:
        site = (id(node), kind)
        if kind is zip and any(isinstance(each, ast.Starred) for each in getattr(node, "args", ())):
            return calling.made(site, zip, Data(calling.given([*map(calling.element, arguments)], keywords)))
        if kind is zip:
            return calling.made(site, zip, Tuple(tuple(map(calling.element, arguments))))
        if kind is enumerate:
            return calling.made(site, zip, Tuple((Data(IS_NUMBER), calling.element(arguments[0]))))
        if kind is map:
            given = [*map(calling.element, arguments[1:])]
            item = None
            with contextlib.suppress(RaisesError):  # if there is anything to call it with
                item = calling.call(arguments[0], given, {})
            return calling.made(site, zip, item)
        if kind is tuple and arguments and isinstance(arguments[0], Tuple):
            return arguments[0]
        if kind is sorted:
            # Elements, or what the key gives for them, are compared.
            calling.given([calling.element(each) for each in arguments[:1]], keywords)
        made = list if kind in (list, sorted) else zip
        item = calling.element(arguments[0]) if arguments else None
        if kind is tuple:
            return Data(0 if item is None else calling.flags(item) & ~CERTAIN)
        return calling.made(site, made, item)

    return iterated


def _dict(calling: Calling, arguments: list[Value], keywords: dict[str, Value], body: Any, node: Any) -> Value:
    if not arguments:
        made = calling.made((id(node), dict), dict, None)
        for name, each in keywords.items():
            calling.put(made, Known(name), each)
        return made
    if len(arguments) == 1 and not keywords and isinstance(arguments[0], Keywords):
        return arguments[0]
    made = calling.made((id(node), dict), dict, None)
    source = arguments[0]
    if isinstance(source, Made) and calling.records[source.site].kind is zip:
        pair = calling.element(source)
        if isinstance(pair, Tuple) and len(pair.items) == 2:
            calling.put(made, *pair.items)
            return made
    calling.put_all(made, source)
    return made


def _warn(calling: Calling, arguments: list[Value], keywords: dict[str, Value], *_: Any) -> Value:
    """What waits is computed before that, in a deferred call."""
    calling.check_effect()
    for each in (*arguments, *keywords.values()):
        is_class = all(isinstance(one, Known) and isinstance(one.value, type) for one in alternatives(each))
        if not is_class and calling.flags(each) & (ARRAY | HOLDER):
            raise NotProvedError("it warns with an object that may hold an array")
    return Known(None)


def _filters(calling: Calling, arguments: list[Value], keywords: dict[str, Value], *_: Any) -> Value:
    calling.check_effect()
    if not calling.hidden:
        raise NotProvedError("it changes the filters of warnings")
    return Known(None)


def _setattr(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if len(arguments) != 3 or not isinstance(arguments[1], Known):
        raise NotProvedError("setattr sets something that is not known")
    calling.store_attribute(arguments[0], str(arguments[1].value), arguments[2])
    return Known(None)


def _reduce(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    start = calling.element(arguments[1])
    found = join(start, *arguments[2:])
    for _round in range(4):
        with contextlib.suppress(RaisesError):  # if it is called at all
            found = join(found, calling.call(arguments[0], [found, start], {}))
    return Data(calling.flags(found) & ~CERTAIN)


def _summed(calling: Calling, arguments: list[Value], keywords: dict[str, Value], *_: Any) -> Value:
    """One of the elements, or what operators make of them."""
    given = [calling.element(arguments[0]), *arguments[1:]] if arguments else []
    return Data(calling.given(given, keywords) & ~CERTAIN)


def _next(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    for each in alternatives(arguments[0]):
        if isinstance(each, Data) and not each.flags & HOLDER:
            raise NotProvedError("it asks for the next of what may be an array")
    return join(calling.element(arguments[0]), *arguments[1:])


def _super(calling: Calling, arguments: list[Value], keywords: dict[str, Value], body: Any, node: Any) -> Value:
    raise NotProvedError("it calls super")


def _issubdtype(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if all(isinstance(each, Known) and is_atom(each.value) for each in arguments):
        return Known(bool(np.issubdtype(*[each.value for each in arguments])))  # type: ignore[attr-defined]
    return Data(IS_NUMBER)


SPECIAL: dict[Any, Any] = {
    isinstance: _isinstance, issubclass: _issubclass, hasattr: _hasattr, getattr: _getattr, type: _type,
    callable: _callable, len: _len,
    zip: _iterating(zip), enumerate: _iterating(enumerate), map: _iterating(map), list: _iterating(list),
    tuple: _iterating(tuple), sorted: _iterating(sorted), reversed: _iterating(reversed), iter: _iterating(iter),  # type: ignore[arg-type]
    dict: _dict, warnings.warn: _warn, warnings.simplefilter: _filters, warnings.filterwarnings: _filters,
    setattr: _setattr, functools.reduce: _reduce, sum: _summed, next: _next, super: _super, np.issubdtype: _issubdtype,
}  # fmt: skip
