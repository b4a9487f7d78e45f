"""What a short script calls. Nothing here or in the programs imports anygpu: the plain scripts are NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: How often a script calls its function; the last only where a call of NumPy is shorter than `SHORT_CALL`.
CALLS = (1, 3, 10, 30, 100, 1000)
SHORT_CALL = 5e-3


class Program(NamedTuple):
    """A function as a user of NumPy writes it, and what it is called with."""

    name: str
    function: Callable[..., Any]
    #: The arguments of one call, from a seed.
    make_args: Callable[[int], tuple[Any, ...]]
    #: About what a call of NumPy takes on two cores: how often it is called, and how long a script may take.
    numpy_seconds: float
    tags: frozenset[str]

    def calls(self, wanted: tuple[int, ...] = CALLS) -> tuple[int, ...]:
        """How often scripts call it, of what is wanted."""
        return tuple(calls for calls in wanted if calls < CALLS[-1] or self.numpy_seconds < SHORT_CALL)


def program(
    function: Callable[..., Any], make_args: Callable[[int], tuple[Any, ...]], milliseconds: float, *tags: str
) -> Program:
    """A program that has the name of its function."""
    return Program(function.__name__, function, make_args, milliseconds / 1e3, frozenset(tags))
