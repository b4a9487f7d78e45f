"""A function among copies of what surrounds it, with sketches in the place of its arrays.

What a function does with an array from outside must be recorded, as what it does with its arguments is: otherwise
`x * W.mean()` would keep the mean of today. And what it writes down somewhere while it is recorded must not be seen by
anybody. The user's own things are not touched, because others may be using them at this moment: whatever can change,
and whatever leads there (functions, objects, lists, modules' names), is copied, and the copies lead to each other.
Where something cannot be copied the original stays, and the arrays behind it are `unreached`: whoever uses the copies
has to watch their values.
"""

from __future__ import annotations

import opcode
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from anygpu.array.outside import Outside, is_users, slots_of


class Swapping:
    """One set of copies, in which the arrays from outside are others.

    (Where names are gone through, a list of them is made first, in one step: another thread may be adding some.)
    """

    def __init__(self, outside: Outside, replacements: dict[int, Any]) -> None:
        self._holders = outside.holders
        #: The arrays that can be met without going through a copy.
        self.unreached: list[Any] = []
        #: What is copied: by identity, what can change and what leads there.
        self._leads: set[int] = set()
        for each in outside.arrays:
            if not self._go_up(each.array):
                self.unreached.append(each.array)
        for thing in outside.things.values():
            if _can_change(thing):
                self._go_up(thing)
        #: What changes in a copy is kept from the user, so it must be noticed: its name, the copy, and what it was.
        self._before: list[tuple[str, Any, Any]] = []
        self._originals: dict[int, Any] = {}
        self._copies: dict[int, Any] = dict(replacements)
        self._globals: dict[int, dict[str, Any]] = {}
        self._cells: dict[int, CellType] = {}
        self._contents: list[tuple[CellType, Any]] = []

    def seal(self) -> None:
        """All copies are made: what is different from now on was changed by the function."""
        for identity, original in self._originals.items():
            copied = self._copies[identity]
            if isinstance(copied, dict | list):
                self._before.append((f"a {type(copied).__name__} from outside", copied, copied.copy()))
            elif type(copied) is type(original) and not isinstance(copied, FunctionType) and _can_change(original):
                attributes = getattr(copied, "__dict__", {})
                self._before.append((f"an attribute of its {type(original).__name__}", attributes, attributes.copy()))
        for names in self._globals.values():
            names.setdefault("__builtins__", __builtins__)  # Python adds them when such a function is called
            self._before.append(("a global name", names, names.copy()))
        self._contents = [(cell, cell.cell_contents) for cell in self._cells.values() if _is_bound(cell)]

    def changed(self) -> str | None:
        """What the function has changed in the copies."""
        if any(not _is_bound(cell) or cell.cell_contents is not before for cell, before in self._contents):
            return "a nonlocal name"
        for name, copied, before in self._before:
            if len(copied) != len(before):
                return name
            keys = copied if isinstance(copied, dict) else range(len(copied))
            if isinstance(copied, dict) and copied.keys() != before.keys():
                return name
            if any(copied[key] is not before[key] for key in keys):
                return name
        return None

    def _go_up(self, changing: Any) -> bool:
        """Find everything that leads to something; whether all of it can be copied."""
        seen = {id(changing)}
        stack = [changing]
        reached = True
        while stack:
            thing = stack.pop()
            self._leads.add(id(thing))
            for holder in self._holders[id(thing)]:
                if holder is None:
                    continue
                if not _can_copy(holder, thing):
                    reached = False
                elif id(holder) not in seen:
                    seen.add(id(holder))
                    stack.append(holder)
        return reached

    def of(self, value: Any) -> Any:
        """The copy, or the thing itself where it leads to no array."""
        if id(value) not in self._leads:
            return value
        known = self._copies.get(id(value))
        if known is None:
            known = self._copy(value)
            self._copies[id(value)] = known
            self._originals[id(value)] = value
        return known

    def _copy(self, value: Any) -> Any:
        kind = type(value)
        if kind is FunctionType:
            return self._copy_function(value)
        if kind is MethodType:
            return MethodType(self.of(value.__func__), self.of(value.__self__))
        if kind is partial:
            keywords = {name: self.of(each) for name, each in value.keywords.items()}
            return partial(self.of(value.func), *map(self.of, value.args), **keywords)
        if kind is dict:
            entries: dict[Any, Any] = {}
            self._copies[id(value)] = entries
            entries.update((key, self.of(each)) for key, each in value.items())
            return entries
        if kind is list:
            items: list[Any] = []
            self._copies[id(value)] = items
            items.extend(map(self.of, value))
            return items
        if isinstance(value, tuple):
            return tuple.__new__(kind, map(self.of, value))
        if isinstance(value, ModuleType):
            return self._copy_module(value)
        if _is_offloaded(value):
            return self.of(value.__wrapped__)
        return self._copy_object(value)

    def _copy_function(self, function: FunctionType) -> FunctionType:
        cells = tuple([self._cell(cell) for cell in function.__closure__ or ()])
        copied = FunctionType(function.__code__, self._names(function), function.__name__, None, cells)
        self._copies[id(function)] = copied
        copied.__defaults__ = None if function.__defaults__ is None else tuple(map(self.of, function.__defaults__))
        if function.__kwdefaults__:
            copied.__kwdefaults__ = {name: self.of(each) for name, each in function.__kwdefaults__.items()}
        copied.__dict__.update(function.__dict__)
        copied.__qualname__ = function.__qualname__
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            if cell is not original and not _is_bound(cell):
                cell.cell_contents = self.of(original.cell_contents)
        names = copied.__globals__
        for name, each in list(function.__globals__.items()):
            if id(each) in self._leads and any(holder is function for holder in self._holders[id(each)]):
                names[name] = self.of(each)
        return copied

    def _cell(self, cell: CellType) -> CellType:
        """A cell of its own; it is filled later, as a function may be in its own closure."""
        if not _is_bound(cell):
            return cell
        return self._cells.setdefault(id(cell), CellType())

    def _names(self, function: FunctionType) -> dict[str, Any]:
        return self._globals.setdefault(id(function.__globals__), dict(function.__globals__))

    def _copy_module(self, module: ModuleType) -> ModuleType:
        copied = self._copies[id(module)] = ModuleType(module.__name__)
        vars(copied).update(vars(module))
        for name, each in list(vars(module).items()):
            if id(each) in self._leads:
                setattr(copied, name, self.of(each))
        return copied

    def _copy_object(self, thing: Any) -> Any:
        kind = type(thing)
        copied = self._copies[id(thing)] = object.__new__(kind)
        attributes = getattr(thing, "__dict__", None)
        if attributes is not None:
            vars(copied).update(attributes)
            for name, each in list(attributes.items()):
                if id(each) in self._leads:
                    vars(copied)[name] = self.of(each)
        for slot in slots_of(kind):
            if hasattr(thing, slot):
                object.__setattr__(copied, slot, self.of(getattr(thing, slot)))
        for name, member in _members(kind):
            if id(member) in self._leads and attributes is not None and name not in attributes:
                mine = self.of(member)
                vars(copied)[name] = MethodType(mine, copied) if isinstance(mine, FunctionType) else mine
        return copied


