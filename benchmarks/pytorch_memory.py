"""Predicted and measured memory of steps: `python -m benchmarks.pytorch_memory [--json] [--check] [--only TEXT]`.

For each architecture the peak is predicted before any step has run, for a step of one pass and for one of two
micro-batches; then both are run in a process whose allocations are counted. The figure is the larger error of the two.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import time
from typing import Any

import msgspec

from benchmarks.report import Figure, options_parser, publish, say

#: Per cent by which a first prediction may miss the measured peak.
MOST_ERROR = 20.0
#: Seconds that the prediction of one size may take, on a machine that does other things as well.
MOST_SECONDS = 2.0


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    passes: int
    predicted: int
    measured: int
    seconds: float

    @property
    def error(self) -> float:
        return (self.predicted / self.measured - 1) * 100


def main(given: list[str] | None = None) -> None:
    from tests.support.counting_allocator import environment

    parser = options_parser(__doc__)
    parser.add_argument("--only", default="", help="architectures whose names contain one of these, with commas")
    parser.add_argument("--child", action="store_true", help="measure in this process, which counts its allocations")
    options = parser.parse_args(given)
    if options.child:
        child(options.only)
        return
    command = [sys.executable, "-m", "benchmarks.pytorch_memory", "--child", "--only", options.only]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            found.append(one := msgspec.json.decode(line, type=Compared))
            say(
                f"{one.name:<32} {one.passes} passes: predicted {one.predicted / 1e6:7.1f} MB, measured "
                f"{one.measured / 1e6:7.1f} MB, {one.error:+5.1f} %, in {one.seconds:.2f} s"
            )
    if process.returncode:
        sys.exit(process.returncode)
    figures = [
        Figure(
            name=f"{name}: error of the prediction",
            value=max(abs(one.error) for one in found if one.name == name),
            unit="%",
            bound=MOST_ERROR,
        )
        for name in dict.fromkeys(one.name for one in found)
    ]
    figures.append(
        Figure(name="a prediction, longest", value=max(one.seconds for one in found), unit="s", bound=MOST_SECONDS)
    )
    publish(figures, options)


def child(only: str) -> None:
    """Prints one line of JSON for each comparison."""
    import torch

    from benchmarks.pytorch_architectures import ARCHITECTURES

    torch.manual_seed(0)
    measure("warm-up", "wide perceptron")  # what torch, MKL and the predictions keep for the life of a process
    measure("warm-up", "wide perceptron, bfloat16")
    for name in ARCHITECTURES:
        if any(part in name for part in only.split(",")):
            for compared in measure(name, name):
                sys.stdout.write(msgspec.json.encode(compared).decode() + "\n")
                sys.stdout.flush()


def measure(label: str, name: str) -> list[Compared]:
    import torch

    from anygpu.pytorch.footprint import predict
    from benchmarks.pytorch_architectures import ARCHITECTURES
    from tests.support.counting_allocator import CountingAllocator

    allocator = CountingAllocator()
    architecture = ARCHITECTURES[name]
    gc.collect()
    before = allocator.current()
    training = architecture.make()
    optimizer = architecture.optimizer(training.model.parameters())
    rows = len(training.batch[0])
    beside = sum({one.data_ptr(): one.nbytes for one in training.batch}.values())
    predictions = {}
    for passes in (1, 2):
        gc.collect()
        unpredicted, began = allocator.current(), time.perf_counter()
        predictions[passes] = (
            predict(
                training.model,
                training.loss_of,
                training.batch,
                rows=rows // passes,
                precision=architecture.precision,  # type: ignore[arg-type]
                optimizer=optimizer,
                accumulate=passes > 1,
            ).peak_bytes,
            time.perf_counter() - began,
        )
        gc.collect()
        beside += allocator.current() - unpredicted
    found = []
    for passes, (predicted, seconds) in predictions.items():
        for _ in range(3):  # the first has no state of the optimiser yet
            allocator.reset()
            for part in range(passes):
                cut = tuple(one[part * (rows // passes) :][: rows // passes] for one in training.batch)
                with _autocast(torch, architecture.precision):
                    loss = training.loss_of(training.model, cut)
                loss.backward()
                del loss
            optimizer.step()
            optimizer.zero_grad()
            measured = allocator.peak() - before - beside
        found.append(Compared(name=label, passes=passes, predicted=predicted, measured=measured, seconds=seconds))
    return found


def _autocast(torch: Any, precision: str) -> Any:
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=getattr(torch, precision))


if __name__ == "__main__":
    main()
