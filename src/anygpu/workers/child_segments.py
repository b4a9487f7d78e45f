"""Shared memory as the child's side sees it: what was announced, and what is mapped."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from anygpu.errors import OutOfMemory
from anygpu.workers.shared_memory import Segment, attached_segment
from anygpu.workers.task_messages import Attached, Envelope


class AttachedSegments:
    """The segments of one link."""

    def __init__(self) -> None:
        self._mapped: dict[int, Segment] = {}
        #: Segments that were announced and are not mapped yet, with their descriptors.
        self._announced: dict[int, tuple[Attached, int]] = {}

    def forget(self, envelope: Envelope) -> None:
        """Let go of what will not be used again."""
        for number in envelope.forgotten:
            segment = self._mapped.pop(number, None)
            if segment is not None:
                segment.close()
            _, descriptor = self._announced.pop(number, (None, -1))
            if descriptor >= 0:
                os.close(descriptor)

    def announce(self, envelope: Envelope, next_descriptor: Callable[[], int]) -> None:
        """Take what is new."""
        for new in envelope.attached:
            self._announced[new.segment] = (new, -1 if new.name else next_descriptor())

    def size(self, number: int) -> int:
        """The bytes of a segment, mapped or not."""
        found = self._mapped.get(number)
        return found.nbytes if found is not None else self._announced[number][0].nbytes

    def find(self, number: int, device: str) -> Segment:
        """Mapped when it is first used: where there is no room for it now, a later task for `device` may have it."""
        found = self._mapped.get(number)
        if found is None:
            new, descriptor = self._announced[number]
            try:
                found = attached_segment(new.segment, new.nbytes, descriptor, new.name)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                raise OutOfMemory(device, new.nbytes) from error
            self._mapped[number] = found
            del self._announced[number]
        return found

    def close(self) -> None:
        """Let go of all of them."""
        for segment in self._mapped.values():
            segment.close()
        for _, descriptor in self._announced.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._mapped.clear()
        self._announced.clear()
