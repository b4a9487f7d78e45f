"""Programs of one user's kernel, made from its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from anygpu.engines.codegen.custom.reflected import Reflected, Unreadable, language_of, with_defines, with_updates
from anygpu.engines.codegen.custom.wgsl import reflected_wgsl
from anygpu.hardware.device import Device
from anygpu.program.graph import Program, Recorder
from anygpu.program.ops.custom import Custom, Scalar, Three
from anygpu.program.primitives import Spec

if TYPE_CHECKING:
    from anygpu.engines.opencl.engine import OpenCLEngine


@cache
def _opencl() -> tuple[OpenCLEngine, Device]:
    from anygpu.engines.opencl.engine import OpenCLEngine

    engine = OpenCLEngine()
    return engine, next(each for each in engine.discover() if isinstance(each, Device))


def reflected(
    source: str,
    *,
    title: str = "",
    constants: Mapping[str, float] | None = None,
    updates: Sequence[str] = (),
    entry: str | None = None,
) -> Reflected:
    """What a text declares: OpenCL C is read by the first device's compiler."""
    try:
        if language_of(source, title) == "wgsl":
            found = reflected_wgsl(source, entry, constants or {})
        else:
            engine, device = _opencl()
            found = engine.reflected(with_defines(source, constants or {}), entry, title, device)
    except Unreadable as problem:
        raise problem.for_kernel(title, source) from None
    return with_updates(found, title, updates)


def nodes_of(
    source: str,
    shapes: Sequence[tuple[int, ...]],
    groups: Three,
    *,
    scalars: Mapping[str, float] | None = None,
    constants: Mapping[str, float] | None = None,
    updates: Sequence[str] = (),
    group: Three = (64, 1, 1),
    entry: str | None = None,
    reference: bytes = b"",
    title: str = "mine",
) -> list[Custom]:
    """One for each result."""
    found = reflected(source, title=title, constants=constants, updates=updates, entry=entry)
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
            reference=reference,
            group_memory=found.group_memory,
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
