"""A call site: calls of one function with one kind of arguments, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from anygpu.array.trace.traced import Traced
from anygpu.base import events
from anygpu.notes import HostNote
from anygpu.placement.candidates import Candidates
from anygpu.placement.executing import Executing
from anygpu.placement.options import Options
from anygpu.placement.planner import Planner
from anygpu.placement.trust import Trust, may_warn
from anygpu.placement.values import call_on_numpy, narrowing
from anygpu.plan.candidate_history import DeviceChoice, Remembered, WaitingTimes
from anygpu.plan.choosing import RECORDING
from anygpu.program.graph import Program
from anygpu.receipts import HostOperation

if TYPE_CHECKING:
    from anygpu.placement.direct import DirectCalls

#: Programs of one function for one kind of arguments, for when something that decides changes back and forth.
MOST_PROGRAMS = 4


#: Calls that may run without planning when there is nothing to find out. There are more of short ones, so that planning
#: takes no more than this share of their time.
MOST_SKIPPED, MOST_SHORT, PLANNING_SHARE = 64, 1024, 0.025
#: What planning a call takes: at least, and at most as far as that is believed. Between short calls its code is no
#: longer in the processor's caches, so that it takes several times as long as it would in a row.
_LEAST_PLANNING, _MOST_PLANNING = 6e-5, 2e-3
#: From so many calls without planning on, their receipts say when that was decided.
_MANY = 100
#: When calls without planning have taken so many times as long as they should, and so many seconds, one is planned.
_PATIENCE, _PATIENCE_SECONDS = 10, 0.1


class CallSite(Candidates):
    """What is known of calls of one function with one kind of arguments.

    Its attributes are written by its own methods alone; other modules read them. Methods that several threads may call
    say which lock their caller must hold.
    """

    def __init__(self, task: str, options: Options, baseline: str | None, *, has_anygpu_arrays: bool) -> None:
        super().__init__(task, options, baseline, has_anygpu_arrays=has_anygpu_arrays)
        #: Whether the function runs on NumPy exactly as it is; else as `call_on_host` calls it.
        self.runs_as_is = options.precision is None and not has_anygpu_arrays
        #: What was compared with NumPy, and what NumPy's results look like.
        self.trust = Trust()
        #: Calls that may run on the baseline without planning.
        self.skip_planning = 0
        #: Whether each of them has to see first that it `does_as_recorded`.
        self.looks_first = has_anygpu_arrays
        #: Seconds of such calls that the chooser has not been told of yet.
        self.unreported_seconds = 0.0
        self._granted = 0
        self._most_unreported = float("inf")
        self._planning = _LEAST_PLANNING
        #: All programs that are known, the newest first, and how often the function has been recorded.
        self.programs: list[Traced] = []
        self.recordings = 0
        #: What recording is expected to take: more, once it was given up.
        self.recording = RECORDING
        #: Whether calibrations and two devices at once have been looked at.
        self.calibrated = False
        self.calibrating = False
        #: Calls that need no planning, where one device is all that is allowed.
        self.direct: DirectCalls | None = None
        self._plans_every_call = False
        #: What receipts of calls without planning say.
        self.note = HostNote(task, "", None)
        #: A warning that a filter has made an error of, for the next call to raise.
        self._pending_warning: Warning | None = None
        self._may_warn: tuple[Program, bool] | None = None
        #: Why calls run on NumPy, when nothing that was asked for can run them and the caller allows that.
        self.fallback_reason: str | None = None
        #: Whether that is because no such device is there.
        self.misses_device = False
        #: Host operations that the user was warned of.
        self._warned: set[HostOperation] = set()

    @property
    def uses_numpys_arrays(self) -> bool:
        """Whether calls on the host may be given NumPy's arrays for anygpu's own.

        What writes to its arguments, or returns one of them, needs the arrays themselves: recording tells.
        """
        traced = self.traced
        return not self.has_anygpu_arrays or (traced is not None and traced.returns_new)

    def does_as_recorded(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> bool:
        """Whether a call does what was recorded, as far as captures decide that: then it writes to no argument."""
        traced = self.traced
        return traced is not None and traced.decides_alike(function, arguments, keywords)

    def call_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy. A call site holds no function, nor what closures hold."""
        if self.options.precision is not None:
            function = narrowing(function)
        if not self.has_anygpu_arrays:
            return function(*arguments, **keywords)
        try:
            return call_on_numpy(function, arguments, keywords)
        except BaseException:
            # Its code may have been replaced by what writes to its arguments: the next call looks at everything.
            self._granted -= self.skip_planning
            self.skip_planning = 0
            raise

    def run_on_host(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the user's function on NumPy, marked as placed. What it raises is the caller's."""
        with Executing():
            if self.runs_as_is:  # without a frame of ours more than needed, for functions that call themselves
                return function(*arguments, **keywords)
            return self.call_on_host(function, arguments, keywords)

    def skip_planning_for(self, calls: int, why: str) -> None:
        """Let so many calls run on the baseline without planning; `why` is for their receipts."""
        if not self.uses_numpys_arrays:
            calls = 0
        if calls >= _MANY:
            # The receipt of the last of them says the same, and things may have changed by then.
            why = f"{why.rstrip('.')} (decided at call {self.chooser.calls:,} for the next {calls:,} calls)."
        predicted = self.chooser.estimate(self.chooser.baseline) if self.chooser.baseline is not None else None
        self.note = HostNote(self.task, why, predicted)
        traced = self.traced
        self.looks_first = self.has_anygpu_arrays and (traced is None or traced.has_deciding_captures)
        self.skip_planning = self._granted = max(0, calls)
        expected = float("inf") if predicted is None else predicted * calls
        self._most_unreported = max(_PATIENCE_SECONDS, _PATIENCE * expected)

    def go_direct(self, direct: DirectCalls | None) -> None:
        """The next calls may run without planning, unless one of them has shown that they may not."""
        self.direct = None if self._plans_every_call else direct

    def plan_every_call(self) -> None:
        """NumPy has to be asked about each result."""
        self.direct, self._plans_every_call = None, True

    def pin(self, why: str) -> None:
        """A device was wrong: calls stay on NumPy."""
        self.chooser.pin(why)
        self.note = self.note._replace(reason=why)

    def refuse(self, why: str) -> None:
        """A device could not return what the function does: it stays on NumPy, as one that cannot be traced."""
        self.not_recorded = why
        self.forget_program()

    def ran_on_host(self, seconds: float) -> None:
        """A call was run without planning, and took so long."""
        self.skip_planning -= 1
        self.unreported_seconds += seconds
        if self.unreported_seconds > self._most_unreported:
            self._granted -= self.skip_planning
            self.skip_planning = 0

    def flush_timings(self, planner: Planner) -> float:
        """Report the calls that ran without planning to the chooser; what they took together."""
        seconds, self.unreported_seconds = self.unreported_seconds, 0.0
        calls = self._granted - self.skip_planning
        if calls:
            busy = planner.watch.since_last(planner.clock())
            self.chooser.baseline_ran(calls, seconds, disturbed=planner.pace.exploring, busy=busy)
        self.skip_planning = self._granted = 0
        return seconds

    def warn_later(self, warning: Warning | None) -> None:
        """A filter has made an error of a warning that was given in the background: the next call raises it."""
        self._pending_warning = warning

    def take_warning(self) -> Warning | None:
        """The warning that the next call has to raise, once."""
        warning, self._pending_warning = self._pending_warning, None
        return warning

    def first_time(self, operation: HostOperation) -> bool:
        """Whether the user has not been warned of this operation, which ran on the host."""
        is_new = operation not in self._warned
        self._warned.add(operation)
        return is_new

    def fall_back(self, reason: str) -> None:
        """Nothing that was asked for can run such calls: they run on NumPy."""
        self.fallback_reason = reason

    def wait_for_device(self) -> None:
        """No device that was asked for is there; one may come, in a fleet."""
        self.misses_device = True

    def devices_changed(self) -> None:
        """Devices have come or gone: they are looked at anew."""
        super().devices_changed()
        if self.misses_device:
            self.fallback_reason, self.misses_device = None, False

    # -- the program

    @property
    def recorded(self) -> bool:
        """Whether recording has been tried, with or without success."""
        return self.traced is not None or self.not_recorded is not None

    def may_warn(self, traced: Traced) -> bool:
        """Whether a NaN or an infinity in a result may be news to the user; asked once for each program."""
        program, known = traced.program, self._may_warn
        if known is None or known[0] is not program:
            self._may_warn = known = program, may_warn(program, getattr(traced, "quiet_lines", frozenset()))
        return known[1]

    @property
    def why_not_recorded(self) -> str:
        """A sentence for receipts."""
        return f"it cannot be traced: {str(self.not_recorded).rstrip('.')}."

    # -- the chooser: the caller of each of these holds the planner's lock

    def choose(
        self, busy: Mapping[str, float], waiting: Mapping[str, float] | WaitingTimes | None = None
    ) -> DeviceChoice:
        """Where the next call goes: `busy` are the seconds until devices are free, `waiting` those of candidates."""
        return self.chooser.choose((self.waiting(busy) if busy else busy) if waiting is None else waiting)

    def estimate(self, name: str) -> float | None:
        return self.chooser.estimate(name)

    def measured(
        self, name: str, seconds: float, peak_bytes: int | None = None, *, disturbed: bool = False, busy: bool = False
    ) -> None:
        """A call ran there, took so long and needed so much memory."""
        self.chooser.measured(name, seconds, disturbed=disturbed, busy=busy)
        if peak_bytes is not None:
            self._learn_chunk_memory(name, peak_bytes)

    def has_run_at(self, name: str) -> bool:
        """Whether a call has run there lately."""
        track = self.chooser.tracks.get(name)
        return track is not None and bool(track.recent)

    @property
    def totals(self) -> tuple[int, float]:
        """Calls and the seconds that they took together, those without planning included."""
        return (
            self.chooser.calls + self._granted - self.skip_planning,
            self.chooser.seconds + self.unreported_seconds,
        )

    def recall(self, remembered: Mapping[str, Remembered]) -> None:
        """What earlier processes have measured for this program."""
        self.chooser.recall(remembered)

    def begin_sample(self, name: str) -> None:
        """The next call on NumPy is compared with what the candidate computes."""
        self.chooser.begin_sample(name)

    def distrust(self, name: str) -> None:
        """What agreed with NumPy is not what would run now."""
        self.chooser.distrust(name)

    def next_trial(self) -> str | None:
        """What should be tried in the background now. If nothing should, calls on the host may skip planning."""
        chooser = self.chooser
        name = chooser.to_try()
        if name is None and chooser.baseline == "numpy" and chooser.current == "numpy":
            self.rest(0 if chooser.trying else chooser.next_look - chooser.calls)
        return name

    def has_something_to_explore(self) -> bool:
        """Whether anything is to be started in the background after a call on a device."""
        return not (self.traced is not None and self.evaluated and self.calibrated) or self.next_trial() is not None

    def rest(self, calls: int) -> None:
        """There is nothing to find out for so many calls: they skip planning, if they run on the host anyway.

        Short ones also skip it if there is: they pay for one look first.
        """
        choice = self.chooser.choose()
        if self.chooser.baseline == "numpy" and choice.candidate == "numpy" and choice.checks is None:
            self.skip_planning_for(max(min(calls, MOST_SKIPPED), self.calls_for_planning), choice.sentence)

    def planned(self, seconds: float) -> None:
        """Planning a call that ran on NumPy has taken so long."""
        believed = min(max(seconds, _LEAST_PLANNING), 4 * self._planning, _MOST_PLANNING)
        self._planning += (believed - self._planning) / 4

    @property
    def calls_for_planning(self) -> int:
        """How many calls on the baseline pay for planning one."""
        return self.calls_in(self._planning / PLANNING_SHARE)

    def calls_in(self, seconds: float) -> int:
        """How many calls on the baseline fit into so many seconds."""
        baseline = self.chooser.baseline
        each = self.chooser.estimate(baseline) if baseline is not None else None
        return min(MOST_SHORT, int(seconds / each)) if each else 0

    def add_program(self, traced: Traced) -> None:
        """The function was recorded: calls use this program from now on, and earlier ones are kept."""
        self.traced, self.not_recorded = traced, None
        self.recordings += 1
        self.programs = [traced, *self.programs[: MOST_PROGRAMS - 1]]
        self.evaluated = self.calibrated = False
        events.programs.tell(traced.program)

    def use_program(self, traced: Traced) -> None:
        """One of `programs` is that of the next call."""
        before = self.traced
        if before is None or traced.program.key != before.program.key:
            self.evaluated = False
        self.traced = traced

    def give_up_recording(self, seconds: float) -> None:
        """Recording took longer than it was allowed to; it is expected to take so long. The caller holds the lock."""
        self.recording = seconds
        self.forget_program()

    def forget_program(self) -> None:
        """Calls run on the baseline until the function is recorded again. The caller holds the planner's lock."""
        self.evaluated = self.calibrated = False
        self.traced = None
        self.programs = []
        self.predictions = {}
        self.chooser.consider({})

    def begin_calibrating(self) -> bool:
        """Whether the caller is to calibrate devices for it; no other caller does until `end_calibrating`."""
        begun, self.calibrating = self.calibrating, True
        return not begun

    def end_calibrating(self) -> None:
        self.calibrating, self.calibrated = False, True
