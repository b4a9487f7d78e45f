"""Attributes that NumPy's arrays have and ours lack, for a function that is being traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.abstract_device import ArrayInput
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Tracer, is_ordered
from anygpu.array.core.views import follow_on_host


def attribute(array: Array, name: str, recorder: Tracer) -> Any:
    """The attribute of the NumPy array that this one stands for; ends the trace where it is unknown."""
    if name == "strides":
        return _example(array, name, recorder).strides
    if name == "flags":
        return _Flags(_example(array, name, recorder).flags, recorder)
    recorder.stop(f"it uses the {name} of an array")


def is_c_contiguous(array: Array, recorder: Tracer) -> bool:
    return bool(_example(array, "flags", recorder).flags.c_contiguous)


def _example(array: Array, name: str, recorder: Tracer) -> np.ndarray[Any, Any]:
    """A NumPy array with the memory layout that this one would have."""
    stored = array._stored
    if isinstance(stored.buffer, ArrayInput) and array._view is None:
        example: np.ndarray[Any, Any] = recorder.layout_of(stored.buffer.position)
        return example
    view = array._view
    if view is not None and view.can_be_followed and isinstance(view.base._stored.buffer, ArrayInput):
        return follow_on_host(view.path, _example(view.base, name, recorder))
    if view is None and is_ordered(stored):
        # Nothing is written to it, so no memory is used.
        return np.empty(array.shape, array.dtype)
    recorder.stop(f"it asks for the {name} of an array whose memory layout only NumPy knows")


class _Flags:
    """The flags of an array, read-only while a function is traced."""

    __slots__ = ("_flags", "_recorder")

    def __init__(self, flags: Any, recorder: Tracer) -> None:
        object.__setattr__(self, "_flags", flags)
        object.__setattr__(self, "_recorder", recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flags, name)

    def __getitem__(self, name: str) -> Any:
        return self._flags[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._recorder.stop(f"it sets the flag {name} of an array")

    def __setitem__(self, name: str, value: Any) -> None:
        self._recorder.stop(f"it sets the flag {name} of an array")
