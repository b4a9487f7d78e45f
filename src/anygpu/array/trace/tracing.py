"""From a function to a program: the function is called with arrays that have a shape and a type, and no values.

`trace` is what placement uses: it guards everything that the program depends on, and never raises for what the function
does. `record` is the plain form of it, for functions of arrays alone.
"""

from __future__ import annotations

import opcode
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice, ArrayInput, owner_of
from anygpu.array.core.array import Array
from anygpu.array.core.expression import (
    TakesTooLong,
    Value,
    limited_to,
    linearise,
)
from anygpu.array.core.recording import dtype_name
from anygpu.array.core.structure import LEAF, Structure, flatten, unflatten
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.array.trace.captures import Capture, CaptureSearch, TooMuch
from anygpu.array.trace.copies import Copies, original
from anygpu.array.trace.guards import bits, digest, is_in_order, same_value
from anygpu.array.trace.python_warnings import shown_once
from anygpu.array.trace.returning import drawn
from anygpu.array.trace.traced import (
    NotTraceable,
    Precision,
    Traced,
    TraceResult,
    as_function,
)
from anygpu.base.interrupts import is_of_a_handler
from anygpu.base.units import readable_seconds
from anygpu.errors import VALUE_NEEDED, AnyGPUError, InvalidOption, ValueNeeded
from anygpu.program.exactness import Rounding
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec
from anygpu.program.transforms import in_single_precision

# -- one attempt: the function is called twice among copies, and both programs must be the same


class TraceAttempt(NamedTuple):
    """Which values are abstract while the function is traced."""

    by_value: frozenset[type]
    #: Whether arrays that are not arguments are abstract too.
    abstracts_captures: bool


def family(kind: type[Any]) -> type[Any]:
    """Return the type of Python's that a type of numbers goes with."""
    return float if issubclass(kind, float | np.floating) else int


#: More numbers are constants of the program: they are data that should be an array.
MAX_SCALAR_INPUTS = 32


def scalar_inputs(search: CaptureSearch, attempt: TraceAttempt) -> frozenset[int]:
    """Return the positions of the numbers that are inputs, at most `MAX_SCALAR_INPUTS`; others are constants."""
    found = [
        position
        for position, each in enumerate(search.captures)
        if each.kind == "number" and family(each.expected) not in attempt.by_value
    ]
    return frozenset(found[:MAX_SCALAR_INPUTS])


class Failure(NamedTuple):
    """An attempt that led to nothing."""

    why: NotTraceable
    #: Whether it may work with the values of numbers, or of arrays from outside.
    of_values: bool = False


def attempt_to_trace(search: CaptureSearch, attempt: TraceAttempt, views: bool) -> TraceResult | Failure:
    """Trace the function twice and compare the programs; return the second result, or why there is none.

    `Failure.of_values` says that another attempt may succeed, with numbers or outer arrays as constants. Exceptions
    from the user's interrupt handlers are raised.
    """
    tracer = AbstractDevice()
    try:
        first = _call(search, attempt, views, tracer)
        if isinstance(first, NotTraceable):
            return Failure(first)
        tracer = AbstractDevice()
        second = _call(search, attempt, views, tracer)
    except AnyGPUError as error:
        line = error.line if isinstance(error, ValueNeeded) else None
        return Failure(NotTraceable(tracer.reason or _reason(error), line), tracer.asked_of_known)
    except Exception as error:
        if is_of_a_handler(error):
            raise
        # The user's own, whatever it is: the function itself raises it again.
        if tracer.reason is not None:
            return Failure(NotTraceable(tracer.reason), tracer.asked_of_known)
        # It may be because of what stands there instead; when nothing does, it is the function's own.
        error.__traceback__ = None if _is_ours(error) else error.__traceback__
        # Hide exceptions derived from ours: their text names anygpu types.
        own = None if error.__traceback__ is None or tracer.raised is not None else error
        return Failure(NotTraceable(f"it raises {_shown(error)}", error=own), True)
    if isinstance(second, NotTraceable):
        return Failure(second)
    difference = _difference(first, second) or _unfollowed(first.tracer, second.tracer)
    return Failure(NotTraceable(difference)) if difference is not None else second


