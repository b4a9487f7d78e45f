"""Which calls of NumPy are recorded: those for which types, shapes and strides decide what comes out, and no values.

Everything else (an index by values, a function that may raise an error for some values, an option that is no plain
value) is called at once with NumPy's own arrays.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.deferred.layouts import MOST_FORMS, Layout, Op, Selection
from anygpu.array.deferred.operators import may_raise_power
from anygpu.array.deferred.recorder import Recorder, _frame
from anygpu.array.deferred.script import called_from

_PLAIN = frozenset((bool, int, str, type(None)))
_TYPES: dict[Any, str] = {float: "float", int: "int", bool: "bool", complex: "complex"}

# -- ufuncs

#: NumPy warns of an `out` that has no name.
_NAMED_OUT = (np.maximum, np.minimum)


def _into(ufunc: np.ufunc) -> Callable[..., Any]:
    """The function, with an array to write to behind its operands."""
    if ufunc not in _NAMED_OUT:
        return ufunc
    return lambda *given: ufunc(*given[:-1], out=given[-1])  # type: ignore[call-overload]


#: NumPy's own functions of elements, with one result.
UFUNCS: dict[Any, Op] = {
    each: Op(
        each,
        f"np.{name}({', '.join(f'{{{number}}}' for number in range(each.nin))})",
        ufunc=_into(each) if each.signature is None else None,
    )
    for name, each in vars(np).items()
    if type(each) is np.ufunc and each.nout == 1
}
_NAMES = {each: name for name, each in vars(np).items() if type(each) is np.ufunc and each.nout == 1}
_forms: dict[Any, Op] = {}


def call_ufunc(
    recorder: Recorder, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A call of a ufunc, or of a method of one, with an array that stands for NumPy's among the operands."""
    if not options and method == "__call__" and ufunc in UFUNCS and ufunc is not np.power:
        return recorder.record(UFUNCS[ufunc], inputs, 3)
    op = None
    operands = inputs
    if ufunc in UFUNCS and not (ufunc is np.power and may_raise_power(*inputs)):
        if method == "__call__":
            if not options:
                op = UFUNCS[ufunc]
            elif list(options) == ["out"] and len(inputs) == ufunc.nin:
                op, operands = _with_out(ufunc), (*options["out"], *inputs)
        elif method == "reduce" and options.get("out") is None and "where" not in options:
            given = {name: each for name, each in options.items() if name != "out"}
            op = _form(ufunc.reduce, f"np.{_NAMES[ufunc]}.reduce", inputs[1:], given)
            operands = inputs[:1]
    if op is not None:
        return recorder.record(op, operands, 3)
    return _at_once(recorder, getattr(ufunc, method), inputs, options, ufunc.__name__, options.get("out"), 3)


def _with_out(ufunc: np.ufunc) -> Op:
    key = (ufunc, "out")
    found = _forms.get(key)
    if found is None:
        names = ", ".join(f"{{{number + 1}}}" for number in range(ufunc.nin))
        text = f"np.{_NAMES[ufunc]}({names}, out={{0}})"
        if ufunc in _NAMED_OUT:
            found = Op(lambda out, *given: ufunc(*given, out=out), text, writes=True)  # type: ignore[call-overload]
        else:
            found = Op(ufunc, text, writes=True, arranged=lambda out, *given: (*given, out))
        _forms[key] = found
    return found


# -- functions and methods

#: How many of the first arguments are operands; all others are options.
_OPERANDS = {
    1: """sum prod mean std var max min amax amin any all argmax argmin cumsum cumprod count_nonzero ptp round
        around nan_to_num transpose swapaxes moveaxis rollaxis reshape ravel squeeze expand_dims flip fliplr flipud roll
        rot90 diff zeros_like ones_like empty_like copy real imag angle diagonal trace tril triu broadcast_to repeat
        tile nansum nanmean nanmax nanmin nanstd nanvar nanprod sort argsort isneginf isposinf
        atleast_1d atleast_2d atleast_3d sinc unwrap average median percentile quantile nanmedian nanpercentile
        nanquantile""",
    2: "dot inner outer vdot tensordot isclose full_like cross kron convolve searchsorted",
    3: "where clip interp",
}
_SEQUENCES = "concatenate stack hstack vstack dstack column_stack"
#: What is asked of arrays without looking at their values.
_META = "shape ndim size result_type can_cast common_type iscomplexobj isrealobj"
#: A view of it, whatever its layout is.
_VIEWS = frozenset(["transpose", "swapaxes", "moveaxis", "rollaxis", "squeeze", "expand_dims"])


def _named(names: str) -> dict[Any, str]:
    return {getattr(np, name): name for name in names.split() if hasattr(np, name)}


