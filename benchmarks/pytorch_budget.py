"""Training in less memory than it wants: `python -m benchmarks.pytorch_budget [--json] [--check] [--models NAMES]`.

Each case is a process of its own, in which a counting allocator refuses what goes beyond the budget, or the system does
(`--limit system`: RLIMIT_AS). What a plain step of the whole batch needs is 1.2, 2, 5 and 10 times that budget. `Step`
trains, and then every size of micro-batches with every layer, every other layer and no layer checkpointed runs under
the same budget. The speed that `Step` has settled at is compared with the best of these, taking turns. A second process
begins where the first one ended.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Figure, options_parser, publish, say

FACTORS = (1.2, 2.0, 5.0, 10.0)
#: The time of a step against the best that an exhaustive search finds, and steps out of memory after the first one.
MOST_SLOWER, MOST_FAILURES = 1 / 0.85, 0.5
#: Steps until a plan has settled at the latest: a search takes up to 40, and 20 do not count on a busy machine.
STEPS = 64
ROUNDS = 5


class Case(NamedTuple):
    model: Any
    batch: Any
    loss: Callable[[Any, Any], Any]


def vit() -> Case:
    import torch
    from torch import nn

    class Vit(nn.Module):
        def __init__(self, width: int = 128, depth: int = 6) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, 4, 4)
            self.blocks = nn.Sequential(
                *[
                    nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                    for _ in range(depth)
                ]
            )
            self.head = nn.Linear(width, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.patches(x).flatten(2).transpose(1, 2)
            return self.head(self.blocks(tokens).mean(1))

    return Case(Vit(), (torch.randn(192, 3, 32, 32), torch.randint(0, 10, (192,))), nn.CrossEntropyLoss())


def conv() -> Case:
    import torch
    from torch import nn

    def block(width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.GELU())

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        *[block(32) for _ in range(6)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return Case(model, (torch.randn(128, 3, 48, 48), torch.randint(0, 10, (128,))), nn.CrossEntropyLoss())


def language() -> Case:
    import torch
    from torch import nn

    class Language(nn.Module):
        def __init__(self, width: int = 96, depth: int = 6, words: int = 512) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            )
            self.head = nn.Linear(width, words)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            y = self.embedding(x)
            for block in self.blocks:
                y = block(y, src_mask=mask, is_causal=True)
            return self.head(y).transpose(1, 2)

    tokens = torch.randint(0, 512, (128, 97))
    return Case(Language(), (tokens[:, :-1], tokens[:, 1:]), nn.CrossEntropyLoss())


MODELS: dict[str, Callable[[], Case]] = {"vit": vit, "conv": conv, "language": language}


# -- in the process that trains


def run_case(name: str, factor: float, limit: str, is_second: bool, needed: int) -> dict[str, Any]:
    import torch

    from anygpu.pytorch import Step
    from tests.support.counting_allocator import CountingAllocator

    torch.manual_seed(0)
    warm_up(name)
    case = MODELS[name]()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)
    allocator = CountingAllocator()
    fixed = sum(each.nbytes for each in case.model.parameters())
    base = allocator.current() - fixed
    if not needed:
        plain_step(case, optimizer)
        allocator.reset()
        plain_step(case, optimizer)
        return {"needed": allocator.peak() - base}
    budget = int(needed / factor)
    if limit == "system":
        plain_step(Case(case.model, tuple(each[:1] for each in case.batch), case.loss), optimizer)
        virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (virtual + budget, resource.RLIM_INFINITY))
    else:
        allocator.limit(base + budget)

    def new_step(**options: Any) -> Step:
        return Step(case.model, optimizer, case.loss, precision="float32", memory=budget, **options)

    step = new_step()
    first = later = trials = 0
    plans: set[Any] = set()
    for number in range(1 if is_second else STEPS):
        receipt = step(case.batch).receipt
        failed = len(receipt.failures)
        first, later = (first + failed, later) if number == 0 else (first, later + failed)
        plans.add(receipt.how)
        if "the fastest of" in receipt.reason:
            break
    if is_second:
        # A planner that still looks for the fastest way would go on with others.
        trials = first + (0 if step.plan is not None and "earlier run" in step.plan.reason else 1)
        return {"trials": trials, "plan": describe(step)}
    allocator.reset()
    step(case.batch)
    peak = allocator.peak() - base
    found = search(case, new_step)
    best = min(found, key=lambda each: found[each], default=None)
    ours, theirs = take_turns(case, step, None if best is None else new_step(micro_batch=best[0], checkpoint=best[1]))
    return {
        "budget": budget,
        "first": first,
        "later": later,
        "predicted": 0 if step.plan is None else step.plan.predicted_bytes,
        "ours": ours,
        "theirs": theirs,
        "plan": f"{describe(step)}, after {number + 1} steps",
        "best": "nothing fits" if best is None else f"{best[0]} rows, {len(best[1])} layers recomputed",
        "peak": peak,
    }


def warm_up(name: str) -> None:
    """Load what torch, its libraries and anygpu keep from their first steps on: the budget is one of tensors."""
    import torch

    from anygpu.pytorch import Step

    case = MODELS[name]()
    step = Step(case.model, torch.optim.AdamW(case.model.parameters()), case.loss, precision="float32", micro_batch=4)
    for _ in range(2):
        step(tuple(each[:8] for each in case.batch))
    del case, step
    gc.collect()


def plain_step(case: Case, optimizer: Any) -> None:
    inputs, targets = case.batch
    case.loss(case.model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()


def describe(step: Any) -> str:
    plan = step.plan
    return f"{plan.micro_batch} rows, {len(plan.checkpoint)} layers recomputed"


def ways(case: Case) -> Iterator[tuple[int, tuple[str, ...]]]:
    from anygpu.pytorch.checkpointing import candidates

    rows = len(case.batch[0])
    layers = tuple(candidates(case.model))
    size = rows
    while True:
        for names in ((), layers[::2], layers):
            yield size, names
        if size == 1:
            return
        size = -(-size // 2)


def search(case: Case, new_step: Callable[..., Any]) -> dict[tuple[int, tuple[str, ...]], float]:
    """The best of two steps for each way that fits."""
    from anygpu.errors import AnyGPUError

    found: dict[tuple[int, tuple[str, ...]], float] = {}
    for size, names in ways(case):
        try:
            step = new_step(micro_batch=size, checkpoint=names)
            step(case.batch)
            found[size, names] = min(timed(step, case) for _ in range(2))
        except AnyGPUError:
            continue
        if found[size, names] > 4 * min(found.values()):
            break
    return found


def timed(step: Any, case: Case) -> float:
    begin = time.perf_counter()
    step(case.batch)
    return time.perf_counter() - begin


def take_turns(case: Case, ours: Any, theirs: Any) -> tuple[float, float]:
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for step, into in zip((ours, theirs), taken, strict=True):
            if step is not None:
                into.append(timed(step, case))
    medians = [statistics.median(each[1:]) if each else float("inf") for each in taken]
    return medians[0], medians[1]


# -- in the process that asks


def ask(*given: object, cache: str) -> dict[str, Any]:
    from tests.support.counting_allocator import environment

    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.pytorch_budget", "--case", *map(str, given)],
        env=environment(os.environ | {"ANYGPU_CACHE_DIR": cache}),
        stdout=subprocess.PIPE,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"{given}: the process ended with status {ran.returncode}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        model, share, limit, is_second, bytes_needed = sys.argv[2:]
        sys.stdout.write(json.dumps(run_case(model, float(share), limit, is_second == "True", int(bytes_needed))))
        return
    parser = options_parser(__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)))
    parser.add_argument("--limit", choices=("counting", "system"), default="counting")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            needed = ask(name, 1, options.limit, False, 0, cache=cache)["needed"]
            for factor in map(float, options.factors.split(",")):
                found = ask(name, factor, options.limit, False, needed, cache=cache)
                second = ask(name, factor, options.limit, True, needed, cache=cache)
                title = f"{name}, {factor:g} × the budget"
                say(
                    f"{title}: {found['budget'] >> 20} MiB; ours {found['plan']} ({found['ours'] * 1e3:.0f} ms), "
                    f"best {found['best']} ({found['theirs'] * 1e3:.0f} ms); peak {found['peak'] >> 20} MiB, "
                    f"{found['first']} failures in the first step; second run: {second['plan']}"
                )
                slower = found["ours"] / found["theirs"]
                figures += [
                    Figure(name=f"{title}: time against the best", value=slower, unit="×", bound=MOST_SLOWER),
                    Figure(name=f"{title}: later failures", value=found["later"], unit="", bound=MOST_FAILURES),
                    Figure(name=f"{title}: trials of run 2", value=second["trials"], unit="", bound=MOST_FAILURES),
                    Figure(name=f"{title}: peak of the budget", value=found["peak"] / found["budget"], unit="×"),
                ]
    publish(figures, options)


if __name__ == "__main__":
    main()
