"""What calls, attributes, elements and writes do in a call that is evaluated without values."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import types
import warnings
from abc import ABCMeta
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Reversible
from collections.abc import Sized as SizedABC
from typing import Any

import numpy as np

from anygpu.array.deferred.standing_in import StandIn
from anygpu.placement.escaping import libraries
from anygpu.placement.escaping.guards import MISSING, Guards
from anygpu.placement.escaping.values import (
    ARRAY,
    CERTAIN,
    CLOSED,
    HOLDER,
    IS_ARRAY,
    IS_INFO,
    IS_NUMBER,
    NUMBERS,
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
    OneOf,
    RaisesError,
    Record,
    Tuple,
    TypeAskedError,
    Value,
    alternatives,
    is_atom,
    is_outer_array,
    join,
)

#: Elements of containers from outside that are looked at.
_MOST_ELEMENTS = 200
_ITERATORS = (types.GeneratorType, zip, enumerate, map, reversed, filter)
_CONTEXT_CODE = contextlib.contextmanager(lambda: iter(())).__code__
_READING_METHODS = frozenset(["get", "keys", "values", "items", "copy", "index", "count"])
_WRITES_OUTSIDE = "it writes to memory, or to an object, that outlives the call"


class Calling:
    """Values of calls, attributes and elements. What may keep an array, or is not known, raises `NotProvedError`."""

    def __init__(self) -> None:
        self.guards = Guards()
        #: Whether a variable of a function inside, or something in an object, is another than before.
        self.is_changed = False
        self._cells: dict[Any, Value] = {}
        self._read_cells: set[Any] = set()
        self.records: dict[Any, Record] = {}
        #: What `type` says of an array, where both answers are tried.
        self.answers: str | None = None
        #: How many `with catch_warnings()` there are around.
        self.hidden = 0
        #: Flags of what was put into data of which it is not known what it is: any list that was handed on.
        self._put_into_data = 0

    # -- for `Evaluation`

    def call_python(
        self, function: types.FunctionType, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        raise NotImplementedError

    def call_made(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        raise NotImplementedError

    # -- what objects have in them

    def add_to_cell(self, key: Any, value: Value) -> None:
        merged = join(self._cells.get(key), value)
        if merged != self._cells.get(key):
            self._cells[key] = merged
            self.is_changed |= key in self._read_cells

    def cell(self, key: Any) -> Value:
        """What a variable that functions inside see may be."""
        self._read_cells.add(key)
        found = self._cells.get(key)
        if found is None:
            raise RaisesError
        return found

    def made(self, site: Hashable, kind: type, items: Value | None) -> Made:
        """An object of this kind that has such elements in it."""
        record = self.records.get(site)
        if record is None:
            record = self.records[site] = Record(kind)
        if items is not None:
            self._add(record, items)
        return Made(site)

    def _add(self, record: Record, items: Value) -> None:
        self.is_changed |= record.add(items)

    def check_key(self, key: Value) -> None:
        """A key is hashed and compared: those of classes of Python's may do anything then."""
        for each in alternatives(key):
            if isinstance(each, Function):
                continue
            if isinstance(each, Tuple):
                for one in each.items:
                    self.check_key(one)
            elif not (isinstance(each, Known) and (type(each.value) is type or isinstance(each.value, _BY_IDENTITY))):
                self.flags(each)

    def put(self, made: Made, key: Value, value: Value) -> None:
        """An element of a dict."""
        self.check_key(key)
        record = self.records[made.site]
        self._set_field(record, "keys", key)
        self._add(record, value)

    def put_all(self, made: Made, value: Value) -> None:
        """All elements of another dict."""
        for each in alternatives(value):
            if isinstance(each, Keywords):
                for name, one in each.items:
                    self.put(made, Known(name), one)
            elif isinstance(each, Made) and self.records[each.site].kind is dict:
                other = self.records[each.site]
                if other.items is not None:
                    self.put(made, other.fields["keys"], other.items)
            elif isinstance(each, Known) and isinstance(each.value, dict):
                self.put(made, self.element(each), self.element_of_dict(each))
            else:
                self.put(made, Data(self.flags(each)), Data(self.flags(each)))

    def _set_field(self, record: Record, name: str, value: Value) -> None:
        self.is_changed |= record.set_field(name, value)

    def check_records(self) -> None:
        """What was handed on as data has nothing else in it."""
        for record in self.records.values():
            if record.is_data and record.items is not None:
                self.flags(record.items)

    # -- what is known of a value

    def flags(self, value: Value) -> int:
        """The flags of a value as data. Raises `NotProvedError` for anything else."""
        if isinstance(value, Data):
            return value.flags
        if isinstance(value, Known):
            return self._flags_of_known(value.value)
        if isinstance(value, Tuple):
            return self._all_flags(value.items)
        if isinstance(value, Keywords):
            return self._all_flags(each for _, each in value.items)
        if isinstance(value, Attribute):
            if value.name in libraries.WRITING_METHODS:
                raise NotProvedError(f"it hands on the method {value.name}")
            return self.flags(value.of) & ~CERTAIN | HOLDER
        if isinstance(value, Made):
            record = self.records[value.site]
            if record.kind not in (list, dict, set, *_ITERATORS):
                raise NotProvedError(f"what happens to an object of {record.kind.__name__} is not known")
            record.is_data = True
            if self._put_into_data:
                self._add(record, Data(self._put_into_data))
            found = 0 if record.items is None else self.flags(record.items)
            keys = record.fields.get("keys")
            key_flags = 0 if keys is None else self.flags(keys)
            is_open = record.kind in (list, dict) and not key_flags & ARRAY
            return (found | key_flags) & ~CERTAIN | (0 if is_open else HOLDER)
        found = 0
        if isinstance(value, Function | Method | Context):
            raise NotProvedError("a function is handed on to something that is not known")
        certain = CERTAIN
        for each in alternatives(value):
            flags = self.flags(each)
            found |= flags
            certain &= flags
        return found & ~CERTAIN | certain

    def _all_flags(self, values: Any) -> int:
        found = 0
        for each in values:
            found |= self.flags(each)
        return found & ~CERTAIN

    def _flags_of_known(self, value: Any) -> int:
        if type(value) in NUMBERS:
            return IS_NUMBER
        if is_atom(value) or value is NotImplemented:
            return 0
        if is_outer_array(value):
            return OUTER | IS_ARRAY
        if type(value) in (tuple, list, dict, set, frozenset):
            found = self._contents(value)
            return self._all_flags(map(Known, found)) | (0 if isinstance(value, tuple) else OUTER)
        if isinstance(value, np.ufunc) and libraries.is_numpys(value):
            return 0
        raise NotProvedError(f"what happens to {_shown(value)} is not known")

    def _contents(self, value: Any) -> tuple[Any, ...]:
        if len(value) > _MOST_ELEMENTS:
            raise NotProvedError("it uses a large container from outside")
        return self.guards.contents(value)

    def truth(self, value: Value) -> bool | None:
        """Whether it is true; `None` where that is not known."""
        found = {self._truth(each) for each in alternatives(value)}
        return found.pop() if len(found) == 1 else None

    def _is_asked_in_python(self, kind: type) -> bool:
        """Whether `__bool__` or `__len__` of a class may be a function of Python's."""
        found = {self.guards.read(_static, kind, "__bool__"), self.guards.read(_static, kind, "__len__")}
        return not all(each is MISSING for each in found)

    def _truth(self, value: Value) -> bool | None:
        if isinstance(value, Known):
            if type(value.value) in (*NUMBERS, str, bytes, type(None), np.bool_):
                return bool(value.value)
            plain = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, np.dtype)
            if isinstance(value.value, plain) or type(value.value) is types.ModuleType or type(value.value) is type:
                return True
            if type(value.value) in (tuple, frozenset):
                return bool(value.value)
            if not (is_atom(value.value) or is_outer_array(value.value) or type(value.value) in _PLAIN):
                if self._is_asked_in_python(type(value.value)):
                    raise NotProvedError(f"it asks whether {_shown(value.value)} is true")
                return True
        if isinstance(value, Tuple | Keywords):
            return bool(value.items)
        if isinstance(value, Made):
            kind = self.records[value.site].kind
            if kind not in (list, dict, set, *_ITERATORS) and self._is_asked_in_python(kind):
                raise NotProvedError(f"it asks whether an object of {kind.__name__} is true")
        return True if isinstance(value, Function | Method) else None

    def is_same(self, one: Value, other: Value) -> bool | None:
        """What `is` says; `None` where that is not known."""
        found = {self._is_same(mine, theirs) for mine in alternatives(one) for theirs in alternatives(other)}
        return found.pop() if len(found) == 1 else None

    def _is_same(self, one: Value, other: Value) -> bool | None:
        if isinstance(one, Known) and isinstance(other, Known):
            singles = (type(None), bool, type(Ellipsis), types.FunctionType, types.ModuleType, type, np.ufunc)
            if isinstance(one.value, singles) or isinstance(other.value, singles):
                return one.value is other.value
            return None
        for mine, theirs in ((one, other), (other, one)):
            if isinstance(theirs, Known) and (theirs.value is None or isinstance(theirs.value, bool)):
                if isinstance(mine, Tuple | Keywords | Made | Function | Method | Attribute | Context):
                    return False
                if isinstance(mine, Data) and mine.flags & IS_ARRAY:
                    return False
                if isinstance(mine, Data) and mine.flags & IS_NUMBER and theirs.value is None:
                    return False
            is_from_outside = isinstance(theirs, Known) and not is_atom(theirs.value)
            if is_from_outside and isinstance(mine, Data) and not mine.flags & OUTER:
                return False  # it was made in the call
        return None

    # -- elements

    def element(self, value: Value) -> Value:
        """What iterating over it gives."""
        return _each(self._element, value)

    def _element(self, value: Value) -> Value:
        if isinstance(value, Data):
            return Data(value.flags & ~CERTAIN)
        if isinstance(value, Tuple):
            return join(*value.items) if value.items else Data()
        if isinstance(value, Keywords):
            return Data()
        if isinstance(value, Made):
            record = self.records[value.site]
            if record.kind is dict:
                return record.fields.get("keys", Data())
            if record.kind in (list, set, *_ITERATORS):
                return record.items or Data()
        if isinstance(value, Known):
            of = value.value
            if isinstance(of, str | bytes):
                return Data()
            if isinstance(of, range):
                return Data(IS_NUMBER)
            if type(of) in (tuple, list, dict, set, frozenset):
                found = self._contents(of)[: len(of)]
                return join(*map(Known, found)) if found else Data()
            if is_outer_array(of):
                return Data(OUTER)
            if of is None or isinstance(of, NUMBERS):
                raise RaisesError
        if isinstance(value, Attribute) and isinstance(value.of, Data):
            return Data(self.flags(value))
        raise NotProvedError(f"it iterates over {_shown_value(value)}")

    def element_of_dict(self, value: Value) -> Value:
        """What the values of a dict are."""
        found: list[Value] = []
        for each in alternatives(value):
            if isinstance(each, Keywords):
                found += [one for _, one in each.items]
            elif isinstance(each, Made) and self.records[each.site].kind is dict:
                found.append(self.records[each.site].items or Data())
            elif isinstance(each, Known) and isinstance(each.value, dict):
                found += map(Known, self._contents(each.value)[len(each.value) :])
            else:
                found.append(Data(self.flags(each) & ~CERTAIN))
        return join(*found)

    def known_items(self, value: Value) -> list[Value] | None:
        """The elements of a value if it is known which they are."""
        if isinstance(value, Tuple):
            return list(value.items)
        if isinstance(value, Known) and type(value.value) is tuple:
            return [Known(each) for each in value.value]
        return None

    def known_keywords(self, value: Value) -> dict[str, Value] | None:
        if isinstance(value, Keywords):
            return dict(value.items)
        if (
            isinstance(value, Known)
            and type(value.value) is dict
            and all(isinstance(each, str) for each in value.value)
        ):
            self._contents(value.value)
            return {name: Known(each) for name, each in value.value.items()}
        return None

    def item(self, value: Value, index: Value, *, keeps_axes: bool = False) -> Value:
        """What an index gives."""
        return _each(lambda each: _each(lambda one: self._item(each, one, keeps_axes=keeps_axes), index), value)

    def _item(self, value: Value, index: Value, *, keeps_axes: bool) -> Value:
        place = index.value if isinstance(index, Known) else MISSING
        if isinstance(value, Data):
            self.flags(index)
            return Data(value.flags & ~IS_NUMBER if keeps_axes else value.flags & ~CERTAIN)
        if isinstance(value, Tuple):
            if type(place) is int:
                item: Value = _element_at(value.items, place)
                return item
            if isinstance(place, slice):
                return Tuple(value.items[place])
            return Data(self.flags(value)) if not value.items else join(value, *value.items)
        if isinstance(value, Keywords):
            found = dict(value.items)
            if isinstance(place, str) and place not in found:
                raise RaisesError
            return found[place] if isinstance(place, str) else join(*found.values())
        if isinstance(value, Made):
            record = self.records[value.site]
            if record.kind is list and not isinstance(place, int):
                return join(value, record.items)  # a part of it is no wider
            if record.kind in (list, dict):
                self.check_key(index)
                return record.items or Data()
        if isinstance(value, Known):
            return self._item_of_known(value.value, place, index)
        raise NotProvedError(f"an element of {_shown_value(value)} is not known")

    def _item_of_known(self, value: Any, place: Any, index: Value) -> Value:
        if isinstance(value, str | bytes):
            return Data()
        if is_outer_array(value):
            self.flags(index)
            return Data(OUTER)
        if type(value) is dict:
            if place is not MISSING and is_atom(place):
                found = self.guards.name(value, place)
                if found is MISSING:
                    raise RaisesError
                return Known(found)
            self.check_key(index)
            return self.element_of_dict(Known(value))
        if type(value) in (tuple, list):
            found = self._contents(value)
            if type(place) is int:
                return Known(_element_at(found, place))
            if isinstance(place, slice) and type(value) is tuple:
                return Known(value[place])
            return join(*map(Known, found)) if found else Data()
        if value is None or isinstance(value, NUMBERS):
            raise RaisesError
        raise NotProvedError(f"an element of {_shown(value)} is not known")

    # -- writes

    def write_to(self, value: Value) -> None:
        """Something is written into it."""
        for each in alternatives(value):
            if isinstance(each, Known) or (isinstance(each, Data) and each.flags & OUTER):
                raise NotProvedError(_WRITES_OUTSIDE)
            if isinstance(each, Tuple) and self._all_flags(each.items) & OUTER:
                raise NotProvedError(_WRITES_OUTSIDE)
            if isinstance(each, Keywords):
                raise NotProvedError("it changes its keywords")

    def store_item(self, value: Value, index: Value, item: Value) -> None:
        self.write_to(value)
        for each in alternatives(value):
            if isinstance(each, Made):
                record = self.records[each.site]
                if record.kind is dict:
                    self.put(each, index, item)
                elif record.kind is list:
                    self._add(record, item)
                else:
                    raise NotProvedError(f"it sets an element of {record.kind.__name__}")
            elif isinstance(each, Data):
                self._only_data(each, item)
                self.flags(index)

    def _only_data(self, value: Data, item: Value) -> None:
        """Data may get data into it. An array of Python's objects would keep those that wait, but it is the call's."""
        flags = self.flags(item)
        if value.flags & IS_ARRAY:
            return
        if flags & OUTER & ~value.flags:
            raise NotProvedError("it puts something from outside into a container")
        if flags & (ARRAY | HOLDER) & ~self._put_into_data:
            self._put_into_data |= flags & (ARRAY | HOLDER)
            self.is_changed = True
        if flags & (ARRAY | HOLDER) & ~value.flags:
            raise NotProvedError("it puts an array into a container of which nothing else is known")

    def store_attribute(self, value: Value, name: str, item: Value) -> None:
        for each in alternatives(value):
            if isinstance(each, Made) and self.records[each.site].kind not in (list, dict, set, *_ITERATORS):
                record = self.records[each.site]
                found = inspect.getattr_static(record.kind, name, None)
                if isinstance(found, property) and isinstance(found.fset, types.FunctionType):
                    self.call_python(found.fset, [each, item], {})
                    continue
                if hasattr(type(found), "__set__") and not isinstance(found, types.MemberDescriptorType):
                    raise NotProvedError(f"it sets the property {name}")
                self._set_field(record, name, item)
            elif isinstance(each, Data) and not each.flags & (OUTER | HOLDER) and name in ("flat", "real", "imag"):
                self.flags(item)
            else:
                raise NotProvedError(f"it sets the attribute {name} of an object that may outlive the call")

    def in_place(self, before: Value, other: Value, result: Value) -> Value:
        """What an operation in place gives, which writes to what was there."""
        found: list[Value] = [result]
        for each in alternatives(before):
            if isinstance(each, Keywords):
                raise NotProvedError("it changes its keywords")
            if isinstance(each, Data):
                if each.flags & OUTER:
                    raise NotProvedError(_WRITES_OUTSIDE)
                if not each.flags & (IS_ARRAY | IS_NUMBER):
                    self._only_data(each, other)  # a list takes the elements
                found.append(Data((each.flags | self.flags(other)) & ~CERTAIN))
            elif isinstance(each, Known) and not is_atom(each.value):
                raise NotProvedError(_WRITES_OUTSIDE)
            elif isinstance(each, Made):
                record = self.records[each.site]
                if record.kind is not list:
                    raise NotProvedError(f"an operation in place on {record.kind.__name__}")
                self._add(record, self.element(other))
                return each
        return join(*found)

    def check_returned(self, value: Value, why: str) -> None:
        """What is returned holds arrays only where they are replaced by NumPy's."""
        for each in alternatives(value):
            if isinstance(each, Data):
                if each.flags & HOLDER:
                    raise NotProvedError(why)
            elif isinstance(each, Tuple):
                for one in each.items:
                    self.check_returned(one, why)
            elif isinstance(each, Keywords):
                for _, one in each.items:
                    self.check_returned(one, why)
            elif isinstance(each, Made):
                record = self.records[each.site]
                if record.kind in (*_ITERATORS, set):
                    raise NotProvedError(why)  # they go on after the call, with what they see
                if record.kind not in (list, dict):
                    inside = [each for each in (record.items, *record.fields.values()) if each is not None]
                    if not all(map(self._is_free, inside)):
                        raise NotProvedError(why)
                else:
                    keys = record.fields.get("keys")
                    if keys is not None and not self._is_free(keys):
                        raise NotProvedError(why)
                    if record.items is not None:
                        self._check_inside(each.site, record.items, why)
            elif not isinstance(each, Known):
                raise NotProvedError(why)

    _checking: tuple[Any, ...] = ()

    def _check_inside(self, site: Any, items: Value, why: str) -> None:
        if site in self._checking:
            return
        before, self._checking = self._checking, (*self._checking, site)
        try:
            self.check_returned(items, why)
        finally:
            self._checking = before

    def _is_free(self, value: Value) -> bool:
        """Whether there is certainly no array of the call in it."""
        return all(
            isinstance(each, Known) or (isinstance(each, Data) and not each.flags & ARRAY)
            for each in alternatives(value)
        )

    # -- attributes

    def attribute(self, value: Value, name: str) -> Value:
        return _each(lambda each: self._attribute(each, name), value)

    def _attribute(self, value: Value, name: str) -> Value:
        if isinstance(value, Data):
            return self._attribute_of_data(value, name)
        if isinstance(value, Tuple):
            if name in value.names:
                return value.items[value.names.index(name)]
            if not value.names and not hasattr(tuple, name):
                raise RaisesError
            if name not in ("index", "count"):
                raise NotProvedError(f"the attribute {name} of a tuple is not known")
            return Attribute(Data(self.flags(value)), name)
        if isinstance(value, Keywords):
            return Attribute(value, name)
        if isinstance(value, Made):
            record = self.records[value.site]
            if record.kind in (list, dict, set, *_ITERATORS):
                return Attribute(value, name)
            return self._attribute_of_instance(value, record, name)
        if isinstance(value, Attribute):
            of = self.call(value, [], {}) if isinstance(value.of, Keywords) else Data(self.flags(value))
            return self._attribute(of, name)
        if isinstance(value, Known):
            return self._attribute_of_known(value.value, name)
        if isinstance(value, Function) and name in ("__name__", "__doc__", "__qualname__"):
            return Data()
        raise NotProvedError(f"the attribute {name} of {_shown_value(value)} is not known")

    def _attribute_of_data(self, value: Data, name: str) -> Value:
        if (name in libraries.ABOUT_ATTRIBUTES and not value.flags & HOLDER) or value.flags & IS_INFO:
            return Data()
        if name in libraries.NOT_ATTRIBUTES or (
            name.startswith("__") and name not in ("__name__", "__len__", "__class__")
        ):
            raise NotProvedError(f"it asks for {name}")
        if value.flags & IS_ARRAY and name in ("T", "mT", "real", "imag"):
            return value if name != "imag" else Data(value.flags)
        if name == "flat":
            return Data(value.flags & ~CERTAIN | HOLDER)
        if name not in _METHODS and not value.flags & HOLDER:
            return Data(value.flags & ~CERTAIN)
        return Attribute(value, name)

    def _attribute_of_instance(self, value: Made, record: Record, name: str) -> Value:
        if name == "__class__":
            return Known(record.kind)
        found = self.guards.read(_static, record.kind, name)
        if isinstance(found, property):
            return self.call_python(_getter(found), [value], {})
        if name in record.fields:
            own = record.fields[name]  # which may not be set yet
            return own if found is MISSING else join(own, self._of_class(record.kind, found, name, value))
        return self._of_class(record.kind, found, name, value)

    def _of_class(self, kind: type, found: Any, name: str, instance: Value | None) -> Value:
        self.guards.read(_static, kind, name)
        if isinstance(found, staticmethod):
            return Known(found.__func__)
        if isinstance(found, classmethod):
            return Method(Known(found.__func__), Known(kind))
        if isinstance(found, types.FunctionType):
            return Known(found) if instance is None else Method(Known(found), instance)
        if found is MISSING or hasattr(type(found), "__get__"):
            raise NotProvedError(f"the attribute {name} of {kind.__name__} is not known")
        return Known(found)

    def _attribute_of_known(self, value: Any, name: str) -> Value:
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] == "numpy":
                found = vars(value).get(name, sys.modules.get(f"{value.__name__}.{name}", MISSING))
                if found is MISSING:
                    raise NotProvedError(f"{value.__name__}.{name} is not known")
                return Known(found)
            found = self.guards.name(vars(value), name)
            if found is MISSING:
                raise NotProvedError(f"{value.__name__}.{name} is not known")
            return Known(found)
        if is_outer_array(value) or isinstance(value, np.ndarray):
            return self._attribute_of_data(Data(self._flags_of_known(value)), name)
        if value is None:
            raise RaisesError
        if isinstance(value, np.finfo | np.iinfo):
            return Data()
        if isinstance(value, np.dtype | np.generic) or type(value) in NUMBERS:
            return self._attribute_of_data(Data(), name)
        if isinstance(value, str | bytes | tuple | list | dict | set | frozenset | range) and type(value) in _PLAIN:
            return Attribute(Known(value), name)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | np.ufunc | type(np.sum)) or is_atom(
            value
        ):
            if isinstance(value, np.ufunc) and name in ("reduce", "accumulate", "outer", "reduceat", "at"):
                return Known(getattr(value, name))
            if name in ("__name__", "__qualname__", "__module__", "__doc__"):
                return Data()
            if isinstance(value, types.FunctionType):
                found = self.guards.name(vars(value), name)
                if found is not MISSING and not name.startswith("__"):
                    return Known(found)
            if isinstance(value, type) and not (name.startswith("_") or name in libraries.WRITING_METHODS):
                return Attribute(Data(), name)  # a method of a type, with its object as the first argument
            raise NotProvedError(f"the attribute {name} of {_shown(value)} is not known")
        if isinstance(value, type):
            if name in ("__name__", "__qualname__", "__module__", "__doc__"):
                return Data()
            return self._of_class(value, _static(value, name), name, None)
        kind: Any = type(value)
        if "__getattr__" in dir(kind) or kind.__getattribute__ is not object.__getattribute__:
            raise NotProvedError(f"the attributes of {_shown(value)} are not known")
        found = self.guards.read(_static, kind, name)
        if isinstance(found, property):
            return self.call_python(_getter(found), [Known(value)], {})
        own = getattr(value, "__dict__", None)
        if own is not None and name in own:
            return Known(self.guards.name(own, name))
        return self._of_class(kind, found, name, Known(value))

    # -- contexts

    def enter(self, value: Value) -> tuple[Value, bool, bool]:
        """What `with` binds, whether errors in it may be caught, and whether it is about warnings."""
        if isinstance(value, Context):
            arguments, keywords = list(value.arguments), dict(value.keywords)
            return self.element(self.call(value.function, arguments, keywords)), True, False
        if isinstance(value, Data) and value.flags & HOLDER:
            return Data(value.flags), True, bool(value.flags & _OF_WARNINGS)
        if isinstance(value, Made):
            entered = self.call(self.attribute(value, "__enter__"), [], {})
            self.call(self.attribute(value, "__exit__"), [Data(ARRAY | HOLDER)] * 3, {})
            return entered, True, False
        raise NotProvedError(f"with {_shown_value(value)} is not known")

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
        return _each(
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
            if function.flags & HOLDER:
                raise NotProvedError("it calls something that is not known")
            # Among data only types of numbers and methods of data can be called.
            found_flags = self.given(arguments, keywords) & ~CERTAIN
            if found_flags & OUTER:
                raise NotProvedError(_WRITES_OUTSIDE)
            return Data(found_flags)
        if not isinstance(function, Known):
            raise NotProvedError(f"it calls {_shown_value(function)}")
        value = function.value
        if not callable(value):
            raise RaisesError
        if isinstance(value, types.FunctionType) and not libraries.is_numpys(value):
            if value.__code__ is _CONTEXT_CODE:
                inner = self.guards.cell(_cell(value, "func"))
                return Context(Known(inner), tuple(arguments), tuple(keywords.items()))
            if value.__module__ in _NOT_FOLLOWED:
                raise NotProvedError(f"it calls {value.__module__}.{value.__name__}")
            return self.call_python(value, arguments, keywords, is_open=is_open)
        special = _SPECIAL.get(value) if _is_hashable(value) else None
        if special is not None:
            if is_open and value is not zip:
                raise NotProvedError(f"it calls {_shown(value)} with arguments that are not known")
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
        if isinstance(value, _CACHED):
            return self._call_cached(value, arguments, keywords)
        if libraries.is_numpys(value):
            return self._call_numpys(value, arguments, keywords, is_open=is_open)
        if isinstance(value, type):
            return self._call_class(value, arguments, keywords, is_open=is_open, node=node)
        flags = self.given(arguments, keywords)
        result = libraries.result_of_builtin(value, flags & ~CERTAIN)
        if result is not None:
            if flags & OUTER and value.__module__ in libraries.WRITING_MODULES:
                raise NotProvedError(_WRITES_OUTSIDE)
            if flags & OUTER and value not in (len, isinstance):
                result |= OUTER
            return Data(result)
        raise NotProvedError(f"it calls {_shown(value)}, which is not known to keep nothing")

    def given(self, arguments: list[Value], keywords: dict[str, Value]) -> int:
        """The flags of all arguments together. Functions among them are called with data, whenever that is."""
        found = 0
        callbacks: list[Value] = []
        for value in (*arguments, *keywords.values()):
            for each in alternatives(value):
                if self._is_callback(each):
                    callbacks.append(each)
                else:
                    found |= self.flags(each) & ~CERTAIN
        for each in callbacks:
            found |= self._called_back(each, found)
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
            found |= self.flags(self.call(value, [given], {}, is_open=True)) & ~CERTAIN
        return found | ARRAY

    def _call_numpys(self, value: Any, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool) -> Value:
        flags = self.given(arguments, keywords)
        for each in (*arguments, *keywords.values()):
            if any(
                isinstance(one, Known) and one.value in ("O", "object")
                for one in alternatives(each)
                if isinstance(one, Known) and type(one.value) is str
            ):
                raise NotProvedError("it makes an array of objects")
        # What it may write to: everything where it is not known which argument is which.
        written = [*arguments, *keywords.values()] if is_open else libraries.written(value, arguments, keywords)
        for each in written:
            if not self._is_callback(each) and self.flags(each) & OUTER:
                raise NotProvedError(_WRITES_OUTSIDE)
        if isinstance(value, np.ufunc) and (is_open or "out" in keywords or len(arguments) > value.nin):
            return Data(flags)
        return Data(libraries.result_of_numpys(value, flags))

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
        result = (
            libraries.result_of_builtin(kind, self.given(arguments, keywords)) if kind.__module__ in _OF_C else None
        )
        if result is not None:
            return Data(result)
        if issubclass(kind, BaseException):
            if not _is_plain_error(kind):
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
            return Data(HOLDER | _OF_WARNINGS)
        if kind is contextlib.suppress:
            return Data(HOLDER)
        names = getattr(kind, "_fields", None)
        if names and not is_open and kind.__bases__ == (tuple,) and vars(kind).keys() <= {*_OF_NAMED_TUPLES, *names}:
            found = dict(zip(names, arguments, strict=False)) | keywords
            defaults = getattr(kind, "_field_defaults", {})
            if all(name in found or name in defaults for name in names):
                return Tuple(tuple([found.get(name) or Known(defaults[name]) for name in names]), tuple(names))
        init = _static(kind, "__init__")
        asked: Any = kind
        plain = type(kind) is type and asked.__new__ is object.__new__ and not hasattr(kind, "__del__")
        plain = plain and asked.__setattr__ is object.__setattr__
        plain = plain and asked.__getattribute__ is object.__getattribute__
        if plain and not hasattr(kind, "__getattr__") and isinstance(init, types.FunctionType) and not is_open:
            self.guards.read(_static, kind, "__init__")
            made = self.made((id(node), kind), kind, None)
            self.call_python(init, [made, *arguments], keywords)
            return made
        raise NotProvedError(f"it makes an object of {kind.__module__}.{kind.__qualname__}")

    def _call_method(
        self, method: Attribute, arguments: list[Value], keywords: dict[str, Value], *, is_open: bool = False
    ) -> Value:
        name, of = method.name, method.of
        if is_open and not isinstance(of, Data):
            raise NotProvedError(f"it calls {name} with arguments that are not known")
        if isinstance(of, Keywords):
            return self._call_method_of_keywords(of, name, arguments)
        if isinstance(of, Made):
            found = self._call_method_of_made(of, name, arguments, keywords)
            if found is not None:
                return found
        if isinstance(of, Known) and isinstance(of.value, str) and name in _TEXT_METHODS and not keywords:
            known = [
                each.value for each in arguments if isinstance(each, Known) and isinstance(each.value, str | tuple)
            ]
            if len(known) == len(arguments):
                return Known(getattr(of.value, name)(*known))
        if isinstance(of, Known) and isinstance(of.value, list | dict | set) and name not in _READING_METHODS:
            raise NotProvedError(_WRITES_OUTSIDE)
        if isinstance(of, Known) and isinstance(of.value, dict):
            return self._call_method_of_known(of, name, arguments)
        flags = self.flags(of)
        given = self.given(arguments, keywords)
        if name in libraries.WRITING_METHODS:
            if flags & OUTER:
                raise NotProvedError(_WRITES_OUTSIDE)
            for each in (*arguments, *keywords.values()):
                if isinstance(of, Data) and not self._is_callback(each):
                    self._only_data(of, each)
        written = arguments if is_open else arguments[1:] if name != "get" else []
        for each in (*written, *[keywords[each] for each in ("out", "**") if each in keywords]):
            if not self._is_callback(each) and self.flags(each) & OUTER:
                raise NotProvedError(_WRITES_OUTSIDE)
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


def _each(function: Callable[[Value], Value], value: Value) -> Value:
    """What a function gives for all that a value may be, but for what raises an error."""
    found = []
    for each in alternatives(value):
        with contextlib.suppress(RaisesError):
            found.append(function(each))
    if not found:
        raise RaisesError
    return join(*found)


def _element_at(items: Any, place: int) -> Any:
    if not -len(items) <= place < len(items):
        raise RaisesError
    return items[place]


#: Attributes of data that are methods.
_METHODS = frozenset(name for kind in CLOSED for name in dir(kind) if callable(getattr(kind, name, None)))
_OF_WARNINGS = 64
_CACHED: Any = type(functools.lru_cache(lambda: None))
_TEXT_METHODS = frozenset(("lower", "upper", "startswith", "endswith", "removesuffix", "removeprefix", "strip"))
_PLAIN = frozenset((str, bytes, tuple, list, dict, set, frozenset, range))
_OF_C = frozenset(("builtins", "itertools"))
#: What classes of `typing.NamedTuple` and `collections.namedtuple` have.
_OF_NAMED_TUPLES = frozenset(
    (
        "__new__", "_make", "_replace", "_asdict", "__repr__", "__getnewargs__", "__slots__", "__doc__", "__module__",
        "__match_args__", "__annotations__", "__orig_bases__", "_fields", "_field_defaults", "__replace__",
        "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__",
    )
)  # fmt: skip
_BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, np.ufunc)


