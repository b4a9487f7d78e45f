"""`anygpu verify`: tries a device of this machine against NumPy, and writes a record that can be sent to us."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from anygpu.cli.output_files import numbered, write_new, write_output
from anygpu.errors import AnyGPUError, DeviceUnavailable, InvalidOption
from anygpu.hardware.device import Device, parse_device
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require

if TYPE_CHECKING:
    from anygpu.verify.document import Record

#: What all checks of one device may take together.
SECONDS = 300.0
#: Time limit for finding devices: a machine that is about to be tried for minutes can wait for them.
FIND_SECONDS = 60.0


def verify(
    device: Annotated[
        str | None,
        typer.Argument(metavar="DEVICE", help="An id, an engine or a kind; the best device by default."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Verify every device of this machine, one after the other.")] = (
        False
    ),
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Time limit for each device; checks that did not run are listed.")
    ] = SECONDS,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CHECK", help="Run only this check; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Run one case of the check again: the seed that a finding names."),
    ] = None,
    programs: Annotated[int, typer.Option("--programs", min=0, help="Number of random programs to try.")] = 500,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="The file to write; anygpu-verify-DEVICE-DATE.json by default."),
    ] = None,
    no_file: Annotated[bool, typer.Option("--no-file", help="Write no file.")] = False,
) -> None:
    """Try a device of this machine: is every result what NumPy computes, and how fast is it?

    Takes five minutes. The outcome is a table and one JSON file without personal data: no names, paths or serial
    numbers. Attach it to an issue, and the device is listed among those that were seen.

    Exits with 0 if everything agrees, 1 if something differs, 2 if there is no such device.
    """
    try:
        names = tuple(name.strip() for each in only or () for name in each.split(","))
        if seed is not None and len(names) != 1:
            raise InvalidOption("--seed repeats one case of one check: name it, as in `--only programs --seed 7`.")
        if every and (device is not None or json is not None):
            raise InvalidOption(
                "--all verifies every device, each into a file of its own: leave out DEVICE and --json."
            )
        folder = Path() if json is None else json.parent
        if not no_file and not os.access(folder, os.W_OK):
            raise InvalidOption(
                f"{folder.absolute()} cannot be written to. Name another file with --json, or --no-file."
            )
        records = _verified(
            _devices(device, every), names, seconds, seed, programs, None if no_file else json or Path()
        )
    except AnyGPUError as error:
        sys.stderr.write(f"anygpu: {error}\n")
        raise typer.Exit(2) from None
    raise typer.Exit(0 if all(record.is_clean for record in records) else 1)


def _devices(wanted: str | None, every: bool) -> Sequence[Device]:
    from anygpu.engines.catalogue import catalogue
    from anygpu.workers.discovery import discover

    # One engine is enough where one is named: others may take long to load.
    engine = None if wanted is None else parse_device(wanted.lower()).engine
    entries = [entry for entry in catalogue() if entry.name == engine] or list(catalogue())
    with Console(stderr=True).status("Looking for devices …"):
        inventory = discover(timeout=FIND_SECONDS, entries=entries)
    found = require(inventory.devices, prefer(wanted), inventory.unavailable)
    if every:
        return found
    # NumPy is what devices are compared with, so without a name it is tried only where there is nothing else.
    return [next((each for each in found if each.engine != "numpy"), found[0])]


def _verified(
    devices: Sequence[Device],
    names: tuple[str, ...],
    seconds: float,
    number: int | None,
    programs: int,
    file: Path | None,
) -> list[Record]:
    """Verify them, and write a record each to `file`, which may be the folder for names of our own."""
    from anygpu.cli.verify_screen import Screen
    from anygpu.verify.checks import all_checks, chosen
    from anygpu.verify.verifying import verify_device

    checks = all_checks(programs) if number is None else all_checks(1, first=number)
    wanted = chosen(names, checks)
    records = []
    for device in devices:
        screen = Screen(Console(), Console(stderr=True), device, seconds)
        with screen:
            try:
                record = verify_device(device, wanted, screen, seconds=seconds, number=number)
            except DeviceUnavailable as error:
                raise DeviceUnavailable(f'on="{device.id}"', error.refusals, device=device.id) from None
        path = None if file is None else _written(record, file)
        screen.show(record, path)
        records.append(record)
        if any(check.ended == "interrupted" for check in record.checks):
            break
    return records


def _written(record: Record, file: Path) -> Path:
    if file.is_dir():
        name = f"anygpu-verify-{record.device.id.replace(':', '-')}-{record.date}.json"
        return write_new(numbered(file / name), record.to_json() + b"\n")
    write_output(file, record.to_json() + b"\n")
    return file
