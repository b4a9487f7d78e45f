"""NumPy's functions for our arrays: `np.where(x > 0, x, 0)` with an `Array` ends up here.

A function that one of ours implements is that one; our modules are imported until it is found. What we do not have
runs on the host, with a notice that names it, its line and the bytes it moved; what would lose its meaning there is
refused with what to write.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.call_notes import note_result
from anygpu.array.core.expression import active_tracer, note_error, users_line
from anygpu.array.core.overrides import FUNCTIONS, UFUNCS
from anygpu.array.core.traced_scalar import TracedScalar

#: The modules whose functions are registered in FUNCTIONS when they are imported, those that most programs use first.
MODULES = (
    "reductions",
    "elementwise",
    "manipulation",
    "selection",
    "creation",
    "products",
    "types",
    "ranges",
    "concatenation",
    "numeric",
    "sorting",
    "statistics",
    "linalg",
    "histograms",
    "padding",
    "polynomials",
    "fourier",
)
#: The modules for the functions of a package of NumPy's.
_OF_PACKAGE = {"numpy.linalg": "linalg", "numpy.fft": "fourier"}

#: Functions that print or write values out, so that they have to come to the host: no notice is due.
TELL_VALUES = ("array2string", "array_repr", "array_str", "save", "savetxt", "savez", "savez_compressed")

#: Functions that have no meaning for an array that is not in this process's memory, and what to write instead.
REFUSED: dict[str, str] = {
    "asfortranarray": "the order in memory is the device's own business: leave it out",
    "may_share_memory": "x.base tells what an array is a view of",
    "shares_memory": "x.base tells what an array is a view of",
    "busday_count": "np.busday_count(np.asarray(x), …)",
    "busday_offset": "np.busday_offset(np.asarray(x), …)",
    "is_busday": "np.is_busday(np.asarray(x), …)",
    "datetime_as_string": "np.datetime_as_string(np.asarray(x))",
    "einsum_path": "np.einsum_path(…, np.asarray(x)): the path does not depend on the values",
}


#: Functions whose Python code warns about slices with too few elements; `np.errstate` does not hide that.
_WARN_OF_SLICES = frozenset(
    ("nanmax", "nanmin", "nanmean", "nanvar", "nanstd", "nanmedian", "nanquantile", "nanpercentile", "cov", "corrcoef")
)


def load_functions(theirs: Any) -> None:
    """Import our modules until one of them has registered a function for this one of NumPy's; all, if none has it.

    A process traces with few of them, and the time to load all would be its user's.
    """
    if isinstance(theirs, np.ufunc):
        first = "products" if theirs.signature else "elementwise"
    else:
        first = _OF_PACKAGE.get(getattr(theirs, "__module__", None) or "", MODULES[0])
    for name in (first, *MODULES):
        if theirs in FUNCTIONS or theirs in UFUNCS:
            return
        importlib.import_module(f"anygpu.array.functions.{name}")


def call_function(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """`function(*arguments, **options)`, where some of the arguments are our arrays."""
    try:
        return _called(function, arguments, options)
    except Exception as error:
        note_error(error)
        raise


def _called(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Our function in NumPy's place, or NumPy's own on the host where we have none.

    Modules are loaded until the function is found. While a function is traced, the result's memory layout is noted.
    Raises `TypeError` with what to write instead where the host's result would mean something else.
    """
    if function not in FUNCTIONS:
        load_functions(function)
    ours = FUNCTIONS.get(function)
    name = getattr(function, "__name__", str(function))
    if ours is not None:
        out = options.pop("out", None) if "out" in options else None
        result = ours(*arguments, **options)
        if out is not None:
            return _into(out, result, name)
        tracer = active_tracer.get()
        if tracer is None:
            return result
        tracer.warns_anyway |= name in _WARN_OF_SLICES
        return note_result(function, arguments, options, result)
    if name in REFUSED:
        raise TypeError(f"np.{name} does not work on an anygpu Array; instead: {REFUSED[name]}.")
    return _on_host(function, name, arguments, options)


def _into(out: Any, result: Any, name: str) -> Array:
    """Assign the result to `out` and return that. Raises `TypeError` for an `out` that is no `Array`."""
    if not isinstance(out, Array):
        raise TypeError(f"np.{name} of an anygpu Array cannot write into a {type(out).__name__}: omit out=.")
    return out._assign(as_array(result))


def _on_host(function: Any, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """NumPy's function on host copies; arrays of the result go back to the device.

    The operation, its line and the bytes that it moved are reported to receipts and warnings. Results of functions that
    tell values, such as `allclose`, are returned as they are and not reported.
    """
    # Late: most functions have nothing that runs here.
    from anygpu.receipts.receipt import HostOperation, ran_on_host

    device = device_of(*_arrays_in((arguments, options)))
    result = function(*_hosted(arguments), **_hosted(options))
    if name in TELL_VALUES:
        return result
    returned = _returned(result, device)
    line = users_line()
    ran_on_host(
        HostOperation(
            operation=f"np.{name}",
            reason="anygpu has no such function yet",
            line=f"{line[0]}:{line[1]}" if line is not None else None,
            bytes_moved=sum(each.nbytes for each in _arrays_in((arguments, options, returned))),
        )
    )
    return returned


def _arrays_in(arguments: Any) -> Iterator[Array]:
    """The arrays among arguments, in nested tuples, lists and dictionaries too."""
    if isinstance(arguments, Array):
        yield arguments
    elif isinstance(arguments, dict):
        yield from _arrays_in(tuple(arguments.values()))
    elif isinstance(arguments, tuple | list):
        for each in arguments:
            yield from _arrays_in(each)


def _hosted(arguments: Any) -> Any:
    """The same arguments with NumPy arrays in place of ours; containers keep their types."""
    if isinstance(arguments, Array):
        return arguments.numpy()
    if type(arguments) is TracedScalar:
        return float(arguments)
    if isinstance(arguments, dict):
        return {name: _hosted(each) for name, each in arguments.items()}
    if isinstance(arguments, tuple) and hasattr(arguments, "_fields"):
        return type(arguments)(*map(_hosted, arguments))
    if isinstance(arguments, tuple | list):
        return type(arguments)(map(_hosted, arguments))
    return arguments


def _returned(result: Any, device: Any) -> Any:
    """The result with arrays of numbers moved to the device; named tuples and lists keep their types."""
    if type(result) is not Array and isinstance(result, np.ndarray) and result.dtype.kind in "biufc":
        return as_array(result, device)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*(_returned(each, device) for each in result))
    if isinstance(result, tuple | list):
        return type(result)(_returned(each, device) for each in result)
    return result