def _can_change(thing: Any) -> bool:
    """Whether a function may write something down in it, and a copy keeps that from the user."""
    kind = type(thing)
    if kind is dict or kind is list:
        return True
    if kind is FunctionType:
        return is_users(thing.__module__) and _sets_names(thing.__code__)
    if _is_offloaded(thing):
        return True
    if kind in _UNCHANGING or isinstance(thing, Enum) or not is_users(kind.__module__) or not _is_plain(thing):
        return False
    # An object without anything in it is a sign, and is told from others by being itself.
    return bool(getattr(thing, "__dict__", None)) or any(hasattr(thing, slot) for slot in slots_of(kind))


_UNCHANGING = (FunctionType, MethodType, partial)

_SETTING = [bytes([opcode.opmap[name]]) for name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")]


def _sets_names(code: CodeType) -> bool:
    """Whether code, or a function made in it, may set global or nonlocal names."""
    operations = code.co_code[::2]
    return any(each in operations for each in _SETTING) or any(
        _sets_names(each) for each in code.co_consts if isinstance(each, CodeType)
    )


def _is_plain(thing: Any) -> bool:
    """Whether it is an object of a class that is written in Python, and copying it has no consequences."""
    kind = type(thing)
    if isinstance(thing, type | ModuleType | tuple | Enum) or hasattr(kind, "__del__"):
        return False  # the end of a copy must not close what is the user's
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True


def _is_offloaded(thing: Any) -> bool:
    """Whether it is a function of the user's in anygpu's hands: within a recording it is that function alone."""
    return type(thing).__module__.startswith("anygpu.") and "__wrapped__" in getattr(thing, "__dict__", ())


def _can_copy(holder: Any, part: Any) -> bool:
    """Whether there can be a copy of the holder that has another part in this one's place."""
    kind = type(holder)
    if kind in (*_UNCHANGING, dict, list) or isinstance(holder, ModuleType | tuple) or _is_offloaded(holder):
        return True
    if not _is_plain(holder):
        return False
    attributes = getattr(holder, "__dict__", {})
    if any(each is part for each in attributes.values()):
        return True
    if any(getattr(holder, slot, None) is part for slot in slots_of(kind)):
        return True
    # Python looks for special methods in the class alone, so one of an object is not asked.
    return hasattr(holder, "__dict__") and any(
        member is part and not name.startswith("__") for name, member in _members(kind)
    )


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for cls in kind.__mro__:
        if cls is not object:
            yield from vars(cls).items()


def _is_bound(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it is asked whether there is one
    except ValueError:
        return False
    return True
