"""NumPy's floating-point modes and the filters of warnings: whether a call can be made later, and how it then is."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

#: NumPy's floating-point modes: an object that stays the same as long as they do.
_MODES: Any = getattr(np._core.umath, "_extobj_contextvar", None)  # type: ignore[attr-defined]
#: The same, or an object that is always another one where NumPy has none.
modes_now: Callable[[], object] = object if _MODES is None else _MODES.get
#: Modes that only NumPy can honour at the line where it happens.
_LOUD = frozenset(("raise", "call", "print", "log"))


class Modes(NamedTuple):
    """NumPy's floating-point modes."""

    divide: Any
    over: Any
    under: Any
    invalid: Any

    @property
    def is_quiet(self) -> bool:
        """Whether NumPy warns of nothing."""
        return self == ("ignore", "ignore", "ignore", "ignore")


@contextlib.contextmanager
def as_recorded(filters: Any, modes: Sequence[Modes]) -> Iterator[None]:
    """With the filters of warnings and NumPy's modes that were there when calls were recorded.

    Where these were several, with the loudest of them: what native code does not know NumPy then says for each call.
    """
    now = warnings.filters
    loudest: Any = {
        name: next((each for each in of_all if each != "ignore"), "ignore")
        for name, of_all in zip(Modes._fields, zip(*modes, strict=True), strict=True)
    }
    with np.errstate(**loudest):
        if filters is now:  # to set them would make Python forget which warnings it has shown
            yield
            return
        warnings.filters = filters
        warnings._filters_mutated()  # type: ignore[attr-defined]
        try:
            yield
        finally:
            warnings.filters = now
            warnings._filters_mutated()  # type: ignore[attr-defined]


class Meaning(NamedTuple):
    """What NumPy's modes and the filters of warnings mean for calls that wait."""

    modes: Modes
    #: Whether NumPy may do something about a number that only it can do in its place.
    is_loud: bool
    #: Whether a warning may become an error.
    raises_warnings: bool


#: The last that were seen, with what they mean.
_last: tuple[object, list[Any], Meaning] = (None, [], Meaning(Modes("", "", "", ""), True, True))


def meaning_of(modes: object) -> Meaning:
    """What NumPy's modes, and the filters that there are, mean."""
    global _last
    known, filters, meaning = _last
    if known is not modes or filters != warnings.filters:
        found = Modes(**np.geterr())
        raises = any(map(_raises, _GIVEN))
        is_loud = not _LOUD.isdisjoint(found) or (not found.is_quiet and _raises(RuntimeWarning))
        meaning = Meaning(found, is_loud, raises)
        _last = (modes, list(warnings.filters), meaning)
    return meaning


def ignores_warnings() -> bool:
    """Whether a filter hides all of NumPy's warnings."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(RuntimeWarning, category):
            if message is None and module is None and not line:
                return action == "ignore"
            if action != "ignore":
                return False
    return False


#: The warnings that NumPy gives.
_GIVEN = (
    RuntimeWarning, np.exceptions.ComplexWarning, np.exceptions.VisibleDeprecationWarning, DeprecationWarning,
    FutureWarning, UserWarning,
)  # fmt: skip


def _raises(given: type[Warning]) -> bool:
    """Whether a filter may make an error of such a warning."""
    for action, message, category, module, line in warnings.filters:
        if issubclass(given, category):
            if action == "error":
                return True
            if message is None and module is None and not line:
                return False  # which hides those behind it
    return False
