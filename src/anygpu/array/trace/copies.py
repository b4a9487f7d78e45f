"""A call among copies of everything that it can reach, with arrays and numbers that have no values yet.

What a function does with an array from outside must be recorded, as what it does with its arguments is: otherwise
`x * W.mean()` would keep the mean of today. And no one else may see what it writes while it is traced. The user's
objects are not touched, because other threads may be using them at this moment. So the function runs as a copy: its
globals are only the names that its code has, its builtins are only those that compute, and whatever can change, or
leads to something that can, is a copy too. What is of an unknown kind is an `Unfollowed` there: the function may hold
it, and stops being traced as soon as it does anything with it.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.expression import active_tracer
from anygpu.array.trace.captures import ARGUMENTS, KEYWORDS, CaptureSearch
from anygpu.array.trace.code import (
    APPROVED_BUILTINS,
    APPROVED_MODULES,
    global_names,
    is_approved_function,
    is_numpys,
    is_refused,
    names_after_super,
)
from anygpu.array.trace.kinds import slots_of
from anygpu.array.trace.numpy_names import REPLACED, NumpyNames

#: Ends the trace with a reason; it raises.
Refuse = Callable[[str], NoReturn]


class Copies:
    """One set of copies, for one traced call. `inputs` gives what stands for the array or number at a position.

    A copy is made when it is first asked for, and is then the only one for its capture, so that what is one object for
    the user is one among the copies. `refuse` ends the trace with a reason.
    """

    def __init__(self, search: CaptureSearch, inputs: Callable[[int], Any], refuse: Refuse) -> None:
        self._search = search
        self._inputs = inputs
        self._refuse = refuse
        self._made: dict[int, Any] = {}
        self._globals: dict[int, dict[str, Any]] = {}
        #: The globals of the user's functions, and the warnings that were shown for them.
        self._registries: list[tuple[dict[str, Any], dict[Any, Any]]] = []
        self._cells: dict[int, types.CellType] = {}
        self._made_classes: list[type[Any]] = []
        self._builtins = _Builtins(search, refuse, self._taken).names
        #: For each position, the first one it leads to that the copies do not share; -1 if there is none.
        self._open_parts: dict[int, int] = {}
        #: Changes in a copy never reach the user, so they must be noticed: its name, the copy, and its old content.
        self._before: list[tuple[str, Any, Any]] = []
        self._cells_before: list[tuple[types.CellType, Any]] = []

    def call(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Copy the function, its arguments and its keywords, and remember what every copy is now.

        What is different when `changed` is asked later was changed by the function.
        """
        function, arguments, keywords = self.of(self._search.function), self.of(ARGUMENTS), self.of(KEYWORDS)
        for position, made in list(self._made.items()):
            capture = self._search.captures[position]
            if capture.kind == "container":
                if position != KEYWORDS and not isinstance(made, tuple):
                    self._before.append((capture.name, made, made.copy()))
            elif capture.kind in ("object", "function", "module") and made is not self._search.values[position]:
                if hasattr(made, "__dict__"):
                    self._before.append((capture.name, vars(made), vars(made).copy()))
                slots = {name: getattr(made, name, _UNSET) for name in slots_of(type(made))}
                if slots:
                    self._before.append((capture.name, _Slots(made, slots), slots))
        for names in self._globals.values():
            self._before.append(("a global name", names, names.copy()))
        for made in self._made_classes:
            self._before.append((f"the class {made.__name__}", vars(made), dict(vars(made))))
        self._cells_before = [(cell, _content(cell)) for cell in self._cells.values()]
        return function, arguments, keywords

    def changed(self) -> str | None:
        """Return the name of the first object that the function has changed in the copies; `None` if there is none.

        Objects are compared by the identity of their elements and attributes: writes into abstract arrays are seen
        elsewhere.
        """
        if any(_content(cell) is not before for cell, before in self._cells_before):
            return "a nonlocal name"
        for name, copied, before in self._before:
            if isinstance(copied, _Slots):
                copied = copied.now()
            if len(copied) != len(before):
                return name
            if not isinstance(copied, list):
                if list(copied) != list(before) or any(copied[key] is not before[key] for key in before):
                    return name
            elif any(one is not other for one, other in zip(copied, before, strict=True)):
                return name
        return None

    def forget(self) -> None:
        """Drop the references to everything that was copied: functions and their globals form cycles, which would keep
        the user's objects until the garbage collector runs.
        """
        for users, registry in self._registries:
            if registry:
                users.setdefault("__warningregistry__", registry)
        self._registries.clear()
        for names in self._globals.values():
            names.clear()
        for cell in self._cells.values():
            del cell.cell_contents
        self._made.clear()
        self._before.clear()
        self._cells_before.clear()

    # -- copies

    def of(self, position: int) -> Any:
        """Return the object that stands for a capture among the copies, made when it is first asked for."""
        if position in self._made:
            return self._made[position]
        made = self._copy(position)
        self._made[position] = made
        return made

    def _copy(self, position: int) -> Any:
        """Return the copy of a captured thing, in which arrays and numbers are replaced by inputs."""
        capture, value = self._search.captures[position], self._search.values[position]
        match capture.kind:
            case "array" | "number":
                return self._inputs(position)
            case "value":
                return value
            case "identity":
                return self._taken(value) if self.is_closed(position) else self._unfollowed(position)
            case "same":
                return self.of(capture.expected)
            case "function":
                return self._copy_function(position, value)
            case "method":
                bound, function = self._child(position, "self"), self._child(position, "func")
                if type(function) in (types.FunctionType, Unfollowed):
                    return types.MethodType(function, bound)
                return function.__get__(bound, type(bound))
            case "partial":
                made, given = self._child(position, "args"), self._child(position, "keywords")
                return functools.partial(self._child(position, "partial func"), *made, **given)
            case "container":
                return self._copy_container(position, value)
            case "object":
                return self._copy_object(position, value)
            case "class":
                return self._class(position)
            case "module":
                return self._copy_module(position, value)
            case "wrapper":
                return self._child(position, "wrapped")
            case "member":
                return value
            case "unknown":
                return Unfollowed(self._search.unfollowed.get(position) or _reason(capture.name, value), self._refuse)

    def _taken(self, value: Any) -> Any:
        """Return what traced code gets for an approved object: a watched module, or a replacement of a function."""
        if value is np:
            return NumpyNames(self._numpy_name)
        if isinstance(value, types.ModuleType):
            return _Names(value, self._taken_name)
        return REPLACED.get(id(value), value)

    def _numpy_name(self, name: str, value: Any) -> Any:
        """Return the object of NumPy with this name, as traced code gets it."""
        return self._taken_name(f"np.{name}", value)

    def _taken_name(self, name: str, value: Any) -> Any:
        """Return an attribute of an approved module; an `Unfollowed` if it is not one that only computes."""
        if isinstance(value, types.ModuleType):
            if value.__name__ in APPROVED_MODULES:
                return self._taken(value)
        elif is_approved_function(value) or not callable(value) or (isinstance(value, type) and not is_refused(value)):
            return REPLACED.get(id(value), value)
        return Unfollowed(f"it uses {name}, which anygpu cannot follow", self._refuse)

    def _unfollowed(self, position: int) -> Unfollowed:
        """Return a placeholder for an object that is never copied, although it leads to something that would have to
        be.
        """
        self.is_closed(position)
        open_part = self._search.captures[self._open_parts[position]].name
        name = self._search.captures[position].name
        return Unfollowed(f"it uses {name}, which depends on {open_part}, and anygpu cannot follow that", self._refuse)

    def _child(self, position: int, step: str) -> Any:
        """Return the copy of the only part that is reached by this step."""
        return next(self.of(child) for name, _, child in self._search.children[position] if name == step)

    def _children(self, position: int, step: str) -> Iterator[tuple[Any, int]]:
        """Return the keys and positions of all parts that are reached by this step."""
        return ((key, child) for name, key, child in self._search.children[position] if name == step)

    def _copy_function(self, position: int, function: types.FunctionType) -> types.FunctionType:
        """Return a function with the same code, and copies of all that it reaches.

        It is registered before its cells and globals are filled, as these may lead back to it. Functions that shared
        globals share a copy of them, which has only the names in their code.
        """
        if is_approved_function(function):
            return function
        closure = function.__closure__ or ()
        cells = tuple([self._cells.setdefault(id(cell), types.CellType()) for cell in closure])
        names = self._globals.get(id(function.__globals__))
        if names is None:
            users = function.__globals__
            names = {"__name__": users.get("__name__", ""), "__builtins__": self._builtins}
            # Filters that show a warning once would not show it again after the trace.
            names["__warningregistry__"] = registry = users.get("__warningregistry__", {})
            self._registries.append((users, registry))
            self._globals[id(users)] = names
        copied = types.FunctionType(function.__code__, names, function.__name__, None, cells)
        self._made[position] = copied
        copied.__qualname__ = function.__qualname__
        copied.__module__, copied.__doc__ = function.__module__, function.__doc__
        for number, child in self._children(position, "cell"):
            # By this cell super() knows where to go on from: the class in which the method stands.
            is_class = function.__code__.co_freevars[number] == "__class__"
            cells[number].cell_contents = self._search.values[child] if is_class else self.of(child)
        for name, child in self._children(position, "global"):
            if name not in names:
                names[name] = self.of(child)
        if function.__defaults__:
            copied.__defaults__ = tuple([self.of(child) for _, child in self._children(position, "default")])
        if function.__kwdefaults__:
            copied.__kwdefaults__ = {
                name: self.of(child) for name, child in self._children(position, "keyword default")
            }
        for name, child in self._children(position, "attribute"):
            copied.__dict__[name] = self.of(child)
        return copied

    def _copy_container(self, position: int, value: Any) -> Any:
        """Return a container of the same type, with copies of its elements."""
        parts = list(self._children(position, "item"))
        kind = type(value)
        if isinstance(value, tuple):
            made = kind if kind is tuple else self._child(position, "type")
            return made if type(made) is Unfollowed else tuple.__new__(made, [self.of(child) for _, child in parts])
        if kind is list:
            items: list[Any] = []
            self._made[position] = items
            items.extend(self.of(child) for _, child in parts)
            return items
        entries: dict[Any, Any] = OrderedDict() if kind is OrderedDict else {}
        if kind is defaultdict:
            entries = defaultdict(self._child(position, "factory"))
        self._made[position] = entries
        for key, child in parts:
            entries[key] = self.of(child)
        return entries

    def _copy_module(self, position: int, module: types.ModuleType) -> types.ModuleType:
        """Return a module with copies of the attributes that are used."""
        copied = types.ModuleType(module.__name__)
        self._made[position] = copied
        for name, child in self._children(position, "attribute"):
            vars(copied)[name] = self.of(child)
        return copied

    def _copy_object(self, position: int, thing: Any) -> Any:
        """Return a copy of an instance, of the same class or its stand-in, with copies of its attributes.

        It is made without `__init__`. Attributes that no code names are `Unfollowed`.
        """
        kind = type(thing)
        made = self._child(position, "type")
        if type(made) is Unfollowed:
            return made
        copied = kind() if kind is types.SimpleNamespace else object.__new__(made)
        self._made[position] = copied
        if hasattr(thing, "__dict__"):
            for name in list(vars(thing)):
                # Attributes that no code names are only carried along.
                vars(copied)[name] = Unfollowed(f"it uses {name}, which its code does not name", self._refuse)
            for name, child in self._children(position, "attribute"):
                vars(copied)[name] = self.of(child)
        for name, child in self._children(position, "slot"):
            _set_slot(kind, copied, name, self.of(child))
        return copied

    def _class(self, position: int) -> Any:
        """Return the class itself, or a subclass with copies of the methods that lead to something that can change.

        There is no subclass of an error, of a class that runs code when it is subclassed, or where a method reaches by
        `super()` what would need a copy: it would call the original.
        """
        kind = self._search.values[position]
        members = self._search.members
        found: dict[str, int] = {}
        inherited: dict[str, list[int]] = {}
        for cls in reversed(kind.__mro__[:-1]):
            for (owner, name), member in members.items():
                if owner == id(cls):
                    if name in found and self._search.captures[found[name]].kind in ("function", "member"):
                        inherited.setdefault(name, []).append(found[name])
                    found[name] = member
        open_members = {name: member for name, member in found.items() if not self.is_closed(member)}
        open_bases = {name for name, each in inherited.items() if not all(map(self.is_closed, each))}
        if open_bases and any(
            after.any_name or after.names & open_bases for after in map(names_after_super, self._codes(found.values()))
        ):
            why = f"it uses {kind.__name__}, whose methods call those of its base classes"
            return Unfollowed(f"{why}, which anygpu cannot follow", self._refuse)
        if not (open_members or self._search.sets_attributes):
            return kind
        if issubclass(kind, BaseException):
            return self._unfollowed(position) if open_members else kind
        if any("__init_subclass__" in vars(cls) and not is_approved_function(cls) for cls in kind.__mro__[:-1]):
            why = f"it uses {kind.__name__}, which runs __init_subclass__"
            return Unfollowed(f"{why}, and anygpu cannot follow that", self._refuse)
        made = _subclass(kind)
        # A member may lead back to the class.
        self._made[position] = made
        for name, member in open_members.items():
            setattr(made, name, self._member(member))
        self._made_classes.append(made)
        return made

    def _codes(self, positions: Any) -> Iterator[types.CodeType]:
        """Return the code of all functions at these positions."""
        for position in positions:
            value = self._search.values[position]
            value = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(value, types.FunctionType):
                yield value.__code__

    def _member(self, position: int) -> Any:
        """Return the copy of a member of a class: a property, static method or class method."""
        value = self._search.values[position]
        if self._search.captures[position].kind != "member":
            return self.of(position)
        if isinstance(value, property):
            setters = [self.of(child) for _, child in self._children(position, "fset")]
            return property(self._child(position, "fget"), *setters)
        if isinstance(value, functools.cached_property):
            made = functools.cached_property(self._child(position, "func attribute"))
            made.attrname = value.attrname
            return made
        return type(value)(self._child(position, "func"))

    def is_closed(self, position: int) -> bool:
        """Return whether the copies share an object with the original: it leads to no input, and to nothing that can
        change.
        """
        if position not in self._open_parts:
            seen: set[int] = set()
            left = [position]
            while left and not self._is_open(left[-1]):
                each = left.pop()
                if each not in seen:
                    seen.add(each)
                    left += self._leads_to(each)
            self._open_parts[position] = left[-1] if left else -1
        return self._open_parts[position] < 0

    def _is_open(self, position: int) -> bool:
        """Return whether a copy of the object could behave differently from the object."""
        kind, value = self._search.captures[position].kind, self._search.values[position]
        if kind == "function":
            names = global_names(value.__code__).difference(value.__globals__)
            return bool(names & _WATCHED) or not names <= APPROVED_BUILTINS
        if kind == "container":
            return type(value) is not tuple
        return kind not in ("value", "identity", "same", "class", "member", "wrapper")

    def _leads_to(self, position: int) -> list[int]:
        """Return the positions of the captures that one leads to directly."""
        capture, value = self._search.captures[position], self._search.values[position]
        if capture.kind == "same":
            return [capture.expected]
        if capture.kind == "class":
            bases = {id(cls) for cls in value.__mro__}
            return [child for (owner, _), child in self._search.members.items() if owner in bases]
        children = self._search.children[position]
        if capture.kind == "function":
            # A method that calls super() knows the class in which it stands, and does nothing else with it.
            names = value.__code__.co_freevars
            children = [each for each in children if not (each[0] == "cell" and names[each[1]] == "__class__")]
        return [child for _, _, child in children]


