"""`anygpu demo`: two small programs on this machine, with NumPy and with the decorator, side by side.

`compare` measures, `show` prints. The source of the programs is part of the output, so they are written as people write
NumPy, and have no docstrings.
"""

from __future__ import annotations

import inspect
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

import anygpu
from anygpu import api
from anygpu.base.disturbance import Reading, conditions, read_processors
from anygpu.base.this_process import usable_processors
from anygpu.base.units import readable_seconds
from anygpu.hardware.host import processor_name
from anygpu.receipts.receipt import Receipt

#: So many calls in a row on one device that is not NumPy: the function has found its place.
SETTLED = 5
#: How many calls of each kind are measured, and how long that may take. One of each is measured in any case.
CALLS, MEASURED_SECONDS = 30, 0.5
BAR = 32
#: Relative differences up to these are roundings; no program of the demo adds up many of them.
ROUNDING = {"float32": 1e-5, "float64": 1e-10}
#: From this share of waiting on, the figures are said to be doubtful; 0.1 is usual where threads of ours take turns.
BUSY = 0.2
PAGE = "how-to/why-no-speed-up"


def sharpen(image):  # type: ignore[no-untyped-def]  # as people write it: its source is shown
    p = np.pad(image, 1, mode="edge")
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return np.clip(3 * image - 0.5 * around, 0, 1)


def price(normals, spot, strike, rate, sigma):  # type: ignore[no-untyped-def]
    final = spot * np.exp(rate - sigma**2 / 2 + sigma * normals)
    return np.exp(-rate) * np.maximum(final - strike, 0).mean()


@dataclass(frozen=True)
class DemoProgram:
    """A function of the demo, and arguments for it."""

    function: Callable[..., Any]
    what: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class DemoTimes:
    """Times of a program with NumPy and with the decorator, in seconds: medians of calls in turn."""

    numpy: float
    anygpu: float
    calls: int
    #: Seconds of the first decorated call of the process, which loads and may compile what later ones only use.
    first: float
    #: The number of the first call on `device`, counted from 1.
    since: int
    #: Where most of the measured calls ran, and the reason that the last of these has.
    device: str
    reason: str
    #: The largest relative difference between the two results; 0 if they are equal to the last bit.
    difference: float
    agrees: bool
    #: The share of the measured time in which our threads waited for a processor; `None` where the system does not say.
    lost: float | None
    #: Waiting was so much of the time that no ratio is to be believed: it slows long calls more than short ones.
    disturbed: bool

    @property
    def ratio(self) -> float:
        """How many times as fast as NumPy the decorated function is."""
        return self.numpy / self.anygpu


def programs(scale: float = 1.0) -> list[DemoProgram]:
    """The programs; `scale` multiplies the number of their elements, about.

    Their random inputs have a fixed seed.
    """
    generator = np.random.default_rng(0)
    height, width = max(2, round(1080 * scale**0.5)), max(2, round(1920 * scale**0.5))
    paths = max(2, round(1_000_000 * scale))
    image = generator.random((height, width), np.float32)
    normals = generator.standard_normal(paths)
    return [
        DemoProgram(sharpen, f"sharpens an image of {width} × {height} pixels, float32", (image,)),
        DemoProgram(
            price, f"prices an option from {paths:,} random paths, float64", (normals, 100.0, 105.0, 0.03, 0.2)
        ),
    ]