def _shown(error: Exception) -> str:
    """Return an error as text, even if it cannot be shown."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - an error that cannot even be shown
        return type(error).__name__


def _unfollowed(first: AbstractDevice, second: AbstractDevice) -> str | None:
    """Return why the trace ends at an array that both calls met and did not make; `None` if there is none."""
    stayed = [each for identity, each in second.owners.items() if first.owners.get(identity) is each]
    if not stayed:
        return None
    return (
        f"it uses an array of {stayed[0].dtype}{list(stayed[0].shape)} that it reaches in a way that anygpu cannot "
        "follow; pass it as an argument"
    )


def _call(
    search: CaptureSearch, attempt: TraceAttempt, views: bool, tracer: AbstractDevice
) -> TraceResult | NotTraceable:
    """Call copies of the function and its arguments once, and record what they do with `tracer`.

    Arguments become abstract arrays. Arrays from outside do too, or in the last attempt are passed read-only with their
    values, which a guard then checks at every call.
    """
    if not attempt.abstracts_captures and (search.any_name or "at" in search.names):
        # NumPy's `ufunc.at` writes to arrays that are read-only too.
        for position, each in enumerate(search.values):
            if isinstance(each, np.ndarray) and not search.is_argument(position):
                return NotTraceable(f"it may write to {search.captures[position].name} by the `at` of a ufunc")
    scalars = scalar_inputs(search, attempt)
    arrays: dict[int, Array] = {}

    def stands_for(position: int) -> Any:
        value = search.values[position]
        if search.captures[position].kind == "number":
            if position not in scalars:
                return value
            if isinstance(value, np.generic):
                return Array(tracer.number(f"a[{position}]", dtype_name(value.dtype)))
            return TracedScalar(f"a[{position}]", tracer, type(value))
        is_argument = search.is_argument(position)
        if is_argument or attempt.abstracts_captures:
            spec = Spec(value.shape, dtype_name(value.dtype))
            if isinstance(value, np.ndarray):
                tracer.examples[position] = value
            read = ArrayInput(position, is_argument)
            made = arrays[position] = Array(Value.on(tracer, read, spec, ordered=is_in_order(value)))
            return made
        if isinstance(value, np.ndarray):
            tracer.known.add(id(owner_of(value)))
            value = value.view()
            value.flags.writeable = False
        return value

    copies = Copies(search, stands_for, tracer.stop)
    try:
        return _record(copies, arrays, search, views, tracer)
    finally:
        # Functions and their globals hold each other: what they hold of the user's shall not wait for the collector.
        copies.forget()
        tracer.examples.clear()


def _record(
    copies: Copies, arrays: dict[int, Array], search: CaptureSearch, views: bool, tracer: AbstractDevice
) -> TraceResult | NotTraceable:
    """Run the copied call and record its operations; refuse a function that wrote to an argument or changed anything
    else.
    """
    function, arguments, keywords = copies.call()
    stored = {position: each._stored for position, each in arrays.items()}
    with tracer.recording(), shown_once(tracer):
        returned, structure = flatten(function(*arguments, **keywords))
    structure = _of_the_users(structure)
    if tracer.reason is not None:
        tracer.stop_again()
    if tracer.raised is not None:
        return NotTraceable(f"it catches a {type(tracer.raised).__name__}, whose words only NumPy knows")
    for position, value in stored.items():
        if arrays[position]._stored is not value:
            return NotTraceable(f"it writes to {search.captures[position].name}")
    changed = copies.changed()
    if changed is not None:
        return NotTraceable(f"it changes {changed}")
    return drawn(tracer, arrays if views else None, returned, structure)


def _of_the_users(structure: Structure) -> Structure:
    """Return the same with the user's own classes in the place of those that were made for the copies."""
    if structure.container is None:
        return structure
    children = tuple(map(_of_the_users, structure.children))
    return Structure(original(structure.container), structure.names, children)


def _reason(error: AnyGPUError) -> str:
    """Return why a function cannot be traced, from the error that tracing met."""
    if isinstance(error, ValueNeeded):
        at = f" ({error.line})" if error.line else ""
        return f"it {VALUE_NEEDED}{at}; use np.where()"
    return str(error)


