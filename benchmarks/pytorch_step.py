"""What a `Step` of `anygpu.pytorch` costs, and whether it is right:
`python -m benchmarks.pytorch_step [--json] [--check] [--only gradients,overhead,bfloat16]`.

- gradients: random modules, losses, micro-batches and checkpointed layers, beside plain torch on the whole batch. The
  difference of each parameter's gradient is measured in norm, relative to that gradient's norm; where that is less than
  a thousandth of the norm of all gradients, relative to a thousandth of it. In float64 too: what is left there is no
  rounding.
- overhead: a step of about 10 ms in float32 that fits, and one of almost nothing, each beside a plain loop, taking
  turns. The quickest of each counts, as on a busy machine only that one was left alone.
- bfloat16: 300 losses of a `Step` with micro-batches beside those of plain autocast on whole batches.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from anygpu.pytorch import Step
from anygpu.pytorch.forms import halving_for
from benchmarks.pytorch_step_cases import Case, random_case
from benchmarks.report import Figure, options_parser, publish, say

#: Relative, of the gradients of `CASES` random modules.
MOST_DIFFERENCE = {torch.float32: 1e-5, torch.float64: 1e-12}
CASES = 200
#: Of a step of 10 ms, and in microseconds of any.
MOST_SHARE, MOST_OVERHEAD = 0.02, 200.0
#: Relative, of the mean of ten losses.
MOST_APART, STEPS, WINDOW = 0.02, 300, 10


# -- gradients


def gradients(cases: int) -> list[Figure]:
    worst = dict.fromkeys(MOST_DIFFERENCE, 0.0)
    where = dict.fromkeys(MOST_DIFFERENCE, "")
    cut = 0
    for number in range(cases):
        for dtype in MOST_DIFFERENCE:
            found, case, is_cut = difference(number, dtype)
            cut += is_cut
            if found > worst[dtype]:
                worst[dtype] = found
                where[dtype] = (
                    f"case {number}: {' and '.join(case.kinds)}, {case.micro_batch} of {len(case.inputs)} rows"
                )
        if number % 50 == 49:
            say(f"{number + 1} modules: " + ", ".join(f"{str(each)[6:]} {value:.2g}" for each, value in worst.items()))
    for dtype, text in where.items():
        say(f"worst in {dtype}: {text}")
    say(f"{cut} of {2 * cases} steps were cut")
    return [
        Figure(
            name=f"gradients of {cases} modules, {str(dtype)[6:]}: difference",
            value=worst[dtype],
            unit="of the norm",
            bound=bound,
        )
        for dtype, bound in MOST_DIFFERENCE.items()
    ]


def difference(number: int, dtype: torch.dtype) -> tuple[float, Case, bool]:
    case = random_case(number)
    model = case.model.to(dtype)
    inputs, targets = (each.to(dtype) if each.is_floating_point() else each for each in (case.inputs, case.targets))
    plain = copy.deepcopy(model)
    case.loss(plain(inputs), targets).backward()
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), 0.0),
        case.loss,
        precision="float32",
        micro_batch=case.micro_batch,
        checkpoint=case.checkpoint,
        make_planner=halving_for,
    )
    receipt = step((inputs, targets)).receipt
    if "not those of the whole batch" in receipt.reason:
        raise AssertionError(f"case {number} ({', '.join(case.kinds)}) was not shown to have rows: {receipt.reason}")
    pairs = [(ours.grad, theirs.grad) for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True)]
    whole = torch.stack([theirs.norm() for _, theirs in pairs if theirs is not None]).norm()
    most = 0.0
    for ours, theirs in pairs:
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            most = max(most, float((ours - theirs).norm() / torch.maximum(theirs.norm(), whole / 1000)))
    return most, case, "micro-batches" in str(receipt.how)


# -- overhead


def overhead(rounds: int) -> list[Figure]:
    small, _ = quickest(2, 8, 1, 20 * rounds)
    ours, plain = small
    (ten, plain_ten), width = quickest(64, 512, 6, rounds)
    say(f"a plain step takes {plain_ten * 1e3:.2f} ms with {width} columns, and {plain * 1e6:.0f} µs with 8")
    return [
        Figure(name="overhead of a step of 10 ms", value=ten / plain_ten - 1, unit="of it", bound=MOST_SHARE),
        Figure(name="overhead of a step of nothing", value=(ours - plain) * 1e6, unit="µs", bound=MOST_OVERHEAD),
    ]


def quickest(rows: int, width: int, layers: int, rounds: int) -> tuple[tuple[float, float], int]:
    """The quickest step of ours and of a plain loop, taking turns."""
    models = [nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))) for _ in range(2)]
    batch = torch.randn(rows, width), torch.randn(rows, width)
    optimizers = [torch.optim.SGD(each.parameters(), 1e-3) for each in models]
    step = Step(models[0], optimizers[0], F.mse_loss, precision="float32")

    def plain() -> torch.Tensor:
        optimizers[1].zero_grad()
        loss = F.mse_loss(models[1](batch[0]), batch[1])
        loss.backward()
        optimizers[1].step()
        return loss.detach()

    ways: list[Callable[[], Any]] = [lambda: step(batch), plain]
    for _ in range(10):
        for way in ways:
            way()
    best = [float("inf")] * 2
    for _ in range(rounds):
        for place, way in enumerate(ways):
            begin = time.perf_counter()
            way()
            best[place] = min(best[place], time.perf_counter() - begin)
    return (best[0], best[1]), width


# -- bfloat16


def bfloat16() -> list[Figure]:
    ours, plain = _curve(True), _curve(False)
    apart = max(abs(a - b) / b for a, b in zip(_means(ours), _means(plain), strict=True))
    each = max(abs(a - b) / b for a, b in zip(ours, plain, strict=True))
    say(
        f"losses from {plain[0]:.3f} to {plain[-1]:.3f} (plain) and {ours[-1]:.3f} (ours); single ones differ by {each:.3f}"
    )
    return [
        Figure(
            name=f"bfloat16: {STEPS} losses apart, means of {WINDOW}", value=apart, unit="of them", bound=MOST_APART
        ),
        Figure(name=f"bfloat16: {STEPS} losses apart, single ones", value=each, unit="of them"),
    ]


def _curve(is_ours: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64),
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(64 * 8, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    loss_function = nn.CrossEntropyLoss()
    step = Step(model, optimizer, loss_function, precision="bfloat16", micro_batch=10, clip_norm=1.0)
    centres = torch.randn(10, 8, 16)
    losses = []
    for _ in range(STEPS):
        targets = torch.randint(0, 10, (32,))
        inputs = centres[targets] + 3 * torch.randn(32, 8, 16)
        if is_ours:
            losses.append(float(step((inputs, targets)).loss))
            continue
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_function(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _means(losses: list[float]) -> list[float]:
    return [sum(losses[begin : begin + WINDOW]) / WINDOW for begin in range(0, len(losses), WINDOW)]


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--only", default="gradients,overhead,bfloat16", help="some of these, with commas")
    parser.add_argument("--cases", type=int, default=CASES, help="random modules")
    parser.add_argument("--rounds", type=int, default=150, help="of steps of 10 ms")
    options = parser.parse_args(given)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "gradients": lambda: gradients(options.cases),
        "overhead": lambda: overhead(options.rounds),
        "bfloat16": bfloat16,
    }
    publish([figure for name in options.only.split(",") for figure in parts[name]()], options)


if __name__ == "__main__":
    main()
