"""`anygpu report`: writes a bug report about a result that differed from NumPy's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anygpu.base.printable import encode_json
from anygpu.cli.output_files import check_output, numbered, write_new, write_output
from anygpu.errors import InvalidOption
from anygpu.placement.mismatches import Mismatch, kept


def report(
    number: Annotated[
        str | None, typer.Argument(metavar="ID", help="The id in the warning; the latest mismatch by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; anygpu-report-ID.json by default.")
    ] = None,
) -> None:
    """Write a report about a result that differed from NumPy's.

    The report has versions, the device, the program, the shapes and hashes of its inputs, and both values, but not
    the inputs themselves. The program includes the function's constants and the names of its source files.
    """
    found = kept()
    if not found:
        print("No mismatch with NumPy is on record.")
        raise typer.Exit
    chosen = found[-1] if number is None else next((each for each in found if each.id == number), None)
    if chosen is None:
        known = ", ".join(each.id for each in found)
        raise InvalidOption(f"no mismatch {number!r} is on record; the ids on record are {known}.")
    content = msgspec.json.format(encode_json(chosen), indent=2) + b"\n"
    if output is not None:
        check_output(output, (), "--output")
        write_output(output, content)
        path = output
    else:
        path = write_new(numbered(Path(f"anygpu-report-{chosen.id}.json")), content)
    _show(chosen, path)


def _show(found: Mismatch, path: Path) -> None:
    print(f"{found.when}: {found.device} disagreed with NumPy on {found.task}: {found.sentence}.")
    print(f"Wrote {path}. Please attach it to an issue on anygpu's tracker.")
