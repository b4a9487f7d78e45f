"""What the code of a function says about running it deferred, before it runs.

Two questions. Whether it asks for the type of an object, which an array that stands for NumPy's cannot answer. And
whether its arguments are all that it can reach: then nobody but the function can write to their memory while it runs,
and operations that wait need no copies of them.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Reversible, Sized
from typing import Any

import numpy as np

from anygpu.array.deferred.conversions import is_installed
from anygpu.array.deferred.standing_in import StandIn

#: Functions that are followed.
_MOST_FUNCTIONS = 64
#: Builtins that neither lead to other objects nor write to arrays.
_HARMLESS = frozenset(
    [
        "abs",
        "all",
        "any",
        "bool",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "float",
        "format",
        "frozenset",
        "int",
        "isinstance",
        "len",
        "list",
        "max",
        "min",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "ValueError",
        "TypeError",
        "RuntimeError",
        "IndexError",
        "KeyError",
        "ArithmeticError",
        "ZeroDivisionError",
        "OverflowError",
        "Exception",
        "NotImplementedError",
        "AssertionError",
        "StopIteration",
        "callable",
    ]
)
#: NumPy's functions that give memory that somebody else has.
_LEADS_ELSEWHERE = frozenset(("frombuffer", "memmap", "from_dlpack", "fromfile", "load", "nditer", "save", "savez"))


def why_not_deferred(function: Callable[..., Any]) -> str | None:
    """Why a function cannot run deferred: a clause that goes on after its name; `None` where nothing is against it.

    Its own code is looked at, and that of functions it names, but for installed libraries: most of what these ask for
    types is never of an array.
    """
    own = getattr(getattr(function, "__func__", function), "__code__", None)
    if own is not None and own.co_flags & _RUNS_LATER:
        return "it is a generator or a coroutine, which runs after the call"
    for code, source in _codes(function):
        if source is not None:
            for _, value in _reached(code, source):
                if (insists := _insists_on_numpys(value)) is not None:
                    return insists
        if code is not own and is_installed(code.co_filename):
            continue
        if source is not None and any(
            value in _CLASSES_OF_BOTH for _, value in _reached(code, source) if isinstance(value, type)
        ):
            return (
                f"it asks for a class by its methods, which arrays and numbers of ours have alike ({code.co_filename})"
            )
        if not _NAMES_OF_BOTH.isdisjoint(_texts(code)):
            return f"it asks for a method that arrays and numbers of ours have alike ({code.co_filename})"
        if not _OF_FORTRAN.isdisjoint(code.co_names):
            return f"it gets functions of LAPACK, which write over what is not NumPy's own array ({code.co_filename})"
        if "shuffle" in code.co_names:
            return f"it calls shuffle, which swaps elements of NumPy's own arrays alone ({code.co_filename})"
        if not _OF_BUFFERS.isdisjoint(code.co_names) or ("ndarray" in code.co_names and "buffer" in _texts(code)):
            return f"it asks for the buffer of an object, whose errors only NumPy's arrays raise ({code.co_filename})"
        line = _compares_identity(code, source)
        if line is not None:
            return f"it asks whether two objects are the same one ({code.co_filename}:{line})"
        line = _asks_for_type(code)
        if line is not None:
            return f"it asks for the type of an object ({code.co_filename}:{line})"
    return None


def _texts(code: types.CodeType) -> Iterator[str]:
    """Every text among the constants of the code."""
    for constant in code.co_consts:
        for each in constant if isinstance(constant, tuple | frozenset) else (constant,):
            if isinstance(each, str):
                yield each


def _insists_on_numpys(value: Any) -> str | None:
    """Why a function that was named takes no arrays but NumPy's own."""
    module = str(getattr(value, "__module__", ""))
    if type(value).__name__ == "fortran":
        return f"it calls {value.__name__}, which writes over what is not NumPy's own array"
    if isinstance(value, types.BuiltinFunctionType) and hasattr(sys.modules.get(module), "__pythran__"):
        return f"it calls {value.__name__}, which Pythran has compiled for NumPy's own arrays"
    return None


