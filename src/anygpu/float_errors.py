"""NumPy without its floating-point warnings, also when Ctrl-C comes in between.

`with np.errstate(...)` is a function of Python at both ends: an interrupt inside of one of them leaves NumPy's modes
changed for as long as the thread lives. A context is entered and left by C, and takes a tenth of the time.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")

_IGNORED = contextvars.Context()
_IGNORED.run(np.seterr, all="ignore")


def float_errors_ignored(function: Callable[P, T]) -> Callable[P, T]:
    """For a function that only computes: it sees none of its caller's context variables, and sets none."""

    @functools.wraps(function)
    def run(*given: P.args, **named: P.kwargs) -> T:
        return _IGNORED.copy().run(function, *given, **named)

    return run


def float_errors(**modes: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function that computes with some modes of NumPy changed, named as those of `np.seterr`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def compute(*given: P.args, **named: P.kwargs) -> T:
            np.seterr(**modes)
            return function(*given, **named)

        @functools.wraps(function)
        def run(*given: P.args, **named: P.kwargs) -> T:
            return contextvars.copy_context().run(compute, *given, **named)

        return run

    return decorate
