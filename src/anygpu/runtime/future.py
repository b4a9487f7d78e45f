"""What `submit` returns: the result of a task, some day."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any

from anygpu.receipts import Receipt


class Future(concurrent.futures.Future[Any]):
    """The result of a task, some day: `future.result()`, or `await future`.

    As every future of Python's `concurrent.futures`, with the receipt of what happened, and with a `cancel` that also
    stops a running task between its pieces. Callbacks run on the thread of the device, so they should be short.
    """

    def __init__(self, cancel: Callable[[Future], bool]) -> None:
        super().__init__()
        self._cancel_task = cancel
        self._receipt: Receipt | Callable[[], Receipt] | None = None

    @property
    def receipt(self) -> Receipt | None:
        """What happened; `None` as long as the task is not done, and when it has failed."""
        made = self._receipt
        if callable(made):
            # Making one takes longer than a small task, so it is made when somebody wants to see it.
            made = self._receipt = made()
        return made

    def cancel(self) -> bool:
        """Whether the task will not deliver: it waited still, or runs in pieces and stops after this one."""
        return self._cancel_task(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()
