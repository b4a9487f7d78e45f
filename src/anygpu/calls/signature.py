"""Keys of calls: what calls of one function have in common, so that what one of them taught holds for the next.

A key never holds an object of the user's: a recorded program reads everything again that it depends on, at each call.
It is made of shapes, dtypes, tokens of classes, and values of immutable plain types in a form in which equal means the
same type and the same bits: `0.0` is not `-0.0`, and `1` is not `True`. Its length is bounded, whatever the arguments
are. Made for speed.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

# -- tokens: numbers that stand for living things, which a cache must not keep alive

# An address would do as long as its object lives; afterwards another object may get it. A token is never given again.
_numbers = itertools.count(1)
#: By address: the token of what lives there, and the reference that removes the entry with it.
_known: dict[int, tuple[int, weakref.ref[Any]]] = {}


def token_of(thing: Any) -> int | None:
    """Return a number for an object, never given to another one; `None` if it has no weak references.

    An address would not do: another object may get it when this one is gone.
    """
    address = id(thing)
    known = _known.get(address)
    if known is not None:
        return known[0]

    # With what it needs at hand: it may be called when the interpreter has let go of this module.
    def forget(gone: weakref.ref[Any], known: dict[int, Any] = _known) -> None:
        found = known.get(address)
        if found is not None and found[1] is gone:
            del known[address]

    try:
        reference = weakref.ref(thing, forget)
    except TypeError:
        return None
    # Another thread may have been here since: then its number counts, and this reference removes nothing.
    return _known.setdefault(address, (next(_numbers), reference))[0]


# -- keys


#: Types of numbers that become inputs of programs: their values are no part of a key, unless they turn out to decide
#: what a function does.
_FLOATS: frozenset[type] = frozenset((float, np.float16, np.float32, np.float64))
_INTEGERS: frozenset[type] = frozenset(
    (int, *(np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
#: With these are those that have one value, so that nothing of it has to be said either.
INPUT_NUMBER_TYPES = _FLOATS | _INTEGERS | {type(None), type(Ellipsis)}

#: Which of these types go together: what decides for Python's numbers decides for NumPy's.
_FAMILIES = (_FLOATS, _INTEGERS)

#: Parts of a key, after which nested containers are only known by their type.
MOST_PARTS = 256
#: Longer strings and integers of more bits are known by a hash.
_LONG_STRING, _LONG_INTEGER = 128, 128


class OwnArray:
    """A mark in a key: an array of anygpu's own."""


class ByType:
    """A mark in a key: the next part is known by its type alone."""


Parts = list[Any]
Describe = Callable[[Any, Parts, frozenset[type]], None]

_ndarray = np.ndarray
#: Those of ndarray itself, whatever a class of the user's makes of them.
shape_of: Callable[[Any], Any] = np.ndarray.shape.__get__
dtype_of: Callable[[Any], Any] = np.ndarray.dtype.__get__


def signature(
    arguments: tuple[Any, ...], keywords: dict[str, Any], input_number_types: frozenset[type] = INPUT_NUMBER_TYPES
) -> tuple[Hashable, ...]:
    """Return the key of a call; values of numbers whose types are in `input_number_types` are not part of it."""
    parts: Parts = []
    for each in arguments:
        describe(each, parts, input_number_types)
    describe_keywords(keywords, parts, input_number_types)
    return tuple(parts)


def describe_keywords(keywords: dict[str, Any], parts: Parts, input_number_types: frozenset[type]) -> None:
    """Add the names of keyword arguments, and what tells their values apart."""
    for name, each in keywords.items():
        parts.append(name)
        describe(each, parts, input_number_types)


