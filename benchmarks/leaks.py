"""What each kind of event leaves in the caller's memory: `python -m benchmarks.leaks [--what kills,batches] [--check]`.

One kind of event after the other, each in a process of its own: tasks of each kind, and faults of each kind. After
each of some rounds the private memory is measured as the soak measures it. The figure is the middle of the slopes
between all pairs of rounds (Theil and Sen), without the first third, in bytes for each event; beside it, blocks that
Python has allocated. `--rounds` and `--events` make it longer, which takes the noise out of it: a process that does
nothing has some hundred kilobytes of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np

import anygpu as ag
from anygpu.errors import AnyGPUError
from anygpu.placement.planner import default
from anygpu.runtime.runtime import Runtime
from anygpu.workers.device_arrays.registry import registry
from anygpu.workers.process import ProcessWorker
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.soak_load import PATIENCE, SIZE, chain, product, scaled
from benchmarks.soak_watch import give_back, keep_little, middle_slope, private_bytes
from tests.support.fault_schedule import LOSSES, Kind
from tests.support.faults import FaultyRegistry

#: Bytes that one event may leave. Less is noise: lists that are bounded fill up, and pages are not taken by the byte.
#: One object of Python that is kept, with the entry that keeps it, is about as much as the first.
A_TASK, A_FAULT = 64.0, 1000.0
ROUNDS = 12
WARM_UP = 1 / 3
LARGE = 1 << 20

Round = Callable[[int], None]


class Kept(msgspec.Struct, frozen=True):
    """Of one kind of event, after each round: all events so far, private bytes, Python's blocks."""

    events: list[int]
    private: list[int]
    blocks: list[int]

    def each(self, of: list[int]) -> float:
        first = int(len(of) * WARM_UP)
        return middle_slope(self.events[first:], of[first:])


class Component(NamedTuple):
    #: A context in which a function does so many events.
    ready: Callable[[], Any]
    events: int
    bound: float


def _inputs(count: int, size: int = SIZE) -> list[Any]:
    return list(np.random.default_rng(count).standard_normal((count, size), np.float32))


def _results(futures: list[Any]) -> None:
    for future in futures:
        with suppress(AnyGPUError, ValueError, TypeError):
            future.result(PATIENCE)


@contextmanager
def _calls() -> Iterator[Round]:
    function, x = ag.offload(chain), _inputs(1)[0]

    def some(count: int) -> None:
        for _ in range(count):
            function(x)

    yield some


@contextmanager
def _tasks(function: Any, on: str, given: list[tuple[Any, ...]], **options: Any) -> Iterator[Round]:
    with Runtime() as runtime:

        def some(count: int) -> None:
            for first in range(0, count, len(given)):
                part = given[: count - first]
                _results([runtime.submit(function, *x, on=on, fallback="warn", **options) for x in part])

        yield some


@contextmanager
def _mapped() -> Iterator[Round]:
    given, matrix = _inputs(64), np.ones((SIZE, SIZE), np.float32)
    given[5] = given[5][:-1]
    given[9][3] = np.nan
    with Runtime() as runtime:

        def some(count: int) -> None:
            for _ in range(0, count, 64):
                runtime.map(product, [matrix] * 64, given, on="opencl", nan="raise", fallback="warn")

        yield some


@contextmanager
def _cancelled() -> Iterator[Round]:
    given = _inputs(40)
    with Runtime() as runtime:

        def some(count: int) -> None:
            for _ in range(0, count, 40):
                futures = [runtime.submit(chain, x, on="opencl") for x in given]
                for future in futures[::2]:
                    future.cancel()
                _results([future for future in futures if not future.cancelled()])

        yield some


@contextmanager
def _refused() -> Iterator[Round]:
    x = _inputs(1)[0]
    with Runtime(queue=50) as runtime:

        def some(count: int) -> None:
            accepted = []
            for _ in range(count):
                with suppress(AnyGPUError):
                    accepted.append(runtime.submit(chain, x, on="numpy"))
            _results(accepted)

        yield some


@contextmanager
def _arrays() -> Iterator[Round]:
    given = _inputs(8, 4096)

    def some(count: int) -> None:
        for number in range(count):
            np.asarray(scaled(ag.asarray(given[number % 8], device="opencl")))

    yield some


@contextmanager
def _streams() -> Iterator[Round]:
    x = np.ones((4096, 16), np.float32)

    def some(count: int) -> None:
        for _ in range(count):
            ag.stream(chain, x, memory="1MB", on="opencl")

    yield some


@contextmanager
def _kills() -> Iterator[Round]:
    x = _inputs(1)[0]
    with Runtime() as runtime:

        def some(count: int) -> None:
            for _ in range(count):
                runtime.submit(chain, x, on="opencl").result(PATIENCE)
                for worker in list(registry._workers.values()):
                    if isinstance(worker, ProcessWorker) and worker.alive:
                        with suppress(ProcessLookupError):
                            os.kill(worker.process_id, signal.SIGKILL)

        yield some


