"""What calls do in a call that is evaluated without values."""

from __future__ import annotations

import ast
import contextlib
import functools
import types
import warnings
from typing import Any

import numpy as np

from anygpu.placement.escaping import libraries
from anygpu.placement.escaping.attributes import Attributes
from anygpu.placement.escaping.builtin_functions import SPECIAL
from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.objects import (
    CACHED,
    CONTEXT_CODE,
    MADE_METHODS,
    NOT_FOLLOWED,
    OF_C,
    OF_ODD_CLASSES,
    OF_WARNINGS,
    READING_METHODS,
    TEXT_METHODS,
    WRITES_OUTSIDE,
    cell_of,
    for_each,
    is_hashable,
    is_named_tuple,
    is_plain_error,
    shown,
    shown_value,
    static,
)
from anygpu.placement.escaping.values import (
    ARRAY,
    CERTAIN,
    HOLDER,
    IS_ARRAY,
    IS_NUMBER,
    IS_TYPE,
    OUTER,
    Attribute,
    Context,
    Data,
    Function,
    Keywords,
    Known,
    Made,
    Method,
    NotProvedError,
    RaisesError,
    Tuple,
    Value,
    alternatives,
    is_atom,
    join,
)


class Calling(Attributes):
    """Values of calls. What may keep an array, or is not known, raises `NotProvedError`."""

    # -- contexts

    def enter(self, value: Value) -> tuple[Value, bool, bool]:
        """What `with` binds, whether errors in it may be caught, and whether it is about warnings."""
        if isinstance(value, Context):
            arguments, keywords = list(value.arguments), dict(value.keywords)
            return self.element(self.call(value.function, arguments, keywords)), True, False
        if isinstance(value, Data) and value.flags & HOLDER:
            return Data(value.flags), True, bool(value.flags & OF_WARNINGS)
        if isinstance(value, Made):
            entered = self.call(self.attribute(value, "__enter__"), [], {})
            self.call(self.attribute(value, "__exit__"), [Data(ARRAY | HOLDER)] * 3, {})
            return entered, True, False
        raise NotProvedError(f"with {shown_value(value)} is not known")

    # -- calls

    def call(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        *,
        is_open: bool = False,
        body: Any = None,
        node: ast.Call | None = None,
    ) -> Value:
        """What a call returns; `is_open` if there may be more arguments than these."""
        return for_each(
            lambda each: self._call_one(each, arguments, keywords, is_open=is_open, body=body, node=node), function
        )

    def _call_one(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        *,
        is_open: bool,
        body: Any,
        node: Any,
    ) -> Value:
        if isinstance(function, Method):
            return self._call_one(
                function.function, [function.instance, *arguments], keywords, is_open=is_open, body=body, node=node
            )
        if isinstance(function, Function):
            return self.call_made(function, arguments, keywords, is_open=is_open)
        if isinstance(function, Attribute):
            return self._call_method(function, arguments, keywords, is_open=is_open)
        if isinstance(function, Data):
            if function.flags & (HOLDER | IS_TYPE):
                raise NotProvedError("it calls something that is not known")
            # Among data only types of numbers and methods of data can be called.
            found_flags = self.given(arguments, keywords) & ~CERTAIN
            if found_flags & OUTER:
                raise NotProvedError(WRITES_OUTSIDE)
            return Data(found_flags)
        if not isinstance(function, Known):
            raise NotProvedError(f"it calls {shown_value(function)}")
        value = function.value
        if not callable(value):
            raise RaisesError
        if isinstance(value, types.FunctionType) and not libraries.is_numpys(value):
            if value.__code__ is CONTEXT_CODE:
                inner = self.guards.cell(cell_of(value, "func"))
                return Context(Known(inner), tuple(arguments), tuple(keywords.items()))
            if value.__module__ in NOT_FOLLOWED:
                raise NotProvedError(f"it calls {value.__module__}.{value.__name__}")
            return self.call_python(value, arguments, keywords, is_open=is_open)
        special = SPECIAL.get(value) if is_hashable(value) else None
        if special is not None:
            if is_open and value is not zip:
                raise NotProvedError(f"it calls {shown(value)} with arguments that are not known")
            found: Value = special(self, arguments, keywords, body, node)
            return found
        if type(value) is functools.partial:
            self.guards.contents(value.keywords)
            more = {**{name: Known(each) for name, each in value.keywords.items()}, **keywords}
            given = [*map(Known, value.args), *arguments]
            return self._call_one(Known(value.func), given, more, is_open=is_open, body=body, node=node)
        if isinstance(value, types.MethodType):
            given = [Known(value.__self__), *arguments]
            return self._call_one(Known(value.__func__), given, keywords, is_open=is_open, body=body, node=node)
        if isinstance(value, CACHED):
            return self._call_cached(value, arguments, keywords)
        if libraries.is_numpys(value):
            return self._call_numpys(value, arguments, keywords, is_open=is_open)
        if isinstance(value, type):
            return self._call_class(value, arguments, keywords, is_open=is_open, node=node)
        flags = self.given(arguments, keywords)
        result = libraries.result_of_builtin(value, flags & ~CERTAIN)
        if result is not None:
            libraries.check_shown(value, flags)
            if flags & OUTER and value.__module__ in libraries.WRITING_MODULES:
                raise NotProvedError(WRITES_OUTSIDE)
            if flags & OUTER and value not in (len, isinstance):
                result |= OUTER
            return Data(result)
        raise NotProvedError(f"it calls {shown(value)}, which is not known to keep nothing")

    def given(self, arguments: list[Value], keywords: dict[str, Value]) -> int:
        """The flags of all arguments together. Functions among them are called with data, whenever that is."""
        found = 0
        callbacks: list[Value] = []
        has_ufunc = False
        for value in (*arguments, *keywords.values()):
            for each in alternatives(value):
                if self._is_callback(each):
                    callbacks.append(each)
                else:
                    found |= self.flags(each) & ~CERTAIN
                    has_ufunc |= isinstance(each, Known) and isinstance(each.value, np.ufunc)
        for each in callbacks:
            found |= self._called_back(each, found)
        if has_ufunc and found & OUTER:
            raise NotProvedError("it hands a ufunc on, with what it may write to")
        return found

    def _is_callback(self, value: Value) -> bool:
        if isinstance(value, Function | Method):
            return True
        if isinstance(value, Known):
            return callable(value.value) and not is_atom(value.value) and not isinstance(value.value, np.ufunc)
        return False

    def _called_back(self, value: Value, flags: int) -> int:
        """The flags of what a function returns that is called with any data of these flags, however often."""
        target = value.value if isinstance(value, Known) else None
        if target is not None and not flags & OUTER and libraries.is_plain(target):
            return ARRAY
        if not isinstance(target, types.FunctionType) and not isinstance(value, Function):
            raise NotProvedError("a method is handed on to something that is not known")
        found = 0
        for _ in range(3):  # what it has returned it may get
            given = Data(found | flags | ARRAY | HOLDER)
            with contextlib.suppress(RaisesError):  # if it is called at all
                found |= self.flags(self.call(value, [given], {}, is_open=True)) & ~CERTAIN
        return found | ARRAY

    def _call_numpys(self, value: Any, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool) -> Value:
        flags = self.given(arguments, keywords)
        self._check_objects(libraries.name_of(value), arguments, keywords)
        if self.answers is not None and ("out" in keywords or libraries.written(value, arguments, keywords)):
            self.check_effect()
        # What it may write to: everything where it is not known which argument is which.
        written = [*arguments, *keywords.values()] if is_open else libraries.written(value, arguments, keywords)
        for each in written:
            if not self._is_callback(each) and self.flags(each) & OUTER:
                raise NotProvedError(WRITES_OUTSIDE)
        if isinstance(value, np.ufunc) and (is_open or "out" in keywords or len(arguments) > value.nin):
            return Data(flags)
        result = libraries.result_of_numpys(value, flags)
        if value is np.linspace and (is_open or len(arguments) > 4 or "retstep" in keywords):
            result &= ~IS_ARRAY  # a tuple of one and a number
        return Data(result)

    def _check_objects(self, name: str, arguments: list[Value], keywords: dict[str, Value]) -> None:
        """An array of objects would hold arrays of ours, and nobody finds them there."""
        first, last = libraries.FILLS.get(name, (0, 0))
        filled = [
            *arguments[first:last],
            *[keywords[each] for each in ("fill_value", "object", "a") if each in keywords],
        ]
        found = [each for value in (*arguments, *keywords.values()) for each in alternatives(value)]
        if any(isinstance(each, Known) and libraries.is_of_objects(each.value) for each in found) or any(
            Known(None) in alternatives(each) for each in filled
        ):
            raise NotProvedError("it may make an array of objects")
        waiting: list[Value] = [*found]
        seen: set[Any] = set()
        while waiting:
            each = waiting.pop()
            inside: Any = ()
            if isinstance(each, Tuple):
                inside = each.items
            elif isinstance(each, Made) and each.site not in seen:
                seen.add(each.site)
                inside = [self.records[each.site].items or Data()]
            elif isinstance(each, Known) and type(each.value) in (list, tuple):
                inside = map(Known, self._contents(each.value))
            for one in inside:
                for item in alternatives(one):
                    if isinstance(item, Known) and not libraries.is_numeric(item.value):
                        raise NotProvedError("it may make an array of objects")
                    waiting.append(item)

    def _call_cached(self, value: Any, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """A function of `functools.lru_cache`, which keeps its arguments and results."""
        for each in (*arguments, *keywords.values()):
            if not self._is_free(each):
                raise NotProvedError(f"{value.__name__} keeps what it is given")
        result = self.call_python(value.__wrapped__, arguments, keywords)
        for each in alternatives(result):
            is_plain = isinstance(each, Tuple) and all(isinstance(one, Known) for one in each.items)
            if not is_plain and not isinstance(each, Known | Data):
                raise NotProvedError(f"{value.__name__} keeps what it returns")
        return join(*[Data(each.flags | OUTER) if isinstance(each, Data) else each for each in alternatives(result)])

    def _call_class(
        self, kind: type, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool, node: Any
    ) -> Value:
        given = self.given(arguments, keywords) if kind.__module__ in OF_C else 0
        result = libraries.result_of_builtin(kind, given) if kind.__module__ in OF_C else None
        if result is not None:
            libraries.check_shown(kind, given)
            return Data(result)
        if issubclass(kind, BaseException):
            if not is_plain_error(kind):
                raise NotProvedError(f"{kind.__name__} is an error with functions of its own")
            for each in (*arguments, *keywords.values()):
                self.check_returned(each, "it puts something into an error in which arrays cannot be replaced")
            return Data(self.given(arguments, keywords) & ~CERTAIN | HOLDER)
        if kind is object:
            return Data(HOLDER)
        if kind in (np.errstate,):
            if "call" in keywords:
                raise NotProvedError("it sets a function that NumPy calls for errors")
            self.given(arguments, keywords)
            return Data(HOLDER)
        if kind is warnings.catch_warnings:
            self.given(arguments, {name: each for name, each in keywords.items() if name != "category"})
            return Data(HOLDER | OF_WARNINGS)
        if kind is contextlib.suppress:
            caught = [one for each in arguments for one in alternatives(each)]
            if not all(isinstance(one, Known) and type(one.value) is type for one in caught):
                raise NotProvedError("it suppresses errors that are not known")
            return Data(HOLDER)
        names = getattr(kind, "_fields", None)
        if names and not is_open and is_named_tuple(kind, names):
            found = dict(zip(names, arguments, strict=False)) | keywords
            defaults = getattr(kind, "_field_defaults", {})
            if all(name in found or name in defaults for name in names):
                return Tuple(tuple([found.get(name) or Known(defaults[name]) for name in names]), tuple(names))
        init = static(kind, "__init__")
        plain = type(kind) is type and all(self.guards.read(static, kind, name) is MISSING for name in OF_ODD_CLASSES)
        plain = plain and all(
            self.guards.read(static, kind, name) is vars(object)[name]
            for name in ("__new__", "__setattr__", "__getattribute__")
        )
        if plain and isinstance(init, types.FunctionType) and not is_open:
            self.guards.read(static, kind, "__init__")
            made = self.made((id(node), kind), kind, None)
            self.call_python(init, [made, *arguments], keywords)
            return made
        raise NotProvedError(f"it makes an object of {kind.__module__}.{kind.__qualname__}")

    def _call_method(
        self, method: Attribute, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        name, of = method.name, method.of
        if name.startswith("__") and name != "__len__":
            raise NotProvedError(f"it calls {name}")
        if is_open and not isinstance(of, Data):
            raise NotProvedError(f"it calls {name} with arguments that are not known")
        if isinstance(of, Keywords):
            return self._call_method_of_keywords(of, name, arguments)
        if isinstance(of, Made):
            found = self._call_method_of_made(of, name, arguments, keywords)
            if found is not None:
                return found
            if name not in MADE_METHODS:
                raise NotProvedError(f"it calls {name} of a container or an iterator")
        if isinstance(of, Known) and isinstance(of.value, str) and name in TEXT_METHODS and not keywords:
            known = [
                each.value for each in arguments if isinstance(each, Known) and isinstance(each.value, str | tuple)
            ]
            if len(known) == len(arguments):
                return Known(getattr(of.value, name)(*known))
        if isinstance(of, Known) and isinstance(of.value, list | dict | set) and name not in READING_METHODS:
            raise NotProvedError(WRITES_OUTSIDE)
        if isinstance(of, Known) and isinstance(of.value, dict):
            return self._call_method_of_known(of, name, arguments)
        flags = self.flags(of)
        given = self.given(arguments, keywords)
        if (given & HOLDER and name != "join") or flags & IS_TYPE:
            raise NotProvedError("it hands an error, an iterator, or an object that is not known on to a method")
        self._check_objects(name, arguments, keywords)
        if name in libraries.WRITING_METHODS:
            self.check_effect()
            if flags & OUTER:
                raise NotProvedError(WRITES_OUTSIDE)
            for each in (*arguments, *keywords.values()):
                if isinstance(of, Data) and not self._is_callback(each):
                    self._only_data(of, each)
        written = arguments if is_open else arguments[1:] if name != "get" else []
        for each in (*written, *[keywords[each] for each in ("out", "**") if each in keywords]):
            if not self._is_callback(each) and self.flags(each) & OUTER:
                raise NotProvedError(WRITES_OUTSIDE)
        if flags & IS_ARRAY and name in libraries.ARRAY_METHODS:
            return Data(flags | (given & ~CERTAIN))
        holder = HOLDER if name in ("values", "items", "keys", "__iter__") else 0
        return Data((flags | given) & ~CERTAIN | holder)

    def _call_method_of_keywords(self, of: Keywords, name: str, arguments: list[Value]) -> Value:
        found = dict(of.items)
        if name == "get" and arguments and isinstance(arguments[0], Known):
            default = arguments[1] if len(arguments) > 1 else Known(None)
            return found.get(arguments[0].value, default)
        if name in ("items", "keys", "values"):
            pairs: list[Value] = [
                Tuple((Known(each), one)) if name == "items" else Known(each) if name == "keys" else one
                for each, one in of.items
            ]
            return Tuple(tuple(pairs))
        if name == "copy":
            return of
        raise NotProvedError("it changes its keywords")

    def _call_method_of_known(self, of: Known, name: str, arguments: list[Value]) -> Value:
        """A method of a dict from outside that reads."""
        if name == "get" and arguments:
            default = arguments[1] if len(arguments) > 1 else Known(None)
            key = arguments[0]
            if isinstance(key, Known) and is_atom(key.value):
                found = self.guards.name(of.value, key.value)
                return default if found is MISSING else Known(found)
            return join(default, self.element_of_dict(of)) if of.value else default
        if name == "keys":
            return of
        if name == "copy" and not arguments:
            made = self.made((id(of.value), "copy"), dict, None)
            self.put_all(made, of)
            return made
        if name == "values":
            return Tuple(tuple(map(Known, self._contents(of.value)[len(of.value) :])))
        if name == "items":
            found = self._contents(of.value)
            half = len(of.value)
            pairs = [Tuple((Known(key), Known(value))) for key, value in zip(found[:half], found[half:], strict=True)]
            return Tuple(tuple(pairs))
        raise NotProvedError(f"it calls {name} of a dict from outside")

    def _call_method_of_made(
        self, of: Made, name: str, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        record = self.records[of.site]
        if record.kind is list:
            if name == "append" and len(arguments) == 1:
                self._add(record, arguments[0])
                return Known(None)
            if name == "insert" and len(arguments) == 2:
                self._add(record, arguments[1])
                return Known(None)
            if name == "extend" and len(arguments) == 1:
                self._add(record, self.element(arguments[0]))
                return Known(None)
            if name == "pop":
                return record.items or Data()
            if name == "copy":
                return of
            if name in ("sort", "reverse", "clear", "remove", "index", "count"):
                callbacks = [each for each in keywords.values() if self._is_callback(each)]
                inside = Data(0 if record.items is None else self.flags(record.items))
                self.given([inside, *arguments, *callbacks], {})
                return Known(None) if name not in ("index", "count") else Data(IS_NUMBER)
        if record.kind is set and name == "add" and len(arguments) == 1:
            self.check_key(arguments[0])
            self._add(record, arguments[0])
            return Known(None)
        if record.kind is dict:
            if name in ("get", "pop", "setdefault") and arguments:
                self.check_key(arguments[0])
                for each in arguments[1:]:
                    self.put(of, arguments[0], each)
                return join(record.items, Known(None), *arguments[1:])
            if name == "update":
                for each in arguments:
                    self.put_all(of, each)
                for key, each in keywords.items():
                    self.put(of, Known(key), each)
                return Known(None)
            keys, items = record.fields.get("keys", Data()), record.items or Data()
            found = {"items": Tuple((keys, items)), "values": items, "keys": keys}.get(name)
            if found is not None:
                return self.made((of.site, name), zip, found)
            if name == "copy":
                return of
        return None