def _is_plain_error(kind: type) -> bool:
    """Whether nothing but code in C, or of NumPy, runs where such an error is made, shown or used."""
    return all(
        each.__module__ == "builtins"
        or each.__module__.startswith("numpy")
        or not any(hasattr(type(one), "__get__") and name not in _OF_ANY_CLASS for name, one in vars(each).items())
        for each in kind.__mro__
    )


_OF_ANY_CLASS = frozenset(("__weakref__", "__dict__", "__doc__", "__module__"))
#: Modules of Python's that look at callers, keep what they get, or start something.
_NOT_FOLLOWED = frozenset(
    [
        "inspect",
        "gc",
        "weakref",
        "threading",
        "logging",
        "multiprocessing",
        "concurrent.futures",
        "asyncio",
        "pickle",
        "copyreg",
        "atexit",
        "signal",
        "traceback",
        "pdb",
        "tempfile",
        "subprocess",
        "os",
        "shutil",
        "socket",
        "contextvars",
    ]
)


def _static(kind: type, name: str) -> Any:
    """What the classes of a class have under a name, without asking descriptors."""
    for each in kind.__mro__:
        if name in vars(each):
            return vars(each)[name]
    return MISSING


def _getter(found: property) -> types.FunctionType:
    if not isinstance(found.fget, types.FunctionType):
        raise NotProvedError("a property is not written in Python")
    return found.fget


