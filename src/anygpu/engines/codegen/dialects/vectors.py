"""Loops in vectors: one invocation does neighbours together, because every load and store has its price.

A loop over neighbours becomes a loop over strips of neighbours when everything in it allows that; what does not is
printed as it is. Two forms: a loop whose rounds are independent, or are summed up (`loop_in_vectors`); and a fixed
stretch of neighbours around other loops (`stretch_in_vectors`), as in maps and in sums along the first axis. Rows that
several loops go over can stay in registers between them (see `anygpu.engines.codegen.dialects.vector_rows`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.vector_rows import (
    Registers,
    Strips,
    as_index,
    neutral,
    planned,
    strip_name,
    strips_of,
    types_of_sums,
)
from anygpu.engines.codegen.dialects.vector_text import (
    NotVectorisable,
    VectorOperand,
    VectorSyntax,
    VectorText,
    replaced,
)
from anygpu.engines.codegen.index import Index, constant
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Apply,
    Assign,
    Choose,
    Expr,
    If,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Variable,
)
from anygpu.engines.codegen.target import ComputeType, Target, indented

#: Bodies of more statements than this are not written several times.
_SHORT = 4
#: The most statements of a map that are written once for each of an invocation's vectors.
_UNROLLED = 24
#: Rounds of a short loop that are unrolled.
_AT_ONCE = 4


class VectorPrinter(Printer):
    """A printer that does loops in vectors where they allow it."""

    def __init__(self, target: Target) -> None:
        """Loops over lanes are tried in vectors until one of them fails."""
        super().__init__(target)
        #: Lanes that share a row must share it in the same way in all loops over it: all are in vectors, or none.
        self._lanes_in_vectors = True
        self._lanes_failed = False
        self._registers: Registers | None = None

    @abstractmethod
    def vector_syntax(self, loop: Loop) -> VectorSyntax: ...

    def loop(self, loop: Loop) -> list[str]:
        """The lines of a loop: in vectors where something is loaded or stored together, and otherwise as it is.

        A loop over lanes that fails makes the caller print the whole kernel again without lanes in vectors.
        """
        if loop.vector > 1 and (loop.step == 1 or self._lanes_in_vectors):
            needed = dict(self.needed)
            syntax = self.vector_syntax(loop)
            lines = self._in_vectors_of(syntax, loop)
            # Where nothing lies side by side, neighbours are better left to each other.
            if lines is not None and syntax.together:
                self.done_in(syntax)
                return lines
            self.needed = needed
            self._lanes_failed |= loop.step > 1
        lines = super().loop(loop)
        if self._registers is not None and loop is self._registers.outer:
            return [*self._registers.before, *lines]
        return lines

    def _in_vectors_of(self, syntax: VectorSyntax, loop: Loop) -> list[str] | None:
        """The loop in vectors in the form that suits it, or `None`.

        The forms are a block of two loops, a stretch of fixed length, rows in registers, and strips.
        """
        if len(loop.body) == 1 and isinstance(loop.body[0], Loop):
            return block_in_vectors(self, syntax, loop, loop.body[0])
        if loop.stop == loop.vector and loop.step == 1 and not loop.sums:
            return stretch_in_vectors(self, syntax, loop)
        if self._registers is not None and loop.step > 1:
            return self._registers.lines(syntax, loop)
        return loop_in_vectors(self, syntax, loop)

    def done_in(self, syntax: VectorSyntax) -> None:
        """A loop has been printed with these syntax."""

    def rehearse(self, body: Sequence[Statement]) -> None:
        """Prints once to see what can be done in vectors: rows in registers at best, or else all of their loops."""
        self._lanes_in_vectors, self._registers = True, None
        if not _has_vectors(body):
            return
        needed, shared = dict(self.needed), dict(self.shared)
        for lanes, registers in ((True, True), (True, False), (False, False)):
            self._lanes_in_vectors, self._lanes_failed = lanes, False
            self._registers = planned(self, body) if registers else None
            if registers and self._registers is None:
                continue
            self.try_out(body)
            self.needed, self.shared = dict(needed), dict(shared)
            if not self._lanes_failed:
                break
        if self._registers is not None:
            self._registers.forget()

    def try_out(self, body: Sequence[Statement]) -> None:
        """Print the body once to see what happens; the lines are dropped."""
        if self._registers is not None:
            self._registers.forget()
        self.lines(body)


def _has_vectors(statements: Sequence[Statement]) -> bool:
    """Whether some loop asks for vectors."""
    return any(
        isinstance(each, Loop | If) and (_has_vectors(each.body) or (isinstance(each, Loop) and each.vector > 1))
        for each in statements
    )


def loop_in_vectors(printer: Printer, syntax: VectorSyntax, loop: Loop) -> list[str] | None:
    """Whole strips first, then what is left; `None` when the loop is not of that kind."""
    types, strips = types_of_sums(loop), strips_of(printer, syntax, loop)
    if strips is None or types is None or strips.number == 0:
        return None
    try:
        return _Strips(printer, syntax, loop, strips, types).lines()
    except NotVectorisable:
        return None


class _Strips:
    """Prints one loop over strips. Sums are kept in several vectors where that spares waiting, or rounds."""

    def __init__(
        self, printer: Printer, syntax: VectorSyntax, loop: Loop, strips: Strips, types: dict[str, ComputeType]
    ) -> None:
        """A loop in strips. Sums are kept in several chains of vectors where there are enough strips for that."""
        self._printer = printer
        self._syntax = syntax
        self._loop = loop
        self._strips = strips
        self._types = types
        self._sums = dict(loop.sums)
        self._strip = strip_name(loop)
        self._count = str(strips.number) if isinstance(strips.number, int) else "strips"
        self._place = Index(0, [(Counter(self._strip, 0, strips.high), 1)])
        enough = isinstance(strips.number, str) or strips.number >= syntax.chains * strips.lanes
        self._chains = syntax.chains if self._sums and enough and len(loop.body) <= _SHORT else 1

    def _running(self, name: str, chain: int) -> str:
        """The name of a running sum in one chain."""
        return f"{name}_strip" if self._chains == 1 else f"{name}_strip_{chain}"

    def _body(self, place: Index, chain: int) -> list[str]:
        """The body for one strip, with running sums in the vectors of a chain."""
        text = VectorText(
            self._printer, self._syntax, self._loop.variable, self._strips.base + place * self._syntax.width
        )
        text.wide.update(self._sums)
        text.spelled = {name: self._running(name, chain) for name in self._sums}
        return text.lines(self._loop.body, tuple(self._sums))

    def lines(self) -> list[str]:
        """All lines: the sums' beginnings, the loop over strips, their totals, and the elements that are left over."""
        single = self._body(self._place, 0)
        lines: list[str] = []
        if isinstance(self._strips.number, str):
            lines.append(self._printer.let("strips", "i32", self._strips.number))
        for name, fn in self._sums.items():
            lines += self._begun(name, fn)
        start, lanes = ("lane", self._strips.lanes) if self._strips.lanes > 1 else ("0", 1)
        if self._chains > 1:
            lines += self._chained(start, single)
        else:
            lines += [self._printer.loop_head(self._strip, start, self._count, lanes), *indented(single), "}"]
        for name, fn in self._sums.items():
            text = VectorText(self._printer, self._syntax, self._loop.variable, self._place)
            vectors = [self._running(name, chain) for chain in range(self._chains)]
            lines += text.total(fn, self._types[name], name, vectors)
        if not self._strips.exact:
            lines += self._rest()
        return ["{", *indented(lines), "}"] if self._sums or isinstance(self._strips.number, str) else lines

    def _begun(self, name: str, fn: str) -> list[str]:
        """The declarations of a running sum, each chain at its neutral value."""
        type, syntax = self._types[name], self._syntax
        start = neutral(fn, syntax, self._printer, type, name)
        return [syntax.variable(self._running(name, chain), type, start) for chain in range(self._chains)]

    def _chained(self, start: str, single: list[str]) -> list[str]:
        """The loop over several chains of strips at once, and one over the strips that are left."""
        chains, lanes = self._chains, self._strips.lanes
        several = []
        for chain in range(chains):
            several += ["{", *indented(self._body(self._place + chain * lanes, chain)), "}"]
        count, strip, many = self._strips.number, self._strip, chains * lanes
        if isinstance(count, int) and count % many == 0:
            return [self._printer.loop_head(strip, start, self._count, many), *indented(several), "}"]
        return [
            self._printer.variable(strip, "i32", start),
            f"for (; {strip} + {many - lanes} < {self._count}; {strip} += {many}) {{",
            *indented(several),
            "}",
            f"for (; {strip} < {self._count}; {strip} += {lanes}) {{",
            *indented(single),
            "}",
        ]

    def _rest(self) -> list[str]:
        """Elements behind the last whole strip, one by one."""
        printer, loop, strips, width = self._printer, self._loop, self._strips, self._syntax.width
        if isinstance(strips.number, int):
            start = printer.position(strips.base + strips.number * width)
        else:
            start = f"{printer.position(strips.base)} + {self._count} * {width}"
        start = f"{start} + lane" if strips.lanes > 1 else start
        stop = str(loop.stop) if isinstance(loop.stop, int) else printer.expression(loop.stop)
        return [printer.loop_head(loop.variable, start, stop, loop.step), *indented(printer.lines(loop.body)), "}"]


