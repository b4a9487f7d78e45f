"""Whether calls of a function can be deferred without being asked to: that nothing but what they return is left of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anygpu.array.deferred.layouts import can_stand_for
from anygpu.placement.escaping.evaluating import Evaluation
from anygpu.placement.escaping.values import (
    ARRAY,
    IS_ARRAY,
    IS_NUMBER,
    Data,
    Known,
    NotProvedError,
    Value,
    is_atom,
)

#: Seconds of the processor that an evaluation may take: it runs beside the calls.
_MOST_SECONDS = 2.0


class Proof:
    """That an array of a call outlives it only in what it returns, that no type is asked for, and that the memory of its
    arguments is written to only through them. It is for arguments of some kinds, and as long as names mean what they meant.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._kinds = _kinds(arguments, keywords)
        self.why_not: str | None = None
        self._guards = None
        try:
            given = [_value(each) for each in arguments]
            named = {name: _value(each) for name, each in keywords.items()}
            evaluation = Evaluation(_MOST_SECONDS)
            result = evaluation.evaluate(Known(function), given, named)
            evaluation.check_returned(result, "it returns an object in which arrays cannot be replaced")
            self._guards = evaluation.guards
        except NotProvedError as error:
            place = getattr(error, "place", None)
            self.why_not = f"{error}{f' ({place})' if place else ''}"
        except RecursionError:
            self.why_not = "its functions are too deep"

    def holds(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether it holds for a call with these arguments."""
        return self._guards is not None and _kinds(arguments, keywords) == self._kinds and self._guards.hold()


def _value(given: Any) -> Value:
    if can_stand_for(given):
        return Data(ARRAY | IS_ARRAY)
    if isinstance(given, bool | str | None):
        return Known(given)
    if isinstance(given, int | float | complex) and type(given) in (int, float, complex):
        return Data(IS_NUMBER)
    if is_atom(given) and not isinstance(given, tuple):
        return Data()
    if type(given) is tuple and all(map(is_atom, given)):
        return Data()
    if callable(given):
        return Known(given)
    raise NotProvedError(f"an argument is an object of {type(given).__qualname__}")


def _kinds(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """What arguments have in common for which the same is true."""
    return (*map(_kind, arguments), *((name, _kind(each)) for name, each in keywords.items()))


def _kind(given: Any) -> Any:
    if can_stand_for(given):
        return "array"
    if isinstance(given, bool | str | None):
        return (type(given), given)
    if type(given) in (int, float, complex):
        return "number"
    if callable(given) and not is_atom(given):
        return ("is", id(given))
    return ("plain", type(given)) if is_atom(given) else object()
