"""An advisor sees what calls are given and return, and what arrays move, line by line. It keeps no data of them.

It looks at every array that goes to a device, which takes about as long as copying it: so there is one only where
advice was asked for.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import ArrayWork
from anygpu.array.core.expression import active_tracer
from anygpu.array.trace.tracing import trace
from anygpu.base import events
from anygpu.calls.executing import Executing
from anygpu.observe.advising.findings import MOST_LINES, CodePlace, CountsByPlace, LineCounts, findings, leaves
from anygpu.observe.snapshot import Advice
from anygpu.receipts import notes
from anygpu.receipts.notes import Given, Note
from anygpu.receipts.receipt import HostOperation, Receipt

#: Results of calls that are recognised when they are passed on.
_RESULTS = 256
#: Seconds that a line must have taken before its function is traced, and that tracing may take.
_WORTH_TRACING, _TRACING = 0.005, 1.0
#: Seconds from which on something was built, and not only found.
_BUILDING = 5e-4
#: Arrays beyond this many bytes are recognised by a part of them.
_WHOLE = 1 << 26
_SAMPLE = 1 << 16
#: Smaller arrays cost nothing to move again.
_SMALL = 1 << 12

_LIBRARY = sysconfig.get_path("stdlib")
_OURS = ("anygpu.", "numpy.")
#: Methods of arrays that need one value of them.
_VALUE_METHODS = frozenset(("__bool__", "__float__", "__int__", "__index__", "__complex__", "item"))


class Advisor:
    """Sees the calls of this process while it is subscribed to them, and says what to change."""

    def __init__(self) -> None:
        self.lines: CountsByPlace = {}
        self._begin = time.perf_counter()
        self._lock = threading.RLock()
        #: Results of calls: the array, its line, and the seconds that reading it took.
        self._results: OrderedDict[int, tuple[weakref.ref[Any], CodePlace, float]] = OrderedDict()
        #: By thread: the last array that was read back, with its line and seconds; and what the host did.
        self._last_read: dict[int, tuple[tuple[int, ...], CodePlace, float]] = {}
        self._on_host: dict[int, list[HostOperation]] = {}
        #: By line: the array of which a part was passed last, and the place where that ended.
        self._last_part: dict[CodePlace, tuple[int, int]] = {}

    def start(self) -> None:
        events.returned.append(self.see_call)
        events.array_work.append(self.see_array)
        events.host_operations.append(self.see_host_operation)

    def stop(self) -> None:
        events.returned.remove(self.see_call)
        events.array_work.remove(self.see_array)
        events.host_operations.remove(self.see_host_operation)

    def advice(self) -> list[Advice]:
        """The findings so far, the most expensive first."""
        with self._lock:
            return findings(self.lines, time.perf_counter() - self._begin)

    # -- calls

    def see_call(self, note: Note | Receipt, given: Given, line: tuple[str, int] | None) -> None:
        if active_tracer.get() is not None:
            return
        user = line or _users_line()[0]
        receipt = notes.made(note)
        with self._lock:
            found = self._line(CodePlace(*user, receipt.task))
            if found is not None:
                self._see(*found, receipt, given, is_task=line is not None)

    def _see(self, place: CodePlace, line: LineCounts, receipt: Receipt, given: Given, *, is_task: bool) -> None:
        """Add one call to the counts of its line: its sizes, dtypes, device, compile time, failures and transfers."""
        function, arguments, keywords, value = given
        passed = [*leaves(arguments), *leaves(keywords)]
        arrays = [each for each in passed if type(each) is np.ndarray or type(each) is Array]
        seconds, phases, device = receipt.seconds, receipt.phases, receipt.device
        sizes = [each.size for each in (*arrays, *_arrays_of(value))]
        kind = tuple((each.shape, str(each.dtype)) for each in arrays) + tuple(
            each for each in passed if type(each) in (int, str, bool)
        )
        line.add_call(device, seconds, kind, max(sizes, default=1), sum(each.nbytes for each in arrays))
        building = phases.trace + phases.compile
        # Finding what was built before takes microseconds.
        if building > max(_BUILDING, 0.05 * seconds) and line.calls > 1:
            line.building.add(building)
        for failure in receipt.failures:
            line.failures.of((failure.device, failure.error, failure.message)).add(failure.phases.total)
        for operation in receipt.host_operations:
            key = (operation.operation, operation.line, operation.reason)
            # What of the call is the operation's own is not known: what moved is at least a good part of it.
            line.on_host.of(key).add(_moving(operation.bytes_moved), operation.bytes_moved)
        if device == "numpy" and receipt.reason.startswith("nothing else can run it: "):
            line.missing.of(receipt.reason.removeprefix("nothing else can run it: ")).add(seconds)
        if device == "numpy" and "it cannot be traced: " in receipt.reason:
            line.refused.of(receipt.reason.partition("it cannot be traced: ")[2]).add(seconds)
        if device != "numpy":
            self._see_uploads(line, receipt, arrays)
        self._see_results(place, line, receipt, arrays, value)
        self._see_parts(place, line, arrays, seconds)
        self._see_widths(line, passed, arrays, value, seconds)
        if is_task:
            now = time.perf_counter()
            line.tasks += 1
            if now - seconds >= line.last_end > 0:
                line.alone.add(seconds)
            line.last_end = now
        if line.traced is None and line.seconds > _WORTH_TRACING:
            line.traced = _traced(function, arguments, keywords)

    def _see_uploads(self, line: LineCounts, receipt: Receipt, arrays: list[Any]) -> None:
        moved = [each for each in arrays if type(each) is np.ndarray and each.nbytes >= _SMALL]
        total = sum(each.nbytes for each in moved)
        if not receipt.bytes_to_device or not total:
            return
        for each in moved:
            line.uploads.of(_contents(each)).add(receipt.phases.write * each.nbytes / total, each.nbytes)

    def _see_results(self, place: CodePlace, line: LineCounts, receipt: Receipt, arrays: list[Any], value: Any) -> None:
        """Count arguments that an earlier call had returned, which went to the host and back, and remember these
        results.
        """
        is_away = receipt.device != "numpy"
        for each in arrays:
            known = self._results.get(id(each)) or self._results.get(id(getattr(each, "base", None)))
            if known is None or known[0]() is None or type(each) is not np.ndarray:
                continue
            share = each.nbytes / max(1, receipt.bytes_to_device)
            write = receipt.phases.write * min(1.0, share) if is_away else 0.0
            is_moved = is_away and each.nbytes >= _SMALL
            line.handed_on.of(known[1]).add(known[2] + write if is_moved else 0.0, each.nbytes)
        for each in _arrays_of(value):
            if type(each) is np.ndarray:
                share = each.nbytes / max(1, receipt.bytes_to_host)
                read = receipt.phases.read * min(1.0, share) if is_away else 0.0
                self._results[id(each)] = weakref.ref(each), place, read
                self._results.move_to_end(id(each))
        while len(self._results) > _RESULTS:
            self._results.popitem(last=False)

    def _see_parts(self, place: CodePlace, line: LineCounts, arrays: list[Any], seconds: float) -> None:
        for each in arrays:
            whole = each.base if type(each) is np.ndarray else None
            if type(whole) is not np.ndarray or each.nbytes * 2 > whole.nbytes:
                continue
            begin = each.__array_interface__["data"][0]
            before = self._last_part.get(place)
            if before is not None and before[0] == id(whole) and begin == before[1]:
                line.parts.add(seconds, whole.nbytes)
            self._last_part[place] = id(whole), begin + each.nbytes
            return

    def _see_widths(self, line: LineCounts, passed: list[Any], arrays: list[Any], value: Any, seconds: float) -> None:
        largest = max(arrays, key=lambda each: each.size, default=None)
        if largest is None or str(largest.dtype) not in ("float32", "float16", "complex64"):
            return
        if not any(str(each.dtype) in ("float64", "complex128") for each in _arrays_of(value)):
            return
        line.widened.add(seconds)
        wide = [each for each in passed if str(getattr(each, "dtype", "")) in ("float64", "complex128")]
        if wide:
            line.given_wide = f"{wide[0].dtype}{list(wide[0].shape)}" if wide[0].shape else f"numpy.{wide[0].dtype}"

    # -- arrays on devices

    def see_host_operation(self, operation: HostOperation) -> None:
        (_, through) = _users_line()
        if "place_call" not in through:
            self._on_host.setdefault(threading.get_ident(), []).append(operation)

    def see_array(self, seen: ArrayWork) -> None:
        if seen.device == "numpy" or active_tracer.get() is not None:
            return
        user, through = _users_line()
        if "place_call" in through or "lane_worker" in through:
            return
        with self._lock:
            found = self._line(CodePlace(*user, ""))
            if found is not None:
                see: Callable[[CodePlace, LineCounts, ArrayWork, set[str]], None] = getattr(self, f"_see_{seen.kind}")
                see(*found, seen, through)

    def _see_run(self, place: CodePlace, line: LineCounts, seen: ArrayWork, through: set[str]) -> None:
        specs = seen.what.specs
        nbytes = sum(each.nbytes for each in seen.what.results)
        line.add_call(seen.device, seen.seconds, seen.what.key, max((each.size for each in specs), default=1), nbytes)
        for operation in self._on_host.pop(threading.get_ident(), []):
            line.on_host.of((operation.operation, operation.line, operation.reason)).add(
                seen.seconds, operation.bytes_moved
            )

    def _see_upload(self, place: CodePlace, line: LineCounts, seen: ArrayWork, through: set[str]) -> None:
        values = seen.what
        read = self._last_read.pop(threading.get_ident(), None)
        if read is not None and read[0] == values.shape and values.nbytes >= _SMALL:
            self.lines[read[1]].returned.of(place).add(read[2] + seen.seconds, values.nbytes)
        elif values.nbytes >= _SMALL:
            line.uploads.of(_contents(values)).add(seen.seconds, values.nbytes)

    def _see_download(self, place: CodePlace, line: LineCounts, seen: ArrayWork, through: set[str]) -> None:
        if through & _VALUE_METHODS and seen.what.size == 1:
            line.values_read.add(seen.seconds)
        else:
            self._last_read[threading.get_ident()] = seen.what.shape, place, seen.seconds

    def _line(self, place: CodePlace) -> tuple[CodePlace, LineCounts] | None:
        line = self.lines.get(place)
        if line is None:
            if len(self.lines) >= MOST_LINES:
                return None
            line = self.lines[place] = LineCounts()
        return place, line


def _users_line() -> tuple[tuple[str, int], set[str]]:
    """The nearest line of the user's, and the names of our modules and functions on the way to it."""
    frame: FrameType | None = sys._getframe(2)
    through: set[str] = set()
    outside: tuple[str, int] | None = None
    while frame is not None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if module.startswith(_OURS):
            through.add(code.co_name)
            through.add(module.rpartition(".")[2])
        elif not code.co_filename.startswith((_LIBRARY, "<frozen")):
            return (code.co_filename, frame.f_lineno), through
        elif outside is None:
            outside = code.co_filename, frame.f_lineno
        frame = frame.f_back
    return outside or ("anygpu", 0), through


def _arrays_of(value: Any) -> list[Any]:
    return [each for each in leaves(value) if isinstance(each, np.ndarray | np.generic) or type(each) is Array]


def _contents(values: Any) -> tuple[Any, ...]:
    """A key that tells arrays apart. Two that are equal count as one."""
    flat = values if values.flags.c_contiguous else np.ascontiguousarray(values)
    data: Any = flat.reshape(-1).view(np.uint8)
    if len(data) > _WHOLE:
        data = np.ascontiguousarray(data[:: len(data) // _SAMPLE])
    return values.shape, str(values.dtype), zlib.crc32(data)


def _moving(nbytes: int) -> float:
    """The seconds that so many bytes take between a device and the host, roughly."""
    return 1e-4 + nbytes / 2e9


def _traced(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    try:
        with Executing():
            return trace(function, arguments, keywords, seconds=_TRACING)
    except Exception:  # noqa: BLE001 - advice is never a reason for a call to fail
        return None
