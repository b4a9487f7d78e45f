"""The records of the history: timings of programs on devices, habits of calling functions, and the stored rows.

First the records as people and placement see them (`Timing`, `Habit`), then the rows as they are stored, and the hashes
by which one process finds what another has kept.

Merging rows is commutative and associative, so the order of writers does not matter: counts are added, recent samples
are the latest of both, and of two values of one kind the later one wins.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from anygpu.base.own_files import blake2b
from anygpu.base.this_process import usable_processors
from anygpu.engines.disk_cache import stamp_of
from anygpu.hardware.device import Device

#: A name of a function or a device has fewer characters than this.
MOST_CHARACTERS = 200
#: Upper bounds of durations and of times since 1970: larger values are invalid.
MOST_SECONDS = 1e8
LATEST = 1e11
#: Counts stop here: up to this, floats hold every integer.
MOST_CALLS = 1 << 53

#: Hashes are hexadecimal digits.
_HASH = "^[0-9a-f]{8,128}$"
Hash = Annotated[str, Meta(pattern=_HASH)]
ShortName = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Count = Annotated[int, Meta(ge=0, le=MOST_CALLS)]
StoredSeconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Moment = Annotated[float, Meta(ge=0, le=LATEST)]


class Peak(msgspec.Struct, frozen=True):
    """The peak memory of a call of an opaque task, beyond what was allocated before."""

    #: The length of the first axis of its arguments; 0 if they do not have one in common.
    rows: Count
    bytes: Count


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one program on one device with one setup."""

    #: The program's key.
    program: Hash
    #: The device's id, for people; NumPy's own times are those of "numpy".
    device: ShortName
    #: The setup for which the time holds: see `anygpu.placement.history.records.device_stamp`.
    stamp: Hash
    #: The median of recent calls; `None` if the program was compiled or compared there, and no call was counted.
    seconds: StoredSeconds | None
    #: Calls that were ever counted.
    calls: Count
    #: Seconds of the last compilation; `None` if nothing was compiled.
    compile: StoredSeconds | None
    #: Whether results were compared with NumPy's and agreed, and none disagreed since.
    agreed: bool
    #: When a result last disagreed with NumPy's, in seconds since 1970; `None` if none did.
    disagreed: Moment | None
    #: When any of this was last measured, in seconds since 1970.
    when: Moment
    #: Whether every call was measured while something else had the processors.
    doubtful: bool = False
    #: Peak memory of opaque tasks by rows; empty for programs, whose memory is computed.
    peaks: tuple[Peak, ...] = ()


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process usually calls one function with one kind of arguments."""

    #: See `anygpu.placement.history.records.function_hash`.
    function: Hash
    #: For people; `None` when names are not kept.
    name: ShortName | None
    #: See `anygpu.placement.history.records.signature_hash`.
    signature: Hash
    #: The key of the program that it was traced to; `None` if it was not, or could not be.
    program: Hash | None
    #: Processes that were counted.
    processes: Count
    #: The calls of one process and the seconds that they took together: the medians of recent processes.
    calls: Count
    seconds: StoredSeconds
    #: When it was last called, in seconds since 1970.
    when: Moment


_hash = re.compile(_HASH)


def is_hash(text: str) -> bool:
    """Whether a text is a hash as the history keeps them: 8 to 128 hexadecimal digits."""
    return _hash.fullmatch(text) is not None


def is_moment(value: float) -> bool:
    """Whether it can be a time since 1970. msgspec's own limits let NaN pass."""
    return math.isfinite(value) and 0.0 <= value <= LATEST


def is_duration(value: float) -> bool:
    """Whether it can be a duration in seconds: finite, not negative, and at most `MOST_SECONDS`."""
    return math.isfinite(value) and 0.0 <= value <= MOST_SECONDS


def plain_name(name: str) -> str:
    """The name on one line, of limited length, in valid Unicode."""
    if name.isascii() and name.isprintable() and len(name) <= MOST_CHARACTERS:
        return name  # as nearly all are
    text = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(each if each.isprintable() else "?" for each in text[:MOST_CHARACTERS])


