"""`prefetch`, `parallel` and `settings` of `anygpu.pytorch`: `python -m benchmarks.pytorch_helpers [--json] [--check]`.

Both sides of each ratio take turns in one process, so that they see the same machine, and the middle one of all rounds
counts. Loaders take as long as the step: one waits, as for a disk, and one computes in NumPy on a processor of its own.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from anygpu.pytorch import parallel, prefetch, settings, torch_settings
from benchmarks.report import Figure, options_parser, publish, say

#: The time with a helper beside the time without: at most so much.
MOST_PREFETCH, MOST_PARALLEL = 0.6, 1.05
_STEP_SECONDS = 0.02
_BATCHES = 15


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


# -- prefetch


def busy(matrix: Any, seconds: float) -> int:
    """Products of this matrix that take about so long, on one thread."""
    once = min(seconds_of(lambda: matrix @ matrix) for _ in range(20))
    return max(1, round(seconds / once))


def waiting_loader(count: int) -> Iterator[torch.Tensor]:
    for _ in range(count):
        time.sleep(_STEP_SECONDS)  # as a disk or a network would have us wait
        yield torch.ones(8)


class ComputingLoader:
    """Works in NumPy, outside of Python's lock, on one thread."""

    def __init__(self) -> None:
        self._numbers = np.linspace(0.1, 1.0, 400_000)
        once = min(seconds_of(self._work) for _ in range(10))
        self._times = max(1, round(_STEP_SECONDS / once))

    def _work(self) -> None:
        np.sqrt(np.exp(np.sin(self._numbers)))

    def batches(self, count: int) -> Iterator[torch.Tensor]:
        for _ in range(count):
            for _ in range(self._times):
                self._work()
            yield torch.ones(8)


def prefetch_ratio(loader: Callable[[int], Iterator[torch.Tensor]], rounds: int) -> float:
    matrix = torch.ones(256, 256)
    times = busy(matrix, _STEP_SECONDS)

    def loop(batches: Any) -> None:
        for _ in batches:
            for _ in range(times):
                matrix @ matrix

    ratios = []
    for _ in range(rounds):
        plain = seconds_of(lambda: loop(loader(_BATCHES)))
        ahead = seconds_of(lambda: loop(prefetch(loader(_BATCHES))))
        ratios.append(ahead / plain)
    return statistics.median(ratios)


def prefetch_figures(rounds: int) -> list[Figure]:
    own = torch.get_num_threads()
    # One processor for the step and one for the loader: with both on all of them, nothing could overlap.
    torch.set_num_threads(1)
    try:
        found = [
            Figure(
                name="prefetch, a loader that waits",
                value=prefetch_ratio(waiting_loader, rounds),
                unit="of the plain loop",
                bound=MOST_PREFETCH,
            ),
            Figure(
                name="prefetch, a loader that computes",
                value=prefetch_ratio(ComputingLoader().batches, rounds),
                unit="of the plain loop",
                bound=MOST_PREFETCH,
            ),
        ]
    finally:
        torch.set_num_threads(own)
    many = range(5000)
    each = min(seconds_of(lambda: list(prefetch(many))) for _ in range(3)) / len(many)
    return [*found, Figure(name="prefetch, of a batch that costs nothing", value=each * 1e6, unit="µs")]


# -- parallel


def perceptrons(count: int, width: int, rows: int) -> tuple[list[nn.Module], list[torch.Tensor]]:
    models = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(count)]
    return [model.eval() for model in models], [torch.ones(rows, width) for _ in models]


def convolutions(count: int) -> tuple[list[nn.Module], list[torch.Tensor]]:
    models = [nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)) for _ in range(count)]
    return [model.eval() for model in models], [torch.ones(4, 8, 32, 32) for _ in models]


def transformers(count: int) -> tuple[list[nn.Module], list[torch.Tensor]]:
    models = [nn.TransformerEncoderLayer(128, 4, 256, batch_first=True) for _ in range(count)]
    return [model.eval() for model in models], [torch.ones(4, 64, 128) for _ in models]


def recurrent(count: int) -> tuple[list[nn.Module], list[torch.Tensor]]:
    models: list[nn.Module] = [nn.LSTM(64, 128) for _ in range(count)]
    return models, [torch.ones(40, 4, 64) for _ in models]


WORKLOADS: dict[str, Callable[[], tuple[list[nn.Module], list[torch.Tensor]]]] = {
    "2 small perceptrons": lambda: perceptrons(2, 384, 128),
    "2 large perceptrons": lambda: perceptrons(2, 1024, 256),
    "4 perceptrons": lambda: perceptrons(4, 512, 128),
    "2 convolutional": lambda: convolutions(2),
    "2 transformer layers": lambda: transformers(2),
    "2 recurrent": lambda: recurrent(2),
}
_IN_A_ROW = 10


def parallel_figure(name: str, rounds: int) -> Figure:
    models, inputs = WORKLOADS[name]()

    def plain() -> None:
        for _ in range(_IN_A_ROW):
            [model(x) for model, x in zip(models, inputs, strict=True)]

    def ours() -> None:
        for _ in range(_IN_A_ROW):
            parallel(models, inputs)

    with torch.no_grad():
        ours()
        pairs = [(seconds_of(plain), seconds_of(ours)) for _ in range(rounds)]
        reason = parallel(models, inputs).receipt.reason
    say(f"{name}: {reason}")
    ratio = statistics.median(own / other for other, own in pairs)
    return Figure(name=f"parallel, {name}", value=ratio, unit="of one after the other", bound=MOST_PARALLEL)


# -- settings


class _Stop(Exception):
    pass


def some_options(chance: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {}
    kind = chance.randrange(3)
    if kind == 0:
        given["tf32"] = chance.choice([True, False])
    elif kind == 1:
        given["matmul_precision"] = chance.choice(["highest", "high", "medium"])
    if chance.random() < 0.5:
        given["cudnn_benchmark"] = chance.choice([True, False])
    if chance.random() < 0.5:
        given["deterministic"] = chance.choice([True, False, "warn"])
    if chance.random() < 0.1:
        given["threads"] = chance.randrange(1, 5)
    return given


def nest(chance: random.Random, depth: int, wrong: list[int]) -> int:
    before = {slot: torch_settings.read(slot) for slot in torch_settings.SLOTS}
    blocks = 1
    try:
        with settings(**some_options(chance)):
            while depth and chance.random() < 0.6:
                blocks += nest(chance, depth - 1, wrong)
            if chance.random() < 0.3:
                raise _Stop
    except _Stop:
        pass
    wrong[0] += sum(torch_settings.read(slot) != value for slot, value in before.items())
    return blocks


def settings_figures() -> list[Figure]:
    chance, wrong, blocks = random.Random(19), [0], 0
    while blocks < 10_000:
        blocks += nest(chance, 6, wrong)

    def block() -> None:
        for _ in range(1000):
            with settings(deterministic=True):
                pass

    each = min(seconds_of(block) for _ in range(3)) / 1000
    return [
        Figure(name="settings, not restored in 10,000 nestings", value=wrong[0], unit="settings", bound=0.5),
        Figure(name="settings, a block", value=each * 1e6, unit="µs"),
    ]


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(given)
    figures = prefetch_figures(options.rounds)
    figures += [parallel_figure(name, 3 * options.rounds) for name in WORKLOADS]
    figures += settings_figures()
    publish(figures, options)


if __name__ == "__main__":
    main()
