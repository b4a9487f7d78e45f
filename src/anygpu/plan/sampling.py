"""The sampling rate of a trusted device, whose results are compared with NumPy: a pure function of call times."""

from __future__ import annotations

import math

#: The cost of samples, as a share of the time of calls on the device: more while a device is new here. It is new
#: in every process, and whenever it was opened again, so a new driver or version is looked at more often as well.
FRESH_SHARE, SHARE = 0.01, 0.005
#: Samples that are taken at the larger share.
FRESH_SAMPLES = 10


def calls_between_samples(home: float, device: float, copying: float, *, samples: int = 0) -> int:
    """After so many calls on a device, at most, the next one is a sample; a device that turned wrong is found by it.

    A sample runs on NumPy, which takes `home` instead of `device` seconds; its inputs and results are copied, and the
    device computes the same once more in the background. `samples` is how many there were before.
    """
    if device <= 0:
        return 1
    share = FRESH_SHARE if samples < FRESH_SAMPLES else SHARE
    return math.ceil((max(home, device) + copying) / (share * device))
