"""`anygpu history`: what is known of earlier calls, what follows from it, and how to forget it.

`show`, `explain` and `clear` are the commands; below them is how the file's contents become functions with their
timings, and how these are printed. `KnownHistory` is the document of `--json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from anygpu.base.printable import encode_json
from anygpu.base.tables import Column
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.calls.hints import forget_marks
from anygpu.cli.output import PLAIN, Json, grid, show_table
from anygpu.errors import InvalidOption
from anygpu.placement.history.history import (
    VARIABLE,
    Setting,
    age_text,
    agreement_text,
    by_speed,
    consequence,
    counted,
    habit_text,
    latest_by_device,
    measured_text,
    memory_text,
    setting,
)
from anygpu.placement.history.records import Habit, HabitKey, Timing, TimingKey, habit_of, timing_of
from anygpu.placement.history.storage import Contents, HistoryFile, history_path

SCHEMA = "anygpu.history/1"

#: A person who asks waits longer than a call does, also for other processes.
_PATIENCE = 5.0
#: Digits of a hash that tell functions apart, for people.
_DIGITS = 8
#: In place of a device, for calls that stay with NumPy.
_HOST = "as it is"

history = typer.Typer(
    help="Show what was measured in earlier calls and processes.",
    invoke_without_command=True,
    add_completion=False,
)

FunctionName = Annotated[
    str, typer.Argument(metavar="NAME", help="A function's name, with or without its module, or its hash.")
]


class FunctionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A function with one kind of arguments: how it is called, and what its program took on each device."""

    habit: Habit
    #: The fastest first. A device is there more than once if its driver or a version has changed.
    timings: tuple[Timing, ...]


class KnownHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `--json` prints."""

    schema: str = SCHEMA
    #: The file, and its size; 0 if there is none.
    path: str
    nbytes: int
    #: The value of `ANYGPU_HISTORY`.
    setting: Setting
    #: Why nothing could be read, or is added; `None` if all is well.
    problem: str | None
    #: The latest calls first.
    functions: tuple[FunctionHistory, ...]

    def to_json(self) -> bytes:
        """The document in UTF-8, on one line."""
        return encode_json(self)


@history.callback()
def show(
    context: typer.Context,
    json: Json = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Maximum number of functions.")] = 30,
) -> None:
    """Show what is known of earlier calls, in this process and in others."""
    if context.invoked_subcommand is not None:
        return
    setting()  # which says what is wrong with it before anything is shown
    stored = HistoryFile(history_path())
    functions = _functions(stored.contents())
    if json:
        _print(stored, functions)
        return
    console = Console()
    if functions:
        _show_functions(console, functions[:limit], time.time())
        if len(functions) > limit:
            console.print(Text(f"… and {len(functions) - limit:,} more; --limit shows them.", style="dim"))
    else:
        console.print("Nothing is known of earlier calls.")
    console.print(Text(_where(stored), style="dim"), soft_wrap=True)


@history.command()
def explain(name: FunctionName, json: Json = False) -> None:
    """Show for one function what is known of every device, and what follows from it."""
    stored = HistoryFile(history_path())
    functions = _named(_functions(stored.contents()), name)
    if json:
        _print(stored, functions)
        return
    console = Console()
    for each in functions:
        _explain(console, each, time.time())


@history.command()
def clear(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Forget one function only: its name or its hash.")
    ] = None,
) -> None:
    """Forget what is known, of all functions or of one."""
    from anygpu.pytorch.step_plans import forget_steps  # late: only this command needs it

    forget_marks()
    forget_steps()
    stored = HistoryFile(history_path())
    if stored.nbytes == 0 and not stored.has_old_format:
        print("Nothing is known of earlier calls.")
        return
    contents = stored.contents()
    if name is None:
        done, what = stored.clear_all(_PATIENCE), "The history"
    else:
        functions = _named(_functions(contents), name)
        habits = {HabitKey(each.habit.function, each.habit.signature) for each in functions}
        done = stored.clear(habits, _timings_of(contents, habits), _PATIENCE)
        what = f"The history of {_label(functions[0].habit)}"
    if not done:
        why = stored.problem or "other processes are using it; try again"
        raise InvalidOption(f"the history could not be cleared: {why.rstrip('.')}.")
    print(f"{what} was cleared.")


# -- what is known


def _functions(contents: Contents) -> list[FunctionHistory]:
    """The functions of a history with the timings of their programs, the latest calls first."""
    by_program: dict[str, list[Timing]] = {}
    for key, row in contents.timings.items():
        by_program.setdefault(key.program, []).append(timing_of(key, row))
    found = []
    for function, calls in contents.habits.items():
        habit = habit_of(function, calls)
        if habit is not None:
            timings = by_program.get(habit.program, []) if habit.program is not None else []
            found.append(FunctionHistory(habit=habit, timings=tuple(sorted(timings, key=by_speed))))
    return sorted(found, key=lambda each: each.habit.when, reverse=True)


def _named(functions: Sequence[FunctionHistory], name: str) -> list[FunctionHistory]:
    """The functions of that name. Raises `InvalidOption` when there are none, with names that there are."""
    found = [each for each in functions if _matches(each.habit, name)]
    if not found:
        known = sorted({_label(each.habit) for each in functions})
        listed = f"the history has {', '.join(known[:8])}{', …' if len(known) > 8 else ''}" if known else "it is empty"
        raise InvalidOption(f"the history has no function {name!r}; {listed}.")
    return found


def _matches(habit: Habit, name: str) -> bool:
    """Whether a name is this function's, with or without its module, or the beginning of its hash."""
    if habit.name is not None and (habit.name == name or habit.name.endswith(f".{name}")):
        return True
    return len(name) >= _DIGITS and habit.function.startswith(name)


