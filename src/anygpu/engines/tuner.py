"""Sizes of kernels found by measuring, on the device at hand and within a time that is set beforehand.

Only kernels that would take a noticeable time are measured, each once on a machine: what was found is kept on disk,
by the kernel's text and everything that may change its speed. A candidate that is clearly slower than the best so far
is given up after its first run. Memory for it is borrowed from the session and holds zeros.

What was found while something else had the device is used, and not kept: the next process looks again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import msgspec

from anygpu.base.disturbance import MOST_SPREAD, Reading, conditions, spread
from anygpu.engines.codegen.kernel import Kernel, KernelChoice, Schedule
from anygpu.engines.disk_cache import DiskCache
from anygpu.engines.protocol import tuning_limit
from anygpu.errors import AllocationError, InvalidOption, InvalidProgram, Unsupported

#: Seconds that may be spent on the kernels of one program; 0 measures nothing.
VARIABLE = "ANYGPU_TUNING_SECONDS"
DEFAULT_SECONDS = 2.0

#: Kernels that surely take less than about a millisecond are not worth it.
LEAST_FLOPS = 2e7
LEAST_BYTES = 4e6

#: Another candidate must be better than the first guess by this much, or noise would choose.
MARGIN = 0.95
#: A candidate that takes so much longer than the best is not run again.
HOPELESS = 1.3
RUNS = 3
#: Runs of a kernel that takes long need no repeating: noise is a small part of them.
LONG_ENOUGH = 0.03
#: Of many candidates the luckiest looks best, so it is run again, in turns with the first guess, before it is believed.
TURNS = 6
#: The same for kernels that take long, if there is time.
TURNS_OF_LONG = 2


class TunedSizes(msgspec.Struct, frozen=True):
    """What was measured: the candidate's position, what it was, and seconds."""

    candidate: int
    sizes: str
    seconds: float
    measured: int
    #: Whether something else had the device meanwhile. Earlier versions have kept such sizes.
    disturbed: bool = False


#: Runs steps of a schedule on memory of the right sizes: the seconds by the device's own clock, or `None`.
Measure = Callable[[Schedule, tuple[int, ...]], float | None]


def budget() -> float:
    limit = tuning_limit()
    return _chosen() if limit is None else min(limit, _chosen())


