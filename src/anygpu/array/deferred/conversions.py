"""`np.asarray` and its like during deferred calls.

NumPy asks them of an object by its memory, so that an array that waits would be computed at the first line of most
library functions. While a deferred call runs, they give such an array back where NumPy gives its own back; for
everything else, and on other threads, they are NumPy's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from anygpu.array.deferred import calls
from anygpu.array.deferred.standing_in import StandIn

_lock = threading.Lock()
_running = 0


def _type_is(array: StandIn, dtype: Any) -> bool:
    try:
        return dtype is None or np.dtype(dtype) == array._layout.dtype
    except TypeError:
        return False


def _keeps(array: StandIn, dtype: Any, order: Any) -> bool:
    """Whether NumPy returns such an array itself."""
    layout = array._layout
    if layout.is_number or not _type_is(array, dtype):
        return False
    return order in (None, "K", "A") or (order == "C" and layout.is_contiguous)


def _converter(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def convert(a: Any, /, dtype: Any = None, order: Any = None, **options: Any) -> Any:
        if type(a) is StandIn and not options and a._recorder.is_open:
            if _keeps(a, dtype, order):
                return a
            if order in (None, "K") and not a._layout.is_number and dtype in calls.PLAIN_TYPES:
                return a._recorder.record(calls.astype_op(np.dtype(dtype)), (a,))
        return theirs(a, dtype, order, **options)

    return convert


@functools.wraps(np.array)
def _array(object: Any, /, *arguments: Any, **options: Any) -> Any:
    if type(object) is StandIn and not arguments and object._recorder.is_open and not object._layout.is_number:
        copies = options.get("copy", True) is True
        if copies and options.keys() <= {"copy", "dtype"} and _type_is(object, options.get("dtype")):
            return object._recorder.record(calls.COPIED_AS_IT_LIES, (object,))
    return _theirs["array"](object, *arguments, **options)


@functools.wraps(np.ascontiguousarray)
def _ascontiguousarray(a: Any, /, dtype: Any = None, **options: Any) -> Any:
    if type(a) is StandIn and not options and a._recorder.is_open and a._layout.shape and _keeps(a, dtype, "C"):
        return a
    return _theirs["ascontiguousarray"](a, dtype, **options)


_theirs: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("asarray", "asanyarray", "array", "ascontiguousarray")
}
_ours: dict[str, Callable[..., Any]] = {
    "asarray": _converter(np.asarray),
    "asanyarray": _converter(np.asanyarray),
    "array": _array,
    "ascontiguousarray": _ascontiguousarray,
}


@contextmanager
def converting() -> Iterator[None]:
    """Let them know arrays that stand for NumPy's, as long as any deferred call runs."""
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            for name, each in _ours.items():
                setattr(np, name, each)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if not _running:
                for name, each in _theirs.items():
                    setattr(np, name, each)
