"""Decorated functions whose module IPython's `%autoreload` reloads, or patches, after its file was edited."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from anygpu.placement.offload import Offloaded


def follow_reloads() -> None:
    """Have `%autoreload` update decorated functions in place, wherever they are held, as it does with plain ones.

    It has a list of rules that say for which objects it does that.
    """
    autoreload: Any = sys.modules["IPython.extensions.autoreload"]
    if all(applies is not _are_offloaded for applies, _ in autoreload.UPDATE_RULES):
        autoreload.UPDATE_RULES.append((_are_offloaded, autoreload.update_function))


def _are_offloaded(old: Any, new: Any) -> bool:
    """Whether both are decorated functions."""
    return isinstance(old, Offloaded) and isinstance(new, Offloaded)


def function_of_same_code(old: Callable[..., Any], attributes: dict[str, Any]) -> Any:
    """The function of a decorated one that was given the attributes of another: that of the other, if it has the same
    code, else its own.

    `%autoreload` sets the code, and then the attributes. Where more decorators have made the function, all functions of
    these have one code, and the attributes are all that leads to the new one.
    """
    new = attributes.get("__wrapped__")
    is_new = isinstance(new, FunctionType) and new.__code__ is getattr(old, "__code__", None)
    return new if is_new else old
