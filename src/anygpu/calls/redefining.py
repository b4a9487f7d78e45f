"""Decorated functions whose module IPython's `%autoreload` has reloaded or patched."""

from __future__ import annotations

import sys
from functools import update_wrapper
from types import FunctionType
from typing import Any

from anygpu.calls.offload import Offloaded


def follow_reloads() -> None:
    """Have `%autoreload` update decorated functions in place, wherever they are held, as it does with plain ones.

    It has a list of rules that say for which objects it does that.
    """
    autoreload: Any = sys.modules["IPython.extensions.autoreload"]
    if all(applies is not _are_offloaded for applies, _ in autoreload.UPDATE_RULES):
        autoreload.UPDATE_RULES.append((_are_offloaded, autoreload.update_function))


def _are_offloaded(old: Any, new: Any) -> bool:
    """Return whether both are decorated functions."""
    return isinstance(old, Offloaded) and isinstance(new, Offloaded)


def set_attributes(slot: Any, decorated: Offloaded[..., Any], attributes: dict[str, Any]) -> Any:
    """Give a decorated function the attributes of another, and through the `slot` of its dictionary a new function.

    `%autoreload` sets the code, and then the attributes. With several decorators, all functions of a decorator have one
    code, and only the attributes lead to the new function.
    """
    slot.__set__(decorated, dict(attributes))
    function: Any = decorated.function
    new = attributes.get("__wrapped__")
    if isinstance(new, FunctionType) and new.__code__ is getattr(function, "__code__", None):
        function = new
    update_wrapper(decorated, function)
    return function
