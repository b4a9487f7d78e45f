"""What a planner adds up, whichever thread tells it."""

from __future__ import annotations

import sys
import threading

from anygpu.placement.planner import Planner


def test_no_seconds_are_lost_when_several_threads_add_some() -> None:
    planner = Planner()

    def add() -> None:
        for _ in range(5_000):
            planner.add_seconds(1.0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert planner.seconds == 20_000
