"""What is done, in which order, and what went wrong: with events that say what a test wants them to say."""

from __future__ import annotations

import pyopencl as cl
import pytest

from anygpu.engines.opencl.memory import Submissions
from anygpu.errors import OutOfMemory

RUNNING, COMPLETE = 1, 0


class Event:
    def __init__(self, status: int = RUNNING) -> None:
        self.status = status
        self.waited = 0

    def get_info(self, _what: object) -> int:
        return self.status

    def wait(self) -> None:
        self.waited += 1
        if self.status < 0:
            code = cl.status_code.EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST
            raise cl.RuntimeError(cl._cl._ErrorRecord(msg="", code=code, routine="clWaitForEvents"))
        self.status = COMPLETE


def test_nothing_was_ever_submitted() -> None:
    submissions = Submissions("opencl:0")
    assert submissions.is_done(0)
    submissions.wait_for_all()


def test_only_what_is_needed_is_waited_for() -> None:
    submissions = Submissions("opencl:0")
    events = [Event() for _ in range(3)]
    numbers = [submissions.add(event) for event in events]
    submissions.wait(numbers[1])
    assert [event.waited for event in events] == [1, 1, 0]
    assert submissions.is_done(numbers[1])
    assert not submissions.is_done(numbers[2])


def test_what_is_done_is_seen_without_waiting() -> None:
    submissions = Submissions("opencl:0")
    event = Event()
    number = submissions.add(event)
    assert not submissions.is_done(number)
    event.status = COMPLETE
    assert submissions.is_done(number)
    submissions.wait(number)
    assert event.waited == 0


def test_a_failure_has_the_name_that_the_device_gave_it() -> None:
    submissions = Submissions("opencl:0")
    number = submissions.add(Event(int(cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE)))
    later = submissions.add(Event())
    assert not submissions.is_done(number)
    with pytest.raises(OutOfMemory, match="opencl:0"):
        submissions.wait_for_all()
    # Told once; what came after it can be waited for.
    submissions.wait_for_all()
    assert submissions.is_done(later)


def test_a_failure_without_a_name_is_the_librarys_own() -> None:
    submissions = Submissions("opencl:0")
    submissions.add(Event(int(cl.status_code.INVALID_VALUE)))
    with pytest.raises(cl.RuntimeError):
        submissions.wait_for_all()
