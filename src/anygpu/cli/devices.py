"""`anygpu devices`: lists devices, what they are doing, and how fast they are.

With `--calibrate` devices are measured, or what is stored of them is shown; without, `output` prints the inventory or
the usage.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anygpu import api
from anygpu.base.units import readable_seconds
from anygpu.cli.output import Json, grid, print_json, show_inventory, show_usage, waiting, warn_of_old_name
from anygpu.errors import AnyGPUError, InvalidOption
from anygpu.hardware.device import Device
from anygpu.hardware.preference import prefer
from anygpu.hardware.selection import require
from anygpu.placement import calibrate as calibration
from anygpu.placement.plan.calibration import ARITHMETIC, Calibration, Transfer, assumed
from anygpu.placement.plan.microbenchmarks import LABELS
from anygpu.program.graph import OperationClass
from anygpu.workers.discovery import discover

ProbeSeconds = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.5,
        help="Time limit for probing, in seconds. A device that does not respond for 40 % of it counts as hung.",
    ),
]

#: A rate above this means that no copy is made.
_NOTHING_MOVES = 1e14


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `--json` prints."""

    schema: str = "anygpu.calibrations/1"
    calibrations: tuple[Calibration, ...]
    #: For each device that could not be measured: why.
    failures: dict[str, str] = {}
    #: Where they are kept.
    folder: str


def devices(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="DEVICE", help="With --calibrate: ids, engines or kinds; every device by default."),
    ] = None,
    json: Json = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Probe again, verify every dtype that a device claims, and show all its details."),
    ] = False,
    usage: Annotated[
        bool, typer.Option("--usage", help="Show load, memory, temperature, power and processes of each device.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure how fast each device is, so that calls are placed well.")
    ] = False,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="With --calibrate: time limit for each device, in seconds.")
    ] = calibration.SECONDS,
    show: Annotated[
        bool, typer.Option("--show", help="With --calibrate: show what is stored, without measuring.")
    ] = False,
    timeout: ProbeSeconds = api.PROBE_SECONDS,
) -> None:
    """List every compute device, each verified by a real computation.

    With --calibrate their speed is measured instead. Exits with 1 when a device could not be measured.
    """
    if calibrate:
        return calibrate_devices(names, json=json, seconds=seconds, show=show, timeout=timeout)
    if names or show:
        raise InvalidOption("DEVICE and --show go with --calibrate, as in `anygpu devices --calibrate --show`.")
    with waiting("Looking for devices"):
        inventory = discover(deep=deep, timeout=timeout)
    if usage:
        from anygpu.hardware.usage.reading import read_twice

        document = read_twice(inventory.devices, 0.5)
        if json:
            print_json(document.to_json())
        else:
            show_usage(Console(), document)
    elif json:
        print_json(inventory.to_json())
    else:
        show_inventory(Console(), inventory, deep=deep)


def calibrate(
    names: Annotated[list[str] | None, typer.Argument(metavar="DEVICE")] = None,
    json: Json = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1)] = calibration.SECONDS,
    show: Annotated[bool, typer.Option("--show")] = False,
    timeout: ProbeSeconds = api.PROBE_SECONDS,
) -> None:
    """The old name of `anygpu devices --calibrate`."""
    warn_of_old_name("calibrate", "devices --calibrate")
    calibrate_devices(names, json=json, seconds=seconds, show=show, timeout=timeout)


