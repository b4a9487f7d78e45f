"""Pictures of the placement grid, as SVG written by hand: nothing has to be installed, and text stays text.

Nothing is drawn behind the picture, and every colour stands out from white and from black. Devices differ in their
dashes as well as in their colours, which those who see fewer colours can tell apart too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.cells import Cell, Crossover, Grid, crossover, power_of_ten

#: How far predictions may be off to lie in the grey band.
BAND = 0.25
INK, FAINT, FRAME = "#7a7f87", "#8d939b", "#8a919a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Look(NamedTuple):
    colour: str
    dashes: str
    label: str


#: After Okabe and Ito, the light ones somewhat darker.
LOOKS = {
    "numpy": Look("#7a7f87", "", "NumPy"),
    "torch": Look("#d55e00", "7 3", "torch"),
    "jax": Look("#0a7fc4", "", "jax"),
    "webgpu": Look("#c0639a", "2 2.5", "webgpu"),
    "opencl": Look("#00926a", "9 2.5 2 2.5", "opencl"),
}
OTHERS = Look("#b08a00", "4 2", "")

COLUMNS = 5
PANEL_WIDTH, PANEL_HEIGHT = 244.0, 186.0
MARGIN, TOP = 14.0, 84.0
LEFT, RIGHT, ABOVE, BELOW = 42.0, 12.0, 30.0, 24.0


def look_of(device: str) -> Look:
    engine = device.partition(":")[0]
    return LOOKS.get(engine, OTHERS._replace(label=device))


class Scale(NamedTuple):
    """A logarithmic axis: values from `low` to `high` lie between the positions `begin` and `end`."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**exponent for exponent in range(first, last + 1)]