def compare(
    program: DemoProgram,
    offloaded: Callable[..., Any],
    *,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    last_receipt: Callable[[], Receipt | None] = api.last_receipt,
    read: Callable[[], Reading] = read_processors,
) -> DemoTimes:
    """Calls the decorated function until it has found its place, `seconds` at most; then both functions in turn.

    The times are medians of `_in_turn`, without the calls of the search. The results are compared once, and not kept.
    The clock, receipts and readings of processors are parameters for tests.
    """

    def timed(function: Callable[..., Any]) -> tuple[float, Any]:
        begin = clock()
        value = function(*program.arguments)
        return clock() - begin, value

    def called() -> tuple[float, Any]:
        took, value = timed(offloaded)
        receipt = last_receipt()
        assert receipt is not None  # there has been a call
        receipts.append(receipt)
        return took, value

    receipts: list[Receipt] = []
    end = clock() + seconds
    first, _ = called()
    while not _is_settled(receipts) and clock() < end:
        called()
    searched = len(receipts)

    wanted, value = timed(program.function)[1], called()[1]
    difference, agrees = _difference(wanted, value)
    # A result that is kept takes memory that the next call would use again, so neither function's are kept.
    del wanted, value
    before = read()
    theirs, ours = _in_turn(lambda: timed(program.function)[0], lambda: called()[0], clock)
    found = conditions(before, read())
    device = Counter(each.device for each in receipts[searched:]).most_common(1)[0][0]
    return DemoTimes(
        # Not the best: native code on all cores has single calls twice as fast as usual; NumPy on one core has none.
        numpy=median(theirs),
        anygpu=median(ours),
        calls=len(ours),
        first=first,
        since=_since(receipts, device),
        device=device,
        reason=next(each.reason for each in reversed(receipts) if each.device == device),
        difference=difference,
        agrees=agrees,
        lost=None if found.waiting is None else found.lost,
        disturbed=found.disturbed,
    )


