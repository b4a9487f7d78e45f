"""The result of scheduling a program for a processor: loop nests and host steps, in order, over numbered slots.

A nest is a function of a table of buffers and of a range of its outermost loop, `begin` to `end`. Its body is written
in the kernel form (`anygpu.codegen.kernel_ir`) with these conventions:

- The names `begin`, `end` and `part` are given: the range that this call does, and which of the parts it is. They may
  stand in bounds of loops and, as variables, in positions.
- A `Loop` with `vector` = w is done w neighbours at a time, `unroll` such vectors in a round; what is left over is done
  one by one. Its rounds are independent, but for the accumulators in `sums`. Other loops are done as they are written.
- A `Loop` with `pairwise` adds its one accumulator as NumPy adds along a contiguous axis, bit for bit: blocks of at
  most 128, eight partial sums in each, and halves of longer stretches after that.
- Buffers and scratch arrays are read and written by `Load` and `Store` in elements of their own type; values are in
  the compute type of it. Complex numbers are two elements. bool is a byte of 0 or 1.

What stays with NumPy or its BLAS is a host step: one node, computed by the rules of the numpy engine.
"""

from __future__ import annotations

import msgspec

from anygpu.codegen.kernel import Check, Output, Slot
from anygpu.codegen.kernel_ir import (
    Buffer,
    Statement,
)
from anygpu.program.dtypes import ITEMSIZE, DType

# -- the size of the code that a program may become


#: Values that may be looked at and written for a program: so many for each node, and in any case so many. A thousand
#: take 0.05 s. Programs that people wrote have 2 to 120 for a node.
VALUES_OF_NODE = 500
FEWEST_VALUES = 100_000
#: Lines of a module: LLVM takes a second for 20,000 of them.
MOST_LINES = 200_000


class TooMany(Exception):
    """One loop would compute too many values: it names the node that is computed at most places."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


class TooLarge(Exception):
    """A program would be more code than a compiler should be given."""


class Written:
    """How many values have been looked at and written for one program, in all of its loops."""

    def __init__(self, nodes: int) -> None:
        self.most = max(FEWEST_VALUES, VALUES_OF_NODE * nodes)
        self.values = 0

    def add_one(self) -> None:
        """One more value; raises `TooLarge` where there are too many."""
        self.values += 1
        if self.values > self.most:
            raise TooLarge(f"its loops compute more than {self.most:,} values")


# -- nests and host steps


class Scratch(msgspec.Struct, frozen=True):
    """An array that each call of a nest has for itself."""

    name: str
    dtype: DType
    size: int

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]


class Cost(msgspec.Struct, frozen=True):
    """What a step does, for predictions: arithmetic operations, calls of functions, and bytes from and to memory."""

    operations: float = 0.0
    functions: float = 0.0
    bytes: float = 0.0


class Nest(msgspec.Struct, frozen=True, kw_only=True):
    """One loop nest: `count` rounds of its outermost loop, done in parts of `grain`, in any order and on any thread.

    Parts are the same however many threads there are, and so are results.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]
    scratch: tuple[Scratch, ...] = ()
    count: int = 1
    grain: int = 1
    cost: Cost = Cost()

    @property
    def parts(self) -> int:
        return -(-self.count // self.grain)


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the program that NumPy computes, from the slots of its operands into its own."""

    node: int
    sources: tuple[int, ...]
    slot: int
    cost: Cost = Cost()


Step = Nest | HostStep


class NestProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as steps in order. Inputs have the first slots; every slot is contiguous, in C order."""

    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    #: The slot that is cleared before the steps, and has the broken rules after them (see `Check`).
    status: int | None = None
    checks: tuple[Check, ...] = ()
