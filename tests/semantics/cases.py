"""How a case of the corpus is written down: a function, its arguments, and what changes between calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

#: Calls of each function. Not a multiple of the number of engines or of kinds of state, so that each meets each.
CALLS = 41


class Given(NamedTuple):
    """The arguments of one call."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def given(*arguments: Any, **keywords: Any) -> Given:
    return Given(arguments, keywords)


def _nothing(call: int) -> None:
    """Nothing changes."""


def _nothing_to_see() -> None:
    """Nothing outside of the function is compared."""


def _nothing_to_undo() -> None:
    """Nothing has to be put back."""


@dataclass
class World:
    """A function with everything around it. Each run of a case has one of its own."""

    function: Callable[..., Any]
    #: From the number of the call to what is passed.
    arguments: Callable[[int], Any]
    #: Called before each call, with its number.
    change: Callable[[int], Any] = _nothing
    #: What the function may have changed outside of it.
    seen: Callable[[], Any] = _nothing_to_see
    #: Puts back what others can see.
    undo: Callable[[], None] = _nothing_to_undo

    def given(self, call: int) -> Given:
        made = self.arguments(call)
        return made if isinstance(made, Given) else Given(tuple(made), {})


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], World] = field(repr=False)
    #: A part of the reason with which every call stays on NumPy; `None` when calls are to run on devices.
    stays_on_numpy: str | None = None
    #: Whether it is right either way: what is known of its state or arguments may or may not be enough to record it.
    either: bool = False
    #: Whether calls raise, so that there may be nothing to run anywhere else.
    raises: bool = False
    #: How far floats may lie apart, in units of their type's tolerance.
    within: float = 1.0


CASES: dict[str, Case] = {}


def _enter(made: Callable[..., Any], make: Callable[[], World], **about: Any) -> None:
    subject = made.__module__.rsplit(".", 1)[-1]
    name = f"{subject}.{made.__name__}"
    if name in CASES:
        raise ValueError(f"there are two cases with the name {name}.")
    CASES[name] = Case(name, make, **about)


def case(arguments: Callable[[int], Any], **about: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that depends on nothing but its arguments."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        _enter(function, lambda: World(function, arguments), **about)
        return function

    return enter


def case_of_state(**about: Any) -> Callable[[Callable[[], World]], Callable[[], World]]:
    """Makes a `World` anew for each run, with state that changes between calls."""

    def enter(make: Callable[[], World]) -> Callable[[], World]:
        _enter(make, make, **about)
        return make

    return enter


# -- arguments


def vector(call: int, size: int = 6, dtype: Any = np.float32) -> Any:
    """Numbers that are other ones with every call: multiples of 1/8, so that little is rounded."""
    numbers = np.random.default_rng(call + 1000 * size).integers(-31, 32, size)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return numbers > 0
    if kind == "u":
        return np.abs(numbers).astype(dtype)
    if kind == "i":
        return numbers.astype(dtype)
    if kind == "c":
        return (numbers / 8 + 1j * numbers[::-1] / 4).astype(dtype)
    return (numbers / 8).astype(dtype)


def matrix(call: int, rows: int = 3, columns: int = 4, dtype: Any = np.float32) -> Any:
    return vector(call, rows * columns, dtype).reshape(rows, columns)


def positive(call: int, size: int = 6, dtype: Any = np.float32) -> Any:
    """As `vector`, all of them between 1/4 and 5."""
    return np.abs(vector(call, size, dtype)) + np.dtype(dtype).type(0.25 if np.dtype(dtype).kind == "f" else 1)


def turn(call: int, *options: Any) -> Any:
    """One of several, each in its turn."""
    return options[call % len(options)]
