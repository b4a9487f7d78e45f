"""Notes of calls, from which receipts are made when they are asked for.

A call that stays on the CPU costs a microsecond, and a receipt takes several to make. So such calls leave a note. What
a receipt is made of is in `receipts`, which a process loads with its first receipt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from anygpu.base import events
from anygpu.base.events import Listed

if TYPE_CHECKING:
    from anygpu.receipts.receipt import Receipt


class HostNote(NamedTuple):
    """The facts of calls that run on the host without planning, from which their receipts are made.

    It is replaced and never changed: a receipt that is made later says what was so at the time of its call.
    """

    task: str
    reason: str
    predicted: float | None


class NativeNote(NamedTuple):
    """The facts of calls that ran as native code, from which their receipts are made."""

    task: str
    reason: str
    predicted: float
    #: The key of the program.
    program: str


#: A call of the user's own function on the user's own arrays, or of native code for it: when it began, when the
#: function did, when it ended.
Note = tuple[HostNote | NativeNote, float, float, float]


class Repeated(NamedTuple):
    """A call that ran as an earlier one did: when it began, when it ran on its device, when it ended."""

    like: Receipt
    begin: float
    ready: float
    end: float


def made(note: Note | Repeated | Receipt) -> Receipt:
    """The receipt itself, of what was left behind to make it from."""
    if not isinstance(note, tuple):
        return note
    from anygpu.receipts.receipt import Phases, native_receipt, numpy_receipt, repeated_receipt

    if isinstance(note, Repeated):
        return repeated_receipt(note.like, Phases(plan=note.ready - note.begin, run=note.end - note.ready))
    said, begin, ready, end = note
    phases = Phases(plan=ready - begin, run=end - ready)
    if isinstance(said, NativeNote):
        return native_receipt(said.task, said.reason, phases, said.predicted, said.program)
    return numpy_receipt(said.task, said.reason, phases, said.predicted)


class Failure(NamedTuple):
    """A call that raised, of which nothing makes a receipt. Its times are those of `time.perf_counter`."""

    task: str
    #: Where it ran, or would have.
    device: str
    #: The name of the error's class.
    error: str
    begin: float
    end: float


class Origin(NamedTuple):
    """The place where a task was submitted, for those who observe what became of it."""

    #: By `time.perf_counter`.
    time: float
    thread: int
    context: Context
    #: The user's own line, as file and number.
    line: tuple[str, int] | None = None


Seen: TypeAlias = "Receipt | Note | Failure"

#: A function, its positional and keyword arguments, and what it returned.
Given = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


def origin_here(line: tuple[str, int] | None = None) -> Origin | None:
    """Returns the origin of a task that is submitted now, on the user's own `line`, or `None` without an observer."""
    return Origin(time.perf_counter(), threading.get_ident(), copy_context(), line) if events.calls else None


#: Of this thread or asynchronous task.
last: ContextVar[Note | Repeated | Receipt | None] = ContextVar("the last receipt", default=None)
listeners: ContextVar[tuple[list[Receipt], ...]] = ContextVar("who collects receipts", default=())
#: The function of the task that runs: its runtime publishes what came of it, and the calls inside publish themselves.
of_task: ContextVar[Callable[..., Any] | None] = ContextVar("the function of the task that runs", default=None)


def last_receipt() -> Receipt | None:
    """Returns the receipt of the last call of an offloaded function, or of `run`, in this thread or task."""
    note = last.get()
    return None if note is None else made(note)


@contextmanager
def collect_receipts() -> Iterator[list[Receipt]]:
    """Collects the receipt of every call inside the block, in order."""
    collected: list[Receipt] = Listed()
    token = listeners.set((*listeners.get(), collected))
    try:
        yield collected
    finally:
        listeners.reset(token)


def publish(note: Note | Receipt, given: Given | None = None) -> None:
    """Leave the note as the last one of this thread, and tell of it whoever listens."""
    last.set(note)
    if given is not None and given[0] is of_task.get():
        return
    hearing = listeners.get()
    if hearing:
        receipt = made(note)
        for collected in hearing:
            collected.append(receipt)
    if events.calls:
        events.calls.tell(note, None)
        if events.returned and given is not None:
            events.returned.tell(note, given, None)


def publish_failure(
    task: str, error: BaseException, begin: float, function: Callable[..., Any], device: str = "numpy"
) -> None:
    """Tell those who observe calls that one of the function has raised; of a task its runtime does."""
    if events.calls and function is not of_task.get():
        events.calls.tell(Failure(task, device, type(error).__name__, begin, time.perf_counter()), None)