def describe(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Add the parts that tell a value apart from others to a key.

    The first part says how many follow, so that no two values are confused.
    """
    kind = type(value)
    if kind is _ndarray:
        dtype = value.dtype
        parts += (value.shape, dtype.num if dtype.isnative else -dtype.num)
    elif kind in input_number_types:
        parts.append(kind)
    else:
        way_of(kind)(value, parts, input_number_types)


def without(input_number_types: frozenset[type], deciding: Iterable[type]) -> frozenset[type]:
    """Return the types of numbers that are inputs, without those whose values have turned out to decide."""
    return input_number_types.difference(*(family for family in _FAMILIES if family.intersection(deciding)), deciding)


def function_key(function: Callable[..., Any]) -> Hashable:
    """Return the key under which functions share what is known of their calls; `None` for a function that has none.

    Closures and methods that are made again and again have one code. What they capture is read at each call.
    """
    kind = type(function)  # and not isinstance: an object may say of itself that it is a function
    if kind is FunctionType:
        return _code_key(function)  # type: ignore[arg-type]
    if kind is MethodType:
        return _pair(function_key(function.__func__), token_of(type(function.__self__)))  # type: ignore[attr-defined]
    if kind is np.ufunc or kind is type(np.dot):
        name = function.__name__
        return (np, name) if getattr(np, name, None) is function else None
    by_class = kind.__call__
    if type(by_class) is FunctionType and not issubclass(kind, type):
        return _pair(token_of(kind), function_key(by_class))
    return token_of(function)


#: How far functions are followed that capture functions.
_DEEPEST = 3


def _code_key(function: FunctionType, depth: int = 0) -> Hashable:
    """Return the key of a function's code, and of the functions it captures: decorated functions differ in these."""
    code = token_of(function.__code__)
    captured = [each for each in _captured(function) if type(each) is FunctionType]
    if not captured or depth == _DEEPEST:
        return code
    return code, function.__qualname__, *(_code_key(each, depth + 1) for each in captured)


def _captured(function: FunctionType) -> Iterator[Any]:
    """Return the defaults of a function, and the contents of its closure's cells that are bound."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is not bound yet
            yield cell.cell_contents


def _pair(one: Hashable, other: Hashable) -> Hashable:
    """Return two keys as one; `None` if either is `None`."""
    return None if one is None or other is None else (one, other)


# -- how values of each type are described


def _by_kind(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts.append(type(value))


def _by_value(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (type(value), value)


def _integer(value: int, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (int, value if value.bit_length() <= _LONG_INTEGER else ("hash", hash(value)))


def _string(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (type(value), value if len(value) <= _LONG_STRING else (len(value), hash(value)))


def _float(value: float, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (float, value.hex())


def _complex(value: complex, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (complex, value.real.hex(), value.imag.hex())


def _scalar(value: np.generic, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (type(value), value.dtype.str, value.tobytes())


def _long_scalar(value: np.generic, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe a long double by its text, as some of its bytes are padding."""
    parts += (type(value), repr(value))


def by_dtype(value: np.dtype[Any], parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe a dtype, by its string where that says all."""
    # Others may hold objects of the user's, or have no hash.
    parts += (np.dtype, value.str) if value.kind in "?biufcmMSU" and not value.metadata else (ByType, np.dtype)


def _slice(value: slice, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts.append(slice)
    describe(value.start, parts, input_number_types)
    describe(value.stop, parts, input_number_types)
    describe(value.step, parts, input_number_types)


def _range(value: range, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (range, (value.start, value.stop, value.step))


def elements(
    values: Collection[Any], parts: Parts, input_number_types: frozenset[type], token: int | None = None
) -> None:
    """Return the elements of a tuple or list, or of what stands for an object of the class with this token."""
    count = len(values)
    parts.append(token or type(values))
    parts.append(count)
    if len(parts) + count > MOST_PARTS:
        parts.append(ByType)
        return
    for each in values:
        # As in `describe`, for speed; appending twice takes less time than a tuple and `+=`.
        kind = type(each)
        if kind is _ndarray:
            dtype = each.dtype
            parts.append(each.shape)
            parts.append(dtype.num if dtype.isnative else -dtype.num)
        elif kind in input_number_types:
            parts.append(kind)
        else:
            (BUILTIN.get(kind) or way_of(kind))(each, parts, input_number_types)


def items(values: dict[Any, Any], parts: Parts, input_number_types: frozenset[type], token: int | None = None) -> None:
    """Describe a dictionary by its keys and values; a large one by its type and length."""
    count = len(values)
    parts.append(token or dict)
    parts.append(count)
    if len(parts) + count > MOST_PARTS:
        parts.append(ByType)
        return
    try:
        for name, each in values.items():
            if type(name) is str:
                parts.append(name)
            else:
                describe(name, parts, frozenset())
            kind = type(each)
            if kind is _ndarray:
                dtype = each.dtype
                parts.append(each.shape)
                parts.append(dtype.num if dtype.isnative else -dtype.num)
            elif kind in input_number_types:
                parts.append(kind)
            else:
                (BUILTIN.get(kind) or way_of(kind))(each, parts, input_number_types)
    except RuntimeError:  # another thread adds to it
        parts.append(ByType)


def _function(value: FunctionType, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts += (FunctionType, function_key(value))


def _method(value: MethodType, parts: Parts, input_number_types: frozenset[type]) -> None:
    parts.append(MethodType)
    describe(value.__func__, parts, input_number_types)
    describe(value.__self__, parts, input_number_types)


def _builtin_function(value: BuiltinFunctionType, parts: Parts, input_number_types: frozenset[type]) -> None:
    """Describe a function of C by a token; a method of an object by its type alone."""
    if isinstance(value.__self__, ModuleType):
        parts += (BuiltinFunctionType, token_of(value))
    else:  # a method of an object, made anew each time that it is asked for
        parts += (ByType, BuiltinFunctionType)


def _numpys_function(value: Any, parts: Parts, input_number_types: frozenset[type]) -> None:
    name = value.__name__
    parts += (type(value), name) if getattr(np, name, None) is value else (ByType, type(value))


BUILTIN: dict[type, Describe] = {
    int: _integer,
    str: _string,
    bytes: _string,
    float: _float,
    complex: _complex,
    bool: _by_value,
    type(None): _by_kind,
    type(Ellipsis): _by_kind,
    type(NotImplemented): _by_kind,
    tuple: elements,
    list: elements,
    dict: items,
    slice: _slice,
    range: _range,
    FunctionType: _function,
    MethodType: _method,
    BuiltinFunctionType: _builtin_function,
    np.ufunc: _numpys_function,
    type(np.dot): _numpys_function,
    **dict.fromkeys({np.dtype(code).type for code in "?bBhHiIlLqQefdFDmM"}, _scalar),
    **dict.fromkeys((np.longdouble, np.clongdouble), _long_scalar),
    **dict.fromkeys((np.str_, np.bytes_), _string),
}

#: For other classes, by address; an entry goes with its class.
_classes: dict[int, Describe] = {}


def way_of(kind: type) -> Describe:
    """Return how values of a type are described; those of Python and NumPy are in a table, which is asked first."""
    return BUILTIN.get(kind) or _classes.get(id(kind)) or _look_at(kind)


def _look_at(kind: type) -> Describe:
    """Find the way to describe values of a class that was not met before."""
    from anygpu.calls.class_signatures import of_array, way_for  # most calls have arrays and numbers alone

    token = token_of(kind)
    assert token is not None, "every class can be referred to weakly"
    how = way_for(kind, token)
    if how is of_array:  # a class that stays
        BUILTIN[kind] = how
        return how
    address = id(kind)
    _classes[address] = how
    weakref.finalize(kind, _classes.pop, address, None).atexit = False
    return how
