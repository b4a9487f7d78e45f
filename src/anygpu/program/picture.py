"""A program as a drawing: a self-contained SVG, from the inputs at the top to the results at the bottom.

On paper of its own it follows the reader's system, light or dark; inside of a notebook it follows the notebook's theme.
The second part is the layout: boxes in layers, so that lines are short and rarely cross. Lines that pass a layer run on
a rail, a narrow place of their own between the boxes. All lines from one box share their rails, so a value that is used
a hundred times is still one line that branches.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import NamedTuple

from anygpu.base.printable import printable
from anygpu.program.graph import Program, constant_text, line_of, value_names
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


# -- the layout: boxes in layers from top to bottom


BOX_GAP = 26.0
RAIL_GAP = 12.0
LAYER_GAP = 38.0
#: Long sideways curves need more height to stay readable.
MOST_LAYER_GAP = 130.0
#: Each sweep goes down and up once; more bring next to nothing.
SWEEPS = 8


class Item(NamedTuple):
    """A box to be placed, and the boxes that lines come from, in order."""

    width: float
    height: float
    sources: tuple[int, ...]
    #: Belongs near what uses it, not at the top.
    floating: bool = False


class Place(NamedTuple):
    #: Coordinates of the middle, and of the upper edge.
    x: float
    y: float


class DrawnCurve(NamedTuple):
    """From the lower edge of one layer to the upper edge of the next, with straight ends up to the boxes."""

    x0: float
    y0: float
    bend0: float
    bend1: float
    x1: float
    y1: float
    #: Whether it ends at a box, and not on a rail.
    arrives: bool


class Arrangement(NamedTuple):
    places: list[Place]
    #: For each box the lines that leave it.
    curves: list[list[DrawnCurve]]
    width: float
    height: float


@dataclass(eq=False)
class _Slot:
    """A box, or the rail of a box in a later layer."""

    item: int
    layer: int
    width: float
    height: float
    is_rail: bool
    order: int = 0
    x: float = 0.0
    shift: float = 0.0
    above: list[_Link] = field(default_factory=list)
    below: list[_Link] = field(default_factory=list)


@dataclass(eq=False)
class _Link:
    upper: _Slot
    lower: _Slot
    #: How far from the middle of the lower box it ends.
    port: float


def arrange(items: Sequence[Item]) -> Arrangement:
    """Places for all items; sources come before what uses them."""
    layers = _slots(items, _layers(items))
    _order(layers)
    _align(layers)
    return _measured(items, layers)


def _layers(items: Sequence[Item]) -> list[int]:
    """By the longest way from the top; what floats hangs just above its first user."""
    layers: list[int] = []
    for item in items:
        layers.append(1 + max((layers[source] for source in item.sources), default=-1))
    users: list[list[int]] = [[] for _ in items]
    for number, item in enumerate(items):
        for source in item.sources:
            users[source].append(number)
    for number in reversed(range(len(items))):
        if items[number].floating and users[number]:
            layers[number] = min(layers[user] for user in users[number]) - 1
    return layers


def _slots(items: Sequence[Item], layers: Sequence[int]) -> list[list[_Slot]]:
    """The boxes and rails of each layer, connected from top to bottom."""
    result: list[list[_Slot]] = [[] for _ in range(max(layers, default=-1) + 1)]
    chains: list[list[_Slot]] = []
    for number, (item, layer) in enumerate(zip(items, layers, strict=True)):
        slot = _Slot(number, layer, item.width, item.height, is_rail=False)
        chains.append([slot])
        result[layer].append(slot)
    for number, item in enumerate(items):
        target = chains[number][0]
        spacing = min(26.0, (item.width - 24) / max(len(item.sources), 1))
        for operand, source in enumerate(item.sources):
            chain = chains[source]
            while chain[-1].layer < target.layer - 1:
                rail = _Slot(source, chain[-1].layer + 1, 0.0, 0.0, is_rail=True)
                _connect(chain[-1], rail, 0.0)
                result[rail.layer].append(rail)
                chain.append(rail)
            upper = chain[target.layer - 1 - chain[0].layer]
            _connect(upper, target, (operand - (len(item.sources) - 1) / 2) * spacing)
    return result


def _connect(upper: _Slot, lower: _Slot, port: float) -> None:
    link = _Link(upper, lower, port)
    upper.below.append(link)
    lower.above.append(link)


def _order(layers: list[list[_Slot]]) -> None:
    """By barycentres, down and up again; the order with the fewest crossings wins."""
    for layer in layers:
        _number(layer)
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for _ in range(SWEEPS):
        if fewest == 0:
            break
        for layer in layers[1:]:
            layer.sort(key=_centre_above)
            _number(layer)
        for layer in reversed(layers[:-1]):
            layer.sort(key=_centre_below)
            _number(layer)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    for layer, ordered in zip(layers, best, strict=True):
        layer[:] = ordered
        _number(layer)


def _number(layer: list[_Slot]) -> None:
    for order, slot in enumerate(layer):
        slot.order = order


def _centre_above(slot: _Slot) -> float:
    return sum(link.upper.order for link in slot.above) / len(slot.above) if slot.above else slot.order


def _centre_below(slot: _Slot) -> float:
    if not slot.below:
        return slot.order
    return sum(_end(link) for link in slot.below) / len(slot.below)


def _end(link: _Link) -> float:
    """The position of a link's end in the order of its layer; a port is a small step within its box."""
    return link.lower.order + link.port / (link.lower.width + 1)


