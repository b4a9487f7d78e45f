"""NumPy's own arrays in the place of those that stood for them, in whatever a deferred call leaves behind."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CellType
from typing import Any

from anygpu.array.deferred.standing_in import StandIn


def unwrapped(value: Any, seen: set[int] | None = None) -> Any:
    """What a function returned, as NumPy has it. Lists, dicts and objects stay the same ones; tuples are made anew."""
    kind = type(value)
    if kind is StandIn:
        return value.compute("it is returned")
    if kind in _ATOMS:
        return value
    seen = set() if seen is None else seen
    if id(value) in seen:
        return value
    seen.add(id(value))
    if isinstance(value, tuple):
        return _tuple(value, seen)
    if isinstance(value, list):
        for number, each in enumerate(value):
            new = unwrapped(each, seen)
            if new is not each:
                value[number] = new
    elif isinstance(value, dict):
        for name, each in list(value.items()):
            new = unwrapped(each, seen)
            if new is not each:
                value[name] = new
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            each = getattr(value, field.name, None)
            new = unwrapped(each, seen)
            if new is not each:
                object.__setattr__(value, field.name, new)
    return value


_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None)))


def _tuple(value: tuple[Any, ...], seen: set[int]) -> tuple[Any, ...]:
    parts = [unwrapped(each, seen) for each in value]
    if all(new is each for new, each in zip(parts, value, strict=True)):
        return value
    make = getattr(type(value), "_make", None)
    return tuple(parts) if make is None else make(parts)


def replace_everywhere(arrays: Sequence[StandIn]) -> int:
    """Replace arrays that outlive their call, wherever somebody holds one; how many are still held."""
    left = 0
    for array in arrays:
        value = array.compute("it outlives the call")
        for holder in gc.get_referrers(array):
            if holder is not arrays:
                _replace(holder, array, value)
        # The sequence, this frame, and what asks.
        left += any(
            holder is not arrays and type(holder) in (list, tuple, dict, set, CellType)
            for holder in gc.get_referrers(array)
        )
    return left


def _replace(holder: Any, array: StandIn, value: Any) -> None:
    if isinstance(holder, list):
        for number, each in enumerate(holder):
            if each is array:
                holder[number] = value
    elif isinstance(holder, dict):
        for name, each in list(holder.items()):
            if each is array:
                holder[name] = value
    elif isinstance(holder, CellType):
        holder.cell_contents = value
    elif type(holder) is not StandIn and hasattr(holder, "__dict__"):
        for name, each in list(vars(holder).items()):
            if each is array:
                object.__setattr__(holder, name, value)


def replace_in_frames(error: BaseException) -> None:
    """Replace arrays in the variables of the functions that an error came through: whoever looks there sees NumPy's."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        step = each.__traceback__
        while step is not None:
            frame = step.tb_frame
            step = step.tb_next
            if frame.f_code.co_filename.startswith(_OURS):
                continue
            variables = frame.f_locals
            changed = {name: new for name, value in variables.items() if (new := unwrapped(value)) is not value}
            if changed:
                variables.update(changed)
                if sys.version_info < (3, 13) and sys.implementation.name == "cpython":
                    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


_OURS = str(Path(__file__).parent.parent)
