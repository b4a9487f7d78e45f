"""A device without values: its arrays have a shape and a dtype, so that a function can be traced with them.

Buffers of abstract arrays say where their values will come from at a call: `ArrayInput`, `ScalarInput`,
`CapturedConstant`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from anygpu.array.core.device import Buffer
from anygpu.array.core.expression import Value, active_tracer, nearest_line
from anygpu.array.core.recording import ABSTRACT, MAX_CONSTANT_BYTES, dtype_name, literal
from anygpu.base.own_files import blake2b
from anygpu.base.typing import HostArray
from anygpu.errors import VALUE_NEEDED, ValueNeeded
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.primitives import Spec


class ArrayInput(NamedTuple):
    """An array of the user that is read again at every call."""

    #: Which capture it is.
    position: int
    is_argument: bool


class ScalarInput(NamedTuple):
    """A number that an expression computes from the numbers among the arguments."""

    text: str


class CapturedConstant(NamedTuple):
    """Values that the function made while it was traced, and that are the same at every call."""

    values: HostArray
    digest: bytes


class AbstractDevice:
    """Holds abstract arrays while a function is traced; asking for a value ends the trace by raising `ValueNeeded`.

    NumPy arrays that meet an abstract one are copied as they are now, and become constants of the program when they are
    small and `inlines` says so. One object is used for one call of the function, on one thread. The function may catch
    the exception, so `reason` keeps why the trace ended.
    """

    device = ABSTRACT

    def __init__(self, *, inlines: bool = True) -> None:
        self._inlines = inlines
        self._seen: dict[tuple[Any, ...], Value] = {}
        #: The owners of the memory of copied arrays. They are kept alive so that no two of them can have the same id().
        self.owners: dict[int, HostArray] = {}
        #: Owners whose values a guard checks at every call.
        self.known: set[int] = set()
        #: Why the function cannot be traced; kept because the function may catch the exception.
        self.reason: str | None = None
        self._error: ValueNeeded | None = None
        #: Whether a value was asked for that is there, of a number or of what comes from outside alone.
        self.asked_of_known = False
        self.may_raise: list[Value] = []
        self.shown: list[Value] = []
        self.raised: Exception | None = None
        #: Expressions over numbers that Python may raise an error for, in the order in which they were met.
        self.risky: dict[str, None] = {}
        #: Lines whose operations NumPy does not warn of.
        self.quiet_lines: set[tuple[str, int]] = set()
        self.warns_anyway = False
        #: The arrays themselves, while the function is traced, to ask how they lie in memory.
        self.examples: dict[int, HostArray] = {}
        #: Arrays whose layout in memory the function has asked for.
        self.layouts: set[int] = set()
        #: Arrays on whose strides a view depends, or the order of a result.
        self.strides: set[int] = set()
        #: By the identity of a value, which is kept beside it: the call of NumPy's that it comes from, for its layout.
        self.notes: dict[int, tuple[Value, Any]] = {}
        #: In the same way, for what was written into an array: the value before, whose memory it has.
        self.replaced: dict[int, tuple[Value, Value]] = {}
        #: Layouts that were worked out, exact ones and others, beside their values.
        self.known_layouts: dict[bool, dict[int, tuple[Value, HostArray | None]]] = {True: {}, False: {}}
        #: Constants that do not lie in C order where the function has them.
        self.unordered: dict[int, Value] = {}
        self._modes: dict[str, Any] = dict(np.geterr())

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While the function runs, abstract arrays look like NumPy's."""
        token = active_tracer.set(self)
        try:
            yield
        finally:
            active_tracer.reset(token)

    @property
    def hears_warnings(self) -> bool:
        """Whether what NumPy would warn of calls whoever traces instead: the call itself gives the warnings."""
        return "call" in self._modes.values()

    def operation(self, line: tuple[str, int] | None) -> None:
        """Note that an operation is recorded on this line, and with which modes of `np.errstate`.

        Modes that make NumPy raise or call something end the trace; lines on which all warnings are ignored are
        remembered.
        """
        modes: dict[str, Any] = dict(np.geterr())
        if modes != self._modes:
            raising = [
                name
                for name, mode in modes.items()
                # Only NumPy warns about an underflow, too.
                if mode not in ("ignore", self._modes[name]) and (mode != "warn" or name == "under")
            ]
            if raising:
                mode = "warn" if self.hears_warnings and modes[raising[0]] == "call" else modes[raising[0]]
                self.stop(f'it sets np.errstate({raising[0]}="{mode}"), which only NumPy does')
            if line is not None and all(mode == "ignore" for mode in modes.values()):
                self.quiet_lines.add(line)

    def layout_of(self, position: int) -> Any:
        """The NumPy array that is the argument at `position`; guards check its strides and flags from now on."""
        self.layouts.add(position)
        return self.examples[position]

    def strides_of(self, position: int) -> HostArray | None:
        """The NumPy array at `position`, whose strides guards check from now on; `None` for an `Array`."""
        self.strides.add(position)
        return self.examples.get(position)

    def refuse(self, *, number: bool = False, outside: bool = False, what: str | None = None) -> NoReturn:
        """End the trace because a value was asked for, at the user's line; raises `ValueNeeded`.

        `number` and `outside` say that this call knows the value, so that an attempt with values may succeed. `what`
        replaces the usual reason.
        """
        self.asked_of_known |= number or outside
        line = nearest_line(sys._getframe(1))
        self._error = ValueNeeded(f"{line[0]}:{line[1]}" if line is not None else None)
        at = f" ({self._error.line})" if self._error.line else ""
        self.reason = f"it {VALUE_NEEDED}{at}; use np.where()" if what is None else f"{what}{at}"
        raise self._error

    def stop(self, reason: str, line: tuple[str, int] | None = None) -> NoReturn:
        """End the trace, at the user's line or one that is given: the function does what cannot be traced.

        Raises `ValueNeeded`.
        """
        line = nearest_line(sys._getframe(1)) if line is None else line
        at = f" ({line[0]}:{line[1]})" if line is not None else ""
        self.reason = f"{reason}{at}"
        self._error = ValueNeeded(f"{line[0]}:{line[1]}" if line is not None else None)
        raise self._error

    def stop_again(self) -> NoReturn:
        """Raise again what ended the trace, after the function caught it."""
        assert self._error is not None
        raise self._error

    def number(self, text: str, dtype: DType) -> Value:
        """An expression over numbers among the arguments as an input without axes, one for each text and dtype."""
        return self._once((text, dtype), ScalarInput(text), Spec((), dtype))

    def upload(self, values: Any) -> Buffer:
        """A copy of the values as they are: they become a constant of the program."""
        return np.array(values)

    def download(self, buffer: Buffer) -> NoReturn:
        """Stop tracing: the values of an array are needed."""
        self.run(None, [buffer])

    def run(self, program: Program | None, buffers: Sequence[Buffer]) -> NoReturn:
        """Stop tracing: the values of these buffers are needed."""
        known = all(
            isinstance(each, ScalarInput | CapturedConstant) or (isinstance(each, ArrayInput) and not each.is_argument)
            for each in buffers
        )
        self.refuse(number=known)

    def native(self, buffer: Buffer) -> NoReturn:
        """Stop tracing: an array of another library is needed."""
        self.run(None, [buffer])

    def adopt(self, array: Any) -> Buffer:
        """An array of another library, on the host."""
        return np.from_dlpack(array)

    def met(self, values: HostArray) -> Value:
        """A NumPy array that meets an abstract one, as a value: a literal if it is small, else an input that is always
        the same.

        The values are copied now. Equal contents, shapes and orders become one input.
        """
        owner = owner_of(values)
        spec = Spec(values.shape, dtype_name(values.dtype))
        if id(owner) not in self.known:
            self.owners[id(owner)] = owner
        ordered = len(spec.shape) < 2 or values.flags.c_contiguous
        if not values.shape or (self._inlines and values.nbytes <= MAX_CONSTANT_BYTES):
            made = literal(values.astype(spec.dtype, copy=False))
            if not ordered:
                self.unordered[id(made)] = made
            return made
        copied = np.array(values, values.dtype.newbyteorder("="), order="C")
        digest = blake2b(copied.data.cast("B"), digest_size=16).digest()
        return self._once((digest, spec, ordered), CapturedConstant(copied, digest), spec, ordered=ordered)

    def _once(self, key: tuple[Any, ...], buffer: Buffer, spec: Spec, *, ordered: bool = True) -> Value:
        """The value of an input, made once for each key."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = Value.on(self, buffer, spec, ordered=ordered)
        return seen


def owner_of(values: HostArray) -> HostArray:
    """The array that owns the memory of this one, which may be a view."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values