def _chosen() -> float:
    """Seconds that tuning may take, from the environment. Raises `InvalidOption` for what is no such number."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return DEFAULT_SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidOption(f"{VARIABLE} is a number of seconds, 0 or more; got {given!r}.")
    return seconds


class Tuner:
    """Chooses sizes for the kernels of schedules."""

    def __init__(
        self,
        kept: DiskCache,
        measure: Measure,
        clock: Callable[[], float] = time.perf_counter,
        read: Callable[[], Reading] | None = None,
    ) -> None:
        """`read` says how busy the processors are, where these are the device."""
        self._kept = kept
        self._measure = measure
        self._clock = clock
        self._read = read

    def choose(
        self, plan: Schedule, again: Callable[[Mapping[str, msgspec.Struct]], Schedule], seconds: float
    ) -> dict[str, msgspec.Struct]:
        """Sizes that differ from the first guess, by name. `again` makes the schedule with other sizes."""
        end = self._clock() + seconds
        result: dict[str, msgspec.Struct] = {}
        for choice in plan.choices:
            if not _is_worth_it(plan, choice):
                continue
            key = _key(plan, choice)
            found = self._known(key, choice)
            if found is None and self._clock() < end:
                found = self._try(plan, choice, again, end)
                # With the time that the user allows another candidate might have been the best.
                is_whole = self._clock() < end or seconds >= _chosen()
                if found is not None and is_whole and not found.disturbed:
                    self._kept.put_record("tuning", key, found)
            if found is not None and found.candidate:
                result[choice.name] = choice.candidates[found.candidate]
        return result

    def _known(self, key: str, choice: KernelChoice) -> TunedSizes | None:
        """Sizes that disk remembers for a kernel; `None` where they were disturbed or are no candidate any more."""
        found = self._kept.record("tuning", key, TunedSizes)
        if found is None or found.disturbed or not 0 <= found.candidate < len(choice.candidates):
            return None
        # Candidates may have changed since: the position alone is not trusted.
        return found if found.sizes == repr(choice.candidates[found.candidate]) else None

    def _try(
        self,
        plan: Schedule,
        choice: KernelChoice,
        again: Callable[[Mapping[str, msgspec.Struct]], Schedule],
        end: float,
    ) -> TunedSizes | None:
        """Measure the candidates of one kernel until the time is over, and return the best one.

        The first candidate is the guess, and others must beat it by a margin, at last in alternating turns. A candidate
        that does not compile or fit is left out. `disturbed` says that something else had the device meanwhile, so the
        result is not kept. `None` where nothing could be measured.
        """
        best: tuple[float, int] | None = None
        plans: dict[int, tuple[Schedule, tuple[int, ...]]] = {}
        guessed = 0.0
        measured = 0
        repeats: list[float] = []
        before = self._read() if self._read is not None else None
        for number, candidate in enumerate(choice.candidates):
            if number and self._clock() >= end:
                break
            try:
                other = again({choice.name: candidate}) if number else plan
                steps = next((each.steps for each in other.choices if each.name == choice.name), choice.steps)
                times = self._times(other, steps, best[0] if best else None)
            except (InvalidProgram, Unsupported, AllocationError):
                # A size that this device refuses is not a candidate.
                continue
            if not times:
                return None
            seconds = min(times)
            measured += 1
            plans[number] = other, steps
            guessed = guessed if number else seconds
            if best is None or seconds < best[0] * (MARGIN if best[1] == 0 else 1.0):
                best, repeats = (seconds, number), times
        if best is None:
            return None
        turns = TURNS if best[0] <= LONG_ENOUGH else TURNS_OF_LONG
        has_time = turns == TURNS or self._clock() + turns * (best[0] + guessed) < end
        if best[1] and 0 in plans and has_time and not self._is_better(plans[best[1]], plans[0], turns):
            best = (guessed, 0)
        varied = spread(repeats)
        disturbed = varied is not None and varied > MOST_SPREAD
        if before is not None and self._read is not None:
            disturbed = disturbed or conditions(before, self._read()).disturbed
        return TunedSizes(best[1], repr(choice.candidates[best[1]]), best[0], measured, disturbed)

    def _is_better(
        self, one: tuple[Schedule, tuple[int, ...]], guess: tuple[Schedule, tuple[int, ...]], count: int
    ) -> bool:
        """Whether a schedule beats the guess by a margin when both are measured in turns."""
        turns = [(self._measure(*one), self._measure(*guess)) for _ in range(count)]
        ones, guesses = ([each for each in side if each is not None] for side in zip(*turns, strict=True))
        return bool(ones and guesses) and min(ones) < MARGIN * min(guesses)

    def _times(self, plan: Schedule, steps: tuple[int, ...], best: float | None) -> list[float]:
        """The seconds of a few runs, after one that compiles; none when the device has no clock."""
        times: list[float] = []
        for run in range(RUNS + 1):
            seconds = self._measure(plan, steps)
            if seconds is None:
                return []
            if not run:
                continue
            times.append(seconds)
            if seconds > LONG_ENOUGH or (best is not None and min(times) > best * HOPELESS):
                break
        return times


def _key(plan: Schedule, choice: KernelChoice) -> str:
    return "\n".join(step.source for step in _kernels(plan, choice))


def _kernels(plan: Schedule, choice: KernelChoice) -> list[Kernel]:
    return [plan.steps[number] for number in choice.steps]


def _is_worth_it(plan: Schedule, choice: KernelChoice) -> bool:
    kernels = _kernels(plan, choice)
    return any(kernel.flops >= LEAST_FLOPS or kernel.bytes_moved >= LEAST_BYTES for kernel in kernels)
