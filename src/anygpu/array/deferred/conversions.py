"""`np.asarray` and its like during deferred calls.

NumPy asks them of an object by its memory, so that an array that waits would be computed at the first line of most
library functions. While a deferred call runs, they give such an array back where NumPy gives its own back; for
everything else, and on other threads, they call NumPy's own as they were called. Code in C that calls them (of Cython,
which looks them up in `numpy` as well) gets NumPy's own array: it would look into the memory of what it got.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from anygpu.array.deferred import operators
from anygpu.array.deferred.recorder import Recorder
from anygpu.array.deferred.standing_in import StandIn

_lock = threading.Lock()
#: Deferred calls that run; those of them whose code may name such a function; and imports that want NumPy's own ones.
_running = _converting = _holding = 0


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


def _real(array: StandIn) -> Any:
    """NumPy's own array or number. NumPy would take the buffer of an object that stands for a number, as read-only."""
    return array._handed_out("a NumPy array is needed")


def _is_called_in_python(depth: int = 3) -> bool:
    """Whether the instruction that called is a call of such a function, and not one of code in C that calls it."""
    frame = sys._getframe(depth)
    return _is_named(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=4096)
def _is_named(code: CodeType, at: int) -> bool:
    """Whether the call there is of something that is written as one of these names: it begins where the call does."""
    # While a function of Python runs, its caller is at the call or in the cache behind it.
    before = [each for each in dis.get_instructions(code) if each.offset <= at]
    call = before[-1].positions if before else None
    if call is None or call.col_offset is None:
        return False
    begin = (call.lineno, call.col_offset)
    same = [
        each
        for each in before
        if each.opname.startswith("LOAD_")
        and each.positions is not None
        and (each.positions.lineno, each.positions.col_offset) == begin
    ]
    return bool(same) and max(same, key=_end).argval in _theirs


def _end(instruction: dis.Instruction) -> tuple[int, int]:
    where = instruction.positions
    return (0, 0) if where is None else (where.end_lineno or 0, where.end_col_offset or 0)


def _converter(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def convert(*given: Any, **options: Any) -> Any:
        if not given or type(given[0]) is not StandIn:
            return theirs(*given, **options)  # however it was called
        return of_ours(*given, **options)

    def of_ours(a: StandIn, dtype: Any = None, order: Any = None, **options: Any) -> Any:
        if not options and a._recorder.is_open and _is_called_in_python():
            if _keeps(a, dtype, order):
                return a
            if order in (None, "K") and not a._layout.is_number and dtype in operators.PLAIN_TYPES:
                return a._recorder.record(operators.astype_op(np.dtype(dtype)), (a,))
        real = _real(a)
        return _viewed(theirs(real, dtype, order, **options), real)

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
        if order in (None, "K") and _type_is(array, dtype) and _is_called_in_python():
            return array._recorder.record(operators.COPIED_AS_IT_LIES, (array,), 4)
        return None
    if not (copy is None or copy is False or copy is _IF_NEEDED) or not _keeps(array, dtype, order):
        return None
    # A library that wants a copy only if it is needed is about to give the array to C.
    frame = sys._getframe(2)
    is_users = not is_installed(frame.f_code.co_filename) and _is_called_in_python()
    return array if _is_asarray(frame) or is_users else None


@functools.lru_cache(maxsize=4096)
def is_installed(path: str) -> bool:
    """Whether a file is of an installed library: what has installed it has left its notes beside it."""
    if "site-packages" in path or path.startswith(sysconfig.get_path("stdlib")):
        return True
    parts = Path(path)
    return any(parts.relative_to(folder).parts[0] in _installed_in(folder) for folder in parts.parents)


@functools.lru_cache(maxsize=4096)
def _installed_in(folder: Path) -> frozenset[str]:
    """The packages that were installed into a folder, as `pip install --target` does."""
    found: set[str] = set()
    for record in folder.glob("*.dist-info/RECORD") if folder.is_absolute() else ():
        with contextlib.suppress(OSError):
            lines = record.read_text(encoding="utf-8").splitlines()
            found.update(line.partition("/")[0].partition(",")[0] for line in lines)
    return frozenset(found)


_IF_NEEDED: Any = getattr(getattr(np, "_CopyMode", None), "IF_NEEDED", None)


def _is_asarray(frame: FrameType) -> bool:
    """Whether that is the `asarray` by which SciPy and scikit-learn call NumPy's."""
    return frame.f_code.co_name == "asarray" and "array_api_compat" in str(frame.f_globals.get("__name__"))


@functools.wraps(np.ascontiguousarray)
def _ascontiguousarray(*given: Any, **options: Any) -> Any:
    if len(given) == 1 and type(given[0]) is StandIn and options.keys() <= {"dtype"}:
        (array,) = given
        keeps = array._recorder.is_open and array._layout.shape and _keeps(array, options.get("dtype"), "C")
        if keeps and _is_called_in_python(2):
            return array
        real = _real(array)
        return _viewed(_theirs["ascontiguousarray"](real, **options), real)
    return _theirs["ascontiguousarray"](*given, **options)


def _of_real(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """For those that give an array back in some cases, and would give a view of ours."""

    @functools.wraps(theirs)
    def convert(*given: Any, **options: Any) -> Any:
        if not given or type(given[0]) is not StandIn:
            return theirs(*given, **options)
        ours = given[0]
        keeps = ours._recorder.is_open and _is_called_in_python(2)
        real = _real(ours)
        result = theirs(real, *given[1:], **options)
        if not keeps:
            return _viewed(result, real)
        return ours if result is real else ours._recorder.stand_in(result)

    return convert


def _viewed(result: Any, real: Any) -> Any:
    """What `asarray` gave, for code that has one of ours: that it is no copy shows only in its base.

    SciPy lets LAPACK write over what is neither what it was given nor a view.
    """
    return real.view() if result is real and type(real) is np.ndarray else result


_theirs: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "asarray", "asanyarray", "array", "ascontiguousarray", "asfortranarray", "asarray_chkfinite", "require",
    )
}  # fmt: skip
_ours: dict[str, Callable[..., Any]] = {
    "asarray": _converter(np.asarray),
    "asanyarray": _converter(np.asanyarray),
    "array": _array,
    "ascontiguousarray": _ascontiguousarray,
    **{name: _of_real(_theirs[name]) for name in ("asfortranarray", "asarray_chkfinite", "require")},
}


