"""A file of trace events, as Perfetto and chrome://tracing read it: written as it comes, within a limit.

The format is described as "Trace Event Format" by its authors. Times are microseconds with three decimals in the file,
and nanoseconds everywhere else.

`TraceFile` is the file, the functions after it make events, and `TrackRows` finds rows in which slices do not overlap.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

#: The tracks of callers, and those of devices, are two "processes" for the viewer.
CALLERS, DEVICES = 1, 2

#: Bytes of the limit for the names of tracks and for the summary at the end.
_RESERVED = 64 * 1024
_BUFFER = 1 << 18
#: Texts of users are cut to this many characters.
_LONGEST = 200
_TEXTS = 4096


class TraceFile:
    """Written beside `path` and renamed to it when it is closed: no reader sees half of it.

    The file never exceeds `limit` bytes: a part is reserved for the names of tracks and the summary at its end. Raises
    `FileNotFoundError` if there is no folder for it. For one thread at a time.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no folder for the trace", str(path.parent))
        descriptor, self._temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        self._file: TextIO = os.fdopen(descriptor, "w", buffering=_BUFFER, encoding="ascii")
        self._left = max(0, limit - _RESERVED)
        self._reserve = _RESERVED
        self._texts: dict[str, str] = {}
        self._before = '{"traceEvents":[\n'
        self.full = False
        for process, name in ((CALLERS, "callers"), (DEVICES, "devices")):
            self._name("process_name", process, 0, name)

    def text(self, text: str) -> str:
        """The text as a JSON string in ASCII, which no character can break out of; long ones are cut.

        The latest are remembered, because names of functions and devices come again with each call.
        """
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            # Half of a pair of surrogates is not a character, and no viewer takes it.
            known = self._texts[text] = json.dumps(cut.encode("utf-8", "replace").decode())
        return known

    def name_track(self, process: int, track: int, name: str) -> bool:
        """Names a track for the viewer, from the reserved bytes; whether there was room for one more."""
        return self._name("thread_name", process, track, name)

    def _name(self, what: str, process: int, track: int, name: str) -> bool:
        """Writes the name and the place of a process or track; `False` if the reserved bytes are used up."""
        kind = what.partition("_")[0]
        order = process if what == "process_name" else track
        line = (
            f'{{"ph":"M","pid":{process},"tid":{track},"name":"{what}","args":{{"name":{self.text(name)}}}}},\n'
            f'{{"ph":"M","pid":{process},"tid":{track},"name":"{kind}_sort_index","args":{{"sort_index":{order}}}}}'
        )
        if self._reserve < len(line) + _RESERVED // 4:
            return False
        self._reserve -= len(line)
        self._put(line)
        return True

    def write(self, events: list[str]) -> bool:
        """Whether there was room for them; if not, nothing is written from now on."""
        lines = ",\n".join(events)
        if self.full or len(lines) + 2 > self._left:
            self.full = True
            return False
        self._left -= len(lines) + 2
        self._put(lines)
        return True

    def _put(self, lines: str) -> None:
        self._file.write(self._before)
        self._file.write(lines)
        self._before = ",\n"

    def close(self, said: dict[str, Any]) -> None:
        """Finish the file, with what is said of it as a whole, and give it its name."""
        try:
            rest = json.dumps(said)
            self._file.write(f'\n],"displayTimeUnit":"ms","otherData":{rest}}}\n')
            self._file.close()
            os.replace(self._temporary, self.path)  # noqa: PTH105 - the temporary name is no Path
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close the file, and remove it."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)  # noqa: PTH108 - the temporary name is no Path


