"""The proof of which axes of a program are independent, so that it can be computed piece by piece along them.

Axes of different values belong together when cutting one means cutting the other at the same places: the rows of a
matrix and those of its product with another. Every primitive says which axes of its inputs go on as which axes of its
result. What it mixes along an axis (sums, sorts, shifts …) it does not pass on, and then nothing that belongs together
with that axis can be cut. Only what is certain is offered.

A piece that a movement takes from an input or from a constant, such as one window of many, can be taken without the
rest. So values that are moved and not computed may be needed whole and in part at once: `x` in the distances of all
pairs, `x[:, None] - x[None, :]`. To see that, they are also looked at with a copy for each use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from anygpu.errors import InvalidOption
from anygpu.program.graph import Node, Program, Recorder
from anygpu.program.ops.movement import stretch_of
from anygpu.program.ops.source import Input
from anygpu.program.primitive import FROM_WHOLE, KEPT, Origin, Primitive, Shape, Spec, with_length
from anygpu.program.transforms import without_dead_code

#: A moved value that took more steps than this is not copied for each use.
_STEPS_TO_COPY = 16


class Cut(msgspec.Struct, frozen=True):
    """One way to cut a program: for each input and output the axis that is cut.

    An input with `None` is passed whole. An output with `None` is the same whole value in every piece.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    #: The length of the axes that are cut; a piece is a stretch of it.
    length: int


def independent_cuts(program: Program) -> list[Cut]:
    """Every way that is known to be right, the one that cuts the most bytes first."""
    return list(_ways(program))


def cut(program: Program, the_cut: Cut, start: int, stop: int) -> Program:
    """The program for the piece from `start` to `stop`: it takes pieces of the inputs, gives those of the outputs."""
    way = _ways(program).get(the_cut)
    if way is None:
        raise InvalidOption(f"{the_cut} is not among the independent cuts of {program!r}.")
    if not 0 <= start < stop <= the_cut.length:
        raise InvalidOption(f"{start} to {stop} is not a piece of an axis of length {the_cut.length}.")
    return _Piece(way, the_cut, start, stop).program()


class Axes(NamedTuple):
    """The axes of a node's inputs in its result; `None` stands for an axis that is mixed."""

    inputs: tuple[tuple[int | None, ...], ...]
    #: For each axis of the result where it comes from; `None` when every element along it depends on others.
    result: tuple[Origin | None, ...]


def axes_of(op: Primitive, result: Spec, inputs: Sequence[Spec]) -> Axes:
    """The rule of one primitive between values of these shapes."""
    passed = tuple(tuple(each) for each in op.passed_axes(result.shape, [each.shape for each in inputs]))
    reached = {axis for each in passed for axis in each if axis is not None}
    return Axes(passed, tuple(KEPT if axis in reached else op.other_axes for axis in range(len(result.shape))))


class _Graph:
    """A program in which a value that is only moved may have one copy for each use."""

    def __init__(self, program: Program, *, copies: bool) -> None:
        """The program's nodes, with `copies` of what is cheap to compute again for each use.

        A copy may be cut along another axis than the original.
        """
        self.program = program
        self.nodes: list[Node] = []
        self.specs: list[Spec] = []
        #: Where each node comes from.
        self.origin: list[int] = []
        #: Whether it is an input or a constant, or moved from these.
        self.moved: list[bool] = []
        self._copies = copies
        self._moved = _only_moved(program)
        self._steps = _steps(program)
        self._known: dict[int, int] = {}
        for position in range(len(program.nodes)):
            if self._is_shared(position):
                self._place(position)
        self.outputs = [self._place(output) for output in program.outputs]
        self.axes: list[Axes] = [
            axes_of(op, self.specs[place], [self.specs[each] for each in inputs])
            for place, (op, inputs) in enumerate(self.nodes)
        ]

    def _place(self, position: int) -> int:
        """The node here; a new copy of it, if it may have several."""
        if position in self._known:
            return self._known[position]
        op, inputs = self.program.nodes[position]
        sources = tuple(self._place(each) for each in inputs)
        self.nodes.append(Node(op, sources))
        self.specs.append(self.program.specs[position])
        self.origin.append(position)
        self.moved.append(self._moved[position])
        place = len(self.nodes) - 1
        if self._is_shared(position):
            self._known[position] = place
        return place

    def _is_shared(self, position: int) -> bool:
        return not (self._copies and self._moved[position] and self._steps[position] <= _STEPS_TO_COPY)


