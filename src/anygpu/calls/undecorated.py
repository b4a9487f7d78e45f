"""Functions without a decorator, as `run` and `submit` take them, with what is known of their calls.

It is kept by the code of the function and the options, as lambdas and closures are often made anew for each call.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from anygpu.calls.call_table import CallTable
from anygpu.calls.hints import NATIVE, NUMPY, code_of, marks_on
from anygpu.calls.offload import Calls, Offloaded, check_callable, check_function
from anygpu.calls.options import CallOptions, Options, options
from anygpu.calls.signature import function_key

#: Functions without a decorator that are remembered.
_MOST_FUNCTIONS = 256


class FunctionTables:
    """The call sites of functions without a decorator, by the key of the function and its options.

    There is no lock: each step is one operation of a dict, and a process may be forked at any moment.
    """

    def __init__(self) -> None:
        self._tables: OrderedDict[Hashable, CallTable] = OrderedDict()

    def find(self, key: Hashable) -> CallTable | None:
        """Return the calls that are known of a function; it is not the next to be forgotten."""
        found = self._tables.get(key)
        if found is not None:
            with contextlib.suppress(KeyError):  # forgotten since, by another thread
                self._tables.move_to_end(key)
        return found

    def remember(self, key: Hashable, table: CallTable) -> CallTable:
        """Keep what is known of a function; if another thread has done so since, that is returned."""
        table = self._tables.setdefault(key, table)
        if len(self._tables) > _MOST_FUNCTIONS:
            self._tables.popitem(last=False)
        return table

    def forget(self) -> None:
        """Forget all functions."""
        self._tables.clear()


_functions = FunctionTables()


def unwrapped(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the innermost function, with all arguments: partials and methods are made anew for each call."""
    keywords: dict[str, Any] = {}
    while True:
        if type(function) is functools.partial:
            arguments, keywords = function.args + arguments, {**function.keywords, **keywords}
            function = function.func
        elif type(function) is types.MethodType and isinstance(function.__func__, Offloaded):
            arguments, function = (function.__self__, *arguments), function.__func__
        else:
            return function, arguments, keywords


def remembered(function: Callable[..., Any], given: CallOptions) -> Calls:
    """Return a function without a decorator, with the call sites of earlier calls with these options."""
    if isinstance(function, Offloaded):
        if all(value is None for value in given.values()):
            return function
        function = function.function
    wanted = options(**given)
    table = table_of(function, wanted)
    if wanted.allows_native:
        return Offloaded(function, wanted, table=table)
    return Calls(function, table)


def table_of(function: Callable[..., Any], wanted: Options) -> CallTable:
    """Return the call sites of a function under these options, shared by all that use the default planner."""
    check_callable(function)
    same = function_key(function)
    table = _functions.find((same, wanted)) if same is not None else None
    if table is None:
        check_function(function)
        table = CallTable(wanted, code_of(function))
        if wanted.allows_native:
            table.numpy_marks, table.native_marks = marks_on(NUMPY), marks_on(NATIVE)
        if same is not None:
            table = _functions.remember((same, wanted), table)
    return table
