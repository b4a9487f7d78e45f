"""Paper: where arrays are that have a shape and a type and no values, because a function is being recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from anygpu.array.expression import Value, users_line
from anygpu.array.place import Buffer
from anygpu.array.recording import MAX_CONSTANT_BYTES, PAPER, dtype_name, literal
from anygpu.errors import ValueNeeded
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec


class Live(NamedTuple):
    """An array of the user's own that is read anew at every call."""

    source: Any


class Lifted(NamedTuple):
    """A number that is computed from those among the arguments, by an expression."""

    text: str


class Fixed(NamedTuple):
    """Values that the function made while it was recorded, and that are the same at every call."""

    values: npt.NDArray[Any]
    digest: bytes


class Paper:
    """Whoever asks for the values of an array on paper is told that there are none.

    NumPy arrays that meet one on paper are asked where they come from: those in `live` (by the `id` of what owns their
    memory) stay the user's, and are read again at every call; all others are copied as they are now, and are a part of
    the program when they are small and `inlines` says so.
    """

    device = PAPER

    def __init__(self, live: frozenset[int] = frozenset(), *, inlines: bool = True) -> None:
        self._live_owners = live
        self._inlines = inlines
        self._known: dict[tuple[Any, ...], Value] = {}
        #: What owns the memory of each array that was copied. Kept, so that no two of them can have one identity.
        self.owners: dict[int, npt.NDArray[Any]] = {}
        #: Where a value was asked for, also when the one who asked has swallowed the refusal.
        self.asked: ValueNeeded | None = None
        #: Whether that was the value of a number, or of what comes from outside alone: then there is another way.
        self.asked_of_number = False
        self.asked_of_outside = False

    def refuse(self, *, number: bool = False, outside: bool = False) -> NoReturn:
        line = users_line()
        self.asked = ValueNeeded(f"{line[0]}:{line[1]}" if line is not None else None)
        self.asked_of_number |= number
        self.asked_of_outside |= outside
        raise self.asked

    def number(self, text: str, dtype: DType) -> Value:
        """An expression over numbers among the arguments, as an input without axes."""
        return self._once((text, dtype), Lifted(text), Spec((), dtype))

    def upload(self, values: Any) -> Buffer:
        return np.array(values)

    def download(self, buffer: Buffer) -> NoReturn:
        self.run(None, [buffer])

    def run(self, program: Program | None, buffers: Sequence[Buffer]) -> NoReturn:
        if all(isinstance(each, Live | Lifted | Fixed) for each in buffers):
            number, outside = (any(isinstance(each, kind) for each in buffers) for kind in (Lifted, Live))
            self.refuse(number=number, outside=outside)
        self.refuse()

    def native(self, buffer: Buffer) -> NoReturn:
        self.run(None, [buffer])

    def adopt(self, array: Any) -> Buffer:
        return np.from_dlpack(array)

    def met(self, values: npt.NDArray[Any]) -> Value:
        """A NumPy array beside one on paper, as a value."""
        owner = owner_of(values)
        spec = Spec(values.shape, dtype_name(values.dtype))
        if id(owner) in self._live_owners:
            where = values.__array_interface__
            return self._once((where["data"][0], where["strides"], spec), Live(values), spec)
        self.owners[id(owner)] = owner
        if not values.shape or (self._inlines and values.nbytes <= MAX_CONSTANT_BYTES):
            return literal(values.astype(spec.dtype, copy=False))
        copied = np.array(values, values.dtype.newbyteorder("="), order="C")
        digest = hashlib.blake2b(copied.data.cast("B"), digest_size=16).digest()
        return self._once((digest, spec), Fixed(copied, digest), spec)

    def _once(self, key: tuple[Any, ...], buffer: Buffer, spec: Spec) -> Value:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Value.on(self, buffer, spec)
        return known


def owner_of(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array that owns the memory; a view is made of it."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values