def _cell(function: types.FunctionType, name: str) -> types.CellType:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)]


def _is_hashable(value: Any) -> bool:
    return isinstance(value, type | types.BuiltinFunctionType | types.FunctionType)


def _shown(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None:
        return f"an object of {type(value).__module__}.{type(value).__qualname__}"
    return f"{getattr(value, '__module__', None) or ''}.{name}".lstrip(".")


def _shown_value(value: Value) -> str:
    return _shown(value.value) if isinstance(value, Known) else f"a value of the call ({type(value).__name__})"


# -- builtins of which more is known


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
        return (np.ndarray,) if value.flags & IS_ARRAY else NUMBERS if value.flags & IS_NUMBER else CLOSED
    if isinstance(value, Known):
        return (type(value.value),)
    if isinstance(value, Tuple):
        return (tuple,) if not value.names else None
    if isinstance(value, Keywords):
        return (dict,)
    if isinstance(value, Function):
        return (types.FunctionType,)
    if isinstance(value, Made):
        return (calling.records[value.site].kind,)
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
    found = _static(kind, "__subclasshook__")
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
    if isinstance(value, Known):
        if isinstance(value.value, types.ModuleType) and not hasattr(value.value, "__getattr__"):
            return calling.guards.name(vars(value.value), name) is not MISSING
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
            found.append(calling.attribute(each, name))
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
            found.append(Data())
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
            return calling.made(site, zip, calling.call(arguments[0], [*map(calling.element, arguments[1:])], {}))
        if kind is tuple and arguments and isinstance(arguments[0], Tuple):
            return arguments[0]
        if kind is sorted:
            # Elements, or what the key gives for them, are compared.
            calling.given([calling.element(each) for each in arguments[:1]], keywords)
        made = list if kind in (list, sorted, tuple) else zip
        item = calling.element(arguments[0]) if arguments else None
        if kind is tuple:
            try:
                return Data(0 if item is None else calling.flags(item) & ~CERTAIN)
            except NotProvedError:
                pass  # as a list, which is no wider
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
    for each in (*arguments, *keywords.values()):
        if not all(isinstance(one, Known) and isinstance(one.value, type) for one in alternatives(each)):
            if calling.flags(each) & (ARRAY | HOLDER):
                raise NotProvedError("it warns with an object that may hold an array")
    return Known(None)


def _filters(calling: Calling, arguments: list[Value], keywords: dict[str, Value], *_: Any) -> Value:
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
        found = join(found, calling.call(arguments[0], [found, start], {}))
    return Data(calling.flags(found) & ~CERTAIN)


def _summed(calling: Calling, arguments: list[Value], keywords: dict[str, Value], *_: Any) -> Value:
    """One of the elements, or what operators make of them."""
    given = [calling.element(arguments[0]), *arguments[1:]] if arguments else []
    return Data(calling.given(given, keywords) & ~CERTAIN)


def _next(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    return join(calling.element(arguments[0]), *arguments[1:])


def _super(calling: Calling, arguments: list[Value], keywords: dict[str, Value], body: Any, node: Any) -> Value:
    raise NotProvedError("it calls super")


def _issubdtype(calling: Calling, arguments: list[Value], *_: Any) -> Value:
    if all(isinstance(each, Known) and is_atom(each.value) for each in arguments):
        return Known(bool(np.issubdtype(*[each.value for each in arguments])))  # type: ignore[attr-defined]
    return Data(IS_NUMBER)


_SPECIAL: dict[Any, Any] = {
    isinstance: _isinstance, issubclass: _issubclass, hasattr: _hasattr, getattr: _getattr, type: _type,
    callable: _callable, len: _len,
    zip: _iterating(zip), enumerate: _iterating(enumerate), map: _iterating(map), list: _iterating(list),
    tuple: _iterating(tuple), sorted: _iterating(sorted), reversed: _iterating(reversed), iter: _iterating(iter),  # type: ignore[arg-type]
    dict: _dict, warnings.warn: _warn, warnings.simplefilter: _filters, warnings.filterwarnings: _filters,
    setattr: _setattr, functools.reduce: _reduce, sum: _summed, next: _next, super: _super, np.issubdtype: _issubdtype,
}  # fmt: skip
