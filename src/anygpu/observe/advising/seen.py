"""What an advisor remembers of the lines of a program: counts and sums, in a fixed memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

from anygpu.array.trace.traced import NotTraceable, Traced

#: Shapes, arrays, operations and the like that are remembered of one line.
MOST = 64
#: Lines that are remembered; later ones are not advised on.
MOST_LINES = 1000


class Place(NamedTuple):
    """A line of the program, and what it calls there."""

    file: str
    number: int
    #: The function, or "" for operations on arrays.
    function: str

    @property
    def line(self) -> str:
        return f"{self.file}:{self.number}"


class Repeated:
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


class Bounded(OrderedDict[Hashable, Repeated]):
    """By what it was; the oldest is forgotten where there are too many."""

    def of(self, key: Hashable) -> Repeated:
        found = self.get(key)
        if found is None:
            if len(self) >= MOST:
                self.popitem(last=False)
            found = self[key] = Repeated()
        else:
            self.move_to_end(key)
        return found


class Line:
    """What happened on one line: calls of one function, or operations on arrays."""

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
        self.building = Repeated()
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
        self.parts = Repeated()
        #: Tasks, and those of them that ran while no other of this line did.
        self.tasks = 0
        self.alone = Repeated()
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
        self.widened = Repeated()
        #: Whether an argument was wider.
        self.given_wide: str | None = None
        #: The function's program, or why there is none; and how often it was asked.
        self.traced: Traced | NotTraceable | None = None
        # -- values that were read back
        self.values_read = Repeated()
        #: Arrays that were read back and then uploaded again, by the line of the upload.
        self.returned = Bounded()

    def add_call(self, device: str, seconds: float, kind: Hashable, largest: int, nbytes: int) -> None:
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
        """Where most of the calls ran."""
        return max(self.devices, key=lambda each: self.devices[each], default="numpy")


Lines = dict[Place, Line]


def leaves(value: Any, depth: int = 3) -> list[Any]:
    """What is in tuples, lists and dicts, not too deep and not too much of it."""
    kind = type(value)
    if not depth or kind not in (tuple, list, dict):
        return [value]
    found: list[Any] = []
    for each in list(value.values() if kind is dict else value)[:MOST]:
        found += leaves(each, depth - 1)
    return found