def _only_moved(program: Program) -> list[bool]:
    moved: list[bool] = []
    for op, inputs in program.nodes:
        moved.append(op.is_source or (op.is_movement and all(moved[each] for each in inputs)))
    return moved


def _steps(program: Program) -> list[int]:
    """The number of nodes that a copy of each would have."""
    steps: list[int] = []
    for _, inputs in program.nodes:
        steps.append(1 + sum(steps[each] for each in inputs))
    return steps


class _Way(msgspec.Struct, frozen=True):
    """A cut, with the axis of each node that it cuts."""

    graph: _Graph
    axes: dict[int, int]

    @property
    def length(self) -> int:
        place, axis = next(iter(self.axes.items()))
        return self.graph.specs[place].shape[axis]

    def as_cut(self) -> Cut:
        """The cut of inputs and outputs that a way means; an input that is needed in several ways stays whole."""
        graph = self.graph
        inputs: list[int | None] = []
        for position in range(graph.program.input_count):
            uses = {self.axes.get(place) for place, origin in enumerate(graph.origin) if origin == position}
            inputs.append(uses.pop() if len(uses) == 1 else None)
        return Cut(tuple(inputs), tuple(self.axes.get(place) for place in graph.outputs), self.length)

    def bytes_cut(self) -> int:
        found = self.as_cut()
        ends = zip(
            (*self.graph.program.inputs, *self.graph.program.results), (*found.inputs, *found.outputs), strict=True
        )
        return sum(spec.nbytes for spec, axis in ends if axis is not None)


@lru_cache(maxsize=64)
def _ways(program: Program) -> dict[Cut, _Way]:
    """The ways to cut a program, the one with the most bytes cut first."""
    alive = without_dead_code(program)
    found: dict[Cut, _Way] = {}
    for graph in (_Graph(alive, copies=False), _Graph(alive, copies=True)):
        for way in _ways_of(graph):
            found.setdefault(way.as_cut(), way)
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes_cut()))


def _ways_of(graph: _Graph) -> Iterator[_Way]:
    """The classes of axes, each alone and each with the others of its length that can go along."""
    classes = _classes(graph)
    for seed in classes:
        ways = [_Way(graph, seed)]
        together = dict(seed)
        others = [other for other in classes if other is not seed and _length(graph, other) == _length(graph, seed)]
        for other in _nearest_first(graph, seed, others):
            if not together.keys() & other.keys():
                together |= other
        if len(together) > len(seed):
            ways.append(_Way(graph, together))
        yield from (way for way in ways if _is_worth_it(way))


def _length(graph: _Graph, axes: dict[int, int]) -> int:
    place, axis = next(iter(axes.items()))
    return graph.specs[place].shape[axis]


def _nearest_first(graph: _Graph, seed: dict[int, int], others: list[dict[int, int]]) -> list[dict[int, int]]:
    """Those first that cut the same axis of the same inputs, then those that cut the same axis of others."""
    own = {(graph.origin[place], axis) for place, axis in seed.items()}
    numbers = set(seed.values())

    def distance(other: dict[int, int]) -> int:
        if own & {(graph.origin[place], axis) for place, axis in other.items()}:
            return 0
        return 1 if numbers & set(other.values()) else 2

    return sorted(others, key=distance)


def _classes(graph: _Graph) -> list[dict[int, int]]:
    """Axes that belong together, as the axis of each node; without those that something mixes."""
    union = _Union()
    spoilt: list[tuple[int, int]] = []
    for place, (_, inputs) in enumerate(graph.nodes):
        axes = graph.axes[place]
        for source, goes_to in zip(inputs, axes.inputs, strict=True):
            for axis, result in enumerate(goes_to):
                if result is None:
                    spoilt.append((source, axis))
                else:
                    union.join((source, axis), (place, result))
        for axis, kind in enumerate(axes.result):
            union.find((place, axis))
            if kind is None or (kind == FROM_WHOLE and not all(graph.moved[each] for each in inputs)):
                spoilt.append((place, axis))
    bad = {union.find(each) for each in spoilt}
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in union.members():
        root = union.find(each)
        if root not in bad:
            groups.setdefault(root, []).append(each)
    found = []
    for members in groups.values():
        axes_by_place = dict(members)
        lengths = {graph.specs[place].shape[axis] for place, axis in members}
        if len(axes_by_place) == len(members) and len(lengths) == 1 and lengths.pop() > 1:
            found.append(axes_by_place)
    return found


