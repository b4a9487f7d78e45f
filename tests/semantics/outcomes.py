"""What one call did, as far as its caller can tell, and how two outcomes differ."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.elementwise import tolerance_of
from anygpu.program.dtypes import KIND

#: Compares the elements of two arrays of one type and shape, which are at a place in an outcome: what differs, if any.
Compare = Callable[[np.ndarray, np.ndarray, str], str | None]

#: Floats may lie apart by so many times the published tolerance of one function, relative to the array's largest.
_FUNCTIONS = 4
#: Of a generator that a call returns, so many items are looked at.
_MOST_ITEMS = 100


class Same(NamedTuple):
    """Something that was met before, in the same outcome."""

    number: int


@dataclasses.dataclass
class Numbers:
    """An array or a scalar of NumPy's."""

    type: type
    dtype: str
    shape: tuple[int, ...]
    #: What NumPy promises of it.
    flags: tuple[tuple[str, bool], ...]
    values: Any


@dataclasses.dataclass
class Parts:
    """Anything that has parts."""

    type: type
    parts: tuple[tuple[Any, Any], ...]


@dataclasses.dataclass
class Plain:
    type: type
    value: Any


@dataclasses.dataclass
class Outcome:
    """Of one call."""

    #: What was returned or raised, and what the arguments and the world around are afterwards.
    value: Any
    raised: Any
    arguments: Any
    seen: Any
    #: Which arrays of the value share memory with which of the arguments, of the world, and with each other.
    sharing: tuple[tuple[str, str], ...]
    printed: str
    warned: tuple[tuple[str, str, str], ...]
    randomness: str


def outcome_of(call: Callable[[], Any], arguments: Any, see: Callable[[], Any]) -> Outcome:
    """Call it, and look at everything that may have come of it."""
    value, raised = None, None
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("always")
        # The collector may come across what something else has left behind.
        warnings.filterwarnings("ignore", "subprocess [0-9]+ is still running", ResourceWarning)
        try:
            value = call()
            if isinstance(value, types.GeneratorType):
                value = _Generated([item for item, _ in zip(value, range(_MOST_ITEMS), strict=False)])
        except Exception as error:  # noqa: BLE001 - it is compared with what NumPy raises
            raised = error
    world = see()
    met: dict[int, int] = {}
    kept: list[Any] = []
    return Outcome(
        arguments=_described(arguments, met, kept),
        seen=_described(world, met, kept),
        value=_described(value, met, kept),
        raised=_described(raised, met, kept),
        sharing=tuple(_sharing(value, arguments, world)),
        printed=printed.getvalue(),
        warned=tuple(
            (each.category.__name__, str(each.message), f"{each.filename.rsplit('/', 1)[-1]}:{each.lineno}")
            for each in caught
        ),
        randomness=_randomness(),
    )


@dataclasses.dataclass
class _Generated:
    items: list[Any]


