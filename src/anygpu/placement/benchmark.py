"""Runs the trials of a calibration on a device as long as there is time, and says what each took.

A trial is a small program of `plan.microbenchmarks`. `Bench` prepares and times it; transfers, single steps and kernels
are differences of two calls that take turns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import tuning_limited_to
from anygpu.errors import AllocationError, Unsupported
from anygpu.hardware.device import CPU
from anygpu.placement.plan.calibration import assumed
from anygpu.placement.plan.microbenchmarks import BenchmarkTrial, Measurement, values
from anygpu.program.graph import Program
from anygpu.workers.worker import Argument, Worker

#: A trial that takes longer than this is not slow but stuck: the worker is given up, where its home allows that.
STUCK_SECONDS = 30.0

#: After one run that is dropped, at least and at most so many more.
_LEAST_RUNS = 3
_MOST_RUNS = 20
#: The best of several runs is believed when the next best comes so close to it.
_CLOSE = 1.15
#: The share of all the time that the runs of one trial may take, beyond the least number of them.
_SHARE = 0.02


class _Call(NamedTuple):
    """The seconds and the number of kernels of one timed call."""

    seconds: float
    kernels: int | None


class _Subject(Protocol):
    """The device that is measured, as `Bench` uses it."""

    def can(self, program: Program) -> bool: ...

    def prepare(self, program: Program) -> None: ...

    def place(self, values: HostArray) -> Any: ...

    def run(self, program: Program, arguments: Sequence[Any], *, keep: bool) -> tuple[Any, int | None]:
        """Run a program once; its results, which are dropped, and the number of kernels where that is known."""


class _OnWorker:
    """A device of this machine, through its worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def can(self, program: Program) -> bool:
        """Whether the worker supports all of the program."""
        return not self._worker.supports(program)

    def prepare(self, program: Program) -> None:
        """Compile the program."""
        with tuning_limited_to(0.0):
            self._worker.prepare(program)

    def place(self, values: HostArray) -> Argument:
        """Upload values to the device."""
        return self._worker.upload(values)

    def run(self, program: Program, arguments: Sequence[Argument], *, keep: bool) -> tuple[Any, int | None]:
        """Run the program once; its results and the number of kernels."""
        ran = self._worker.run(program, arguments, keep=keep, timeout=STUCK_SECONDS)
        return ran.results, ran.kernels


class _Interpreted:
    """NumPy without a worker around it: on the CPU path nothing stands between the user's function and NumPy."""

    def can(self, program: Program) -> bool:
        """Whether it can run the program, which NumPy always can."""
        return True

    def prepare(self, program: Program) -> None:
        """Do nothing: there is nothing to compile."""
        pass

    def place(self, values: HostArray) -> HostArray:
        """The values as they are."""
        return values

    def run(self, program: Program, arguments: Sequence[HostArray], *, keep: bool) -> tuple[Any, int | None]:
        """Run the program once, operation by operation; its results."""
        return lowering.run(program, arguments), None


