"""The captures of a function, found from its code: a list of steps that reads all that it depends on anew at every
call.

A recorded program is true for as long as everything that it depends on, and that is not an input of it, is the same. So
everything that the code can reach by a name is found once: arguments, globals, closures, defaults, attributes,
elements, and the same again for the functions of the user's own that it calls. Each is a `Capture`: the capture that it
is found in, the step from there, and what has to be true of it. At every call the steps are taken again, from the
function and the arguments of *that* call. No object of the user's is kept.

Only known kinds of things are followed, and the kind "unknown" stands for all others: a function that does anything
with one of them cannot be traced.
"""

from __future__ import annotations

import abc
import enum
import functools
import importlib
import operator
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from anygpu.array.trace.code import (
    APPROVED_MODULES,
    asks_for_classes,
    asks_for_names,
    attribute_names,
    global_names,
    imported_names,
    is_approved_function,
    reaches_inside,
    sets_attributes,
    uses_locale,
    writes_text,
)
from anygpu.array.trace.guards import (
    PLAIN,
    STEPS,
    always,
    are_absent,
    attribute_keys,
    bits,
    container_facts,
    defaults_facts,
    is_empty,
    is_in_order,
    is_of,
    is_of_ref,
    is_ref,
    lacks,
    lacks_all,
    print_options,
    same_array,
    same_class,
    same_code,
    same_container,
    same_defaults,
    same_module,
    same_object,
    same_options,
    same_partial,
    same_registrations,
    same_value,
    weak,
)
from anygpu.array.trace.kinds import (
    CONTAINERS,
    PLAIN_METACLASSES,
    has_plain_keys,
    hides_its_class,
    hooks_of,
    is_array,
    is_followable,
    is_immutable,
    is_named_tuple,
    is_never_copied,
    is_offloaded,
    is_ours,
    is_plain_value,
    is_special,
    slots_of,
)
from anygpu.program.dtypes import DTYPES

#: The most captures that are checked before every call.
MAX_CAPTURES = 4000
#: The greatest depth of the search.
MAX_DEPTH = 40

CaptureKind = Literal[
    "array",  # an input
    "number",  # an input without axes
    "value",  # compared by type and bits
    "identity",  # the same object, which never changes, or only in parts that are captures too
    "same",  # the same object as an earlier capture
    "function",
    "method",
    "partial",
    "container",
    "object",
    "class",
    "module",
    "member",  # a property, static method or class method
    "wrapper",  # an offloaded function: the function itself is used
    "unknown",
]

#: The roots of a call: its arguments, its keywords, the function.
ARGUMENTS, KEYWORDS, FUNCTION = range(3)


class Capture(NamedTuple):
    """One thing that a function depends on: how it is read at a call, and the guard that its value has to pass.

    Tuples of captures are in an order in which a parent comes before its children, so one pass reads all of them.
    """

    kind: CaptureKind
    #: The position of the capture that it is found in, and the step from there.
    parent: int
    read: Callable[[Any, Any], Any]
    key: Any
    #: The guard: `test(value, expected)` must be true.
    test: Callable[[Any, Any], bool]
    expected: Any
    #: The user's name for it.
    name: str


#: A part of a thing: the step to it and the step's key, the part, and what the user calls it.
_Part = tuple[str, Any, Any, str]

#: Callables that are made of other things: what each is, and the steps to its parts.
_PARTS: dict[type, tuple[CaptureKind, tuple[str, ...]]] = {
    types.MethodType: ("method", ("self", "func")),
    functools.partial: ("partial", ("partial func", "args", "keywords")),
    property: ("member", ("fget", "fset")),
    staticmethod: ("member", ("func",)),
    classmethod: ("member", ("func",)),
    functools.cached_property: ("member", ("func attribute",)),
}
#: The user's name for such a part, after the name of the whole.
_PART_NAMES = {"self": "self", "args": "{}.args", "keywords": "{}.keywords"}


def _parts_of_callable(value: Any, name: str) -> Iterator[_Part]:
    """Yield the parts of a method, a partial function or a member of a class; a property may have no setter."""
    for step in _PARTS[type(value)][1]:
        part = STEPS[step](value, None)
        if part is not None or step != "fset":
            yield step, None, part, _PART_NAMES.get(step, "{}").format(name)