def calibrate_devices(names: list[str] | None, *, json: bool, seconds: float, show: bool, timeout: float) -> None:
    """Measures these devices, or shows what is stored of them. Exits with 1 when one could not be measured.

    `names` are ids, engines or kinds; all devices by default. An error of one device does not end the others' turn.
    """
    with waiting("Looking for devices"):
        inventory = discover(timeout=timeout)
    chosen = require(inventory.devices, prefer(names or None), inventory.unavailable)
    found: dict[str, Calibration] = {}
    failures: dict[str, str] = {}
    for device in chosen:
        if show:
            found[device.id] = calibration.recalled(device) or assumed(device)
            continue
        with waiting(f"Calibrating {device}"):
            try:
                found[device.id] = _measured(device, seconds)
            except AnyGPUError as error:
                failures[device.id] = str(error)
    folder = str(calibration.calibration_folder())
    if json:
        document = Calibrated(calibrations=tuple(found.values()), failures=failures, folder=folder)
        print_json(msgspec.json.encode(document))
    else:
        _show_all(Console(), chosen, found, failures)
        kept = "The measurements were saved in" if found and not show else "Measurements are saved in"
        Console().print(Text(f"{kept} {folder}.", style="dim"), soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _measured(device: Device, seconds: float) -> Calibration:
    """Opens a worker for the device, measures it and stores the result; the time to open it is part of that."""
    from anygpu.engines.catalogue import entry_of
    from anygpu.workers.worker import open_worker

    begin = time.perf_counter()
    worker = open_worker(entry_of(device.id), device)
    try:
        result = calibration.calibrate(worker, seconds=seconds, opening=time.perf_counter() - begin)
        calibration.remember(result, device, isolation=worker.isolation)
    finally:
        worker.close()
    return result


def _show_all(
    console: Console, devices: Sequence[Device], found: dict[str, Calibration], failures: dict[str, str]
) -> None:
    """Prints each device with its calibration, or with the error that prevented one."""
    for device in devices:
        console.print(Text.assemble((device.id, "bold"), f"  {device.name}, through {device.api}"))
        if device.id in failures:
            console.print(Padding(Text(failures[device.id], style="red"), (0, 0, 1, 2)))
        else:
            _show(console, found[device.id])


def _show(console: Console, calibration: Calibration) -> None:
    """Prints the calibration of one device: overheads, transfers and a table of rates.

    Rates that were derived from others are marked, and so are measurements on a busy machine.
    """
    if calibration.source == "assumed":
        console.print(Padding(Text("not measured yet: assumed from its kind", style="yellow"), (0, 0, 0, 2)))
    elif calibration.disturbed:
        text = "measured on a busy machine: run `anygpu devices --calibrate` again when it is calm"
        console.print(Padding(Text(text, style="yellow"), (0, 0, 0, 2)))
    facts = grid(2)
    facts.add_row("a call", f"at least {readable_seconds(calibration.launch)}")
    fused = "; adjacent operations are fused" if calibration.fuses else ""
    facts.add_row(
        "each further kernel" if calibration.fuses else "each further operation", f"{_short(calibration.kernel)}{fused}"
    )
    facts.add_row("to the device", _way(calibration.write))
    facts.add_row("to the host", _way(calibration.read))
    facts.add_row("64-bit numbers", f"{calibration.wide:.1f} times slower")
    facts.add_row("compiling a kernel", readable_seconds(calibration.compile) if calibration.compile else "nothing")
    if (native := calibration.native) is not None:
        loops = f"{_number(native.instruction * 1e9)} ns for an instruction, {_number(native.threads)} times as fast on"
        loops += (
            f" all threads, {_number(native.bytes_per_second / 1e9)} GB/s; the table is what NumPy does for the rest"
        )
        facts.add_row("loops of native code", loops)
    facts.add_row("opening it", readable_seconds(calibration.open) if calibration.open else "nothing")
    console.print(Padding(facts, (0, 0, 0, 2)))
    rates = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    rates.add_column("", no_wrap=True)
    rates.add_column("few", justify="right")
    rates.add_column("many", justify="right")
    rates.add_column("", overflow="fold")
    for kind, words in LABELS.items():
        curve = calibration.rates.get(kind)
        if curve is None:
            continue
        is_guess = calibration.source == "measured" and kind not in calibration.measured
        speeds = [_speed(kind, amount / seconds) for amount, seconds in (curve.points[0], curve.points[-1])]
        rates.add_row(words, *speeds, Text("derived from the others", style="dim") if is_guess else "")
    console.print(Padding(rates, (0, 0, 1, 2)))


def _way(transfer: Transfer) -> str:
    """A direction of transfer in words: its rate and its latency, or that nothing is copied."""
    if transfer.bytes_per_second > _NOTHING_MOVES:
        return "no copy needed"
    return f"{_number(transfer.bytes_per_second / 1e9)} GB/s after {_short(transfer.latency)}"


def _speed(kind: OperationClass, per_second: float) -> str:
    """A rate with its unit: operations for arithmetic, bytes for everything else."""
    unit = "Gop/s" if kind in ARITHMETIC else "GB/s"
    return f"{_number(per_second / 1e9)} {unit}"


def _short(seconds: float) -> str:
    """Kernels may take less than a microsecond."""
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-5 else readable_seconds(seconds)


def _number(value: float) -> str:
    """With about three digits, and never as a power of ten."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else f"{value:.4f}"
