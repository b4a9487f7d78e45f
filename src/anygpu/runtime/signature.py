"""What calls of one function have in common, so that what one of them taught holds for the next. Made for speed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from anygpu.array.array import Array

_ndarray = np.ndarray


def signature(arguments: tuple[Any, ...], keywords: dict[str, Any], *, floats: bool = False) -> Hashable | None:
    """Shapes and types of arrays, types of floats (their values with `floats`), values of everything else.

    `None` for arguments that cannot be told apart by a value.
    """
    parts: list[Any] = []
    add = parts.append
    for each in arguments:
        kind = type(each)
        if kind is _ndarray:
            add(each.shape)
            add(each.dtype.num)
        elif kind is float and not floats:
            add(float)
        elif isinstance(each, Array):
            add((Array, each.device, each.shape, each.dtype.char))
        elif not _describe(each, add, floats):
            return None
    for name, each in keywords.items():
        add(name)
        if not _describe(each, add, floats):
            return None
    return tuple(parts)


_PLAIN = (int, str, bool, bytes, complex, type(None))


def _describe(each: Any, add: Any, floats: bool) -> bool:
    """Add what tells it apart; whether that was possible."""
    kind = type(each)
    if isinstance(each, np.ndarray):
        add((kind, each.shape, each.dtype.num))
    elif kind is float:
        add((float, each) if floats else float)
    elif kind in _PLAIN:
        add((kind, each))
    elif isinstance(each, Array):
        add((Array, each.device, each.shape, each.dtype.char))
    elif isinstance(each, np.generic):
        add((kind, each.item() if floats or kind is not np.float64 else None))
    elif isinstance(each, dict):
        add((kind, len(each)))
        for name, value in each.items():
            add(name)
            if not _describe(value, add, floats):
                return False
    elif isinstance(each, tuple | list):
        add((kind, len(each)))
        for value in each:
            if not _describe(value, add, floats):
                return False
    elif hasattr(kind, "__dataclass_fields__"):
        add(kind)
        for name in kind.__dataclass_fields__:
            if not _describe(getattr(each, name), add, floats):
                return False
    else:
        try:
            hash(each)
        except TypeError:
            return False
        add((kind, each))
    return True


def elements(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> int:
    """Of the largest array among the arguments."""
    most = 0
    stack: list[Any] = [*arguments, *keywords.values()]
    while stack:
        each = stack.pop()
        if isinstance(each, np.ndarray | Array):
            most = max(most, each.size)
        elif isinstance(each, dict):
            stack.extend(each.values())
        elif isinstance(each, tuple | list):
            stack.extend(each)
        elif hasattr(type(each), "__dataclass_fields__"):
            stack.extend(getattr(each, name) for name in type(each).__dataclass_fields__)
    return most