def _is_ours(error: BaseException) -> bool:
    """Return whether an error may come from the abstract arrays rather than from the function itself.

    The function may be right then, so it is called with its real arguments, which shows its own error if it has one. An
    error that a `raise` statement in the user's own code raised is the user's.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return True
    frame = last.tb_frame
    module = str(frame.f_globals.get("__name__"))
    if module.partition(".")[0] in ("numpy", "anygpu") or "site-packages" in frame.f_code.co_filename:
        return True
    is_raised = frame.f_code.co_code[last.tb_lasti] == _RAISE
    return not is_raised and isinstance(error, ValueError | TypeError | AttributeError | BufferError)


#: A `raise` statement, as opposed to an operation that failed.
_RAISE = opcode.opmap["RAISE_VARARGS"]


def _difference(first: TraceResult, second: TraceResult) -> str | None:
    """Return the reason why two traces do not describe one function; `None` if they agree."""
    if first.program != second.program or first.structure != second.structure or first.texts != second.texts:
        return "it is not deterministic: two traces of it gave different programs"
    if first.digests != second.digests or first.reads != second.reads or first.leaves != second.leaves:
        return "it is not deterministic: two traces of it computed with different numbers"
    for one, other in zip(first.returned, second.returned, strict=True):
        if one is not other and not _same_static(one, other):
            return "it is not deterministic: two traces of it returned different values"
    return None


def _same_static(one: Any, other: Any) -> bool:
    """Return whether two values that are no results of operations are the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return repr(one) == repr(other)


# -- tracing


def record(
    function: Callable[..., Any], *arguments: Any, precision: Precision | None = None, **options: Any
) -> Program:
    """Return the program that `function(*arguments, **options)` performs on its arrays.

    Arrays among the positional arguments (ours, NumPy's, or a `Spec` of shape and type), also in lists and dicts,
    become the program's inputs; everything else is passed on as it is. What the function returns, nested as it may be,
    becomes the outputs in order. With `precision="float32"` 64-bit numbers are narrowed to 32 bits, inputs included;
    never otherwise.
    """
    _check(precision)
    tracer = AbstractDevice(inlines=False)
    inputs: list[Value] = []

    def sketched(argument: Any) -> Any:
        spec = _spec_of(argument)
        if spec is None:
            leaves, structure = flatten(argument)
            return argument if structure is LEAF else unflatten(structure, [sketched(each) for each in leaves])
        inputs.append(Value.on(tracer, None, spec))
        return Array(inputs[-1])

    results = [each for each in flatten(function(*map(sketched, arguments), **options))[0] if isinstance(each, Array)]
    if not results:
        raise InvalidOption(_nothing(function))
    program, leaves, _ = linearise([each._value for each in results], inputs=inputs, keep_held=False)
    captured = leaves[len(inputs) :]
    if captured:
        raise InvalidOption(
            f"{_name(function)} uses {len(captured)} array(s) from outside, such as {captured[0].spec}. "
            "Pass it as an argument."
        )
    return in_single_precision(program) if precision == "float32" else program


def trace_small() -> Traced | NotTraceable:
    """Trace a small function, which loads the modules that tracing loads when it first meets an operation."""
    return trace(lambda x: (np.exp(x) * 2 + x.sum(axis=0))[:1], (np.zeros((2, 2), np.float32),), {})


def trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    precision: Precision | None = None,
    by_value: frozenset[type] = frozenset(),
    views: bool = True,
    seconds: float | None = None,
    exact: Rounding | None = None,
) -> Traced | NotTraceable:
    """Trace `function(*arguments, **keywords)` to a program, with guards that tell which later calls may use it.

    Floats and ints become inputs too, unless their type is in `by_value` or the function asks for their values: then
    they are part of the program, and `Traced.by_value` says so. Arguments that are returned, and views, are made again
    on the host; without `views` they are results of the program. `exact` names how native code rounds, and asks for a
    program that gives NumPy's bits wherever that is possible.

    The function is called twice, among copies of everything that it can reach, with arrays that have no values, and
    both programs are compared: a function that does something else each time cannot be traced. Nor can one that changes
    anything outside of itself; only the copies are changed then. Tracing stops after `seconds`, with
    `NotTraceable.for_now`.
    """
    _check(precision)
    try:
        search = CaptureSearch(as_function(function), arguments, keywords)
    except TooMuch:
        return NotTraceable("it depends on more objects than anygpu can check before every call")
    why = NotTraceable("")
    try:
        for attempt in _attempts(search, by_value):
            with limited_to(seconds):
                result = attempt_to_trace(search, attempt, views)
            if isinstance(result, TraceResult):
                captures = _guards(search, attempt, result.tracer)
                return Traced(result, captures, by_value=attempt.by_value, precision=precision, exact=exact)
            why = result.why
            if not result.of_values:
                break
    except TakesTooLong:
        return NotTraceable(f"tracing it takes longer than {readable_seconds(seconds or 0.0)}", for_now=True)
    finally:
        search.forget()
    return why


