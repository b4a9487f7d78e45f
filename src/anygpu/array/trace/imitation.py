"""Attributes that NumPy's arrays have and ours lack, for a function that is being traced."""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.abstract_device import ArrayInput
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Tracer
from anygpu.array.core.views import follow_on_host, layout_of
from anygpu.base.typing import HostArray


def attribute(array: Array, name: str, recorder: Tracer) -> Any:
    """The attribute of the NumPy array that this one stands for; ends the trace where it is unknown."""
    if name == "strides":
        return _example(array, name, recorder).strides
    if name == "flags":
        return _Flags(_example(array, name, recorder).flags, recorder)
    recorder.stop(f"it uses the {name} of an array")


def is_c_contiguous(array: Array, recorder: Tracer) -> bool:
    return bool(_example(array, "flags", recorder).flags.c_contiguous)


def _example(array: Array, name: str, recorder: Tracer) -> HostArray:
    """A NumPy array with the memory layout that this one would have."""
    view = array._view
    stored = (array if view is None else view.base)._stored
    if isinstance(stored.buffer, ArrayInput) and (view is None or view.can_be_followed):
        return follow_on_host(() if view is None else view.path, recorder.layout_of(stored.buffer.position))
    layout = layout_of(array)
    if layout is None:
        recorder.stop(f"it asks for the {name} of an array whose memory layout only NumPy knows")
    return np.empty_like(layout) if view is None else layout


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
