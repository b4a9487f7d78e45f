"""What a `Step` of `anygpu.pytorch` costs, and whether it is right:
`python -m benchmarks.pytorch_step [--json] [--check] [--only gradients,overhead,bfloat16]`.

- gradients: random modules, losses, micro-batches and checkpointed layers, beside plain torch on the whole batch. The
  difference of each parameter's gradient is measured in norm, relative to that gradient's norm; where that is less than
  a thousandth of the norm of all gradients, relative to a thousandth of it. In float64 too: what is left there is no
  rounding. Where plain float32 itself is far from plain float64, as for rows that are almost parallel under a
  contrastive loss, it is no reference: these are counted, and their distance from float64 is compared with its own.
- overhead: steps of modules so small that nothing else is left, each beside a plain loop, taking turns, in the time of
  one processor. The quickest counts, as on a busy machine only that one was left alone.
- bfloat16: 300 losses of a `Step` with micro-batches beside those of plain autocast on whole batches.
"""

from __future__ import annotations

import math
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
MOST_DIFFERENCE = {"float32": 1e-5, "float64": 1e-12}
CASES = 200
#: Plain gradients in float32 that are farther than this from those in float64 are no reference; ours may be that many
#: times as far.
REFERENCE, MOST_TIMES = 3e-6, 4.0
#: Microseconds: 2 % of a step of 10 ms.
MOST_OVERHEAD = 200.0
#: Relative, of the mean of ten losses.
MOST_APART, STEPS, WINDOW = 0.02, 300, 10

Gradients = list[torch.Tensor | None]


# -- gradients


def gradients(cases: int) -> list[Figure]:
    worst = {"float32": (0.0, ""), "float64": (0.0, ""), "times": (0.0, "")}
    cut = doubtful = 0
    for number in range(cases):
        plain = {dtype: plain_gradients(number, dtype) for dtype in (torch.float32, torch.float64)}
        case = random_case(number)
        what = f"case {number}: {' and '.join(case.kinds)}, {case.micro_batch} of {len(case.inputs)} rows"
        for dtype, expected in plain.items():
            name = str(dtype).removeprefix("torch.")
            ours, is_cut = our_gradients(number, dtype)
            cut += is_cut
            own = difference(plain[torch.float32], plain[torch.float64])
            if dtype == torch.float32 and own > REFERENCE:
                doubtful += 1
                times = difference(ours, plain[torch.float64]) / own
                worst["times"] = max(worst["times"], (times, what))
            else:
                worst[name] = max(worst[name], (difference(ours, expected), what))
        if number % 50 == 49:
            say(f"{number + 1} modules: " + ", ".join(f"{name} {value:.2g}" for name, (value, _) in worst.items()))
    for name, (_, what) in worst.items():
        say(f"worst in {name}: {what}")
    say(f"{cut} of {2 * cases} steps were cut")
    figures = [
        Figure(name=f"gradients in {name}: difference", value=worst[name][0], unit="of the norm", bound=bound)
        for name, bound in MOST_DIFFERENCE.items()
    ]
    return [
        *figures,
        Figure(name="modules", value=cases, unit="modules"),
        Figure(name="of them without a reference in float32", value=doubtful, unit="modules", bound=0.1 * cases),
        Figure(name="their rounding beside plain torch's", value=worst["times"][0], unit="times", bound=MOST_TIMES),
    ]


def converted(number: int, dtype: torch.dtype) -> tuple[Case, torch.Tensor, torch.Tensor]:
    case = random_case(number)
    case.model.to(dtype)
    inputs, targets = (each.to(dtype) if each.is_floating_point() else each for each in (case.inputs, case.targets))
    return case, inputs, targets


def plain_gradients(number: int, dtype: torch.dtype) -> Gradients:
    case, inputs, targets = converted(number, dtype)
    case.loss(case.model(inputs), targets).backward()
    return [each.grad for each in case.model.parameters()]


def our_gradients(number: int, dtype: torch.dtype) -> tuple[Gradients, bool]:
    case, inputs, targets = converted(number, dtype)
    step = Step(
        case.model,
        torch.optim.SGD(case.model.parameters(), 0.0),
        case.loss,
        precision="float32",
        micro_batch=case.micro_batch,
        checkpoint=case.checkpoint,
        make_planner=halving_for,
    )
    receipt = step((inputs, targets)).receipt
    if "not those of the whole batch" in receipt.reason:
        raise AssertionError(f"case {number} ({', '.join(case.kinds)}) was not shown to have rows: {receipt.reason}")
    return [each.grad for each in case.model.parameters()], "micro-batches" in str(receipt.how)


def difference(found: Gradients, expected: Gradients) -> float:
    whole = torch.stack([each.norm() for each in expected if each is not None]).norm()
    most = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            most = max(most, float((ours - theirs).norm() / torch.maximum(theirs.norm(), whole / 1000)))
    return most


# -- overhead


def overhead(rounds: int) -> list[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best = dict.fromkeys((1, 6, 24), (math.inf, math.inf))
    try:
        # Several times round: what disturbs the machine often lasts for as long as one of these.
        for _ in range(5):
            for layers, before in best.items():
                found = quickest(layers, rounds // 5)
                best[layers] = min(before[0], found[0]), min(before[1], found[1])
    finally:
        torch.set_num_threads(threads)
    return [
        Figure(
            name=f"overhead of a step, {layers} layer{'s' if layers > 1 else ''}",
            value=(ours - plain) * 1e6,
            unit="µs",
            bound=MOST_OVERHEAD,
        )
        for layers, (ours, plain) in best.items()
    ]


def quickest(layers: int, rounds: int) -> tuple[float, float]:
    """Seconds of a thread's time for the quickest of our steps, and of a plain loop's, taking turns."""
    width = 8
    models = [nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))) for _ in range(2)]
    batch = torch.randn(2, width), torch.randn(2, width)
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
    best = [math.inf] * 2
    for _ in range(rounds):
        for place, way in enumerate(ways):
            begin = time.thread_time()
            way()
            best[place] = min(best[place], time.thread_time() - begin)
    return best[0], best[1]


# -- bfloat16


def bfloat16() -> list[Figure]:
    threads = torch.get_num_threads()
    # Threads that wait for each other take minutes for this where others want the processors too.
    torch.set_num_threads(1)
    ours, plain = _curve(True), _curve(False)
    torch.set_num_threads(threads)
    apart = max(abs(a - b) / b for a, b in zip(_means(ours), _means(plain), strict=True))
    each = max(abs(a - b) / b for a, b in zip(ours, plain, strict=True))
    say(f"losses from {plain[0]:.3f} to {plain[-1]:.3f} (plain) and {ours[-1]:.3f} (ours)")
    return [
        Figure(
            name=f"bfloat16: {STEPS} losses apart, means of {WINDOW}", value=apart, unit="of them", bound=MOST_APART
        ),
        Figure(name=f"bfloat16: {STEPS} losses, single ones: apart", value=each, unit="of them"),
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
    parser.add_argument("--rounds", type=int, default=600, help="of steps whose overhead is measured")
    options = parser.parse_args(given)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "gradients": lambda: gradients(options.cases),
        "overhead": lambda: overhead(options.rounds),
        "bfloat16": bfloat16,
    }
    publish([figure for name in options.only.split(",") for figure in parts[name]()], options)


if __name__ == "__main__":
    main()
