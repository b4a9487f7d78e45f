"""Forms of opaque tasks: calls of one function whose arguments differ in the number of rows only.

What such calls take of memory is learnt for the form, in this process and in earlier ones.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from anygpu.array.core.structure import flatten
from anygpu.base.forks import lock
from anygpu.base.units import readable_bytes
from anygpu.placement.history.records import function_hash, signature_hash

if TYPE_CHECKING:
    from anygpu.placement.call import Call


# -- memory, as it was seen: pure functions of what was measured


class Short(NamedTuple):
    """A device without the memory for a call."""

    device: str
    needed: int
    free: int

    @property
    def sentence(self) -> str:
        """The bytes that are needed and free, as a sentence."""
        return (
            f"{self.device} needs about {readable_bytes(self.needed)} for it, and {readable_bytes(self.free)} are free."
        )


def predicted_peak(seen: Mapping[int, int], rows: int) -> int | None:
    """The bytes that a call with so many rows takes, from peaks that were seen by number of rows; `None` without any.

    A peak seen with that number of rows is believed. Else it is read off the line of least squares: the part that does
    not grow with the rows is at least 0, and more rows never take less than fewer. One number of rows alone says that
    memory grows with the rows, which is too little for fewer rows, and enough for more.
    """
    if rows in seen:
        return seen[rows]
    if not seen:
        return None
    if len(seen) == 1:
        ((known, peak),) = seen.items()
        return peak * rows // known if known else peak
    slope, constant = _line(seen)
    least = max((peak for known, peak in seen.items() if known < rows), default=0)
    most = min((peak for known, peak in seen.items() if known > rows), default=None)
    value = max(least, int(constant + slope * rows))
    return value if most is None or most < least else min(value, most)


def _line(seen: Mapping[int, int]) -> tuple[float, float]:
    """The slope and the constant of the line with the least squares, neither of which is negative."""
    count = len(seen)
    middle, level = sum(seen) / count, sum(seen.values()) / count
    spread = sum((rows - middle) ** 2 for rows in seen)
    slope = sum((rows - middle) * (peak - level) for rows, peak in seen.items()) / spread
    constant = level - slope * middle
    if slope < 0:
        return 0.0, level
    if constant < 0:
        return sum(rows * peak for rows, peak in seen.items()) / sum(rows * rows for rows in seen), 0.0
    return slope, constant


def without_memory(needed: Mapping[str, int | None], free: Mapping[str, int | None]) -> list[Short]:
    """The devices that have less free than a call is predicted to take there. What is not known excludes none."""
    found: list[Short] = []
    for device, peak in needed.items():
        there = free.get(device)
        if peak is not None and there is not None and there < peak:
            found.append(Short(device, peak, there))
    return found


# -- forms


#: Forms that are kept for one function.
_MOST_FORMS = 64
#: Measuring takes up to some milliseconds on a host: the first calls with a number of rows are measured, and then one
#: of so many.
FIRST, EVERY = 3, 128
#: Numbers of rows that are measured for one form.
_MOST_ROWS = 32


class RowsOfForm(NamedTuple):
    """The form of a call, and its rows."""

    form: OpaqueForm
    #: `None` if its arrays do not have a first axis of the same length.
    rows: int | None


class OpaqueForm:
    """The memory that calls of one form take, by device and number of rows. Any thread may use it."""

    def __init__(self, key: Hashable) -> None:
        #: What the arguments have in common, without their rows.
        self.key = key
        #: The name by which other processes know it; `None` if there is none, or as long as it was not asked for.
        self.program: str | None = None
        self._recalled = False
        self._lock = lock()
        #: By device and rows: what earlier processes have seen, or the median of the last calls of this one.
        self._peaks: dict[str, dict[int, int]] = {}
        #: What was measured last. Other threads take and free memory meanwhile, so that one measurement may be too much
        #: or too little.
        self._last: dict[tuple[str, int], deque[int]] = {}
        self._calls: dict[tuple[str, int], int] = {}
        #: Whether an earlier process has found that rows must not be stacked.
        self.disagreed = False

    def recall(self, call: Call, engine: Any) -> None:
        """Read what earlier processes have seen of this form, once.

        The name of the form is a hash of the function's code, the structure that the engine sees in it, and the
        arguments without their rows.
        """
        with self._lock:
            if self._recalled:
                return
            self._recalled = True
        hashed = function_hash(call.function)
        if hashed is None:
            return
        structure = getattr(engine, "structure", None)
        inside = structure(call.function) if structure is not None else None
        program = signature_hash(("opaque", hashed, inside, self.key))
        recall = call.planner.recall
        known, disagreed = recall.opaque(call.site, call.function, program)
        with self._lock:
            self.program, self.disagreed = program, disagreed
            for device, peaks in known.items():
                self._peaks[device] = {**peaks, **self._peaks.get(device, {})}

    def seen(self, device: str) -> dict[int, int]:
        """The peaks on a device by number of rows, in bytes."""
        with self._lock:
            return dict(self._peaks.get(device, {}))

    def predicted(self, device: str, rows: int | None) -> int | None:
        """The bytes that a call is expected to take beyond what is taken before it."""
        with self._lock:
            return predicted_peak(self._peaks.get(device, {}), rows or 0)

    def is_to_be_measured(self, device: str, rows: int | None) -> bool:
        """Whether the next call with so many rows is one of those that are measured."""
        key = device, rows or 0
        with self._lock:
            calls = self._calls.get(key, 0)
            if not calls and len(self._calls) >= _MOST_ROWS:
                return False
            self._calls[key] = calls + 1
        return calls < FIRST or calls % EVERY == 0

    def measured(self, call: Call, device: str, rows: int | None, peak: int) -> None:
        """Learn the peak of a call with so many rows, and keep it for later processes."""
        number = rows or 0
        with self._lock:
            calls, peaks = self._calls.get((device, number), 1), self._peaks.setdefault(device, {})
            if calls == 1 and number in peaks:
                return  # the first call of a process takes more, and an earlier process has seen more than one
            earlier = [peaks[number]] if number in peaks else []
            last = self._last.setdefault((device, number), deque(earlier, FIRST))
            last.append(peak)
            # Of two the lower one: the first call of a process takes more.
            peaks[number] = peak = sorted(last)[(len(last) - 1) // 2]
            program = self.program
        if program is not None:
            call.planner.recall.peaked(program, device, number, peak)


def form_of(call: Call, forms: dict[Hashable, OpaqueForm]) -> RowsOfForm:
    """The form of a call, among those of its function, and its rows: the length of its arrays' first axes."""
    leaves, structure = flatten((call.arguments, call.keywords))
    shapes = [tuple(leaf.shape) if _is_array(leaf) else None for leaf in leaves]
    lengths = {shape[0] if shape else 0 for shape in shapes if shape is not None}
    rows = lengths.pop() if len(lengths) == 1 and 0 not in lengths else None
    begin = 0 if rows is None else 1
    parts = tuple(
        (shape[begin:], str(leaf.dtype)) if shape is not None else _named(leaf)
        for leaf, shape in zip(leaves, shapes, strict=True)
    )
    key = (rows is None, tuple(_captured(call.function)), structure, parts)
    form = forms.get(key)
    if form is None:
        form = forms.setdefault(key, OpaqueForm((str(structure), parts)))
        if len(forms) > _MOST_FORMS:
            forms.pop(next(iter(forms)), None)
    return RowsOfForm(form, rows)


def _is_array(leaf: Any) -> bool:
    """Whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _named(leaf: Any) -> tuple[str, str]:
    """The type of a leaf, and its value if that is plain, for the name of a form."""
    plain = leaf if isinstance(leaf, bool | int | float | str | type(None)) else None
    return type(leaf).__qualname__, repr(plain)[:64]


def _captured(function: Callable[..., Any]) -> Iterable[int]:
    """Which objects the function captures: two closures of one code may hold modules of different sizes."""
    if isinstance(function, functools.partial):
        yield from _captured(function.func)
        yield from map(id, (*function.args, *function.keywords.values()))
    elif isinstance(function, MethodType):
        yield id(function.__self__)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            try:
                yield id(cell.cell_contents)
            except ValueError:  # it is not bound yet
                yield 0
    else:
        yield id(function)
