"""The kernel form: what a kernel does, before a dialect prints it.

Expressions are small trees over named values; statements are the few that kernels here are made of. Positions are
`Index` forms, so that a dialect prints them as sums. Nothing in this form knows WGSL or OpenCL C.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.kernel import Access
from anygpu.engines.codegen.target import ComputeType
from anygpu.program.dtypes import ITEMSIZE, DType


class Literal(msgspec.Struct, frozen=True):
    """A number. One that the user has `given` must mean exactly itself, whatever compilers fold."""

    value: float | int | bool
    type: ComputeType
    #: Whether it is a number of the program, which may be anything: printers hide from compilers what they could
    #: fold into something that their language leaves undefined.
    given: bool = False


class Name(msgspec.Struct, frozen=True):
    """A value that a statement has named."""

    name: str
    type: ComputeType


class Position(msgspec.Struct, frozen=True):
    """A position as a number."""

    index: Index
    type: ComputeType = "i32"


class Load(msgspec.Struct, frozen=True):
    """An element of a buffer, or of an array that the group shares."""

    buffer: str
    index: Index
    type: ComputeType


class Apply(msgspec.Struct, frozen=True):
    """A function of values: an operator of the dialect, or one of `anygpu.engines.codegen.functions`."""

    fn: str
    args: tuple[Expr, ...]
    type: ComputeType


class Choose(msgspec.Struct, frozen=True):
    """One of two values by a condition; both may be computed."""

    condition: Expr
    yes: Expr
    no: Expr

    @property
    def type(self) -> ComputeType:
        return self.yes.type


class Call(msgspec.Struct, frozen=True):
    """A function that the kernel itself defines."""

    name: str
    args: tuple[Expr, ...]
    type: ComputeType


Expr = Literal | Name | Position | Load | Apply | Choose | Call


class Let(msgspec.Struct, frozen=True):
    name: str
    value: Expr


class Variable(msgspec.Struct, frozen=True):
    """A value that changes."""

    name: str
    value: Expr


class Assign(msgspec.Struct, frozen=True):
    name: str
    value: Expr


class Store(msgspec.Struct, frozen=True):
    """A value written to a buffer at a position."""

    buffer: str
    index: Index
    value: Expr


class StoreWord(msgspec.Struct, frozen=True):
    """Into a buffer whose elements share words: the part of a word that belongs to element `word * parts + part`."""

    buffer: str
    #: Named by the surrounding `Words`.
    value: Expr


class Loop(msgspec.Struct, frozen=True):
    """`variable` from `start` by `step` while it is less than `stop`."""

    variable: str
    start: Expr
    stop: int | Expr
    step: int
    body: tuple[Statement, ...]
    #: Accumulators that are updated in the body by `Assign`, one function each: only with these may the
    #: loop be done in vectors.
    sums: tuple[tuple[str, str], ...] = ()
    #: Whether neighbouring rounds may be done at once.
    vector: int = 1
    #: Whether elements that lie beside those that it stores are stored by the same invocation, or by none.
    alone: bool = False
    #: Of nests (`anygpu.engines.codegen.nests`): vectors in a round, and whether the sum is NumPy's of a contiguous
    #: axis.
    unroll: int = 1
    pairwise: bool = False


class If(msgspec.Struct, frozen=True):
    condition: Expr
    body: tuple[Statement, ...]


class Fold(msgspec.Struct, frozen=True):
    """Combine a value of each lane over the lanes of a row; afterwards every lane has the total.

    `combine` takes the values under `names` and `others` and assigns the results to `names`.
    """

    names: tuple[Name, ...]
    others: tuple[Name, ...]
    combine: tuple[Statement, ...]
    lanes: int
    rows: int


class Barrier(msgspec.Struct, frozen=True):
    """All lanes of a group see what each has written to shared arrays."""


class Report(msgspec.Struct, frozen=True):
    """Tell the host, where the condition holds, that a rule is broken, and by which value (an i32)."""

    number: int
    condition: Expr
    value: Expr


class Text(msgspec.Struct, frozen=True):
    """A line in the dialect's own words."""

    line: str


Statement = Let | Variable | Assign | Store | StoreWord | Loop | If | Fold | Barrier | Report | Text


class Buffer(msgspec.Struct, frozen=True):
    """A buffer parameter, of elements of a real type."""

    name: str
    slot: int
    dtype: DType
    size: int
    access: Access = "read"
    #: Whether the number `offset_<name>` says where the data begins.
    has_offset: bool = False
    #: The element type in WGSL is atomic<u32>: only templates that say so use it.
    atomic: bool = False

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]


class Shared(msgspec.Struct, frozen=True):
    """An array that the group shares."""

    name: str
    type: ComputeType
    size: int


class Function(msgspec.Struct, frozen=True):
    """A function of positions and values, for templates: `load_a(batch, row, k)`."""

    name: str
    parameters: tuple[Name, ...]
    body: tuple[Statement, ...]
    #: `None` when it stores.
    result: Expr | None = None


def names_used(statements: Sequence[Statement]) -> set[str]:
    """The buffers and shared arrays that statements read or write, and the functions that they call."""
    used: set[str] = set()

    def look(expr: Expr) -> None:
        match expr:
            case Load():
                used.add(expr.buffer)
                look_index(expr.index)
            case Call():
                used.add(expr.name)
                for each in expr.args:
                    look(each)
            case Apply():
                for each in expr.args:
                    look(each)
            case Choose():
                for each in (expr.condition, expr.yes, expr.no):
                    look(each)
            case Position():
                look_index(expr.index)

    def look_index(index: Index) -> None:
        for atom, _ in index.terms:
            meaning = getattr(atom, "meaning", None)
            if meaning is not None:
                look(meaning)
            inner = getattr(atom, "of", None)
            if inner is not None:
                look_index(inner)

    def walk(statement: Statement) -> None:
        match statement:
            case Let() | Variable() | Assign():
                look(statement.value)
            case Store():
                used.add(statement.buffer)
                look_index(statement.index)
                look(statement.value)
            case StoreWord():
                used.add(statement.buffer)
                look(statement.value)
            case Loop():
                look(statement.start)
                if not isinstance(statement.stop, int):
                    look(statement.stop)
                for each in statement.body:
                    walk(each)
            case If():
                look(statement.condition)
                for each in statement.body:
                    walk(each)
            case Report():
                used.add("status")
                look(statement.condition)
                look(statement.value)

    for each in statements:
        walk(each)
    return used
