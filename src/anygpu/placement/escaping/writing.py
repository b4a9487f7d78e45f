"""What is written in a call that is evaluated without values, and what is left of it."""

from __future__ import annotations

import types
from typing import Any

from anygpu.placement.escaping.objects import (
    ITERATORS,
    WRITES_OUTSIDE,
    static,
)
from anygpu.placement.escaping.reading import Reading
from anygpu.placement.escaping.values import (
    ARRAY,
    CERTAIN,
    HOLDER,
    IS_ARRAY,
    IS_NUMBER,
    OUTER,
    Data,
    Keywords,
    Known,
    Made,
    NotProvedError,
    Tuple,
    Value,
    alternatives,
    is_atom,
    join,
)


class Writing(Reading):
    """Writes, and what is left of a call. What may outlive it raises `NotProvedError`."""

    def write_to(self, value: Value) -> None:
        """Something is written into it."""
        self.check_effect()
        for each in alternatives(value):
            if isinstance(each, Known) or (isinstance(each, Data) and each.flags & OUTER):
                raise NotProvedError(WRITES_OUTSIDE)
            if isinstance(each, Tuple) and self._all_flags(each.items) & OUTER:
                raise NotProvedError(WRITES_OUTSIDE)
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
            if isinstance(each, Made) and self.records[each.site].kind not in (list, dict, set, *ITERATORS):
                record = self.records[each.site]
                found = self.guards.read(static, record.kind, name)
                if type(found) is property and isinstance(found.fset, types.FunctionType):
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
        self.check_effect()
        found: list[Value] = [result]
        for each in alternatives(before):
            if isinstance(each, Keywords):
                raise NotProvedError("it changes its keywords")
            if isinstance(each, Data):
                if each.flags & OUTER:
                    raise NotProvedError(WRITES_OUTSIDE)
                if not each.flags & (IS_ARRAY | IS_NUMBER):
                    self._only_data(each, other)  # a list takes the elements
                found.append(Data((each.flags | self.flags(other)) & ~CERTAIN))
            elif isinstance(each, Known) and not is_atom(each.value):
                raise NotProvedError(WRITES_OUTSIDE)
            elif isinstance(each, Made):
                record = self.records[each.site]
                if record.kind is not list:
                    raise NotProvedError(f"an operation in place on {record.kind.__name__}")
                self._add(record, self.element(other))
                found.append(each)
        is_list = all(isinstance(each, Made) for each in alternatives(before))
        return join(*(found[1:] if is_list else found))

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
                if record.kind in (*ITERATORS, set):
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