# -- rows, as they are stored

#: The number of recent calls, or processes, whose median is used: enough to ignore a few outliers, and few enough to
#: follow a lasting change soon.
RECENT = 9
#: A time that is later than now by more than this comes from a clock that was wrong.
AHEAD = 86_400.0

#: The time of a measurement, and its duration.
Measured = tuple[Moment, StoredSeconds]
#: When it was measured, the rows of the arguments, and bytes.
MeasuredPeak = tuple[Moment, Count, Count]
#: The largest random number that identifies a process.
MOST_PROCESS = (1 << 62) - 1
#: The number of a process, the time of its last call, the count of its calls, and their total duration.
Spent = tuple[Annotated[int, Meta(ge=0, le=MOST_PROCESS)], Moment, Count, StoredSeconds]


class TimingKey(msgspec.Struct, frozen=True, order=True):
    """The key of a row of timings: a program on a device with one setup."""

    program: Hash
    device: ShortName
    stamp: Hash


class HabitKey(msgspec.Struct, frozen=True, order=True):
    """The key of a row of habits: a function with one kind of arguments."""

    function: Hash
    signature: Hash


class TimingRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The stored row of a program on a device; also an increment to be merged into it."""

    #: Recent calls, the latest last.
    recent: Annotated[tuple[Measured, ...], Meta(max_length=RECENT)] = ()
    calls: Count = 0
    compile: Measured | None = None
    #: When results were last compared and agreed, or did not; 0 for never.
    agreed: Moment = 0.0
    disagreed: Moment = 0.0
    #: The same for calls while other processes used the processors.
    disturbed: Annotated[tuple[Measured, ...], Meta(max_length=RECENT)] = ()
    #: The peaks of an opaque task's memory: the latest for each number of rows, the latest last.
    peaks: Annotated[tuple[MeasuredPeak, ...], Meta(max_length=RECENT)] = ()

    @property
    def when(self) -> float:
        """The time of the last measurement, or else of the last comparison, in seconds since 1970."""
        compiled = [self.compile] if self.compile else []
        measured = [each[0] for each in (*self.recent, *self.disturbed, *compiled, *self.peaks)]
        return max(measured, default=max(self.agreed, self.disagreed))

    @property
    def is_plausible(self) -> bool:
        """Whether all times and durations are within bounds, which a damaged or forged file need not keep."""
        pairs = [*self.recent, *self.disturbed, *([self.compile] if self.compile else [])]
        return all(is_moment(when) and is_duration(seconds) for when, seconds in pairs) and all(
            map(is_moment, (self.agreed, self.disagreed, *(when for when, _, _ in self.peaks)))
        )


class HabitRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The stored row of a function with one kind of arguments; also an increment to be merged into it."""

    #: With the time of the call that gave the name.
    name: tuple[Moment, ShortName | None] = (0.0, None)
    program: tuple[Moment, Hash] | None = None
    processes: Count = 0
    #: Recent processes, the latest last.
    recent: Annotated[tuple[Spent, ...], Meta(max_length=RECENT)] = ()

    @property
    def when(self) -> float:
        """The time of the last call, in seconds since 1970."""
        return max((when for _, when, _, _ in self.recent), default=self.name[0])

    @property
    def is_plausible(self) -> bool:
        """Whether all times and durations are within bounds, which a damaged or forged file need not keep."""
        moments = [self.name[0], *([self.program[0]] if self.program else [])]
        return all(map(is_moment, moments)) and all(
            is_moment(when) and is_duration(seconds) for _, when, _, seconds in self.recent
        )


