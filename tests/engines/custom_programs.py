"""Programs of one user's kernel, made from its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anygpu.engines.codegen.custom.lowering import reflect
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.custom import Custom, Scalar, Three
from anygpu.program.primitives import Spec


def nodes_of(
    source: str,
    shapes: Sequence[tuple[int, ...]],
    groups: Three,
    *,
    scalars: Mapping[str, float] | None = None,
    constants: Mapping[str, float] | None = None,
    updates: Sequence[str] = (),
    group: Three = (64, 1, 1),
    checked: bool = True,
    entry: str | None = None,
    reference: bytes = b"",
    title: str = "mine",
) -> list[Custom]:
    """One for each result."""
    found = reflect(source, title=title, constants=constants, updates=updates, entry=entry)
    return [
        Custom(
            language=found.language,
            title=title,
            source=found.source,
            entry=found.entry,
            parameters=found.parameters,
            scalars=tuple(Scalar(each.name, each.dtype, (scalars or {})[each.name]) for each in found.scalars),
            group=found.group or group,
            groups=groups,
            shapes=tuple(shapes),
            result=result,
            checked=checked,
            reference=reference,
        )
        for result in range(len(shapes))
    ]


def kernel_program(
    source: str, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]], groups: Three, **options: Any
) -> Program:
    """`inputs` are arrays, or anything else with a shape and a dtype."""
    recorder = Recorder()
    given = [recorder.input(Spec(each.shape, each.dtype.name)) for each in inputs]
    return recorder.program([recorder.add(each, *given) for each in nodes_of(source, shapes, groups, **options)])
