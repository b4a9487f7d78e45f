"""What recording costs, what hashing costs, and what running through a program costs beside the bare library."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.array.trace.tracing import record
from anygpu.program.graph import Program
from benchmarks.report import Figure, arguments, publish

ROUNDS, CALLS = 15, 300


def microseconds(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median of single calls, by turns, and of those the best round: the machine is noisy in phases."""
    best = dict.fromkeys(actions, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, action in actions.items():
            taken = []
            for _ in range(CALLS):
                begin = time.perf_counter_ns()
                action()
                taken.append(time.perf_counter_ns() - begin)
            if turn:  # the first warms up
                best[name] = min(best[name], statistics.median(taken) / 1e3)
    return best


def recording() -> list[Figure]:
    x = ag.asarray(np.ones(1000, np.float32))
    y = ag.asarray(np.ones(1000, np.float32))
    m = ag.asarray(np.ones((30, 30), np.float32))
    operations: dict[str, Callable[[], object]] = {
        "x + y": lambda: x + y,
        "x * 2.0": lambda: x * 2.0,
        "-x": lambda: -x,
        "x < y": lambda: x < y,
        "m @ m": lambda: m @ m,
        "np.tanh(x)": lambda: np.tanh(x),
        "np.maximum(x, y)": lambda: np.maximum(x, y),
        "x.sum()": lambda: x.sum(),
        "x[2:10]": lambda: x[2:10],
        "np.where(x, y, 0)": lambda: np.where(x, y, 0),
    }
    costs = microseconds(operations)
    figures = [Figure(name=f"record {name}", value=cost, unit="µs") for name, cost in costs.items()]
    usual = statistics.median(costs.values())
    return [*figures, Figure(name="record one operation (median of these)", value=usual, unit="µs", bound=3)]


def hashing() -> Figure:
    def chain(x: Any) -> Any:
        for step in range(33):
            x = np.tanh(x) + step
        return x

    program = record(chain, np.ones(1000, np.float32))
    nodes = program.nodes[:100]

    def fresh() -> str:
        return Program.trusted(nodes, (99,), program.specs[:100], program.lines[:100]).key

    return Figure(name="hash a program of 100 nodes", value=microseconds({"hash": fresh})["hash"], unit="µs", bound=200)


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 60) -> float:
    """Best of both, by turns in one run."""
    best = [float("inf"), float("inf")]
    for turn in range(rounds):
        for index, action in enumerate((ours, theirs)):
            begin = time.perf_counter()
            action()
            if turn >= 5:
                best[index] = min(best[index], time.perf_counter() - begin)
    return best[0] / best[1]


def through_jax() -> Figure:
    import jax
    import jax.numpy as jnp

    values = np.random.default_rng(0).normal(size=(1500, 1500)).astype(np.float32)
    native = jnp.asarray(values)
    by_hand = jax.jit(lambda x: (jnp.tanh(x @ x) * 0.5 + x).sum(axis=0))
    x = ag.asarray(values, device="jax")
    return Figure(
        name="through jax / hand-written jax.jit",
        value=ratio(
            # compute() only starts the work there, as jax does; both sides wait for its end.
            lambda: (np.tanh(x @ x) * 0.5 + x).sum(axis=0).compute()._native().block_until_ready(),
            lambda: by_hand(native).block_until_ready(),
        ),
        unit="×",
        bound=1.05,
    )


def through_torch() -> Figure:
    import torch

    values = np.random.default_rng(0).normal(size=(1500, 1500)).astype(np.float32)
    native = torch.from_numpy(values.copy())
    x = ag.asarray(values, device="torch")
    return Figure(
        name="through torch / the same torch calls",
        value=ratio(
            lambda: (np.tanh(x @ x) * 0.5 + x).sum(axis=0).compute(),
            lambda: (torch.tanh(native @ native) * 0.5 + native).sum(dim=0),
        ),
        unit="×",
        bound=1.05,
    )


def main() -> None:
    options = arguments(__doc__)
    publish([*recording(), hashing(), through_jax(), through_torch()], options)


if __name__ == "__main__":
    main()
