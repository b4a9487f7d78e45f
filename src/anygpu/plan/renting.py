"""Whether to open a device for calls that may or may not come: renting or buying skis, with a forecast.

NumPy is rented: every call costs its time. A device is bought: opening it and compiling cost once, and calls are
cheaper from then on. A history forecasts how many calls will come and what they take on the device. It may be wrong in
every number, so two rules bound what that can cost:

- A device is opened on the word of a history only where its own forecast pays for that; without one, once calls have
  taken as long as opening would (`anygpu.placement.pacing`).
- The first call there is the judge: if it takes more than twice what was remembered, and more than NumPy does, the
  next call is back on NumPy, and the history has no further say in this process.

So whatever a history says, all calls together cost at most what they cost on NumPy, plus one opening and one call for
each device that it praises. When it is right they cost at most the cheaper of both choices, plus the calls that run on
NumPy while the device opens in the background.
"""

from __future__ import annotations

from typing import NamedTuple

#: A call that takes so many times what was remembered shows that the memory is wrong.
WRONG = 2.0
#: Less of a gain than this is noise.
LEAST_GAIN = 0.95


class Remembered(NamedTuple):
    """What a history says of a program on one device."""

    #: Of one call.
    seconds: float
    #: Of compiling it.
    compile: float
    #: That a process usually makes; 0 if that is not known.
    calls: int
    #: For people: "measured 3 days ago, 41 calls".
    source: str
    #: Whether it was measured only while something else had the processors.
    doubtful: bool = False


def remaining_calls(usual: int, made: int) -> int:
    """How many calls are still to be expected, when a process usually makes so many, and this one has made some.

    Beyond the usual number, or without one, as many again as there were.
    """
    return usual - made if usual > made else made


def is_worth_opening(remembered: Remembered, baseline: float, opening: float, made: int) -> bool:
    """Whether the calls that are expected pay for opening the device and compiling, going by the history."""
    if remembered.seconds > baseline * LEAST_GAIN:
        return False
    gain = (baseline - remembered.seconds) * remaining_calls(remembered.calls, made)
    return gain > opening + remembered.compile


def is_wrong(remembered: float, seconds: float, baseline: float) -> bool:
    """Whether the first call shows that the memory cannot be relied on."""
    return seconds > remembered * WRONG and seconds > baseline
