"""What a store should be: plain NumPy arrays with names, who holds them, and the arrays that look at them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]
#: The namespace ("" for none) and the name.
Key = tuple[str, str]


class Known:
    """One tensor as it should be. Views of `values` are NumPy's own, so what is written is seen in them."""

    def __init__(self, key: Key, values: Values, owner: str) -> None:
        self.key = key
        self.values = values
        self.owner = owner
        self.holders = {owner}
        self.leases: Counter[str] = Counter()
        self.pins = 0
        #: Whether the name was released by all who had it.
        self.gone = False

    @property
    def everybody(self) -> tuple[str, ...]:
        return tuple(sorted({*self.holders, *self.leases}))

    def __repr__(self) -> str:
        return f"{self.key} {self.values.dtype}{list(self.values.shape)}"


class Model:
    """Names, and what becomes of them. Says which error a store has to raise before anything is done."""

    def __init__(self) -> None:
        self.tensors: dict[Key, Known] = {}

    def put(self, key: Key, values: Values, owner: str) -> Known:
        """After it was allowed."""
        known = self.tensors.get(key)
        if known is not None and is_like(known.values, values):
            known.values[...] = values
            return known
        if known is not None:
            known.holders.clear()
            self.settle(known)
        known = self.tensors[key] = Known(key, values.copy(), owner)
        return known

    def check_owner(self, key: Key, values: Values, owner: str) -> bool:
        known = self.tensors.get(key)
        if known is None:
            return True
        if known.owner != owner or owner not in known.holders:
            return False
        return is_like(known.values, values) or (known.holders == {owner} and not known.leases)

    def release(self, known: Known, holder: str) -> None:
        known.holders.discard(holder)
        self.settle(known)

    def end_lease(self, known: Known, holder: str) -> None:
        known.leases[holder] -= 1
        known.leases += Counter()  # without those that are at 0
        self.settle(known)

    def settle(self, known: Known) -> None:
        """The last one who had it takes it along."""
        if not known.holders and not known.leases and not known.gone:
            known.gone = True
            del self.tensors[known.key]

    def close(self) -> None:
        for known in list(self.tensors.values()):
            known.holders.clear()
            known.leases.clear()
            self.settle(known)


def is_like(one: Values, other: Values) -> bool:
    return bool(one.shape == other.shape and one.dtype == other.dtype)


def same(one: Values, other: Values) -> bool:
    """Bit by bit."""
    return is_like(one, other) and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
