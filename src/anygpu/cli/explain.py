"""`anygpu explain`: where a function would run with such arguments, and why; with --run, what happens when it does.

First what was typed becomes values, then the calls with our warnings as sentences, then the plan and the receipts are
printed. `Explanation` is the document of `--json`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from anygpu import api
from anygpu.base.printable import encode_json
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.cli.output import find_function, grid
from anygpu.errors import DeviceFallback, HostFallback, InvalidOption
from anygpu.placement.plan.plan import Candidate, Plan, shortened
from anygpu.receipts.receipt import Receipt

SCHEMA = "anygpu.explain/1"

#: Every run of the command uses the same arrays, so that its outputs can be compared.
_SEED = 0
#: Random integers are below this: every integer dtype holds them, and they are valid indices into most arrays.
_BELOW = 10
#: How long to wait for background trials, in seconds.
_PATIENCE = 120.0

_ARRAY = re.compile(r"(?P<dtype>[A-Za-z_]\w*)\[(?P<shape>[^\]]*)\]")
_EXAMPLE = 'anygpu explain mymodule:score --args "float32[1000,1000]" weights.npy 0.5'


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `--json` prints."""

    schema: str = SCHEMA
    #: Before any call.
    plan: Plan
    #: Receipts of the calls that `--run` asked for, in order.
    receipts: tuple[Receipt, ...] = ()
    #: The plan after these calls; `None` when there were none.
    afterwards: Plan | None = None

    def to_json(self) -> bytes:
        """The document in UTF-8, on one line."""
        return encode_json(self)


def explain(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="The function; its module may be in the current folder.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT",
            help="float32[1000,1000] makes a random array, data.npy is loaded, numbers are numbers, and "
            "anything else is a string.",
        ),
    ] = None,
    args: Annotated[bool, typer.Option("--args", help="The function's arguments follow.")] = False,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NAME[,NAME]", help="Devices, engines or kinds, in order.")
    ] = None,
    fallback: Annotated[
        str | None, typer.Option(metavar="raise|warn|allow", help="What to do if none of these devices can run it.")
    ] = None,
    precision: Annotated[str | None, typer.Option(metavar="float32", help="Narrow 64-bit numbers to 32 bits.")] = None,
    run: Annotated[
        int, typer.Option("--run", min=0, metavar="N", help="Also call the function N times, and show the receipts.")
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON with a stable, documented schema.")] = False,
) -> None:
    """Show where a function would run, and why, with the prediction or refusal of every other device.

    Without --run nothing is computed, but the function is called once with abstract arrays, to trace it.
    """
    found = find_function(function, _EXAMPLE)
    generator = np.random.default_rng(_SEED)
    values = [_value(text, generator) for text in arguments or ()]
    options = _checked(on, fallback, precision)
    console = Console(stderr=True)
    receipts: list[Receipt] = []
    afterwards: Plan | None = None
    with _plainly_warned(console):
        with console.status("Looking at the function and the devices …"):
            plan = api.explain(found, *values, **options)
        if not json:
            show_plan(Console(), plan)
        for number in range(1, run + 1):
            with console.status(f"Call {number} of {run} …"):
                receipt = api.run(found, *values, **options).receipt
                _settle(console)
            receipts.append(receipt)
            if not json:
                _show_receipt(Console(), receipt, number)
        if run:
            with console.status("Looking at the plan again …"):
                afterwards = api.explain(found, *values, **options)
    if json:
        document = Explanation(plan=plan, receipts=tuple(receipts), afterwards=afterwards)
        sys.stdout.write(document.to_json().decode() + "\n")
    elif afterwards is not None:
        out = Console()
        out.print(Text(f"\nAfter {run} {'call' if run == 1 else 'calls'}:", style="dim"))
        show_plan(out, afterwards)


# -- what was typed


def _checked(on: str | None, fallback: str | None, precision: str | None) -> dict[str, Any]:
    """The options as `anygpu.explain` takes them. Raises `typer.BadParameter` for one that makes no sense."""
    from anygpu.calls.options import options

    given: dict[str, Any] = {
        "on": None if on is None else on.split(","),
        "fallback": fallback,
        "precision": precision,
    }
    try:
        options(**given)
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None
    return given


def _value(text: str, generator: np.random.Generator) -> Any:
    """The value of an argument on the command line: a random array, a .npy file, a number or a word.

    Raises `typer.BadParameter` for an array or file that cannot be made, and for a word that looks like an option.
    """
    array = _ARRAY.fullmatch(text)
    if array is not None:
        return _random(text, array["dtype"], array["shape"], generator)
    if text.endswith(".npy"):
        return _loaded(text)
    for number in (int, float, complex):
        try:
            return number(text)
        except ValueError:
            continue
    if text.startswith("-"):
        _wrong("ARGUMENT", f"{text!r} is neither an option nor a number")
    return text


