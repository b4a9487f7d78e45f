"""NumPy with other floating-point modes, also when Ctrl-C comes in between.

`with np.errstate(...)` is a function of Python at both ends: an interrupt inside of one of them leaves NumPy's modes
changed for as long as the thread lives. A context is entered and left by C.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


def float_errors(**modes: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function that computes with some modes changed, named as those of `np.errstate`.

    It sees its caller's context variables, as users' own functions inside of it may want to; what it sets is gone.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def compute(*given: P.args, **named: P.kwargs) -> T:
            np.seterr(**modes)
            return function(*given, **named)

        @functools.wraps(function)
        def run(*given: P.args, **named: P.kwargs) -> T:
            return contextvars.copy_context().run(compute, *given, **named)

        return run

    return decorate


def float_errors_ignored(function: Callable[P, T]) -> Callable[P, T]:
    """For a function that computes without warnings."""
    return float_errors(all="ignore")(function)
