"""Records of the lines of a program, and the advice that follows from them: pure functions of what was seen.

Each kind of mistake has one function, which names its cost, and a section on the page about advice. Where several
apply to a line, the first of `_KINDS` that costs about as much as the most expensive one is told: it is the cause.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.base.units import readable_bytes, readable_seconds
from anygpu.observe.snapshot import Advice

#: Shapes, arrays, operations and the like that are remembered of one line.
MOST = 64
#: Lines that are remembered; later ones are not advised on.
MOST_LINES = 1000


class CodePlace(NamedTuple):
    """A line of the program, and what it calls there."""

    file: str
    number: int
    #: The function, or "" for operations on arrays.
    function: str

    @property
    def line(self) -> str:
        return f"{self.file}:{self.number}"


class RepeatedWork:
    """The same thing again."""

    __slots__ = ("count", "nbytes", "seconds", "slowest")

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0
        self.seconds = 0.0
        self.slowest = 0.0

    def add(self, seconds: float, nbytes: int = 0) -> None:
        self.count += 1
        self.nbytes = nbytes or self.nbytes
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)

    @property
    def usual(self) -> float:
        """The seconds of all but the slowest, which may have opened a device. It is not always among these."""
        return self.seconds - self.slowest


class Bounded(OrderedDict[Hashable, RepeatedWork]):
    """By what it was; the oldest is forgotten where there are too many."""

    def of(self, key: Hashable) -> RepeatedWork:
        found = self.get(key)
        if found is None:
            if len(self) >= MOST:
                self.popitem(last=False)
            found = self[key] = RepeatedWork()
        else:
            self.move_to_end(key)
        return found


class LineCounts:
    """Counts of one line: calls of one function, or operations on arrays."""

    def __init__(self) -> None:
        # -- calls, or programs that ran for arrays
        self.calls = 0
        self.seconds = 0.0
        self.quickest = float("inf")
        #: Usually the first call, which opens the device and compiles.
        self.slowest = 0.0
        #: By device.
        self.devices: dict[str, int] = {}
        #: Seconds of calls that ran on NumPy.
        self.on_numpy = 0.0
        #: Seconds that went into tracing and compiling, and in how many calls there were any.
        self.building = RepeatedWork()
        #: Elements of the largest argument or result of any call.
        self.largest = 0
        #: Kinds of arguments, or programs.
        self.kinds = Bounded()
        #: How many calls were the first of their kind.
        self.new_kinds = 0
        #: How many calls were given more bytes than the one before.
        self.grown = 0
        self.last_bytes = 0
        #: The most bytes of one call.
        self.most_bytes = 0
        #: Arrays that went to a device, by their contents.
        self.uploads = Bounded()
        #: Calls whose argument a call had returned before: by the line of that one.
        self.handed_on = Bounded()
        #: Calls with the next part of the same array.
        self.parts = RepeatedWork()
        #: Tasks, and those of them that ran while no other of this line did.
        self.tasks = 0
        self.alone = RepeatedWork()
        self.last_end = 0.0
        #: Attempts that failed, by device, error and message.
        self.failures = Bounded()
        #: Operations that the host did, by operation, line and reason.
        self.on_host = Bounded()
        #: Calls that asked for what there is not, by reason.
        self.missing = Bounded()
        #: Calls that stayed on NumPy because the function cannot be traced, by reason.
        self.refused = Bounded()
        #: Calls whose largest argument has 32 bits or less, and whose result has 64.
        self.widened = RepeatedWork()
        #: Whether an argument was wider.
        self.given_wide: str | None = None
        #: The function's program, or why there is none; and how often it was asked.
        self.traced: Traced | NotTraceable | None = None
        # -- values that were read back
        self.values_read = RepeatedWork()
        #: Arrays that were read back and then uploaded again, by the line of the upload.
        self.returned = Bounded()

    def add_call(self, device: str, seconds: float, kind: Hashable, largest: int, nbytes: int) -> None:
        """Count a call: its time, its device, and whether its arguments are of a new kind or have grown."""
        self.calls += 1
        self.seconds += seconds
        self.quickest = min(self.quickest, seconds)
        self.slowest = max(self.slowest, seconds)
        self.devices[device] = self.devices.get(device, 0) + 1
        if device == "numpy":
            self.on_numpy += seconds
        self.largest = max(self.largest, largest)
        kinds = self.kinds.of(kind)
        self.new_kinds += not kinds.count
        kinds.add(seconds)
        self.grown += nbytes > self.last_bytes > 0
        self.last_bytes = nbytes
        self.most_bytes = max(self.most_bytes, nbytes)

    @property
    def device(self) -> str:
        """The device on which most of the calls ran."""
        return max(self.devices, key=lambda each: self.devices[each], default="numpy")


CountsByPlace = dict[CodePlace, LineCounts]


def leaves(value: Any, depth: int = 3) -> list[Any]:
    """The items of tuples, lists and dicts, within limits of depth and number."""
    kind = type(value)
    if not depth or kind not in (tuple, list, dict):
        return [value]
    found: list[Any] = []
    for each in list(value.values() if kind is dict else value)[:MOST]:
        found += leaves(each, depth - 1)
    return found


#: Seconds, and share of the observed time, below which nothing is reported.
LEAST_SECONDS, LEAST_SHARE = 0.01, 0.01
#: Calls from one line before they are a loop, and elements up to which they are small.
_LOOP, _FEW_ELEMENTS = 50, 1 << 14
#: How often something has to happen again before it is a habit.
_OFTEN = 3
#: Kinds of arguments from one line before they are too many.
_MANY_KINDS = 6
#: Share of the calls that has to be concerned.
_MOST_OF = 0.6


class _Found(NamedTuple):
    cost: float
    line: str
    finding: str
    instead: str


def findings(lines: Mapping[CodePlace, LineCounts], seconds: float) -> list[Advice]:
    """Advice, the most expensive first; `seconds` is how long the program was observed."""
    # The first call of each line opens devices and compiles, which no advice here changes.
    usual = seconds - sum(line.slowest for line in lines.values())
    least = max(LEAST_SECONDS, LEAST_SHARE * usual)
    found: list[Advice] = []
    for place, line in list(lines.items()):
        here = [(kind, each) for kind, find in _KINDS.items() for each in find(place, line) if each.cost >= least]
        if here:
            most = max(each.cost for _, each in here)
            kind, told = next((kind, each) for kind, each in here if each.cost >= most / 2)
            found.append(Advice(kind=kind, line=told.line, cost=told.cost, finding=told.finding, instead=told.instead))
    found.sort(key=lambda each: -each.cost)
    return _once(found)


def _once(found: list[Advice]) -> list[Advice]:
    """One line of a function may be the cause of what several callers see."""
    by_line: dict[tuple[str, str | None], Advice] = {}
    for each in found:
        by_line.setdefault((each.kind, each.line), each)
    return list(by_line.values())


# -- the kinds, each from what one line did


def _fallback(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Calls that often failed on a device and ran elsewhere, and operations that a device left to the host."""
    name = _name(place)
    for key, again in line.failures.items():
        device, error, message = _three(key)
        if again.count >= _OFTEN:
            yield _Found(
                again.seconds,
                place.line,
                f"{name} was tried on {device} {again.count} times, failed there ({error}: {_short(message)}) and ran "
                "elsewhere.",
                f'Remove the cause, or ask for where it works: on="{line.device}".',
            )
    for key, again in line.on_host.items():
        operation, where, reason = _three(key)
        if again.count >= _OFTEN:
            yield _Found(
                again.seconds,
                where or place.line,
                f"{operation} ran on the host {again.count} times, which moved {readable_bytes(again.nbytes)} each "
                f"time: {_short(reason)}.",
                f"Write it with operations that {line.device} has, or do it once, before the others.",
            )
    for key, again in line.missing.items():
        if again.count >= _OFTEN and not isinstance(line.traced, NotTraceable):
            yield _Found(
                again.usual,
                place.line,
                f"{name} ran on NumPy {again.count} times, and not where it was asked for: {_short(str(key))}",
                "Remove `on=`, so that it runs wherever it is fastest; or see `anygpu doctor`.",
            )