def stretch_in_vectors(printer: Printer, syntax: VectorSyntax, loop: Loop) -> list[str] | None:
    """A fixed stretch of neighbours, as whole vectors; a loop inside runs once for all of them."""
    if not isinstance(loop.stop, int) or printer.expression(loop.start) != "0" or loop.stop % syntax.width:
        return None
    try:
        return _Stretch(printer, syntax, loop.variable, loop.stop // syntax.width).lines(loop.body)
    except NotVectorisable:
        return None


def block_in_vectors(printer: Printer, syntax: VectorSyntax, outer: Loop, inner: Loop) -> list[str] | None:
    """Neighbours along two variables: what lies side by side along the outer one is loaded so, and turned."""
    if syntax.has_arrays or outer.stop != syntax.width or inner.stop != syntax.width:
        return None
    before: list[str] = []
    lines: list[str] = []
    known: dict[tuple[str, Index], list[str]] = {}
    try:
        for turn in range(syntax.width):
            text = TurnedText(printer, syntax, inner.variable, outer.variable, turn, known)
            inside = text.lines(inner.body)
            before += text.before_all
            lines += ["{", *indented(inside), "}"]
    except NotVectorisable:
        return None
    return [*before, *lines]


class TurnedText(VectorText):
    """One of the rounds of the outer variable. What the first round has loaded is `known` to the others."""

    def __init__(
        self,
        printer: Printer,
        syntax: VectorSyntax,
        variable: str,
        outer: str,
        turn: int,
        known: dict[tuple[str, Index], list[str]],
    ) -> None:
        """Statements of one turn of the loop `outer` around; `known` are lines of memory that earlier turns loaded."""
        super().__init__(printer, syntax, variable, constant(0))
        self.fixed = {outer: constant(turn)}
        self.before_all: list[str] = []
        self._outer = outer
        self._turn = turn
        self._lines_known = known

    def _load(self, expr: Load) -> VectorOperand:
        """A load whose neighbours lie along the outer loop.

        Whole lines along it are loaded once, before all turns, and columns are picked from them.
        """
        if self._step(expr.index) in (0, 1, None) or expr.index.steps_with(self._outer) != 1:
            return super()._load(expr)
        key = expr.buffer, expr.index
        if key not in self._lines_known:
            self._lines_known[key] = self._loaded_lines(expr)
        parts = [self._syntax.component(line, self._turn) for line in self._lines_known[key]]
        return VectorOperand(self._syntax.joined(expr.type, parts), True)

    def _loaded_lines(self, expr: Load) -> list[str]:
        """Load a vector along the outer loop for each component, before all turns; returns their names."""
        buffer = self._printer.buffers.get(expr.buffer)
        names = []
        for number in range(self._syntax.width):
            at = replaced(expr.index, {self._variable: constant(number), self._outer: constant(0)})
            text = self._syntax.load(buffer, at) if buffer is not None else None
            if text is None:
                raise NotVectorisable
            self._syntax.together += 1
            names.append(f"{expr.buffer}_line_{len(self._lines_known) * self._syntax.width + number}")
            self.before_all.append(self._syntax.let(names[-1], expr.type, text))
        return names


class _Stretch:
    """A short loop of fixed length, as one vector or several."""

    def __init__(self, printer: Printer, syntax: VectorSyntax, variable: str, count: int) -> None:
        """A stretch of `count` vectors, whose elements `variable` counts."""
        self._printer = printer
        self._syntax = syntax
        self._count = count
        each = Index(0, [(Counter("each", 0, count - 1), syntax.width)]) if count > 1 else constant(0)
        self._text = VectorText(printer, syntax, variable, each)
        self._variable = variable
        self._running: list[str] = []

    def lines(self, statements: Sequence[Statement], *, nested: bool = False) -> list[str]:
        """The lines of statements in vectors.

        Loops among them are done in between, with values kept in arrays of vectors. Raises `NotVectorisable` where the
        dialect cannot keep such arrays.
        """
        result: list[str] = []
        # Only what a later loop may need has to outlast the stretch that it is computed in.
        keep = not nested and any(isinstance(each, Loop) for each in statements)
        if keep and self._count > 1 and not self._syntax.has_arrays:
            # Arrays of vectors that are not in registers would cost more than they give.
            raise NotVectorisable
        waiting: list[Statement] = []

        def flush() -> None:
            if waiting:
                result.extend(self._together(waiting, keep=keep))
                waiting.clear()

        for statement in statements:
            if isinstance(statement, Loop):
                flush()
                result += self._inner_loop(statement)
            else:
                waiting.append(statement)
        flush()
        return result

    def _inner_loop(self, loop: Loop) -> list[str]:
        """A loop that runs once for all vectors; a short one is unrolled four times, where rounds cost."""
        stop = str(loop.stop) if isinstance(loop.stop, int) else self._printer.expression(loop.stop)
        start, name, step = self._printer.expression(loop.start), loop.variable, loop.step
        single = self.lines(loop.body, nested=True)
        short = len(loop.body) <= _SHORT and not any(isinstance(each, Loop) for each in loop.body)
        if self._syntax.has_arrays or not short:
            return [self._printer.loop_head(name, start, stop, step), *indented(single), "}"]
        several = []
        for number in range(_AT_ONCE):
            self._text.fixed = {name: Index(number * step, [(Counter(name, 0, (1 << 31) - 1), 1)])}
            several += ["{", *indented(self.lines(loop.body, nested=True)), "}"]
        self._text.fixed = {}
        first, last = as_index(loop.start), constant(loop.stop) if isinstance(loop.stop, int) else as_index(loop.stop)
        rounds = (last - first).constant if first is not None and last is not None and (last - first).is_constant else 1
        if rounds % (_AT_ONCE * step) == 0:
            return [self._printer.loop_head(name, start, stop, _AT_ONCE * step), *indented(several), "}"]
        return [
            self._printer.variable(name, "i32", start),
            f"for (; {name} < {stop} - {(_AT_ONCE - 1) * step}; {name} += {_AT_ONCE * step}) {{",
            *indented(several),
            "}",
            f"for (; {name} < {stop}; {name} += {step}) {{",
            *indented(single),
            "}",
        ]

    def _together(self, statements: Sequence[Statement], *, keep: bool) -> list[str]:
        """Statements for all vectors of the stretch. What later loops need is kept in arrays of vectors."""
        text, syntax = self._text, self._syntax
        before: list[str] = []
        inner: list[str] = []
        for statement in statements:
            if isinstance(statement, Variable):
                type = statement.value.type
                value = text.vector(statement.value)
                inner += text.taken()
                text.wide.add(statement.name)
                self._running.append(statement.name)
                if self._count == 1:
                    inner.append(syntax.variable(statement.name, type, value))
                else:
                    before.append(f"{syntax.type_name(type)} {statement.name}[{self._count}];")
                    text.spelled[statement.name] = f"{statement.name}[each]"
                    inner.append(f"{statement.name}[each] = {value};")
            elif isinstance(statement, Let) and keep and self._count > 1:
                held = text.expression(statement.value)
                if not held.wide:
                    before.append(self._printer.let(statement.name, statement.value.type, held.text))
                    continue
                inner += text.taken()
                before.append(f"{syntax.type_name(statement.value.type)} {statement.name}[{self._count}];")
                text.wide.add(statement.name)
                text.spelled[statement.name] = f"{statement.name}[each]"
                inner.append(f"{statement.name}[each] = {held.text};")
            else:
                inner += text.lines([statement], self._running)
        if self._count == 1 or not inner:
            return before + inner
        if not syntax.has_arrays and len(statements) <= _UNROLLED:
            return self._unrolled(statements)
        hint = ["#pragma unroll"] if syntax.has_arrays else []
        return [*before, *hint, self._printer.loop_head("each", "0", str(self._count), 1), *indented(inner), "}"]

    def _unrolled(self, statements: Sequence[Statement]) -> list[str]:
        """The statements once for each vector: rounds of a loop cost, and what one waits for another can do."""
        lines: list[str] = []
        for number in range(self._count):
            place = constant(number * self._syntax.width)
            text = VectorText(self._printer, self._syntax, self._variable, place)
            lines += ["{", *indented(text.lines(statements)), "}"]
        return lines


def types_along(statements: Sequence[Statement], variable: str) -> set[ComputeType]:
    """The types of the values that are loaded along a variable, or stored."""
    types: set[ComputeType] = set()

    def look(expr: Expr) -> None:
        match expr:
            case Load():
                if expr.index.depends_on(variable):
                    types.add(expr.type)
            case Apply():
                for each in expr.args:
                    look(each)
            case Choose():
                for each in (expr.condition, expr.yes, expr.no):
                    look(each)

    for statement in statements:
        match statement:
            case Let() | Assign() | Variable():
                look(statement.value)
            case Store():
                types.add(statement.value.type)
                look(statement.value)
            case Loop():
                types |= types_along(statement.body, variable)
    return types