class Bench:
    """Runs trials as long as there is time, and says what each took."""

    def __init__(self, worker: Worker, clock: Callable[[], float], seconds: float) -> None:
        self.measurements: list[Measurement] = []
        #: Trials whose runs took so different times that none of them is believed. Others were in the way, and may be
        #: gone when everything else has been measured.
        self.doubtful: list[BenchmarkTrial] = []
        # What native code leaves to NumPy is measured here; its own speed is measured by itself.
        self._is_numpy = worker.device.engine in ("numpy", CPU)
        self._subject: _Subject = _Interpreted() if self._is_numpy else _OnWorker(worker)
        self._clock = clock
        self._end = clock() + seconds
        self._share = seconds * _SHARE
        self._before = assumed(worker.device)
        self._placed: dict[tuple[object, ...], tuple[HostArray, Any]] = {}
        self._prepared: set[str] = set()
        #: The trial of the smallest program, once it has been measured.
        self._smallest: BenchmarkTrial | None = None
        #: What programs took before their first real run.
        self._preparing: list[float] = []

    def try_out(self, trial: BenchmarkTrial) -> None:
        """Measure a trial and add it to `measurements`, unless it would take too long or is not for this device.

        A trial that needs more memory than there is, or an operation that is missing, is left out. Nothing is raised
        for it.
        """
        if self._is_numpy and trial.aspect in ("write", "read", "compile"):
            self.measurements.append(Measurement(trial=trial, seconds=0.0))
            return
        if trial.aspect in ("steps", "kernels") and self._smallest is None:
            return
        if self._clock() + self._expected(trial) > self._end or not self._subject.can(trial.program):
            return
        try:
            self.measurements.append(self._measured(trial))
        except (AllocationError, Unsupported):
            # Another program may fit; what this one would have told is assumed.
            return

    def _expected(self, trial: BenchmarkTrial) -> float:
        """The seconds that a trial is expected to take: compiling it, and the least number of runs, by what was
        measured so far.
        """
        is_ready = trial.program.key in self._prepared
        preparing = 0.0 if is_ready else statistics.median([self._before.compile, *self._preparing])
        return preparing + (_LEAST_RUNS + 1) * self._running(trial)

    def _running(self, trial: BenchmarkTrial) -> float:
        """The seconds that a trial is expected to take, from earlier ones of its operation."""
        if trial.operation is None:
            return 0.0
        supposed = self._before.rates[trial.operation].seconds(trial.amount)
        like = [each for each in self.measurements if each.trial.operation == trial.operation]
        if not like:
            return supposed
        # Between what is assumed and what the last one took: that may have been disturbed.
        last = like[-1]
        return math.sqrt(supposed * last.seconds * max(trial.amount / last.trial.amount, 1.0))

    def _measured(self, trial: BenchmarkTrial) -> Measurement:
        """Measure one trial: its seconds, or those that it takes beyond a smaller one."""
        hosted, placed = self._arguments(trial)
        taken = self._prepare(trial, placed)
        if trial.aspect == "write":
            return self._difference(trial, lambda: self._call(trial, hosted), lambda: self._call(trial, placed))
        if trial.aspect == "read":
            return self._difference(
                trial, lambda: self._call(trial, placed, keep=False), lambda: self._call(trial, placed)
            )
        if trial.aspect in ("steps", "kernels") and (smallest := self._smallest) is not None:
            _, least = self._arguments(smallest)
            return self._difference(trial, lambda: self._call(trial, placed), lambda: self._call(smallest, least))
        (best,) = self._best(trial, lambda: self._call(trial, placed))
        if taken is not None:
            preparing = max(taken - best.seconds, 0.0)
            self._preparing.append(preparing)
            if trial.aspect == "compile":
                return Measurement(trial=trial, seconds=preparing)
        if trial.aspect == "launch":
            self._smallest = trial
        return Measurement(trial=trial, seconds=best.seconds, kernels=best.kernels)

    def _difference(self, trial: BenchmarkTrial, call: Callable[[], _Call], less: Callable[[], _Call]) -> Measurement:
        """The seconds that one call takes longer than another, at least 0. Both take turns."""
        there, here = self._best(trial, call, less)
        return Measurement(trial=trial, seconds=max(there.seconds - here.seconds, 0.0), kernels=there.kernels)

    def _prepare(self, trial: BenchmarkTrial, placed: Sequence[Any]) -> float | None:
        """Compile it, and run it for the first time, which is when some compile; `None` if it was before."""
        if trial.program.key in self._prepared:
            return None
        begin = self._clock()
        self._subject.prepare(trial.program)
        self._call(trial, placed)
        self._prepared.add(trial.program.key)
        return self._clock() - begin

    def _best(self, trial: BenchmarkTrial, *calls: Callable[[], _Call]) -> list[_Call]:
        """The fastest run of each of some calls, after a first round that is dropped.

        The calls take turns, so that all of them meet the same load of the machine. There are at least `_LEAST_RUNS`
        rounds, if there is time, and more within the trial's share of it. A trial whose two best runs differ is added
        to `doubtful`.
        """
        rounds: list[list[_Call]] = []
        begin = now = self._clock()
        while len(rounds) <= _MOST_RUNS:
            rounds.append([call() for call in calls])
            before, now = now, self._clock()
            # There may be no time for a second one: then the first has to do.
            if now + (now - before) > self._end or (len(rounds) > _LEAST_RUNS and now - begin > self._share):
                break
        each = list(zip(*(rounds[1:] or rounds), strict=True))
        # A program is compiled only once.
        if trial.aspect != "compile" and not all(_agree(runs) for runs in each):
            self.doubtful.append(trial)
        return [min(runs, key=lambda call: call.seconds) for runs in each]

    def _call(self, trial: BenchmarkTrial, arguments: Sequence[Any], *, keep: bool = True) -> _Call:
        """Run a trial once; its seconds and kernels."""
        begin = self._clock()
        _results, kernels = self._subject.run(trial.program, arguments, keep=keep)
        return _Call(self._clock() - begin, kernels)

    def _arguments(self, trial: BenchmarkTrial) -> tuple[list[HostArray], list[Any]]:
        """The arguments of a trial, on the host and on the device. Trials share them: making them takes longer than
        most trials.
        """
        keys = [(position, *each) for position, each in enumerate(zip(trial.program.inputs, trial.fills, strict=True))]
        if not all(key in self._placed for key in keys):
            for key, array in zip(keys, values(trial), strict=True):
                if key not in self._placed:
                    self._placed[key] = (array, self._subject.place(array))
        found = [self._placed[key] for key in keys]
        return [array for array, _ in found], [argument for _, argument in found]


def _agree(runs: Sequence[_Call]) -> bool:
    """Whether the two best runs took about the same."""
    times = sorted(run.seconds for run in runs)
    return len(times) > 1 and times[1] <= times[0] * _CLOSE
