"""Containers of arrays, taken apart into a flat list and put together again; and which arrays are ordinary ones."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from anygpu.errors import InvalidOption

# -- arrays that are more than their numbers: masked ones, matrices, records, tables with labels
# Their meaning is lost when only their numbers are taken, so they are refused instead.


#: Libraries whose arrays have labels, units or masks beside their numbers, with what gives the numbers alone.
_LABELLED = {"pandas": "x.to_numpy()", "xarray": "x.to_numpy()", "polars": "x.to_numpy()", "astropy": "x.value"}


def require_plain(x: Any, what: str) -> None:
    """Raise `InvalidOption` for an array that is more than its numbers, such as a masked or labelled one.

    `what` names the function in the message, which also says what to pass instead.
    """
    kind = type(x)
    if kind is np.ndarray or kind is np.memmap:
        return
    if isinstance(x, np.ma.MaskedArray):
        advice = "x.filled(value), or x.data without the mask"
    elif isinstance(x, np.ndarray):
        advice = "np.asarray(x), if the numbers are all that is meant"
    else:
        advice = _LABELLED.get(kind.__module__.partition(".")[0], "")
    if advice:
        raise InvalidOption(
            f"{what} takes ordinary arrays, and a {kind.__name__} is more than its numbers. Pass {advice}."
        )


# -- nested containers
# Containers are dicts, lists, tuples, named tuples, dataclasses and `None` (which holds nothing); subclasses keep their
# type. Everything else is a leaf. What is put together is made without calling the class: `__init__`, `__post_init__`
# and a `__new__` of the user's own have run once for the original and do not run again, so they may check or open
# whatever they like. Attributes that a dataclass has beside its fields are carried along, except cached properties,
# which belong to the values they were computed from.


class Structure:
    """How a value was nested, without what it held. Hashable; equal structures rebuild equal containers."""

    __slots__ = ("_hash", "children", "container", "count", "is_flat", "names")

    #: The class of the container; `None` for a leaf.
    container: type[Any] | None
    #: Keys of a dict, attributes of a dataclass, the factory of a default dict.
    names: tuple[Any, ...]
    children: tuple[Structure, ...]
    #: How many leaves there are below.
    count: int
    #: Whether it is a tuple or list of leaves alone.
    is_flat: bool

    def __init__(
        self, container: type[Any] | None, names: tuple[Any, ...] = (), children: tuple[Structure, ...] = ()
    ) -> None:
        self.container = container
        self.names = names
        self.children = children
        self.count = 1 if container is None else sum(child.count for child in children)
        self.is_flat = (container is tuple or container is list) and all(not child.container for child in children)
        self._hash = hash((container, names, children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.container is other.container
            and self.names == other.names
            and self.children == other.children
        )

    def __repr__(self) -> str:
        if self.container is None:
            return "*"
        if self.container is type(None):
            return "None"
        parts = [repr(child) for child in self.children]
        if issubclass(self.container, dict) or not issubclass(self.container, tuple | list):
            parts = [f"{name}: {part}" for name, part in zip(self.names, parts, strict=False)]
        return f"{self.container.__name__}({', '.join(parts)})"


LEAF = Structure(None)
NOTHING = Structure(type(None))

#: Tuples and lists of leaves alone, by their length: they are what most calls are made of.
_FLAT: dict[tuple[type[Any], int], Structure] = {}

#: Types that are surely leaves.
_LEAVES: frozenset[type[Any]] = frozenset((np.ndarray, float, int, bool, str, bytes, complex))


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a value in order, and the structure that they were nested in; `unflatten` is the inverse.

    None of the user's code runs but properties that are fields of a dataclass.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        for each in value:
            if type(each) not in _LEAVES and _rule_of(type(each)) is not None:
                break
        else:
            return list(value), _flat(kind, len(value))
    leaves: list[Any] = []
    return leaves, _take(value, leaves)


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The value that these leaves make in this structure, without calling `__init__` or `__new__` of the user's
    classes.

    Raises `ValueError` for a wrong number of leaves.
    """
    if len(leaves) != structure.count:
        raise ValueError(f"{structure} has {structure.count} leaves, not {len(leaves)}.")
    if structure.is_flat:
        return tuple(leaves) if structure.container is tuple else list(leaves)
    return _make(structure, iter(leaves))


def _flat(kind: type[Any], length: int) -> Structure:
    """The structure of a container of so many leaves, made once."""
    known = _FLAT.get((kind, length))
    if known is None:
        known = _FLAT[kind, length] = Structure(kind, (), (LEAF,) * length)
    return known


def _take(value: Any, leaves: list[Any]) -> Structure:
    """Add the leaves of a value to a list; its structure."""
    rule = _rule_of(type(value))
    taken = None if rule is None else rule.take(value)
    if taken is None:
        leaves.append(value)
        return LEAF
    names, parts = taken
    structures = tuple([_take(part, leaves) for part in parts])
    return Structure(type(value), names, structures) if value is not None else NOTHING