def _parts_of_container(value: Any, name: str) -> list[_Part]:
    """Return the elements of a container, and the factory of a `defaultdict`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[_Part] = [("item", key, part, f"{name}[{key!r}]") for key, part in items]
    if isinstance(value, defaultdict):
        found.insert(0, ("factory", None, value.default_factory, f"{name}.default_factory"))
    return found


def _is_number(value: Any) -> bool:
    """Return whether a scalar becomes an input of the program: a Python float or int, or a NumPy scalar of a dtype that
    programs have.
    """
    if type(value) in PLAIN:
        return type(value) in (float, int)
    is_real = isinstance(value, np.floating | np.integer) and not isinstance(value, np.timedelta64)
    return is_real and value.dtype.name in DTYPES


class TooMuch(Exception):
    """Raised for a function with more than `MAX_CAPTURES` dependencies, whose check would take each call too long."""


class CaptureSearch:
    """One walk over everything that a call can reach, done in `__init__`; raises `TooMuch`.

    `captures`, `values` and `children` have one entry for each thing, by position. `values` hold the user's objects,
    and are dropped by `forget` as soon as the function has been traced. None of the user's code runs: attributes are
    read from `__dict__` and slots, and classes with tricks of their own are not followed.
    """

    def __init__(self, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.captures: list[Capture] = []
        self.values: list[Any] = []
        #: For each capture its children: the step's name, the step's key and the child's position.
        self.children: list[list[tuple[str, Any, int]]] = []
        #: Every attribute that is named in the code that was reached.
        self.names: set[str] = set()
        #: Whether attributes are reached by names that are made while the code runs.
        self.any_name = False
        #: Whether some code sets attributes: of classes too, for all that is known.
        self.sets_attributes = False
        #: Names that some code asks for and can do without.
        self._asked: set[str] = set()
        self._writes_text = self._asks_class = False
        #: Whether there is a class method, which reaches the class of an object without naming it.
        self._has_class_methods = False
        #: Whether parts of an object that is never copied are being added: numbers are constants then.
        self._is_kept = False
        #: Why functions are unknown.
        self.unfollowed: dict[int, str] = {}
        #: Positions of class members, by the class and the name.
        self.members: dict[tuple[int, str], int] = {}
        self.mro: dict[int, list[int]] = {}
        self._known: dict[int, int] = {}
        self._slots: dict[tuple[int, Any], int] = {}
        #: Things whose attributes are looked at once their names are known.
        self._named: list[tuple[int, int]] = []
        self._looked: set[tuple[int, str]] = set()
        #: Classes that no code can name, so that no code makes objects of them.
        self._only_types: set[int] = set()
        for position, root in ((ARGUMENTS, arguments), (KEYWORDS, keywords)):
            facts = container_facts(root)
            self._record("container", -1, "root", position, root, same_container, facts, "the number of its arguments")
        for number, each in enumerate(arguments):
            self._add(ARGUMENTS, "item", number, each, f"its argument number {number + 1}", 1)
        for name, each in keywords.items():
            self._add(KEYWORDS, "item", name, each, f"its argument {name}", 1)
        #: The position of the function itself.
        self.function = self._add(-1, "root", FUNCTION, function, _called(function), 0)
        self._look_at_attributes()
        self._look_at_settings()

    # -- results

    def is_argument(self, position: int) -> bool:
        """Return whether a capture was passed to the function, or is inside of something that was."""
        while self.captures[position].parent >= 0:
            position = self.captures[position].parent
        return position in (ARGUMENTS, KEYWORDS)

    def forget(self) -> None:
        """Drop the references to everything that was found."""
        self.values, self._known = [], {}

    # -- the walk

    def _look_at_attributes(self) -> None:
        """Follow the attributes that code names, until no more names, objects or functions are found.

        Following an attribute may find another function, whose code names more attributes of objects that were met
        before.
        """
        done = None
        while done != (done := (len(self.names), len(self._named), len(self._only_types), self._settings)):
            for position, depth in list(self._named):
                self._look_into(position, depth)

    @property
    def _settings(self) -> tuple[bool, ...]:
        """The facts about the code found so far that decide what else must be guarded."""
        return self.any_name, self._writes_text, self._has_class_methods

    def _look_at_settings(self) -> None:
        """Guard what code uses without naming it: missing attributes, registered classes, print options of NumPy."""
        for position, _ in self._named:
            thing, name = self.values[position], self.captures[position].name
            if self._asked and isinstance(thing, types.ModuleType | types.FunctionType):
                missing = frozenset((*self._asked, "__getattr__")).difference(vars(thing))
                self._record("value", position, "itself", None, thing, lacks_all, missing, f"attributes of {name}")
        if self._asks_class and any(issubclass(type(each), abc.ABCMeta) for each in self.values):
            token = abc.get_cache_token()
            self._record("value", self.function, "itself", None, None, same_registrations, token, "registered classes")
        if self._writes_text:
            reader, name = print_options(), "NumPy's options for printing"
            options = reader()
            self._record("value", self.function, "print options", reader, options, same_options, options, name)

    def _record(
        self,
        kind: CaptureKind,
        parent: int,
        step: str,
        key: Any,
        value: Any,
        test: Callable[[Any, Any], bool],
        expected: Any,
        name: str,
    ) -> int:
        """Add a capture and its value, and return its position. Raises `TooMuch` beyond `MAX_CAPTURES`."""
        if len(self.captures) >= MAX_CAPTURES:
            raise TooMuch
        position = len(self.captures)
        self.captures.append(Capture(kind, parent, STEPS[step], key, test, expected, name))
        self.values.append(value)
        self.children.append([])
        if parent >= 0:
            self.children[parent].append((step, key, position))
        return position

    def _add(self, parent: int, step: str, key: Any, value: Any, name: str, depth: int) -> int:
        """Add the capture of a found object with the guard for its kind, follow its parts, and return its position.

        An object that was met before becomes a capture of the kind "same", whose guard is that both are one object
        still.
        """

        def new(kind: CaptureKind, test: Callable[[Any, Any], bool], expected: Any) -> int:
            return self._record(kind, parent, step, key, value, test, expected, name)

        kind = type(value)
        if hides_its_class(kind):
            return new("unknown", is_of_ref, weak(kind))
        if kind in PLAIN or (issubclass(kind, np.generic) and kind.__module__ == "numpy" and kind is not np.void):
            # A default is rarely another one, and as a value it leaves a method what it is.
            if not self._is_kept and step not in ("default", "keyword default") and _is_number(value):
                return new("number", is_of, kind)
            if kind is str and value.isidentifier():
                self.names.add(value)  # for `getattr`
            return new("value", same_value, (kind, bits(value)))
        if value is Ellipsis or value is NotImplemented:
            return new("identity", operator.is_, value)
        earlier = self._known.get(id(value))
        if earlier is not None:
            if step not in ("type", "mro"):
                self._only_types.discard(earlier)
            # The test needs all values that were read, so `Traced.read` makes it.
            return new("same", always, earlier)
        if depth > MAX_DEPTH:
            return new("unknown", is_of_ref, weak(kind))
        if is_approved_function(value) or is_immutable(value):
            self.any_name |= kind in (operator.attrgetter, operator.methodcaller)
            return new("identity", is_ref, weak(value))
        if is_plain_value(value) or (kind is frozenset and all(type(each) in PLAIN for each in value)):
            return new("value", same_value, (kind, bits(value)))
        position = self._add_followed(value, new, step, name, depth)
        self._known[id(value)] = position
        return position

    def _add_followed(self, value: Any, new: Callable[..., int], step: str, name: str, depth: int) -> int:
        """Add an array, or an object with parts, which are followed; return its position."""
        kind = type(value)
        if is_array(value):
            position = new("array", same_array, (kind, value.shape, value.dtype, is_in_order(value)))
        elif kind is types.FunctionType:
            position = self._add_function(value, new, name, depth)
        elif kind is types.ModuleType:
            position = self._add_module(value, new, depth)
        elif (kind in CONTAINERS and has_plain_keys(value)) or is_named_tuple(kind):
            position = new("container", same_container, container_facts(value))
            self._add_parts(position, value, _parts_of_container(value, name), depth)
            if kind not in CONTAINERS:
                self._add(position, "type", None, kind, kind.__name__, depth + 1)
        elif kind is functools.partial and not vars(value):
            position = new("partial", same_partial, kind)
            self._add_parts(position, value, _parts_of_callable(value, name), depth)
        elif kind in _PARTS and kind is not functools.partial:
            self._has_class_methods |= kind is classmethod
            position = new(_PARTS[kind][0], is_of, kind)
            self._add_parts(position, value, _parts_of_callable(value, name), depth)
        elif is_offloaded(value):
            position = new("wrapper", is_of_ref, weak(kind))
            self._add(position, "wrapped", None, value.function, name, depth + 1)
        elif isinstance(value, type):
            position = self._add_class(value, new, depth)
            if step in ("type", "mro"):
                self._only_types.add(position)
        elif issubclass(kind, enum.Enum) or (issubclass(kind, BaseException) and kind.__flags__ & _HEAP_TYPE):
            # Such an object is never copied: its guard is its identity. Other errors have no weak references.
            position = new("identity", is_ref, weak(value))
            self._known[id(value)] = position
            self._add(position, "type", None, kind, kind.__name__, depth + 1)
            self._named.append((position, depth))
        elif is_followable(kind):
            position = new("object", same_object, (weak(kind), attribute_keys(value)))
            self._known[id(value)] = position
            self._add(position, "type", None, kind, kind.__name__, depth + 1)
            self._named.append((position, depth))
        else:
            position = new("unknown", is_of_ref, weak(kind))
        return position

    def _add_parts(self, position: int, value: Any, parts: Iterable[_Part], depth: int) -> None:
        """Follow the parts of an object, which is marked as known first: a part may contain it."""
        self._known[id(value)] = position
        for step, key, part, name in parts:
            self._add(position, step, key, part, name, depth + 1)

    def _add_function(self, function: types.FunctionType, new: Callable[..., int], name: str, depth: int) -> int:
        """Add a function and all that its code reaches by name, and return its position.

        These are cells, globals, builtins and defaults. Names that are neither global nor builtin are guarded too: they
        must stay undefined. A cell or a global that two functions share is one capture, so that both see one copy of
        it.
        """
        code = function.__code__
        position = new("function", same_code, code)
        self._known[id(function)] = position
        why = _why_unfollowed(code, name)
        if why is not None:
            self.unfollowed[position] = why
            self.captures[position] = self.captures[position]._replace(kind="unknown")
            return position
        self._add_cells(position, function, depth)
        if imported_names(code):
            self._add_builtin(position, function, "__import__")
            for each in sorted(imported_names(code)):
                self._add(position, "imported", each, importlib.import_module(each), each, depth + 1)
        self._add_globals(position, function, name, depth)
        for number, default in enumerate(function.__defaults__ or ()):
            self._add(position, "default", number, default, f"a default of {name}", depth + 1)
        self._record(
            "value", position, "defaults", None, None, same_defaults, defaults_facts(function), f"defaults of {name}"
        )
        for each, default in (function.__kwdefaults__ or {}).items():
            self._add(position, "keyword default", each, default, f"a default of {name}", depth + 1)
        found = attribute_names(code)
        self.names |= found.names | (global_names(code) & {"type"})
        self.any_name |= found.any_name
        self.sets_attributes |= sets_attributes(code)
        self._writes_text |= writes_text(code)
        self._asks_class |= asks_for_classes(code)
        if asks_for_names(code):
            self._asked |= found.names
        self._named.append((position, depth))
        return position

    def _add_cells(self, position: int, function: types.FunctionType, depth: int) -> None:
        """Add the variables of enclosing functions that a function uses."""
        for number, cell in enumerate(function.__closure__ or ()):
            if (id(cell), "cell") in self._slots:
                self.children[position].append(("cell", number, self._slots[id(cell), "cell"]))
                continue
            try:
                value = cell.cell_contents
            except ValueError:  # it is not bound yet
                label = function.__code__.co_freevars[number]
                self._record("value", position, "empty cell", number, cell, is_empty, None, label)
                continue
            self._slots[id(cell), "cell"] = len(self.captures)
            self._add(position, "cell", number, value, function.__code__.co_freevars[number], depth + 1)

    def _add_globals(self, position: int, function: types.FunctionType, name: str, depth: int) -> None:
        """Add the globals and builtins that a function names, and that the others are still undefined."""
        around = function.__globals__
        absent = []
        for each in sorted(global_names(function.__code__)):
            if each not in around:
                absent.append(each)
                self._add_builtin(position, function, each)
            elif (id(around), each) in self._slots:
                self.children[position].append(("global", each, self._slots[id(around), each]))
            else:
                self._slots[id(around), each] = len(self.captures)
                self._add(position, "global", each, around[each], each, depth + 1)
        if absent:
            self._record(
                "value", position, "globals", None, around, are_absent, tuple(absent), f"the globals of {name}"
            )

    def _add_builtin(self, position: int, function: types.FunctionType, name: str) -> None:
        """Add a builtin that a function names, once, with the guard that it is still the same object."""
        known: dict[str, Any] = cast(Any, function).__builtins__
        if name in known and (id(known), name) not in self._slots:
            self._slots[id(known), name] = len(self.captures)
            self._record("identity", position, "builtin", name, None, is_ref, weak(known[name]), name)

    def _add_module(self, module: types.ModuleType, new: Callable[..., int], depth: int) -> int:
        """Add a module, and return its position; approved and standard modules are not followed."""
        if module.__name__ in APPROVED_MODULES:
            position = new("identity", same_module, weak(module))
            self._named.append((position, depth))
            return position
        if getattr(module, "__spec__", None) is not None and module.__name__.partition(".")[0] in _STANDARD:
            return new("unknown", is_of_ref, weak(type(module)))
        if "__getattr__" in vars(module):
            return new("unknown", is_of_ref, weak(type(module)))
        position = new("module", same_module, weak(module))
        self._named.append((position, depth))
        return position

    def _add_class(self, kind: type[Any], new: Callable[..., int], depth: int) -> int:
        """Add a class with its bases, if its metaclass is a plain one, and return its position.

        An enumeration is never copied.
        """
        is_enumeration = type(kind) is enum.EnumMeta
        hooks = hooks_of(kind)
        if hooks or not (is_enumeration or type(kind) in PLAIN_METACLASSES):
            position = new("unknown", is_of_ref, weak(type(kind)))
            if hooks:
                self.unfollowed[position] = f"it uses {kind.__name__}, whose {hooks[0]} anygpu cannot follow"
            return position
        facts = weak(kind), [*vars(kind)], len(kind.__mro__)
        position = new("identity" if is_enumeration else "class", same_class, facts)
        self._known[id(kind)] = position
        self.mro[id(kind)] = [position]
        for number, base in enumerate(kind.__mro__[1:-1], 1):
            if base.__module__ != "builtins":
                self.mro[id(kind)].append(self._add(position, "mro", number, base, base.__name__, depth + 1))
        self._named.append((position, depth))
        return position

    def _look_into(self, position: int, depth: int) -> None:
        """Add the attributes of an object that code names, and the members of a class that run unnamed.

        Slots without a value are guarded: they must stay empty. Constructors are left out where no code can name the
        class.
        """
        thing, capture = self.values[position], self.captures[position]
        kind, is_class = capture.kind, isinstance(thing, type)
        if kind == "identity" and isinstance(thing, types.ModuleType):
            self._look_into_approved(position, thing, depth)
            return
        attributes = vars(thing) if hasattr(thing, "__dict__") else {}
        every = (self.any_name and kind != "module") or (kind == "object" and is_ours(type(thing)))
        by_type = bool(self.names & {"type", "__class__"}) or self.any_name or self._has_class_methods
        makes = by_type or position not in self._only_types
        for each, member in list(attributes.items()):
            if each in _MAKING and not makes:
                continue
            is_reached = self._is_named(each) or (every and not (is_class and each[:1] == each[-1:] == "_"))
            if is_reached or (is_class and self._runs_unnamed(each, member)):
                self._look_at(position, "attribute", each, member, depth)
        if is_class or kind == "function":
            for name in self.names & _OF_ITSELF:
                self._look_at(position, "slot", name, getattr(thing, name), depth)
        if isinstance(thing, enum.EnumMeta):
            # Code with access to the class may reach any member without naming it.
            for name, each in cast(Any, thing)._member_map_.items():
                if every or any(self._is_named(attribute) for attribute in vars(each)):
                    self._look_at(position, "member", name, each, depth)
        if isinstance(thing, BaseException):
            self._look_at(position, "slot", "args", thing.args, depth)
        if kind == "object":
            for slot in slots_of(type(thing)):
                if not (every or slot in self.names) or (position, slot) in self._looked:
                    continue
                if hasattr(thing, slot):
                    self._look_at(position, "slot", slot, getattr(thing, slot), depth)
                else:
                    self._looked.add((position, slot))
                    label = f"{self.captures[position].name}.{slot}"
                    self._record("value", position, "itself", None, thing, lacks, slot, label)

    def _is_named(self, attribute: str) -> bool:
        """Return whether some code names an attribute; `_value_` and `_name_` of enumerations also by their public
        names.
        """
        return attribute in self.names or _PUBLIC.get(attribute) in self.names

    def _runs_unnamed(self, name: str, member: Any) -> bool:
        """Return whether Python may run this member of a class where no code names it.

        It may run every special member that can be called, or that is a descriptor.
        """
        if name in _WRITTEN_BY and not self._writes_text:
            return False
        runs = (is_special(name) and name not in _BESIDES) or name == "_missing_"
        return runs and (callable(member) or hasattr(type(member), "__get__"))

    def _look_into_approved(self, position: int, module: types.ModuleType, depth: int) -> None:
        """Guard the attributes of an approved module that code names: other code may have replaced them."""
        for name in self.names & vars(module).keys():
            if (position, name) in self._looked:
                continue
            self._looked.add((position, name))
            value, label = vars(module)[name], f"{module.__name__}.{name}"
            if isinstance(value, types.ModuleType) and value.__name__ in APPROVED_MODULES:
                self._add(position, "attribute", name, value, label, depth + 1)
            elif type(value) in PLAIN:
                known = type(value), bits(value)
                self._record("value", position, "attribute", name, value, same_value, known, label)
            else:
                self._record("identity", position, "attribute", name, value, is_ref, weak(value), label)

    def _look_at(self, position: int, step: str, name: str, value: Any, depth: int) -> None:
        """Add one attribute of an object, once."""
        if (position, name) in self._looked:
            return
        self._looked.add((position, name))
        thing, label = self.values[position], f"{self.captures[position].name}.{name}"
        before, self._is_kept = self._is_kept, self._is_kept or is_never_copied(thing)
        found = self._add(position, step, name, value, label, depth + 1)
        self._is_kept = before
        if self.captures[position].kind == "class" and step == "attribute":
            self.members[id(thing), name] = found


#: Special members that do not run, or only for pickling and inspection.
_BESIDES = frozenset(
    """
    __dict__ __weakref__ __doc__ __module__ __slots__ __annotations__ __annotate__ __annotate_func__ __reduce__
    __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__ __sizeof__ __dir__
