"""Operations that a device lacks, run on the host one by one: never silently, and nothing else goes along."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import Buffer, Lack, ProgramEngine
from anygpu.errors import Unsupported
from anygpu.hardware.device import Device
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Broadcast, Cast, Constant, Input, Reshape
from anygpu.receipts import HostOperation


class Hosted(NamedTuple):
    """A node that ran on the host."""

    node: int
    operation: HostOperation


def run_with_host(
    engine: ProgramEngine, device: Device, program: Program, buffers: Sequence[Buffer], lacks: Sequence[Lack]
) -> tuple[list[Buffer], list[Hosted]]:
    """Cut the program at the nodes that the device lacks: what lies between runs on the device as ever.

    Also returns what ran on the host, which the caller has to tell.
    """
    reasons = {lack.node: lack.reason for lack in lacks}
    if any(program.specs[node].dtype == "bfloat16" for node in reasons):
        raise Unsupported("bfloat16", device.id, instead="NumPy on the host has none either: cast to float32.")
    values: dict[int, Buffer] = dict(enumerate(buffers))
    waiting: list[int] = []
    hosted: list[Hosted] = []

    def flush(needed: Sequence[int]) -> None:
        if waiting:
            part, sources, results = _part(program, waiting, needed, reasons)
            executable = engine.compile(part, device)
            outputs = engine.execute(executable, [values[source] for source in sources])
            values.update(zip(results, outputs, strict=True))
            waiting.clear()

    for position, node in enumerate(program.nodes):
        if isinstance(node.op, Input):
            continue
        if position not in reasons:
            waiting.append(position)
            continue
        flush(_needed_later(program, waiting, position))
        inputs = [engine.download(values[source]) for source in node.inputs]
        result = lowering.run_node(node.op, inputs)
        values[position] = engine.upload(result, device)
        moved = sum(each.nbytes for each in inputs) + result.nbytes
        hosted.append(_hosted(program, position, reasons[position], moved))
    flush(_needed_later(program, waiting, len(program.nodes)))
    return [values[output] for output in program.outputs], hosted


def _needed_later(program: Program, part: Sequence[int], after: int) -> list[int]:
    """The results of a part that other parts, or the caller, need."""
    inside = set(part)
    users = [node.inputs for position, node in enumerate(program.nodes) if position >= after]
    needed = {source for inputs in users for source in inputs} | set(program.outputs)
    return sorted(inside & needed)


def _part(
    program: Program, part: Sequence[int], results: Sequence[int], lacking: Collection[int]
) -> tuple[Program, list[int], list[int]]:
    """The nodes of a part as a program of its own, with the values it takes and gives.

    Constants go along, wherever they stand: what is a number in the program stays one.
    """
    part = sorted({*part, *_constants_of(program, part, lacking)})
    inside = set(part)
    sources = sorted({source for position in part for source in program.nodes[position].inputs} - inside)
    numbers = {source: number for number, source in enumerate(sources)}
    nodes = [Node(Input(*program.specs[source])) for source in sources]
    for position in part:
        op, inputs = program.nodes[position]
        numbers[position] = len(nodes)
        nodes.append(Node(op, tuple(numbers[source] for source in inputs)))
    return Program(nodes, [numbers[result] for result in results]), sources, list(results)


def _constants_of(program: Program, part: Sequence[int], lacking: Collection[int]) -> set[int]:
    """What the nodes take that is made of constants alone, by repeating and casting."""
    found: set[int] = set()
    for position in part:
        for source in program.nodes[position].inputs:
            chain = [source]
            while isinstance(program.nodes[chain[-1]].op, Broadcast | Reshape | Cast):
                chain.append(program.nodes[chain[-1]].inputs[0])
            if isinstance(program.nodes[chain[-1]].op, Constant) and not any(each in lacking for each in chain):
                found.update(chain)
    return found


def _hosted(program: Program, position: int, reason: str, moved: int) -> Hosted:
    operation = HostOperation(
        operation=program.nodes[position].op.name,
        reason=reason,
        line=line_of(program, position),
        bytes_moved=moved,
    )
    return Hosted(position, operation)


def line_of(program: Program, position: int) -> str | None:
    """The user's line of a node, as `file:line`."""
    line = program.lines[position]
    return f"{line[0]}:{line[1]}" if line is not None else None
