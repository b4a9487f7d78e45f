"""Calls of one function on one device that are folded together: many at once are cheaper for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anygpu.notes import Failure, Note
from anygpu.receipts import Receipt

Times = NDArray[np.float64]


class Batch(NamedTuple):
    """Of calls of one kind; each array has an element for each call."""

    function: str
    device: str
    #: What the caller waited, in seconds, and when that ended.
    seconds: Times
    ends: Times
    #: Of these seconds, what the function itself took: without tracing, planning, compiling and waiting for a turn.
    run: Times
    #: Seconds that were predicted for each of them; `None` if nothing was.
    predicted: float | None = None
    #: What they were made of, beside notes.
    receipts: Sequence[Receipt] = ()
    failures: Sequence[Failure] = ()


def batches(notes: Sequence[Note], others: Iterable[tuple[Receipt | Failure, float]]) -> list[Batch]:
    """Calls that left a note, and others with when they ended."""
    return [*_of_notes(notes), *_of_others(others)]


def _of_notes(notes: Sequence[Note]) -> Iterable[Batch]:
    groups: dict[int, list[Note]] = {}
    for note in notes:
        # Calls of one call site share what they say, until that changes.
        group = groups.get(id(note[0]))
        if group is None:
            groups[id(note[0])] = [note]
        else:
            group.append(note)
    for group in groups.values():
        said = group[0][0]
        _, begins, readies, ends = zip(*group, strict=True)
        begin, ready, end = np.array(begins), np.array(readies), np.array(ends)
        yield Batch(said.task, "numpy", end - begin, end, end - ready, said.predicted)


def _of_others(others: Iterable[tuple[Receipt | Failure, float]]) -> Iterable[Batch]:
    groups: dict[tuple[bool, str, str], list[tuple[Receipt | Failure, float]]] = {}
    for one, end in others:
        groups.setdefault((type(one) is Failure, one.task, one.device), []).append((one, end))
    for (failed, function, device), group in groups.items():
        ends = np.array([end for _, end in group])
        if failed:
            failures = [one for one, _ in group if isinstance(one, Failure)]
            seconds = np.array([one.end - one.begin for one in failures])
            yield Batch(function, device, seconds, ends, seconds, failures=failures)
        else:
            receipts = [one for one, _ in group if isinstance(one, Receipt)]
            seconds = np.array([one.phases.total for one in receipts])
            before = [one.phases.trace + one.phases.plan + one.phases.compile + one.phases.queue for one in receipts]
            yield Batch(function, device, seconds, ends, seconds - np.array(before), receipts=receipts)
