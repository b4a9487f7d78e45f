"""The filters of Python's `warnings`: what they would do with a warning that was not given."""

from __future__ import annotations

import warnings
from typing import Any

#: The actions that show or raise every occurrence of a warning.
SHOWS_EACH = ("always", "all")


def action_of(category: type[Warning], text: str, module: str | None, line: int | None) -> str | None:
    """Return the action that the filters have for a warning; `None` where a module that is not known decides.

    Without a `line`, filters for any line fit.
    """
    found: Any = warnings.filters
    for action, message, wanted, where, number in found:
        if not issubclass(category, wanted) or (number and line is not None and number != line):
            continue
        if message is not None and not _matches(message, text):
            continue
        if where is not None and module is None:
            return None
        if where is not None and not _matches(where, module):
            continue
        return str(action)
    return str(getattr(warnings, "defaultaction", "default"))


def _matches(pattern: Any, text: str | None) -> bool:
    """Return whether a filter's pattern, compiled or plain, fits a text."""
    return bool(pattern.match(text)) if hasattr(pattern, "match") else pattern == text