def _is_worth_it(way: _Way) -> bool:
    """Whether an output is cut, and nothing is computed from the whole of an input of which a part is used as well."""
    graph = way.graph
    if not any(place in way.axes for place in graph.outputs):
        return False
    in_part = _inputs_used_in_part(way)
    tainted = [False] * len(graph.nodes)
    for place, (_op, inputs) in enumerate(graph.nodes):
        if place in way.axes:
            continue
        tainted[place] = graph.origin[place] in in_part or any(tainted[each] for each in inputs)
        if tainted[place] and not graph.moved[place]:
            return False
    return True


def _inputs_used_in_part(way: _Way) -> set[int]:
    """The inputs that are cut, or of which a movement takes a part."""
    graph = way.graph
    waiting = [place for place, axis in way.axes.items() if graph.axes[place].result[axis] == FROM_WHOLE]
    seen = set(waiting)
    while waiting:
        fresh = set(graph.nodes[waiting.pop()].inputs) - seen
        seen |= fresh
        waiting += fresh
    return {graph.origin[place] for place in seen | way.axes.keys() if isinstance(graph.nodes[place].op, Input)}


class _Union:
    """Sets that can be joined."""

    def __init__(self) -> None:
        self._parents: dict[tuple[int, int], tuple[int, int]] = {}

    def find(self, item: tuple[int, int]) -> tuple[int, int]:
        """The representative of an item's set; paths are shortened on the way."""
        parents = self._parents
        root = parents.setdefault(item, item)
        while parents[root] != root:
            root = parents[root]
        while parents[item] != root:
            parents[item], item = root, parents[item]
        return root

    def join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        self._parents[self.find(one)] = self.find(other)

    def members(self) -> Iterable[tuple[int, int]]:
        return list(self._parents)


class _Piece:
    """Writes the program for one piece."""

    def __init__(self, way: _Way, the_cut: Cut, start: int, stop: int) -> None:
        self.graph, self.axes, self.cut = way.graph, way.axes, the_cut
        self.start, self.stop = start, stop
        self.recorder = Recorder()

    def program(self) -> Program:
        """The program for the part from `start` to `stop`: inputs are cut, and lengths in attributes shortened."""
        whole = self.graph.program
        inputs = [
            self.recorder.input(Spec(self._shorter(spec.shape, axis), spec.dtype))
            for spec, axis in zip(whole.inputs, self.cut.inputs, strict=True)
        ]
        places: list[int] = []
        for place, (op, sources) in enumerate(self.graph.nodes):
            line = whole.lines[self.graph.origin[place]]
            given = [places[each] for each in sources]
            axis = self.axes.get(place)
            if isinstance(op, Input):
                number = self.graph.origin[place]
                found = inputs[number]
                if axis is not None and self.cut.inputs[number] is None:
                    found = stretch_of(self.recorder, found, axis, self.start, self.stop)
            elif axis is None:
                found = self.recorder.add(op, *given, line=line)
            else:
                kind = self.graph.axes[place].result[axis]
                if kind == FROM_WHOLE:
                    found = self._from_whole(op, given, axis, self.graph.specs[place].shape[axis])
                else:
                    found = self.recorder.add(op.shortened(axis, self.stop - self.start), *given, line=line)
            places.append(found)
        return without_dead_code(self.recorder.program([places[place] for place in self.graph.outputs]))

    def _shorter(self, shape: Shape, axis: int | None) -> Shape:
        return shape if axis is None else with_length(shape, axis, self.stop - self.start)

    def _from_whole(self, op: Primitive, given: Sequence[int], axis: int, length: int) -> int:
        """The elements that are wanted, without making the others first where that is simple."""
        found = op.stretch(self.recorder, given, axis, self.start, self.stop, length)
        if found is not None:
            return found
        return stretch_of(self.recorder, self.recorder.add(op, *given), axis, self.start, self.stop)
