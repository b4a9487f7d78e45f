"""The names that a function's code can reach, read from its bytecode; and lists of code that is known to be pure.

Whatever is on the lists here gives the same result for the same arguments, and does nothing besides. Everything that is
not on them is refused while a function is traced.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import operator
import re
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

#: Modules whose functions compute and do nothing else, and whose constants stay what they are.
APPROVED_MODULES = frozenset(
    (
        "__future__",
        "numpy",
        "numpy.fft",
        "numpy.linalg",
        "numpy.lib",
        "numpy.lib.stride_tricks",
        "numpy.polynomial",
        "numpy.typing",
        "anygpu",
        "anygpu.fft",
        "anygpu.image",
        "anygpu.linalg",
        "anygpu.nn",
        "abc",
        "bisect",
        "cmath",
        "collections",
        "collections.abc",
        "contextlib",
        "dataclasses",
        "enum",
        "fractions",
        "functools",
        "itertools",
        "math",
        "numbers",
        "operator",
        "types",
        "typing",
    )
)

APPROVED_BUILTINS = frozenset(
    """
    abs all any ascii bin bool bytearray bytes callable chr classmethod complex delattr dict divmod enumerate
    filter float format frozenset getattr hasattr hex int isinstance issubclass iter len list map max min next
    object oct ord pow property range repr reversed round set setattr slice sorted staticmethod str sum super
    tuple type zip Ellipsis NotImplemented True False None __build_class__ __import__ __name__ __debug__
""".split()  # noqa: SIM905
) | frozenset(
    name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)
)

#: NumPy's module with ufuncs that have no name in `numpy`.
_umath = np._core.umath  # type: ignore[attr-defined]

#: Functions of NumPy's that keep something, change something or touch files.
_NUMPY_REFUSED = frozenset(
    """
    DataSource apply_along_axis array2string array_repr array_str from_dlpack frombuffer fromfile fromfunction
    fromiter frompyfunc fromregex
    fromstring genfromtxt get_printoptions getbufsize geterr geterrcall info load loadtxt memmap printoptions save
    savetxt savez savez_compressed
    set_printoptions setbufsize seterr seterrcall show_config show_runtime test vectorize
""".split()  # noqa: SIM905
)
_REFUSED_FUNCTIONS = frozenset(id(getattr(np, name)) for name in _NUMPY_REFUSED if hasattr(np, name))

#: Functions of approved modules that keep their arguments, or change global state.
_KEEPING = frozenset(
    id(each)
    for each in (
        functools.lru_cache,
        functools.cache,
        functools.singledispatch,
        functools.total_ordering,
        contextlib.chdir,
        contextlib.redirect_stdout,
        contextlib.redirect_stderr,
    )
)

#: Attributes that lead from a function or object to what no name in its code leads to.
_INSIDE = frozenset(
    """
    __dict__ __globals__ __closure__ __code__ __builtins__ __subclasses__ __getattribute__ __reduce__
    __reduce_ex__ __mro__ __bases__ __defaults__ __kwdefaults__ f_locals f_globals f_back gi_frame cell_contents
    mro __weakref__ __module__ __init_subclass__ __setstate__ __getstate__ tb_frame __annotations__ __annotate__
    __type_params__
