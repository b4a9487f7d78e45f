"""Whether an attribute is the only reference to an object, by CPython's reference counts.

A buffer may leave its device only while no call uses it, and a call that uses it holds a reference. The count of an
object with one owner depends on how the interpreter passes arguments (Python 3.14 borrows some), so it is measured,
once, by the same function that is asked later.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any


def is_shared(holder: Any, name: str) -> bool:
    """Whether anything besides the holder refers to its attribute `name`.

    The caller must not hold the attribute's value in a variable of its own: that would be one more reference.
    """
    return _count(holder, name) > _count_of_unshared()


def _count(holder: Any, name: str) -> int:
    return sys.getrefcount(getattr(holder, name))


class _Holder:
    __slots__ = ("value",)

    value: object


@cache
def _count_of_unshared() -> int:
    """The result of `_count` for an object that only its holder refers to."""
    holder = _Holder()
    holder.value = object()
    return _count(holder, "value")
