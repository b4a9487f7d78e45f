"""Loops over neighbours in strips, and rows in registers: what one loop has loaded, the next need not load again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anygpu.engines.codegen.dialects.printer import Printer
from anygpu.engines.codegen.dialects.vector_text import NotVectorisable, VectorSyntax, VectorText, replaced
from anygpu.engines.codegen.index import Index, constant, variable
from anygpu.engines.codegen.index import IndexVariable as Counter
from anygpu.engines.codegen.kernel_ir import (
    Assign,
    Expr,
    If,
    Let,
    Literal,
    Load,
    Loop,
    Name,
    Position,
    Statement,
    Store,
)
from anygpu.engines.codegen.target import ComputeType

# -- loops over neighbours, cut into strips


class Strips(NamedTuple):
    """The strips of a loop: their number, and the position `base` of the first."""

    base: Index
    number: int | str
    #: Whether nothing is left behind the last of them.
    exact: bool
    #: The number of invocations that share them.
    lanes: int

    @property
    def high(self) -> int:
        return max(self.number - 1, 0) if isinstance(self.number, int) else (1 << 31) - 1


def strip_name(loop: Loop) -> str:
    return loop.variable.replace("column", "strip") if "column" in loop.variable else f"{loop.variable}_strip"


def strips_of(printer: Printer, syntax: VectorSyntax, loop: Loop) -> Strips | None:
    """A loop in strips of as many neighbours as a vector has; `None` where its start cannot be told.

    In a loop over lanes each lane takes every n-th strip. The number of strips is a text where the end of the loop is
    computed when it runs.
    """
    start = as_index(loop.start)
    if start is None:
        return None
    lanes = loop.step
    if lanes > 1:
        found = [(atom, factor) for atom, factor in start.terms if isinstance(atom, Counter) and atom.name == "lane"]
        if [factor for _, factor in found] != [1]:
            return None
        start = start - Index(0, found)
    stop = constant(loop.stop) if isinstance(loop.stop, int) else as_index(loop.stop)
    if stop is not None and (stop - start).is_constant:
        length = (stop - start).constant
        return Strips(start, length // syntax.width, length % syntax.width == 0, lanes)
    if isinstance(loop.stop, int):
        return None
    base = printer.position(start)
    base = f"({base})" if " " in base else base
    return Strips(start, f"({printer.expression(loop.stop)} - {base}) / {syntax.width}", False, lanes)


def as_index(expr: Expr) -> Index | None:
    """The position that an expression is, or `None` where it is more than that."""
    match expr:
        case Literal():
            return constant(int(expr.value))
        case Position():
            return expr.index
    return None


def types_of_sums(loop: Loop) -> dict[str, ComputeType] | None:
    """The type of every accumulator; `None` when something else is assigned to."""
    wanted = dict(loop.sums)
    types = {each.name: each.value.type for each in loop.body if isinstance(each, Assign)}
    return types if types.keys() == wanted.keys() else None


def neutral(fn: str, syntax: VectorSyntax, printer: Printer, type: ComputeType, name: str) -> str:
    """The initial accumulator: the identity of the reduction if it has one, else the loop's start value."""
    if fn in ("add", "multiply") and type != "bool":
        return syntax.broadcast(type, printer.literal(Literal(0 if fn == "add" else 1, type)))
    return syntax.broadcast(type, name)


# -- rows in registers
#
# What one loop over a row has loaded or computed, the next one need not load again.
#
# Where lanes share a row that is short enough, each has a few vectors of it. All loops over the row are written out,
# so that every vector has a name of its own: loads of what is known already disappear, and so do values that only
# wait in the result's memory for the loop after.


#: The most vectors of a row that one lane keeps,
MOST_TURNS = 32
#: and the most vectors that all its rows share.
MOST_BEFORE = 64

Key = tuple[str, Index]