#: The deferred call that runs.
_recorder: ContextVar[Recorder | None] = ContextVar("the recorder of the deferred call that runs", default=None)


def _compute_before(theirs: Callable[..., Any], *, changes_filters: bool) -> Callable[..., Any]:
    """What waits may warn too: it is computed before, so that warnings come in their order and to whom they came."""

    @functools.wraps(theirs)
    def call(*given: Any, **options: Any) -> Any:
        recorder = _recorder.get()
        if recorder is None or not recorder.is_open or recorder.thread != threading.get_ident():
            return theirs(*given, **options)
        recorder.compute("warnings are given or caught", 3)
        before = warnings.filters
        result = theirs(*given, **options)
        if changes_filters:
            recorder.see_filters(before, are_collected=result is not None)
        return result

    return call


#: What shows a warning, or changes which are shown, and to whom.
_of_warnings: list[tuple[Any, str, Callable[..., Any]]] = [
    (holder, name, getattr(holder, name))
    for holder, name in (
        (warnings, "_showwarnmsg"), (warnings, "_add_filter"), (warnings, "resetwarnings"),
        (warnings.catch_warnings, "__enter__"), (warnings.catch_warnings, "__exit__"),
    )
    if hasattr(holder, name)
]  # fmt: skip
_after_computing = [_compute_before(theirs, changes_filters=name != "_showwarnmsg") for _, name, theirs in _of_warnings]


#: The functions that are others while a deferred call runs.
CONVERTED = frozenset(_theirs)


@contextlib.contextmanager
def converting(recorder: Recorder | None = None, *, names_them: bool = True) -> Iterator[None]:
    """Let them know arrays that stand for NumPy's, as long as any deferred call runs.

    A call whose code names none of them (`names_them`) leaves NumPy's in their place.
    """
    global _running, _converting
    with _lock:
        _running += 1
        _converting += names_them
        if names_them and _converting == 1 and not _holding:
            _put(_ours)
        if _running == 1:
            for (holder, name, _), each in zip(_of_warnings, _after_computing, strict=True):
                setattr(holder, name, each)
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
        with _lock:
            _running -= 1
            _converting -= names_them
            if names_them and not _converting:
                _put(_theirs)
            if not _running:
                for holder, name, each in _of_warnings:
                    setattr(holder, name, each)


def _put(functions: dict[str, Callable[..., Any]]) -> None:
    for name, each in functions.items():
        setattr(np, name, each)


@contextlib.contextmanager
def unconverted() -> Iterator[None]:
    """Have NumPy's own functions in their place while modules are imported beside calls: some keep what they find.

    A deferred call that runs meanwhile computes where it would have waited.
    """
    global _holding
    with _lock:
        _holding += 1
        _put(_theirs)
    try:
        yield
    finally:
        with _lock:
            _holding -= 1
            if _converting and not _holding:
                _put(_ours)


def are_held() -> bool:
    """Whether NumPy's own functions are in their place, whatever runs."""
    return _holding > 0
