"""Many small calls at once: awaited in one asyncio loop, and as one launch instead of many."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import anygpu as ag
from anygpu.errors import NotANumber
from anygpu.runtime.runtime import Runtime
from benchmarks.faults import Never
from benchmarks.report import Figure
from benchmarks.runtime_figures import PATIENCE, AtLeast, Burst, burst, total

#: The longest that a loop may be blocked, in milliseconds.
BLOCKED = 20.0
AWAITS = 1000
#: Coroutines that are begun in one turn of the loop.
ARRIVING = 50
#: How often the loop is looked at.
TICK = 1e-3

#: Calls at once, and how much faster they must be than one by one.
CALLS = 2000
FASTER = {"webgpu": 10.0, "opencl": 5.0}
SIZE = 256
#: The bound of latency that runtimes have when they are told nothing, in seconds.
LATENCY = 0.25
#: Rounds of which the middle counts; the first are dropped: programs are compiled there.
ROUNDS, DROPPED = 7, 2

Vector = npt.NDArray[np.float32]


def chain(x: Any) -> Any:
    """Eight elementwise operations."""
    return np.sqrt(np.abs(np.maximum((x * 1.5 + 0.25) * x - 0.5, -2.0) * 0.5)) + 1.0


def product(matrix: Any, x: Any) -> Any:
    return matrix @ x


def pick(table: Any, places: Any) -> Any:
    return table[places] * 2.0


def vectors(count: int) -> list[Vector]:
    return list(np.random.default_rng(0).standard_normal((count, SIZE), np.float32))


# -- asyncio


class Looked(NamedTuple):
    """What a task that only wakes up and goes to sleep again saw of its loop, in seconds."""

    longest: float
    seconds: float


async def watched(work: Any) -> Looked:
    """Await the work, and find out how long nothing else could run meanwhile."""
    longest = 0.0
    over = False

    async def tick() -> None:
        nonlocal longest
        while not over:
            begin = time.perf_counter()
            await asyncio.sleep(TICK)
            longest = max(longest, time.perf_counter() - begin - TICK)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    longest = 0.0
    begin = time.perf_counter()
    await work
    seconds = time.perf_counter() - begin
    over = True
    await ticker
    return Looked(longest, seconds)


async def awaited(make: Callable[[Vector], Any], given: list[Vector], *, arriving: int) -> list[Any]:
    """All of them under way at once; so many begin in one turn of the loop."""
    tasks = []
    for number, x in enumerate(given):
        if number % arriving == 0:
            await asyncio.sleep(0)
        tasks.append(asyncio.create_task(_one(make, x)))
    return await asyncio.gather(*tasks)


async def _one(make: Callable[[Vector], Any], x: Vector) -> Any:
    return await make(x)


def loops(scale: float) -> list[Figure]:
    given = vectors(max(100, int(AWAITS * scale)))
    rounds = 5 if scale == 1 else 2
    figures: list[Figure] = []

    async def rounds_of(makes: list[Callable[[Vector], Any]], arriving: int) -> list[list[Looked]]:
        """By turns, after one of each that is not counted."""
        for make in makes:
            await awaited(make, given, arriving=arriving)
        taken: list[list[Looked]] = [[] for _ in makes]
        for _ in range(rounds):
            for make, found in zip(makes, taken, strict=True):
                found.append(await watched(awaited(make, given, arriving=arriving)))
        return taken

    def report(name: str, found: list[Looked], *, bounded: bool = False) -> float:
        longest = statistics.median(each.longest for each in found)
        bound = BLOCKED if bounded else None
        figures.append(
            Figure(name=f"{name}: blocked, middle of {rounds} rounds", value=1e3 * longest, unit="ms", bound=bound)
        )
        worst = max(each.longest for each in found)
        figures.append(Figure(name=f"{name}: the same, worst round", value=1e3 * worst, unit="ms"))
        took = statistics.median(each.seconds for each in found)
        figures.append(Figure(name=f"{name}: all", value=1e3 * took, unit="ms"))
        return longest

    count = len(given)
    with Runtime(queue=2 * AWAITS) as runtime, ThreadPoolExecutor(2) as pool:

        def in_pool(x: Vector) -> Any:
            return asyncio.get_running_loop().run_in_executor(pool, chain, x)

        for device in ("numpy", "opencl"):

            def submitted(x: Vector, device: str = device) -> Any:
                return runtime.submit(chain, x, on=device)

            ours, theirs = asyncio.run(rounds_of([submitted, in_pool], ARRIVING))
            blocked = report(f"{count} awaits, {device}", ours, bounded=True)
            beside = report(f"{count} awaits, Python's own pool beside {device}", theirs)
            # Beside a load the only bound that means something: both wait for the same processors.
            ratio = blocked / beside
            figures.append(
                Figure(name=f"{count} awaits, {device}: blocked / Python's own pool", value=ratio, unit="×", bound=1.0)
            )
        report(f"{count} in one turn, numpy", asyncio.run(rounds_of([lambda x: runtime.submit(chain, x)], count))[0])
        calls = [timed_submit(runtime, x) for x in given]
        figures.append(Figure(name="one submit, median", value=1e6 * statistics.median(calls), unit="µs"))
    return figures


def timed_submit(runtime: Runtime, x: Vector) -> float:
    begin = time.perf_counter()
    future = runtime.submit(chain, x, on="numpy")
    took = time.perf_counter() - begin
    future.result(PATIENCE)
    return took


# -- batching


def batching(scale: float) -> list[Figure]:
    count = max(64, int(CALLS * scale))
    matrix = np.random.default_rng(1).standard_normal((SIZE, SIZE), np.float32) / SIZE
    given = vectors(count)
    kinds: list[tuple[str, Callable[..., Any], list[tuple[Any, ...]]]] = [
        ("matrix-vector", product, [(matrix, x) for x in given]),
        ("chain of 8", chain, [(x,) for x in given]),
    ]
    figures: list[Figure] = []
    for device in FASTER:
        for name, function, items in kinds:
            figures += faster(f"{device}, {name}", function, items, device, full=scale == 1)
        figures += poisoned(device, matrix)
    return figures


def faster(
    name: str, function: Callable[..., Any], items: list[tuple[Any, ...]], device: str, *, full: bool
) -> list[Figure]:
    """One by one against all at once, in turns, on the same worker."""
    single: Any = ag.offload(on=device, fallback="raise")(function)
    expected = [function(*arguments) for arguments in items]
    alone = items[: len(items) // 4]
    for arguments in alone[:50]:
        single(*arguments)
    ratios, ones, bursts, totals = [], [], [], []
    with Runtime(queue=len(items) + 1, max_latency=LATENCY) as runtime:
        first = burst(runtime, function, items, on=device, fallback="raise")
        wrong = _wrong(first, expected)
        for _ in range(ROUNDS if full else DROPPED + 1):
            begin = time.perf_counter()
            values = [single(*arguments) for arguments in alone]
            each = (time.perf_counter() - begin) / len(alone)
            seconds = total(runtime, function, items, on=device, fallback="raise")
            made = burst(runtime, function, items, on=device, fallback="raise")
            wrong += _wrong(made, expected) + sum(
                not _agrees(value, wanted) for value, wanted in zip(values, expected, strict=False)
            )
            ones.append(each)
            bursts.append(made)
            totals.append(seconds)
            ratios.append(each * len(items) / seconds)
        receipt = made.futures[-1].receipt
    counted = slice(DROPPED, None)
    p99 = statistics.median(each.p99 for each in bursts[counted])
    together = statistics.median(totals[counted]) / len(items)
    how = receipt.how if receipt is not None and receipt.how else "one by one"
    return [
        Figure(name=f"{name}: the first {len(items)}, with compiling", value=first.seconds, unit="s"),
        Figure(name=f"{name}: one by one, each", value=1e6 * statistics.median(ones[counted]), unit="µs"),
        Figure(name=f"{name}: together ({how}), each", value=1e6 * together, unit="µs"),
        AtLeast(
            name=f"{name}: times faster",
            value=statistics.median(ratios[counted]),
            unit="×",
            bound=FASTER[device],
        ),
        Figure(name=f"{name}: p99, submitted to done", value=p99, unit="s", bound=LATENCY),
        Never(name=f"{name}: wrong or lost", value=wrong),
    ]


def _agrees(value: Any, expected: Any) -> bool:
    return value.shape == expected.shape and np.allclose(value, expected, rtol=1e-4, atol=1e-5)


def _wrong(made: Burst, expected: list[Any]) -> int:
    return sum(
        future.exception() is not None or not _agrees(future.result(), wanted)
        for future, wanted in zip(made.futures, expected, strict=True)
    )


def poisoned(device: str, matrix: Any) -> list[Figure]:
    """One bad item of each kind among many: a NaN that is not wanted, a wrong shape, an exception of its own.

    A function that raises while it is recorded cannot become a program: `NotRecordable`, a `TypeError`, says why.
    """
    count, bad = 256, 100
    figures: list[Figure] = []
    given = vectors(count)
    with_nan = given[bad].copy()
    with_nan[7] = np.nan
    table = np.arange(SIZE, dtype=np.float32)
    places = [np.random.default_rng(number).integers(0, SIZE, 16).astype(np.int32) for number in range(count)]
    outside = places[bad].copy()
    outside[3] = SIZE + 5
    cases: list[tuple[str, Callable[..., Any], list[tuple[Any, ...]], tuple[Any, ...], type[Exception]]] = [
        ("NaN", product, [(matrix, x) for x in given], (matrix, with_nan), NotANumber),
        ("wrong shape", product, [(matrix, x) for x in given], (matrix, given[bad][:-1]), TypeError),
        ("its own exception", pick, [(table, each) for each in places], (table, outside), IndexError),
    ]
    with Runtime(queue=2 * count) as runtime:
        for name, function, items, poison, error in cases:
            expected = [function(*arguments) for arguments in items]
            for _ in range(2):  # the second time, they surely are a batch
                given_now = [*items[:bad], poison, *items[bad + 1 :]]
                made = burst(runtime, function, given_now, on=device, fallback="raise", nan="raise")
                failed = made.futures[bad].exception()
                others = Burst(made.seconds, made.waits, made.futures[:bad] + made.futures[bad + 1 :])
                wrong = _wrong(others, expected[:bad] + expected[bad + 1 :])
                receipt = others.futures[-1].receipt
            how = receipt.how if receipt is not None and receipt.how else "one by one"
            figures.append(Never(name=f"{device}, {name}: not {error.__name__}", value=not isinstance(failed, error)))
            figures.append(Never(name=f"{device}, {name}: others ({how}) failed", value=wrong))
    return figures