def _timings_of(contents: Contents, habits: set[HabitKey]) -> set[TimingKey]:
    """The timings of their programs, unless another function has the same program."""
    theirs = {row.program[1] for key, row in contents.habits.items() if key in habits and row.program}
    others = {row.program[1] for key, row in contents.habits.items() if key not in habits and row.program}
    return {key for key in contents.timings if key.program in theirs - others}


# -- what is shown


def _label(habit: Habit) -> str:
    """The name of a function, or the beginning of its hash where names are not stored."""
    return habit.name or habit.function[:_DIGITS]


def _print(stored: HistoryFile, functions: Sequence[FunctionHistory]) -> None:
    """Prints the document of `--json`."""
    document = KnownHistory(
        path=str(stored.path),
        nbytes=stored.nbytes,
        setting=setting(),
        problem=stored.problem,
        functions=tuple(functions),
    )
    sys.stdout.write(document.to_json().decode() + "\n")


class _Timed(NamedTuple):
    """A line of the table: a function on a device."""

    label: str
    device: str
    seconds: float | None
    calls: int
    when: str
    memory: str | None = None


_TABLE: tuple[Column[_Timed], ...] = (
    Column("function", lambda row: row.label, "prose"),
    Column("device", lambda row: row.device, tone=lambda row: "dim" if row.device == _HOST else ""),
    Column("a call", lambda row: "not measured" if row.seconds is None else readable_seconds(row.seconds), "id"),
    Column("calls", lambda row: row.calls, "count"),
    Column("last", lambda row: row.when),
    Column("memory", lambda row: row.memory, "prose"),
)


def _timed(function: FunctionHistory, now: float) -> list[_Timed]:
    """The lines of a function: one for each device with its latest timing, or one for the host."""
    habit = function.habit
    if not function.timings:
        took = habit.seconds / max(1, habit.calls)
        return [_Timed(_label(habit), _HOST, took, habit.calls, age_text(habit.when, now))]
    return [
        _Timed(
            "" if number else _label(habit), each.device, each.seconds, each.calls, age_text(each.when, now),
            memory_text(each, all_rows=False),
        )
        for number, each in enumerate(latest_by_device(function.timings))
    ]  # fmt: skip


def _show_functions(console: Console, functions: Sequence[FunctionHistory], now: float) -> None:
    """Prints the table of functions, without the column of memory if nothing is known of it."""
    has_memory = any(timing.peaks for each in functions for timing in each.timings)
    rows = [row for each in functions for row in _timed(each, now)]
    show_table(console, _TABLE if has_memory else _TABLE[:-1], rows, PLAIN)


def _explain(console: Console, function: FunctionHistory, now: float) -> None:
    """Prints one function: how it is called, and for each device its latest time and what follows from it."""
    habit = function.habit
    console.print(Text.assemble((_label(habit), "bold"), f"  {habit_text(habit, now)}"), soft_wrap=True)
    latest = latest_by_device(function.timings)
    table = grid(3, right=1)
    for each in latest:
        facts = [measured_text(each, now), agreement_text(each, now)]
        if each.peaks:
            facts.append(f"took {memory_text(each)}")
        if each.compile is not None:
            facts.append(f"compiling took {readable_seconds(each.compile)}")
        seconds = "" if each.seconds is None else readable_seconds(each.seconds)
        table.add_row(each.device, seconds, " · ".join(facts))
        table.add_row("", "", Text(consequence(each, latest, habit), style="dim"))
    if not latest:
        why = "it was not traced" if habit.program is None else "no call of its program was measured"
        table.add_row("", "", f"Nothing is known of devices: {why}.")
    older = len(function.timings) - len(latest)
    if older:
        table.add_row(
            "", "", Text(f"{counted(older, 'timing')} with another driver or version, not used.", style="dim")
        )
    console.print(Padding(table, (0, 0, 1, 2)))


def _where(stored: HistoryFile) -> str:
    """A sentence about the file: where it is and how large, or why nothing is read or added."""
    problem = stored.problem
    if problem is not None:
        return problem
    chosen = setting()
    if chosen == "off":
        return f"{VARIABLE}=off: nothing is added to {stored.path}."
    return f"The history is kept in {stored.path}, {readable_bytes(stored.nbytes)}."
