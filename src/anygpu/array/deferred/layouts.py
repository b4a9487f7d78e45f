"""What is known of an array before it is computed: its type, shape and strides; and what NumPy's calls make of that.

Nothing of it is a rule of ours. The first call of NumPy with operands of some layouts is made at once, and what came
out is remembered: for the calls that are recorded, layouts decide it and values do not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from anygpu.array.core.device import NUMPY_DTYPES
from anygpu.base.typing import HostArray

#: Layouts that are remembered, for each form of a call too; and forms of calls.
_MOST, MOST_FORMS = 8192, 4096
#: Types of arrays that wait, in the order of bytes of this machine.
_DTYPES = frozenset(NUMPY_DTYPES.values())
#: A Python integer up to this fits into every type of NumPy's: its value decides nothing.
FITS_ALL = 127
#: One of this size fits into these types. A bool becomes the usual integer, whatever the number is.
_FITS_WIDE = 2**31 - 1
_WIDE = "?ilqfdFD" if np.dtype("i").itemsize == 4 else "?fdFD"


class Layout:
    """Type, shape and strides of an array, or the type of one of NumPy's numbers. Equal ones are the same object."""

    __slots__ = ("_dummy", "dtype", "is_contiguous", "is_number", "is_wide", "kind", "shape", "size", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], is_number: bool) -> None:
        self.shape, self.strides, self.dtype, self.is_number = shape, strides, dtype, is_number
        self.size = math.prod(shape)
        #: Whether no Python integer of 32 bits decides what type a result is of.
        self.is_wide = dtype.char in _WIDE
        self.kind: type[Any] = dtype.type if is_number else np.ndarray
        self._dummy: HostArray | None = None
        self.is_contiguous = is_number or bool(self.dummy.flags.c_contiguous)

    @property
    def dummy(self) -> HostArray:
        """A NumPy array of this layout with no memory behind it, which must not be read."""
        if self._dummy is None:
            self._dummy = as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        return self._dummy


class Selection(Layout):
    """What `x[mask]` gives: elements in a row, of which only the values know how many."""

    __slots__ = ()

    def __init__(self, dtype: np.dtype[Any], size: int) -> None:
        """`size` is the most that there can be."""
        super().__init__((-1,), (), dtype, is_number=True)
        self.size, self.is_number, self.kind = size, False, np.ndarray


@functools.lru_cache(maxsize=1024)
def selection(dtype: np.dtype[Any], size: int) -> Selection:
    """The layout of elements that are selected of so many."""
    return Selection(dtype, size)


_layouts: dict[tuple[Any, ...], Layout] = {}


def layout_of(value: Any) -> Layout:
    """The layout of one of NumPy's arrays or numbers."""
    if isinstance(value, np.ndarray):
        key: tuple[Any, ...] = (value.shape, value.strides, value.dtype)
    else:
        key = ((), None, value.dtype)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _MOST:
            _layouts.clear()
        is_number = key[1] is None
        found = _layouts[key] = Layout(key[0], () if is_number else key[1], key[2], is_number)
    return found


def can_stand_for(value: Any) -> bool:
    """Whether there are arrays that stand for such a one of NumPy's."""
    return type(value) is np.ndarray and value.dtype in _DTYPES and value.dtype.isnative


class Outcome(Enum):
    """What a call of NumPy gives."""

    NEW = "new memory, or a number"
    VIEW = "a view of the first operand"
    ITSELF = "the first operand"
    #: The values decide, or it is nothing of these.
    AT_ONCE = "only NumPy knows"


class Fact:
    """What one form of a call gives for operands of some layouts."""

    __slots__ = ("layout", "op", "outcome")

    def __init__(self, op: Op, outcome: Outcome, layout: Layout | None) -> None:
        self.op, self.outcome, self.layout = op, outcome, layout


