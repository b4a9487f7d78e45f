"""A working set five times the device's budget: a store beside a loop written by hand that knows what comes next.

Both multiply one of many matrices with the same vectors, again and again, in three orders. The loop keeps as many
arrays as the budget allows, lets go of the oldest, and uploads the next one while the device computes. The store is
only asked for tensors by name.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import anygpu as ag
from anygpu.store import Report, Store
from anygpu.workers.device_arrays.registry import registry
from benchmarks.report import Figure, options_parser, publish

TENSORS = 20
RESIDENT = TENSORS // 5
SIDE = 512
COLUMNS = 64
USES = 100
ROUNDS = 5
BOUND = 1.3
TOLERANCE = 1e-3

Values = npt.NDArray[np.float32]
Order = list[int]


class Work:
    """The matrices, the vectors and the right answers."""

    def __init__(self, side: int = SIDE) -> None:
        rng = np.random.default_rng(7)
        self.matrices: list[Values] = [rng.normal(size=(side, side)).astype(np.float32) for _ in range(TENSORS)]
        self.vectors: Values = rng.normal(size=(side, COLUMNS)).astype(np.float32)
        self.answers = [np.abs(matrix @ self.vectors).sum(axis=1) for matrix in self.matrices]

    @property
    def budget(self) -> int:
        return RESIDENT * self.matrices[0].nbytes

    def wrong(self, number: int, found: npt.NDArray[Any]) -> bool:
        return not np.allclose(found, self.answers[number], rtol=TOLERANCE, atol=TOLERANCE)


def answer(matrix: ag.Array, vectors: ag.Array) -> ag.Array:
    return np.abs(matrix @ vectors).sum(axis=1)


def orders(uses: int) -> dict[str, Order]:
    rng = np.random.default_rng(3)
    weights = 1 / np.arange(1, TENSORS + 1)
    return {
        "cyclic": [number % TENSORS for number in range(uses)],
        "random": rng.integers(0, TENSORS, uses).tolist(),
        "skewed": rng.choice(TENSORS, uses, p=weights / weights.sum()).tolist(),
    }


def by_hand(device: str, work: Work, order: Order) -> int:
    """How many answers were wrong."""
    vectors = ag.asarray(work.vectors, device=device)
    there: OrderedDict[int, ag.Array] = OrderedDict()
    wrong = 0

    def bring(number: int) -> ag.Array:
        if number in there:
            there.move_to_end(number)
        else:
            if len(there) == RESIDENT:
                there.popitem(last=False)
            there[number] = ag.asarray(work.matrices[number], device=device)
        return there[number]

    for at, number in enumerate(order):
        result = answer(bring(number), vectors).compute()
        if at + 1 < len(order):
            bring(order[at + 1])
        wrong += work.wrong(number, np.asarray(result))
    return wrong


class Shop:
    """The store, filled before the clock runs, as the arrays of the loop are on the host before it does."""

    def __init__(self, device: str, work: Work, mode: Any = "balanced") -> None:
        self.work = work
        self.store = Store(device=device, budget=work.budget, mode=mode)
        for number, matrix in enumerate(work.matrices):
            self.store.put(str(number), matrix)
        self.vectors = ag.asarray(work.vectors, device=device)
        self.most = 0

    def run(self, order: Order) -> int:
        wrong = 0
        for number in order:
            result = answer(self.store.get(str(number)), self.vectors)
            wrong += self.work.wrong(number, np.asarray(result))
        self.most = self.store.statistics().peak_device_bytes
        return wrong


def best(runs: Sequence[Callable[[], int]], rounds: int) -> tuple[list[float], int]:
    """The best of each, by turns; and how many answers were wrong in all of them."""
    seconds = [float("inf")] * len(runs)
    wrong = 0
    for _ in range(rounds):
        for index, run in enumerate(runs):
            begin = time.perf_counter()
            wrong += run()
            seconds[index] = min(seconds[index], time.perf_counter() - begin)
    return seconds, wrong


def in_use(device: str) -> int:
    gc.collect()
    return registry.worker(device).memory().in_use or 0


def difference(report: Report, store: Store, engine_before: int) -> int:
    """Bytes by which the report of `optimise()`, the store's figures and the engine's do not agree."""
    now = store.statistics()
    wrong = abs(in_use(store.device) - engine_before + report.saved["device"])
    for tier, told in (("device", now.device_bytes), ("host", now.host_bytes), ("disk", now.disk_bytes)):
        wrong += abs(report.before[tier] + report.gained[tier] - report.freed[tier] - report.after[tier])  # type: ignore[index]
        wrong += abs(report.after[tier] - told)  # type: ignore[index]
    return wrong


def optimised(device: str, work: Work) -> tuple[int, int]:
    """What does not add up, in all modes; and the bytes that left the device in the most eager one."""
    wrong = freed = 0
    for mode in ("speed", "balanced", "memory"):
        shop = Shop(device, work, mode)
        shop.run(list(range(TENSORS)))
        for use in ([0], [1, 2], []):
            shop.run(use)
            before = in_use(shop.store.device)
            report = shop.store.optimise()
            wrong += difference(report, shop.store, before)
            freed = max(freed, report.saved["device"])
        shop.store.close()
    return wrong, freed


def figures(device: str, options: argparse.Namespace) -> list[Figure]:
    work = Work()
    found: list[Figure] = []
    shop = Shop(device, work)
    wrong = 0
    for name, order in orders(options.uses).items():
        shop.run(order[:TENSORS])
        by_hand(device, work, order[:TENSORS])
        (store, hand), mistakes = best(
            (lambda order=order: shop.run(order), lambda order=order: by_hand(device, work, order)),  # type: ignore[misc]
            options.rounds,
        )
        wrong += mistakes
        found += [
            Figure(name=f"{device}, {name}: store / by hand", value=store / hand, unit="x", bound=BOUND),
            Figure(name=f"{device}, {name}: store, for each use", value=store / len(order) * 1e3, unit="ms"),
        ]
    now = shop.store.statistics()
    shop.store.close()
    unequal, freed = optimised(device, work)
    return [
        *found,
        Figure(name=f"{device}: wrong answers", value=wrong, unit="answers", bound=0.5),
        Figure(name=f"{device}: most of the budget", value=shop.most / work.budget, unit="x", bound=1),
        Figure(name=f"{device}: came back, before it was asked for", value=now.fetched_ahead / now.returns, unit="x"),
        Figure(name=f"{device}: optimise() does not add up", value=unequal, unit="bytes", bound=0.5),
        Figure(name=f"{device}: optimise() took off the device", value=freed / 2**20, unit="MiB"),
    ]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--devices", nargs="+", default=["opencl", "webgpu"])
    parser.add_argument("--uses", type=int, default=USES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    publish([figure for device in options.devices for figure in figures(device, options)], options)


if __name__ == "__main__":
    main()