def merged_timing(one: TimingRow, other: TimingRow, now: float = LATEST) -> TimingRow:
    """Merge two rows of one key. A mismatch invalidates earlier timings and agreement in both.

    Times that are later than `now` by more than a day come from a wrong clock, and are dropped.
    """
    disagreed = max(_past(one.disagreed, now), _past(other.disagreed, now))
    recent, disturbed = (
        sorted(each for each in both if disagreed < each[0] <= now + AHEAD)
        for both in ((*one.recent, *other.recent), (*one.disturbed, *other.disturbed))
    )
    compiled = [each for each in (one.compile, other.compile) if each is not None and each[0] <= now + AHEAD]
    agreed = max(_past(one.agreed, now), _past(other.agreed, now))
    return TimingRow(
        recent=tuple(recent[-RECENT:]),
        calls=min(one.calls + other.calls, MOST_CALLS),
        compile=max(compiled, default=None),
        agreed=agreed if agreed > disagreed else 0.0,
        disagreed=disagreed,
        disturbed=tuple(disturbed[-RECENT:]),
        peaks=_merged_peaks((*one.peaks, *other.peaks), now),
    )


def _merged_peaks(both: Sequence[MeasuredPeak], now: float) -> tuple[MeasuredPeak, ...]:
    """The latest peak for each number of rows, of at most `RECENT` of these."""
    latest: dict[int, MeasuredPeak] = {}
    for each in both:
        if each[0] <= now + AHEAD:
            latest[each[1]] = max(each, latest.get(each[1], each))
    return tuple(sorted(latest.values())[-RECENT:])


def merged_habit(one: HabitRow, other: HabitRow, now: float = LATEST) -> HabitRow:
    """Merge two rows of one key. The latest entry of a process replaces earlier ones: it covers all its calls.

    Entries that are later than `now` by more than a day come from a wrong clock, and are dropped.
    """
    by_process: dict[int, Spent] = {}
    for each in (*one.recent, *other.recent):
        if each[1] <= now + AHEAD:
            known = by_process.get(each[0])
            by_process[each[0]] = each if known is None else max(known, each)
    recent = sorted(by_process.values(), key=lambda each: (each[1], each))
    names = [each for each in (one.name, other.name) if each[0] <= now + AHEAD]
    programs = [each for each in (one.program, other.program) if each is not None and each[0] <= now + AHEAD]
    return HabitRow(
        # On equal times prefer the unnamed row: the user opted out of names.
        name=max(names, key=lambda each: (each[0], each[1] is None, each[1] or ""), default=(0.0, None)),
        program=max(programs, default=None),
        processes=min(one.processes + other.processes, MOST_CALLS),
        recent=tuple(recent[-RECENT:]),
    )


def timing_of(key: TimingKey, row: TimingRow) -> Timing:
    """The timing of a stored row, with the typical seconds of its recent calls."""
    return Timing(
        program=key.program,
        device=key.device,
        stamp=key.stamp,
        seconds=_typical([seconds for _, seconds in row.recent or row.disturbed])
        if row.recent or row.disturbed
        else None,
        doubtful=bool(row.disturbed) and not row.recent,
        calls=row.calls,
        compile=row.compile[1] if row.compile is not None else None,
        agreed=row.agreed > 0.0,
        disagreed=row.disagreed or None,
        when=row.when,
        peaks=tuple(Peak(rows, peak) for rows, peak in sorted((rows, peak) for _, rows, peak in row.peaks)),
    )


def habit_of(key: HabitKey, row: HabitRow, *, without: int | None = None) -> Habit | None:
    """The habit; `None` if no process is known. `without` is the running process, whose calls are not complete."""
    others = [each for each in row.recent if each[0] != without]
    if not others:
        return None
    return Habit(
        function=key.function,
        name=row.name[1],
        signature=key.signature,
        program=row.program[1] if row.program is not None else None,
        processes=max(row.processes - (len(others) < len(row.recent)), len(others)),
        calls=int(_median_low([calls for _, _, calls, _ in others])),
        seconds=_median_low([seconds for _, _, _, seconds in others]),
        when=max(when for _, when, _, _ in others),
    )