class Op:
    """One form of a call of NumPy's: what is called, with which options, and how that is written in Python."""

    __slots__ = ("_arranged", "call", "facts", "only_view", "text", "ufunc", "writes")

    def __init__(
        self,
        call: Callable[..., Any],
        text: str,
        *,
        writes: bool = False,
        only_view: bool = False,
        arranged: Callable[..., tuple[Any, ...]] | None = None,
        ufunc: Callable[..., Any] | None = None,
    ) -> None:
        """`text` has {0}, {1} for the operands. `writes` is for one that writes to its first operand.

        `ufunc` gives the same for the same operands, and takes an array to write the result to behind them.
        """
        self.call, self.text, self.writes, self.only_view, self.ufunc = call, text, writes, only_view, ufunc
        self._arranged = arranged
        self.facts: dict[tuple[Any, ...], Fact] = {}

    @property
    def is_silent(self) -> bool:
        """Whether NumPy warns of nothing but what its modes are about: of no empty slice and no part that is lost."""
        return self.only_view or self.ufunc is not None

    def arranged(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of `call`."""
        return operands if self._arranged is None else self._arranged(*operands)

    def apply(self, *operands: Any) -> Any:
        """Call NumPy with these operands."""
        return self.call(*self.arranged(operands))

    def remember(self, key: tuple[Any, ...], outcome: Outcome, layout: Layout | None) -> Fact:
        if len(self.facts) >= _MOST:
            self.facts.clear()
        fact = self.facts[key] = Fact(self, outcome, layout)
        return fact

    def learn(self, key: tuple[Any, ...], operands: tuple[Any, ...], result: Any) -> Fact:
        """What NumPy gave for operands of such layouts."""
        first = operands[0]
        if self.writes:
            return self.remember(key, Outcome.ITSELF, layout_of(first))
        if result is first:
            return self.remember(key, Outcome.ITSELF, layout_of(first))
        if isinstance(result, np.generic) and result.dtype in _DTYPES:
            return self.remember(key, Outcome.NEW, layout_of(result))
        if not can_stand_for(result) or not result.flags.writeable:
            return self.remember(key, Outcome.AT_ONCE, None)
        shared = [
            number
            for number, each in enumerate(operands)
            if isinstance(each, np.ndarray) and np.may_share_memory(result, each)
        ]
        if not shared:
            return self.remember(key, Outcome.NEW, layout_of(result))
        if shared == [0] and len(operands) == 1:
            return self.remember(key, Outcome.VIEW, layout_of(result))
        return self.remember(key, Outcome.AT_ONCE, None)

    def foresee(self, key: tuple[Any, ...], layout: Layout) -> Fact | None:
        """For what can only be a view: NumPy makes it of an array without memory. `None` where that tells nothing."""
        if not self.only_view or layout.is_number:
            return None
        view = self.apply(layout.dummy)
        if view is layout.dummy:
            return self.remember(key, Outcome.ITSELF, layout)
        if type(view) is not np.ndarray:
            return None
        return self.remember(key, Outcome.VIEW, layout_of(view))

    def foresee_selection(self, key: tuple[Any, ...], operands: tuple[Any, ...]) -> bool:
        """For a call that computes each element by itself, of a selection and numbers: NumPy tells the type for none.

        Whether it can: it may raise an error, as for a number that does not fit.
        """
        tried: list[Any] = []
        size = 0
        for layout, operand in zip(key, operands, strict=True):
            if type(layout) is Selection:
                tried.append(np.empty(0, layout.dtype))
                size = layout.size
            else:
                tried.append(layout.dtype.type(1) if type(layout) is Layout else operand)
        try:
            result = self.apply(*tried)
        except (TypeError, ValueError, OverflowError, ArithmeticError):
            return False
        if not can_stand_for(result) or result.shape != (0,):
            return False
        self.remember(key, Outcome.ITSELF if self.writes else Outcome.NEW, selection(result.dtype, size))
        return True


def number_key(value: Any, operands: tuple[Any, ...] = ()) -> Any:
    """What of a Python number decides what NumPy makes of it beside these; `None` for what is none."""
    kind = type(value)
    if kind is float or kind is bool or kind is complex:
        return kind
    if kind is int:
        if 0 <= value <= FITS_ALL:
            return int
        return int if operands and abs(value) <= _FITS_WIDE and are_wide(operands) else value
    return None


def are_wide(operands: tuple[Any, ...]) -> bool:
    """Whether a Python integer beside these decides nothing, as long as it has 32 bits."""
    for each in operands:
        layout = getattr(each, "_layout", None)
        if layout is not None:
            if not layout.is_wide:
                return False
        elif isinstance(each, np.ndarray | np.generic) and each.dtype.char not in _WIDE:
            return False
    return True


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's or NumPy's."""
    return number_key(value) is not None or isinstance(value, np.generic)
