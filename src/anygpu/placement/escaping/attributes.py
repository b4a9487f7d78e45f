"""What attributes are in a call that is evaluated without values."""

from __future__ import annotations

import abc
import types
from typing import Any

import numpy as np

from anygpu.placement.escaping import libraries
from anygpu.placement.escaping.guards import MISSING
from anygpu.placement.escaping.objects import (
    ITERATORS,
    METHODS,
    PLAIN,
    for_each,
    getter,
    shown,
    shown_value,
    static,
)
from anygpu.placement.escaping.values import (
    CERTAIN,
    HOLDER,
    IS_ARRAY,
    IS_INFO,
    NUMBERS,
    Attribute,
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
    Value,
    is_atom,
    is_outer_array,
    join,
)
from anygpu.placement.escaping.writing import Writing


class Attributes(Writing):
    """Attributes of data, of objects and of modules."""

    def attribute(self, value: Value, name: str) -> Value:
        return for_each(lambda each: self._attribute(each, name), value)

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
            if record.kind in (list, dict, set, *ITERATORS):
                return Attribute(value, name)
            return self._attribute_of_instance(value, record, name)
        if isinstance(value, Attribute):
            if value.name == "__class__" and name not in ("__name__", "__qualname__", "__module__"):
                raise NotProvedError(f"it asks for {name} of a class")
            of = self.call(value, [], {}) if isinstance(value.of, Keywords) else Data(self.flags(value))
            return self._attribute(of, name)
        if isinstance(value, Known):
            return self._attribute_of_known(value.value, name)
        if isinstance(value, Function) and name in ("__name__", "__doc__", "__qualname__"):
            return Data()
        raise NotProvedError(f"the attribute {name} of {shown_value(value)} is not known")

    def _attribute_of_data(self, value: Data, name: str) -> Value:
        if (name in libraries.ABOUT_ATTRIBUTES and not value.flags & HOLDER) or value.flags & IS_INFO:
            return Data()
        if name in libraries.NOT_ATTRIBUTES or (
            name.startswith("__") and name not in ("__name__", "__len__", "__class__")
        ):
            raise NotProvedError(f"it asks for {name}")
        if value.flags & HOLDER:
            raise NotProvedError(f"it asks for {name} of an error, an iterator, or an object that is not known")
        if value.flags & IS_ARRAY and name in ("T", "mT", "real", "imag"):
            return value if name != "imag" else Data(value.flags)
        if name == "flat":
            return Data(value.flags & ~CERTAIN | HOLDER)
        if name not in METHODS and not value.flags & HOLDER:
            return Data(value.flags & ~CERTAIN)
        return Attribute(value, name)

    def _attribute_of_instance(self, value: Made, record: Record, name: str) -> Value:
        if name == "__class__":
            return Known(record.kind)
        found = self.guards.read(static, record.kind, name)
        if type(found) is property:
            return self.call_python(getter(found), [value], {})
        if name in record.fields:
            own = record.fields[name]  # which may not be set yet
            return own if found is MISSING else join(own, self._of_class(record.kind, found, name, value))
        return self._of_class(record.kind, found, name, value)

    def _of_class(self, kind: type, found: Any, name: str, instance: Value | None) -> Value:
        self.guards.read(static, kind, name)
        if type(found) is staticmethod:
            return Known(found.__func__)
        if type(found) is classmethod:
            return Method(Known(found.__func__), Known(kind))
        if isinstance(found, types.FunctionType):
            return Known(found) if instance is None else Method(Known(found), instance)
        if found is MISSING or hasattr(type(found), "__get__"):
            raise NotProvedError(f"the attribute {name} of {kind.__name__} is not known")
        return Known(found)

    def _attribute_of_known(self, value: Any, name: str) -> Value:
        if isinstance(value, types.ModuleType):
            if type(value) is not types.ModuleType:
                raise NotProvedError(f"{value.__name__} answers for its names itself")
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
        if isinstance(value, str | bytes | tuple | list | dict | set | frozenset | range) and type(value) in PLAIN:
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
            raise NotProvedError(f"the attribute {name} of {shown(value)} is not known")
        if isinstance(value, type):
            if name in ("__name__", "__qualname__", "__module__", "__doc__"):
                return Data()
            if type(value) not in (type, abc.ABCMeta):
                raise NotProvedError(f"the class of {shown(value)} may have attributes of its own")
            return self._of_class(value, static(value, name), name, None)
        kind: Any = type(value)
        if "__getattr__" in dir(kind) or kind.__getattribute__ is not object.__getattribute__:
            raise NotProvedError(f"the attributes of {shown(value)} are not known")
        self.guards.read(type, value)
        found = self.guards.read(static, kind, name)
        if type(found) is property:
            return self.call_python(getter(found), [Known(value)], {})
        if hasattr(type(found), "__set__") or hasattr(type(found), "__delete__"):
            raise NotProvedError(f"the attribute {name} of {kind.__name__} is not known")
        own = getattr(value, "__dict__", None)
        if own is not None:
            mine = self.guards.name(own, name)
            if mine is not MISSING:
                return Known(mine)
        return self._of_class(kind, found, name, Known(value))