_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: An array that stands for NumPy's says of itself what NumPy's does, but for these: one class stands for arrays and for
#: numbers.
_CLASSES_OF_BOTH = frozenset((Collection, Container, Hashable, Iterable, Reversible, Sized))
_NAMES_OF_BOTH = frozenset(("__contains__", "__hash__", "__iter__", "__len__", "__setitem__", *StandIn.__slots__))
_OF_FORTRAN = frozenset(("get_lapack_funcs", "get_blas_funcs"))
#: What takes the memory of an object, and says what is wrong with it.
_OF_BUFFERS = frozenset(("frombuffer", "from_buffer", "pack_into", "unpack_from", "readinto"))
_BETWEEN = frozenset(("CACHE", "PRECALL", "PUSH_NULL", "NOT_TAKEN"))


def _asks_for_type(code: types.CodeType) -> int | None:
    """The line of a call of `type`, unless all that is done with it is to name it."""
    line = code.co_firstlineno
    is_asked = False
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if instruction.starts_line:
            line = instruction.positions.lineno or line if instruction.positions is not None else line
        if name in _BETWEEN:
            continue
        if name == "LOAD_GLOBAL" and instruction.argval == "type" and "NULL" in instruction.argrepr:
            is_asked = True  # it is called, and not only named
        elif is_asked and name == "LOAD_ATTR":
            if instruction.argval not in ("__name__", "__qualname__", "__module__"):
                return line
            is_asked = False
        elif is_asked and name.startswith(("LOAD_FAST", "LOAD_DEREF", "CALL")):
            continue
        elif is_asked:
            return line
    return line if is_asked else None


