"""Which submissions the device is done with: by that, memory may be touched by the host, or given back."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyopencl as cl

from anygpu.engines.opencl import errors


class Submissions:
    """Numbers in the order of an in-order queue: when one is done, so are all before it."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._newest = 0
        self._done = 0
        self._pending: deque[tuple[int, Any]] = deque()

    @property
    def next(self) -> int:
        """The number that the next one will have."""
        return self._newest + 1

    def add(self, last_event: Any) -> int:
        self._newest += 1
        self._pending.append((self._newest, last_event))
        return self._newest

    def is_done(self, number: int) -> bool:
        if number > self._done:
            self.look()
        return number <= self._done

    def look(self) -> int:
        """The newest that is done; forgets the events of all that are."""
        pending = self._pending
        # Negative is the code of what went wrong: that is done as well, and `wait` says so.
        while pending and pending[0][1].get_info(cl.event_info.COMMAND_EXECUTION_STATUS) == 0:
            self._done = pending.popleft()[0]
        return self._done

    def wait(self, number: int) -> None:
        """Return when it is done; raises what the device says went wrong in it or before it."""
        if self.is_done(number):
            return
        pending = self._pending
        while pending and pending[0][0] <= number:
            done, event = pending.popleft()
            try:
                event.wait()
            except cl.Error as error:
                status = int(event.get_info(cl.event_info.COMMAND_EXECUTION_STATUS))
                if typed := errors.by_code(status, self._device):
                    raise typed from error
                raise
            finally:
                self._done = done

    def event_of(self, number: int) -> Any | None:
        """The event of that submission, or of a later one; `None` if it is done."""
        if self.is_done(number):
            return None
        return next((event for newer, event in self._pending if newer >= number), None)

    def wait_for_all(self) -> None:
        self.wait(self._newest)

    def forget(self) -> None:
        self._pending.clear()
        self._done = self._newest
