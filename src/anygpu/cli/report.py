"""`anygpu report`: writes down what a device computed otherwise than NumPy, for whoever can fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anygpu.errors import InvalidOption
from anygpu.placement.mismatches import Mismatch, kept


def report(
    number: Annotated[
        str | None, typer.Argument(metavar="ID", help="As the warning says it; the latest disagreement without.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; anygpu-report-ID.json without.")
    ] = None,
) -> None:
    """Write a report about a result that disagreed with NumPy.

    It has versions, the device, the program, the shapes and hashes of its inputs, and both values. It does not have
    the inputs themselves. The program holds the function's constants, and the names of its source files.
    """
    found = kept()
    if not found:
        print("No disagreement with NumPy is on record.")
        raise typer.Exit
    chosen = found[-1] if number is None else next((each for each in found if each.id == number), None)
    if chosen is None:
        known = ", ".join(each.id for each in found)
        raise InvalidOption(f"there is no disagreement {number!r} on record; there are {known}.")
    path = output or Path(f"anygpu-report-{chosen.id}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(chosen), indent=2) + b"\n")
    _show(chosen, path)


def _show(found: Mismatch, path: Path) -> None:
    print(f"{found.when}: {found.device} disagreed with NumPy on {found.task}: {found.sentence}.")
    print(f"Wrote {path}. Please attach it to an issue of anygpu.")
