"""`map`: a function for every item, with progress, and an outcome for each."""

from __future__ import annotations

import concurrent.futures
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import length_hint
from typing import Any, NamedTuple, Protocol

from anygpu.base.display import Listed, drawn
from anygpu.base.interrupts import is_of_a_handler
from anygpu.errors import Overloaded, QueueFull
from anygpu.progress import Progress, showing
from anygpu.receipts import Receipt
from anygpu.runtime.future import Future
from anygpu.runtime.waiting import here

#: The share of the queue that one `map` may fill, so that others can submit too.
_SHARE = 0.5
#: Seconds between attempts to submit while the tasks of others fill the queue.
_LOOK_AGAIN = 0.01


class Outcome(NamedTuple):
    """The outcome of one item: a value, or the error that it raised."""

    value: Any = None
    error: BaseException | None = None
    receipt: Receipt | None = None

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Outcome(error={self.error!r})"
        device = f", ran on {self.receipt.device}" if self.receipt is not None else ""
        return f"Outcome({self.value!r}{device})"

    def _repr_html_(self) -> str | None:
        return drawn(self)

    @property
    def ok(self) -> bool:
        return self.error is None

    def unwrap(self) -> Any:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


class Stop:
    """The pending futures of a `map`, and whether it was stopped."""

    def __init__(self) -> None:
        self.waiting: deque[Future | BaseException] = deque()
        self._stopped = False

    def stop(self) -> None:
        """May be called from another thread."""
        self._stopped = True
        for each in self.waiting.copy():
            if isinstance(each, Future):
                each.cancel()

    def check(self) -> None:
        if self._stopped:
            raise concurrent.futures.CancelledError


class _Runtime(Protocol):
    @property
    def limit(self) -> int: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future: ...

    def submit_beyond(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Future: ...


def map_over(
    runtime: _Runtime,
    function: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    progress: Progress,
    given: Mapping[str, Any],
    stop: Stop | None = None,
) -> list[Outcome]:
    stop = stop or Stop()
    hints = [length_hint(each, -1) for each in iterables]
    total = min((hint for hint in hints if hint >= 0), default=None)
    window = max(1, int(runtime.limit * _SHARE))
    outcomes: list[Outcome] = Listed()
    waiting = stop.waiting
    with showing(progress, getattr(function, "__name__", "map"), total) as tell:

        def take() -> None:
            # It stays in the deque while it is waited for, so that `stop` cancels it too.
            first = waiting[0]
            outcomes.append(_outcome(first) if isinstance(first, Future) else Outcome(error=first))
            del waiting[0]
            tell(len(outcomes))
            stop.check()

        try:
            for arguments in zip(*iterables, strict=False):
                while len(waiting) >= window:
                    take()
                waiting.append(_submitted(runtime, function, arguments, given, stop))
            while waiting:
                take()
        except BaseException:
            stop.stop()
            raise
    return outcomes


def _submitted(
    runtime: _Runtime,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    given: Mapping[str, Any],
    stop: Stop,
) -> Future | BaseException:
    """The future of one item, or its error: a bad item must not fail the others.

    While the queue is full, this waits for items of the same `map` first.
    """
    while True:
        stop.check()
        try:
            return runtime.submit(function, *arguments, **given)
        except Overloaded as error:
            pending = next((each for each in stop.waiting if isinstance(each, Future) and not each.done()), None)
            if pending is not None:
                pending.wait()
            elif isinstance(error, QueueFull):  # with tasks of others
                if here.seat is not None:
                    # Those tasks may wait for this very thread, so one item is admitted beyond the limit.
                    return runtime.submit_beyond(function, *arguments, **given)
                time.sleep(_LOOK_AGAIN)
            else:
                return error
        except Exception as error:
            if is_of_a_handler(error):  # not the item's own
                raise
            return error


def _outcome(future: Future) -> Outcome:
    # An exception raised here, such as KeyboardInterrupt, is the caller's; the task's own error is returned.
    try:
        error = future.exception()
    except concurrent.futures.CancelledError as cancelled:
        error = cancelled
    return Outcome(future.result(), None, future.receipt) if error is None else Outcome(error=error)
