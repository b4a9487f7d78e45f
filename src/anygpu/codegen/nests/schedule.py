"""A program for a processor: its values in nests and host steps, over slots."""

from __future__ import annotations

from collections.abc import Sequence

from anygpu.codegen.kernel import Output
from anygpu.codegen.lower import NotInKernel
from anygpu.codegen.nests.costs import host_cost
from anygpu.codegen.nests.flat import flat_nest
from anygpu.codegen.nests.layout import is_numpy_sum
from anygpu.codegen.nests.plan import Group, Plan, planned
from anygpu.codegen.nests.rewrites import rewritten
from anygpu.codegen.nests.rows import rows_nest
from anygpu.codegen.nests.scans import scan_nest
from anygpu.codegen.nests.steps import HostStep, NestProgram, Step, Written
from anygpu.codegen.nests.storage import Storage
from anygpu.codegen.nests.tree import tree_nests
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Constant, Input, Reshape


def nests(program: Program, *, vector_bytes: int = 64) -> NestProgram:
    """The steps of a program, for registers of so many bytes. Raises `TooLarge` where they would be too long."""
    written = Written(len(program.nodes))
    try:
        return _scheduled(program, vector_bytes, written, apart=False)
    except (NotInKernel, RecursionError):
        # A value turned out not to be where its reader wanted it: then all of them go through memory.
        return _scheduled(program, vector_bytes, written, apart=True)


def _scheduled(program: Program, vector_bytes: int, written: Written, *, apart: bool) -> NestProgram:
    program, results = _with_results(rewritten(program))
    bases = [_base(program, result) for result in results]
    plan = planned(program, tuple(dict.fromkeys(bases)), written, apart=apart)
    storage = Storage(program, written, plan.ranks)
    for node in sorted(plan.in_memory()):
        storage.declare(node, "output" if node in bases else "temporary")
    steps = [made for step in plan.steps for made in _steps(storage, plan, step, vector_bytes)]
    outputs = tuple(
        Output(storage.slot_of[base], program.specs[result]) for base, result in zip(bases, results, strict=True)
    )
    return NestProgram(
        slots=tuple(storage.slots),
        steps=tuple(steps),
        outputs=outputs,
        status=storage.status,
        checks=tuple(storage.checks),
    )


def _steps(storage: Storage, plan: Plan, step: Group | int, vector_bytes: int) -> Sequence[Step]:
    program = storage.program
    if isinstance(step, int):
        if program.specs[step].size == 0:
            return []
        sources = tuple(storage.slot_of[source] for source in program.nodes[step].inputs)
        return [HostStep(node=step, sources=sources, slot=storage.slot_of[step], cost=host_cost(program, step))]
    last = step.members[-1].root.node
    name = f"{_identifier(program.nodes[last].op.name)}_{last}"
    root = step.members[-1].root
    if step.rows == 0 and root.kind == "all" and is_numpy_sum(program, root):
        return tree_nests(storage, root, name, vector_bytes)
    if step.rows == 0 and root.kind == "scan":
        return [scan_nest(storage, root, name, vector_bytes)]
    if step.rows:
        return rows_nest(storage, step, name, vector_bytes, plan.needed(step))
    return flat_nest(storage, step, name, vector_bytes)


def _with_results(program: Program) -> tuple[Program, list[int]]:
    """A result that is an input or a constant is copied; nothing else is: nodes keep their numbers."""
    nodes, specs, results = list(program.nodes), list(program.specs), []
    for output in program.outputs:
        base = _base(program, output)
        if isinstance(program.nodes[base].op, Input | Constant):
            nodes.append(Node(Reshape(program.specs[output].shape), (output,)))
            specs.append(program.specs[output])
            results.append(len(nodes) - 1)
        else:
            results.append(output)
    lines = (*program.lines, *(None for _ in nodes[len(program.nodes) :]))
    return Program.trusted(tuple(nodes), tuple(results), tuple(specs), lines), results


def _base(program: Program, node: int) -> int:
    """The value that a result is another shape of."""
    while isinstance(program.nodes[node].op, Reshape):
        source = program.nodes[node].inputs[0]
        if isinstance(program.nodes[source].op, Input | Constant):
            return node
        node = source
    return node


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