def _crossings(layers: list[list[_Slot]]) -> int:
    """How many lines cross between neighbouring layers."""
    crossings = 0
    for layer in layers:
        ends: list[float] = []
        links = [link for slot in layer for link in slot.below]
        for link in sorted(links, key=lambda link: (link.upper.order, _end(link))):
            end = _end(link)
            crossings += len(ends) - bisect_right(ends, end)
            insort(ends, end)
    return crossings


def _align(layers: list[list[_Slot]]) -> None:
    """Pull everything towards its neighbours, as far as the order and the gaps allow."""
    for layer in layers:
        _settle(layer, [0.0] * len(layer))
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            _settle(layer, [_wish(slot, down=down) for slot in layer])
    _close_strips([slot for layer in layers for slot in layer])


def _close_strips(slots: list[_Slot]) -> None:
    """Parts of a program that have nothing to do with each other may have drifted apart."""
    reach = 0.0
    shift = 0.0
    for number, slot in enumerate(sorted(slots, key=_left_end)):
        left = _left_end(slot) - shift
        if number and left > reach + 2 * BOX_GAP:
            shift += left - reach - 2 * BOX_GAP
        right = max([slot.x + slot.width / 2, *(link.lower.x for link in slot.below)])
        reach = max(reach, right - shift) if number else right
        slot.shift = shift
    for slot in slots:
        slot.x -= slot.shift


def _left_end(slot: _Slot) -> float:
    """The left end of the slot and of the lines that leave it."""
    return min([slot.x - slot.width / 2, *(link.lower.x for link in slot.below)])


def _wish(slot: _Slot, *, down: bool) -> float:
    """The middle of its neighbours. Rails follow rails and boxes follow boxes, or both would drift to one side."""
    above = [link.upper for link in slot.above]
    below = [link.lower for link in slot.below]
    neighbours = (above or below) if down else (below or above)
    alike = [other.x for other in neighbours if other.is_rail == slot.is_rail]
    wanted = alike or [other.x for other in neighbours]
    return sum(wanted) / len(wanted) if wanted else slot.x


def _settle(layer: list[_Slot], wishes: list[float]) -> None:
    """The places nearest to the wishes (in the least squares) that keep the order and the gaps.

    Measured from where each would stand if all were packed together, that is a monotone regression: neighbours who
    would overlap form a block and move to their common mean.
    """
    packed = [0.0]
    for left, right in pairwise(layer):
        gap = RAIL_GAP if left.is_rail or right.is_rail else BOX_GAP
        packed.append(packed[-1] + (left.width + right.width) / 2 + gap)
    blocks: list[tuple[float, float, int]] = []  # sum of weights, mean, members
    for slot, wish, offset in zip(layer, wishes, packed, strict=False):
        weight, mean, members = (4.0 if slot.is_rail else 1.0), wish - offset, 1
        while blocks and blocks[-1][1] > mean:
            other_weight, other_mean, others = blocks.pop()
            mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
            weight, members = weight + other_weight, members + others
        blocks.append((weight, mean, members))
    means = [mean for _, mean, members in blocks for _ in range(members)]
    for slot, mean, offset in zip(layer, means, packed, strict=False):
        slot.x = mean + offset


def _measured(items: Sequence[Item], layers: list[list[_Slot]]) -> Arrangement:
    """The places of boxes and the curves between them, in units of the drawing, from its upper left corner."""
    left = min((slot.x - slot.width / 2 for layer in layers for slot in layer), default=0.0)
    right = max((slot.x + slot.width / 2 for layer in layers for slot in layer), default=0.0)
    tops, bottoms = _bands(layers)
    places = [Place(0.0, 0.0)] * len(items)
    for layer in layers:
        for slot in layer:
            if not slot.is_rail:
                y = (tops[slot.layer] + bottoms[slot.layer] - slot.height) / 2
                places[slot.item] = Place(slot.x - left, y)
    curves: list[list[DrawnCurve]] = [[] for _ in items]
    for layer in layers:
        for slot in layer:
            for link in slot.below:
                upper, lower = link.upper, link.lower
                y0, bend0 = tops[upper.layer], bottoms[upper.layer]
                if not upper.is_rail:
                    y0 = places[upper.item].y + upper.height
                bend1 = tops[lower.layer]
                y1 = bend1 if lower.is_rail else places[lower.item].y
                curve = DrawnCurve(
                    upper.x - left, y0, bend0, bend1, lower.x + link.port - left, y1, arrives=not lower.is_rail
                )
                curves[slot.item].append(curve)
    return Arrangement(places, curves, right - left, bottoms[-1] if bottoms else 0.0)


def _bands(layers: list[list[_Slot]]) -> tuple[list[float], list[float]]:
    """The upper and lower edge of each layer."""
    tops: list[float] = []
    bottoms: list[float] = []
    y = 0.0
    for layer in layers:
        tops.append(y)
        y += max((slot.height for slot in layer), default=0.0)
        bottoms.append(y)
        farthest = max((abs(link.upper.x - link.lower.x) for slot in layer for link in slot.below), default=0.0)
        y += min(LAYER_GAP + farthest / 10, MOST_LAYER_GAP)
    return tops, bottoms
