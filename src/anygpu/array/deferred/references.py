"""Who refers to an array, by its reference count: nobody can write to memory that only we refer to."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_refcount = sys.getrefcount


def references(array: Any) -> int:
    """How many refer to the memory of an array, with those that are only here."""
    value = array._value
    return _refcount(value)


def owns_memory(value: Any) -> bool:
    """Whether nobody refers to the memory of one of NumPy's arrays but the array: it is no view, or the only one."""
    base = value.base
    if base is None:
        return True
    if type(base) is not np.ndarray or base.base is not None or not base.flags.owndata:
        return False
    return _refcount(base) == ONE_VIEW


def referred_to(made: list[Any], least: int) -> list[Any]:
    """Those with more references than so many; the list is empty then."""
    found = []
    while made:
        array = made.pop()  # the last first: a view that nobody wants is gone when what it is a view of is looked at
        if _refcount(array) > least:
            found.append(array)
    found.reverse()
    return found


class _Held:
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = np.empty(1)


def _references_of_base(value: Any) -> int:
    base = value.base
    return _refcount(base)


#: What `references` gives for memory that nobody else refers to; what `referred_to` needs to find nothing of that kind;
#: references to memory of which there is one view; and whether references are counted at once.
NO_OTHERS = references(_Held())
ONLY_HERE = next(count for count in range(8) if not referred_to([_Held()], count))
ONE_VIEW = _references_of_base(np.empty(4).reshape(2, 2))
COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