def _randomness() -> str:
    """Of the generators that everybody shares; only compared within this process, so that Python's own hash will do."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    return f"{hash((kind, np.asarray(keys).tobytes(), *rest, random.getstate())):x}"


def _described(value: Any, met: dict[int, int], kept: list[Any]) -> Any:
    """As data that does not change any more."""
    if value is None or type(value) in (bool, int, str, bytes, float, complex, type(...), slice, range, np.dtype):
        return Plain(type(value), value)
    if isinstance(value, np.generic) and value.dtype.names is None:
        return Numbers(type(value), value.dtype.str, (), (), np.array(value))
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType | np.ufunc):
        return Plain(type(value), getattr(value, "__qualname__", getattr(value, "__name__", "")))
    if id(value) in met:
        return Same(met[id(value)])
    met[id(value)] = len(met)
    kept.append(value)  # so that no other object gets its identity meanwhile

    def inside(each: Any) -> Any:
        return _described(each, met, kept)

    if isinstance(value, np.ma.MaskedArray):
        return Parts(type(value), (("data", inside(value.data)), ("mask", inside(np.ma.getmaskarray(value)))))
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return Parts(type(value), (("shape", value.shape), *((i, inside(e)) for i, e in enumerate(value.flat))))
        flags = tuple((name, bool(value.flags[name])) for name in ("C_CONTIGUOUS", "F_CONTIGUOUS", "WRITEABLE"))
        return Numbers(type(value), value.dtype.str, value.shape, flags, np.array(value, order="C", subok=False))
    if isinstance(value, dict):
        return Parts(type(value), tuple((inside(key), inside(each)) for key, each in value.items()))
    if isinstance(value, set | frozenset):
        return Parts(type(value), tuple((repr(each), None) for each in sorted(value, key=repr)))
    if isinstance(value, BaseException):
        parts = [("args", inside(value.args)), ("text", str(value)), ("attributes", inside(_attributes(value)))]
        if value.__cause__ is not None:
            parts.append(("cause", inside(value.__cause__)))
        return Parts(type(value), tuple(parts))
    if isinstance(value, bytearray | memoryview):
        return Plain(type(value), bytes(value))
    if isinstance(value, PurePath):  # it keeps what it has worked out among its attributes
        return Plain(type(value), str(value))
    try:
        items = list(value) if hasattr(type(value), "__len__") else None
    except Exception:  # noqa: BLE001 - a user's own object may do as it likes
        items = None
    if items is not None:
        numbered = tuple((number, inside(each)) for number, each in enumerate(items))
        return Parts(type(value), (*numbered, ("attributes", inside(_attributes(value)))))
    attributes = _attributes(value)
    return Parts(type(value), (("attributes", inside(attributes)),) if attributes else (("text", _text(value)),))


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for each in type(value).__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                found[name] = object.__getattribute__(value, name)
    return {name: each for name, each in found.items() if name not in ("__dict__", "__weakref__")}


def _text(value: Any) -> str:
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def _arrays(value: Any, name: str, met: set[int]) -> Iterator[tuple[str, np.ndarray]]:
    if id(value) in met or isinstance(value, np.generic):
        return
    met.add(id(value))
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _arrays(each, f"{name}[{key!r}]", met)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _arrays(each, f"{name}[{number}]", met)
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType | types.FunctionType):
        yield from _arrays(dict(vars(value)), name, met)


def _sharing(value: Any, arguments: Any, world: Any) -> Iterator[tuple[str, str]]:
    results = list(_arrays(value, "value", set()))
    around = [*_arrays(arguments, "arguments", set()), *_arrays(world, "seen", set())]
    for number, (name, array) in enumerate(results):
        for other, against in [*results[number + 1 :], *around]:
            if array is not against and np.shares_memory(array, against):
                yield name, other


# -- differences


def difference(expected: Outcome, got: Outcome, within: float = 1.0, values: Compare | None = None) -> str | None:
    """The first thing that is not as it should be, or `None`; elements are compared by `values`."""
    compare = values or (lambda one, other, at: _values_differ(one, other, at, within))
    for name in ("raised", "value", "arguments", "seen"):
        found = _differs(getattr(expected, name), getattr(got, name), name, compare)
        if found:
            return found
    if expected.warned != got.warned:
        more = Counter(expected.warned), Counter(got.warned)
        missing, added = _told(more[0] - more[1]), _told(more[1] - more[0])
        return (
            f"warned: without {missing}, with {added} beside what was expected"
            if missing + added
            else "warned: in another order"
        )
    for name in ("sharing", "printed", "randomness"):
        one, other = getattr(expected, name), getattr(got, name)
        if one != other:
            return f"{name}: {one!r} expected, {other!r} came"
    return None


def _told(warned: Counter[tuple[str, str, str]]) -> list[str]:
    return [f"{count} × {name} {text} ({place})" for (name, text, place), count in warned.items()]


def _differs(one: Any, other: Any, at: str, compare: Compare) -> str | None:
    if type(one) is not type(other):
        return f"{at}: {_short(one)} expected, {_short(other)} came"
    if isinstance(one, Numbers):
        return _numbers_differ(one, other, at, compare)
    if isinstance(one, Plain):
        if one.type is not other.type:
            return f"{at}: {_short(one)} expected, {_short(other)} came"
        if one.type in (float, complex):
            return compare(np.array(one.value), np.array(other.value), at)
        return None if one.value == other.value else f"{at}: {one.value!r} expected, {other.value!r} came"
    if isinstance(one, Parts):
        if one.type.__qualname__ != other.type.__qualname__:  # a class may be made anew in each world
            return f"{at}: {_short(one)} expected, {_short(other)} came"
        if len(one.parts) != len(other.parts):
            return f"{at}: {len(one.parts)} parts expected, {len(other.parts)} came"
        for (key, mine), (other_key, theirs) in zip(one.parts, other.parts, strict=True):
            name = key.value if isinstance(key, Plain) else key
            found = _differs(key, other_key, f"{at}: key {name!r}", compare)
            found = found or _differs(mine, theirs, f"{at}.{name}", compare)
            if found:
                return found
        return None
    return None if one == other else f"{at}: {one!r} expected, {other!r} came"


def _short(each: Any) -> str:
    if isinstance(each, Numbers):
        return f"{each.type.__name__} {each.dtype}{list(each.shape)}"
    if isinstance(each, Parts):
        return f"{each.type.__name__} of {[name for name, _ in each.parts]} {each.parts!r:.200}"
    return f"{each!r:.300}"


def _numbers_differ(one: Numbers, other: Numbers, at: str, compare: Compare) -> str | None:
    if one.type is not other.type or one.dtype != other.dtype or one.shape != other.shape:
        return f"{at}: {_short(one)} expected, {_short(other)} came"
    if one.flags != other.flags:
        mine = [name for name, value in one.flags if value]
        theirs = [name for name, value in other.flags if value]
        return f"{at}: flags {mine} expected, {theirs} came"
    return compare(one.values, other.values, at)


def _values_differ(one: np.ndarray, other: np.ndarray, at: str, within: float) -> str | None:
    if one.dtype.kind not in "fc":
        agree = np.asarray(one == other)
        if one.dtype.kind in "mM":
            agree = np.asarray(agree | (np.isnat(one) & np.isnat(other)))
    else:
        with np.errstate(all="ignore"):
            name: Any = one.dtype.newbyteorder("=").name
            finite = np.abs(one[np.isfinite(one)])
            largest = max(float(finite.max()), 1e-3) if finite.size else 1.0
            allowed = within * _FUNCTIONS * (tolerance_of("function", name) if name in KIND else 0) * largest
            wide = np.complex128 if one.dtype.kind == "c" else np.float64
            agree = np.asarray(one == other) | (np.isnan(one) & np.isnan(other))
            agree |= np.abs(one.astype(wide) - other.astype(wide)) <= allowed
    if agree.all():
        return None
    index = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(~agree)))[: one.ndim]
    return f"{at}: {one[index]!r} expected at {index}, {other[index]!r} came"


def numbers_at(outcome: Outcome) -> dict[str, np.ndarray]:
    """All arrays and floats of an outcome by their places, as `difference` names them."""
    found: dict[str, np.ndarray] = {}

    def enter(each: Any, at: str) -> None:
        if isinstance(each, Numbers):
            found[at] = each.values
        elif isinstance(each, Plain) and each.type in (float, complex):
            found[at] = np.array(each.value)
        elif isinstance(each, Parts):
            for key, part in each.parts:
                enter(part, f"{at}.{key.value if isinstance(key, Plain) else key}")

    for name in ("raised", "value", "arguments", "seen"):
        enter(getattr(outcome, name), name)
    return found
