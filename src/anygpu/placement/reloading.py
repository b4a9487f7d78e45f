"""Decorated functions of modules that IPython reloads when their files change."""

from __future__ import annotations

import sys
from typing import Any


def follow_reloads(offloaded: type[Any]) -> None:
    """Have `%autoreload` update decorated functions in place, wherever they are held, as it does with plain ones.

    It knows what to do by a list of rules, in which classes of others are missing.
    """
    autoreload: Any = sys.modules["IPython.extensions.autoreload"]
    if not any(getattr(applies, "__module__", None) == __name__ for applies, _ in autoreload.UPDATE_RULES):

        def are_offloaded(old: Any, new: Any) -> bool:
            return isinstance(old, offloaded) and isinstance(new, offloaded)

        autoreload.UPDATE_RULES.append((are_offloaded, autoreload.update_function))
