"""The queue of a runtime: how fast the smallest task passes through it, whom it lets in, and who goes before whom."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from anygpu.errors import QueueFull
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.task_queue import Tenant
from benchmarks.faults import Never
from benchmarks.report import Figure
from benchmarks.runtime_figures import PATIENCE, AtLeast, Holding, burst, resident_bytes, total

#: Empty tasks a second, at least.
IN_A_THREAD, IN_A_CHILD = 10_000.0, 3_000.0
#: Rounds of which the middle counts; the first ones are dropped.
ROUNDS, DROPPED = 7, 2

#: What a queue that is full may cost, in MB.
MEMORY = 50.0

#: Priority 0 tasks that may go before the last of priority 10: what one thread of a lane takes at once.
ROW = 16
#: Of the priorities: how far apart they are, and tasks of priority 10 that wait at any moment of the flood.
LEVELS, FLOOD = 10, 200
#: One task of the flood.
SERVICE = 1e-3

#: Percent that a tenant may have more or less than its half.
UNFAIR = 5.0
TENANTS = ("calm", "flooding")
#: Tasks of each that wait or run at any moment. The second one's tasks are five times as long, too.
BACKLOGS = (200, 800)


def empty(x: Any) -> Any:
    return x


def one_kernel(x: Any) -> Any:
    return x + 1


ONE = np.zeros(1, np.float32)


def rates(function: Callable[[Any], Any], tasks: int, *, rounds: int = ROUNDS, **options: Any) -> list[float]:
    """Tasks a second, round by round."""
    batching = options.pop("batching", True)
    with Runtime(queue=tasks + 1, batching=batching) as runtime:
        runtime.submit(function, ONE, **options).result(PATIENCE)
        return [tasks / total(runtime, function, [(ONE,)] * tasks, **options) for _ in range(rounds)][DROPPED:]


def throughput(scale: float) -> list[Figure]:
    tasks = max(50, int(5000 * scale))
    figures: list[Figure] = []
    cases: list[tuple[str, Callable[[Any], Any], float | None, dict[str, Any]]] = [
        ("empty tasks: thread", empty, IN_A_THREAD, {}),
        ('empty tasks: thread, on="numpy"', empty, IN_A_THREAD, {"on": "numpy"}),
        # With a kernel: a function that returns its argument is not sent to a device.
        ("one kernel: child (opencl), single launches", one_kernel, IN_A_CHILD, {"on": "opencl", "batching": False}),
        ("one kernel: child (opencl), batching as it is", one_kernel, IN_A_CHILD, {"on": "opencl"}),
    ]
    for name, function, bound, options in cases:
        measured = rates(function, tasks, **options)
        figures.append(AtLeast(name=name, value=statistics.median(measured), unit="/s", bound=bound))
        figures.append(Figure(name=f"{name}, best round", value=max(measured), unit="/s"))
    return figures


def queue(scale: float) -> list[Figure]:
    """A hundred times what the queue has room for, while nothing moves."""
    most, submissions = 1000, max(2000, int(100_000 * scale))
    with Runtime(queue=most) as runtime:
        # Nothing is loaded for the first time while memory is measured.
        burst(runtime, empty, [(ONE,)] * 100, on="numpy")
        holding = Holding(runtime)
        before = peak = resident_bytes()
        accepted, refused, other = [], 0, 0
        begin = time.perf_counter()
        for number in range(submissions):
            try:
                accepted.append(runtime.submit(empty, ONE, on="numpy"))
            except QueueFull:
                refused += 1
            except Exception:  # noqa: BLE001 - counted
                other += 1
            if number % 1000 == 0:
                peak = max(peak, resident_bytes())
        seconds = time.perf_counter() - begin
        peak = max(peak, resident_bytes())
        holding.release()
        lost = sum(future.exception(PATIENCE) is not None for future in accepted)
    return [
        Figure(name="full queue: submissions", value=submissions, unit=""),
        Figure(name="full queue: refused as QueueFull", value=refused, unit=""),
        Never(name="full queue: neither let in nor refused so", value=other + submissions - refused - other - most),
        Never(name="full queue: let in and lost", value=lost),
        Figure(name="full queue: a submission", value=1e6 * seconds / submissions, unit="µs"),
        Figure(name="full queue: memory, at most", value=(peak - before) / 1e6, unit="MB", bound=MEMORY),
    ]


def _note(finished: list[int], priority: int, _: object) -> None:
    finished.append(priority)


def priorities(scale: float) -> list[Figure]:
    return [*overtaking(max(100, int(500 * scale))), *starving(max(1.5, 12 * scale), 0.5 if scale == 1 else 0.05)]


def overtaking(tasks: int, urgent: int = 20) -> list[Figure]:
    """Tasks of priority 10 that come last, behind many of priority 0."""
    finished: list[int] = []
    with Runtime(queue=2 * tasks) as runtime:
        burst(runtime, empty, [(ONE,)] * 100, on="numpy")
        holding = Holding(runtime)
        futures = []
        for priority in [0] * tasks + [10] * urgent:
            future = runtime.submit(empty, ONE, on="numpy", priority=priority)
            future.add_done_callback(partial(_note, finished, priority))
            futures.append(future)
        holding.release()
        for future in futures:
            future.result(PATIENCE)
    places = [place for place, priority in enumerate(finished) if priority]
    overtaken = places[-1] - (len(places) - 1)
    return [
        Figure(name=f"priority 10 behind {tasks} of 0: first place", value=places[0], unit=""),
        Figure(name="of priority 0 before the last of 10", value=overtaken, unit="", bound=ROW),
    ]


def short_sleep(x: Any) -> Any:
    time.sleep(SERVICE)
    return x


class Feeder:
    """Keeps so many tasks of one kind waiting, until it is told to stop: whenever one is done, there is another."""

    def __init__(
        self, runtime: Runtime, function: Callable[..., Any], arguments: tuple[Any, ...], waiting: int, **options: Any
    ) -> None:
        self._stopped = False
        self.done = self.failed = 0
        self._submit = partial(runtime.submit, function, *arguments, **options)
        for _ in range(waiting):
            self._submit().add_done_callback(self._finished)

    def _finished(self, future: Any) -> None:
        # On the thread of the device, so that there is another before it looks for the next.
        if self._stopped:
            return
        self.done += 1
        self.failed += future.cancelled() or future.exception() is not None
        self._submit().add_done_callback(self._finished)

    def stop(self) -> None:
        self._stopped = True


def starving(seconds: float, ageing: float) -> list[Figure]:
    """Priority 0 under a flood of priority 10 that never ebbs."""
    waits: list[float] = []
    with Runtime(queue=4 * FLOOD, ageing=ageing) as runtime:
        flood = Feeder(runtime, short_sleep, (ONE,), FLOOD, on="numpy", priority=10)
        while flood.done < FLOOD:
            time.sleep(0.01)
        begin, before = time.monotonic(), flood.done
        futures, end = [], begin + seconds
        while time.monotonic() < end:
            submitted = time.monotonic()
            future = runtime.submit(short_sleep, ONE, on="numpy", priority=0)
            future.add_done_callback(lambda _, begin=submitted: waits.append(time.monotonic() - begin))  # type: ignore[misc]
            futures.append(future)
            time.sleep(0.05)
        rate = (flood.done - before) / (time.monotonic() - begin)
        # Those that were submitted at the end are waited for with the flood going on.
        for future in futures:
            future.result(PATIENCE)
        flood.stop()
    # Nothing that comes later than this goes before it; but what waits then, and other tasks of priority 0, does.
    levels = LEVELS * ageing
    served = 2 * (FLOOD + len(futures)) / rate
    return [
        Figure(name="priority 0 under a flood of 10: tasks", value=len(waits), unit=""),
        Figure(name="the flood", value=rate, unit="/s"),
        Figure(name="wait of priority 0, median", value=statistics.median(waits), unit="s"),
        Figure(
            name=f"wait of priority 0, worst: {LEVELS} × {ageing:g} s + {served:.2g} s",
            value=max(waits),
            unit="s",
            bound=levels + served,
        ),
    ]


def long_sleep(x: Any) -> Any:
    time.sleep(5 * SERVICE)
    return x


def chain(x: Any) -> Any:
    for _ in range(8):
        x = np.sqrt(x * x + 0.5) - 0.25 * x
    return x


def long_chain(x: Any) -> Any:
    for _ in range(8):
        x = np.sqrt(x * x + 0.25) - 0.125 * x
    return x


def tenants(scale: float) -> list[Figure]:
    seconds = max(1.0, 20 * scale)
    size = 1 << 15
    x = np.linspace(0, 1, 5 * size).astype(np.float32)
    return [
        *shares("numpy", seconds, (short_sleep, ONE), (long_sleep, ONE)),
        *shares("opencl", seconds, (chain, x[:size]), (long_chain, x)),
    ]


def shares(device: str, seconds: float, *work: tuple[Callable[[Any], Any], Any]) -> list[Figure]:
    """Of device time, while both want it."""
    with Runtime(queue=4 * sum(BACKLOGS), tenants=[Tenant(name=name) for name in TENANTS]) as runtime:
        for function, x in work:
            for _ in range(3):
                runtime.submit(function, x, on=device).result(PATIENCE)
        feeders = [
            Feeder(runtime, function, (x,), backlog, on=device, tenant=name)
            for (function, x), backlog, name in zip(work, BACKLOGS, TENANTS, strict=True)
        ]
        # What is compiled for them, and how long they take, is known once each has had some.
        end = time.monotonic() + PATIENCE
        while any(feeder.done < BACKLOGS[0] / 4 for feeder in feeders) and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(seconds / 4)
        before, counts = _used(runtime), [feeder.done for feeder in feeders]
        alone = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
            alone += any(tenant.waiting == 0 for tenant in runtime.health().tenants if tenant.tenant in TENANTS)
        after = _used(runtime)
        counts = [feeder.done - count for feeder, count in zip(feeders, counts, strict=True)]
        for feeder in feeders:
            feeder.stop()
        runtime.close()  # what waits is of no interest any more
    used = [after.get(name, 0.0) - before.get(name, 0.0) for name in TENANTS]
    share = 100 * used[0] / sum(used)
    each = [1e3 * total / max(1, count) for total, count in zip(used, counts, strict=True)]
    return [
        *(
            Figure(name=f"tenants, {device}: a task of the {name} one", value=took, unit="ms")
            for name, took in zip(TENANTS, each, strict=True)
        ),
        Figure(name=f"tenants, {device}: device time of the calm one", value=share, unit="%"),
        Figure(name=f"tenants, {device}: off a half", value=abs(share - 50), unit="%", bound=UNFAIR),
        Figure(name=f"tenants, {device}: looks at which one had none waiting", value=alone, unit=""),
        Never(name=f"tenants, {device}: tasks lost", value=sum(feeder.failed for feeder in feeders)),
    ]


def _used(runtime: Runtime) -> dict[str, float]:
    return {tenant.tenant: tenant.seconds for tenant in runtime.health().tenants}
