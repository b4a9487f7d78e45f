"""Whether calls of a function can be deferred without the option: nothing but what they return is left of them."""

from __future__ import annotations

import math
import timeit
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.deferred.layouts import can_stand_for
from anygpu.placement.escaping.evaluating import Evaluation
from anygpu.placement.escaping.guards import Guards
from anygpu.placement.escaping.values import (
    ARRAY,
    IS_ARRAY,
    IS_NUMBER,
    Data,
    Known,
    NoTimeError,
    NotProvedError,
    RaisesError,
    Value,
    is_atom,
)


class Proof:
    """That an array of a call outlives it only in what it returns, that no type is asked for, and that the memory of
    its arguments is written to only through them. It is for arguments of some kinds, as long as names mean the same.
    """

    def __init__(self, function: Callable[..., Any], kinds: Kinds, seconds: float = 2.0) -> None:
        """Evaluate a call of such arguments, which may take so many seconds of the processor."""
        self._kinds = kinds
        #: Whether it was not found out because that takes longer; and the files of all sources that were read.
        self.had_no_time = False
        self.files: frozenset[str] = frozenset()
        self.why_not: str | None = None
        self._guards: Guards | None = None
        evaluation = Evaluation(seconds)
        try:
            given = [_value(each) for each in kinds.arguments]
            named = {name: _value(each) for name, each in kinds.keywords}
            result = evaluation.evaluate(Known(function), given, named)
            evaluation.check_returned(result, "it returns an object in which arrays cannot be replaced")
            self._guards = evaluation.guards
        except NotProvedError as error:
            self.had_no_time = isinstance(error, NoTimeError)
            self.why_not = f"{error} ({error.place})" if error.place else str(error)
        except RaisesError:
            self.why_not = "it only raises an error"
        except RecursionError:
            self.why_not = "its functions are too deep"
        self.files = evaluation.guards.files

    @property
    def seconds(self) -> float:
        """What it takes to look whether names mean the same."""
        guards = self._guards
        return math.inf if guards is None else min(timeit.repeat(guards.hold, number=1, repeat=3))

    def holds(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether it holds for a call with these arguments."""
        return self._guards is not None and kinds_of(arguments, keywords) == self._kinds and self._guards.hold()


class Kinds(NamedTuple):
    """What is known of arguments: those for which the same is true have it in common. No array is in it."""

    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]


_ANY_ARRAY, _ANY_NUMBER, _ANY_PLAIN = "an array", "a number", "a plain value"


def kinds_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Kinds:
    """Of which kinds the arguments of a call are."""
    return Kinds(tuple(map(_kind, arguments)), tuple([(name, _kind(each)) for name, each in keywords.items()]))


def _kind(given: Any) -> tuple[Any, ...]:
    if can_stand_for(given):
        return (_ANY_ARRAY,)
    kind = type(given)
    if kind in (bool, str, type(None)):
        return (kind, given)
    if isinstance(given, type):
        return (kind, _Same(given)) if is_atom(given) else (kind, None, None)
    if kind in (int, float, complex):
        return (_ANY_NUMBER,)
    if is_atom(given):
        return (_ANY_PLAIN, kind)
    # Functions among them are known as they are; other objects lead anywhere.
    return (kind, _Same(given)) if isinstance(given, _FUNCTIONS) else (kind, None, None)


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type(np.sum), np.ufunc)


class _Same:
    """A function, equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _value(kind: tuple[Any, ...]) -> Value:
    if kind[0] is _ANY_ARRAY:
        return Data(ARRAY | IS_ARRAY)
    if kind[0] is _ANY_NUMBER:
        return Data(IS_NUMBER)
    if kind[0] is _ANY_PLAIN:
        return Data()
    if len(kind) == 2:
        return Known(kind[1].value if isinstance(kind[1], _Same) else kind[1])
    raise NotProvedError(f"an argument is an object of {kind[0].__qualname__}")
