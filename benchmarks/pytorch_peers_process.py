"""One training run in a budget of memory, by one of several means: a child process of `benchmarks.pytorch_peers`.

The budget is enforced by an allocator that counts what malloc gives out, and refuses beyond it. It holds for the model,
its gradients, its optimizer and its activations; what the interpreter and the data set take is not counted. torch has
one thread, and seconds are the processor's: other jobs on the machine change them little. The last line that is printed
is the `Run`, as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec
import torch
from torch import nn

from anygpu.base.units import readable_bytes
from examples.vision_transformer import VisionTransformer, stripes
from tests.support.counting_allocator import CountingAllocator

_clock = time.process_time
WIDTH, DEPTH, CLASSES, RATE = 192, 6, 8, 3e-4


class Run(msgspec.Struct, kw_only=True):
    """What one run came to."""

    #: Attempts and trial runs that trained nothing which was kept.
    trials: int = 0
    #: Seconds that they took, with everything else before the first step that counts: predicting, saving, restoring.
    lost_seconds: float = 0.0
    #: Rows that one step of the optimizer has seen.
    batch: int = 0
    #: Rows in each second, by the median of the steps in the second half of the run.
    rows_per_second: float = 0.0
    #: From the beginning until all rows were trained with.
    seconds: float = 0.0
    rows: int = 0
    #: The most that was allocated at once, beyond what there was before the model.
    peak_bytes: int = 0
    #: How it came about, in words of its own.
    how: str = ""

    def __str__(self) -> str:
        return (
            f"{self.trials} trials, {self.lost_seconds:.1f} s lost, {self.rows_per_second:.0f} rows/s, "
            f"{self.seconds:.1f} s in all, peak {readable_bytes(self.peak_bytes)}; {self.how}"
        )


class Workload:
    """A data set, and the means to begin anew."""

    def __init__(self, batch: int, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batch, self.rows = batch, batch * steps
        self.images, self.labels = stripes(self.rows, CLASSES, generator)
        self.loss = nn.CrossEntropyLoss()

    def model(self) -> tuple[VisionTransformer, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = VisionTransformer(CLASSES, WIDTH, DEPTH)
        return model, torch.optim.AdamW(model.parameters(), lr=RATE)

    def batches(self, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        begins = range(0, self.rows, size)
        return [(self.images[begin : begin + size], self.labels[begin : begin + size]) for begin in begins]


class Steps:
    """When the steps of a run ended, and how many rows each had."""

    def __init__(self) -> None:
        self.begin = _clock()
        self.ended: list[tuple[float, int]] = []

    def add(self, rows: int) -> None:
        self.ended.append((_clock(), rows))

    def speed(self) -> float:
        times = [self.begin, *(end for end, _ in self.ended)]
        speeds = [rows / (end - before) for (end, rows), before in zip(self.ended, times, strict=False)]
        later = sorted(speeds[len(speeds) // 2 :])
        return later[len(later) // 2]


def plain(work: Workload) -> Run:
    """The whole batch at once, as the loop is written without a care."""
    model, optimizer = work.model()
    steps = Steps()
    for images, labels in work.batches(work.batch):
        optimizer.zero_grad()
        work.loss(model(images), labels).backward()
        optimizer.step()
        steps.add(len(images))
    return Run(batch=work.batch, rows_per_second=steps.speed(), how="the whole batch")


def ours(work: Workload, budget: int) -> Run:
    from anygpu.pytorch import Step

    model, optimizer = work.model()
    begin = _clock()
    step = Step(model, optimizer, work.loss, precision="float32", memory=budget)
    lost, trials, how = _clock() - begin, 0, ""
    steps = Steps()
    for batch in work.batches(work.batch):
        before = _clock()
        receipt = step(batch).receipt
        steps.add(work.batch)
        trials += len(receipt.failures)
        # Planning, and all of the run but what the parts say of the attempt that succeeded. Receipts have the time of
        # the wall, so their share of it is taken.
        wasted = receipt.phases.run - sum(receipt.parts.values()) if receipt.failures else 0.0
        lost += (_clock() - before) * (receipt.phases.plan + wasted) / receipt.seconds
        how = f"{receipt.how or 'the whole batch'}: {receipt.reason}"
    return Run(trials=trials, lost_seconds=lost, batch=work.batch, rows_per_second=steps.speed(), how=how)


def by_accelerate(work: Workload, budget: int) -> Run:
    """As its documentation shows it: what is made inside of the function is made again for each size."""
    find: Any = import_module(NEEDS["Accelerate"]).find_executable_batch_size
    begin, trials = _clock(), 0

    @find(starting_batch_size=work.batch)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> Run:
        nonlocal trials
        trials += 1
        model, optimizer = work.model()
        steps = Steps()
        for images, labels in work.batches(batch_size):
            optimizer.zero_grad()
            work.loss(model(images), labels).backward()
            optimizer.step()
            steps.add(len(images))
        return Run(trials=trials - 1, lost_seconds=steps.begin - begin, batch=batch_size, rows_per_second=steps.speed())

    found: Run = train()
    found.how = f"batches of {found.batch} instead of {work.batch}"
    return found


def by_lightning(work: Workload, budget: int, mode: str) -> Run:
    lightning: Any = import_module("lightning.pytorch")
    tuner: Any = import_module("lightning.pytorch.tuner")
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    made, _ = work.model()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = made, 2
            self.starts, self.steps = 0, Steps()

        def on_train_start(self) -> None:
            self.starts += 1
            self.steps = Steps()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return work.loss(self.model(batch[0]), batch[1])

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            self.steps.add(len(batch[0]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=RATE)

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(work.images, work.labels), self.batch_size)

    begin = _clock()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        quiet: dict[str, Any] = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder, **quiet)
        module = Module()
        tuner.Tuner(trainer).scale_batch_size(module, mode=mode)
        trials = module.starts
        trainer.fit(module)
    return Run(
        trials=trials,
        lost_seconds=module.steps.begin - begin,
        batch=module.batch_size,
        rows_per_second=module.steps.speed(),
        how=f"batches of {module.batch_size} instead of {work.batch}",
    )


#: What each of them imports, which takes memory and seconds of its own.
NEEDS = {
    "anygpu": "anygpu.pytorch.step",
    "anygpu, later run": "anygpu.pytorch.step",
    "Accelerate": "accelerate.utils",
    "Lightning, power": "lightning.pytorch.tuner",
    "Lightning, binsearch": "lightning.pytorch.tuner",
}

MEANS: dict[str, Callable[[Workload, int], Run]] = {
    "anygpu": ours,
    "anygpu, later run": ours,
    "Accelerate": by_accelerate,
    "Lightning, power": lambda work, budget: by_lightning(work, budget, "power"),
    "Lightning, binsearch": lambda work, budget: by_lightning(work, budget, "binsearch"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("means", choices=["plain", *MEANS])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--budget", type=int, default=0, help="bytes; 0 for no limit")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    allocator = CountingAllocator()
    torch.set_num_threads(1)
    work = Workload(options.batch, options.steps)
    # What torch and the libraries set up once is no business of the budget.
    warm = nn.Linear(8, 8)
    warm(torch.ones(8, 8)).sum().backward()
    if options.means in NEEDS:
        import_module(NEEDS[options.means])
    gc.collect()
    before = allocator.current()
    allocator.limit(before + options.budget if options.budget else None)
    allocator.reset()
    begin = _clock()
    run = plain(work) if options.means == "plain" else MEANS[options.means](work, options.budget)
    run.seconds, run.rows = _clock() - begin, work.rows
    run.peak_bytes = allocator.peak() - before
    allocator.limit(None)
    sys.stdout.write(msgspec.json.encode(run).decode() + "\n")


if __name__ == "__main__":
    main()
