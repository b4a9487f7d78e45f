"""Builds kernels from statements: sizes, buffers, and how values are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import msgspec

from anygpu.engines.codegen.dialects.opencl import OpenCLPrinter
from anygpu.engines.codegen.dialects.printer import Filled, Printer, only_used
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter
from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Buffer,
    Expr,
    Function,
    If,
    Let,
    Literal,
    Name,
    Statement,
    Store,
    Text,
    names_used,
)
from anygpu.engines.codegen.lower import Lowering, RuleOf, Stored, Value
from anygpu.engines.codegen.target import Target, components
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program

# -- WGSL and OpenCL C
#
# Two ways to print the same kernel form. (LLVM IR, which has loop nests, is apart.)


def printer(target: Target) -> Printer:
    """What prints kernels for devices of that kind."""
    return WGSLPrinter(target) if target.dialect == "wgsl" else OpenCLPrinter(target)


# -- builds kernels from statements
#
# Sizes, buffers, and how values are stored.


#: More work than this in one kernel, and a driver may have to cut it into several dispatches.
LONG_WORK = 2e8


class GroupShape(msgspec.Struct, frozen=True):
    """The tunable numbers of a kernel that is a loop."""

    #: Invocations in a group.
    group: int = 256
    #: For maps: elements of one invocation.
    elements: int = 1
    #: For rows: invocations that share a row, and rows that they do in sequence to share loads.
    lanes: int = 1
    rows: int = 1
    #: Numbers that one invocation handles at once.
    vector: int = 1


class KernelBuilder:
    """Builds the kernels of one schedule."""

    def __init__(
        self, program: Program, target: Target, stored: dict[int, Stored], buffers: dict[str, Buffer], rule_of: RuleOf
    ) -> None:
        self.program = program
        self.target = target
        self.stored = stored
        self.buffers = buffers
        self.rule_of = rule_of
        #: Values that are read outside of their own kernel.
        self.needed: frozenset[int] = frozenset(stored)
        #: Functions that a lowering may call: those of searches.
        self.searches: dict[int, str] = {}
        self.search_functions: dict[str, Callable[[], tuple[list[Function], Filled]]] = {}

    def lowering(self, without: Sequence[int] = ()) -> Lowering:
        """For a kernel that computes the nodes `without` itself."""
        stored = {node: where for node, where in self.stored.items() if node not in without}
        result = Lowering(self.program, stored, self.rule_of, taken=(*self.buffers, *_RESERVED))
        result.searches = self.searches
        return result

    def kernel(
        self,
        name: str,
        statements: Sequence[Statement],
        *,
        groups: int,
        group_size: int,
        written: Sequence[str],
        work: float,
        bytes_moved: float,
    ) -> Kernel:
        buffers = []
        loads, templates = self.searches_in(names_used(statements))
        inner = [statement for function in loads for statement in body_of(function)]
        for buffer in only_used(list(self.buffers.values()), [*statements, *inner]):
            access = "read_write" if buffer.name in written or buffer.name == "status" else "read"
            buffers.append(msgspec.structs.replace(buffer, access=access))
        return printer(self.target).kernel(
            name,
            buffers=buffers,
            body=statements,
            functions=loads,
            templates=templates,
            groups=groups,
            group_size=group_size,
            cuttable=work > LONG_WORK,
            flops=work,
            bytes_moved=bytes_moved,
        )

    def searches_in(self, called: Set[str]) -> tuple[list[Function], list[Filled]]:
        """The searches among the functions that are called, with the accessors of their lines."""
        loads: list[Function] = []
        templates: list[Filled] = []
        for search, make in self.search_functions.items():
            if search in called:
                functions, template = make()
                inner, further = self.searches_in(
                    names_used([each for function in functions for each in body_of(function)])
                )
                loads += [*inner, *functions]
                templates += [*further, template]
        return loads, templates

    def work_of(self, nodes: Sequence[int]) -> tuple[float, float]:
        """Rough operations and bytes of computing nodes from what is stored."""
        program, seen, waiting = self.program, set[int](), list(nodes)
        work = moved = 0.0
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            spec = program.specs[node]
            if node in self.stored and node not in nodes:
                moved += spec.nbytes
                continue
            work += spec.size
            moved += spec.nbytes if node in nodes else 0
            waiting.extend(program.nodes[node].inputs)
        return work, moved


def body_of(function: Function) -> list[Statement]:
    """Its statements, with its result as the last of them."""
    return [*function.body, *([Let("result", function.result)] if function.result is not None else [])]


_RESERVED = (
    *("group", "lane", "i", "row", "column", "part", "block", "turn", "step", "each", "chain", "strips"),
    *("status", "reach", "numbers", "stop", "first"),
)


def store(lowering: Lowering, builder: KernelBuilder, node: int, place: Index, value: Value) -> None:
    """Into the node's own buffer, at a position in C order."""
    stored = builder.stored[node]
    count = components(builder.program.specs[node].dtype)
    for number, part in enumerate(value):
        lowering.add(Store(stored.buffer, place * count + number, as_stored(part, stored.dtype)))


def as_stored(value: Expr, dtype: DType) -> Expr:
    """Truth values are stored as numbers in buffers of wider elements."""
    if value.type == "bool" and dtype != "bool":
        return Apply("cast_u32", (value,), "u32")
    return value


def leave_beyond(name: str, count: int) -> Statement:
    return If(Apply("greater_equal", (Name(name, "i32"), Literal(count, "i32")), "bool"), (Text("return;"),))


def power_of_two_up(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
