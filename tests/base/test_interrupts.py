"""Calls that an interrupt must not come into the middle of, and what their helper threads leave."""

from __future__ import annotations

import threading

from anygpu.base.interrupts import completed, soon, take
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


def test_a_lock_that_is_taken_is_released_whenever_an_interrupt_comes() -> None:
    lock = threading.Lock()

    def call() -> None:
        taken: list[bool] = []
        try:
            take(lock, taken)
        finally:
            if taken:
                lock.release()

    places = [place for place in places_of(call) if "interrupts" in place[0].co_filename]
    assert places
    for place in places:
        assert AtMoment(place).run(call)
        assert lock.acquire(blocking=False)
        lock.release()