class Picture:
    """The elements of an SVG, in the order in which they are drawn."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(width)} {_number(height)}"'
            f' width="{_number(width)}" height="{_number(height)}" role="img" font-family="{FONT}" font-size="11">',
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
        ]

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        *,
        width: float = 1.0,
        dashes: str = "",
        fade: float = 1,
    ) -> None:
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{_number(width)}"'
            + (f' stroke-dasharray="{dashes}"' if dashes else "")
            + (f' stroke-opacity="{_number(fade)}"' if fade < 1 else "")
            + ' stroke-linejoin="round"/>'
        )

    def area(self, points: Iterable[tuple[float, float]], colour: str, fade: float) -> None:
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(f'<polygon points="{path}" fill="{colour}" fill-opacity="{_number(fade)}"/>')

    def dot(self, x: float, y: float, radius: float, colour: str, *, fade: float = 1.0, hint: str = "") -> None:
        told = f"<title>{escape(hint)}</title>" if hint else ""
        self._parts.append(
            f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}" fill="{colour}"'
            f' fill-opacity="{_number(fade)}">{told}</circle>'
        )

    def diamond(self, x: float, y: float, radius: float, colour: str, *, hint: str = "") -> None:
        told = f"<title>{escape(hint)}</title>" if hint else ""
        corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
        path = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
        self._parts.append(
            f'<polygon points="{path}" fill="none" stroke="{colour}" stroke-width="1.5">{told}</polygon>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = INK,
        size: float = 11,
        anchor: str = "start",
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        rotation = f' transform="rotate(-90 {_number(x)} {_number(y)})"' if turned else ""
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" fill="{colour}" font-size="{_number(size)}"'
            f' text-anchor="{anchor}"' + (' font-weight="600"' if bold else "") + f"{rotation}>{escape(words)}</text>"
        )

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def seconds_label(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size * 0.999:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def size_label(size: float) -> str:
    """A size as people say it: 34k, 1.2M."""
    for unit, amount in (("M", 1e6), ("k", 1e3)):
        if size >= amount * 0.995:
            return f"{size / amount:.2g}{unit}" if size / amount < 99.5 else f"{size / amount:.0f}{unit}"
    return f"{size:.0f}"


# -- time against size, a panel for each workload


def grid_picture(grid: Grid) -> str:
    """Time against size for every device, a panel for each workload; diamonds are where a device begins to win."""
    workloads = list(dict.fromkeys(cell.workload for cell in grid.cells))
    rows = math.ceil(len(workloads) / COLUMNS)
    columns = min(COLUMNS, max(3, len(workloads)))
    picture = Picture(
        2 * MARGIN + columns * PANEL_WIDTH,
        TOP + rows * PANEL_HEIGHT + MARGIN + 20,
        "Where each workload is fastest",
        "Seconds of a call against the number of elements, for each workload and device.",
    )
    _grid_legend(picture, grid)
    sizes = sorted({cell.size for cell in grid.cells})
    for number, workload in enumerate(workloads):
        x = MARGIN + number % COLUMNS * PANEL_WIDTH
        y = TOP + number // COLUMNS * PANEL_HEIGHT
        _panel(picture, x, y, [cell for cell in grid.cells if cell.workload == workload], sizes)
    machine = f"{grid.machine.processor}, {grid.machine.cores} cores, Python {grid.machine.python}"
    picture.text(MARGIN + 4, picture.height - 10, f"measured on {machine}", colour=FAINT, size=10)
    return str(picture)


def _grid_legend(picture: Picture, grid: Grid) -> None:
    picture.text(
        MARGIN + 4, 26, "Seconds of a call, NumPy arrays in and out, against the number of elements", size=15, bold=True
    )
    x, y = MARGIN + 6, 54.0
    for device in grid.devices:
        look = look_of(device)
        picture.line([(x, y), (x + 30, y)], look.colour, width=2, dashes=look.dashes)
        label = "NumPy called directly" if device == "numpy" else f"{look.label} only"
        picture.text(x + 36, y + 4, label, size=12)
        x += 58 + 6.6 * len(label)
    _automatic(picture, x + 6, y, LOOKS["jax"].colour, "")
    picture.text(x + 18, y + 4, "automatic, in the colour of what it chose", size=12)
    x += 286
    picture.diamond(x, y, 5, INK)
    picture.text(x + 11, y + 4, "from here on faster than NumPy", size=12)


def _automatic(picture: Picture, x: float, y: float, colour: str, hint: str) -> None:
    picture.dot(x, y, 4.2, colour, hint=hint)


def _panel(picture: Picture, x: float, y: float, cells: Sequence[Cell], sizes: Sequence[int]) -> None:
    lines = _lines(cells)
    seconds = [value for points in lines.values() for _, value in points]
    picture.text(x + 4, y + 18, cells[0].workload, size=12, bold=True)
    if not seconds:
        return
    low, high = 10 ** math.floor(math.log10(min(seconds))), 10 ** math.ceil(math.log10(max(seconds)))
    across = Scale(min(sizes), max(max(sizes), 2 * min(sizes)), x + LEFT, x + PANEL_WIDTH - RIGHT)
    up = Scale(low, max(high, 10 * low), y + PANEL_HEIGHT - BELOW, y + ABOVE)
    _axes(picture, across, up)
    for device, points in lines.items():
        look = look_of(device)
        drawn = [(across(size), up(value)) for size, value in points]
        if len(drawn) == 1:
            picture.dot(*drawn[0], 1.8, look.colour)
        picture.line(drawn, look.colour, width=2.0 if device == "numpy" else 1.5, dashes=look.dashes)
    crossings = [
        found for device in lines if device != "numpy" if (found := crossover(device, lines["numpy"], lines[device]))
    ]
    for found in crossings:
        if not found.from_the_start:
            hint = f"{look_of(found.device).label} is faster than NumPy from {size_label(found.size)} elements on"
            picture.diamond(across(found.size), up(found.seconds), 4.5, look_of(found.device).colour, hint=hint)
    for cell in cells:
        if cell.measured is not None and cell.measured.automatic is not None:
            automatic = cell.measured.automatic
            hint = f"{power_of_ten(cell.size)}: automatic on {automatic.device}, {automatic.timing.seconds:.3g} s"
            colour = look_of(automatic.device).colour
            _automatic(picture, across(cell.size), up(automatic.timing.seconds), colour, hint)
    _first_winner(picture, across.begin + 7, up.end + 14, crossings)


def _lines(cells: Sequence[Cell]) -> dict[str, list[tuple[float, float]]]:
    """Sizes and seconds for each device, NumPy first."""
    lines: dict[str, list[tuple[float, float]]] = {"numpy": []}
    for cell in cells:
        if cell.measured is None:
            continue
        lines["numpy"].append((cell.size, cell.measured.numpy.seconds))
        for fixed in cell.measured.fixed:
            if fixed.timing is not None:
                lines.setdefault(fixed.device, []).append((cell.size, fixed.timing.seconds))
    return lines


def _first_winner(picture: Picture, x: float, y: float, crossings: Sequence[Crossover]) -> None:
    """Where lines seldom are: which device is the first to be faster than NumPy, and from where on."""
    if not crossings:
        picture.text(x, y, "NumPy throughout", colour=FAINT, size=10.5)
        return
    first = min(crossings, key=lambda each: each.size)
    look = look_of(first.device)
    since = "throughout" if first.from_the_start else f"from {size_label(first.size)}"
    picture.text(x, y, f"{look.label} {since}", colour=look.colour, size=10.5, bold=True)


def _axes(picture: Picture, across: Scale, up: Scale) -> None:
    for value in across.decades():
        x = across(value)
        picture.line([(x, up.begin), (x, up.end)], FRAME, width=0.75, fade=0.22)
        picture.text(x, up.begin + 14, power_of_ten(round(value)), colour=FAINT, size=10, anchor="middle")
    decades = up.decades()
    every = 2 if len(decades) > 6 else 1
    for number, value in enumerate(decades):
        y = up(value)
        picture.line([(across.begin, y), (across.end, y)], FRAME, width=0.75, fade=0.22)
        if number % every == 0:
            picture.text(across.begin - 5, y + 3.5, seconds_label(value), colour=FAINT, size=10, anchor="end")
    picture.line([(across.begin, up.begin), (across.end, up.begin)], FRAME, width=1, fade=0.6)


# -- predicted against actual


def predictions_picture(grid: Grid) -> str:
    """What was predicted for a call against what it then took, a dot for each cell, with the band of the bound."""
    found = [
        (cell, prediction)
        for cell in grid.cells
        if cell.measured is not None and cell.measured.automatic is not None
        for prediction in [cell.measured.automatic.prediction]
        if prediction is not None
    ]
    side, left, top = 520.0, 66.0, 66.0
    picture = Picture(
        left + side + 24,
        top + side + 60,
        "Predicted against actual",
        "Seconds of a call, as predicted and as measured.",
    )
    picture.text(14, 26, "Seconds of a call: predicted against actual", size=15, bold=True)
    if not found:
        picture.text(14, 50, "no predictions in this run", size=12)
        return str(picture)
    values = [value for _, each in found for value in (each.predicted, each.actual)]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    across, up = Scale(low, high, left, left + side), Scale(low, high, top + side, top)
    inside = sum(each.error <= BAND for _, each in found)
    errors = sorted(each.error for _, each in found)
    x = 16.0
    for look in dict.fromkeys(look_of(each.device) for _, each in found):
        picture.dot(x, 46, 4.2, look.colour)
        picture.text(x + 9, 50, look.label, size=12)
        x += 34 + 7 * len(look.label)
    middle = f"median error {100 * errors[len(errors) // 2]:.0f} %"
    summary = f"{inside} of {len(found)} within ±{100 * BAND:.0f} %, {middle}"
    picture.text(left + 12, top + 20, summary, size=12)
    more, less = 1 + BAND, 1 - BAND
    band = [(low, low * more), (high / more, high), (high, high), (high, high * less), (low / less, low), (low, low)]
    picture.area([(across(a), up(b)) for a, b in band], FRAME, 0.2)
    for value in across.decades():
        picture.line([(across(value), up.begin), (across(value), up.end)], FRAME, width=0.75, fade=0.22)
        picture.line([(across.begin, up(value)), (across.end, up(value))], FRAME, width=0.75, fade=0.22)
        picture.text(across(value), up.begin + 17, seconds_label(value), colour=FAINT, size=11, anchor="middle")
        picture.text(across.begin - 7, up(value) + 4, seconds_label(value), colour=FAINT, size=11, anchor="end")
    picture.line([(across(low), up(low)), (across(high), up(high))], FRAME, width=1)
    for cell, each in found:
        hint = f"{cell.workload}, {power_of_ten(cell.size)}: predicted {each.predicted:.3g} s, took {each.actual:.3g} s"
        picture.dot(across(each.actual), up(each.predicted), 3.6, look_of(each.device).colour, fade=0.8, hint=hint)
    picture.text(left + side / 2, top + side + 42, "actual", size=12, anchor="middle")
    picture.text(14, top + side / 2, "predicted", size=12, anchor="middle", turned=True)
    return str(picture)
