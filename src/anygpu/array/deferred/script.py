"""A script: calls of NumPy in the order in which a function made them, known by its structure, and how NumPy runs it.

Run on NumPy, it gives what the function would have got, views and writes included, each call as if it stood on the
user's own line. Scripts that begin alike share the steps of their beginning, so that a call that was recorded before at
the same point of a script is found by one look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from anygpu.array.deferred.layouts import Fact, Op, Outcome
from anygpu.array.deferred.modes import Modes

#: Steps that are remembered for one function.
_MOST_STEPS = 20_000
#: Results of at least so many bytes are written over an operand that nobody needs any more, as NumPy does itself.
_LARGE = 1 << 18

#: An entry is a layout (of an array that goes in), a type (of a Python number), NumPy's modes (of the calls behind it)
#: or a call: what it gives, and the numbers of the entries that are its operands.
Entry = Any
#: The code, instruction and globals of a line that made a call.
Where = tuple[CodeType, int, dict[str, Any]]


class Place(NamedTuple):
    """Where the user's code made a call."""

    code: CodeType
    instruction: int
    globals: dict[str, Any]

    @property
    def line(self) -> int:
        return line_of(self.code, self.instruction)

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


@lru_cache(maxsize=4096)
def line_of(code: CodeType, instruction: int) -> int:
    """The number of the line that an instruction is of."""
    for begin, end, line in code.co_lines():
        if begin <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


_calls: dict[tuple[CodeType, int], tuple[dict[str, Any], Callable[..., Any]]] = {}


def called_from(place: Where) -> Callable[[Callable[..., Any], tuple[Any, ...]], Any]:
    """A function that calls another one as if it stood there: warnings and errors have that line."""
    code, instruction, namespace = place
    known = _calls.get((code, instruction))
    if known is not None and known[0] is namespace:
        return known[1]
    moved = _called.__code__.replace(
        co_filename=code.co_filename, co_firstlineno=line_of(code, instruction), co_name=code.co_name,
        co_linetable=_one_line(len(_called.__code__.co_code)),
    )  # fmt: skip
    if len(_calls) > 4096:
        _calls.clear()
    made = FunctionType(moved, namespace)
    _calls[code, instruction] = (namespace, made)
    return made


def _one_line(length: int) -> bytes:
    """A table of lines in which every instruction is on the first one (see CPython's `locations.md`)."""
    units = length // 2
    parts = []
    while units > 0:
        step = min(units, 8)
        # Without columns, and the same line as before.
        parts.append(bytes((0x80 | (13 << 3) | (step - 1), 0)))
        units -= step
    return b"".join(parts)


class Step:
    """An entry of scripts behind those before it."""

    __slots__ = ("before", "entry", "fact", "forms", "next", "number", "selected")

    def __init__(self, before: Step | None, entry: Entry) -> None:
        self.before, self.entry = before, entry
        self.number: int = -1 if before is None else before.number + 1
        #: What a call gives.
        self.fact: Any = entry[0] if type(entry) is tuple else None
        #: For elements that a mask has selected: what it is known by.
        self.selected: Any = None
        #: By entry: the step behind this one. And by what was called with which entries: the step of that call, which
        #: is further on where a number goes in before it.
        self.next: dict[Any, Step] = {}
        #: The scripts that end here, by what is wanted of them.
        self.forms: dict[Any, Form] = {}

    def form(self, outputs: tuple[int, ...], modes: Modes) -> Form:
        """The structure of a script that ends here, and that began with these modes."""
        found = self.forms.get((outputs, modes))
        if found is None:
            entries = []
            step: Step = self
            while step.before is not None:
                entries.append(step.entry)
                step = step.before
            if len(self.forms) > 64:
                self.forms.clear()
            found = self.forms[outputs, modes] = Form(tuple(reversed(entries)), outputs, modes)
        return found


class Structures:
    """The scripts of one function, as far as they are remembered."""

    def __init__(self) -> None:
        self.first = Step(None, None)
        self._steps = 0

    def add(self, before: Step, entry: Entry) -> Step:
        """The step of an entry behind another one."""
        self._steps += 1
        return before.next.setdefault(entry, Step(before, entry))

    def begin(self) -> Step:
        """The step before the first entry of a script."""
        if self._steps > _MOST_STEPS:
            self._steps, self.first = 0, Step(None, None)
        return self.first


