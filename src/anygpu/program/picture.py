"""A program as a drawing: a self-contained SVG, from the inputs at the top to the results at the bottom.

On paper of its own it follows the reader's system, light or dark; inside of a notebook it follows the notebook's theme.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from anygpu.base.printable import printable
from anygpu.program.graph import Program, constant_text, line_of, value_names
from anygpu.program.layering import Arrangement, DrawnCurve, Item, Place, arrange
from anygpu.program.primitives import Broadcast, Constant, Input, OperationClass

#: A drawing of more nodes cannot be read, and the text can.
MOST_NODES = 300

#: The class of a drawing inside of another page, which does not get the looks of one with paper.
_INSIDE = "anygpu-graph"

_MARGIN = 28
_WIDEST_TEXT = 34
_TITLE_HEIGHT = 46
_LEGEND_HEIGHT = 34

_CLASS_COLOURS: dict[OperationClass, str] = {
    "creation": "#b59b7c",
    "elementwise": "#3b82c4",
    "transcendental": "#8b5cf6",
    "reduce": "#e08a00",
    "scan": "#b8a100",
    "movement": "#7c8894",
    "contraction": "#dc4446",
    "indexing": "#12a594",
    "sort": "#d6409f",
    "fourier": "#5b5bd6",
    "linear": "#ad5c2c",
}

#: Class of the drawing, then its looks on light and on dark paper.
_LOOKS: tuple[tuple[str, str, str], ...] = (
    ("paper", "fill:#fcfcfb", "fill:#0f1318"),
    ("box", "fill:#fff;stroke:#cbd2d9", "fill:#181e26;stroke:#3a444f"),
    ("input", "fill:#e3effd;stroke:#2f74c0", "fill:#122b48;stroke:#5ca0ea"),
    ("result", "fill:#e0f5e6;stroke:#23894a", "fill:#10301d;stroke:#46b56f"),
    ("ink", "fill:#1c2127", "fill:#e8edf2"),
    ("soft", "fill:#5d6873", "fill:#97a3af"),
    ("edge", "stroke:#8d99a6", "stroke:#6b7886"),
    ("tip", "fill:#8d99a6", "fill:#6b7886"),
)
#: Inside of another page: whatever the paper is, its ink is seen on it. The class, and its looks.
_INSIDE_LOOKS: tuple[tuple[str, str], ...] = (
    ("box", "fill:currentColor;fill-opacity:.05;stroke:currentColor;stroke-opacity:.45"),
    ("input", "fill:#2f74c0;fill-opacity:.16;stroke:#3b82c4"),
    ("result", "fill:#23894a;fill-opacity:.18;stroke:#2f9457"),
    ("ink", "fill:currentColor"),
    ("soft", "fill:currentColor;fill-opacity:.75"),
    ("edge", "stroke:currentColor;stroke-opacity:.55"),
    ("tip", "fill:currentColor;fill-opacity:.55"),
)
_FONTS = (
    ".anygpu text{font-family:ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
    "font-size:11.5px}"
    ".anygpu .name{font-size:13.5px;font-weight:600}"
    ".anygpu .heading{font-size:17px;font-weight:600}"
    ".anygpu .spec{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11px}"
    ".anygpu .box,.anygpu .input,.anygpu .result{stroke-width:1.2}"
    ".anygpu .view{stroke-dasharray:4 3}"
    ".anygpu .edge{fill:none;stroke-width:1.3}"
)


class _Label(NamedTuple):
    """The text of a box."""

    name: str
    #: The value's name in the text form.
    number: str
    attributes: str
    spec: str
    hint: str
    #: "input", "result" or "box", and more classes.
    looks: str
    colour: str | None
    sources: tuple[int, ...]
    floating: bool

    @property
    def width(self) -> float:
        first = 7.9 * len(self.name) + (6.6 * len(self.number) + 12 if self.number else 0)
        return max(64.0, 30 + max(first, 6.3 * len(self.attributes), 6.7 * len(self.spec)))

    @property
    def height(self) -> float:
        return 26.0 + 15 * bool(self.attributes) + 15 * bool(self.spec)


def to_svg(program: Program, name: str | None = None, *, inside: bool = False) -> str:
    """The drawing. Of more than `MOST_NODES` nodes the first are drawn, with a note that says so.

    With `inside` it is for a page that has a theme: it has no paper of its own, and its ink is the text's.
    """
    labels = _labels(program)
    plan = arrange([Item(label.width, label.height, label.sources, label.floating) for label in labels])
    kinds = _kinds(program)
    heading, facts, note = _clipped(name or "program", 60), _facts(program), _note(program)
    spoken = _safe(f"{name or 'program'}: {facts}")
    legend_width = sum(_legend_step(kind) for kind in kinds)
    width = max(plan.width, legend_width, 9.5 * len(heading), 6.4 * max(len(facts), len(note))) + 2 * _MARGIN
    top = _MARGIN + _TITLE_HEIGHT
    height = top + plan.height + _LEGEND_HEIGHT + (22 if note else 0) + _MARGIN
    shift = (width - plan.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{_INSIDE if inside else "anygpu"}" role="img"'
        f' width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" aria-label="{spoken}">',
        f"<style>{_style_inside() if inside else _style()}</style>",
        "" if inside else f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        _text(_MARGIN, _MARGIN + 14, heading, "heading ink"),
        _text(_MARGIN, _MARGIN + 33, facts, "soft"),
        f'<g transform="translate({shift:.1f} {top})">',
        *_edges(plan),
        *(_box(label, place) for label, place in zip(labels, plan.places, strict=True)),
        "</g>",
        *_legend(kinds, top + plan.height + _LEGEND_HEIGHT),
    ]
    if note:
        parts.append(_text(_MARGIN, height - _MARGIN + 6, note, "ink"))
    parts.append("</svg>")
    return "\n".join(parts)


def _labels(program: Program) -> list[_Label]:
    """The boxes of a drawing, in the order of the nodes: inputs, operations, constants that stand alone, and results.

    Constants that are only broadcast are folded into their users. Nodes beyond `MOST_NODES` are left out, and every
    text is clipped to the width of a box; the whole of it is in the hint that a browser shows.
    """
    names = value_names(program)
    drawn: dict[int, int] = {}
    floating: list[bool] = []
    labels: list[_Label] = []
    hidden = _folded(program)
    for position, (op, inputs) in enumerate(program.nodes[:MOST_NODES]):
        floating.append(not isinstance(op, Input) and all(floating[source] for source in inputs))
        if position in hidden:
            continue
        drawn[position] = len(labels)
        spec = str(program.specs[position])
        looks, attributes, number = "box", op.details([program.specs[source] for source in inputs]), names[position]
        title, sources = op.label, tuple(drawn[source] for source in inputs if source in drawn)
        if isinstance(op, Input):
            looks, title, number = "input", names[position], ""
        elif isinstance(op, Constant):
            looks, title = "box view", constant_text(op)
        elif isinstance(op, Broadcast) and inputs[0] in hidden:
            looks, title, attributes = "box view", constant_text(hidden[inputs[0]]), ""
        elif op.is_view:
            looks = "box view"
        hint = " ".join(part for part in (f"{names[position]} = {title}", attributes, ":", spec) if part)
        if line_of(program, position):
            hint += f"  ({line_of(program, position)})"
        colour = _CLASS_COLOURS.get(op.operation_class)
        title, attributes, spec = _clipped(title), _clipped(attributes), _clipped(spec)
        labels.append(_Label(title, number, attributes, spec, hint, looks, colour, sources, floating[position]))
    for number_of_result, output in enumerate(program.outputs):
        if output in drawn:
            title = "return" if len(program.outputs) == 1 else f"return {number_of_result}"
            labels.append(_Label(title, "", "", "", title, "result", None, (drawn[output],), False))
    return labels


def _folded(program: Program) -> dict[int, Constant]:
    """Scalars that are only there to be repeated: they are drawn together with the repetition."""
    scalars: dict[int, Constant] = {}
    used = set(program.outputs)
    for position, (op, inputs) in enumerate(program.nodes[:MOST_NODES]):
        if isinstance(op, Constant) and op.shape == ():
            scalars[position] = op
        if not isinstance(op, Broadcast):
            used.update(inputs)
    return {position: op for position, op in scalars.items() if position not in used}


def _edges(plan: Arrangement) -> list[str]:
    """One path for all lines of a value, then its arrow heads."""
    parts = []
    for curves in plan.curves:
        if curves:
            parts.append(f'<path class="edge" d="{"".join(map(_path, curves))}"/>')
            tips = "".join(f"M{c.x1:.1f} {c.y1:.1f}l-4 -7h8z" for c in curves if c.arrives)
            if tips:
                parts.append(f'<path class="tip" d="{tips}"/>')
    return parts


def _path(curve: DrawnCurve) -> str:
    """The SVG path of a line between two boxes: straight down, a bend between two rails, and straight down again."""
    x0, y0, bend0, bend1, x1, y1, arrives = curve
    middle = (bend0 + bend1) / 2
    stop = y1 - 5 if arrives else y1  # under the arrow head
    return (
        f"M{x0:.1f} {y0:.1f}V{bend0:.1f}"
        f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {min(bend1, stop):.1f}V{stop:.1f}"
    )


def _box(label: _Label, place: Place) -> str:
    """One box as SVG: outline, a stripe in the colour of its class, name, number, attributes and spec, with a hint."""
    width, height = label.width, label.height
    left, y = place.x - width / 2, place.y
    parts = [f"<g><title>{_safe(label.hint)}</title>", _outline(label, left, y)]
    centred = label.looks != "box" and not label.number
    if label.colour and not centred:
        parts.append(
            f'<rect x="{left + 5:.1f}" y="{y + 6:.1f}" width="3.5" height="{height - 12:.1f}" rx="1.7"'
            f' fill="{label.colour}"/>'
        )
    x, anchor = (place.x, "middle") if centred else (left + 15, "start")
    baseline = y + 18
    parts.append(_text(x, baseline, label.name, "name ink", anchor))
    if label.number:
        parts.append(_text(left + width - 9, baseline, label.number, "soft", "end"))
    for text, look in ((label.attributes, "soft"), (label.spec, "spec soft")):
        if text:
            baseline += 15
            parts.append(_text(x, baseline, text, look, anchor))
    parts.append("</g>")
    return "".join(parts)


def _outline(label: _Label, left: float, y: float) -> str:
    """The outline of a box as SVG: an arrow for results, a pill for inputs, rounded corners for everything else."""
    width, height = label.width, label.height
    if label.looks == "result":
        shoulder, point = y + height * 0.62, y + height + 5
        return (
            f'<path class="result" d="M{left:.1f} {y:.1f}h{width:.1f}V{shoulder:.1f}L{left + width / 2:.1f} {point:.1f}'
            f'L{left:.1f} {shoulder:.1f}z"/>'
        )
    radius = height / 2 if label.looks == "input" else 6
    return (
        f'<rect class="{label.looks}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        f' rx="{radius:.1f}"/>'
    )


def _kinds(program: Program) -> list[OperationClass]:
    present = {node.op.operation_class for node in program.nodes[:MOST_NODES]}
    return [kind for kind in _CLASS_COLOURS if kind in present]


def _legend_step(kind: OperationClass) -> float:
    return 7.0 * len(kind) + 38


def _legend(kinds: list[OperationClass], y: float) -> list[str]:
    """The colours of the classes that occur, side by side on one line, as SVG elements."""
    parts = []
    x = float(_MARGIN)
    for kind in kinds:
        parts.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" rx="3" fill="{_CLASS_COLOURS[kind]}"/>')
        parts.append(_text(x + 15, y, kind, "soft"))
        x += _legend_step(kind)
    return parts


def _facts(program: Program) -> str:
    """A line that counts inputs, operations and results."""
    counts = (
        (program.input_count, "input"),
        (len(program) - program.input_count, "operation"),
        (len(program.outputs), "result"),
    )
    return " · ".join(f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in counts)


def _note(program: Program) -> str:
    if len(program) <= MOST_NODES:
        return ""
    return f"These are the first {MOST_NODES} of {len(program):,} nodes; the text form has them all."


def _style() -> str:
    light = "".join(f".anygpu .{name}{{{look}}}" for name, look, _ in _LOOKS)
    dark = "".join(f".anygpu .{name}{{{look}}}" for name, _, look in _LOOKS)
    return f"{_FONTS}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _style_inside() -> str:
    looks = "".join(f".anygpu .{name}{{{look}}}" for name, look in _INSIDE_LOOKS)
    return (_FONTS + looks).replace(".anygpu ", f".{_INSIDE} ")


def _text(x: float, y: float, text: str, look: str, anchor: str = "start") -> str:
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{look}"{where}>{_safe(text)}</text>'


def _clipped(text: str, length: int = _WIDEST_TEXT) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _safe(text: str) -> str:
    return escape(printable(text), quote=True)
