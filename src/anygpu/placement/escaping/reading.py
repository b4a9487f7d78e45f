"""What is known of values in a call that is evaluated without values: flags, truth, and elements."""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import Any

import numpy as np

from anygpu.placement.escaping import libraries
from anygpu.placement.escaping.guards import MISSING, Guards
from anygpu.placement.escaping.objects import (
    BY_IDENTITY,
    ITERATORS,
    MOST_ELEMENTS,
    PLAIN,
    element_at,
    for_each,
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


class Reading:
    """What is known of values, and of what is in objects that the call makes."""

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

    def call(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        *,
        is_open: bool = False,
        body: Any = None,
        node: Any = None,
    ) -> Value:
        raise NotImplementedError

    def check_effect(self) -> None:
        """Something is changed that somebody may see: not while both answers of `type` are tried."""
        if self.answers is not None:
            raise TypeAskedError("what it does depends on the type of an object")

    # -- what objects have in them

    def add_to_cell(self, key: Any, value: Value) -> None:
        self.check_effect()
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
            self.is_changed |= record.add(items)
        return Made(site)

    def _add(self, record: Record, items: Value) -> None:
        self.check_effect()
        self.is_changed |= record.add(items)

    def check_key(self, key: Value) -> None:
        """A key is hashed and compared: those of classes of Python's may do anything then."""
        for each in alternatives(key):
            if isinstance(each, Function):
                continue
            if isinstance(each, Tuple):
                for one in each.items:
                    self.check_key(one)
            elif not (isinstance(each, Known) and (type(each.value) is type or isinstance(each.value, BY_IDENTITY))):
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
            elif isinstance(each, Known) and type(each.value) is dict:
                self.put(made, self.element(each), self.element_of_dict(each))
            else:
                self.put(made, Data(self.flags(each)), Data(self.flags(each)))

    def _set_field(self, record: Record, name: str, value: Value) -> None:
        self.check_effect()
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
            if record.kind not in (list, dict, set, *ITERATORS):
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

    def check_shown(self, value: Value) -> None:
        """It becomes text. What Python says of an error may have the name of our class in it."""
        if self.flags(value) & HOLDER:
            raise NotProvedError("it shows an error, or an object that may hold an array")

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
        raise NotProvedError(f"what happens to {shown(value)} is not known")

    def _contents(self, value: Any) -> tuple[Any, ...]:
        if len(value) > MOST_ELEMENTS:
            raise NotProvedError("it uses a large container from outside")
        return self.guards.contents(value)

    def truth(self, value: Value) -> bool | None:
        """Whether it is true; `None` where that is not known."""
        found = {self._truth(each) for each in alternatives(value)}
        return found.pop() if len(found) == 1 else None

    def _is_asked_in_python(self, kind: type) -> bool:
        """Whether `__bool__` or `__len__` of a class may be a function of Python's."""
        found = {self.guards.read(static, kind, "__bool__"), self.guards.read(static, kind, "__len__")}
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
            if not (is_atom(value.value) or is_outer_array(value.value) or type(value.value) in PLAIN):
                if self._is_asked_in_python(type(value.value)):
                    raise NotProvedError(f"it asks whether {shown(value.value)} is true")
                return True
        if isinstance(value, Tuple | Keywords):
            return bool(value.items)
        if isinstance(value, Made):
            kind = self.records[value.site].kind
            if kind not in (list, dict, set, *ITERATORS) and self._is_asked_in_python(kind):
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
            if isinstance(theirs, Known) and isinstance(theirs.value, np.ndarray) and isinstance(mine, Data):
                raise NotProvedError("it asks whether an array is one from outside, which an argument may be")
            is_from_outside = isinstance(theirs, Known) and not is_atom(theirs.value)
            if is_from_outside and isinstance(mine, Data) and not mine.flags & OUTER:
                return False  # it was made in the call
        return None

    # -- elements

    def element(self, value: Value) -> Value:
        """What iterating over it gives."""
        return for_each(self._element, value)

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
            if record.kind in (list, set, *ITERATORS):
                return record.items or Data()
        if isinstance(value, Known):
            of = value.value
            if type(of) in (str, bytes):
                return Data()
            if isinstance(of, range):
                return Data(IS_NUMBER)
            if type(of) in (tuple, list, dict, set, frozenset):
                found = self._contents(of)[: len(of)]
                return join(*map(Known, found)) if found else Data()
            if is_outer_array(of):
                return Data(OUTER)
            if of is None or type(of) in NUMBERS:
                raise RaisesError
        if isinstance(value, Attribute) and isinstance(value.of, Data):
            return Data(self.flags(value))
        raise NotProvedError(f"it iterates over {shown_value(value)}")

    def element_of_dict(self, value: Value) -> Value:
        """What the values of a dict are."""
        found: list[Value] = []
        for each in alternatives(value):
            if isinstance(each, Keywords):
                found += [one for _, one in each.items]
            elif isinstance(each, Made) and self.records[each.site].kind is dict:
                found.append(self.records[each.site].items or Data())
            elif isinstance(each, Known) and type(each.value) is dict:
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
        return for_each(lambda each: for_each(lambda one: self._item(each, one, keeps_axes=keeps_axes), index), value)

    def _item(self, value: Value, index: Value, *, keeps_axes: bool) -> Value:
        place = index.value if isinstance(index, Known) else MISSING
        if isinstance(value, Data):
            self.flags(index)
            return Data(value.flags & ~IS_NUMBER if keeps_axes else value.flags & ~CERTAIN)
        if isinstance(value, Tuple):
            if type(place) is int:
                item: Value = element_at(value.items, place)
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
        raise NotProvedError(f"an element of {shown_value(value)} is not known")

    def _item_of_known(self, value: Any, place: Any, index: Value) -> Value:
        if type(value) in (str, bytes):
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
                return Known(element_at(found, place))
            if isinstance(place, slice) and type(value) is tuple:
                return Known(value[place])
            return join(*map(Known, found)) if found else Data()
        if value is None or type(value) in NUMBERS:
            raise RaisesError
        raise NotProvedError(f"an element of {shown(value)} is not known")
