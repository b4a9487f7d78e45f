"""Receipts of calls, for whoever asks afterwards: the last one, or all of a block.

A call that stays on the CPU costs a microsecond, and a receipt takes several to make. So such calls leave a note, and
the receipt is made from it when somebody wants to see it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

from anygpu.receipts import Attempt, Phases, Receipt

_NOT_COUNTED = "the function ran untraced, in Python, where nothing is counted"


class HostNote(Protocol):
    """What receipts say of calls that run on the host without planning."""

    @property
    def task(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def predicted(self) -> float | None: ...


#: A call of the user's own function on the user's own arrays: when it began, when the function did, when it ended.
Note = tuple[HostNote, float, float, float]


def _receipt(note: Note | Receipt) -> Receipt:
    if isinstance(note, Receipt):
        return note
    said, begin, ready, end = note
    return numpy_receipt(said.task, said.reason, Phases(plan=ready - begin, run=end - ready), said.predicted)


def numpy_receipt(
    task: str, reason: str, phases: Phases, predicted: float | None, attempts: tuple[Attempt, ...] = ()
) -> Receipt:
    """Of a function that ran as it is; `attempts` are those that failed before."""
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), _NOT_COUNTED)
    if predicted is None:
        unknown["predicted_seconds"] = "it was the first such call, and there was no history of it"
    return Receipt(
        task=task,
        device="numpy",
        kind="cpu",
        reason=reason,
        phases=phases,
        attempts=(*attempts, Attempt(device="numpy", phases=phases)),
        predicted_seconds=predicted,
        unknown=unknown,
    )


#: Of this thread or asynchronous task.
last: ContextVar[Note | Receipt | None] = ContextVar("the last receipt", default=None)
listeners: ContextVar[tuple[list[Receipt], ...]] = ContextVar("who collects receipts", default=())


def last_receipt() -> Receipt | None:
    """What happened in the last call of an offloaded function, or of `run`, in this thread or task."""
    note = last.get()
    return None if note is None else _receipt(note)


@contextlib.contextmanager
def collect_receipts() -> Iterator[list[Receipt]]:
    """Collects the receipt of every call inside the block, in order."""
    collected: list[Receipt] = []
    token = listeners.set((*listeners.get(), collected))
    try:
        yield collected
    finally:
        listeners.reset(token)


def publish(note: Note | Receipt) -> None:
    last.set(note)
    hearing = listeners.get()
    if hearing:
        receipt = _receipt(note)
        for collected in hearing:
            collected.append(receipt)