@contextmanager
def _faults(*kinds: Kind, **options: Any) -> Iterator[Round]:
    known = FaultyRegistry("webgpu")
    given, numbers = _inputs(4), iter(range(1 << 20))
    try:
        with Runtime(known=known) as runtime:

            def some(count: int) -> None:
                for number in range(count):
                    known.schedule.next_is(kinds[number % len(kinds)])
                    for x in given:
                        x[0] = next(numbers)
                        _results([runtime.submit(chain, x, on="webgpu", **options)])

            yield some
    finally:
        known.close()


@contextmanager
def _devices() -> Iterator[Round]:
    x = _inputs(1)[0]

    def some(count: int) -> None:
        for _ in range(count):
            known = FaultyRegistry("opencl")
            with Runtime(known=known) as runtime:
                runtime.submit(chain, x, on="opencl").result(PATIENCE)
            known.close()

    yield some


def _one(function: Any, on: str, count: int, size: int = SIZE, **options: Any) -> Callable[[], Any]:
    return lambda: _tasks(function, on, [(x,) for x in _inputs(count, size)], **options)


def _products() -> Any:
    matrix = np.ones((SIZE, SIZE), np.float32)
    return _tasks(product, "opencl", [(matrix, x) for x in _inputs(128)])


COMPONENTS: dict[str, Component] = {
    "calls": Component(_calls, 5000, A_TASK),
    "tasks": Component(_one(chain, "numpy", 40), 2000, A_TASK),
    "single": Component(_one(chain, "opencl", 1), 500, A_TASK),
    "batches": Component(_products, 2560, A_TASK),
    "mapped": Component(_mapped, 1280, A_TASK),
    "cancelled": Component(_cancelled, 2000, A_TASK),
    "late": Component(_one(chain, "opencl", 10, deadline=0.0005), 1000, A_TASK),
    "refused": Component(_refused, 5000, A_TASK),
    "large": Component(_one(chain, "opencl", 1, LARGE), 40, A_FAULT),
    "arrays": Component(_arrays, 500, A_TASK),
    "streams": Component(_streams, 40, A_FAULT),
    "kills": Component(_kills, 8, A_FAULT),
    "losses": Component(lambda: _faults(*LOSSES), 8, A_FAULT),
    "memory": Component(lambda: _faults(Kind.NO_ROOM, Kind.OVER_BUDGET), 16, A_FAULT),
    "hangs": Component(lambda: _faults(Kind.HANG, deadline=0.5), 4, A_FAULT),
    "devices": Component(_devices, 4, A_FAULT),
}


def kept_by(name: str, rounds: int, factor: float) -> Kept:
    """Measured in this process."""
    keep_little()
    component = COMPONENTS[name]
    count = max(1, round(component.events * factor))
    kept = Kept([], [], [])
    with warnings.catch_warnings(), component.ready() as some:
        warnings.simplefilter("ignore")
        for number in range(rounds):
            some(count)
            default().settle(30)
            give_back()
            kept.events.append((number + 1) * count)
            kept.private.append(private_bytes())
            kept.blocks.append(sys.getallocatedblocks())
    return kept


def measured_apart(name: str, rounds: int, factor: float) -> list[Figure]:
    command = [sys.executable, "-m", "benchmarks.leaks", "--what", name, "--here", "--rounds", str(rounds)]
    command += ["--events", str(factor)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    kept = msgspec.json.decode(done.stdout, type=Kept)
    say(f"{name}: {kept.events[-1]} events; MB {', '.join(f'{each / 1e6:.2f}' for each in kept.private)}")
    return [
        Figure(name=f"{name}: bytes", value=kept.each(kept.private), unit="", bound=COMPONENTS[name].bound),
        Figure(name=f"{name}: blocks of Python", value=kept.each(kept.blocks), unit=""),
    ]


def main() -> None:
    parser: argparse.ArgumentParser = options_parser(__doc__)
    parser.add_argument("--what", default=",".join(COMPONENTS), help="which of them, separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--events", type=float, default=1.0, help="so many times the usual events in each round")
    parser.add_argument("--here", action="store_true", help="one of them, in this process, as JSON")
    options = parser.parse_args()
    names = options.what.split(",")
    for name in names:
        if name not in COMPONENTS:
            parser.error(f"there is no {name}; there are {', '.join(COMPONENTS)}")
    if options.here:
        sys.stdout.write(msgspec.json.encode(kept_by(names[0], options.rounds, options.events)).decode() + "\n")
        return
    figures = [figure for name in names for figure in measured_apart(name, options.rounds, options.events)]
    publish(figures, options)


if __name__ == "__main__":
    main()
