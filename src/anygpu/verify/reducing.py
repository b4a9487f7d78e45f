"""Makes a program small that gives a wrong result: nodes are dropped while it still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Input


class Suspect(NamedTuple):
    """A program, and the inputs with which it is wrong."""

    program: Program
    inputs: tuple[HostArray, ...]


#: Whether a smaller program is wrong in the same way.
IsWrong = Callable[[Suspect], bool]


def reduced(suspect: Suspect, is_wrong: IsWrong, *, has_time: Callable[[], bool]) -> Suspect:
    """The smallest program that was found before the time was over; the same one if no smaller one is wrong."""
    for smaller in _with_one_output(suspect):
        if not has_time():
            return suspect
        if is_wrong(smaller):
            suspect = smaller
            break
    return _with_nodes_given(suspect, is_wrong, has_time)


def part(suspect: Suspect, output: int, given: Mapping[int, HostArray]) -> Suspect:
    """What computes one node, with the values of the `given` nodes as inputs."""
    program = suspect.program
    values = {**{position: suspect.inputs[position] for position in range(program.input_count)}, **given}
    needed = {output}
    for position in range(output, -1, -1):
        if position in needed and position not in values:
            needed.update(program.nodes[position].inputs)
    sources = [position for position in sorted(needed) if position in values]
    places = {position: number for number, position in enumerate(sources)}
    nodes = [Node(Input(*program.specs[position])) for position in sources]
    for position in sorted(needed.difference(values)):
        op, operands = program.nodes[position]
        places[position] = len(nodes)
        nodes.append(Node(op, tuple(places[each] for each in operands)))
    return Suspect(Program(nodes, [places[output]]), tuple(values[position] for position in sources))


def operations(program: Program) -> tuple[str, ...]:
    """What is computed, each operation once, without what only makes values."""
    names = dict.fromkeys(node.op.name for node in program.nodes if not isinstance(node.op, Input))
    return tuple(name for name in names if name not in ("constant", "iota")) or tuple(names)


def _with_one_output(suspect: Suspect) -> Iterator[Suspect]:
    """Every node alone as the result, the first first; inputs are taken to be right."""
    for position in range(suspect.program.input_count, len(suspect.program)):
        yield part(suspect, position, {})


def _with_nodes_given(suspect: Suspect, is_wrong: IsWrong, has_time: Callable[[], bool]) -> Suspect:
    """Nodes become inputs with the values that NumPy computes for them, those nearest to the result first."""
    program = suspect.program
    if len(program.outputs) > 1:
        return suspect
    (output,) = program.outputs
    every = Program.trusted(program.nodes, tuple(range(len(program))), program.specs, program.lines)
    values = lowering.run(every, list(suspect.inputs))

    def candidates() -> Iterator[Sequence[int]]:
        computed = [
            position
            for position in range(output - 1, program.input_count - 1, -1)
            if program.nodes[position].inputs and program.specs[position].dtype != "bfloat16"
        ]
        yield [position for position in program.nodes[output].inputs if position in computed]
        yield from ([position] for position in computed)

    given: dict[int, HostArray] = {}
    best = suspect
    for positions in candidates():
        if not positions or not has_time():
            continue
        trial = part(suspect, output, given | {position: values[position] for position in positions})
        if len(trial.program) < len(best.program) and is_wrong(trial):
            given |= {position: values[position] for position in positions}
            best = trial
    return best
