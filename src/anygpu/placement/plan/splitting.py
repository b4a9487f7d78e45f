"""One program on two devices: each operation where it is faster, when that pays for moving values between them.

Which operations go where is a minimum cut: the price of a cut is what the operations take where they are put, and what
it takes to move every value that is needed on the other side, once. The operations are then put into as few parts as
the order allows, the parts are predicted as the programs that they are, and small parts that do not pay are given up.
Views, constants and counters go with the operations that use them; only values that were computed are moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from anygpu.placement.plan.calibration import Calibration
from anygpu.placement.plan.predicting import Kernel, predict, seconds_inside, seconds_of, structure_of
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Constant, Input, Iota, Linear, Primitive

#: The first or the second of the two devices.
Side = Literal[0, 1]

#: Each change of devices costs a call, and is one more thing that can go wrong.
MOST_PARTS = 4
#: Two devices must beat the better one by this much.
GAIN = 0.9
#: For programs with more operations the work is not worth it.
MOST_OPERATIONS = 600

_INFINITE = float("inf")
#: Seconds of what cannot be done at all: more than of everything that can, and less than infinite, which cannot flow.
_NEVER = 1e9
_SIDES: tuple[Side, Side] = (0, 1)


class ProgramPart(msgspec.Struct, frozen=True):
    """Operations that run on one device as a program of their own."""

    device: Side
    program: Program
    #: Positions in the whole program of the values that it takes, in the order of its inputs, and that it gives.
    sources: tuple[int, ...]
    results: tuple[int, ...]


class Split(msgspec.Struct, frozen=True):
    """Parts to run one after the other; each takes inputs of the whole program and results of earlier parts."""

    parts: tuple[ProgramPart, ...]
    #: The outputs of the whole program: positions that are inputs or results of parts.
    outputs: tuple[int, ...]
    #: Predicted for all of it, and for the better device alone.
    seconds: float
    alone: float


def split(
    program: Program,
    one: Calibration,
    other: Calibration,
    *,
    whole: tuple[float | None, float | None] = (None, None),
    lacks: tuple[Collection[int], Collection[int]] = ((), ()),
) -> Split | None:
    """The program on both devices, if that is predicted to be faster by a tenth than on the better one alone.

    Inputs are on the host and results are wanted there. `whole` is what calls on each device alone are known to take;
    what is not known is predicted. `lacks` are the nodes that each device cannot compute.
    """
    pair = _Pair(program, (one, other), (frozenset(lacks[0]), frozenset(lacks[1])))
    if not 2 <= len(pair.operations) <= MOST_OPERATIONS:
        return None
    alone = min(pair.alone(side, whole[side]) for side in _SIDES)
    # Two calls at the least: whatever the devices do, it is not faster than starting both.
    if one.launch + other.launch > GAIN * alone:
        return None
    sides = pair.cheapest_sides()
    found = pair.best_parts(sides) if sides is not None else None
    if found is None or found[0] > GAIN * alone:
        return None
    seconds, parts = found
    return Split(tuple(parts), program.outputs, seconds, alone)


def operations_of(program: Program) -> list[int]:
    """The nodes that compute something; all others go along with them."""
    return [position for position, node in enumerate(program.nodes) if not (node.op.is_source or node.op.is_view)]


def _goes_along(op: Primitive) -> bool:
    """Whether it goes with the operations that use it."""
    return op.is_view or isinstance(op, Constant | Iota)


def parts_of(program: Program, sides: Mapping[int, Side]) -> list[ProgramPart]:
    """The program in as few parts as these sides of its operations allow."""
    groups = min((_grouped(program, sides, first) for first in _SIDES), key=len) or [(0, [])]
    # A result that no operation computes, such as a view of an input, is made with the first part.
    outputs = set(program.outputs)
    computed = set(operations_of(program))
    needed: set[int] = set(outputs)
    for _, members in groups:
        for member in members:
            needed |= {source for source in bases_of(program, program.nodes[member].inputs) if source in computed}
    parts: list[ProgramPart] = []
    homes = {member: number for number, (_, members) in enumerate(groups) for member in members}
    by_part: dict[int, list[int]] = {}
    for position in sorted(needed):
        if isinstance(program.nodes[position].op, Input):
            continue
        number = homes.get(position)
        if number is None:
            bases = [homes[base] for base in bases_of(program, (position,)) if base in homes]
            number = max(bases, default=0)
        by_part.setdefault(number, []).append(position)
    for number, (side, members) in enumerate(groups):
        results = by_part.get(number, [])
        used_elsewhere = [each for each in results if each in outputs or _is_needed(program, each, members, computed)]
        if used_elsewhere:
            part, sources = part_of(program, members, used_elsewhere)
            parts.append(ProgramPart(side, part, sources, tuple(used_elsewhere)))
    return parts


def part_of(program: Program, nodes: Iterable[int], results: Sequence[int]) -> tuple[Program, tuple[int, ...]]:
    """A program that computes `results` by `nodes`, and the values of the whole program that it takes as inputs.

    Views, constants and counters come along as they are needed, whether they are among `nodes` or not.
    """
    inside = set(nodes)
    sources: set[int] = set()
    members: set[int] = set()
    waiting = list(results)
    while waiting:
        position = waiting.pop()
        if position in members or position in sources:
            continue
        node = program.nodes[position]
        if position in inside or _goes_along(node.op):
            members.add(position)
            waiting.extend(node.inputs)
        else:
            sources.add(position)
    ordered = sorted(sources)
    numbers = {source: number for number, source in enumerate(ordered)}
    parts = [Node(Input(*program.specs[source])) for source in ordered]
    specs = [program.specs[source] for source in ordered]
    lines = [program.lines[source] for source in ordered]
    for position in sorted(members):
        op, inputs = program.nodes[position]
        numbers[position] = len(parts)
        parts.append(Node(op, tuple(numbers[source] for source in inputs)))
        specs.append(program.specs[position])
        lines.append(program.lines[position])
    outputs = tuple(numbers[result] for result in results)
    return Program.trusted(tuple(parts), outputs, tuple(specs), tuple(lines)), tuple(ordered)


def bases_of(program: Program, positions: Iterable[int]) -> set[int]:
    """The inputs and computed values that these are, or are views of."""
    found: set[int] = set()
    waiting = list(positions)
    while waiting:
        position = waiting.pop()
        node = program.nodes[position]
        if _goes_along(node.op):
            waiting.extend(node.inputs)
        else:
            found.add(position)
    return found


def _is_needed(program: Program, position: int, members: Sequence[int], computed: set[int]) -> bool:
    """Whether an operation outside of these needs the value."""
    inside = set(members)
    return any(
        position in bases_of(program, program.nodes[user].inputs)
        for user in computed
        if user > position and user not in inside
    )


def _grouped(program: Program, sides: Mapping[int, Side], first: Side) -> list[tuple[Side, list[int]]]:
    """Operations in an order in which they can run, with as few changes of sides as there can be."""
    operations = sorted(sides)
    users: dict[int, list[int]] = {position: [] for position in operations}
    missing: dict[int, int] = {}
    for position in operations:
        below = [base for base in bases_of(program, program.nodes[position].inputs) if base in sides]
        missing[position] = len(below)
        for base in below:
            users[base].append(position)
    ready: tuple[deque[int], deque[int]] = (deque(), deque())
    for position in operations:
        if not missing[position]:
            ready[sides[position]].append(position)
    groups: list[tuple[Side, list[int]]] = []
    side = first
    while ready[0] or ready[1]:
        members: list[int] = []
        while ready[side]:
            position = ready[side].popleft()
            members.append(position)
            for user in users[position]:
                missing[user] -= 1
                if not missing[user]:
                    ready[sides[user]].append(user)
        if members:
            groups.append((side, members))
        side = _other(side)
    return groups


def _other(side: Side) -> Side:
    return 1 if side == 0 else 0


class _Pair:
    """A program and two devices for it."""

    def __init__(
        self,
        program: Program,
        calibrations: tuple[Calibration, Calibration],
        lacks: tuple[frozenset[int], frozenset[int]],
    ) -> None:
        """A program between two devices; `lacks` are the nodes that each of them cannot run."""
        self.program = program
        self.calibrations = calibrations
        self.lacks = lacks
        self.operations = operations_of(program)

    def alone(self, side: Side, known: float | None) -> float:
        if known is not None:
            return known
        return predict(self.program, self.calibrations[side]).seconds if not self.lacks[side] else _INFINITE

    def predicted(self, parts: Sequence[ProgramPart]) -> float:
        """Seconds for all parts, each with its inputs from the host and its results back to it."""
        return sum(predict(part.program, self.calibrations[part.device]).seconds for part in parts)

    def best_parts(self, sides: dict[int, Side]) -> tuple[float, list[ProgramPart]] | None:
        """The parts and their time, after those that cost more than they save have gone to the other side."""
        parts = parts_of(self.program, sides)
        best = self.predicted(parts)
        while len(parts) > 1:
            trials = []
            for turned in self._with_one_turned(sides):
                candidate = parts_of(self.program, turned)
                trials.append((self.predicted(candidate), turned, candidate))
            if not trials:
                break
            seconds, turned, candidate = min(trials, key=lambda trial: trial[0])
            if seconds >= best and len(parts) <= MOST_PARTS:
                break
            best, sides, parts = seconds, turned, candidate
        return (best, parts) if 2 <= len(parts) <= MOST_PARTS and len({part.device for part in parts}) == 2 else None

    def _with_one_turned(self, sides: dict[int, Side]) -> Iterator[dict[int, Side]]:
        """The same with one group of operations on the other side; the smallest groups, if there are very many."""
        groups = min((_grouped(self.program, sides, first) for first in _SIDES), key=len)
        for side, members in sorted(groups, key=lambda group: len(group[1]))[: 4 * MOST_PARTS]:
            if not self.lacks[_other(side)].intersection(members):
                turned = {**sides, **dict.fromkeys(members, _other(side))}
                if _keeps_together(self.program, turned):
                    yield turned

    def cheapest_sides(self) -> dict[int, Side] | None:
        """By the minimum cut; `None` when something can be computed on neither side."""
        program = self.program
        if self.lacks[0] & self.lacks[1]:
            return None
        alone = {kernel.nodes[0]: kernel for kernel in structure_of(program, fuses=False).kernels}
        network = _Network()
        numbers = {position: network.node() for position in self.operations}
        for position, number in numbers.items():
            # Who is on the first side has its edge to the end cut, and the other way round.
            network.add(number, network.end, self._seconds(alone[position], 0))
            network.add(network.start, number, self._seconds(alone[position], 1))
        users: dict[int, list[int]] = {}
        for position, number in numbers.items():
            for base in bases_of(program, program.nodes[position].inputs):
                users.setdefault(base, []).append(number)
        one, other = self.calibrations
        for base, readers in users.items():
            nbytes = program.specs[base].nbytes
            there, back = other.write.seconds(nbytes), one.write.seconds(nbytes)
            if base in numbers:
                there, back = there + one.read.seconds(nbytes), back + other.read.seconds(nbytes)
                network.moving(numbers[base], numbers[base], readers, there, back)
            else:
                network.moving(network.start, network.end, readers, there, back)
        for first, *rest in _decompositions(program):
            for position in rest:
                network.add(numbers[first], numbers[position], _INFINITE)
                network.add(numbers[position], numbers[first], _INFINITE)
        near = network.near_start()
        return {position: 0 if number in near else 1 for position, number in numbers.items()}

    def _seconds(self, kernel: Kernel, side: Side) -> float:
        """One operation there, among others, and with the way back to the host if it is a result."""
        (position,) = kernel.nodes
        if position in self.lacks[side]:
            return _NEVER
        calibration = self.calibrations[side]
        seconds = seconds_inside(kernel, calibration) if calibration.fuses else seconds_of(kernel, calibration)
        if position in self.program.outputs:
            seconds += calibration.read.seconds(self.program.specs[position].nbytes)
        return seconds


def _decompositions(program: Program) -> list[list[int]]:
    """Nodes that are parts of one decomposition. Two devices may find different ones, so they stay together."""
    found: dict[Node, list[int]] = {}
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, Linear):
            found.setdefault(Node(msgspec.structs.replace(op, part=0), inputs), []).append(position)
    return list(found.values())


def _keeps_together(program: Program, sides: Mapping[int, Side]) -> bool:
    return all(len({sides[each] for each in members}) == 1 for members in _decompositions(program))


# -- the cut


class _Network:
    """A graph of capacities, and its minimum cut by augmenting shortest paths (Dinic)."""

    def __init__(self) -> None:
        """An empty network with a start and an end; edges are stored in pairs, one for each direction."""
        self._heads: list[list[int]] = []
        #: For each edge where it leads and what is left of it; its reverse is the next, or the one before.
        self._ends: list[int] = []
        self._left: list[float] = []
        self.start = self.node()
        self.end = self.node()

    def node(self) -> int:
        self._heads.append([])
        return len(self._heads) - 1

    def add(self, begin: int, end: int, capacity: float) -> None:
        for tail, head, left in ((begin, end, capacity), (end, begin, 0.0)):
            self._heads[tail].append(len(self._ends))
            self._ends.append(head)
            self._left.append(left)

    def moving(self, maker: int, taker: int, readers: Sequence[int], there: float, back: float) -> None:
        """A value that is paid for once, however many readers are on the other side than what makes it."""
        if there:
            copy = self.node()
            self.add(maker, copy, there)
            for reader in readers:
                self.add(copy, reader, _INFINITE)
        if back:
            copy = self.node()
            self.add(copy, taker, back)
            for reader in readers:
                self.add(reader, copy, _INFINITE)

    def near_start(self) -> set[int]:
        """The nodes on the side of the start, when the flow is as large as it can be."""
        # What is smaller than a millionth of everything is noise of floating point, and would go round for ever.
        finite = sum(left for left in self._left if left < _NEVER)
        least = finite * 1e-9
        while True:
            levels = self._levels(least)
            if levels[self.end] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            nexts = [0] * len(self._heads)
            while self._push(levels, nexts, least):
                pass

    def _levels(self, least: float) -> list[int]:
        """The distance of each node from the start, over edges that can take more than `least`.

        Nodes out of reach have -1.
        """
        levels = [-1] * len(self._heads)
        levels[self.start] = 0
        waiting = deque((self.start,))
        while waiting:
            node = waiting.popleft()
            for edge in self._heads[node]:
                if self._left[edge] > least and levels[self._ends[edge]] < 0:
                    levels[self._ends[edge]] = levels[node] + 1
                    waiting.append(self._ends[edge])
        return levels

    def _push(self, levels: list[int], nexts: list[int], least: float) -> bool:
        """One path from start to end, filled up; whether there was one."""
        path: list[int] = []
        node = self.start
        while node != self.end:
            edges = self._heads[node]
            while nexts[node] < len(edges):
                edge = edges[nexts[node]]
                if self._left[edge] > least and levels[self._ends[edge]] == levels[node] + 1:
                    break
                nexts[node] += 1
            if nexts[node] == len(edges):
                if not path:
                    return False
                node = self._ends[path.pop() ^ 1]
                nexts[node] += 1
                continue
            path.append(edges[nexts[node]])
            node = self._ends[path[-1]]
        flow = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= flow
            self._left[edge ^ 1] += flow
        return True
