"""A call site: calls of one function with one kind of arguments, and what is known of them.

It has parts with one owner each: `Programs` (what tracing gave), `Candidates` (where calls could run, and what is
predicted), `HostCalls` (calls on NumPy that are not planned), `Trust` (what was compared with NumPy) and the chooser
(what was measured, and what runs next). Each part is written by its own methods alone; other modules read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from anygpu.agreement.trust import Trust, may_warn
from anygpu.base import events
from anygpu.calls.executing import Executing
from anygpu.calls.options import Options
from anygpu.calls.site import NEEDS_PLANNING
from anygpu.placement.candidates import Candidates
from anygpu.placement.plan.choosing import RECORDING, DeviceChooser
from anygpu.placement.planner import Planner
from anygpu.placement.values import call_on_numpy, narrowing
from anygpu.program.graph import Program
from anygpu.receipts.notes import HostNote, publish, publish_failure
from anygpu.receipts.receipt import HostOperation

if TYPE_CHECKING:
    from anygpu.array.trace.traced import Traced
    from anygpu.placement.direct import DirectCalls

_clock = time.perf_counter

#: Programs of one function for one kind of arguments, for when something that decides changes back and forth.
MOST_PROGRAMS = 4
#: Calls that may run without planning when there is nothing to find out. There are more of short ones, so that planning
#: takes no more than this share of their time.
MOST_SKIPPED, MOST_SHORT, PLANNING_SHARE = 64, 1024, 0.025
#: Seconds for planning a call: at least, and at most as far as that is believed. Between short calls its code is no
#: longer in the processor's caches, so that it takes several times as long as it would in a row.
_LEAST_PLANNING, _MOST_PLANNING = 6e-5, 2e-3
#: From so many calls without planning on, their receipts say when that was decided.
_MANY = 100
#: Re-plan when unplanned calls exceed their prediction by this factor, and take at least this many seconds.
REPLAN_FACTOR, REPLAN_SECONDS = 10, 0.1


class Programs:
    """The programs that tracing a function gave for one kind of arguments, or why it gave none.

    `current` and `refusal` are read without a lock; a thread that needs both reads each once.
    """

    def __init__(self) -> None:
        #: The program of the next call, or why there is none.
        self.current: Traced | None = None
        self.refusal: str | None = None
        #: All programs that are known, the newest first, and how often the function has been traced.
        self.known: list[Traced] = []
        self.tracings = 0
        #: Seconds that tracing is expected to take: more, once it was given up.
        self.seconds = RECORDING
        self._may_warn: tuple[Program, bool] | None = None

    @property
    def is_tried(self) -> bool:
        """Whether tracing has been tried, with or without success."""
        return self.current is not None or self.refusal is not None

    @property
    def why_none(self) -> str:
        """Why there is no program, as a sentence for receipts."""
        return f"it cannot be traced: {str(self.refusal).rstrip('.')}."

    def add(self, traced: Traced) -> None:
        """Use a new program from now on, and keep up to `MOST_PROGRAMS - 1` earlier ones."""
        self.current, self.refusal = traced, None
        self.tracings += 1
        self.known = [traced, *self.known[: MOST_PROGRAMS - 1]]
        events.programs.tell(traced.program)

    def use(self, traced: Traced) -> None:
        """Make one of those that are `known` the program of the next call."""
        self.current = traced

    def forget(self, refusal: str | None = None, seconds: float | None = None) -> None:
        """Drop all programs: tracing is refused for good, or is expected to take so many seconds."""
        self.refusal = self.refusal if refusal is None else refusal
        self.seconds = self.seconds if seconds is None else seconds
        self.current, self.known = None, []

    def may_warn(self, traced: Traced) -> bool:
        """Whether a NaN or an infinity in a result may be news to the user; computed once for each program."""
        program, known = traced.program, self._may_warn
        if known is None or known[0] is not program:
            self._may_warn = known = program, may_warn(program, getattr(traced, "quiet_lines", frozenset()))
        return known[1]


class HostCalls:
    """The calls of a call site that run on NumPy, or on one device, without being planned.

    Planning grants a number of calls (`skip_planning_for`), which count down; their time is reported to the chooser
    when the next call is planned (`flush_timings`). It is a `Site` in the state `planned`, which each call reads
    without a lock: a count that two threads change at once is off by one, which is harmless.
    """

    def __init__(
        self, task: str, options: Options, chooser: DeviceChooser, programs: Programs, *, has_anygpu_arrays: bool
    ) -> None:
        self._chooser, self._programs = chooser, programs
        self._has_anygpu_arrays = has_anygpu_arrays
        self._narrows = options.precision is not None
        #: Whether the function runs on NumPy exactly as it is; else as `call_on_host` calls it.
        self._is_plain = not self._narrows and not has_anygpu_arrays
        #: Whether the next call runs so, without planning.
        self.runs_as_is = False
        #: Calls that may run on the baseline without planning.
        self.skip_planning = 0
        #: Whether each of them has to see first that it `does_as_recorded`.
        self.looks_first = has_anygpu_arrays
        #: The note from which receipts of such calls are made.
        self.note = HostNote(task, "", None)
        #: Runs calls without planning, where one device is all that is allowed.
        self.direct: DirectCalls | None = None
        self._plans_every_call = False
        #: Seconds of such calls that the chooser has not been told of yet, and the most before it is.
        self._unreported_seconds = 0.0
        self._most_unreported = float("inf")
        self._granted = 0
        self._planning = _LEAST_PLANNING

    # -- the call

    def run(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Run a call that began at `begin`, on NumPy or on the one device; `NEEDS_PLANNING` if neither may run it."""
        if self.skip_planning > 0 and (not self.looks_first or self.does_as_recorded(function, arguments, keywords)):
            ready = _clock()
            try:
                with Executing():
                    value = self.call_on_host(function, arguments, keywords)
            except BaseException as error:
                publish_failure(self.note.task, error, begin, function)
                raise
            end = _clock()
            self.ran(end - ready)
            publish((self.note, begin, ready, end), (function, arguments, keywords, value))
            return value
        direct = self.direct  # read once: another thread may take it away
        return NEEDS_PLANNING if direct is None else direct(function, arguments, keywords, begin)

    @property
    def uses_numpys_arrays(self) -> bool:
        """Whether calls on the host may be given NumPy's arrays for anygpu's own.

        A function that writes to its arguments, or returns one of them, needs the arrays themselves: tracing tells.
        """
        traced = self._programs.current
        return not self._has_anygpu_arrays or (traced is not None and traced.returns_new)

    def does_as_recorded(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bool:
        """Whether a call does what was traced, as far as captures decide that: then it writes to no argument."""
        traced = self._programs.current
        return traced is not None and traced.decides_alike(function, arguments, keywords)

    def call_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy; its value, with anygpu's own arrays if the arguments had some.

        The function is passed in, because a call site holds no function, nor what closures hold. When it raises, the
        next call is planned: its code may have been replaced by code that writes to its arguments.
        """
        if self._narrows:
            function = narrowing(function)
        if not self._has_anygpu_arrays:
            return function(*arguments, **keywords)
        try:
            return call_on_numpy(function, arguments, keywords)
        except BaseException:
            # Its code may have been replaced by what writes to its arguments: the next call looks at everything.
            self._take_back()
            raise

    def run_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy, marked as placed; its value. What it raises is the caller's."""
        with Executing():
            if self._is_plain:  # without a frame of ours more than needed, for functions that call themselves
                return function(*arguments, **keywords)
            return self.call_on_host(function, arguments, keywords)

    def ran(self, seconds: float) -> None:
        """Count a call that ran without planning; plan the next one if they take far longer than predicted."""
        self.skip_planning -= 1
        if self.skip_planning <= 0:
            self.runs_as_is = False
        self._unreported_seconds += seconds
        if self._unreported_seconds > self._most_unreported:
            self._take_back()

    def _take_back(self) -> None:
        """Plan the next call after all: no more of the granted calls are left."""
        self._granted -= self.skip_planning
        self._grant(0)

    def _grant(self, calls: int) -> None:
        """Grant this many calls without planning."""
        self.skip_planning = calls
        self.runs_as_is = self._is_plain and calls > 0

    # -- how many

    def skip_planning_for(self, calls: int, why: str) -> None:
        """Let `calls` calls run on the baseline without planning; `why` is for their receipts.

        None may where the function needs anygpu's own arrays themselves. The grant ends early when these calls take
        `REPLAN_FACTOR` times as long as they should.
        """
        if not self.uses_numpys_arrays:
            calls = 0
        chooser = self._chooser
        if calls >= _MANY:
            # The receipt of the last of them says the same, and things may have changed by then.
            why = f"{why.rstrip('.')} (decided at call {chooser.calls:,} for the next {calls:,} calls)."
        predicted = chooser.estimate(chooser.baseline) if chooser.baseline is not None else None
        self.note = HostNote(self.note.task, why, predicted)
        traced = self._programs.current
        self.looks_first = self._has_anygpu_arrays and (traced is None or traced.has_deciding_captures)
        self._granted = max(0, calls)
        self._grant(self._granted)
        expected = float("inf") if predicted is None else predicted * calls
        self._most_unreported = max(REPLAN_SECONDS, REPLAN_FACTOR * expected)

    def say(self, reason: str) -> None:
        """Let receipts of calls on NumPy give this reason from now on."""
        self.note = self.note._replace(reason=reason)

    def rest(self, calls: int) -> None:
        """Let so many calls skip planning, as there is nothing to find out, if they run on NumPy anyway.

        Calls so short that planning one costs more than `PLANNING_SHARE` of them skip it in any case.
        """
        choice = self._chooser.choose()
        if self._chooser.baseline == "numpy" and choice.candidate == "numpy" and choice.checks is None:
            self.skip_planning_for(max(min(calls, MOST_SKIPPED), self.calls_for_planning), choice.sentence)

    def planned(self, seconds: float) -> None:
        """Learn that planning a call that ran on NumPy took so many seconds; outliers count for little."""
        believed = min(max(seconds, _LEAST_PLANNING), 4 * self._planning, _MOST_PLANNING)
        self._planning += (believed - self._planning) / 4

    @property
    def calls_for_planning(self) -> int:
        """How many calls on the baseline pay for planning one: their time times `PLANNING_SHARE` is what it takes."""
        return self.calls_in(self._planning / PLANNING_SHARE)

    def calls_in(self, seconds: float) -> int:
        """How many calls on the baseline fit into so many seconds."""
        baseline = self._chooser.baseline
        each = self._chooser.estimate(baseline) if baseline is not None else None
        return min(MOST_SHORT, int(seconds / each)) if each else 0

    # -- direct calls on one device

    def go_direct(self, direct: DirectCalls | None) -> None:
        """Let the next calls run as `direct` does, without planning, unless `plan_every_call` was called before."""
        self.direct = None if self._plans_every_call else direct

    def plan_every_call(self) -> None:
        """Stop direct calls for good: NumPy has to be asked about each result."""
        self.direct, self._plans_every_call = None, True

    # -- times

    def flush_timings(self, planner: Planner) -> None:
        """Report the calls that ran without planning to the chooser and to the planner, and end the grant."""
        seconds, self._unreported_seconds = self._unreported_seconds, 0.0
        calls = self._granted - self.skip_planning
        self._granted = 0
        self._grant(0)
        if calls:
            busy = planner.watch.since_last(planner.clock())
            self._chooser.baseline_ran(calls, seconds, disturbed=planner.pace.exploring, busy=busy)
            planner.add_seconds(seconds)

    @property
    def totals(self) -> tuple[int, float]:
        """Calls and the seconds that they took together, those without planning included."""
        chooser = self._chooser
        return chooser.calls + self._granted - self.skip_planning, chooser.seconds + self._unreported_seconds


class CallSite:
    """Calls of one function with one kind of arguments: their identity, and the parts that know something of them.

    Methods here change several parts together. Their caller holds the planner's lock, unless they say otherwise.
    """

    def __init__(self, task: str, options: Options, baseline: str | None, *, has_anygpu_arrays: bool) -> None:
        self.task = task
        self.options = options
        #: Whether anygpu's own arrays are among the arguments, and whether NumPy is all that was asked for.
        self.has_anygpu_arrays = has_anygpu_arrays
        self.names_only_numpy = options.names_only_numpy
        self.chooser = DeviceChooser(baseline, checked=options.check != "off")
        self.programs = Programs()
        self.candidates = Candidates(task, options, self.chooser, self.programs, has_anygpu_arrays=has_anygpu_arrays)
        self.host = HostCalls(task, options, self.chooser, self.programs, has_anygpu_arrays=has_anygpu_arrays)
        #: What was compared with NumPy, and what NumPy's results look like.
        self.trust = Trust()
        #: Host operations that the user was warned of.
        self._warned: set[HostOperation] = set()

    # -- the program

    def add_program(self, traced: Traced) -> None:
        """Use a newly traced program from now on. It needs no lock."""
        self.programs.add(traced)
        self.candidates.look_again(calibrate=True)

    def use_program(self, traced: Traced) -> None:
        """Use one of the programs that are known for the next call; predictions are made anew if it is another. It
        needs no lock.
        """
        before = self.programs.current
        if before is None or traced.program.key != before.program.key:
            self.candidates.look_again()
        self.programs.use(traced)

    def refuse(self, why: str) -> None:
        """Stay on NumPy, as a function that cannot be traced: a device could not return what this one does."""
        self._forget_programs(refusal=why)

    def give_up_recording(self, seconds: float) -> None:
        """Run on the baseline for now: tracing took longer than it was allowed to, and is expected to take so long."""
        self._forget_programs(seconds=seconds)

    def _forget_programs(self, refusal: str | None = None, seconds: float | None = None) -> None:
        """Run calls on the baseline until the function is traced again, if it ever is."""
        self.candidates.look_again(calibrate=True)
        self.programs.forget(refusal, seconds)
        self.candidates.clear()

    # -- the chooser

    def pin(self, why: str) -> None:
        """Stay on NumPy for good: a device was wrong. `why` is for receipts."""
        self.chooser.pin(why)
        self.host.say(why)

    def has_run_at(self, name: str) -> bool:
        """Whether a call has run there lately."""
        track = self.chooser.tracks.get(name)
        return track is not None and bool(track.recent)

    def next_trial(self) -> str | None:
        """The device to try in the background now. If there is none, calls on the host may skip planning."""
        chooser = self.chooser
        name = chooser.to_try()
        if name is None and chooser.baseline == "numpy" and chooser.current == "numpy":
            self.host.rest(0 if chooser.trying else chooser.next_look - chooser.calls)
        return name

    def has_something_to_explore(self, planner: Planner) -> bool:
        """Whether anything is to be started in the background after a call on a device: tracing, a calibration or a
        trial.
        """
        candidates = self.candidates
        waits = candidates.calibrated or planner.seconds < candidates.calibrate_after
        is_settled = self.programs.current is not None and candidates.evaluated and waits
        return not is_settled or self.next_trial() is not None

    def first_time(self, operation: HostOperation) -> bool:
        """Whether the user has not been warned of this operation, which ran on the host; it counts as warned of from
        now on.
        """
        is_new = operation not in self._warned
        self._warned.add(operation)
        return is_new