def _past(moment: float, now: float) -> float:
    """The time, or 0 (never) if it lies more than a day after `now`."""
    return moment if moment <= now + AHEAD else 0.0


def _typical(seconds: Sequence[float]) -> float:
    """The typical duration of recent calls: the lower median, or the shorter of two."""
    # One of two calls may have been the first, which includes costs that occur once.
    return min(seconds) if len(seconds) <= 2 else _median_low(seconds)


def _median_low(values: Sequence[float]) -> float:
    """The median, or the lower one of two: always one of the values."""
    return sorted(values)[(len(values) - 1) // 2]


# -- names by which one process finds what another has kept: hashes of functions, of kinds of arguments, and of devices
#
# A hash is of content alone: no path, line, address or value of an argument goes into it. It is the same in every
# process of one version of Python. The history is a hint, so hashes may tell apart what is the same (then nothing is
# known yet), and rarely take for the same what is not (then the hint is wrong, and measurements correct it).


#: How far functions are followed that hold functions, and values that hold values.
_DEEPEST_FUNCTION, _DEEPEST_VALUE = 3, 50
_DIGEST_BYTES = 16


def function_hash(function: Callable[..., Any]) -> str | None:
    """A hash of what the function does, as far as its code says; `None` when there is no telling.

    It is made of bytecode, constants, names and the name of the module, and of those of functions that it captures.
    What else it captures, and what globals hold, does not count. It takes some 20 µs for each function and nested one.
    """
    try:
        content = _function(function, 0)
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything when it is looked at
        return None
    return None if content is None else _digest(content)


def function_name(function: Callable[..., Any]) -> str:
    """The module and the qualified name of a function, for people, on one line; "?" for an object that raises."""
    try:
        inner = function.func if isinstance(function, functools.partial) else function
        name = getattr(inner, "__qualname__", None) or getattr(inner, "__name__", None)
        owner = inner if isinstance(name, str) else type(inner)
        module = getattr(owner, "__module__", None)
        name = name if isinstance(name, str) else type(inner).__qualname__
    except Exception:  # noqa: BLE001 - as above
        return "?"
    return plain_name(f"{module}.{name}" if isinstance(module, str) else name)


def signature_hash(key: Hashable) -> str:
    """Return a hash of a call's signature, as `anygpu.calls.signature` makes it, for this and other processes.

    Classes of the user's are in a signature by numbers that a process gives them in the order in which it meets them,
    and long strings by hashes with a seed of their own. So calls with these may not be found again, and a program that
    meets its classes in another order may find those of another class.
    """
    return _digest(_value(key, 0))


def device_stamp(device: Device, libraries: Iterable[str], isolation: str | None, cores: int | None = None) -> str:
    """A hash of what has to be the same for a time to hold: device, driver, versions, isolation, and cores.

    `libraries` are the names of the engine's distributions; `cores` are those that this process may use.
    """
    return _digest(_value((stamp_of(device, libraries), device.id, isolation, cores or usable_processors()), 0))


def _digest(content: bytes) -> str:
    """The hash of some bytes, as hexadecimal digits."""
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


# -- values, each as bytes that begin with what it is and how long it is, so that no two run together


def _tagged(tag: str, *parts: bytes) -> bytes:
    """Bytes that say what a value is and how many parts it has, each with its length, so that no two values run
    together.
    """
    return b"".join((f"{tag}:{len(parts)}[".encode(), *(f"{len(part)}:".encode() + part for part in parts)))


def _text(text: str) -> bytes:
    """A text as UTF-8; lone surrogates, which Python allows in names, too."""
    return text.encode("utf-8", "surrogatepass")


def _named(tag: str, what: Any) -> bytes:
    """A class or function as bytes: its module and qualified name."""
    return _tagged(tag, _text(str(what.__module__)), _text(str(what.__qualname__)))


def _value(value: Any, depth: int) -> bytes:
    """Bytes that are equal for equal values, in every process; only the type counts for what cannot be compared."""
    kind = type(value)
    if depth > _DEEPEST_VALUE:
        return _named("deep", kind)
    if kind is str:
        return _tagged("str", _text(value))
    if kind is bytes:
        return _tagged("bytes", value)
    if kind is int or kind is bool:
        return _tagged(kind.__name__, f"{value:x}".encode())
    if kind is float:
        return _tagged("float", value.hex().encode())
    if kind is complex:
        return _tagged("complex", value.real.hex().encode(), value.imag.hex().encode())
    if kind is tuple:
        return _tagged("tuple", *(_value(each, depth + 1) for each in value))
    if kind is frozenset:
        return _tagged("frozenset", *sorted(_value(each, depth + 1) for each in value))
    if kind is slice:  # a constant of code, since Python 3.14
        return _tagged("slice", *(_value(each, depth + 1) for each in (value.start, value.stop, value.step)))
    if kind is CodeType:
        return _code(value, depth + 1)
    if kind is ModuleType:
        return _tagged("module", _text(value.__name__))
    if isinstance(value, type):
        return _named("type", value)
    # None, Ellipsis and NotImplemented are known by their type, and of anything else there is no more to be told.
    return _named("one", kind)


# -- functions


def _function(function: Any, depth: int) -> bytes | None:
    """Bytes that are equal for the same code, constants and captured functions; `None` for what has no code."""
    kind = type(function)  # and not isinstance: an object may say of itself that it is a function
    if depth > _DEEPEST_FUNCTION:
        return _named("deep", kind)
    if kind is FunctionType:
        captured = (_function(each, depth + 1) for each in _captured(function) if type(each) is FunctionType)
        return _tagged(
            "function",
            _text(str(function.__module__)),
            _text(function.__qualname__),
            _code(function.__code__, 0),
            *(each for each in captured if each is not None),
        )
    if kind is MethodType:
        return _with("method", _function(function.__func__, depth + 1), type(function.__self__))
    if kind is functools.partial:
        inner = _function(function.func, depth + 1)
        held = [_function(each, depth + 1) or b"" for each in function.args if callable(each)]
        names = (len(function.args), *sorted(function.keywords))
        return None if inner is None else _tagged("partial", inner, _value(names, 0), *held)
    if kind is np.ufunc or kind is type(np.dot):
        name = function.__name__
        return _tagged("numpy", _text(name)) if getattr(np, name, None) is function else None
    if kind is BuiltinFunctionType:
        owner = function.__self__
        return _tagged("builtin", _text(owner.__name__), _text(function.__qualname__)) if _is_module(owner) else None
    if isinstance(function, type):
        return None
    wrapped = getattr(kind, "__module__", None) == "functools" and getattr(function, "__wrapped__", None)
    if wrapped:  # a cache of functools around a function
        return _with("wrapped", _function(wrapped, depth + 1), kind)
    by_class = kind.__call__
    return _with("callable", _function(by_class, depth + 1), kind) if type(by_class) is FunctionType else None


def _is_module(value: Any) -> bool:
    """Whether a value is a module and not an instance of a subclass, which may compute its attributes."""
    return type(value) is ModuleType


def _with(tag: str, inner: bytes | None, kind: type) -> bytes | None:
    """The bytes of a callable that is made of another one and a class; `None` if the inner one has none."""
    return None if inner is None else _tagged(tag, inner, _named("type", kind))


def _captured(function: FunctionType) -> Iterator[Any]:
    """The defaults of a function, and the contents of its closure's cells that are bound."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is not bound yet
            yield cell.cell_contents


def _code(code: CodeType, depth: int) -> bytes:
    """Code as bytes: name, bytecode, exception table, argument counts, names and constants; no path and no line."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return _tagged(
        "code",
        _text(code.co_name),
        code.co_code,
        code.co_exceptiontable,
        _value(counts, depth),
        _value(names, depth),
        *(_value(each, depth + 1) for each in code.co_consts),
    )
