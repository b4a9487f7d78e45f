"""When memory will run out at this rate, with how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Fewer samples say nothing of the rate.
LEAST_SAMPLES = 10
#: Ways that memory may go on, which the forecast is made of; the same ones each time.
_WAYS, _SEED = 2000, 18


class Forecast(NamedTuple):
    """Seconds until a limit is reached: as likely sooner as later, and the bounds that hold nine times in ten.

    `latest` is infinite if it may never be reached.
    """

    seconds: float
    earliest: float
    latest: float


def time_until(limit: float, samples: Sequence[tuple[float, float]]) -> Forecast | None:
    """From samples of (seconds, bytes), the newest last; `None` if there are too few, or nothing grows.

    What grows by steps of changing size is a random walk with a drift. Neither the drift nor the size of the steps is
    known exactly, so each of many ways draws both, as likely as they are after what was seen, and then walks.
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    times = np.asarray([time for time, _ in samples], float)
    values = np.asarray([value for _, value in samples], float)
    gaps, steps = np.diff(times), np.diff(values)
    if (gaps <= 0).any():
        return None
    count = len(steps)
    drift = (values[-1] - values[0]) / (times[-1] - times[0])
    # Per second, from steps of different lengths.
    spread = math.sqrt(float((((steps - drift * gaps) ** 2) / gaps).sum()) / (count - 1))
    room = limit - values[-1]
    if room <= 0:
        return Forecast(0.0, 0.0, 0.0)
    if drift <= 0 or drift * math.sqrt(times[-1] - times[0]) < spread:
        return None  # it may as well not grow at all
    generator = np.random.default_rng(_SEED)
    spreads = spread * np.sqrt((count - 1) / generator.chisquare(count - 1, _WAYS))
    drifts = drift + spreads / math.sqrt(times[-1] - times[0]) * generator.standard_normal(_WAYS)
    found = np.full(_WAYS, np.inf)
    grows = drifts > 0
    if spread > 0:
        # The first time that such a walk reaches the limit is distributed as an inverse Gaussian.
        found[grows] = generator.wald(room / drifts[grows], (room / spreads[grows]) ** 2)
    else:
        found[grows] = room / drifts[grows]
    earliest, middle, latest = np.quantile(found, (0.05, 0.5, 0.95), method="inverted_cdf")
    return Forecast(float(middle), float(earliest), float(latest))
