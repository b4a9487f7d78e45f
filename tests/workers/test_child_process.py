"""What is left of a child that has ended."""

from __future__ import annotations

import io

import pytest

from anygpu.workers.child_process import Child


class Closing(io.BytesIO):
    """A file that another thread closes while it is read."""

    def __init__(self, error: Exception) -> None:
        super().__init__(b"out of memory")
        self.error = error

    def tell(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [ValueError("I/O operation on closed file"), OSError(9, "Bad file descriptor")])
def test_last_words_that_another_thread_closes_just_now(error: Exception) -> None:
    child = Child.__new__(Child)
    child._stderr = io.BytesIO(b"out of memory\n")
    assert child.last_words() == "out of memory"
    child._stderr = Closing(error)
    assert child.last_words() == ""