def _in_turn(
    theirs: Callable[[], float], ours: Callable[[], float], clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """The seconds of both functions, called in turn: `CALLS` times each, or for `MEASURED_SECONDS` and at least once.

    The order changes from pair to pair, so that neither always runs on a cache or a clock that the other has warmed.
    """
    of_theirs: list[float] = []
    of_ours: list[float] = []
    end = clock() + MEASURED_SECONDS
    while not of_ours or (len(of_ours) < CALLS and clock() < end):
        if len(of_ours) % 2:
            of_theirs.append(theirs())
            of_ours.append(ours())
        else:
            of_ours.append(ours())
            of_theirs.append(theirs())
    return of_theirs, of_ours


def demo(
    on: Annotated[
        str | None, typer.Option("--on", help="A device to use, such as cpu or webgpu, instead of choosing one.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, help="How long each program may look for its device.")
    ] = 2.0,
    scale: Annotated[
        float, typer.Option("--scale", min=1e-6, max=100.0, help="Multiplies the number of elements.")
    ] = 1.0,
) -> None:
    """Run two small NumPy programs here, with and without the decorator, and compare their times.

    Exits with 1 if a result differs from NumPy's by more than rounding.
    """
    console = Console(highlight=False)
    processors = usable_processors()
    console.print(
        f"anygpu {anygpu.__version__}, NumPy {np.__version__}, Python {platform.python_version()}; "
        f"{processor_name()}, {processors} {'processor' if processors == 1 else 'processors'}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    found = []
    for program in programs(scale):
        offloaded = api.offload(program.function) if on is None else api.offload(on=on)(program.function)
        comparison = compare(program, offloaded, seconds=seconds)
        show(console, program, comparison, on)
        found.append(comparison)
    show_end(console, found)
    raise typer.Exit(0 if all(each.agrees for each in found) else 1)


# -- what is shown


def show(console: Console, program: DemoProgram, comparison: DemoTimes, on: str | None = None) -> None:
    """The code of a program, both times as bars, and what is behind them."""
    longest = max(comparison.numpy, comparison.anygpu)
    console.print()
    console.print(Text.assemble((program.function.__name__, "bold"), f" {program.what}"))
    console.print()
    code = Syntax("", "python", background_color="default").highlight(_source(program.function, on))
    code.rstrip()
    console.print(Padding(code, (0, 0, 0, 4)))
    console.print()
    _show_bar(console, "NumPy", comparison.numpy, longest, "blue", "")
    _show_bar(console, "anygpu", comparison.anygpu, longest, "green", verdict(comparison))
    console.print()
    for name, text in facts(comparison):
        console.print(Text.assemble(f"  {name:<12}", text), soft_wrap=True)


def verdict(comparison: DemoTimes) -> str:
    """The comparison in a few words: a ratio only where something other than NumPy ran, on a machine that was calm."""
    if comparison.device == "numpy":
        return "stayed on NumPy"
    if comparison.disturbed:
        return "no ratio: the machine is too busy"
    if comparison.ratio >= 1:
        return f"{_readable_ratio(comparison.ratio)} times as fast"
    return f"slower: {_readable_ratio(1 / comparison.ratio)} times NumPy's time"


def facts(comparison: DemoTimes) -> list[tuple[str, str]]:
    """Lines below the bars: a name and a sentence each."""
    stayed = comparison.device == "numpy"
    first = f"{readable_seconds(comparison.first)}"
    if comparison.since > 1:
        first += f"; call {comparison.since} was the first on {comparison.device}"
    if comparison.difference == 0:
        results = "equal to the last bit"
    elif comparison.agrees:
        results = f"agree; the largest relative difference is {comparison.difference:.0e}"
    else:
        results = f"DIFFER: the largest relative difference is {comparison.difference:.0e}"
    measured = f"{comparison.calls} {'call' if comparison.calls == 1 else 'calls'} of each in turn; medians"
    if comparison.lost is not None and comparison.lost > BUSY:
        measured += (
            f". The machine is busy: {comparison.lost:.0%} of the time was waiting, so times and ratio are doubtful"
        )
    return [
        ("ran on", f"NumPy: {comparison.reason}" if stayed else f"{comparison.device}: {comparison.reason}"),
        ("first call", first),
        ("results", results),
        ("measured", measured),
    ]


def show_end(console: Console, found: Sequence[DemoTimes]) -> None:
    """Prints the next step, and where to look if nothing was faster than NumPy."""
    console.print()
    if all(each.device == "numpy" for each in found):
        console.print(f"Nothing was faster than NumPy here. {PAGE}.html lists the reasons.", soft_wrap=True)
    console.print("What would a script of yours gain?  anygpu advise SCRIPT.py", markup=False, soft_wrap=True)


def _show_bar(console: Console, name: str, seconds: float, longest: float, style: str, after: str) -> None:
    """Prints a time with a bar as long as its share of the longest, and a remark after it."""
    length = max(1, round(BAR * seconds / longest)) if longest > 0 else 1
    bar = "█" * length + " " * (BAR - length) if after else "█" * length
    console.print(
        Text.assemble(f"  {name:<8}{readable_seconds(seconds):>9}  ", (bar, style), "  ", (after, "bold")),
        soft_wrap=True,
    )


def _source(function: Callable[..., Any], on: str | None) -> str:
    """The function as a user would write it, without our own remarks."""
    lines = [line.partition("  # type:")[0] for line in inspect.getsource(function).rstrip().splitlines()]
    decorator = "@ag.offload" if on is None else f"@ag.offload(on={on!r})".replace("'", '"')
    return "\n".join(["import anygpu as ag", "", decorator, *lines])


def _readable_ratio(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}"


# -- what is computed


def _is_settled(receipts: Sequence[Receipt]) -> bool:
    """Whether the last `SETTLED` calls ran on one device that is not NumPy."""
    last = {each.device for each in receipts[-SETTLED:]}
    return len(receipts) >= SETTLED and len(last) == 1 and last != {"numpy"}


def _since(receipts: Sequence[Receipt], device: str) -> int:
    """The number of the first call on the device."""
    return next(number for number, each in enumerate(receipts, 1) if each.device == device)


def _difference(wanted: Any, got: Any) -> tuple[float, bool]:
    """The largest relative difference, and whether it is only rounding in numbers of such a dtype.

    Infinite, and no rounding, for other shapes or dtypes.
    """
    one, other = np.asarray(wanted), np.asarray(got)
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf"), False
    if np.array_equal(one, other):
        return 0.0, True
    with np.errstate(all="ignore"):
        largest = float(np.max(np.abs(one - other) / np.maximum(np.abs(one), np.finfo(one.dtype).tiny)))
    return largest, largest <= ROUNDING[one.dtype.name]
