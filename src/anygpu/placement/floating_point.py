"""NumPy's floating-point modes and Python's warning filters: when a call has to run on NumPy for their sake."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.analysis import Flag
from anygpu.program.dtypes import is_inexact
from anygpu.program.graph import Program
from anygpu.program.primitives import Constant

#: Modes that only NumPy can honour at the line where it happens.
_LOUD = frozenset(("raise", "call", "print", "log"))
_WATCHED = ("divide", "over", "invalid")
_USUAL = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}
#: Each occurrence is shown or raised.
_EVERY_TIME = ("always", "all", "error")


class Filters(NamedTuple):
    """The warning filters at one moment. Entering or leaving `catch_warnings` makes others of them."""

    found: list[Any]
    length: int
    first: Any

    @classmethod
    def now(cls) -> Filters:
        found: Any = warnings.filters
        return cls(found, len(found), found[0] if found else None)

    def unchanged(self) -> bool:
        found: Any = warnings.filters
        return found is self.found and len(found) == self.length and (not found or found[0] is self.first)


class Modes(NamedTuple):
    """NumPy's floating-point modes, where they are not as usual."""

    by_kind: dict[str, Any]
    handler: Any

    @classmethod
    def unusual(cls) -> Modes | None:
        """Those of this thread or task; `None` where they are what every thread begins with."""
        found: Any = np.geterr()
        return None if found == _USUAL else cls(found, np.geterrcall())

    def hold(self) -> np.errstate:
        """For a block that runs on another thread."""
        return np.errstate(call=self.handler, **self.by_kind)


def modes_now() -> Mapping[str, str]:
    """Of this thread or task: for each kind of floating-point error what NumPy does."""
    found: Any = np.geterr()
    return found  # type: ignore[no-any-return]


def loud(modes: Mapping[str, str]) -> str | None:
    """Why only NumPy can run under these modes of `np.geterr()`, or `None`."""
    for name, mode in modes.items():
        if mode in _LOUD or (name == "under" and mode != "ignore"):
            return f'np.errstate({name}="{mode}") is set, which only NumPy honours.'
    return None


def warns(modes: Mapping[str, str]) -> bool:
    """Whether NumPy would say something about a result that is not finite."""
    return any(modes[name] != "ignore" for name in _WATCHED)


def is_shown(flags: Iterable[Flag], module: str, heard: Filters | None) -> bool:
    """Whether Python would show one of these warnings, or raise it, if NumPy gave it now.

    With filters that show a warning once for each line, the user has seen it, as long as the filters stay what they
    were then.
    """
    for flag in flags:
        action = _action(f"{flag.kind} encountered in {flag.operation}", module, flag.line)
        if action in _EVERY_TIME or (action != "ignore" and (heard is None or not heard.unchanged())):
            return True
    return False


def _action(text: str, module: str, line: tuple[str, int] | None) -> str:
    """What the filters say to such a RuntimeWarning."""
    found: Any = warnings.filters
    for action, message, category, where, number in found:
        if not issubclass(RuntimeWarning, category) or (number and line is not None and number != line[1]):
            continue
        if message is not None and not _matches(message, text):
            continue
        if where is not None and not _matches(where, module):
            continue
        return str(action)
    return str(getattr(warnings, "defaultaction", "default"))


def _matches(pattern: Any, text: str) -> bool:
    return bool(pattern.match(text)) if hasattr(pattern, "match") else pattern == text


def may_warn(program: Program, quiet_lines: frozenset[tuple[str, int]] = frozenset()) -> bool:
    """Whether NumPy could warn of anything that leaves a NaN or an infinity in a result of this program.

    Lines on which the function has told NumPy to be quiet do not count.
    """
    if not any(is_inexact(spec.dtype) for spec in program.results):
        return False
    for position, (op, _) in enumerate(program.nodes):
        if not is_inexact(program.specs[position].dtype) or program.lines[position] in quiet_lines:
            continue
        if op.may_raise_flags:
            return True
        # A constant may come from a warning that recording has already heard.
        if isinstance(op, Constant) and not np.isfinite(np.frombuffer(op.data, op.dtype)).all():
            return True
    return False


def is_finite(arrays: Sequence[Any]) -> bool:
    """Whether there is no NaN and no infinity among floats: half of what adding two such arrays takes."""
    for each in arrays:
        values = np.asarray(each)
        if values.dtype.kind in "fc" and not np.isfinite(values).all():
            return False
    return True
