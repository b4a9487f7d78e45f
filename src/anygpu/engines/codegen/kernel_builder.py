"""Builds kernels from statements: sizes, buffers, and how values are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from math import gcd

import msgspec

from anygpu.engines.codegen.dialects.opencl import OpenCLPrinter, OpenCLVectors
from anygpu.engines.codegen.dialects.printer import Filled, Printer, only_used
from anygpu.engines.codegen.dialects.vector_text import NotVectorisable, VectorOperand, VectorSyntax, VectorText
from anygpu.engines.codegen.dialects.wgsl import WGSLPrinter, WGSLVectors
from anygpu.engines.codegen.index import Index, constant, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Buffer,
    Expr,
    Function,
    If,
    Let,
    Literal,
    Load,
    Name,
    Statement,
    Store,
    Text,
    names_used,
)
from anygpu.engines.codegen.lower import Lowering, RuleOf, Stored, Value
from anygpu.engines.codegen.target import ComputeType, Target, components
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
        """A builder for the kernels of one program.

        `stored` has the values that are in memory, `buffers` their declarations by name, and `rule_of` gives the rule
        that a node can break, or `None`.
        """
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
        """A kernel of statements, with the buffers and search functions that they use.

        Only buffers in `written`, and the status, may be written. Kernels of more work than `LONG_WORK` may be cut into
        several launches.
        """
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


# -- functions through which templates reach data, and one kernel made from a template with them
#
# `load_a(batch, row, k)`, `store_out(batch, row, column, total)`.


#: Loads a value at named positions, and stores one there.
At = Callable[[Lowering, Mapping[str, Index]], Value]
Put = Callable[[Lowering, Mapping[str, Index], Value], None]


def load_function(
    builder: KernelBuilder, name: str, lengths: Mapping[str, int], part: int, at: At, *, without: Sequence[int] = ()
) -> Function:
    """Gives one component of a value at positions."""
    lowering, positions = _begin(builder, lengths, without)
    value = at(lowering, positions)[part]
    return Function(name, _parameters(lengths), tuple(lowering.statements), value)


def store_function(
    builder: KernelBuilder,
    name: str,
    lengths: Mapping[str, int],
    types: Sequence[ComputeType],
    put: Put,
    *,
    without: Sequence[int] = (),
    value_name: str = "value",
) -> Function:
    """Takes the components of a value at positions."""
    lowering, positions = _begin(builder, lengths, without)
    names = [Name(value_name if number == 0 else f"{value_name}_{number}", type) for number, type in enumerate(types)]
    put(lowering, positions, tuple(names))
    return Function(name, (*_parameters(lengths), *names), tuple(lowering.statements))


def _begin(
    builder: KernelBuilder, lengths: Mapping[str, int], without: Sequence[int]
) -> tuple[Lowering, dict[str, Index]]:
    """A lowering inside of an accessor function, and its positions: the parameters by name, with their lengths."""
    lowering = builder.lowering(without)
    lowering.scopes[0].variables.update(lengths)
    for name in (*lengths, "value", "total"):
        lowering.unique(name)
    return lowering, {name: variable(name, length) for name, length in lengths.items()}


def _parameters(lengths: Mapping[str, int]) -> tuple[Name, ...]:
    return tuple(Name(name, "i32") for name in lengths)


class _SideBySide(VectorText):
    """Reads only what lies side by side: a vector of single elements is no gain over the plain accessor."""

    def _load(self, expr: Load) -> VectorOperand:
        """A load of neighbours or of elements at fixed distances. Raises `NotVectorisable` where they are elsewhere."""
        step = self._step(expr.index)
        if self._varies(expr.index) and step != 1:
            text = self.spread(expr) if step is None else None
            if text is None:
                raise NotVectorisable
            return text
        return super()._load(expr)


class _WholeWGSL(WGSLVectors):
    """Vectors of buffers that are declared in vectors, or nothing."""

    def load(self, buffer: Buffer, index: Index) -> str | None:
        """A load of four neighbours. Raises `NotVectorisable` where they cannot be had together."""
        text = super().load(buffer, index)
        if text is None:
            raise NotVectorisable
        return text

    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None:
        """A store of four neighbours. Raises `NotVectorisable` where they cannot be stored together."""
        lines = super().store(buffer, index, value)
        if lines is None:
            raise NotVectorisable
        return lines


class VectorAccessor:
    """The same functions for a vector of neighbours along one of the positions.

    In WGSL a buffer of vectors has no others, so a vector begins at a multiple of its width.
    """

    def __init__(
        self, builder: KernelBuilder, printer: Printer, lengths: Mapping[str, int], along: str, width: int
    ) -> None:
        """Accessor functions that take `width` neighbours along one of the named positions.

        `used` collects the buffers that they reach.
        """
        self.builder = builder
        self.printer = printer
        self.lengths = lengths
        self.along = along
        self.width = width
        #: Buffers that are read or written in vectors.
        self.used: set[str] = set()

    @property
    def possible(self) -> bool:
        """Whether vectors of this width fit the length along their axis."""
        length = self.lengths[self.along]
        if isinstance(self.printer, WGSLPrinter):
            return self.width == WGSLVectors.width and length % self.width == 0 and length > 0
        return self.width > 1 and length >= self.width

    @property
    def unit(self) -> int:
        """Aligned vectors begin at multiples of this; those of WGSL are."""
        return gcd(self.lengths[self.along], self.width)

    def _positions(self, *, in_units: bool = False) -> dict[str, Index]:
        """Positions of the first of `width` neighbours: `along` counts units of the alignment in WGSL or where
        asked, else elements.
        """
        result = {name: variable(name, length) for name, length in self.lengths.items()}
        length = self.lengths[self.along]
        if isinstance(self.printer, WGSLPrinter) or in_units:
            first = variable("strip", (length - self.width) // self.unit + 1) * self.unit
        else:
            # The vector begins where all of it is inside.
            first = Index(0, [(Counter(self.along, 0, length - self.width), 1)]) if length > self.width else constant(0)
        result[self.along] = first + variable("neighbour", self.width)
        return result

    def load(self, name: str, at: At, *, without: Sequence[int] = (), aligned: bool = False) -> str | None:
        """`aligned` promises that vectors begin at multiples of what their width and the axis have in common."""
        found = self._loaded(name, at, without, in_units=False)
        if found is None and aligned and not isinstance(self.printer, WGSLPrinter) and self.unit > 1:
            found = self._loaded(name, at, without, in_units=True)
        return found

    def _loaded(self, name: str, at: At, without: Sequence[int], *, in_units: bool) -> str | None:
        """The text of a function that loads a vector; `None` where the value cannot be computed in vectors."""
        lowering, syntax, text = self._begin(without)
        try:
            (value,) = at(lowering, self._positions(in_units=in_units))
            lines = text.lines(lowering.statements)
            result = text.vector(value)
        except NotVectorisable:
            return None
        if in_units:
            lines = [self.printer.syntax.position("strip", f"{self.along} / {self.unit}"), *lines]
        return self._function(
            name, syntax, syntax.type_name(value.type), None, [*lines, *text.taken(), f"return {result};"]
        )

    def store(self, name: str, type: ComputeType, put: Put, *, without: Sequence[int] = ()) -> str | None:
        """The text of a function that stores a vector; `None` where that cannot be done."""
        lowering, syntax, text = self._begin(without)
        text.wide.add("total")
        try:
            put(lowering, self._positions(), (Name("total", type),))
            lines = text.lines(lowering.statements)
        except NotVectorisable:
            return None
        return self._function(name, syntax, None, syntax.type_name(type), lines)

    def _begin(self, without: Sequence[int]) -> tuple[Lowering, VectorSyntax, VectorText]:
        """A lowering for the function's body, with the vectors of the dialect and a printer of statements in them."""
        lowering, _ = _begin(self.builder, self.lengths, without)
        lowering.scopes[0].variables.update(("neighbour", "strip"))
        lowering.unique("strip")
        syntax: VectorSyntax
        if isinstance(self.printer, WGSLPrinter):
            syntax = _WholeWGSL(self.printer)
        elif isinstance(self.printer, OpenCLPrinter):
            syntax = OpenCLVectors(self.printer, self.width)
            syntax.patient = False
        else:
            raise TypeError(f"no vectors in {self.printer}")
        return lowering, syntax, _SideBySide(self.printer, syntax, "neighbour", constant(0))

    def _function(
        self, name: str, syntax: VectorSyntax, result: str | None, total: str | None, lines: Sequence[str]
    ) -> str:
        """The text of a function that takes positions (and a total to store) and has these lines as its body."""
        parameters = dict.fromkeys(self.lengths, self.printer.syntax.types["i32"])
        if total is not None:
            parameters["total"] = total
        if isinstance(syntax, WGSLVectors):
            self.used |= syntax.used
            lines = [self.printer.syntax.position("strip", f"{self.along} / {self.width}"), *lines]
        return self.printer.function(name, parameters, result, lines)


