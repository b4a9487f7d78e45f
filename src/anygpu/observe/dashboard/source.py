"""Where snapshots come from: the observed processes of this user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from anygpu.errors import AnyGPUError
from anygpu.observe.looking import NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.snapshot import Snapshot

#: Processes that are asked at once.
_AT_ONCE = 16
#: One that is slower than this, in seconds, is not waited for: its answer counts next time.
PATIENCE = 0.2


class Source(Protocol):
    """Asks processes what they are doing."""

    def snapshots(self, since: Mapping[int, int]) -> Mapping[int, Snapshot | None]:
        """By process id; `None` for one that is there and has not answered.

        `since` has the number of the newest call that is known of each.
        """
        ...


class ObservedProcesses:
    """All of this user. For one thread at a time."""

    def __init__(self, find: Callable[[], Sequence[ObservedProcess]] = observed_processes) -> None:
        self._find = find
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="anygpu dashboard")
        self._asked: dict[int, Future[Snapshot]] = {}

    def snapshots(self, since: Mapping[int, int]) -> dict[int, Snapshot | None]:
        found: dict[int, Snapshot | None] = {}
        for process in self._find():
            found[process.pid] = None
            if process.pid not in self._asked:
                self._asked[process.pid] = self._pool.submit(process.ask, since.get(process.pid, 0))
        done, _ = wait(self._asked.values(), timeout=PATIENCE)
        for pid in [pid for pid, asked in self._asked.items() if asked in done]:
            try:
                found[pid] = self._asked.pop(pid).result()
            except NoAnswer as error:
                if error.ended:
                    found.pop(pid, None)
            except AnyGPUError:
                found.pop(pid, None)  # another user's, or nothing that we know
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
