"""Ctrl-C raises KeyboardInterrupt in the main thread between any two steps: what must not stop halfway runs elsewhere.

Python calls the handlers of signals in the main thread only, and there after calls and at the start of functions; not
between a `with` and the lock that it takes, as long as that is one of C (`threading.Lock`, `threading.RLock`; not a
`Condition`, whose `__enter__` is a function of Python). So a lock is always let go of after `with lock:`. But what the
block had begun is not finished. Where that matters, the main thread lets another one do it.

`float_errors` is for functions that compute with other floating-point modes of NumPy. `with np.errstate(...)` is a
function of Python at both ends: an interrupt inside of one of them leaves the modes changed for as long as the thread
lives. A context is entered and left by C.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
T = TypeVar("T")


def may_be_interrupted() -> bool:
    """Whether a signal's handler may raise in this thread."""
    return threading.main_thread().ident == _thread.get_ident()


def uninterrupted(call: Callable[[], T]) -> T:
    """What it returns, or raises. It comes to its end also when the caller is interrupted while it waits."""
    return _elsewhere(call) if may_be_interrupted() else call()


def completed(call: Callable[[], T]) -> T:
    """As `uninterrupted`, but a caller who is interrupted leaves only when the call has come to its end, or not begun.

    For what is short and has to be taken back afterwards.
    """
    return _elsewhere(call, patient=True) if may_be_interrupted() else call()


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


def is_of_a_handler(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it, as an alarm of the user's does: it is no function's own.

    It is told by the handler's frame in the traceback, which takes microseconds.
    """
    if not may_be_interrupted():
        return False
    import signal  # only now: it is rarely needed

    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers if callable(each)}
    codes.discard(None)
    trace = error.__traceback__ if codes else None
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


class TryAcquire:
    """`with TryAcquire(lock, seconds) as acquired:` for a `threading.RLock` that is not waited for without end.

    `acquired` is false when the time was over, or when this thread has the lock already: a finalizer or the handler of
    a signal, which run in the middle of other code, do not enter twice. Between `if lock.acquire(False):` and the `try`
    behind it, an interrupt would leave the lock taken for good. An RLock knows its owner, so a thread that is
    interrupted here looks whether it has become that. An interrupt right where the block ends is left to `__del__`.
    """

    #: Whether the lock may have been acquired here. Of the class, as `__del__` also comes after half of an `__init__`.
    _entered = False

    def __init__(self, lock: Any, seconds: float | None = 0.0) -> None:
        self._lock = lock
        self._seconds = -1 if seconds is None else seconds

    def acquire(self) -> bool:
        """Returns whether the lock was acquired in time; an interrupt meanwhile leaves it released."""
        if self._lock._is_owned():
            return False
        self._entered = True
        try:
            return bool(self._lock.acquire(timeout=self._seconds))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock if it was acquired; may be called twice."""
        if self._entered and self._lock._is_owned():
            self._entered = False
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def _run(call: Callable[[], object]) -> None:
    """Calls it on a thread of C, and forgets the thread's stand-in afterwards."""
    try:
        call()
    finally:
        _forget_this_thread()


def _forget_this_thread() -> None:
    """`threading.current_thread()` makes a stand-in for a thread of C, which would be listed for ever."""
    stand_in = threading._active.get(_thread.get_ident())  # type: ignore[attr-defined]
    if isinstance(stand_in, threading._DummyThread):
        threading._active.pop(_thread.get_ident(), None)  # type: ignore[attr-defined]


def _elsewhere(call: Callable[[], T], *, patient: bool = False) -> T:
    """Runs the call on another thread, in the caller's context, and returns or raises what it does.

    An interrupt of the caller is raised at once, or with `patient` when the call has come to its end. A call that had
    not begun then is taken back. No reference to the call, its value or its error stays with the other thread.
    """
    done = _thread.allocate_lock()
    done.acquire()
    # Taken out of these lists by whoever uses it: the thread may live on for a moment, and must hold nothing then.
    calls = [call]
    values: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            if calls:
                values.append(context.run(calls.pop()))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            errors.append(error)
        finally:
            _forget_this_thread()
            done.release()

    try:
        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:  # the interpreter is about to end
            return call()
        del call
        if patient:
            with done:  # it can be waited for again
                pass
        else:
            done.acquire()
    except BaseException:
        # Also right after the start: a thread that begins later would do what nobody takes back.
        if patient and not _taken_back(calls):
            with done:
                pass
        raise
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # the traceback has this frame
    return values.pop()


def _taken_back(calls: list[Callable[[], T]]) -> bool:
    """Whether the other thread had not begun with it, and will not."""
    try:
        calls.pop()
    except IndexError:
        return False
    return True


def float_errors(**modes: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function that computes with some modes changed, named as those of `np.errstate`.

    It sees its caller's context variables, as users' own functions inside of it may want to; what it sets is gone.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def compute(*given: P.args, **named: P.kwargs) -> T:
            np.seterr(**modes)
            return function(*given, **named)

        @functools.wraps(function)
        def run(*given: P.args, **named: P.kwargs) -> T:
            return contextvars.copy_context().run(compute, *given, **named)

        return run

    return decorate


def float_errors_ignored(function: Callable[P, T]) -> Callable[P, T]:
    """For a function that computes without warnings."""
    return float_errors(all="ignore")(function)
