"""Ctrl-C raises KeyboardInterrupt in the main thread between any two steps: what must not stop halfway runs elsewhere.

Python calls the handlers of signals in the main thread only, and there after calls and at the start of functions; not
between a `with` and the lock that it takes, as long as that is one of C (`threading.Lock`, `threading.RLock`; not a
`Condition`, whose `__enter__` is a function of Python). So a lock is always let go of after `with lock:`. But what the
block had begun is not finished. Where that matters, the main thread lets another one do it.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def may_be_interrupted() -> bool:
    """Whether a signal's handler may raise in this thread."""
    return threading.main_thread().ident == _thread.get_ident()


def uninterrupted(call: Callable[[], T]) -> T:
    """What it returns, or raises. It comes to its end also when the caller is interrupted while it waits."""
    return _elsewhere(call) if may_be_interrupted() else call()


def whole(method: Callable[P, T]) -> Callable[P, T]:
    """A method that comes to its end also when its caller is interrupted."""

    @functools.wraps(method)
    def run(*given: P.args, **named: P.kwargs) -> T:
        if may_be_interrupted():
            return _elsewhere(lambda: method(*given, **named))
        return method(*given, **named)

    return run


def soon(call: Callable[[], object]) -> None:
    """On another thread, and nobody waits for it. It must not raise."""
    with contextlib.suppress(RuntimeError):  # the interpreter is about to end
        _thread.start_new_thread(_run, (call,))


class Taken:
    """`with Taken(lock, seconds) as taken:` for a lock that is not waited for without end, of `threading.RLock`.

    `taken` is false when the time was over, or when this thread has the lock already. Wherever an interrupt comes, the
    lock is let go of: in the end by `__del__`, because `with` has the only reference.
    """

    __slots__ = ("_lock", "_mine", "_seconds")

    def __init__(self, lock: Any, seconds: float | None = None) -> None:
        self._lock = lock
        self._seconds = -1 if seconds is None else seconds
        self._mine = False

    def __enter__(self) -> bool:
        if self._lock._is_owned():
            return False
        self._mine = True
        return bool(self._lock.acquire(timeout=self._seconds))

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._mine and self._lock._is_owned():
            self._mine = False
            self._lock.release()


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        _forget_this_thread()


def _forget_this_thread() -> None:
    """`threading.current_thread()` makes a stand-in for a thread of C, which would be listed for ever."""
    stand_in = threading._active.get(_thread.get_ident())  # type: ignore[attr-defined]
    if isinstance(stand_in, threading._DummyThread):
        threading._active.pop(_thread.get_ident(), None)  # type: ignore[attr-defined]


def _elsewhere(call: Callable[[], T]) -> T:
    done = _thread.allocate_lock()
    done.acquire()
    # Taken out of these lists by whoever uses it: the thread may live on for a moment, and must hold nothing then.
    calls = [call]
    values: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            values.append(context.run(calls.pop()))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            errors.append(error)
        finally:
            _forget_this_thread()
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter is about to end
        return call()
    del call
    done.acquire()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # the traceback has this frame
    return values.pop()
