"""A thread that samples memory and devices while a process is observed, and tells what is not as it was.

While no calls come it only looks whether there are any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from anygpu.observe.findings import Anomaly
from anygpu.observe.observation import Observation
from anygpu.observe.watching import Sample

#: Seconds between two samples while calls come.
PERIOD = 2.0

_log = logging.getLogger("anygpu.observe")


class Sampler:
    """Samples until it is closed. `told` is called with each anomaly, on the sampler's thread."""

    def __init__(
        self,
        observation: Observation,
        sample: Callable[[], Sample],
        told: Callable[[Anomaly], object] | None = None,
        period: float = PERIOD,
    ) -> None:
        self._observation = observation
        self._sample = sample
        self._told = told
        self._period = period
        self._over = threading.Event()
        self._calls = 0
        self._thread = threading.Thread(target=self._work, name="anygpu observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._period)

    def _work(self) -> None:
        while not self._over.wait(self._period):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - what is observed has to go on
                _log.exception("devices could not be sampled")

    def look(self) -> None:
        """Sample, if there were calls since the last time, and tell what was found."""
        calls = self._observation.calls
        if calls != self._calls:
            self._calls = calls
            self._observation.add_sample(self._sample())
        for anomaly in self._observation.take_untold():
            _log.warning("%s", anomaly.sentence)
            if self._told is not None:
                try:
                    self._told(anomaly)
                except Exception:  # noqa: BLE001 - the user's own
                    _log.exception("the callback for anomalies raised")
