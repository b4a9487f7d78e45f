"""Where the slices of calls are drawn, such that they nest and no two of a row overlap. Pure, in whole nanoseconds.

A receipt has the lengths of a call's phases and not their times. They are drawn one after the other, in the order in
which they happen, so that the last of them ends when the call did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

#: A receipt is made a little before it is seen, so what was measured may seem to begin this much too late.
_SKEW = 50_000
#: Calls of a row that are remembered, to find out which of them a later one encloses.
_REMEMBERED = 4096

#: The order in which phases are drawn.
ORDER = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")


class Slice(NamedTuple):
    """A part of a call: from when to when."""

    name: str
    begin: int
    end: int


class Fit(NamedTuple):
    """Where a call is drawn: its row and its beginning; and from when to when others are drawn inside of it."""

    row: int
    begin: int
    inner: tuple[int, int] | None


def phase_slices(parts: Sequence[tuple[str, int]], begin: int, end: int, inner: tuple[int, int] | None) -> list[Slice]:
    """Slices for named lengths, from `begin` to `end`. What is `inner` happened during `run`.

    Nothing is drawn if that cannot be: then the lengths are not those of one call on one thread.
    """
    if inner is None:
        return _one_after_another(parts, begin, end)
    names = [name for name, _ in parts]
    if "run" not in names:
        return []
    place = names.index("run")
    length = parts[place][1]
    start = max(min(begin + sum(each for _, each in parts[:place]), inner[0]), inner[1] - length)
    if start < begin or start > inner[0] or start + length > end:
        return []
    rest = [*parts[:place], *parts[place + 1 :]]
    before = _one_after_another(rest, begin, start)
    drawn = sum(each.end - each.begin for each in before)
    after = _one_after_another(_without(rest, drawn), start + length, end)
    return [*before, Slice("run", start, start + length), *after]


def _one_after_another(parts: Sequence[tuple[str, int]], begin: int, end: int) -> list[Slice]:
    slices = []
    for name, length in parts:
        stop = min(begin + length, end)
        if stop > begin:
            slices.append(Slice(name, begin, stop))
            begin = stop
    return slices


def _without(parts: Sequence[tuple[str, int]], drawn: int) -> list[tuple[str, int]]:
    """What is left of the lengths when the first `drawn` nanoseconds are taken away."""
    left = []
    for name, length in parts:
        taken = min(length, drawn)
        drawn -= taken
        if length > taken:
            left.append((name, length - taken))
    return left


class _Row:
    """The outermost slices that were drawn last: when they begin and end, and their threads."""

    __slots__ = ("forgotten", "spans")

    def __init__(self) -> None:
        self.spans: deque[tuple[int, int, int]] = deque()
        #: The end of the last one that is not remembered any more.
        self.forgotten = 0

    def fit(self, begin: int, end: int, thread: int) -> tuple[int, tuple[int, int] | None] | None:
        """Where the slice begins, and what it encloses; `None` if it would overlap with another."""
        spans, first, last = self.spans, None, 0
        inside = 0
        for start, stop, of in reversed(spans):
            if stop <= begin:
                break
            tolerance = max(_SKEW, (end - begin) // 100)
            if of == thread and stop <= end and start > begin - tolerance:
                # A call that was made during this one.
                begin = min(begin, start - 1)
                first, last = start, max(last, stop)
                inside += 1
            elif stop - begin <= tolerance and stop < end:
                begin = stop
                break
            else:
                return None
        if begin < self.forgotten:
            return None
        for _ in range(inside):
            spans.pop()
        if spans and spans[-1][1] > begin:
            begin = spans[-1][1]
        spans.append((begin, end, thread))
        if len(spans) > _REMEMBERED:
            self.forgotten = spans.popleft()[1]
        return begin, None if first is None else (first, last)


class Rows:
    """The rows of one track: a new one is begun where a call would overlap with what is in all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = [_Row()]

    def fit(self, begin: int, end: int, thread: int) -> Fit | None:
        """Where a call is drawn; `None` if there are too many at once."""
        for number, row in enumerate(self._rows):
            found = row.fit(begin, end, thread)
            if found is not None:
                return Fit(number, *found)
        if len(self._rows) == self._most:
            return None
        self._rows.append(_Row())
        found = self._rows[-1].fit(begin, end, thread)
        assert found is not None, "nothing is in a new row"
        return Fit(len(self._rows) - 1, *found)