""".split()  # noqa: SIM905
)

#: With these, attributes are reached by names that are made while the code runs.
_BY_ANY_NAME = frozenset(("attrgetter", "methodcaller", "asdict", "astuple", "replace", "fields"))


_CONSTANTS = (bool, int, float, str, types.NoneType)


class Attributes(NamedTuple):
    """The attributes that code names, and whether it may reach others by computed names."""

    names: frozenset[str]
    any_name: bool


def is_refused(value: Any) -> bool:
    """Return whether an object is a function or class of an approved module that has side effects or keeps state."""
    return id(value) in _REFUSED_FUNCTIONS or id(value) in _KEEPING


def is_approved_function(value: Any) -> bool:
    """Return whether an object is a function of Python, NumPy or anygpu that only computes.

    Traced code calls it as it is, and its guard is its identity. Functions that keep something between calls
    (`functools.cache`), read files or change settings are not approved.
    """
    if is_refused(value):
        return False
    kind = type(value)
    if kind is np.ufunc:
        return getattr(np, value.__name__, None) is value or getattr(_umath, value.__name__, None) is value
    if kind is types.BuiltinFunctionType:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            module = value.__module__ or ""
            if module == "builtins":
                return value.__name__ in APPROVED_BUILTINS
            return module.lstrip("_") in APPROVED_MODULES or is_numpys(module)
        return isinstance(owner, type) and owner.__module__ == "builtins"
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        return bool(value.__objclass__.__module__ == "builtins")
    if isinstance(value, types.FunctionType) or kind.__name__ == "_ArrayFunctionDispatcher":
        module = value.__module__ or ""
        # A function made by another one may keep its arguments in cells, as those of `singledispatch` do.
        is_known = module in APPROVED_MODULES and all(map(_is_fixed, getattr(value, "__closure__", None) or ()))
        if module == "anygpu.api":  # most others say what has happened so far
            return value.__name__ in ("offload", "run")
        return is_known or is_numpys(module) or module.startswith("anygpu.")
    if isinstance(value, type):
        return value.__module__ in APPROVED_MODULES or is_numpys(value.__module__)
    if kind in (operator.attrgetter, operator.itemgetter, operator.methodcaller):
        made_by, given = value.__reduce__()
        return made_by is kind and all(type(each) in _CONSTANTS for each in given)
    return kind.__module__ == "typing" and callable(value)


def is_numpys(module: str) -> bool:
    """Return whether a module is part of NumPy, and keeps no state."""
    return (module == "numpy" or module.startswith("numpy.")) and not module.startswith(
        ("numpy.random", "numpy.testing")
    )


def _is_fixed(cell: types.CellType) -> bool:
    """Return whether a closure cell of a function in an approved module holds a constant or an approved function."""
    try:
        content = cell.cell_contents
    except ValueError:  # it is not bound yet
        return False
    return type(content) in _CONSTANTS or is_approved_function(content)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Return the code, and that of every function, lambda and class that is made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"))
_ATTRIBUTE = frozenset(
    ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM")
)


#: Instructions and names that write objects as text, by `__str__`, `__repr__` or `__format__`.
_WRITES = frozenset(("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"))
_WRITING = frozenset(("str", "repr", "ascii", "format", "format_map", "bytes", "__str__", "__repr__", "__format__"))
#: Formats that write a number as the current locale does; the locale may change at any time.
_OF_LOCALE = re.compile(r"(^|:)(.?[<>=^])?[-+ ]?#?[0-9{}]*(\.[0-9{}]+)?n(}|$)")


class _Facts(NamedTuple):
    """The names in a function's code, nested functions included."""

    global_names: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    #: Names by which it looks into functions, frames and classes.
    inside: frozenset[str]
    sets_attributes: bool
    #: Whether it may write objects as text, and numbers as the locale does.
    writes_text: bool
    uses_locale: bool
    #: Whether it continues where a name or an attribute is missing.
    asks: bool
    #: Whether it tests the class of an object.
    asks_class: bool