def _attempts(search: CaptureSearch, by_value: frozenset[type]) -> list[TraceAttempt]:
    """Return the attempts to make, from the most general program to the most particular one.

    First all numbers are inputs, then ints and then floats are constants, and at last arrays from outside are too.
    """
    numbers = [each.expected for each in search.captures if each.kind == "number"]
    found = [TraceAttempt(by_value, True)]
    if any(family(each) is int for each in numbers) and int not in by_value:
        found.append(TraceAttempt(by_value | {int}, True))
    if any(family(each) is float for each in numbers) and float not in by_value:
        found.append(TraceAttempt(by_value | {int, float}, True))
    if any(each.kind == "array" and not search.is_argument(number) for number, each in enumerate(search.captures)):
        found.append(TraceAttempt(by_value | {int, float}, False))
    return found


def _guards(search: CaptureSearch, attempt: TraceAttempt, tracer: AbstractDevice) -> tuple[Capture, ...]:
    """Return the captures with the guards of this attempt: inputs by type, shape and order, constants by their value.

    Where the function has asked for the memory layout or strides of an array, these are guarded too.
    """
    guards = []
    scalars = scalar_inputs(search, attempt)
    for position, capture in enumerate(search.captures):
        value = search.values[position]
        if capture.kind == "number" and position not in scalars:
            capture = capture._replace(kind="value", test=same_value, expected=(type(value), bits(value)))
        elif capture.kind == "array" and not attempt.abstracts_captures and not search.is_argument(position):
            capture = capture._replace(test=_same_content, expected=(capture.test, capture.expected, digest(value)))
        elif position in tracer.layouts:
            facts = (capture.test, capture.expected, value.strides, value.flags.num)
            capture = capture._replace(test=_same_layout, expected=facts)
        elif position in tracer.strides and isinstance(value, np.ndarray):
            facts = (capture.test, capture.expected, value.strides, value.flags.c_contiguous)
            capture = capture._replace(test=_same_strides, expected=facts)
        guards.append(capture)
    return tuple(guards)


def _same_layout(value: Any, expected: Any) -> bool:
    """Return whether an array passes its test, and has the same strides and flags."""
    test, facts, strides, flags = expected
    return bool(test(value, facts)) and value.strides == strides and value.flags.num == flags


def _same_strides(value: Any, expected: Any) -> bool:
    """Return whether an array passes its test, and lies in memory as it did: contiguous, or with the same strides."""
    test, facts, strides, is_contiguous = expected
    if not test(value, facts):
        return False
    # Strides along axes of length 1 mean nothing.
    return bool(value.flags.c_contiguous if is_contiguous else value.strides == strides)


def _same_content(value: Any, expected: Any) -> bool:
    """Return whether an array passes its test, and has the same elements."""
    test, facts, known = expected
    return bool(test(value, facts)) and digest(value) == known


def _check(precision: Any) -> None:
    """Raise `InvalidOption` for a precision that there is not."""
    if precision not in (None, "float32"):
        raise InvalidOption(f'precision is "float32" or None; got {precision!r}.')


def _spec_of(argument: Any) -> Spec | None:
    """Return the shape and dtype of an argument, or `None` if it is no array."""
    if isinstance(argument, Spec):
        return argument
    # Not what is behind a tensor: asking for that would bring it to its device.
    if isinstance(argument, Array) or (isinstance(argument, np.ndarray) and argument.dtype.kind in "biufc"):
        return Spec(argument.shape, dtype_name(argument.dtype))
    return None


def _nothing(function: Callable[..., Any]) -> str:
    """Return the message for a function that returns no array."""
    return f"{_name(function)} returns no array, so there is nothing to trace."


def _name(function: Callable[..., Any]) -> str:
    """Return the name of a function, for messages."""
    return getattr(function, "__name__", repr(function))
