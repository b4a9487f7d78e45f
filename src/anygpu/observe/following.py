"""Follows all observed processes of this user: asks them again and again, and tells what happened between answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from anygpu.observe.looking import DEADLINE, NoAnswer, ObservedProcess, observed_processes
from anygpu.observe.snapshot import Snapshot

#: Processes that are asked at once, so that one that is silent keeps nobody waiting.
_AT_ONCE = 8
#: How long one that has ended is still shown.
FAREWELL = 10.0


class Look(NamedTuple):
    """One process, as it has last answered."""

    process: ObservedProcess
    #: The last answer, and the one before that; `None` if there was none.
    snapshot: Snapshot | None = None
    before: Snapshot | None = None
    #: Why there was no answer this time.
    trouble: str | None = None
    #: When it was found to have ended, by `time.monotonic`.
    ended: float | None = None
    #: What the answer took.
    seconds: float | None = None
    #: The highest number of a single call that it has told of.
    newest: int = 0


class Rate(NamedTuple):
    """Calls of one function on one device between two answers, for each second."""

    calls: float
    #: Seconds that they took; more than 1 when several run at once.
    busy: float


class Following:
    """Looks at all processes whenever it is asked to. For one thread at a time."""

    def __init__(
        self,
        *,
        deadline: float = DEADLINE,
        find: Callable[[], Sequence[ObservedProcess]] = observed_processes,
        clock: Callable[[], float] = time.monotonic,
        calls: bool = False,
    ) -> None:
        """With `calls`, answers have the single calls since the last one."""
        self._deadline = deadline
        self._find = find
        self._clock = clock
        self._calls = calls
        self._looks: dict[ObservedProcess, Look] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="anygpu-looking")

    def look(self) -> list[Look]:
        """All that are there, and for a while those that have ended."""
        now = self._clock()
        known = self._looks
        alive = [each for each in self._find() if each not in known or known[each].ended is None]
        looks = list(self._pool.map(self._ask, [known.get(each, Look(each)) for each in alive]))
        # Those that were there and are not any more have said goodbye, and removed their own files.
        gone = [
            look if look.ended is not None else look._replace(ended=now, trouble=f"process {each.pid} has ended")
            for each, look in known.items()
            if each not in set(alive)
        ]
        kept = [
            look
            for look in (*looks, *gone)
            if look.ended is None or (look.snapshot is not None and now - look.ended < FAREWELL)
        ]
        self._looks = {look.process: look for look in kept}
        return sorted(kept, key=lambda look: look.process.pid)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, look: Look) -> Look:
        begin = self._clock()
        try:
            answer = look.process.ask(look.newest if self._calls else None, deadline=self._deadline)
        except NoAnswer as error:
            return look._replace(trouble=str(error), ended=self._clock() if error.ended else None, seconds=None)
        newest = answer.calls[-1].number if answer.calls else look.newest
        return Look(look.process, answer, look.snapshot, seconds=self._clock() - begin, newest=newest)


def rates(look: Look) -> dict[tuple[str, str], Rate]:
    """By function and device, between the last two answers; empty after the first."""
    if look.snapshot is None or look.before is None or look.trouble is not None:
        return {}
    seconds = look.snapshot.time - look.before.time
    if seconds <= 0:
        return {}
    earlier = {(each.function, each.device): each for each in look.before.statistics.calls}
    found = {}
    for each in look.snapshot.statistics.calls:
        then = earlier.get((each.function, each.device))
        calls = each.calls - (then.calls if then is not None else 0)
        busy = each.seconds.total - (then.seconds.total if then is not None else 0.0)
        found[each.function, each.device] = Rate(max(0.0, calls / seconds), max(0.0, busy / seconds))
    return found


def processor_share(look: Look) -> float | None:
    """Of one core, between the last two answers."""
    if look.snapshot is None or look.before is None or look.trouble is not None:
        return None
    seconds = look.snapshot.time - look.before.time
    used = look.snapshot.process.processor_seconds - look.before.process.processor_seconds
    return max(0.0, used / seconds) if seconds > 0 else None
