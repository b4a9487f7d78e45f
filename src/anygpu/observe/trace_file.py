"""A file of trace events, as Perfetto and chrome://tracing read it: written as it comes, within a limit.

The format is described as "Trace Event Format" by its authors. Times are microseconds with three decimals.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any, TextIO

#: The tracks of callers, and those of devices, are two "processes" for the viewer.
CALLERS, DEVICES = 1, 2

#: Of the limit, this much is for the names of tracks and for what is said at the end.
_RESERVED = 64 * 1024
_BUFFER = 1 << 18
#: Texts of users are cut to this many characters.
_LONGEST = 200
_TEXTS = 4096


class TraceFile:
    """Written beside `path` and renamed to it when it is closed: nobody sees half of it."""

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
        """As a JSON string in ASCII, which no character can break out of; long ones are cut."""
        known = self._texts.get(text)
        if known is None:
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            cut = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            # Half of a pair of surrogates is not a character, and no viewer takes it.
            known = self._texts[text] = json.dumps(cut.encode("utf-8", "replace").decode())
        return known

    def name_track(self, process: int, track: int, name: str) -> bool:
        """Whether there was room for one more track."""
        return self._name("thread_name", process, track, name)

    def _name(self, what: str, process: int, track: int, name: str) -> bool:
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
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def slice_event(process: int, track: int, name: str, begin: int, end: int, arguments: str = "") -> str:
    """`name` is JSON already, and so are the `arguments`, without their braces."""
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
    return f'{{"ph":"C","pid":{DEVICES},"tid":0,"ts":{microseconds(time)},"name":{name},"args":{{"bytes":{value}}}}}'


def instant_event(process: int, track: int, name: str, time: int, arguments: str) -> str:
    return (
        f'{{"ph":"i","s":"t","pid":{process},"tid":{track},"ts":{microseconds(time)},"name":{name},'
        f'"args":{{{arguments}}}}}'
    )
