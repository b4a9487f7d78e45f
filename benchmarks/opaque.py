"""Opaque tasks of torch: launches and memory. `python -m benchmarks.opaque [--json] [--check] [--items N] [--turns N]`.

Speed: `map` over small items with two modules, on a runtime that puts calls into one launch and on one that does not,
by turns. The figure is the ratio of the medians, which must not be above 1 by more than noise. Memory: each module runs
in one process, which keeps what it saw; a second one predicts from that, for the same rows and, without a bound, for
three times as many, and measures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.report import Figure, options_parser, publish, say

#: A map with launches takes at most this part of one without.
MOST_RATIO = 1.05
#: Per cent by which the memory of a call may be off.
MOST_ERROR = 20.0

#: Rows of the first process, and of the second.
_LEARNT_ROWS, _PREDICTED_ROWS = (64, 128), (128, 384)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    rows: int
    predicted: int | None
    measured: int | None


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--learn", action="store_true", help="run the modules in this process, which keeps their memory"
    )
    parser.add_argument("--predict", action="store_true", help="predict from what was kept, and measure")
    options = parser.parse_args(given)
    if options.learn or options.predict:
        memory_process(predicts=options.predict)
        return
    publish([*speed(options), *memory()], options)


def memory() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ANYGPU_CACHE_DIR": folder, "ANYGPU_HISTORY": "on"}
        for way in ("--learn", "--predict"):
            command = [sys.executable, "-m", "benchmarks.opaque", way]
            text = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    figures = []
    for line in text.splitlines():
        one = msgspec.json.decode(line, type=Memory)
        if one.predicted is None or not one.measured:
            error = float("inf")
        else:
            error = abs(one.predicted / one.measured - 1) * 100
        predicted, measured = ((each or 0) / 1e6 for each in (one.predicted, one.measured))
        say(f"{one.name:<16} {one.rows} rows: predicted {predicted:6.1f} MB, measured {measured:6.1f} MB")
        bound = MOST_ERROR if one.rows in _LEARNT_ROWS else None
        name = f"memory of {one.name}, {one.rows} rows: error"
        figures.append(Figure(name=name, value=error, unit="%", bound=bound))
    return figures


def memory_process(*, predicts: bool) -> None:
    """Prints one line of JSON for each module."""
    import anygpu as ag
    from anygpu.placement.planner import default

    for name, (function, shape) in modules(wide=True).items():
        task = ag.offload(engine="torch")(function)
        for rows in _PREDICTED_ROWS if predicts else _LEARNT_ROWS:
            values = np.ones((rows, *shape), np.float32)
            receipts = []
            # What a library does once is in the first call.
            for _ in range(3):
                task(values)
                receipt = ag.last_receipt()
                assert receipt is not None
                receipts.append(receipt)
            peaks = [each.peak_bytes for each in receipts if each.peak_bytes is not None]
            predicted = receipts[0].predicted_bytes
            one = Memory(name=name, rows=rows, predicted=predicted, measured=min(peaks, default=None))
            if predicts:
                sys.stdout.write(msgspec.json.encode(one).decode() + "\n")
    default().recall.save(10.0)


def speed(options: argparse.Namespace) -> list[Figure]:
    from anygpu.runtime.runtime import Runtime
    from anygpu.workers.device_arrays.registry import DeviceRegistry

    figures = []
    known = DeviceRegistry()
    rng = np.random.default_rng(0)
    for name, (function, shape) in list(modules(wide=False).items())[:2]:
        values = [rng.normal(size=(4, *shape)).astype(np.float32) for _ in range(options.items)]
        with Runtime(known=known) as together, Runtime(known=known, batching=False) as alone:
            for runtime in (together, alone):
                for _ in range(3):  # until it is proved and compared
                    runtime.map(function, values, engine="torch")
                    runtime._planner.settle(60.0)
            seconds: dict[str, list[float]] = {"together": [], "alone": []}
            launched = 0
            for _ in range(options.turns):
                for way, runtime in (("together", together), ("alone", alone)):
                    begin = time.perf_counter()
                    outcomes = runtime.map(function, values, engine="torch")
                    seconds[way].append(time.perf_counter() - begin)
                    for each in outcomes:
                        each.unwrap()  # an item that failed says nothing about time
                        launched += each.receipt is not None and each.receipt.how is not None
        medians = {way: statistics.median(each) for way, each in seconds.items()}
        say(
            f"{name:<16} together {medians['together'] * 1e3:7.1f} ms, alone {medians['alone'] * 1e3:7.1f} ms, "
            f"{launched / options.turns / options.items:.0%} in launches"
        )
        ratio = medians["together"] / medians["alone"]
        figures.append(Figure(name=f"map of {name}: with launches by without", value=ratio, unit="×", bound=MOST_RATIO))
    known.close()
    return figures


def modules(*, wide: bool) -> dict[str, tuple[Callable[..., Any], tuple[int, ...]]]:
    """Functions and the shape of a row; the first two are those whose launches are timed."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    width, channels, size = (16_000, 16, 64) if wide else (128, 8, 16)
    models: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "a perceptron": (nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)), (64,)),
        "convolutions": (
            nn.Sequential(
                nn.Conv2d(3, channels, 3, padding=1),
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Linear(channels, 10),
            ),
            (3, size, size),
        ),
        "a transformer": (nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), (64, 128)),
        "a recurrent net": (nn.LSTM(64, 256, batch_first=True), (64, 64)),
        "norms": (nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv1d(16, 32, 3), nn.Softmax(-1)), (16, 1000)),
        "upsampling": (nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(3, 4, 3)), (3, 32, 32)),
    }

    def call(model: nn.Module) -> Callable[..., Any]:
        model = model.eval().requires_grad_(False)

        def run(x: Any) -> Any:
            value = model(x)
            return value[0] if isinstance(value, tuple) else value

        return run

    return {name: (call(model), shape) for name, (model, shape) in models.items()}


if __name__ == "__main__":
    main()