class Form:
    """The structure of scripts that compute the same."""

    __slots__ = ("_turns", "calls", "entries", "inputs", "is_idle", "is_quiet", "kept", "modes", "outputs")

    def __init__(self, entries: tuple[Entry, ...], outputs: tuple[int, ...], modes: Modes) -> None:
        """`outputs` are the entries that are wanted; `modes` those of the first calls."""
        self.entries, self.outputs = entries, outputs
        #: NumPy's modes, in the order in which they come.
        self.modes = (modes, *(entry for entry in entries if type(entry) is Modes))
        #: Whether NumPy warns of nothing.
        self.is_quiet = all(each.is_quiet for each in self.modes)
        #: The entries that go in.
        self.inputs = [number for number, entry in enumerate(entries) if type(entry) not in _NO_INPUTS]
        self.calls = sum(type(entry) is tuple for entry in entries)
        #: Whether it does nothing but look at what goes in.
        self.is_idle = all(entry[0].outcome is Outcome.VIEW for entry in entries if type(entry) is tuple)
        self._turns: list[_Turn] | None = None
        #: What the one who computes it remembers of it.
        self.kept: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.entries, self.outputs, self.modes[0])

    @property
    def turns(self) -> list[_Turn]:
        if self._turns is None:
            self._turns = _turns(self.entries, self.outputs)
        return self._turns


_NO_INPUTS = frozenset((tuple, Modes))


class _Turn(NamedTuple):
    """One call of a script that runs on NumPy."""

    number: int
    op: Op
    operands: tuple[int, ...]
    is_itself: bool
    #: Entries that nobody needs after it, so that memory is used again as NumPy does; and the one it is written over.
    last: tuple[int, ...]
    over: int | None
    #: NumPy's modes from here on, where they change.
    modes: Modes | None


def _turns(entries: tuple[Entry, ...], outputs: tuple[int, ...]) -> list[_Turn]:
    """The calls of a script in their order."""
    last: dict[int, int] = {}
    shared: set[int] = set()
    for number, entry in enumerate(entries):
        if type(entry) is tuple:
            for each in entry[1]:
                last[each] = number
            last.setdefault(number, number)
            if entry[0].outcome is not Outcome.NEW:
                shared.update((number, entry[1][0]))  # memory that has two names
    wanted = set(outputs)
    unneeded: dict[int, list[int]] = {}
    for number, user in last.items():
        if number not in wanted:
            unneeded.setdefault(user, []).append(number)
    turns = []
    modes = None
    for number, entry in enumerate(entries):
        if type(entry) is Modes:
            modes = entry
        if type(entry) is not tuple:
            continue
        fact, operands = entry
        free = unneeded.get(number, [])
        over = None
        for each in operands:
            if each in free and each not in shared and number not in shared and _fits(entries, each, fact):
                over = each
                break
        turns.append(_Turn(number, fact.op, operands, fact.outcome is Outcome.ITSELF, tuple(free), over, modes))
        modes = None
    return turns


def _fits(entries: tuple[Entry, ...], operand: int, fact: Fact) -> bool:
    """Whether the result of a call can be written over an operand that the script itself has made."""
    entry, layout = entries[operand], fact.layout
    if type(entry) is not tuple or fact.op.ufunc is None or layout is None or entry[0].layout is not layout:
        return False
    return layout.is_contiguous and not layout.is_number and layout.size * layout.dtype.itemsize >= _LARGE


class Script(NamedTuple):
    """Calls of NumPy in their order, with what goes in."""

    form: Form
    #: The arrays and numbers that go in, in the order of their entries.
    values: list[Any]
    #: For each call, in their order: where it was made.
    places: list[Where | None]

    def run(self) -> list[Any]:
        """What NumPy gives for the entries that are wanted."""
        if len(self.form.modes) == 1:
            return self._run()
        with np.errstate(**self.form.modes[0]._asdict()):
            return self._run()

    def _run(self) -> list[Any]:
        form = self.form
        values: list[Any] = [None] * len(form.entries)
        for number, value in zip(form.inputs, self.values, strict=True):
            values[number] = value
        for (number, op, operands, is_itself, last, over, modes), place in zip(form.turns, self.places, strict=True):
            if modes is not None:
                np.seterr(**modes._asdict())
            given: Any = op.arranged(tuple([values[each] for each in operands]))
            call: Any = op.call
            if over is not None:
                call, given = op.ufunc, (*given, values[over])
            result = call(*given) if place is None else called_from(place)(call, given)
            values[number] = values[operands[0]] if is_itself else result
            given = result = None
            for each in last:
                values[each] = None
        return [values[each] for each in form.outputs]
