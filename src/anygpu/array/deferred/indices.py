"""Which indices and assignments to elements are recorded: those of which the values decide nothing, and masks."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from anygpu.array.deferred import recorder
from anygpu.array.deferred.layouts import MOST_FORMS, Layout, Op, Selection

_indices: dict[Any, Op] = {}
_assignments: dict[Any, Op] = {}


def _index_text(index: Any) -> tuple[str, int] | None:
    """An index as Python has it, and how many whole numbers are in it; `None` for one that is known by values."""
    parts = index if type(index) is tuple else (index,)
    texts, whole = [], 0
    for each in parts:
        kind = type(each)
        if kind is int:
            texts.append(str(each))
            whole += 1
        elif kind is slice:
            ends = (each.start, each.stop, each.step)
            if not all(end is None or type(end) is int for end in ends):
                return None
            start, stop, step = ("" if end is None else end for end in ends)
            texts.append(f"{start}:{stop}:{step}" if step != "" else f"{start}:{stop}")
        elif each is None or each is Ellipsis:
            texts.append("None" if each is None else "...")
        elif isinstance(each, np.integer) and type(each) is not StandIn_:
            texts.append(str(int(each)))
            whole += 1
        else:
            return None
    return ", ".join(texts) or "()", whole


def _index_key(index: Any) -> tuple[Any, ...] | None:
    """What an index of plain values is known by; `None` for others."""
    key: list[Any] = []
    for each in index if type(index) is tuple else (index,):
        if type(each) is slice:
            start, stop, step = each.start, each.stop, each.step
            if not (
                (start is None or type(start) is int)
                and (stop is None or type(stop) is int)
                and (step is None or type(step) is int)
            ):
                return None
            key.append((start, stop, step))
        elif type(each) is int or each is None or each is Ellipsis:
            key.append(each)
        else:
            return None
    return tuple(key)


def index_op(index: Any, layout: Layout) -> Op | None:
    """The form of an index of which the values decide nothing."""
    axes = -1 if layout.is_number else len(layout.shape)
    key = _index_key(index)
    if key is not None:
        known = _indices.get((key, axes))
        if known is not None:
            return known
    shown = _index_text(index)
    if shown is None:
        return None
    text, whole = shown
    # All axes are gone: that is a number, which would have to be read.
    is_number = whole == axes or layout.is_number
    found = _indices.get((text, is_number))
    if found is None:
        if len(_indices) > MOST_FORMS:
            _indices.clear()
        op = Op(operator.itemgetter(index), f"{{0}}[{text}]", only_view=not is_number)
        found = _indices[text, is_number] = op
    if key is not None:
        _indices[key, axes] = found
    return found


def masked(array: Any, index: Any) -> tuple[Any, Any] | None:
    """An array, or one channel of it, and the mask of the same shape that its elements are selected by."""
    if type(index) is tuple:
        if len(index) != 2 or type(index[0]) is not StandIn_ or type(index[1]) is not int:
            return None
        mask, channel = index
        if mask._layout.dtype != np.bool_ or len(mask._layout.shape) != len(array._layout.shape) - 1:
            return None
        if not mask._layout.shape or not 0 <= channel < array._layout.shape[-1] or not array._recorder.waits:
            return None
        array, index = array[..., channel], mask
    if type(index) is not StandIn_ or index._layout.dtype != np.bool_ or index._recorder is not array._recorder:
        return None
    layout = array._layout
    is_large = layout.size > recorder.SMALL and layout.shape == index._layout.shape and type(layout) is not Selection
    return (array, index) if is_large and index._value is None and not layout.is_number else None


_MASKED = Op(operator.setitem, "{0}[{1}] = {2}", writes=True)


def assignment_op(array: Any, index: Any, value: Any) -> tuple[Op | None, tuple[Any, ...]]:
    """The form of an assignment of an operand to elements, and its operands."""
    if type(value) is float and array._layout.dtype.kind in "iu":
        return None, ()  # NumPy raises an error for some values
    if type(index) is StandIn_:
        is_mask = index._layout.dtype == np.bool_ and index._layout.shape == array._layout.shape and index.ndim
        is_number = getattr(value, "ndim", 0) == 0 and type(value) is not np.ndarray
        return (_MASKED, (array, index, value)) if is_mask and is_number else (None, ())
    shown = _index_text(index)
    if shown is None:
        return None, ()
    text = shown[0]
    found = _assignments.get(text)
    if found is None:
        if len(_assignments) > MOST_FORMS:
            _assignments.clear()
        found = _assignments[text] = Op(
            operator.setitem, f"{{0}}[{text}] = {{1}}", writes=True, arranged=lambda x, new: (x, index, new)
        )
    return found, (array, value)


#: `StandIn`, which imports this module.
StandIn_: Any = None