def _make(structure: Structure, leaves: Iterator[Any]) -> Any:
    """A value of this structure, made of the next leaves."""
    container = structure.container
    if container is None:
        return next(leaves)
    parts = [_make(child, leaves) for child in structure.children]
    rule = _rule_of(container)
    if rule is None:
        raise TypeError(f"{container.__name__} is not a container.")
    return rule.make(container, structure.names, parts)


#: Names and parts of a container; `None` when this one has to stay whole.
ContainerParts = tuple[tuple[Any, ...], Sequence[Any]] | None


class _ContainerRule(NamedTuple):
    """How containers of one class are taken apart and made again."""

    take: Callable[[Any], ContainerParts]
    make: Callable[[type[Any], tuple[Any, ...], list[Any]], Any]


def _has_attributes(value: Any) -> bool:
    """Whether a list or dict of the user's own carries more than its elements, so that it has to stay whole."""
    return bool(getattr(value, "__dict__", None))


def _take_none(value: None) -> ContainerParts:
    """`None` has no parts."""
    return (), ()


def _make_none(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> None:
    """Make `None`"""
    return None


def _take_sequence(value: Any) -> ContainerParts:
    """The parts of a list or tuple; `None` if it has attributes of its own."""
    return None if _has_attributes(value) else ((), value)


def _make_tuple(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> Any:
    """Make a tuple, or an instance of a subclass, of its parts."""
    return tuple(parts) if container is tuple else tuple.__new__(container, parts)


def _make_list(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> Any:
    """Make a list, or an instance of a subclass, of its parts."""
    if container is list:
        return parts
    made = list.__new__(container)
    list.extend(made, parts)
    return made


def _take_dict(value: dict[Any, Any]) -> ContainerParts:
    """The keys and values of a dictionary; `None` if it has attributes of its own."""
    return None if _has_attributes(value) else (tuple(value), list(value.values()))


def _make_dict(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> Any:
    """Make a dictionary, or an instance of a subclass, of keys and values."""
    pairs = zip(names, parts, strict=True)
    if container is dict:
        return dict(pairs)
    made: Any = dict.__new__(container)
    if issubclass(container, OrderedDict):
        for name, part in pairs:
            OrderedDict.__setitem__(made, name, part)
    else:
        dict.update(made, pairs)
    return made


def _take_defaultdict(value: defaultdict[Any, Any]) -> ContainerParts:
    """The keys, the factory and the values of a `defaultdict`; `None` if it has attributes of its own."""
    return None if _has_attributes(value) else ((*value, value.default_factory), list(value.values()))


def _make_defaultdict(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> Any:
    """Make a `defaultdict` of keys, factory and values."""
    made: Any = dict.__new__(container)
    made.default_factory = names[-1]
    dict.update(made, zip(names[:-1], parts, strict=True))
    return made


def _dataclass_rule(container: type[Any]) -> _ContainerRule:
    """The rule that takes a dataclass apart by its fields, and makes it again."""
    import dataclasses  # late: whoever has made one has loaded it

    fields = tuple(field.name for field in dataclasses.fields(container))

    def take(value: Any) -> ContainerParts:
        names = fields
        attributes = getattr(value, "__dict__", None)
        if attributes is not None and len(attributes) > len(fields):
            extra = (name for name in attributes if name not in fields)
            kind = type(value)
            names += tuple(each for each in extra if not isinstance(getattr(kind, each, None), cached_property))
        try:
            return names, [getattr(value, name) for name in names]
        except AttributeError:  # a field that was never set, or was deleted
            return None

    def make(container: type[Any], names: tuple[Any, ...], parts: list[Any]) -> Any:
        made = object.__new__(container)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(made, name, part)
        return made

    return _ContainerRule(take, make)


def _find_rule(container: type[Any]) -> _ContainerRule | None:
    """The rule of a class that was not met before; `None` if its instances are leaves."""
    if container is type(None):
        return _ContainerRule(_take_none, _make_none)
    if issubclass(container, np.ndarray | np.generic | type):
        return None
    if issubclass(container, tuple):
        return _ContainerRule(_take_sequence, _make_tuple)
    if issubclass(container, list):
        return _ContainerRule(_take_sequence, _make_list)
    if issubclass(container, defaultdict):
        return _ContainerRule(_take_defaultdict, _make_defaultdict)
    if issubclass(container, dict):
        return _ContainerRule(_take_dict, _make_dict)
    if hasattr(container, "__dataclass_fields__"):
        return _dataclass_rule(container)
    return None


_RULES: dict[type[Any], _ContainerRule | None] = {}


def _rule_of(container: type[Any]) -> _ContainerRule | None:
    """The rule of a class; `None` if its instances are leaves."""
    try:
        return _RULES[container]
    except KeyError:
        if len(_RULES) > 1000:  # classes that were made in a loop are not kept alive for ever
            _RULES.clear()
        rule = _RULES[container] = _find_rule(container)
        return rule
