"""Numbers that stand for living things in keys: for classes, functions and objects that a cache must not keep alive.

An address would do as long as its object lives; afterwards another object may get it. A token is never given again.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_numbers = itertools.count(1)
#: By address: the token of what lives there, and the reference that removes the entry with it.
_known: dict[int, tuple[int, weakref.ref[Any]]] = {}


def token_of(thing: Any) -> int | None:
    """The same number for as long as the thing lives; `None` for something that Python cannot refer to weakly."""
    address = id(thing)
    known = _known.get(address)
    if known is not None:
        return known[0]

    # With what it needs at hand: it may be called when the interpreter has let go of this module.
    def forget(gone: weakref.ref[Any], known: dict[int, Any] = _known) -> None:
        found = known.get(address)
        if found is not None and found[1] is gone:
            del known[address]

    try:
        reference = weakref.ref(thing, forget)
    except TypeError:
        return None
    # Another thread may have been here since: then its number counts, and this reference removes nothing.
    return _known.setdefault(address, (next(_numbers), reference))[0]