""".split()  # noqa: SIM905
)
#: Special members that run where an object is written as text.
_WRITTEN_BY = frozenset(("__repr__", "__str__", "__format__"))
#: Attributes of functions and classes that describe them, and that may be set.
_OF_ITSELF = frozenset(("__name__", "__qualname__", "__doc__"))
#: The public names of private attributes of enumeration members.
_PUBLIC = {"_value_": "value", "_name_": "name"}

#: Methods that run when an object is made.
_MAKING = frozenset(("__init__", "__new__", "__post_init__"))

#: Modules of the standard library.
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
#: The flag of a class that Python code has made.
_HEAP_TYPE = 1 << 9


def _why_unfollowed(code: types.CodeType, name: str) -> str | None:
    """Return why a function's code cannot be followed, as a clause with its name; `None` if it can."""
    inside = reaches_inside(code)
    if inside:
        return f"{name} uses {inside[0]}, through which it reaches objects that anygpu cannot follow"
    if uses_locale(code):
        return f"{name} writes a number as the locale does, which anygpu cannot follow"
    imports = sorted(imported_names(code) - APPROVED_MODULES)
    return f"{name} imports {imports[0]} while it runs, which anygpu cannot follow" if imports else None


def _called(function: Callable[..., Any]) -> str:
    """Return the name of a function or of a callable object's class."""
    return getattr(function, "__name__", type(function).__name__)
