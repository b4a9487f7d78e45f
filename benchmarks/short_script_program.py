"""What a short script calls. Nothing here or in the programs imports anygpu: the plain scripts are NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: How often a script calls its function, where all of its calls take NumPy no longer than `LONGEST` seconds.
CALLS = (1, 3, 30, 300, 1000)
LONGEST = 8.0
#: The tag of programs that anygpu cannot record: they stay on NumPy, and have to take as long as on NumPy.
UNRECORDED = "unrecorded"

Arguments = tuple[Any, ...]


class Program(NamedTuple):
    """A function as a user of NumPy writes it, and what it is called with."""

    name: str
    function: Callable[..., Any]
    #: The arguments of one call, from a seed.
    make_args: Callable[[int], Arguments]
    #: About what a call of NumPy takes on two cores: how often it is called, and how long a script may take.
    numpy_seconds: float
    tags: frozenset[str]
    #: The arguments of the next call, from those of the last one and its result; none: two sets of them alternate.
    following: Callable[[Arguments, Any], Arguments] | None = None

    @property
    def recorded(self) -> bool:
        return UNRECORDED not in self.tags

    def calls(self, wanted: tuple[int, ...] = CALLS) -> tuple[int, ...]:
        """How often scripts call it, of what is wanted."""
        return tuple(calls for calls in wanted if calls * self.numpy_seconds <= LONGEST)


def program(
    function: Callable[..., Any],
    make_args: Callable[[int], Arguments],
    milliseconds: float,
    *tags: str,
    following: Callable[[Arguments, Any], Arguments] | None = None,
) -> Program:
    """A program that has the name of its function."""
    return Program(function.__name__, function, make_args, milliseconds / 1e3, frozenset(tags), following)
