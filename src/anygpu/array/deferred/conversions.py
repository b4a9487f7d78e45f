"""`np.asarray` and its like during deferred calls.

NumPy asks them of an object by its memory, so that an array that waits would be computed at the first line of most
library functions. While a deferred call runs, they give such an array back where NumPy gives its own back; for
everything else, and on other threads, they call NumPy's own as they were called.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
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
    def convert(*given: Any, **options: Any) -> Any:
        if not given or type(given[0]) is not StandIn:
            return theirs(*given, **options)  # however it was called
        return of_ours(*given, **options)

    def of_ours(a: StandIn, dtype: Any = None, order: Any = None, **options: Any) -> Any:
        if not options and a._recorder.is_open:
            if _keeps(a, dtype, order):
                return a
            if order in (None, "K") and not a._layout.is_number and dtype in calls.PLAIN_TYPES:
                return a._recorder.record(calls.astype_op(np.dtype(dtype)), (a,))
        return theirs(a, dtype, order, **options)

    return convert


@functools.wraps(np.array)
def _array(*given: Any, **options: Any) -> Any:
    if given and type(given[0]) is StandIn:
        found = _array_of_ours(*given, **options)
        if found is not None:
            return found
    return _theirs["array"](*given, **options)


def _array_of_ours(
    array: StandIn, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: bool = False, **others: Any
) -> Any:
    """What `np.array` gives for one of ours; `None` where NumPy is to be asked."""
    if others or array._layout.is_number or not array._recorder.is_open:
        return None
    if copy is True:
        if order in (None, "K") and _type_is(array, dtype):
            return array._recorder.record(calls.COPIED_AS_IT_LIES, (array,), 4)
        return None
    # Whoever else wants a copy only if it is needed is about to give the array to C.
    if (copy is None or copy is _IF_NEEDED) and _is_asarray(sys._getframe(2)) and _keeps(array, dtype, order):
        return array
    return None


_IF_NEEDED: Any = getattr(getattr(np, "_CopyMode", None), "IF_NEEDED", None)


def _is_asarray(frame: FrameType) -> bool:
    """Whether that is the `asarray` by which SciPy and scikit-learn call NumPy's."""
    return frame.f_code.co_name == "asarray" and "array_api_compat" in str(frame.f_globals.get("__name__"))


@functools.wraps(np.ascontiguousarray)
def _ascontiguousarray(*given: Any, **options: Any) -> Any:
    if len(given) == 1 and type(given[0]) is StandIn and options.keys() <= {"dtype"}:
        (array,) = given
        if array._recorder.is_open and array._layout.shape and _keeps(array, options.get("dtype"), "C"):
            return array
    return _theirs["ascontiguousarray"](*given, **options)


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
