"""Calls that an interrupt must not come into the middle of, and what their helper threads leave."""

from __future__ import annotations

import threading

import pytest

from anygpu.base.interrupts import TryAcquire, completed, soon
from tests.support.interrupting import AtMoment, places_of
from tests.workers.test_process import until


def test_helper_threads_are_listed_nowhere_afterwards() -> None:
    """`threading.current_thread()` makes a stand-in for a thread that Python does not know."""
    stand_ins = [completed(threading.current_thread)]
    assert threading.current_thread() not in stand_ins
    looked = threading.Event()

    def look() -> None:
        stand_ins.append(threading.current_thread())
        looked.set()

    soon(look)
    assert looked.wait(60)
    # The event is set before the thread has ended, which takes some microseconds more.
    assert until(lambda: not any(each in threading.enumerate() for each in stand_ins))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it also comes into `__del__`
def test_a_lock_that_is_acquired_is_released_whenever_an_interrupt_comes() -> None:
    lock = threading.RLock()

    def call() -> None:
        with TryAcquire(lock) as acquired:
            assert acquired

    places = [place for place in places_of(call) if "interrupts" in place[0].co_filename]
    assert places
    for place in places:
        assert AtMoment(place).run(call)
        assert is_free(lock)


def test_an_interrupt_behind_acquire_releases_the_lock_at_once() -> None:
    """Also while the exception and its traceback are kept, as an interactive session does."""
    lock = threading.RLock()
    attempt = TryAcquire(lock)
    call = attempt.acquire
    place = places_of(call)[-1]
    attempt.release()
    assert AtMoment(place).run(call)
    assert is_free(lock)


def test_a_lock_that_this_thread_has_is_not_entered_twice() -> None:
    lock = threading.RLock()
    with TryAcquire(lock) as outer:
        with TryAcquire(lock, None) as inner:
            assert not inner
        assert outer
        assert not is_free(lock)
    assert is_free(lock)


def is_free(lock: threading.RLock) -> bool:
    """Whether another thread can acquire it."""
    found: list[bool] = []

    def look() -> None:
        with TryAcquire(lock) as acquired:
            found.append(acquired)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]