@functools.lru_cache(maxsize=4096)
def _facts(code: types.CodeType) -> _Facts:
    """Read the names in a function's code, that of nested functions included; once for each code object.

    Strings among the constants count as attributes, as `getattr` may be called with them.
    """
    names: set[str] = set()
    attributes: set[str] = set()
    imports: set[str] = set()
    constants: set[str] = set()
    operations: set[str] = set()
    sets_attributes = writes_text = uses_locale = False
    own_class = 0
    for each in codes_in(code):
        last: object = None
        for instruction in dis.get_instructions(each):
            operations.add(instruction.opname)
            if instruction.opname == "LOAD_CONST":
                last = instruction.argval
            elif instruction.opname == "LOAD_DEREF" and instruction.argval == "__class__":
                own_class += 1
            elif instruction.opname in _GLOBAL:
                names.add(instruction.argval)
            elif instruction.opname == "BINARY_OP":
                writes_text |= instruction.argrepr in ("%", "%=")
            elif instruction.opname in _WRITES:
                writes_text = True
                has_format = instruction.opname == "FORMAT_WITH_SPEC" or "format" in instruction.argrepr
                uses_locale |= has_format and isinstance(last, str) and last.endswith("n")
            elif instruction.opname in _ATTRIBUTE:
                # `super()` has loaded the class that contains the code.
                own_class -= instruction.opname.startswith("LOAD_SUPER")
                attributes.add(instruction.argval)
                sets_attributes |= instruction.opname in ("STORE_ATTR", "DELETE_ATTR")
            elif instruction.opname == "IMPORT_NAME":
                imports.add(instruction.argval or ".")
            elif instruction.opname == "LOAD_BUILD_CLASS":
                names.add("__build_class__")
        constants |= _texts(each)
    attributes.update(text for text in constants if text.isidentifier())
    if "MATCH_CLASS" in operations:
        attributes.add("__match_args__")
    inside = attributes & _INSIDE
    if own_class > 0:
        inside.add("__class__")
    if "fields" in names | attributes:
        inside |= attributes & {"metadata"}
    if "format" in names | attributes:
        uses_locale |= any(map(_OF_LOCALE.search, constants))
    return _Facts(
        frozenset(names),
        frozenset(attributes),
        frozenset(imports),
        frozenset(inside),
        sets_attributes,
        writes_text or bool((names | attributes) & _WRITING),
        uses_locale,
        "PUSH_EXC_INFO" in operations or bool((names | attributes) & {"getattr", "hasattr"}),
        "MATCH_CLASS" in operations or bool((names | attributes) & {"isinstance", "issubclass"}),
    )


def _texts(code: types.CodeType) -> set[str]:
    """Return the strings of `getattr(x, "name")`, `hasattr(x, "name")`, and the keywords of class patterns."""
    found = [constant if isinstance(constant, tuple) else (constant,) for constant in code.co_consts]
    return {text for texts in found for text in texts if isinstance(text, str)}


def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that the code, and what is made in it, can ask for."""
    return _facts(code).global_names


def attribute_names(code: types.CodeType) -> Attributes:
    """Return the attributes that a function's code names, and whether it may reach others by names that it computes."""
    facts = _facts(code)
    return Attributes(facts.attributes, bool((facts.global_names | facts.attributes) & _BY_ANY_NAME))


def imported_names(code: types.CodeType) -> frozenset[str]:
    """Return the modules that are imported inside of the code."""
    return _facts(code).imports


def sets_attributes(code: types.CodeType) -> bool:
    """Return whether a function's code may set or delete attributes."""
    facts = _facts(code)
    return facts.sets_attributes or bool(facts.global_names & {"setattr", "delattr"})


def names_after_super(code: types.CodeType) -> Attributes:
    """Return the attributes that code may ask `super()` for; none if it does not name `super`."""
    return attribute_names(code) if "super" in _facts(code).global_names else Attributes(frozenset(), False)


def writes_text(code: types.CodeType) -> bool:
    """Return whether a function's code may write objects as text."""
    return _facts(code).writes_text


def asks_for_names(code: types.CodeType) -> bool:
    """Return whether code continues where a name is missing: it calls `hasattr`, or catches an error."""
    return _facts(code).asks


def asks_for_classes(code: types.CodeType) -> bool:
    """Return whether code tests the class of an object."""
    return _facts(code).asks_class


def reaches_inside(code: types.CodeType) -> list[str]:
    """Return the attributes, sorted, by which code looks into functions, frames and classes and cannot be followed."""
    return sorted(_facts(code).inside)


def uses_locale(code: types.CodeType) -> bool:
    """Return whether code may write numbers in the format of the locale."""
    return _facts(code).uses_locale
