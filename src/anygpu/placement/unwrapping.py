"""NumPy's own arrays in the place of those that stood for them, in whatever a deferred call leaves behind."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from types import CellType, FunctionType, GeneratorType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from anygpu.array.deferred.standing_in import StandIn


def unwrapped(value: Any, seen: dict[int, tuple[Any, Any]] | None = None) -> Any:
    """What a function returned, as NumPy has it. Lists, dicts and objects stay the same ones; tuples are made anew.

    `seen` has what was met, with what takes its place. Containers are read and written to as Python has them: what the
    user's own subclasses do at that is not done.
    """
    kind = type(value)
    if kind is StandIn:
        return value._computed("it is returned")
    if kind in _ATOMS:
        return value
    if kind is np.ndarray and value.dtype != object:
        return value
    seen = {} if seen is None else seen
    known = seen.get(id(value))
    if known is not None:
        return known[1]
    seen[id(value)] = (value, value)
    _unwrap_attributes(value, seen)
    if isinstance(value, tuple):
        new = _tuple(value, seen)
        seen[id(value)] = (value, new)
        return new
    if isinstance(value, list | deque):
        base: Any = list if isinstance(value, list) else deque
        for number, each in enumerate(base.__iter__(value)):
            new = unwrapped(each, seen)
            if new is not each:
                base.__setitem__(value, number, new)
    elif isinstance(value, dict):
        for name, each in list(dict.items(value)):
            new = unwrapped(each, seen)
            if new is not each:
                dict.__setitem__(value, name, new)
            if type(name) is StandIn:
                _replace_key(value, name, name._computed("it is returned"))
    elif isinstance(value, set | frozenset):
        return _set(value)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        whole = value  # whoever has a part of it can reach all of it
        while isinstance(whole.base, np.ndarray) and whole.base.dtype == object:
            whole = whole.base
        for number, each in enumerate(whole.flat):
            new = unwrapped(each, seen)
            if new is not each:
                whole.flat[number] = new
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            each = getattr(value, field.name, None)
            new = unwrapped(each, seen)
            if new is not each:
                object.__setattr__(value, field.name, new)
    return value


def _unwrap_attributes(value: Any, seen: dict[int, tuple[Any, Any]]) -> None:
    """NumPy's arrays as attributes of an object that is returned: some results keep what they were computed of."""
    if isinstance(value, type | ModuleType | FunctionType):
        return
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(own) is dict:
        for name, each in list(own.items()):
            if type(each) in (StandIn, tuple, list):
                new = unwrapped(each, seen)
                if new is not each:
                    own[name] = new


_ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None)))
_IS_CPYTHON = sys.implementation.name == "cpython"


def _tuple(value: tuple[Any, ...], seen: dict[int, tuple[Any, Any]]) -> tuple[Any, ...]:
    parts = [unwrapped(each, seen) for each in tuple.__iter__(value)]
    changed = [number for number, each in enumerate(tuple.__iter__(value)) if parts[number] is not each]
    if not changed:
        return value
    if type(value) is tuple:
        return tuple(parts)
    if _IS_CPYTHON:  # it may have attributes of its own
        for number in changed:
            _set_item(value, number, parts[number])
        return value
    make = getattr(type(value), "_make", None)
    return tuple(parts) if make is None else make(parts)


def _set(value: Any) -> Any:
    """Numbers of NumPy's can be in a set, and their stand-ins."""
    ours = [each for each in value if type(each) is StandIn]
    if not ours:
        return value
    if isinstance(value, frozenset):
        return type(value)(unwrapped(each) for each in value)
    for each in ours:
        value.discard(each)
        value.add(unwrapped(each))
    return value


def replace_everywhere(arrays: Sequence[StandIn]) -> int:
    """Replace arrays that outlive their call, wherever somebody holds one; how many are still held."""
    left = 0
    for array in arrays:
        value = array._computed("it outlives the call")
        for holder in gc.get_referrers(array):
            if holder is not arrays and holder is not sys._getframe():
                _replace(holder, array, value)
        del holder
    views = {id(each._parent) for each in arrays}
    for array in arrays:
        # The sequence, this frame, and what asks; and views of it.
        left += sys.getrefcount(array) > 3 and id(array) not in views
    return left


def _replace(holder: Any, array: StandIn, value: Any) -> None:
    """Put a value in the place of an array that waits, wherever an object of the user's holds it."""
    kind = type(holder)
    if isinstance(holder, list | deque):
        base: Any = list if isinstance(holder, list) else deque
        for number, each in enumerate(base.__iter__(holder)):
            if each is array:
                base.__setitem__(holder, number, value)
    elif isinstance(holder, dict):
        for name, each in list(dict.items(holder)):
            if each is array:
                dict.__setitem__(holder, name, value)
            if name is array:
                _replace_key(holder, array, value)
    elif isinstance(holder, set):
        holder.discard(array)
        holder.add(value)
    elif isinstance(holder, tuple):
        _replace_in_tuple(holder, array, value)
    elif isinstance(holder, CellType):
        holder.cell_contents = value
    elif isinstance(holder, GeneratorType):
        _replace_in_frame(holder.gi_frame, array, value)
    elif kind is not StandIn:
        for each in kind.__mro__:
            for slot in vars(each).values():
                if isinstance(slot, MemberDescriptorType) and _slot(slot, holder) is array:
                    slot.__set__(holder, value)
        space = getattr(holder, "__dict__", None)
        if isinstance(space, dict):
            for name, each in list(space.items()):
                if each is array:
                    space[name] = value


def _slot(slot: MemberDescriptorType, holder: Any) -> Any:
    """The value of a slot, or `None` where it is not set."""
    try:
        return slot.__get__(holder)
    except AttributeError:
        return None


def _replace_key(holder: dict[Any, Any], array: StandIn, value: Any) -> None:
    """In the same place: keys keep their order."""
    base: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
    items = [(value if name is array else name, each) for name, each in base.items(holder)]
    base.clear(holder)
    for name, each in items:
        base.__setitem__(holder, name, each)


def _replace_in_tuple(holder: tuple[Any, ...], array: StandIn, value: Any) -> None:
    if _IS_CPYTHON:
        for number, each in enumerate(tuple.__iter__(holder)):
            if each is array:
                _set_item(holder, number, value)


def _set_item(holder: tuple[Any, ...], number: int, value: Any) -> None:
    """Nobody has seen the tuple outside of the call: CPython lets its items be set."""
    place = id(holder) + tuple.__basicsize__ + number * ctypes.sizeof(ctypes.c_void_p)
    before = tuple.__getitem__(holder, number)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    ctypes.c_void_p.from_address(place).value = id(value)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(before))


def _replace_in_frame(frame: Any, array: StandIn, value: Any) -> None:
    """In the variables of a generator that goes on after the call."""
    if frame is None:
        return
    names = [name for name, each in frame.f_locals.items() if each is array]
    space = frame.f_locals
    for name in names:
        space[name] = value
    if names:
        _keep_variables(frame)


def _keep_variables(frame: Any) -> None:
    """Variables that were set in `f_locals` are the frame's, which they are by themselves from Python 3.13 on."""
    if sys.version_info < (3, 13) and _IS_CPYTHON:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


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
                _keep_variables(frame)


_OURS = str(Path(__file__).parent.parent)