def _branch(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Python branches on values of arrays: each waits for the device, or keeps a function from being traced."""
    again = line.values_read
    if again.count >= 10:
        yield _Found(
            again.seconds,
            place.line,
            f"One value of an array was needed {again.count} times: each time Python waits for {line_device(line)}.",
            "Decide with np.where on the device, or look at the value every tenth time only.",
        )
    why = line.traced
    if not isinstance(why, NotTraceable) or why.error is not None or why.for_now or why.line is None:
        return
    if line.refused or line.missing:
        yield _Found(
            line.on_numpy,
            why.line,
            f"{_name(place)} decides by the value of an array here, so it cannot leave NumPy: its {line.calls} calls "
            f"took {readable_seconds(line.on_numpy)} there.",
            "Compute both ways and choose with np.where, or pass the decision as an argument.",
        )


def _untraceable(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    why = line.traced
    if isinstance(why, NotTraceable) and why.error is None and not why.for_now and (line.refused or line.missing):
        yield _Found(
            line.on_numpy,
            why.line or place.line,
            f"{_name(place)} cannot leave NumPy: {_short(why.reason)}.",
            "Move what computes into a function of its own, and offload that.",
        )


def _memory_churn(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """An array that grows from call to call, and is allocated and copied each time."""
    if line.calls < 20 or line.grown < _MOST_OF * line.calls or line.new_kinds < _MOST_OF * line.calls:
        return
    if place.function and sum(each.count for each in line.handed_on.values()) < _MOST_OF * line.calls:
        return  # these are only longer from call to call, and not the same array
    yield _Found(
        line.seconds - line.calls * line.quickest,
        place.line,
        f"An array grows with each of {line.calls} calls, up to {readable_bytes(line.most_bytes)}: each time it is "
        "allocated and copied again.",
        "Allocate it once at its final size, or collect the parts in a list and join them once.",
    )


def _recompile(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Functions that are traced or compiled again in most calls, as shapes or numbers among their arguments change."""
    many = line.new_kinds >= _MANY_KINDS and line.new_kinds >= _MOST_OF * line.calls
    if place.function:
        cost = line.building.seconds
        if line.building.count < _MANY_KINDS - 1:
            return
    else:
        cost = line.seconds - line.calls * line.quickest
        if not many:
            return
    what = f"{line.new_kinds} kinds of arguments" if many else "its arguments"
    yield _Found(
        cost,
        place.line,
        f"{_name(place)} was traced or compiled {line.building.count or line.new_kinds} times in {line.calls} calls, "
        f"for {what}.",
        "Pad arrays to a few fixed shapes, and pass numbers that change as arrays.",
    )


def _read_back(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Results that go to the host and back to the device as arguments of a later call."""
    for key, again in line.handed_on.items():
        if again.count >= _OFTEN and again.seconds > 0 and isinstance(key, CodePlace):
            yield _Found(
                again.seconds,
                place.line,
                f"{again.count} times {_name(place)} was given what {_name(key)} (line {key.number}) had returned: "
                f"{readable_bytes(again.nbytes)} came from {line.device} and went back each time.",
                f'Start with anygpu.asarray(x, device="{line.device}"): results stay there. Or make one function of '
                "both.",
            )
    for key, again in line.returned.items():
        if again.count >= _OFTEN and isinstance(key, CodePlace):
            yield _Found(
                again.seconds,
                place.line,
                f"{readable_bytes(again.nbytes)} were read back {again.count} times, and uploaded again on line "
                f"{key.number}.",
                "Keep the array on its device: NumPy's functions take it as it is.",
            )


def _upload_again(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """The same values uploaded again and again."""
    repeated = [each for each in line.uploads.values() if each.count >= _OFTEN]
    if not repeated:
        return
    seconds = sum(each.seconds * (each.count - 1) / each.count for each in repeated)
    most = max(repeated, key=lambda each: each.seconds)
    yield _Found(
        seconds,
        place.line,
        f"The same {readable_bytes(most.nbytes)} went to {line_device(line)} {most.count} times.",
        "Upload them once, before the loop: w = anygpu.asarray(w, device=…), and pass that.",
    )


def _tiny_batch(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Tasks that are awaited one by one, or small parts of one array, which could share a launch."""
    name = _name(place)
    if line.alone.count >= _LOOP and line.alone.count >= _MOST_OF * line.tasks:
        yield _Found(
            line.alone.usual,
            place.line,
            f"{line.tasks} tasks of {name} were submitted, and each was awaited before the next: none could share a "
            "launch.",
            "Submit all of them, then ask for the results; or use anygpu.map(function, items).",
        )
    if line.parts.count >= 20 and line.parts.count >= _MOST_OF * line.calls and line.largest <= 4 * _FEW_ELEMENTS:
        yield _Found(
            line.parts.usual,
            place.line,
            f"{name} was called {line.calls} times, with {line.largest:,} elements at most of an array of "
            f"{readable_bytes(line.parts.nbytes)}.",
            "Pass the whole array at once, or parts that are a hundred times as long.",
        )


def _python_loop(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Many calls with few elements from one line, whose time is mostly overhead."""
    few_kinds = line.new_kinds <= max(4, line.calls // 8)
    if line.calls - line.tasks < _LOOP or line.largest > _FEW_ELEMENTS or not few_kinds:
        return
    own = [each for key, each in line.handed_on.items() if key == place]
    each = readable_seconds(line.seconds / line.calls)
    if own and own[0].count >= _MOST_OF * (line.calls - 1):
        instead = "Put the loop into the function: one call then does all steps."
    else:
        instead = "Call it once with all of them stacked, or use anygpu.map(function, items)."
    what = f"{_name(place)} was called" if place.function else "A program was launched"
    yield _Found(
        line.seconds - line.slowest,
        place.line,
        f"{what} {line.calls} times from this line, with at most {line.largest:,} elements: {each} each, most of it "
        "for the call itself.",
        instead,
    )


def _float64(place: CodePlace, line: LineCounts) -> Iterator[_Found]:
    """Calls with 32-bit arguments that compute with float64, by one wide argument or inside of the function."""
    again = line.widened
    if again.count < _OFTEN or again.count < _MOST_OF * line.calls:
        return
    where = place.line
    if line.given_wide is not None:
        finding = (
            f"An argument of {_name(place)} is {line.given_wide}, and the others have 32 bits: all becomes float64."
        )
        instead = "Convert it first, once: x.astype(np.float32), or np.float32(x)."
    else:
        inside = _first_wide(line.traced)
        where = inside or where
        finding = f"{_name(place)} is given 32-bit numbers, and computes with float64 from here on."
        instead = "Make new arrays with the dtype of the argument: np.ones(n, dtype=x.dtype); use Python's numbers."
    yield _Found(again.seconds / 2, where, finding, instead)


_KINDS: dict[str, Callable[[CodePlace, LineCounts], Iterator[_Found]]] = {
    "fallback": _fallback,
    "branch": _branch,
    "untraceable": _untraceable,
    "memory-churn": _memory_churn,
    "recompile": _recompile,
    "tiny-batch": _tiny_batch,
    "python-loop": _python_loop,
    "read-back": _read_back,
    "upload-again": _upload_again,
    "float64": _float64,
}
KINDS = tuple(_KINDS)


# -- words


def _name(place: CodePlace) -> str:
    return place.function or "it"


def line_device(line: LineCounts) -> str:
    return line.device if line.devices else "its device"


def _short(text: str | None) -> str:
    """The first sentence or so, without its full stop."""
    first = (text or "").strip().splitlines()[0] if (text or "").strip() else "no reason was given"
    return (first if len(first) <= 200 else first[:199] + "…").rstrip(".")


def _three(key: object) -> tuple[str, str, str]:
    assert isinstance(key, tuple)
    one, two, three = key
    return str(one), "" if two is None else str(two), str(three)


def _first_wide(traced: Traced | NotTraceable | None) -> str | None:
    """The user's line on which a program of 32-bit inputs begins to have 64-bit results."""
    if not isinstance(traced, Traced):
        return None
    program = traced.program
    for spec, line in list(zip(program.specs, program.lines, strict=True))[program.input_count :]:
        if spec.dtype in ("float64", "complex128") and spec.size > 1 and line is not None:
            return f"{line[0]}:{line[1]}"
    return None
