"""A chunk that is on its way to a device while the one before it is computed there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from anygpu.program.graph import Program
from anygpu.receipts import Phases
from anygpu.workers.worker import Ran


class ChunkKey(NamedTuple):
    """A chunk, and where it runs."""

    device: str
    start: int
    stop: int


class Attempt:
    """The first attempt to run a chunk, on a thread of its own."""

    def __init__(
        self,
        key: ChunkKey,
        piece: Program,
        given: list[Any],
        run: Callable[[], Ran],
        clock: Callable[[], float],
        ended: Callable[[], None],
    ) -> None:
        self.key = key
        self.piece = piece
        self.given = given
        self.began = clock()
        self._ran: Ran | None = None
        self._error: BaseException | None = None

        def attempt() -> None:
            try:
                self._ran = run()
            except BaseException as error:  # noqa: BLE001 - raised where the chunk is computed
                self._error = error
            ended()

        self._thread = threading.Thread(target=attempt, name="anygpu-stream-ahead", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return self._ran is not None or self._error is not None

    def result(self) -> Ran:
        """What came of it, when it is over."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
        assert self._ran is not None, "it is over"
        return self._ran

    def leave(self) -> None:
        """Wait until nothing of it runs any more; what came of it is of no use."""
        self._thread.join()


def visible(phases: Phases, took: float) -> Phases:
    """The phases of an overlapped run as they were waited for: in `took` seconds, of which computing comes first."""
    run = min(phases.run + phases.compile, took)
    compile_ = min(phases.compile, run)
    rest = took - run
    moving = phases.write + phases.read + phases.other
    share = min(1.0, rest / moving) if moving > 0 else 0.0
    return Phases(
        compile=compile_,
        queue=max(0.0, rest - moving * share),
        write=phases.write * share,
        run=run - compile_,
        read=phases.read * share,
        other=phases.other * share,
    )
