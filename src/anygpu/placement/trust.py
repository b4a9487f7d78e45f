"""What has been compared with NumPy of calls of one kind, and what is known of their results beside the values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.analysis import Flag
from anygpu.agreement.comparison import layout
from anygpu.array.core.structure import flatten, unflatten
from anygpu.array.trace.traced import Traced
from anygpu.placement.floating_point import Filters, is_finite
from anygpu.placement.strategies import Strategy
from anygpu.workers.worker import Worker

#: Programs and orders of memory that are remembered for one kind of calls.
_MOST = 64

#: All arguments lie in memory as C has it.
_PLAIN: Hashable = "C"


class Sample(NamedTuple):
    """One call that ran on NumPy, copied so that a device can be compared with it later."""

    traced: Traced
    inputs: list[Any]
    #: What the function returned; `None` with anygpu's own arrays, where the program on NumPy is what counts.
    expected: Any
    is_ours: bool


class Trust:
    """Which programs agreed on which workers, and what NumPy's results look like."""

    def __init__(self) -> None:
        self._agreed: dict[tuple[str, str], tuple[Strategy, tuple[int, ...]]] = {}
        self._layouts: dict[Hashable, tuple[tuple[int, ...], ...] | None] = {}
        #: By the key of a program: how far its results were from NumPy's when they agreed.
        self.usual: dict[str, tuple[float, ...]] = {}
        #: What NumPy was seen to warn of.
        self.flags: frozenset[Flag] = frozenset()
        #: Whether NumPy gave NaN or infinity without a warning: from inputs that have them, and from others.
        self.carries_quietly = False
        self.makes_quietly = False
        #: The warning filters at the last call on NumPy.
        self.heard: Filters | None = None

    def agree(self, program: str, way: Strategy, workers: Sequence[Worker]) -> None:
        """This program, run in this way by these workers, gave what NumPy gives."""
        if len(self._agreed) >= _MOST:
            self._agreed.clear()
        self._agreed[program, way.name] = (way, tuple(worker.generation for worker in workers))

    def agreed(self, program: str, way: Strategy, workers: Sequence[Worker]) -> bool:
        """Whether that is what would run now."""
        known = self._agreed.get((program, way.name))
        return known is not None and known == (way, tuple(worker.generation for worker in workers))

    def is_usual(self, inputs: Sequence[Any]) -> bool:
        """Whether NumPy has been seen to say nothing when such inputs gave a NaN or an infinity."""
        if not (self.carries_quietly or self.makes_quietly):
            return False
        return self.makes_quietly if is_finite(inputs) else self.carries_quietly

    # -- the order of memory

    def see(self, traced: Traced, inputs: Sequence[Any], value: Any) -> None:
        """The order in memory of what NumPy returned for arguments of such an order."""
        key = _order_of(inputs)
        if key not in self._layouts:
            if len(self._layouts) >= _MOST:
                self._layouts.clear()
            leaves = flatten(value)[0]
            orders = tuple(
                [
                    layout(leaf) if type(leaf) is np.ndarray and is_own else ()
                    for leaf, is_own in zip(leaves, traced.owns, strict=True)
                ]
            )
            self._layouts[key] = orders if any(orders) else None

    def knows_order(self, inputs: Sequence[Any]) -> bool:
        return _order_of(inputs) in self._layouts

    def in_order(self, traced: Traced, inputs: Sequence[Any], value: Any) -> Any:
        """A device's result, in memory as NumPy would have it."""
        orders = self._layouts.get(_order_of(inputs))
        if orders is None:
            return value
        leaves, structure = flatten(value)
        return unflatten(structure, [_ordered(leaf, order) for leaf, order in zip(leaves, orders, strict=True)])


def _order_of(inputs: Sequence[Any]) -> Hashable:
    for each in inputs:
        if type(each) is np.ndarray and not each.flags.c_contiguous:
            return tuple([other.strides if type(other) is np.ndarray else None for other in inputs])
    return _PLAIN


def _ordered(leaf: Any, order: tuple[int, ...]) -> Any:
    if not order:
        return leaf
    axes = (*order, *(axis for axis in range(leaf.ndim) if axis not in order))
    made = np.empty([leaf.shape[axis] for axis in axes], leaf.dtype).transpose(np.argsort(axes))
    made[...] = leaf
    return made


def sample_of(traced: Traced, inputs: Sequence[Any], value: Any, *, ours: bool) -> Sample:
    """Copies: the caller may write to its arrays before anything is compared."""
    if ours:
        return Sample(traced, [np.array(each) for each in inputs], None, True)
    leaves, structure = flatten(traced.without_arguments(value))
    copied = [each.copy(order="K") if isinstance(each, np.ndarray) else each for each in leaves]
    # Two places of one array stay one.
    seen: dict[int, Any] = {}
    copied = [seen.setdefault(id(leaf), copy) for leaf, copy in zip(leaves, copied, strict=True)]
    return Sample(traced, [np.array(each) for each in inputs], unflatten(structure, copied), False)


def peculiarity(traced: Traced, value: Any, inputs: Sequence[Any]) -> str | None:
    """Why a device cannot return the like of this: a clause that goes on after the function's name."""
    every, structure = flatten(value)
    if structure != traced.returned:
        return "it returns something other than when it was traced"
    # Arguments that are returned, and views, are made again as NumPy makes them.
    leaves = [leaf for leaf, is_own in zip(every, traced.owns, strict=True) if is_own and isinstance(leaf, np.ndarray)]
    for number, leaf in enumerate(leaves):
        if not leaf.flags.writeable:
            return "it returns an array that cannot be written to"
        if any(isinstance(each, np.ndarray) and np.may_share_memory(leaf, each) for each in inputs):
            return "it returns a view of its argument; return a copy instead"
        if not _is_dense(leaf):
            return "it returns a part of a larger array; return a copy instead"
        if any(leaf is not other and np.may_share_memory(leaf, other) for other in leaves[:number]):
            return "it returns two arrays that share memory; return copies instead"
    return None


def _is_dense(array: Any) -> bool:
    """Whether its elements fill its memory, in any order of the axes, forwards."""
    if array.flags.forc or not array.size:
        return True
    step = array.itemsize
    for stride, length in sorted((stride, n) for stride, n in zip(array.strides, array.shape, strict=True) if n > 1):
        if stride != step:
            return False
        step *= length
    return True


def code_of(function: Callable[..., Any]) -> Hashable:
    """What functions are pinned by: their code, so that every instance and closure of it is."""
    inner = getattr(function, "__func__", function)
    code: Hashable = getattr(inner, "__code__", None)
    return code if code is not None else id(type(function))