_FUNCTIONS = {function: (name, count) for count, names in _OPERANDS.items() for function, name in _named(names).items()}
_OF_SEQUENCES = _named(_SEQUENCES)
_ABOUT = frozenset(_named(_META))


def call_function(
    recorder: Recorder, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A call of one of NumPy's functions with an array that stands for NumPy's among its arguments."""
    if function in _ABOUT:
        return function(*map(_dummy, arguments), **{name: _dummy(each) for name, each in options.items()})
    op = None
    operands: tuple[Any, ...] = ()
    if function is np.histogram:
        counted = _histogram(recorder, *arguments, **options)
        if counted is not None:
            return counted
    if function is np.interp and arguments and type(arguments[0]) is np.flatiter:
        arguments = (arguments[0].__array__(), *arguments[1:])
    if function in _OF_SELECTED and len(arguments) == 1 and not options:
        found = recorder.reduce_selected(_OF_SELECTED[function], arguments[0], 3)
        if found is not None:
            return found
    if function is np.clip and list(options) == ["out"] and len(arguments) == 3 and options["out"] is not None:
        op, operands = _CLIPPED, (options["out"], *arguments)
    elif options.get("out") is None:
        given = {name: each for name, each in options.items() if name != "out"} if "out" in options else options
        known = _FUNCTIONS.get(function)
        if known is not None:
            name, count = known
            operands, rest = arguments[:count], arguments[count:]
            if name in _OF_FRACTIONS and rest and type(rest[0]) is list:
                rest = (tuple(rest[0]), *rest[1:])  # a list may change later
            if function is np.empty_like:
                # Nobody knows what is in new memory. With zeros native code and NumPy have the same in every part.
                function, name = np.zeros_like, "zeros_like"
            is_whole = len(operands) == count or (name == "clip" and len(operands) == 2)
            if is_whole and not _may_write(name, rest, given):
                op = _form(function, f"np.{name}", rest, given, operands=len(operands), only_view=name in _VIEWS)
        elif function in _OF_SEQUENCES and arguments and type(arguments[0]) in (list, tuple):
            operands = tuple(arguments[0])
            op = _sequence_form(function, len(operands), arguments[1:], given)
    if op is not None and all(map(is_operand, operands)):
        return recorder.record(op, operands, 3)
    # In a container that is not looked into there may still be one of ours: NumPy does not ask it again.
    call = getattr(function, "_implementation", function)
    return _at_once(recorder, call, arguments, options, getattr(function, "__name__", "it"), options.get("out"), 3)


_LEAST = Op(operator.methodcaller("min"), "{0}.min()")
_MOST = Op(operator.methodcaller("max"), "{0}.max()")


def _histogram(recorder: Recorder, a: Any, bins: Any = 10, range: Any = None, *others: Any, **options: Any) -> Any:
    """The counts and the edges of equal bins; `None` for others, and where NumPy warns, or raises an error.

    The counts wait. Edges are made of the least and the largest element.
    """
    is_array = type(a) is StandIn_ and not recorder.is_small(a) and a._layout.dtype.kind in "iuf"
    is_array = is_array and type(a._layout) is not Selection  # of which there may be nothing
    if not is_array or type(bins) is not int or others or options:
        return None
    if range is None:
        ends = recorder.record(_LEAST, (a,), 4), recorder.record(_MOST, (a,), 4)
        recorder.compute("np.histogram needs the least and the largest element", 4)
    elif type(range) is tuple and {int, float}.issuperset(map(type, range)):
        ends = (0, 0)
    else:
        return None
    try:
        with np.errstate(all="raise"):
            edges = np.histogram_bin_edges(np.array([plain(each, "") for each in ends], a._layout.dtype), bins, range)
    except (ArithmeticError, TypeError, ValueError):
        return None
    call = functools.partial(_counts, bins, range)
    counts = _remembered(call, f"np.histogram({{0}}, {bins!r}, {range!r})[0]", {}, None)
    return recorder.record(counts, (a,), 4), recorder.stand_in(edges)


def _counts(bins: int, range: Any, a: Any) -> Any:
    return np.histogram(a, bins, range)[0]


_OF_SELECTED: dict[Any, str] = {np.mean: "mean", np.sum: "sum"}


#: NumPy takes their fractions as a list too, and an axis of other functions not.
_OF_FRACTIONS = frozenset(("percentile", "quantile", "nanpercentile", "nanquantile"))
#: How many options stand before the one that lets a function sort its operand itself.
_MOST_BEFORE_OVERWRITING = {
    "median": 2, "nanmedian": 2, "percentile": 3, "nanpercentile": 3, "quantile": 3, "nanquantile": 3,
}  # fmt: skip


def _may_write(name: str, rest: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether options say that a function may write to its operand."""
    if name in _MOST_BEFORE_OVERWRITING:
        return "overwrite_input" in options or len(rest) > _MOST_BEFORE_OVERWRITING[name]
    return name == "nan_to_num" and (bool(rest) or "copy" in options)


_CLIPPED = Op(np.clip, "{0}[...] = np.clip({1}, {2}, {3})", writes=True, arranged=lambda out, *given: (*given, out))


def is_operand(value: Any) -> bool:
    """Whether a value is an array or a number that can be an operand of what is recorded."""
    kind = type(value)
    return (
        kind is StandIn_ or kind is float or kind is int or kind is np.ndarray or isinstance(value, np.generic | bool)
    )


def _form(
    call: Any, name: str, rest: tuple[Any, ...], options: dict[str, Any], *, operands: int = 1, only_view: bool = False
) -> Op | None:
    """The form of a call with these options behind its operands; `None` where they are no plain values."""
    key = (name, operands, _key(rest, options)) if rest or options else (name, operands)
    if None not in key and (found := _forms.get(key)) is not None:
        return found
    shown = _shown(rest, options)
    if shown is None:
        return None
    places = ", ".join(f"{{{number}}}" for number in range(operands))
    arranged = (lambda *given: (*given, *rest)) if rest else None
    op = _remembered(call, f"{name}({places}{shown})", options, arranged, only_view=only_view)
    if None not in key:
        _forms[key] = op
    return op


def _key(rest: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...] | None:
    """What options are known by; `None` for some that are equal to others and yet mean something else."""
    given = (*rest, *options.values())
    kinds = []
    for each in given:
        kind: Any = type(each)
        if kind is tuple:
            kind = tuple(map(type, each))
            if not _KEYS.issuperset(kind):
                return None
        elif kind not in _KEYS:
            return None
        kinds.append(kind)
    return (given, tuple(kinds), tuple(options))


#: Types of options that can be in a key: with equal values they mean the same. Zeros have signs.
_KEYS = frozenset((int, bool, str, type(None), type))


def _sequence_form(call: Any, count: int, rest: tuple[Any, ...], options: dict[str, Any]) -> Op | None:
    """The same for a call whose operands are one sequence, as those of `np.stack`."""
    shown = _shown(rest, options)
    if shown is None:
        return None
    places = "".join(f"{{{number}}}, " for number in range(count))
    return _remembered(call, f"np.{_OF_SEQUENCES[call]}(({places}){shown})", options, lambda *given: (given, *rest))


def _remembered(
    call: Any,
    text: str,
    options: dict[str, Any],
    arranged: Callable[..., tuple[Any, ...]] | None,
    *,
    only_view: bool = False,
) -> Op:
    """The form with this text, which says all that there is to it."""
    found = _forms.get(text)
    if found is None:
        if len(_forms) > MOST_FORMS:
            _forms.clear()
        made = functools.partial(call, **options) if options else call
        found = _forms[text] = Op(made, text, arranged=arranged, only_view=only_view)
    return found


def _shown(rest: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """Options as they are written behind operands."""
    if not rest and not options:
        return ""
    parts = []
    for each in rest:
        text = _text(each)
        if text is None:
            return None
        parts.append(f", {text}")
    for name, each in options.items():
        text = _text(each)
        if text is None:
            return None
        parts.append(f", {name}={text}")
    return "".join(parts)


def _text(value: Any) -> str | None:
    """A plain value as Python has it; `None` for any other."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value).replace("{", "{{").replace("}", "}}")
    if kind is tuple:
        return repr(value) if all(type(each) is int or type(each) is float for each in value) else None
    if kind is float and value == value and abs(value) != float("inf"):
        return repr(value)
    if isinstance(value, np.dtype):
        return f"np.{value.name}" if value.isnative and value.kind in "biufc" else None
    if isinstance(value, type):
        if value in _TYPES:
            return _TYPES[value]
        name: str = value.__name__
        if issubclass(value, np.generic) and getattr(np, name, None) is value:
            return f"np.{name}"
    return None


_METHODS = """sum prod mean std var max min any all argmax argmin cumsum cumprod astype copy reshape transpose swapaxes
    ravel flatten squeeze round conj conjugate repeat trace diagonal argsort"""
#: Methods that are recorded: how many of their first arguments are operands.
METHODS = dict.fromkeys(_METHODS.split(), 0) | {"dot": 1, "clip": 2}


def call_method(array: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A method of an array that stands for NumPy's."""
    recorder: Recorder = array._recorder
    count = METHODS[name]
    op = None
    if type(array._layout) is Selection and not arguments and not options:
        found = recorder.reduce_selected(name, array, 3)
        if found is not None:
            return found
    operands: tuple[Any, ...] = (array, *arguments[:count])
    if name == "astype" and "copy" in options:
        dtype = arguments[0] if arguments else options.get("dtype")
        keeps = _keeps_type(array._layout, dtype, arguments, options)
        if keeps and not options["copy"]:
            return array
        if keeps is not None:
            options = {name: each for name, each in options.items() if name != "copy"}
    if options.get("out") is None and "copy" not in options:
        op = _method_form(name, len(operands), arguments[count:], options, array._layout)
    if op is not None and (len(operands) == 1 or all(map(is_operand, operands))):
        return recorder.record(op, operands, 3)
    value = array._handed_out(f"{name} needs it")
    return _at_once(recorder, getattr(value, name), arguments, options, name, options.get("out"), 3)


def _keeps_type(layout: Layout, dtype: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool | None:
    """Whether NumPy gives an array itself that is to be copied only where its type changes; `None` if only it knows."""
    if len(arguments) > 1 or options.keys() - {"copy", "dtype"} or layout.is_number or dtype is None:
        return None
    try:
        return bool(np.dtype(dtype) == layout.dtype)
    except TypeError:
        return None


def _method_form(name: str, operands: int, rest: tuple[Any, ...], options: dict[str, Any], layout: Layout) -> Op | None:
    given = _key(rest, options) if rest or options else ()
    quick = (name, operands, layout.is_contiguous, given)
    if given is not None and (known := _methods.get(quick)) is not None:
        return known
    shown = _shown(rest, options)
    if shown is None:
        return None
    others = ", ".join(f"{{{number}}}" for number in range(1, operands))
    # A reshape that must copy would read what is not there: it is only foreseen where none can.
    is_view = name in _VIEWS or (name in ("reshape", "ravel") and layout.is_contiguous and "order" not in options)
    text = f"{{0}}.{name}({(others + shown).removeprefix(', ')})"
    key = (text, is_view)
    found = _forms.get(key)
    if found is None:
        if len(_forms) > MOST_FORMS:
            _forms.clear()
        call = operator.methodcaller(name, *rest, **options) if operands == 1 else _method(name, options)
        arranged = (lambda *given: (*given, *rest)) if operands > 1 and rest else None
        found = _forms[key] = Op(call, text, only_view=is_view, arranged=arranged)
    if given is not None:
        if len(_methods) > MOST_FORMS:
            _methods.clear()
        _methods[quick] = found
    return found


_methods: dict[Any, Op] = {}


def _method(name: str, options: dict[str, Any]) -> Callable[..., Any]:
    return functools.partial(getattr(np.ndarray, name), **options) if options else getattr(np.ndarray, name)


# -- at once


def plain(value: Any, why: str, depth: int = 2) -> Any:
    """The value with NumPy's own arrays in the place of ours, in lists, tuples and dicts too."""
    kind = type(value)
    if kind is StandIn_:
        return value._handed_out(why)
    if isinstance(value, list | tuple | deque):
        if not any(type(each) is StandIn_ or isinstance(each, list | tuple | dict) for each in value):
            return value
        parts = [plain(each, why) for each in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    if kind is dict:
        return {name: plain(each, why) for name, each in value.items()}
    if kind is slice:
        return slice(plain(value.start, why), plain(value.stop, why), plain(value.step, why))
    return value


def _at_once(
    recorder: Recorder, call: Any, arguments: tuple[Any, ...], options: dict[str, Any], name: str, out: Any, depth: int
) -> Any:
    """Call NumPy with its own arrays; what comes back stands for NumPy's again."""
    if recorder.waits:
        recorder.compute(f"NumPy computes {name} at once", depth + 1)
    why = f"{name} needs it"
    real = plain(arguments, why)
    named = plain(options, why)
    frame = _frame(depth)
    recorder.at_once += 1
    made = functools.partial(call, **named) if named else call
    result = called_from((frame.f_code, frame.f_lasti, frame.f_globals))(made, real)
    if out is not None:
        wanted = out[0] if type(out) is tuple and len(out) == 1 else out
        if type(wanted) is StandIn_ and result is wanted._value:
            return wanted
    for ours, theirs in zip(arguments, real, strict=True):
        if result is theirs and type(ours) is StandIn_:
            return ours
    if type(result) in (list, tuple):
        return type(result)([recorder.stand_in(each) for each in result])
    return recorder.stand_in(result)


def _dummy(value: Any) -> Any:
    if type(value) is StandIn_:
        layout = value._known_layout()
        return layout.dtype.type(0) if layout.is_number else layout.dummy
    return value


#: `StandIn`, which imports this module.
StandIn_: Any = None
