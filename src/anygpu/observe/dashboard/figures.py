"""The figures of the page, without data: the same for every browser, so Bokeh makes and writes them once.

What Bokeh takes for eleven figures, a good part of a second, is over before a browser asks. The script of the page puts
the columns of its session into their sources, and sets their ranges and marks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure

from anygpu.observe.dashboard.panels import GREY

#: How the values of lines read.
_LINES = {
    "rate": "0,0",
    "load": "0%",
    "utilisation": "0%",
    "memory": "0 ib",
    "temperature": "0",
    "power": "0",
    "waiting": "0,0",
    "batches": "0.0",
}
#: Figures whose axis has a fixed top.
_FULL = {"load": 1.0, "utilisation": 1.0}
_BLOCKS = ("left", "right", "bottom", "middle", "top", "line", "waited", "run", "move", "wait",
           "colour", "function", "where", "calls")  # fmt: skip

#: Marks on an axis of seconds: 1 ns, 10 ns … 100 s.
_SECONDS = {10.0 ** (power - 9): f"{10 ** (power % 3)} {('ns', 'µs', 'ms', 's')[power // 3]}" for power in range(12)}


@functools.cache
def figures() -> bytes:
    """All of them, as JSON: Bokeh's document, and which root belongs into which element of the page."""
    document = Document()
    window = Range1d(-30, 0, name="window")
    plots = [_timeline(window), *(_lines(name, form, window) for name, form in _LINES.items())]
    # All at once: with each root that is added alone, Bokeh looks at all models again.
    with document.models.freeze():
        for plot in (*plots, _owners(window), _predictions()):
            document.add_root(plot)
    document.title = "anygpu"
    roots = {root.id: f"plot-{root.name}" for root in document.roots}
    return json.dumps({"document": document.to_json(deferred=False), "roots": roots}).encode()


def _timeline(window: Range1d) -> Any:
    source = _source("timeline", _BLOCKS)
    plot = _figure(
        "timeline",
        x_range=window,
        y_range=Range1d(0, 1, name="row range"),
        tools="xpan,xwheel_zoom",
        active_scroll="xwheel_zoom",
        lod_threshold=None,
    )
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        _tick(axis, [], [])
    plot.yaxis[0].name = "row axis"
    plot.ygrid[0].update(name="row grid", ticker=FixedTicker(ticks=[]))
    plot.segment("waited", "line", "left", "line", source=source, color="colour", line_width=2, line_alpha=0.45)
    run = plot.quad("left", "right", "middle", "bottom", source=source, color="colour", line_width=0)
    move = plot.quad("left", "right", "top", "middle", source=source, color="colour", line_width=0, alpha=0.4)
    said = [("", "@function"), ("", "@where"), ("", "@calls"), ("run", "@run{0.000} ms"),
            ("moves", "@move{0.000} ms"), ("waiting", "@wait{0.000} ms")]  # fmt: skip
    plot.add_tools(HoverTool(renderers=[run, move], tooltips=said, mode="mouse"))
    return plot


def _lines(name: str, form: str, window: Range1d) -> Any:
    source = _source(name, ("xs", "ys", "colour", "name"))
    top = {"end": _FULL[name] * 1.02} if name in _FULL else {}
    plot = _figure(name, x_range=window, tools="")
    _tick(plot.xaxis[0], [], [])
    plot.y_range.update(start=0, range_padding=0.15, only_visible=False, **top)
    _format(plot.yaxis[0], form)
    plot.multi_line("xs", "ys", source=source, line_color="colour", line_width=2, line_join="round")
    return plot


def _owners(window: Range1d) -> Any:
    source = _source("owners", ("xs", "ys", "colour", "name"))
    plot = _figure("owners", x_range=window, tools="")
    _tick(plot.xaxis[0], [], [])
    plot.y_range.update(start=0, range_padding=0.15)
    _format(plot.yaxis[0], "0 ib")
    areas = plot.patches("xs", "ys", source=source, color="colour", fill_alpha=0.75, line_width=0)
    plot.add_tools(HoverTool(renderers=[areas], tooltips=[("", "@name")]))
    return plot


def _predictions() -> Any:
    source = _source("predictions", ("predicted", "actual", "colour", "function", "device"))
    plot = _figure(
        "predictions",
        x_range=Range1d(1e-6, 1.0, name="predicted"),
        y_range=Range1d(1e-6, 1.0, name="actual"),
        x_axis_type="log",
        y_axis_type="log",
        x_axis_label="predicted",
        y_axis_label="actual",
        tools="",
    )
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        _tick(axis, list(_SECONDS), list(_SECONDS.values()))
    plot.xgrid.visible = True
    ends = [min(_SECONDS), max(_SECONDS)]
    plot.line(ends, ends, color=GREY, line_dash="dashed", line_width=1.5)
    dots = plot.scatter("predicted", "actual", source=source, color="colour", size=6, fill_alpha=0.55, line_width=0)
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@function"), ("", "@device")]))
    return plot


def _source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=f"{name} data")


def _figure(name: str, **options: Any) -> Any:
    plot = figure(name=name, sizing_mode="stretch_both", toolbar_location=None, min_border=4, **options)
    # Colours are those of the style sheet, which knows whether it is dark.
    plot.update(background_fill_color=None, border_fill_color=None, outline_line_color=None)
    for axis in (plot.xaxis[0], plot.yaxis[0]):
        axis.update(minor_tick_line_color=None, axis_line_color=None, major_tick_line_color=None)
        axis.update(major_label_text_font_size="11px", axis_label_text_font_size="11px")
        axis.update(axis_label_text_font_style="normal")
    plot.xgrid.visible = False
    return plot


def _tick(axis: Any, where: Sequence[float], names: Sequence[str]) -> None:
    axis.update(ticker=FixedTicker(ticks=list(where)), major_label_overrides=dict(zip(where, names, strict=True)))


def _format(axis: Any, form: str) -> None:
    axis.formatter = NumeralTickFormatter(format=form)
    if form.endswith("ib"):
        # At 1, 2, 4 … of each unit.
        axis.ticker = AdaptiveTicker(base=1024, mantissas=[1 << power for power in range(10)], desired_num_ticks=4)
    else:
        axis.ticker.desired_num_ticks = 4
