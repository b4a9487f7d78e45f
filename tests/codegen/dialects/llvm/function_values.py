"""Values of functions as the processor computes them, at the points of `tests.codegen.function_cases`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel_ir import Apply, Buffer, Expr, Let, Load, Loop, Name, Statement, Store
from anygpu.engines.codegen.nests.steps import Nest, NestProgram
from anygpu.engines.codegen.target import ComputeType
from anygpu.program.dtypes import DType
from tests.codegen.dialects.llvm.running import BEGIN, END, Code, counter, program
from tests.codegen.function_cases import Case, points
from tests.codegen.function_errors import Outcome, judged

DTYPE: dict[ComputeType, DType] = {
    **{"bool": "bool", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64"},
    **{"f32": "float32", "f64": "float64"},
}


def together(cases: Sequence[Case], count: int, lanes: int) -> NestProgram:
    """All functions of equal operands in one loop."""
    arguments = cases[0].arguments
    i = counter("i", count)
    buffers = [Buffer(f"in{k}", k, DTYPE[type], count) for k, type in enumerate(arguments)]
    body: list[Statement] = [Let(f"x{k}", Load(f"in{k}", i, type)) for k, type in enumerate(arguments)]
    given: tuple[Expr, ...] = tuple(Name(f"x{k}", type) for k, type in enumerate(arguments))
    for number, case in enumerate(cases):
        buffers.append(Buffer(f"out{number}", len(buffers), DTYPE[case.result], count, "write"))
        body.append(Store(f"out{number}", i, Apply(case.fn, given, case.result)))
    return program(buffers, [Loop("i", BEGIN, END, 1, tuple(body), vector=lanes)], count=count)


def evaluated(cases: Sequence[Case], inputs: Sequence[HostArray], lanes: int, plain: bool = False) -> list[HostArray]:
    """The values of functions of equal operands."""
    nests = together(cases, inputs[0].size, lanes)
    arguments = cases[0].arguments
    arrays = [np.ascontiguousarray(each, DTYPE[type]) for each, type in zip(inputs, arguments, strict=True)]
    results = [np.empty(inputs[0].size, DTYPE[case.result]) for case in cases]
    Code(nests, plain=plain).run([*arrays, *results])
    assert isinstance(nests.steps[0], Nest)
    return results


def grouped(chosen: Iterable[Case]) -> list[list[Case]]:
    groups: dict[Any, list[Case]] = defaultdict(list)
    for case in chosen:
        groups[case.arguments, case.fn if case.fn == "ldexp" else case.points].append(case)
    return list(groups.values())


def outcomes(chosen: Iterable[Case], lanes: int, count: int = 3001, plain: bool = False) -> Iterator[Outcome]:
    for cases in grouped(chosen):
        inputs = points(cases[0], count)
        for case, got in zip(cases, evaluated(cases, inputs, lanes, plain), strict=True):
            yield judged(case, inputs, got)