def buffers_of(builder: KernelBuilder, functions: Sequence[Function], written: Sequence[str]) -> list[Buffer]:
    """The buffers that functions use, and how."""
    used = names_used([statement for function in functions for statement in body_of(function)])
    result = []
    for buffer in builder.buffers.values():
        if buffer.name in used:
            access = "read_write" if buffer.name in written or buffer.name == "status" else "read"
            result.append(msgspec.structs.replace(buffer, access=access))
    return result


def texts_of(printer: Printer, functions: Sequence[Function]) -> list[str]:
    return [printer.function_text(function) for function in functions]


# -- one kernel from a template
#
# Its accessors, the buffers that they use, and the text around the template's lines.


#: More operations than this, and a driver may have to cut the kernel into several dispatches.
_LONG_WORK = 1e9


class TemplateKernel:
    """Binds the buffers of the accessors at once, so that the caller can add vector accessors before it is filled."""

    def __init__(
        self, builder: KernelBuilder, text: Printer, functions: Sequence[Function], written: Sequence[str]
    ) -> None:
        """A kernel from a template's text and the accessor functions that it calls.

        `written` are the names of the buffers that the functions store to.
        """
        self._builder, self._text, self._functions = builder, text, functions
        statements = [statement for function in functions for statement in body_of(function)]
        self._loads, self._searches = builder.searches_in(names_used(statements))
        self._buffers = buffers_of(builder, [*self._loads, *functions], written)
        text.use(self._buffers, cuttable=False)

    def filled(
        self,
        name: str,
        template: Callable[..., str],
        grid: tuple[int, int],
        *,
        in_vectors: Sequence[str],
        work: float,
        nodes: Sequence[int],
    ) -> Kernel:
        """`template` takes the `Surroundings`, `in_vectors` are vector accessors, and `nodes` are what is computed."""
        text, (groups, group_size) = self._text, grid
        texts = [*texts_of(text, self._loads), *(text.filled(each) for each in self._searches)]
        texts += [*texts_of(text, self._functions), *in_vectors]
        numbers = ["first_group"] if work > _LONG_WORK else []
        numbers += [f"offset_{buffer.name}" for buffer in self._buffers if buffer.has_offset]
        source = template(
            # A total is rounded once for each product that is added, which is also what a BLAS does.
            declarations=text.declarations(numbers).replace("FP_CONTRACT OFF", "FP_CONTRACT ON"),
            functions="\n\n".join(part for part in (text.library_texts(), *texts) if part),
            name=name,
            parameters=text.parameters(numbers),
            pass_=text.handed_on,
            group=text.group_line(groups, numbers),
        )
        return Kernel(
            name=name,
            source=source,
            bindings=text.bindings(),
            groups=groups,
            group_size=group_size,
            numbers=tuple(numbers),
            flops=work,
            bytes_moved=self._builder.work_of(nodes)[1],
        )
