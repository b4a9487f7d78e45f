"""NumPy's functions and ufuncs, each with the function of this package that takes its place for an `Array`.

A function is registered where it is defined, by `@implements(np.sum)`. Those modules import `Array`, so arrays cannot
import them: they reach them through the tables here, and through `Late` functions, which `anygpu.array` connects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import numpy as np

from anygpu.array.core.expression import active_tracer, note_error

if TYPE_CHECKING:
    from anygpu.array.core.array import Array
    from anygpu.array.core.expression import Tracer

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

#: NumPy's function → ours. `override` loads the modules that fill it, until it has what is asked for.
FUNCTIONS: dict[Any, Callable[..., Any]] = {}

#: NumPy's ufunc → ours.
UFUNCS: dict[Any, Callable[..., Any]] = {}


def implements(*theirs: Callable[..., Any] | str) -> Callable[[Function], Function]:
    """Register a function as ours for these of NumPy's.

    A function that not every NumPy from 2.0 on has is given by its name, as in `@implements("unstack")`.
    """

    def register(ours: Function) -> Function:
        for each in theirs:
            function = getattr(np, each, None) if isinstance(each, str) else each
            if isinstance(function, np.ufunc):
                UFUNCS[function] = ours
            elif function is not None:
                FUNCTIONS[function] = ours
        return ours

    return register


class Late(Generic[P, R]):
    """A function that is imported when `call` is called for the first time; from then on `call` is that function."""

    __slots__ = ("call",)

    call: Callable[P, R]

    def connect(self, find: Callable[[], Callable[P, R]]) -> None:
        """Called by `anygpu.array`: `find` imports the function and returns it."""

        def first(*arguments: P.args, **options: P.kwargs) -> R:
            self.call = find()
            return self.call(*arguments, **options)

        self.call = first


#: `Array.__array_ufunc__` with whatever NumPy passes it.
call_ufunc: Late[[np.ufunc, str, tuple[Any, ...], dict[str, Any]], Any] = Late()

#: The same for the everyday case, a call without options; `None` when it is not that.
call_plain_ufunc: Late[[np.ufunc, tuple[Any, ...]], Array | None] = Late()

#: `Array.__array_function__`.
call_function: Late[[Any, tuple[Any, ...], dict[str, Any]], Any] = Late()

#: An attribute that NumPy's arrays have and `Array` lacks, while a function is traced.
imitate_attribute: Late[[Array, str, Tracer], Any] = Late()

#: What a function of NumPy's returned while a function is traced, with how it lies in memory written down.
note_result: Late[[Any, tuple[Any, ...], dict[str, Any], Any], Any] = Late()

#: `array[key]` and `array[key] = new`.
get_item: Late[[Array, Any], Array] = Late()
set_item: Late[[Array, Any, Any], None] = Late()

#: Imports modules that register functions until one has registered this one of NumPy's; every one, if none has.
load_functions: Late[[Any], None] = Late()


def override(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Our function for one of NumPy's functions or ufuncs; raises `KeyError` for one that has none."""
    table = UFUNCS if isinstance(theirs, np.ufunc) else FUNCTIONS
    if theirs not in table:
        load_functions.call(theirs)
    return table[theirs]


def call_override(theirs: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call our function for this one of NumPy's, as a method or operator does; while tracing, its result is noted."""
    try:
        result = override(theirs)(*arguments, **options)
    except Exception as error:
        note_error(error)
        raise
    return result if active_tracer.get() is None else note_result.call(theirs, arguments, options, result)
