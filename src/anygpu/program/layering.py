"""The layout of a drawing: boxes in layers from top to bottom, so that lines are short and rarely cross.

Lines that pass a layer run on a rail, a narrow place of their own between the boxes. All lines from one box share
their rails, so a value that is used a hundred times is still one line that branches.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

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
