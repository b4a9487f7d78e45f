"""A dashboard that runs in a thread, as long as a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

from anygpu.observe.dashboard.server import Dashboard, ProcessSource


@contextlib.contextmanager
def served(source: ProcessSource, interval: float = 0.1) -> Iterator[Dashboard]:
    dashboard = Dashboard(source, now=time.time, interval=interval)
    ready = threading.Event()
    stopping: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        stopping.append((asyncio.get_running_loop(), task))
        with contextlib.suppress(asyncio.CancelledError):
            await dashboard.run(ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield dashboard
    finally:
        loop, task = stopping[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
