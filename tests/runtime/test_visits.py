"""Tasks on their callers' own threads: what the scheduler knows of them, and that interrupts leave nothing behind."""

from __future__ import annotations

import threading

import pytest

import anygpu as ag
from anygpu.runtime.scheduling import Scheduler


def test_a_visit_is_open_until_it_ends() -> None:
    with ag.Runtime() as runtime:
        visit = runtime._scheduler.visit("score", "numpy@node-7", 0.1)
        assert visit is not None
        assert runtime.health().open_tasks == 1
        # The next caller takes the queue, and so may a batch be made.
        assert runtime._scheduler.visit("score", "numpy@node-7", 0.1) is None
        assert runtime.run(abs, -1).value == 1
        runtime._scheduler.visited(visit, "default", 2.0, succeeded=True)
        (lane,) = (lane for lane in runtime.health().lanes if lane.device == "numpy@node-7")
        assert (lane.condition, lane.running, lane.done, lane.busy_seconds) == ("busy", ("score",), 1, 2.0)
        assert {tenant.tenant: tenant.seconds >= 2.0 for tenant in runtime.health().tenants} == {"default": True}
        visit.end()
        visit.end()
        assert runtime.health().open_tasks == 0


def test_a_caller_that_is_interrupted_leaves_nothing_behind() -> None:
    def interrupted(scheduler: Scheduler) -> None:
        visit = scheduler.visit("score", "numpy@node-7", 0.1)
        assert visit is not None
        raise KeyboardInterrupt

    with ag.Runtime() as runtime:
        with pytest.raises(KeyboardInterrupt):
            interrupted(runtime._scheduler)
        assert runtime.health().open_tasks == 0


def test_draining_waits_for_it() -> None:
    runtime = ag.Runtime()
    visit = runtime._scheduler.visit("score", "numpy@node-7", 0.1)
    assert visit is not None
    assert not runtime.drain(0.01)
    assert runtime._scheduler.visit("score", "numpy@node-7", 0.1) is None
    drained = threading.Event()

    def drain() -> None:
        runtime.drain()
        drained.set()

    waiting = threading.Thread(target=drain)
    waiting.start()
    assert not drained.is_set()
    visit.end()
    assert drained.wait(120)
    waiting.join(120)
    runtime.close()
