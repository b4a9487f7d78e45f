"""What a `Step` of `anygpu.pytorch` costs, and whether it is right:
`python -m benchmarks.pytorch_step [--json] [--check] [--only gradients,coupled,again,overhead,bfloat16]`.

- gradients: random modules, losses, micro-batches and checkpointed layers, beside plain torch on the whole batch. The
  difference of each parameter's gradient is measured in norm, relative to that gradient's norm; where that is less than
  a thousandth of the norm of all gradients, relative to a thousandth of it. In float64 too: what is left there is no
  rounding. Where plain float32 itself is far from plain float64, as for rows that are almost parallel under a
  contrastive loss, it is no reference: these are counted, and their distance from float64 is compared with its own.
- coupled: the same modules with a layer in which rows meet, or their number matters: hooks, gates that begin at zero,
  experts with a capacity, values that are detached, BatchNorm, branches on the number of rows. Some steps of each are
  trained; of every second with the user's own size of micro-batches, of the others within a budget of memory. A step
  whose gradients are off is told if its own receipt says so, or if a later one counts it among those in doubt.
- again: what comparing gradients again takes of 1,000 steps that are cut, in processor time; the first comparison does
  not count.
- overhead: steps of modules so small that nothing else is left, each beside a plain loop, taking turns, in the time of
  one processor. The quickest counts, as on a busy machine only that one was left alone.
- bfloat16: 300 losses of a `Step` with micro-batches beside those of plain autocast on whole batches.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from anygpu.pytorch import GradientsDiffer, Step
from anygpu.pytorch.footprint import CannotPredict, predict
from anygpu.pytorch.forms import BatchForm, halving_for
from benchmarks.pytorch_step_cases import COUPLINGS, Case, coupled_case, random_case
from benchmarks.report import Figure, options_parser, publish, say

#: Relative, of the gradients of `CASES` random modules.
MOST_DIFFERENCE = {"float32": 1e-5, "float64": 1e-12}
CASES = 200
#: Plain gradients in float32 that are farther than this from those in float64 are no reference; ours may be that many
#: times as far.
REFERENCE, MOST_TIMES = 3e-6, 4.0
#: Relative, of gradients that no receipt tells of; of `CASES` modules with each coupling, in so many steps each.
MOST_UNTOLD, COUPLED_STEPS = 1e-3, 13
#: Of the processor time of so many steps.
MOST_AGAIN, AGAIN_STEPS = 0.01, 1000
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


# -- rows that meet


#: The number of a cut step whose gradients are off, by how much, and what it was.
Doubtful = tuple[int, float, str]


class Tally:
    """Counts of steps."""

    def __init__(self) -> None:
        self.steps = self.cut = self.wrong = self.untold = 0
        self.worst = (0.0, "")


def coupled(cases: int) -> list[Figure]:
    tally = Tally()
    for place, kind in enumerate(COUPLINGS):
        for number in range(cases):
            one_coupled(number, kind, (number + place) % 2 == 0, tally)
        say(
            f"{kind}: {tally.steps} steps so far, {tally.cut} cut, {tally.wrong} of them with other gradients, "
            f"{tally.untold} untold; the worst by {tally.worst[0]:.2g} ({tally.worst[1]})"
        )
    return [
        Figure(name="coupled rows: modules", value=cases * len(COUPLINGS), unit="modules"),
        Figure(name="their steps", value=tally.steps, unit="steps"),
        Figure(name="cut", value=tally.cut, unit="steps"),
        Figure(name=f"cut, with gradients off by more than {MOST_UNTOLD:g}", value=tally.wrong, unit="steps"),
        Figure(name="of them told by no receipt", value=tally.untold, unit="steps", bound=0.5),
    ]


def one_coupled(number: int, kind: str, is_set: bool, tally: Tally) -> None:
    """Some steps of one module, each beside the gradients of the whole batch by the same module made anew."""
    ours, plain = coupled_case(number, kind), coupled_case(number, kind)
    options: dict[str, Any] = {"micro_batch": ours.micro_batch, "make_planner": halving_for}
    if not is_set:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has something to say of hooks on a first layer
            options = {"memory": tight_budget(ours)}
    step = Step(ours.model, torch.optim.SGD(ours.model.parameters(), 0.05), ours.loss, precision="float32", **options)
    in_doubt: list[Doubtful] = []
    cut = 0
    order = torch.Generator().manual_seed(number)
    for place in range(COUPLED_STEPS):
        rows = torch.randperm(len(ours.inputs), generator=order)
        inputs, targets = ours.inputs[rows], ours.targets[rows]
        plain.model.load_state_dict(ours.model.state_dict())
        plain.model.zero_grad()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            plain.loss(plain.model(inputs), targets).backward()
            try:
                receipt = step((inputs, targets)).receipt
            except ValueError:
                if kind != "batch norm":
                    raise
                break  # a micro-batch of one row, which the user's size has left over, has no deviation
        tally.steps += 1
        in_doubt = without_told(in_doubt, said, cut)
        if "micro-batches" not in str(receipt.how):
            continue
        tally.cut += 1
        cut += 1
        expected: Gradients = [each.grad for each in plain.model.parameters()]
        if not all(bool(each.isfinite().all()) for each in expected if each is not None):
            break
        far = difference([each.grad for each in ours.model.parameters()], expected)
        if far > MOST_UNTOLD:
            tally.wrong += 1
            if "not those of the whole batch" not in receipt.reason:
                what = f"case {number}: {' and '.join(ours.kinds)}, step {place}, {receipt.how}; {receipt.reason}"
                in_doubt.append((cut - 1, far, what))
    tally.untold += len(in_doubt)
    tally.worst = max(tally.worst, *((far, what) for _, far, what in in_doubt), (0.0, ""))


def without_told(in_doubt: list[Doubtful], said: list[warnings.WarningMessage], cut: int) -> list[Doubtful]:
    """Those that a warning does not count: it names how many of the last cut steps are in doubt."""
    for each in said:
        if issubclass(each.category, GradientsDiffer):
            count = re.search(r"(\d+) steps? cut since", str(each.message))
            told = int(count.group(1)) if count is not None else 0
            in_doubt = [one for one in in_doubt if one[0] < cut - told]
    return in_doubt


def tight_budget(case: Case) -> int:
    """Bytes that are too few for the whole batch; any where that cannot be predicted."""
    batch = case.inputs, case.targets
    try:
        found = predict(
            case.model, lambda model, part: case.loss(model(part[0]), part[1]), batch, rows=len(case.inputs)
        )
    except CannotPredict:
        return 1 << 20
    return found.fixed_bytes + (found.peak_bytes - found.fixed_bytes) // 2


# -- looking again


def again() -> list[Figure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_again(0.0), _again(0.1)]
    finally:
        torch.set_num_threads(threads)


def _again(dropout: float) -> Figure:
    """With dropout, fixed numbers take the place of random ones in a comparison."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 128),
        nn.TransformerEncoderLayer(128, 4, 256, dropout=dropout, batch_first=True),
        nn.Flatten(),
        nn.Linear(128 * 16, 10),
    )
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        nn.CrossEntropyLoss(),
        precision="float32",
        micro_batch=16,
        make_planner=halving_for,
    )
    batch = torch.randn(64, 16, 16), torch.randint(0, 10, (64,))
    step(batch)
    looking = 0.0
    original = BatchForm._why_whole

    def timed(self: BatchForm, *given: Any) -> str:
        nonlocal looking
        begin = time.process_time()
        why = original(self, *given)
        looking += time.process_time() - begin
        return why

    begin = time.process_time()
    with mock.patch.object(BatchForm, "_why_whole", timed):
        for _ in range(AGAIN_STEPS - 1):
            step(batch)
    share = looking / (time.process_time() - begin - looking)
    name = "looking again" + (", with dropout" if dropout else "")
    return Figure(name=f"{name}: of {AGAIN_STEPS} steps", value=share, unit="of their time", bound=MOST_AGAIN)


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
    every = "gradients,coupled,again,overhead,bfloat16"
    parser.add_argument("--only", default=every, help="some of these, with commas")
    parser.add_argument("--cases", type=int, default=CASES, help="random modules")
    parser.add_argument("--rounds", type=int, default=600, help="of steps whose overhead is measured")
    options = parser.parse_args(given)
    parts: dict[str, Callable[[], list[Figure]]] = {
        "gradients": lambda: gradients(options.cases),
        "coupled": lambda: coupled(options.cases),
        "again": again,
        "overhead": lambda: overhead(options.rounds),
        "bfloat16": bfloat16,
    }
    publish([figure for name in options.only.split(",") for figure in parts[name]()], options)


if __name__ == "__main__":
    main()
