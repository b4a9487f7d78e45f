"""Seconds of a step's parts: by the host's clock, or by events on a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Laps(Protocol):
    """What runs from one call of `lap` to the next counts under the later one's name, or not at all if that is ""."""

    def lap(self, name: str) -> None: ...

    def seconds(self) -> dict[str, float]: ...


class HostLaps:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._last = clock()

    def lap(self, name: str) -> None:
        now = self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return {name: seconds for name, seconds in self._seconds.items() if name}


class CudaLaps:
    """The host runs ahead of the card, so events are recorded, and waited for once, at the end (never run on one)."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._events: list[tuple[str, torch.cuda.Event]] = []
        self.lap("")

    def lap(self, name: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._events.append((name, event))

    def seconds(self) -> dict[str, float]:
        self._events[-1][1].synchronize()
        found: dict[str, float] = {}
        for (_, before), (name, event) in zip(self._events, self._events[1:], strict=False):
            if name:
                found[name] = found.get(name, 0.0) + before.elapsed_time(event) / 1e3
        return found


def laps_on(device: torch.device) -> Laps:
    return CudaLaps(device) if device.type == "cuda" else HostLaps()
