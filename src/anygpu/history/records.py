"""What the history knows, as frozen records: what a program took on a device, and how a function is usually called."""

from __future__ import annotations

import math
import re
from typing import Annotated

import msgspec
from msgspec import Meta

#: A name of a function or a device has fewer characters than this.
MOST_CHARACTERS = 200
#: No call and no compiler takes longer, and no time is later: what says so was not written by us.
MOST_SECONDS = 1e8
LATEST = 1e11
#: Counts stop here: up to this, floats hold every integer.
MOST_CALLS = 1 << 53

#: Hashes are hexadecimal digits.
_HASH = "^[0-9a-f]{8,128}$"
Hash = Annotated[str, Meta(pattern=_HASH)]
Name = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Count = Annotated[int, Meta(ge=0, le=MOST_CALLS)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Moment = Annotated[float, Meta(ge=0, le=LATEST)]


class Peak(msgspec.Struct, frozen=True):
    """The most memory that a call of an opaque task took at once, beyond what was taken before."""

    #: The length of the first axis of its arguments; 0 if they do not have one in common.
    rows: Count
    bytes: Count


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What one program took on one device, as it was set up then."""

    #: The program's key.
    program: Hash
    #: The device's id, for people; NumPy's own times are those of "numpy".
    device: Name
    #: What has to be the same for the time to hold: see `anygpu.history.keys.device_stamp`.
    stamp: Hash
    #: The median of recent calls; `None` if the program was compiled or compared there, and no call was counted.
    seconds: Seconds | None
    #: Calls that were ever counted.
    calls: Count
    #: What compiling took the last time; `None` if nothing was compiled.
    compile: Seconds | None
    #: Whether results were compared with NumPy's and agreed, and none disagreed since.
    agreed: bool
    #: When a result last disagreed with NumPy's, in seconds since 1970; `None` if none did.
    disagreed: Moment | None
    #: When any of this was last measured, in seconds since 1970.
    when: Moment
    #: Whether every call was measured while something else had the processors.
    doubtful: bool = False
    #: What opaque tasks took of memory, by rows; nothing for programs, whose memory is computed.
    peaks: tuple[Peak, ...] = ()


class Habit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process usually calls one function with one kind of arguments."""

    #: See `anygpu.history.keys.function_hash`.
    function: Hash
    #: For people; `None` when names are not kept.
    name: Name | None
    #: See `anygpu.history.keys.signature_hash`.
    signature: Hash
    #: The key of the program that it was traced to; `None` if it was not, or could not be.
    program: Hash | None
    #: Processes that were counted.
    processes: Count
    #: The calls of one process and the seconds that they took together: the medians of recent processes.
    calls: Count
    seconds: Seconds
    #: When it was last called, in seconds since 1970.
    when: Moment


_hash = re.compile(_HASH)


def is_hash(text: str) -> bool:
    return _hash.fullmatch(text) is not None


def is_moment(value: float) -> bool:
    """Whether it can be a time since 1970. msgspec's own limits let NaN pass."""
    return math.isfinite(value) and 0.0 <= value <= LATEST


def is_duration(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= MOST_SECONDS


def plain_name(name: str) -> str:
    """As it can be kept and shown: on one line, of limited length, in valid Unicode."""
    if name.isascii() and name.isprintable() and len(name) <= MOST_CHARACTERS:
        return name  # as nearly all are
    text = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(each if each.isprintable() else "?" for each in text[:MOST_CHARACTERS])
