"""Retries failed allocations after a callback has freed memory."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from anygpu.errors import AllocationError, OutOfMemory
from anygpu.memory.resource import Block, Resource

#: Retries of one allocation before its error is raised.
RETRIES = 2

#: Called with the bytes that could not be allocated, and whether this is the last try; returns whether it freed any.
Free = Callable[[int, bool], bool]


class OnFailure:
    """Calls `free` when the resource below has no memory now, and tries again if that returns true.

    At most twice, and only once the error is dropped together with the frames that it holds: they are what keeps
    alive the very arrays whose memory is needed. `TooBig` is not a failure of that kind: freeing does not help.
    """

    def __init__(
        self,
        upstream: Resource,
        free: Free,
        *,
        on: type[AllocationError] | tuple[type[AllocationError], ...] = OutOfMemory,
    ) -> None:
        self._upstream = upstream
        self._free = free
        self._on = on
        #: Threads that are freeing memory: a failed allocation of these must not be retried, or it would recurse.
        self._freeing: set[int] = set()

    @property
    def upstream(self) -> Resource:
        return self._upstream

    def allocate(self, nbytes: int, *, owner: str | None = None) -> Block:
        try:
            return self._upstream.allocate(nbytes, owner=owner)
        except self._on as error:
            failure = _without_frames(error)
        # Here and not in the except block: there the interpreter itself would hold the error.
        try:
            for retry in range(1, RETRIES + 1):
                if not self._freed(nbytes, retry == RETRIES):
                    break
                try:
                    return self._upstream.allocate(nbytes, owner=owner)
                except self._on as error:
                    failure = _without_frames(error)
            raise failure
        finally:
            # The error holds this frame now: without this, each would keep the other alive.
            del failure

    def release(self, block: Block) -> None:
        self._upstream.release(block)

    def _freed(self, nbytes: int, last: bool) -> bool:
        me = threading.get_ident()
        if me in self._freeing:
            return False
        self._freeing.add(me)
        try:
            return self._free(nbytes, last)
        finally:
            self._freeing.discard(me)


def _without_frames(error: AllocationError) -> AllocationError:
    """Drop the tracebacks of the error and its causes, which keep arrays alive."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
