"""Several threads at one small store, each with tensors of its own and all with some that they share.

Nobody may wait for ever, and nobody may see a wrong value.
`python -m tests.store.threads --seconds 20 --device opencl` takes longer than the test does.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.errors import OverBudget, UnknownTensor
from anygpu.store import Store

SHARED = 8
SIDE = 32
SIZE = SIDE * SIDE * 4


def values_of(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """All tensors have these, for some number, whatever is written to them."""
    return np.add(np.full((SIDE, SIDE), number, np.float32), np.arange(SIDE), dtype=np.float32)


class Thread:
    """What one thread does. It has tensors of its own, of which it knows all; what all have is always one of a few."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.rng = random.Random(seed)
        self.name = f"thread {seed}"
        self.own: dict[str, int] = {}
        self.steps = 0
        self.failure: BaseException | None = None

    def run(self, end: float) -> None:
        actions: list[Callable[[], None]] = [
            *(self.put_own, self.look_own, self.look_own, self.write_own, self.release_own, self.view_own),
            *(self.look_shared, self.look_shared, self.lease_shared, self.put_shared, self.pass_on),
            *(self.prefetch, self.optimise, self.synchronise),
        ]
        try:
            while time.monotonic() < end:
                with contextlib.suppress(OverBudget):  # others have leases of what would have to leave
                    self.rng.choice(actions)()
                self.steps += 1
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            self.failure = error

    def check(self, found: Any, *numbers: int) -> None:
        values = np.asarray(found)
        if not any(np.array_equal(values, values_of(number)[: len(values)]) for number in numbers):
            raise AssertionError(f"{self.name} read {values.ravel()[:3]}, and not one of {numbers}")

    # -- its own

    def put_own(self) -> None:
        number = self.rng.randrange(20)
        name = f"{self.name}: {self.rng.randrange(3)}"
        self.store.put(name, values_of(number), owner=self.name)
        self.own[name] = number

    def any_own(self) -> str | None:
        return self.rng.choice(sorted(self.own)) if self.own else None

    def look_own(self) -> None:
        name = self.any_own()
        if name is not None:
            tensor = self.store.get(name)
            self.check(tensor * 1 if self.rng.random() < 0.5 else tensor.host(), self.own[name])

    def write_own(self) -> None:
        name = self.any_own()
        if name is not None:
            tensor = self.store.get(name)
            tensor += 1
            self.own[name] += 1

    def view_own(self) -> None:
        name = self.any_own()
        if name is not None:
            view = self.store.view(name, slice(0, 4))
            self.check(view, self.own[name])

    def release_own(self) -> None:
        name = self.any_own()
        if name is not None:
            self.store.release(name)
            del self.own[name]
            try:
                self.store.get(name)
            except UnknownTensor:
                return
            raise AssertionError(f"{name} was released, and is still there")

    # -- everybody's

    def shared(self) -> str:
        return f"shared {self.rng.randrange(SHARED)}"

    def look_shared(self) -> None:
        self.check(self.store.get(self.shared()) + 0, 0, 1, 2, 3)

    def lease_shared(self) -> None:
        with self.store.lease(self.shared(), holder=self.name) as tensor:
            self.check(tensor * 1, 0, 1, 2, 3)
            if tensor.tier != "device":
                raise AssertionError(f"{tensor} is leased")

    def put_shared(self) -> None:
        self.store.put(self.shared(), values_of(self.rng.randrange(4)))

    def pass_on(self) -> None:
        name = self.shared()
        self.store.share(name, with_=[self.name])
        self.check(self.store.get(name).host(), 0, 1, 2, 3)
        self.store.release(name, holder=self.name)

    def prefetch(self) -> None:
        self.store.prefetch([self.shared(), self.shared()])

    def optimise(self) -> None:
        self.store.optimise()

    def synchronise(self) -> None:
        self.store.synchronise(self.shared(), self.rng.choice(("host", "device")))


def run(device: str, seconds: float, *, threads: int = 4, mode: Any = "balanced") -> int:
    """How many steps were done. Raises what a thread has raised; a deadlock ends the process, with every stack."""
    store = Store(device=device, budget=6 * SIZE, host_budget=10 * SIZE, disk=True, mode=mode)
    for number in range(SHARED):
        store.put(f"shared {number}", values_of(0))
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    workers = [Thread(store, seed) for seed in range(threads)]
    end = time.monotonic() + seconds
    running = [threading.Thread(target=each.run, args=(end,), daemon=True) for each in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    for each in workers:
        if each.failure is not None:
            raise each.failure
    store._prefetcher.wait()
    now = store.statistics()
    left = (now.leases, now.device_bytes <= 6 * SIZE, now.host_bytes <= 10 * SIZE)
    for each in workers:
        for name, number in each.own.items():
            each.check(store.get(name), number)
    store.close()
    if left != (0, True, True):
        raise AssertionError(f"in the end: {now}, {now.leases} leases")
    return sum(each.steps for each in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--mode", default="balanced")
    options = parser.parse_args()
    steps = run(options.device, options.seconds, threads=options.threads, mode=options.mode)
    sys.stdout.write(f"{steps} steps of {options.threads} threads on {options.device}: nothing wrong\n")


if __name__ == "__main__":
    main()