def _compares_identity(code: types.CodeType, function: types.FunctionType | None) -> int | None:
    """The line of an `is` between two things that may both be arrays: the last is no constant and no name outside."""
    line = code.co_firstlineno
    before, space = "", {} if function is None else function.__globals__
    for instruction in dis.get_instructions(code):
        if instruction.starts_line:
            line = instruction.positions.lineno or line if instruction.positions is not None else line
        if instruction.opname == "IS_OP" and before not in ("LOAD_CONST", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_NAME"):
            return line
        if instruction.opname not in _BETWEEN:
            before = instruction.opname
            if before == "LOAD_GLOBAL" and isinstance(space.get(instruction.argval), np.ndarray):
                before = "an array"
    return None


class Reach:
    """That the arguments of a function are all it can reach; it holds as long as every name means what it meant."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Beside arguments: numbers, texts, NumPy's functions, and functions of which the same is true."""
        self._checks: list[tuple[Callable[[], Any], Any]] = []
        self.is_proved = self._look(function)

    def holds(self) -> bool:
        """Whether it is still so."""
        try:
            return self.is_proved and all(read() is value for read, value in self._checks)
        except (KeyError, AttributeError, ValueError):
            return False

    def _look(self, function: Callable[..., Any]) -> bool:
        """Whether all code that the function leads to is harmless; note what that depends on."""
        if _is_of_stateless_library(function):
            return True
        if isinstance(function, types.MethodType):
            return False  # what it is bound to may have any array
        checked = 0
        for code, source in _codes(function, _is_looked_into):
            checked += 1
            if checked > _MOST_FUNCTIONS or source is None:
                return False
            for read, value in _reached(code, source):
                if not _is_harmless(value):
                    return False
                if read is not None:
                    self._checks.append((read, value))
            self._checks.append((functools.partial(getattr, source, "__code__"), source.__code__))
            self._checks.append((functools.partial(getattr, source, "__defaults__"), source.__defaults__))
            defaults = (*(source.__defaults__ or ()), *(source.__kwdefaults__ or {}).values())
            if not all(_is_number(each) for each in defaults):
                return False
        return checked > 0


def _codes(
    function: Callable[..., Any], follows: Callable[[Any], bool] | None = None
) -> Iterator[tuple[types.CodeType, types.FunctionType | None]]:
    """The code of a function, of those inside of it, and of functions of Python that it names, outside of NumPy.

    `follows` says which of these.
    """
    follows = follows or _is_followed
    waiting: list[Any] = [function]
    seen: set[Any] = set()
    while waiting and len(seen) <= _MOST_FUNCTIONS:
        each = waiting.pop()
        inner = getattr(each, "__func__", each)
        if not isinstance(inner, types.FunctionType):
            if each is function:
                yield _NOTHING.__code__, None
            continue
        if inner.__code__ in seen:
            continue
        parts: list[types.CodeType] = [inner.__code__]
        while parts:
            code = parts.pop()
            seen.add(code)
            yield code, inner
            parts += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            waiting += [found for _, found in _reached(code, inner) if follows(found)]


def _NOTHING() -> None:  # noqa: N802 - a constant
    pass


def _is_followed(value: Any) -> bool:
    """Whether a function's code is looked into: it is Python's, and not NumPy's."""
    return isinstance(value, types.FunctionType) and not str(value.__module__).startswith("numpy")


def _is_looked_into(value: Any) -> bool:
    return _is_followed(value) and not _is_of_stateless_library(value)


#: Libraries whose functions keep no array of a call for later ones, and write to no memory but what they are given.
_STATELESS = frozenset(("astropy", "pandas", "scipy", "skimage", "sklearn", "xarray"))


def _is_of_stateless_library(value: Any) -> bool:
    """Whether a function or a class is what such a library has under that name: nobody else has put anything in."""
    name = getattr(value, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] not in _STATELESS:
        return False
    module = sys.modules.get(name)
    if not is_installed(str(getattr(module, "__file__", ""))):
        return False
    return getattr(module, str(getattr(value, "__name__", "")), None) is value


def _reached(code: types.CodeType, function: types.FunctionType) -> Iterator[tuple[Callable[[], Any] | None, Any]]:
    """Everything outside that the code names: globals, with the attributes of modules, and variables of closures.

    With each comes what reads it again, unless it is NumPy's.
    """
    found: Any = None
    is_module = False
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        read: Callable[[], Any] | None = None
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if name in function.__globals__:
                found = function.__globals__[name]
                read = functools.partial(function.__globals__.__getitem__, name)
            else:
                found = getattr(builtins, str(name), _UNKNOWN)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and is_module:
            if not found.__name__.startswith("numpy"):
                read = functools.partial(getattr, found, name)
            found = getattr(found, str(name), _UNKNOWN)
        elif instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_FROM_DICT_OR_DEREF"):
            if name not in function.__code__.co_freevars:
                continue  # a variable of its own
            cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
            read = functools.partial(getattr, cell, "cell_contents")
            try:
                found = cell.cell_contents
            except ValueError:
                found = _UNKNOWN
        elif instruction.opname in ("IMPORT_NAME", "STORE_GLOBAL"):
            found = _UNKNOWN
        else:
            is_module = False
            continue
        if _answers_itself(found):
            found = _UNKNOWN
        is_module = isinstance(found, types.ModuleType)
        if is_module:
            if read is not None:
                yield read, found
        else:
            yield read, found


_UNKNOWN = object()
_MADE_BY_A_PROGRAM = 1 << 9  # CPython's Py_TPFLAGS_HEAPTYPE


def _answers_itself(value: Any) -> bool:
    """Whether a question for an attribute of it would run the user's code, which may count or raise."""
    kind = type(value)
    if not kind.__flags__ & _MADE_BY_A_PROGRAM or issubclass(kind, types.ModuleType | type):
        return False
    return any(
        name in vars(each) for each in kind.__mro__[:-1] for name in ("__getattr__", "__getattribute__", "__class__")
    )


def _is_number(value: Any) -> bool:
    """Whether a global is a plain value, which leads nowhere."""
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype)


def _is_harmless(value: Any) -> bool:
    """Whether calling or reading a global cannot lead out of the code that is known."""
    if _is_number(value) or _is_of_stateless_library(value):
        return True
    name = str(getattr(value, "__name__", ""))
    module = str(getattr(value, "__module__", ""))
    if isinstance(value, types.FunctionType):
        if module.startswith("numpy"):
            return name not in _LEADS_ELSEWHERE
        return True  # which is looked at itself
    if isinstance(value, np.ufunc) or (isinstance(value, type) and issubclass(value, np.generic)):
        return True
    if isinstance(value, types.BuiltinFunctionType):
        if module.startswith("numpy"):
            return name not in _LEADS_ELSEWHERE
        return module == "math" or (getattr(builtins, name, None) is value and name in _HARMLESS)
    if isinstance(value, type):
        return (getattr(builtins, name, None) is value and name in _HARMLESS) or value is np.errstate
    if callable(value) and module.startswith("numpy"):
        return name not in _LEADS_ELSEWHERE  # NumPy's functions that others can override
    return value is Ellipsis or isinstance(value, types.ModuleType)
