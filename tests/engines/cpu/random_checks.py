"""What is asked of a random program as native code: agreement, buffers that are not left, threads, bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from anygpu.base.typing import HostArray
from anygpu.engines.cpu.engine import executable
from anygpu.engines.cpu.runtime import native_runtime
from anygpu.engines.numpy import lowering
from anygpu.program import primitives as p
from anygpu.program.dtypes import KIND
from anygpu.program.functions import COMPARISONS
from anygpu.program.graph import Program
from tests.engines.cpu.guarded import Edge, run_guarded
from tests.support.random_programs import random_inputs, random_program
from tests.support.random_programs.error_bounds import disagreement

EDGES: tuple[Edge, ...] = ("begin", "end")
_EXACT_UNARY = frozenset(
    ("negative", "abs", "sign", "floor", "ceil", "trunc", "rint", "sqrt", "reciprocal", "invert", "popcount", "isnan")
)
_EXACT_BINARY = frozenset(
    (*COMPARISONS, "add", "subtract", "multiply", "divide", "minimum", "maximum", "copysign", "bitwise_and")
) | {"bitwise_or", "bitwise_xor", "left_shift", "right_shift", "complex"}


def exact_results(program: Program) -> list[bool]:
    """For each result whether it has one right answer, to the last bit."""
    found: list[bool] = []
    #: Whether NumPy has the value in C order.
    in_order: list[bool] = []
    for position, (op, sources) in enumerate(program.nodes):
        specs = [program.specs[source] for source in sources]
        in_order.append(all(in_order[source] for source in sources) and not isinstance(op, p.Permute | p.Flip))
        is_exact = _is_exact(op, specs, program.specs[position])
        if isinstance(op, p.Reduce) and op.fn == "sum" and not is_exact:
            is_exact = in_order[sources[0]] and _is_contiguous_sum(op, specs[0], program.nodes[sources[0]].op)
        found.append(is_exact and all(found[source] for source in sources))
    return [found[output] for output in program.outputs]


def _is_contiguous_sum(op: p.Reduce, x: p.Spec, made_by: p.Primitive) -> bool:
    """Whether it goes along the last axes of an array that NumPy has just made: its order of additions is known."""
    trailing = tuple(range(len(x.shape) - len(op.axes), len(x.shape)))
    return KIND[x.dtype] == "float" and op.axes == trailing and made_by.is_elementwise


def _is_exact(op: p.Primitive, inputs: Sequence[p.Spec], result: p.Spec) -> bool:
    kinds = {KIND[spec.dtype] for spec in (*inputs, result)}
    match op:
        case p.Unary():
            return op.fn in _EXACT_UNARY and "complex" not in kinds
        case p.Binary():
            # A complex product may be computed in several ways.
            return op.fn in _EXACT_BINARY and ("complex" not in kinds or op.fn in ("add", "subtract", "complex"))
        case p.Select() | p.Cast() | p.Input() | p.Constant() | p.Iota() | p.Gather():
            return True
        case p.Reduce():
            return op.fn not in ("sum", "prod") or not kinds & {"float", "complex"}
    return op.is_movement


def same(one: Sequence[HostArray], other: Sequence[HostArray]) -> bool:
    return [each.tobytes() for each in one] == [each.tobytes() for each in other]


class Judged(NamedTuple):
    """A random program that ran as native code."""

    #: Whether one of its results has only one right answer.
    has_exact: bool
    #: What was wrong, by what was asked.
    wrong: dict[str, str]


def judged(seed: int) -> Judged:
    """Run the program on NumPy and as native code, between protected pages, and on one and four threads."""
    rng = random.Random(seed)
    program = random_program(rng)
    inputs = random_inputs(program, rng)
    expected = lowering.run(program, inputs)
    compiled = executable(program)
    results = compiled(inputs)
    wrong: dict[str, str] = {}
    difference = disagreement(expected, results, program)
    if difference is not None:
        wrong["agreement"] = difference
    exact = [number for number, is_exact in enumerate(exact_results(program)) if is_exact]
    if not same([expected[number] for number in exact], [results[number] for number in exact]):
        wrong["bits"] = "a result that is exact has other bits"
    for edge in EDGES:
        if not same(run_guarded(compiled, inputs, edge), results):
            wrong["pages"] = f"another result where buffers {edge} at a protected page"
    pool = native_runtime().pool
    try:
        for threads in (1, 4):
            pool.start(threads)
            if not same(compiled(inputs), results):
                wrong["threads"] = f"another result with {threads} threads"
    finally:
        pool.start()
    return Judged(bool(exact), wrong)
