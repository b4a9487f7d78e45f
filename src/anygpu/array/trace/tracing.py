"""From a function to a program: the function is called once with arrays that have a shape and a type, and no values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array
from anygpu.array.core.expression import TakesTooLong, Value, limited_to, linearise
from anygpu.array.core.recording import dtype_name
from anygpu.array.core.structure import LEAF, flatten, unflatten
from anygpu.array.trace.attempt import TraceAttempt, attempt_to_trace, family, scalar_inputs
from anygpu.array.trace.captures import Capture, CaptureSearch, TooMuch
from anygpu.array.trace.guards import bits, digest, same_value
from anygpu.array.trace.traced import NotTraceable, Precision, Traced, TraceResult, as_function
from anygpu.base.units import readable_seconds
from anygpu.errors import InvalidOption
from anygpu.program.graph import Program
from anygpu.program.precision import in_single_precision
from anygpu.program.primitives import Spec


def record(
    function: Callable[..., Any], *arguments: Any, precision: Precision | None = None, **options: Any
) -> Program:
    """The program that `function(*arguments, **options)` performs on its arrays.

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


def trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    precision: Precision | None = None,
    by_value: frozenset[type] = frozenset(),
    views: bool = True,
    seconds: float | None = None,
) -> Traced | NotTraceable:
    """What `function(*arguments, **keywords)` computes, as a program, and how later calls meet it.

    Floats and ints become inputs too, unless their type is in `by_value` or the function asks for their values: then
    they are a part of the program, and `Traced.by_value` says so. Arguments that are returned, and views, are made
    again on the host; without `views` they are results of the program.

    The function is called twice among copies of everything that it can reach, with arrays that have no values, and
    both programs are compared: a function that does something else each time has none. What it would change outside
    of it is changed in the copies alone, and then it has no program either. After so many `seconds` it is given up,
    for now.
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
                return Traced(result, captures, by_value=attempt.by_value, precision=precision)
            why = result.why
            if not result.of_values:
                break
    except TakesTooLong:
        return NotTraceable(f"tracing it takes longer than {readable_seconds(seconds or 0.0)}", for_now=True)
    finally:
        search.forget()
    return why


def _attempts(search: CaptureSearch, by_value: frozenset[type]) -> list[TraceAttempt]:
    """From the most general program to the most particular one."""
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
    """What is looked at before every call: inputs by their type, and all that has become a part of the program."""
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
    test, facts, strides, flags = expected
    return bool(test(value, facts)) and value.strides == strides and value.flags.num == flags


def _same_strides(value: Any, expected: Any) -> bool:
    test, facts, strides, is_contiguous = expected
    if not test(value, facts):
        return False
    # Strides along axes of length 1 mean nothing.
    return bool(value.flags.c_contiguous if is_contiguous else value.strides == strides)


def _same_content(value: Any, expected: Any) -> bool:
    test, facts, known = expected
    return bool(test(value, facts)) and digest(value) == known


def _check(precision: Any) -> None:
    if precision not in (None, "float32"):
        raise InvalidOption(f'precision is "float32" or None; got {precision!r}.')


def _spec_of(argument: Any) -> Spec | None:
    if isinstance(argument, Spec):
        return argument
    # Not what is behind a tensor: asking for that would bring it to its device.
    if isinstance(argument, Array) or (isinstance(argument, np.ndarray) and argument.dtype.kind in "biufc"):
        return Spec(argument.shape, dtype_name(argument.dtype))
    return None


def _nothing(function: Callable[..., Any]) -> str:
    return f"{_name(function)} returns no array, so there is nothing to trace."


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
