"""One bar for each engine of this machine: how long a call of the same function takes there.

The scripts of the gallery end with this chart. It uses nothing but anygpu's public names, so you may copy it.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import anygpu as ag

ENGINES = ("numpy", "webgpu", "opencl", "torch", "jax")
#: Seconds in which all devices have to answer; a busy machine takes its time.
PROBING = 60.0

STYLE = Path(__file__).with_name("gallery.mplstyle")
FASTEST, OTHERS, SMALL_PRINT = "#0072B2", "#868686", "#4a4a4a"

#: Bars of a linear axis cannot be compared by eye beyond this.
LOGARITHMIC_FROM = 25
#: An engine is called until both are reached, but not more often than `MOST_CALLS`.
ENOUGH_CALLS, ENOUGH_SECONDS, MOST_CALLS = 3, 0.15, 12
#: Or until calls have taken this many seconds, however few they are.
TOO_LONG = 0.8

plt.style.use(STYLE)


@dataclass(frozen=True)
class Measured:
    """What calls took on one device. Without seconds it does not run there, and `refusal` says why."""

    #: The device's id, or an engine that has none here.
    device: str
    #: What computes there, in a few words.
    nature: str = ""
    #: The first call, which opens the device, records the function and compiles it.
    first: float | None = None
    best: float | None = None
    refusal: str | None = None


def engines_chart(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-3) -> Figure:
    """Call the function on every device, and draw what the calls took. The results have to agree with NumPy's."""
    plain = function.function if hasattr(function, "function") else function
    expected = plain(*arguments)
    devices = ag.devices(timeout=PROBING)
    rows = [measure(plain, arguments, device, expected, tolerance) for device in devices]
    rows += [missing(engine) for engine in ENGINES if engine not in {device.engine for device in devices}]
    return drawn(getattr(plain, "__name__", "the function"), rows, machine(devices))


def measure(
    function: Callable[..., Any], arguments: tuple[Any, ...], device: ag.Device, expected: Any, tolerance: float
) -> Measured:
    on_device: Callable[..., Any] = ag.offload(on=device.id, fallback="raise")(function)
    seconds: list[float] = []
    try:
        while len(seconds) <= MOST_CALLS:
            begin = time.perf_counter()
            value = on_device(*arguments)
            seconds.append(time.perf_counter() - begin)
            if len(seconds) == 1:
                check_agreement(device.id, value, expected, tolerance)
            after_first = sum(seconds[1:])
            if after_first > TOO_LONG or (len(seconds) > ENOUGH_CALLS and after_first > ENOUGH_SECONDS):
                break
    except ag.AnyGPUError as error:
        return Measured(device.id, nature(device), refusal=reason(device.engine, error))
    return Measured(device.id, nature(device), first=seconds[0], best=min(seconds[1:]))


def missing(engine: str) -> Measured:
    """An engine without a verified device."""
    try:
        ag.devices(on=engine, timeout=PROBING)
    except ag.DeviceUnavailable as error:
        return Measured(engine, refusal=reason(engine, error))
    return Measured(engine, refusal="it was not found at first")


def reason(engine: str, error: ag.AnyGPUError) -> str:
    """One line of an error, about this engine."""
    if isinstance(error, ag.DeviceUnavailable):
        told = [each.removeprefix(f"{engine}: ") for each in error.refusals if each.startswith(engine)]
        return told[0] if told else "no device of it was found. `anygpu doctor` says more."
    return str(error).split(". ")[0].splitlines()[0]


def check_agreement(device: str, value: Any, expected: Any, tolerance: float) -> None:
    """Engines add in different orders. One element in a thousand may be off, as at the edge of a fractal."""
    for ours, numpys in zip(leaves(value), leaves(expected), strict=True):
        scale = float(np.max(np.abs(numpys), initial=1e-30))
        close = np.isclose(ours, numpys, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if np.mean(close) < 0.999:
            raise AssertionError(f"{device} differs from NumPy in {1 - np.mean(close):.1%} of the elements")


def leaves(value: Any) -> Iterable[np.ndarray]:
    return [np.asarray(each) for each in (value if isinstance(value, tuple | list) else [value])]


# -- drawing


def drawn(name: str, rows: list[Measured], machine: str) -> Figure:
    """Fastest first. What a bar is about is written above it, so that bars have the whole width."""
    rows = sorted(rows, key=lambda row: row.best or float("inf"))
    times = [row.best for row in rows if row.best is not None]
    logarithmic = max(times) > LOGARITHMIC_FROM * min(times)
    figure, axes = plt.subplots(figsize=(4.7, 0.62 * len(rows) + 1.15))
    left = min(times) / 3 if logarithmic else 0.0
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlim(left, max(times) * (18 if logarithmic else 1.9))
    axes.set_ylim(len(rows) - 0.4, -0.75)
    for place, row in enumerate(rows):
        draw_row(axes, place, row, left)
    note = f"Best call after the first, copies included.{' Logarithmic.' if logarithmic else ''}\n{machine}"
    axes.set_title(f"{name}: time of one call", pad=8)
    axes.tick_params(axis="both", which="both", length=0, labelleft=False, labelbottom=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    figure.supxlabel(note, fontsize=10, color=SMALL_PRINT, x=0.02, ha="left", linespacing=1.35)
    return figure


def draw_row(axes: Axes, place: int, row: Measured, left: float) -> None:
    along = ("axes fraction", "data")
    label = axes.text(0, place - 0.38, row.device, transform=axes.get_yaxis_transform(), va="center", weight="bold")
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    axes.annotate(row.nature, (1, 0.5), (6, 0), label, **beside, fontsize=10, color=SMALL_PRINT)
    if row.best is None or row.first is None:
        reason = textwrap.fill(f"does not run there: {row.refusal}", 58, max_lines=2, placeholder=" …")
        axes.annotate(reason, (0, place), xycoords=along, va="center", fontsize=10, color=SMALL_PRINT)
        return
    axes.barh(place, row.best - left, left=left, height=0.36, color=FASTEST if place == 0 else OTHERS)
    weight = "bold" if place == 0 else "normal"
    axes.annotate(readable(row.best), (row.best, place), (4, 0), "data", **beside, weight=weight)
    first = f"first {readable(row.first)}"
    axes.annotate(first, (1, place), (0, 0), along, **beside, ha="right", fontsize=10, color=SMALL_PRINT)


def nature(device: ag.Device) -> str:
    """What computes there, in a few words."""
    if device.software:
        name = "PoCL" if "Portable Computing Language" in (device.driver or "") else device.name.split(" (")[0]
        return f"{name}, software on the CPU"
    if device.kind == "cpu":
        return "the CPU"
    return f"{device.name}, {device.api}"


def machine(devices: list[ag.Device]) -> str:
    """One line about what it was measured on."""
    cpu = next(device.name for device in devices if device.engine == "numpy")
    gpus = sorted({device.name for device in devices if device.kind == "gpu"})
    beside = "with " + ", ".join(gpus) if gpus else "no GPU"
    text = f"{cpu.replace('(R)', '').replace(' Processor', '')}, {os.cpu_count()} cores, {beside}."
    return textwrap.shorten(text, 60, placeholder=" …")


def readable(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.0f} µs"
