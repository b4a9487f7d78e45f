"""Decorated functions whose module IPython's `%autoreload` reloads, or patches, after its file was edited."""

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
    """Give a decorated function the attributes of another, by the `slot` of its dictionary; the function that it is for
    from then on.

    `%autoreload` sets the code, and then the attributes. Where more decorators have made the function, all functions of
    these have one code, and the attributes are all that leads to the new one.
    """
    slot.__set__(decorated, dict(attributes))
    function: Any = decorated.function
    new = attributes.get("__wrapped__")
    if isinstance(new, FunctionType) and new.__code__ is getattr(function, "__code__", None):
        function = new
    update_wrapper(decorated, function)
    return function