def _random(text: str, name: str, shape_text: str, generator: np.random.Generator) -> Any:
    """An array of random numbers for a text such as `float32[100,100]`."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        _wrong("ARGUMENT", f"{text!r}: {name!r} is not a NumPy dtype")
    try:
        lengths = shape_text.strip().removesuffix(",")
        shape = tuple(int(length) for length in lengths.split(",")) if lengths else ()
    except ValueError:
        _wrong("ARGUMENT", f"{text!r}: a shape is integers separated by commas")
    if any(length < 0 for length in shape):
        _wrong("ARGUMENT", f"{text!r}: lengths cannot be negative")
    try:
        match dtype.kind:
            case "f":
                # Between 0 and 1, so that roots and logarithms have values.
                return generator.random(shape, np.float32 if dtype.itemsize <= 4 else np.float64).astype(dtype)
            case "c":
                return (generator.random(shape) + 1j * generator.random(shape)).astype(dtype)
            case "i" | "u":
                return generator.integers(0, _BELOW, shape).astype(dtype)
            case "b":
                return generator.integers(0, 2, shape).astype(dtype)
    except (MemoryError, OverflowError, ValueError):
        _wrong("ARGUMENT", f"{text!r} is larger than this machine's memory")
    _wrong("ARGUMENT", f"{text!r}: cannot make random {dtype.name} arrays; save one with numpy.save and pass the file")


def _loaded(text: str) -> Any:
    """The array in a .npy file. Pickles are refused: loading one runs code from the file."""
    try:
        # Pickles are refused: loading one runs code from the file.
        return np.load(text, allow_pickle=False)
    except FileNotFoundError:
        _wrong("ARGUMENT", f"there is no file {text!r} in {Path.cwd()}")
    except (OSError, ValueError, EOFError) as error:
        _wrong("ARGUMENT", f"{text!r} cannot be loaded: {error}")


def _wrong(what: str, why: str) -> NoReturn:
    """Raises `typer.BadParameter` with the reason and an example of the command."""
    raise typer.BadParameter(f"{why}. For example: {_EXAMPLE}", param_hint=what)


# -- what happens meanwhile


@contextmanager
def _plainly_warned(console: Console) -> Iterator[None]:
    """Print our own warnings as sentences: they name the user's line, and here there is none."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, DeviceFallback | HostFallback):
                console.print(Text.assemble(("Warning: ", "bold yellow"), str(message)), soft_wrap=True)
            else:
                show(message, category, *where, **more)

        warnings.showwarning = say
        yield


def _settle(console: Console) -> None:
    """Waits for trials in the background, so that the next receipt knows their outcome; `_PATIENCE` seconds at most."""
    from anygpu.placement.planner import default

    if not default().settle(_PATIENCE):
        console.print(Text(f"Background trials did not finish within {_PATIENCE:g} s.", style="yellow"))


# -- what is shown


def show_plan(console: Console, plan: Plan) -> None:
    """Print a plan: where the call would run, and the time of each candidate with its reason."""
    heading = Text.assemble((plan.task, "bold"), " would run on ", (plan.chosen, "bold green"), f": {plan.reason}")
    console.print(heading)
    if plan.bytes_in is not None and plan.bytes_out is not None:
        what = (
            f"Its program does {plan.flops:,} arithmetic operations on {readable_bytes(plan.bytes_in)} of inputs and "
            f"returns {readable_bytes(plan.bytes_out)}."
        )
        console.print(Text(what, style="dim"))
    if plan.not_recorded is not None:
        console.print(Text(f"It could not be traced: {plan.not_recorded}.", style="yellow"))
    console.print()
    _show_rows(console, plan.candidates, plan)
    if plan.nests is not None:
        console.print()
        # As it is: it is read as code.
        console.print(Text("\n".join(shortened(plan.nests)), style="dim"), soft_wrap=True)


def _show_rows(console: Console, candidates: Sequence[Candidate], plan: Plan) -> None:
    """Prints each candidate with its time and reason, the chosen one marked, and then each refusal."""
    table = grid(4, right=2)
    for each in candidates:
        mark = Text("→", "green") if each.device == plan.chosen else Text(" ")
        table.add_row(mark, each.device, readable_seconds(each.seconds), Text(_in_words(each)))
        table.add_row("", "", "", Text(_sentence(each.sentence), style="dim"))
    for refused in plan.refused:
        table.add_row(Text("✗", "red"), refused.device, "", Text(refused.sentence))
    console.print(Padding(table, (0, 0, 0, 2)))


def _in_words(candidate: Candidate) -> str:
    """What a candidate's time is based on, its phases and its memory, on one line."""
    parts: list[str] = [candidate.basis]
    if candidate.phases is not None and candidate.basis != "measured":
        parts.append(str(candidate.phases))
    if candidate.peak_bytes is not None:
        parts.append(f"at most {readable_bytes(candidate.peak_bytes)} of memory")
    if candidate.how is not None:
        parts.append(candidate.how)
    return " · ".join(parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _show_receipt(console: Console, receipt: Receipt, number: int) -> None:
    """Prints a receipt as one line that is not wrapped, so that it can be searched and copied."""
    # Not wrapped by us: a receipt is one line, to be searched and copied.
    console.print(Text.assemble("\n" if number == 1 else "", (f"{number}. ", "dim"), str(receipt)), soft_wrap=True)