#: Builtins that are replaced in copies: a function that uses one has to run as a copy.
_WATCHED = frozenset(("type", "getattr", "hasattr", "setattr", "delattr", "isinstance", "issubclass", "__import__"))

_UNSET = object()


def original(kind: type[Any]) -> type[Any]:
    """Return the user's own class of an object that was made, or copied, while a function is traced."""
    found: type[Any] = kind.__dict__.get("_anygpu_original", kind)
    return found


def _subclass(kind: type[Any]) -> type[Any]:
    """Return a subclass that stands in for a class while its instances are traced, with its name and metaclass."""
    names = {
        "__slots__": (),
        "__doc__": kind.__doc__,
        "_anygpu_original": kind,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    metaclass: Any = type(kind)
    made: type[Any] = metaclass(kind.__name__, (kind,), names)
    return made


class _Slots:
    """The attributes of an object that has no dictionary."""

    def __init__(self, thing: Any, names: dict[str, Any]) -> None:
        self._thing, self._names = thing, names

    def now(self) -> dict[str, Any]:
        """Return the values of all slots."""
        return {name: getattr(self._thing, name, _UNSET) for name in self._names}


def _set_slot(kind: type[Any], thing: Any, name: str, value: Any) -> None:
    """Set a slot of an object, past the class's own `__setattr__`"""
    for cls in kind.__mro__:
        member = vars(cls).get(name)
        if isinstance(member, types.MemberDescriptorType):
            member.__set__(thing, value)
            return


def _content(cell: types.CellType) -> Any:
    """Return the content of a cell, or `_UNSET`"""
    try:
        return cell.cell_contents
    except ValueError:
        return _UNSET


def _reason(name: str, value: Any) -> str:
    """Return why a function that uses this value cannot be traced."""
    kind = type(value).__name__
    if name.startswith("its argument"):
        return f"{name} is a {kind} of {value.dtype}" if isinstance(value, np.ndarray) else f"{name} is a {kind}"
    return f"it uses {name}, a {kind}, which anygpu cannot follow"


class _Names(types.ModuleType):
    """A module that is known: its attributes are looked up when they are used, and none can be set."""

    def __init__(self, module: types.ModuleType, taken: Callable[[str, Any], Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _taken=taken)

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_taken"](f"{self.__name__}.{name}", getattr(self.__dict__["_module"], name))

    def __setattr__(self, name: str, value: Any) -> None:
        tracer = active_tracer.get()
        if tracer is not None:
            tracer.stop(f"it sets {self.__name__}.{name}")


class _Builtins:
    """Python's builtins as a function that is being traced has them: `names` is its `__builtins__`.

    Those that compute are Python's own. Those that look at types and attributes hide the copies, and all others refuse.
    """

    def __init__(self, search: CaptureSearch, refuse: Refuse, taken: Callable[[Any], Any]) -> None:
        self._search = search
        self._refuse = refuse
        #: The stand-ins that traced code gets for modules.
        self._taken = taken
        names: dict[str, Any] = {name: each for name, each in vars(builtins).items() if name in APPROVED_BUILTINS}
        for name in vars(builtins):
            if name not in names and callable(getattr(builtins, name)):
                names[name] = Unfollowed(f"it calls {name}()", refuse)
        names.update(
            type=_type_for(refuse),
            isinstance=lambda value, kinds: isinstance(value, _originals(kinds)),
            issubclass=lambda kind, kinds: issubclass(_originals(kind), _originals(kinds)),
            getattr=self._by_name(getattr),
            hasattr=self._by_name(_has),
            setattr=self._by_name(setattr),
            delattr=self._by_name(delattr),
            __import__=self._import,
        )
        self.names = names

    def _by_name(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a version of `getattr`, or of a function like it, that refuses computed names."""

        def called(thing: Any, name: str, *more: Any) -> Any:
            is_known = self._search.any_name or name in self._search.names
            if not is_known and hasattr(thing, "__dict__"):
                self._refuse("it accesses attributes by computed names")
            return real(thing, name, *more)

        return called

    def _import(self, name: str, around: Any = None, here: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import an approved module; stop tracing for others."""
        # NumPy imports modules of its own now and then, and does so with its caller's builtins.
        if level or not (name in APPROVED_MODULES or is_numpys(name)):
            self._refuse(f"it imports {name}")
        module = importlib.import_module(name if fromlist else name.partition(".")[0])
        if type(module) is not types.ModuleType:
            self._refuse(f"it imports {name}, in whose place there is a {type(module).__name__}")
        return self._taken(module)


def _has(thing: Any, name: str) -> bool:
    """Return what `hasattr` returns for NumPy's arrays, for a traced array too; the trace goes on."""
    return hasattr(thing._imitated if isinstance(thing, Array) else thing, name)


def _originals(kinds: Any) -> Any:
    """Return the original classes of those that traced code passes to `isinstance`."""
    if isinstance(kinds, tuple):
        return tuple(map(_originals, kinds))
    if isinstance(kinds, _TypeOfRecording):
        return type
    return original(kinds) if isinstance(kinds, type) else kinds


class _TypeOfRecording(type):
    """In place of the builtin `type`: it hides that an array is abstract."""

    def __call__(cls, *given: Any, **options: Any) -> Any:
        """Return the type of a value; refused for arrays, whose type is not NumPy's while they are traced."""
        if len(given) == 1:
            kind = type(given[0])
            if kind.__module__.startswith("anygpu."):
                cls._refuse("it calls type() on an array; isinstance() can be traced")  # type: ignore[attr-defined]
            return kind
        return type(*given, **options)


def _type_for(refuse: Refuse) -> Any:
    """Return the class that stands in for `type` in traced code; `refuse` ends the trace."""
    return _TypeOfRecording("type", (), {"_refuse": staticmethod(refuse)})


def _refusing(name: str) -> Callable[..., Any]:
    """Return a method that stops tracing."""

    def refuse(self: Any, *given: Any, **options: Any) -> Any:
        object.__getattribute__(self, "_stop")()

    refuse.__name__ = name
    return refuse


class Unfollowed:
    """A placeholder for something that cannot be followed. It may be held and passed on; any other use ends the trace.

    Every special method of it refuses, attribute access included, with the reason it was made with.
    """

    __slots__ = ("_reason", "_refuse_with")

    def __init__(self, reason: str, refuse: Refuse) -> None:
        object.__setattr__(self, "_reason", reason)
        object.__setattr__(self, "_refuse_with", refuse)

    def _stop(self) -> NoReturn:
        """Stop tracing, with the reason."""
        refuse: Refuse = object.__getattribute__(self, "_refuse_with")
        refuse(object.__getattribute__(self, "_reason"))


_OPERATORS = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift"
_SPECIAL = """
    getattribute setattr delattr call bool len iter next contains getitem setitem delitem enter exit aenter aexit await
    hash eq ne lt le gt ge repr str format int float complex index round trunc floor ceil neg pos abs invert array
    array_ufunc array_function get reduce_ex copy deepcopy instancecheck subclasscheck reversed bytes fspath dir
"""
for _name in (*_SPECIAL.split(), *(side + name for side in ("", "r", "i") for name in _OPERATORS.split())):
    setattr(Unfollowed, f"__{_name}__", _refusing(_name))
del _name