def microseconds(nanoseconds: int) -> str:
    """Nanoseconds as microseconds with three decimals, exactly: a float would round times after some days."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def slice_event(process: int, track: int, name: str, begin: int, end: int, arguments: str = "") -> str:
    """A slice on a track, from `begin` to `end` in nanoseconds.

    `name` is JSON already, and so are the `arguments`, without their braces.
    """
    more = f',"args":{{{arguments}}}' if arguments else ""
    return (
        f'{{"ph":"X","pid":{process},"tid":{track},"ts":{microseconds(begin)},'
        f'"dur":{microseconds(end - begin)},"name":{name}{more}}}'
    )


def arrow_events(number: int, submitted: tuple[int, int], run: tuple[int, int]) -> list[str]:
    """An arrow between two slices of callers, each given by its track and a time inside of it."""
    (track, time), (end_track, end_time) = submitted, run
    head = f'"cat":"task","name":"submitted","id":{number},"pid":{CALLERS}'
    return [
        f'{{"ph":"s",{head},"tid":{track},"ts":{microseconds(time)}}}',
        f'{{"ph":"f","bp":"e",{head},"tid":{end_track},"ts":{microseconds(end_time)}}}',
    ]


def waiting_events(number: int, name: str, begin: int, end: int) -> list[str]:
    """Time in a queue, of which any number may overlap: the viewer finds a row for each."""
    head = f'"cat":"queue","name":{name},"id":{number},"pid":{CALLERS},"tid":0'
    return [
        f'{{"ph":"b",{head},"ts":{microseconds(begin)}}}',
        f'{{"ph":"e",{head},"ts":{microseconds(end)}}}',
    ]


def counter_event(name: str, time: int, value: int) -> str:
    """A value of the counter `name`, in bytes, from this time on."""
    return f'{{"ph":"C","pid":{DEVICES},"tid":0,"ts":{microseconds(time)},"name":{name},"args":{{"bytes":{value}}}}}'


def instant_event(process: int, track: int, name: str, time: int, arguments: str) -> str:
    """A mark on a track at one time; `name` and `arguments` are JSON, the latter without its braces."""
    return (
        f'{{"ph":"i","s":"t","pid":{process},"tid":{track},"ts":{microseconds(time)},"name":{name},'
        f'"args":{{{arguments}}}}}'
    )


#: A receipt is made a little before it is seen, so what was measured may seem to begin this much too late.
_SKEW = 50_000
#: Calls of a row that are remembered, to find out which of them a later one encloses.
_REMEMBERED = 4096

#: The order in which phases are drawn.
ORDER = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")


class TraceSlice(NamedTuple):
    """A part of a call: from when to when."""

    name: str
    begin: int
    end: int


class TracePosition(NamedTuple):
    """Where a call is drawn: its row and its beginning; and from when to when others are drawn inside of it."""

    row: int
    begin: int
    inner: tuple[int, int] | None


def phase_slices(
    parts: Sequence[tuple[str, int]], begin: int, end: int, inner: tuple[int, int] | None
) -> list[TraceSlice]:
    """Slices for named lengths in nanoseconds, from `begin` to `end`. The calls in `inner` happened during `run`.

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
    return [*before, TraceSlice("run", start, start + length), *after]


def _one_after_another(parts: Sequence[tuple[str, int]], begin: int, end: int) -> list[TraceSlice]:
    """Slices in this order from `begin` on; what goes beyond `end` is cut."""
    slices = []
    for name, length in parts:
        stop = min(begin + length, end)
        if stop > begin:
            slices.append(TraceSlice(name, begin, stop))
            begin = stop
    return slices


def _without(parts: Sequence[tuple[str, int]], drawn: int) -> list[tuple[str, int]]:
    """The lengths without their first `drawn` nanoseconds."""
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
        """Where the slice begins, and what it encloses; `None` if it would overlap with another.

        Calls of the same thread inside of it are enclosed by moving its beginning, within a tolerance, before theirs.
        It is remembered in their place.
        """
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


class TrackRows:
    """The rows of one track: a new one is begun where a call would overlap with what is in all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = [_Row()]

    def fit(self, begin: int, end: int, thread: int) -> TracePosition | None:
        """Where a call is drawn; `None` if there are too many at once."""
        for number, row in enumerate(self._rows):
            found = row.fit(begin, end, thread)
            if found is not None:
                return TracePosition(number, *found)
        if len(self._rows) == self._most:
            return None
        self._rows.append(_Row())
        found = self._rows[-1].fit(begin, end, thread)
        assert found is not None, "nothing is in a new row"
        return TracePosition(len(self._rows) - 1, *found)
