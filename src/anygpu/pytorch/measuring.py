"""Measures a step: seconds of its parts, the peak of its memory, and waiting for its batches.

`laps_on` returns the stopwatch for a device, `StepMeter` measures memory now and then, and the three functions at the
end carry the time that a loop waited for data from whoever hands out batches to the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Protocol

import torch

from anygpu.engines.torch.engine import TorchMeter, meter_for
from anygpu.pytorch.step_plans import StepPlan

# -- seconds of a step's parts: by the host's clock, or by events on a CUDA stream


class Laps(Protocol):
    """A stopwatch: the time between two calls of `lap` counts under the later name, or not at all if that is ""."""

    def lap(self, name: str) -> None: ...

    def seconds(self) -> dict[str, float]: ...


class HostLaps:
    """A stopwatch by the host's clock, for devices that compute while Python waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._last = clock()

    def lap(self, name: str) -> None:
        now = self._clock()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds by name, without those that count as nothing."""
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
        """Seconds by name. Waits for the last event, so that the card has done all that was measured."""
        self._events[-1][1].synchronize()
        found: dict[str, float] = {}
        for (_, before), (name, event) in zip(self._events, self._events[1:], strict=False):
            if name:
                found[name] = found.get(name, 0.0) + before.elapsed_time(event) / 1e3
        return found


def laps_on(device: torch.device) -> Laps:
    """A stopwatch that runs from now on, as the device needs it."""
    return CudaLaps(device) if device.type == "cuda" else HostLaps()


# -- the peak of a step's memory, as predictions mean it: what the training has, and what the step took beyond


#: Measuring takes up to some milliseconds on a host, so only the first steps of a plan are measured, and then one of
#: this many.
_FIRST, _EVERY = 4, 128

_NOW_AND_THEN = f"memory is measured in the first {_FIRST} steps of a plan, and then in one of {_EVERY}"


class StepMeter:
    """The peak memory of the steps of one `Step`, in bytes.

    `has_now` counts the bytes of its parameters, gradients and optimiser state: they are part of a peak as predictions
    mean it, and were there before the step began.
    """

    def __init__(self, device: torch.device, has_now: Callable[[], int], meter: TorchMeter | None = None) -> None:
        self._meter = meter_for(device) if meter is None else meter
        self._has_now = has_now
        self._device = device
        self._plan: StepPlan | None = None
        self._steps = 0
        self._begun: tuple[int, int] | None = None
        #: Why the last step has no peak.
        self.why = ""

    def begin(self, plan: StepPlan) -> None:
        """Begins to measure, if it is this step's turn; a new plan is measured from its first step on."""
        if plan != self._plan:
            self._plan, self._steps = plan, 0
        self._steps += 1
        self._begun = None
        self.why = _NOW_AND_THEN
        if self._steps <= _FIRST or self._steps % _EVERY == 0:
            self._meter.begin()
            now = self._meter.now()
            self._begun = None if now is None else (now, self._has_now())
            self.why = f"nothing counts memory on {self._device}"

    def peak_bytes(self) -> int | None:
        """The peak since `begin`; `None` if the step was not measured, and `why` says why not."""
        peak = None if self._begun is None else self._meter.peak()
        if peak is None or self._begun is None:
            return None
        before, had = self._begun
        return max(0, peak - before) + had


# -- how long this thread, or asynchronous task, waited for the batches of its next training step
#
# Whoever hands out batches adds to it, and the step takes it. Each adds under a token of its own: what a loop over
# other batches left behind, such as one that only evaluates, is forgotten when that loop ends.


#: Never changed in place: copies of a context share the object.
_waits: ContextVar[Mapping[object, float]] = ContextVar("waits for batches", default={})  # noqa: B039


def add_data_wait(source: object, seconds: float) -> None:
    """Add seconds that a loop waited for `source`."""
    waits = _waits.get()
    _waits.set({**waits, source: waits.get(source, 0.0) + seconds})


def forget_data_wait(source: object) -> None:
    """Remove the seconds that `source` has added and no step has taken."""
    waits = _waits.get()
    if source in waits:
        _waits.set({other: seconds for other, seconds in waits.items() if other is not source})


def take_data_wait() -> float | None:
    """Remove and return the seconds that were added; `None` if none were measured."""
    waits = _waits.get()
    if not waits:
        return None
    _waits.set({})
    return sum(waits.values())