class Registers:
    """Prints the loops over a row, and remembers in which names its vectors are."""

    def __init__(self, printer: Printer, loops: Sequence[Loop], outer: Loop | None) -> None:
        """Rows that several loops read and write, kept in registers between them.

        Stores that a later loop repeats at the same place are left out, so the last loop that stores a row is noted.
        """
        self._printer = printer
        #: The loop over rows, when there are several; and loads that are the same for all of them.
        self.outer = outer
        self.before: list[str] = []
        #: The last loop that stores at a place; stores in loops before it would be in vain.
        self._last_store: dict[Key, int] = {}
        self._number = {id(loop): number for number, loop in enumerate(loops)}
        for number, loop in enumerate(loops):
            for statement in loop.body:
                if isinstance(statement, Store):
                    self._last_store[_key(loop, statement.buffer, statement.index)] = number
        self._names: dict[Key, dict[int, str]] = {}

    def forget(self) -> None:
        self._names.clear()
        self.before.clear()

    def lines(self, syntax: VectorSyntax, loop: Loop) -> list[str] | None:
        """The lines of one loop, every strip of it written out; `None` where that cannot be done in vectors."""
        strips, types = strips_of(self._printer, syntax, loop), types_of_sums(loop)
        if strips is None or types is None or not isinstance(strips.number, int):
            return None
        sums = dict(loop.sums)
        begun = [
            syntax.variable(f"{name}_strip", types[name], neutral(fn, syntax, self._printer, types[name], name))
            for name, fn in sums.items()
        ]
        try:
            body = [
                line for turn in range(strips.number // strips.lanes) for line in self._turn(syntax, loop, strips, turn)
            ]
        except NotVectorisable:
            return None
        lines = [*begun, *body]
        for name, fn in sums.items():
            text = VectorText(self._printer, syntax, loop.variable, constant(0))
            lines += text.total(fn, types[name], name, [f"{name}_strip"])
        return lines

    def _turn(self, syntax: VectorSyntax, loop: Loop, strips: Strips, turn: int) -> list[str]:
        """The lines for one of a lane's vectors."""
        place = variable("lane", strips.lanes) + turn * strips.lanes
        text = VectorText(self._printer, syntax, loop.variable, strips.base + place * syntax.width)
        text.turn = f"_{turn}" if turn else ""
        sums = tuple(name for name, _ in loop.sums)
        text.wide.update(sums)
        text.spelled = {name: f"{name}_strip" for name in sums}
        lines: list[str] = []
        for statement in loop.body:
            if isinstance(statement, Let):
                lines += self._let(text, syntax, loop, statement, turn)
            elif isinstance(statement, Store):
                lines += self._store(text, loop, statement, turn)
            else:
                lines += text.lines([statement], sums)
        return lines

    def _let(self, text: VectorText, syntax: VectorSyntax, loop: Loop, statement: Let, turn: int) -> list[str]:
        """The lines of a declaration in one turn; none where an earlier loop has loaded the same.

        A load that is the same in all turns of the loop around is moved before it, as long as registers last.
        """
        name, value = statement.name, statement.value
        key = _key(loop, value.buffer, value.index) if isinstance(value, Load) else None
        if key is not None and turn in self._names.get(key, ()):
            text.wide.add(name)
            text.spelled[name] = self._names[key][turn]
            syntax.together += 1
            return []
        text.spelled[name] = f"{name}_{turn}"
        lines = text.lines([statement])
        if name not in text.wide:
            # The same for all: once is enough.
            del text.spelled[name]
            return lines if turn == 0 else []
        if key is not None:
            self._names.setdefault(key, {})[turn] = text.spelled[name]
            same = self.outer is not None and _is_the_same_in_all_turns(key[1], self.outer)
            if same and len(self.before) < MOST_BEFORE:
                self.before += lines
                return []
        return lines

    def _store(self, text: VectorText, loop: Loop, statement: Store, turn: int) -> list[str]:
        """The lines of a store in one turn; none where a later loop stores to the same place."""
        key = _key(loop, statement.buffer, statement.index)
        lines: list[str] = []
        value = statement.value
        if isinstance(value, Name) and value.name in text.wide:
            self._names.setdefault(key, {})[turn] = text.expression(value).text
            if self._last_store[key] > self._number[id(loop)]:
                # The store is not printed, but it counts as done in vectors.
                text.lines([statement])
                return lines
        return lines + text.lines([statement])


def _key(loop: Loop, buffer: str, index: Index) -> Key:
    """A place, whatever the loop's variable is called."""
    return buffer, replaced(index, {loop.variable: Index(0, [(Counter("column", 0, 1 << 31), 1)])})


def _is_the_same_in_all_turns(index: Index, loop: Loop) -> bool:
    """Whether it depends neither on the loop's variable nor on what is computed inside, such as the row of a table."""
    return not any(index.depends_on(name) for name in (loop.variable, *_names_in(loop.body)))


def _names_in(statements: Sequence[Statement]) -> Iterator[str]:
    """The names that statements declare, also inside of loops and conditions."""
    for each in statements:
        if isinstance(each, Let):
            yield each.name
        elif isinstance(each, Loop | If):
            yield from _names_in(each.body)


def planned(printer: Printer, body: Sequence[Statement]) -> Registers | None:
    """For a kernel in which several loops go over the same short row, and nothing else reads what they store."""
    outer = [each for each in body if isinstance(each, Loop) and each.variable == "row"]
    if outer:
        body = outer[0].body
    loops = [each for each in body if isinstance(each, Loop) and each.step > 1 and each.vector > 1]
    shapes = {(repr(each.start), each.stop, each.step) for each in loops}
    if len(loops) < 2 or len(shapes) != 1 or any(_has_loops(each) for each in body if each not in loops):
        return None
    first = loops[0]
    if not isinstance(first.stop, int) or first.stop % (4 * first.step) or first.stop // (4 * first.step) > MOST_TURNS:
        return None
    loaded = [_loads(loop) for loop in loops]
    stored = {each.buffer for loop in loops for each in loop.body if isinstance(each, Store)}
    again = any(keys & other for number, keys in enumerate(loaded) for other in loaded[:number])
    places = {key for keys in loaded for key in keys if key[0] in stored}
    stores = {_key(loop, each.buffer, each.index) for loop in loops for each in loop.body if isinstance(each, Store)}
    if not (again or places) or not places <= stores:
        return None
    return Registers(printer, loops, outer[0] if outer else None)


def _has_loops(statement: Statement) -> bool:
    """Whether a statement is a loop or has one inside."""
    return isinstance(statement, Loop) or (
        isinstance(statement, If) and any(_has_loops(each) for each in statement.body)
    )


def _loads(loop: Loop) -> set[Key]:
    """The rows that a loop loads element by element."""
    return {
        _key(loop, each.value.buffer, each.value.index)
        for each in loop.body
        if isinstance(each, Let) and isinstance(each.value, Load) and each.value.index.depends_on(loop.variable)
    }
