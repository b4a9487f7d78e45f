"""Where the next call of one function with one kind of arguments goes, learnt from the calls before it.

A `DeviceChooser` is a small state machine without clocks or devices: it is told what calls took, and answers where the
next one should run and what should be tried in the background meanwhile. It keeps four promises:

- **Do no harm.** The baseline (where the arguments are: NumPy for NumPy arrays) is measured first and is what
  everything else must beat. What exploring costs the caller never exceeds a share of what the calls themselves take.
- **Agreement before trust.** A candidate gets real calls once its results agreed with NumPy's in the background, and
  every so often a call is a sample that compares them again. One disagreement pins all calls to the baseline.
- **No caller waits for a compiler.** A candidate is first compiled and run in the background, on a copy of the
  arguments. That time is rough, because the machine was busy with the calls as well; so a candidate that looks good
  gets two real calls, and these decide.
- **Nothing is for ever.** A candidate that became slow, or failed, loses its work as soon as its recent calls say so,
  and is tried again later: in the background, at growing intervals.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from anygpu.base.units import readable_seconds
from anygpu.placement.plan.candidate_history import (
    FIRST_INTERVAL,
    LEAST_GAIN,
    SOON,
    CandidateHistory,
    DeviceChoice,
    RecentTimes,
    Remembered,
    WaitingTimes,
    calls_between_samples,
    is_worth_opening,
    is_wrong,
)

#: Recent calls whose median is the estimate: three slow ones are enough to lose.
WINDOW = RecentTimes.WINDOW
#: Another candidate must be better by this much to take over: less is noise.
MARGIN = 0.95
#: A background run shares the machine with the calls, so it may have taken twice as long as it would alone.
CONTENTION = 2.0
#: A prediction without history may be wrong by this factor; what it rules out by more is not tried.
DOUBT = 2.0
#: What exploring may cost, as a share of what calls have taken: generous while a function is new, small later.
EARLY_CALLS = 12
EARLY_SHARE = 0.5
LATER_SHARE = 0.03
#: A single expense so small is always allowed: how often there is one is bounded by the intervals below.
SMALL_SHARE = 0.02
LONGEST_INTERVAL = 1024
LONGEST_FOR_A_WINNER = 24
#: Of one that lost while something else had the processors.
LONGEST_IN_DOUBT = 96
#: One that is nearly as good is measured again by a real call, which then costs little more than it should.
NEARLY = 1.3

#: Of so many candidates all are looked at for every call. Of more, as in a fleet, the most promising ones are, so that
#: a choice costs the same among ten thousand devices as among ten.
LOOKED_AT = 16

#: What recording costs in any case, with the first look at the program for every device.
RECORDING = 3e-3


class DeviceChooser:
    """One function with one kind of arguments."""

    def __init__(self, baseline: str | None, *, checked: bool = True) -> None:
        """Start without measurements.

        `baseline` is the candidate that calls take until another one is known to be faster, "numpy" for most functions,
        and `None` where a function has no such candidate. `checked` says whether results of other candidates are
        compared with the baseline's now and then.
        """
        #: Whether candidates have to agree with NumPy first. Without a baseline the caller has asked for a device.
        self.checked = checked and baseline is not None
        #: Seconds to copy the inputs and results of a sample.
        self.copying = 0.0
        #: Why every call stays on the baseline.
        self.pinned: str | None = None
        #: Where calls go unless something else proves better; `None` when the caller has ruled it out.
        self.baseline = baseline
        self.tracks: dict[str, CandidateHistory] = {} if baseline is None else {baseline: CandidateHistory()}
        #: Predicted seconds of a call, for every candidate that has been considered.
        self.expected: dict[str, float] = {}
        #: What the first call there would take beyond that: opening the device, compiling.
        self.once: dict[str, float] = {}
        #: What earlier processes have measured, as long as nothing contradicts it.
        self.remembered: dict[str, Remembered] = {}
        self.calls = 0
        #: Seconds of all calls, and what was spent on finding out rather than computing.
        self.seconds = 0.0
        self.spent = 0.0
        #: The candidate that has the work: the fastest as far as is known.
        self.current: str | None = baseline
        #: What a candidate has to beat where calls take less than on the baseline already.
        self._bar = float("inf")
        #: The candidates that have been measured, by what a call takes there; and where each of them is in that order.
        self._ranked: list[tuple[float, str]] = []
        self._ranks: dict[str, float] = {}
        #: Those that wait for real calls after a background run, and those being tried.
        self._on_trial: set[str] = set()
        self._trying: set[str] = set()
        #: All of them by promise; `None` when that has to be sorted again.
        self._promising: list[str] | None = None
        #: The call from which on all candidates are looked at again for one to try.
        self._search_from = 0

    # -- events

    def consider(self, expected: Mapping[str, float], once: Mapping[str, float] | None = None) -> None:
        """Candidates and what is predicted for each, always and once; those that are gone are forgotten."""
        known = {name: each.seconds for name, each in self.remembered.items() if name in expected}
        self.expected = {**expected, **known}
        self.once = dict(once or {})
        for name in expected:
            self.tracks.setdefault(name, CandidateHistory())
        for name in [name for name in self.tracks if name not in expected and name != self.baseline]:
            del self.tracks[name]
            self._file(name)
        if self.current not in self.tracks:
            self.current = self.baseline
        self._promising, self._search_from = None, 0

    def recall(self, remembered: Mapping[str, Remembered]) -> None:
        """What earlier processes have measured is better than any prediction."""
        best = self._best_known()
        self.remembered = {
            name: each
            for name, each in remembered.items()
            # What took too long on a busy machine is no reason not to try it.
            if name != self.baseline and not (each.doubtful and best and each.seconds >= best[1] * LEAST_GAIN)
        }
        self.expected |= {name: each.seconds for name, each in self.remembered.items() if name in self.expected}
        self._promising, self._search_from = None, 0

    def offer(self, candidate: str, seconds: float) -> None:
        """A candidate is open and has compiled, and is predicted to take so long: the next calls may measure it.

        For work whose every part counts, so that nothing is run in the background: the chunks of a stream. Their
        unit is seconds for each step, so that chunks of any length can be compared.
        """
        self.expected[candidate] = seconds
        track = self.tracks.setdefault(candidate, CandidateHistory())
        track.agreed, track.rough, track.trying = True, seconds, False
        self._promising = None
        self._file(candidate)

    def measured(self, candidate: str, seconds: float, *, disturbed: bool = False, busy: bool = False) -> None:
        """A real call ran there and took so long; `disturbed` if something was tried in the background meanwhile.

        `busy` says that something else had the processors.
        """
        track = self.tracks.get(candidate)
        if track is None:
            track = self.tracks[candidate] = CandidateHistory()
            self._promising = None
        best = self._best_known(without=candidate)
        if candidate != self.current and track.known:
            # It was away, and what it took long ago says little about now.
            track.recent.clear()
        track.add(seconds, disturbed=disturbed or busy, passing=disturbed)
        track.calls += 1
        track.unchecked += 1
        track.failures, track.suspended = 0, False
        self.calls += 1
        self.seconds += seconds
        if best is not None and candidate != self.current:
            self.spent += max(0.0, seconds - best[1])
        self._file(candidate)
        memory = self.remembered.pop(candidate, None)
        if memory is not None and best is not None and is_wrong(memory.seconds, seconds, best[1]):
            # The next call is back where it was, and this one has to be tried again like any other.
            track.rough, self.expected[candidate] = None, seconds
            track.recent.clear()
            self._promising = None
            self._file(candidate)
            self._later(track)
        elif track.known or candidate == self.baseline:
            self._settle(candidate)

    def baseline_ran(self, calls: int, seconds: float, *, disturbed: bool = False, busy: bool = False) -> None:
        """So many calls ran on the baseline without being planned, and took so long together."""
        if self.baseline is not None and calls > 0:
            track = self.tracks[self.baseline]
            track.add(seconds / calls, disturbed=disturbed or busy, passing=disturbed)
            track.calls += calls
            self.calls += calls
            self.seconds += seconds
            self._file(self.baseline)

    def tried(self, candidate: str, seconds: float, *, busy: bool = False) -> None:
        """A background run of it took so long, beside whatever else we were doing; its results agreed.

        `busy` says that something that is not ours had the processors.
        """
        track = self.tracks.get(candidate)
        if track is None:
            return
        track.trying = False
        track.agreed = True
        track.unchecked = 0
        track.rough = seconds
        if not track.recent:
            track.disturbed = busy
        if candidate not in self.remembered:  # else it is what the history itself has said
            track.calls += 1
        track.suspended = False
        best = self._best_known(without=candidate)
        if best is not None and seconds > best[1] * CONTENTION:
            self._later(track)
        elif track.known and best is not None and candidate != self.current:
            # It may be back: what it did before no longer counts.
            track.recent.clear()
        self._file(candidate)

    def looks_good(self, seconds: float) -> bool:
        """Whether a background run that took so long is reason enough for real calls there."""
        best = self._best_known()
        return best is None or seconds <= best[1] * CONTENTION

    def failed(self, candidate: str, why: str) -> None:
        """It could not run there; it is left alone for a while, each time longer."""
        track = self.tracks.get(candidate)
        if track is None:
            return
        track.trying = False
        track.failures += 1
        track.suspended = True
        track.why_failed = why
        track.recent.clear()
        track.rough = None
        track.due = self.calls + FIRST_INTERVAL * 2 ** min(track.failures - 1, 6)
        self._file(candidate)
        if self.current == candidate:
            best = self._best_known(without=candidate)
            self.current = best[0] if best else self.baseline

    def distrust(self, candidate: str) -> None:
        """The candidate must be compared again: its program is another one, or its device was opened again."""
        track = self.tracks.get(candidate)
        if track is None or not track.agreed:
            return
        track.agreed = False
        track.samples = 0
        track.rough = None
        track.recent.clear()
        track.due = self.calls
        self._search_from = 0
        self._file(candidate)
        if self.current == candidate:
            best = self._best_known(without=candidate)
            self.current = best[0] if best else self.baseline

    def beat(self, seconds: float) -> None:
        """Calls take so long without being planned, as native code: no candidate that takes longer gets work."""
        self._bar = seconds

    def pin(self, why: str) -> None:
        """A device was wrong: calls stay on the baseline from now on."""
        self.pinned = why
        self.current = self.baseline

    def begin_sample(self, candidate: str) -> None:
        """A call on the baseline is about to be compared with what this candidate computes."""
        track = self.tracks.get(candidate)
        if track is not None:
            track.unchecked = 0
            track.samples += 1

    def spend(self, seconds: float) -> None:
        """Exploring has taken so much of the caller's time."""
        self.spent += seconds

    # -- questions

    @property
    def allowance(self) -> float:
        """The seconds that exploring may cost the caller now."""
        share = EARLY_SHARE if self.calls <= EARLY_CALLS else LATER_SHARE
        return max(self.seconds * share - self.spent, self.seconds * SMALL_SHARE)

    def affords(self, seconds: float) -> bool:
        """Whether exploring may cost the caller so much now."""
        return seconds <= self.allowance

    def calls_until_affordable(self, seconds: float) -> int:
        """About how many more calls it takes until exploring may cost so much."""
        each = self.seconds / self.calls if self.calls else 0.0
        if not each:
            return 1
        early = (self.spent + seconds) / EARLY_SHARE
        if early <= EARLY_CALLS * each and self.calls < EARLY_CALLS:
            return max(1, round((early - self.seconds) / each))
        return max(1, round(((self.spent + seconds) / LATER_SHARE - self.seconds) / each))

    @property
    def trying(self) -> bool:
        return bool(self._trying)

    def choose(self, waiting: Mapping[str, float] | WaitingTimes | None = None) -> DeviceChoice:
        """Where the next call goes; `waiting` is how long candidates are busy with something else.

        Pure: asked twice it answers the same.
        """
        if self.baseline is not None:
            if self.pinned is not None:
                return DeviceChoice(self.baseline, "pinned", self.pinned)
            if not self.tracks[self.baseline].recent:
                return DeviceChoice(self.baseline, "baseline", f"the first call is measured on {self.baseline}.")
        best = self._best_known()
        for name in self._waiting_for_trials():
            track = self.tracks[name]
            if track.rough is None or not self.may_run(name) or (waiting and waiting.get(name)):
                continue
            if best is None:
                return DeviceChoice(name, "trial", f"{name} is new and being measured.")
            excess = max(0.0, track.rough - best[1])
            if track.rough < best[1] * CONTENTION and self.affords(excess):
                return DeviceChoice(name, "trial", self._why_tried(name, track.rough))
        if best is None:
            return self._without_measurement()
        name = self._current_or(best)
        if self.baseline is not None and self._is_due_for_a_sample(name):
            return DeviceChoice(
                self.baseline, "sample", f"this call checks {name}, which runs most calls.", checks=name
            )
        if waiting and waiting.get(name):
            return self._soonest(name, waiting)
        return self._again(name, waiting) or self._known(name)

    def _why_tried(self, name: str, rough: float) -> str:
        """The sentence for the receipt of a call that measures a candidate.

        It has the candidate's time in the background, or that in earlier processes.
        """
        memory = self.remembered.get(name)
        if memory is None:
            return f"{name} took {readable_seconds(rough)} in the background; this call measures it."
        return f"{name} took {readable_seconds(memory.seconds)} in earlier processes ({memory.source})."

    def _soonest(self, current: str, waiting: Mapping[str, float] | WaitingTimes) -> DeviceChoice:
        """The one whose work already begun is over soonest, together with this call."""
        name, soonest = current, (self.tracks[current].estimate or 0.0) + waiting.get(current, 0.0)
        if len(self._ranked) > LOOKED_AT and isinstance(waiting, WaitingTimes):
            ranked: Iterable[tuple[float, str]] = islice(self._ranked, LOOKED_AT)
            for each in waiting.soonest(LOOKED_AT):
                seconds = self._ranks.get(each, soonest)
                if (finish := seconds + waiting.get(each, 0.0)) < soonest and self.may_run(each):
                    name, soonest = each, finish
        else:
            ranked = self._ranked
        for seconds, each in ranked:
            if seconds >= soonest:
                break  # those that follow take longer still
            if (finish := seconds + waiting.get(each, 0.0)) < soonest and self.may_run(each):
                name, soonest = each, finish
        if name == current:
            return self._known(current)
        return DeviceChoice(
            name,
            "known",
            f"{current} is busy for another {readable_seconds(waiting.get(current, 0.0))}, so {name} finishes sooner.",
        )

    def _again(self, current: str, waiting: Mapping[str, float] | WaitingTimes | None) -> DeviceChoice | None:
        """A call for one that was nearly as good when it was last measured, and is free."""
        mine = self.tracks[current].estimate or 0.0
        few = len(self.tracks) <= LOOKED_AT
        for name in self.tracks if few else [each for _, each in self._ranked[:LOOKED_AT]]:
            track = self.tracks[name]
            if name == current or track.suspended or track.trying or self.calls < track.due:
                continue
            # The baseline has one time again when it was measured once more, and one may have been a bad moment.
            is_known = track.known or (name == self.baseline and bool(track.recent))
            if not is_known or not self._is_trusted(name):
                continue
            if waiting and waiting.get(name):
                continue
            theirs = track.estimate or 0.0
            if track.disturbed and theirs < mine * CONTENTION * NEARLY and self.affords(max(0.0, theirs - mine)):
                return DeviceChoice(
                    name, "trial", f"{name} was measured on a busy machine; this call measures it again."
                )
            if theirs < mine * NEARLY and self.affords(max(0.0, theirs - mine)):
                return DeviceChoice(name, "trial", f"{name} was nearly as fast; this call measures it again.")
        return None

    def _without_measurement(self) -> DeviceChoice:
        """The caller has ruled the baseline out, so another candidate must be first."""
        names = [name for name in self._by_promise() if not self.tracks[name].suspended] or list(self.tracks)
        if len(names) == 1:
            return DeviceChoice(names[0], "only", f"{names[0]} is the only device allowed.")
        expected = self.expected.get(names[0])
        predicted = f": it is predicted to take {readable_seconds(expected)}" if expected is not None else ""
        return DeviceChoice(names[0], "untried", f"{names[0]} comes first{predicted}.")

    def _known(self, name: str) -> DeviceChoice:
        """The choice of a candidate whose time is known, with a sentence that compares it with the next best one.

        The other candidate is the fastest measured one, or else the most promising prediction. The reason is "baseline"
        where nothing but the baseline has been measured, and "known" otherwise.
        """
        track = self.tracks[name]
        mine = readable_seconds(track.estimate or 0.0)
        others = [each for each in self._ranked[:2] if each[1] != name]
        if others:
            seconds, other = others[0]
            sentence = f"{name} takes {mine} per call, {other} {readable_seconds(seconds)}{self._under_way(name)}."
            return DeviceChoice(name, "known", sentence)
        other = next((each for each in self._by_promise() if each != name and each in self.expected), "")
        if other:
            expected = f"{readable_seconds(self.expected[other])} predicted for {other}"
            return DeviceChoice(
                name,
                "known" if name != self.baseline else "baseline",
                f"{name} takes {mine} per call, {expected}{self._under_way(name)}.",
            )
        if name != self.baseline:
            return DeviceChoice(name, "known", f"{name} takes {mine} per call.")
        under_way = self._under_way(name) or "; other devices not tried yet"
        return DeviceChoice(name, "baseline", f"{name} takes {mine} per call{under_way}.")

    def _under_way(self, name: str) -> str:
        """What is prepared in the background while calls go on as they are."""
        tried = sorted(self._trying - {name})
        return f"; {' and '.join(tried)} being tried in the background" if tried else ""

    def to_try(self) -> str | None:
        """The candidate to try in the background now: one at a time, the most promising first."""
        if self.trying or self.pinned is not None or self.calls < self._search_from:
            return None
        best = self._best_known()
        if best is None:
            return None
        for name in self._by_promise():
            track = self.tracks[name]
            if name in (self.baseline, self.current) or track.trying or self.calls < track.due:
                continue
            if track.suspended:
                return name
            if track.known or (track.rough is not None and track.rough > best[1] * CONTENTION):
                if self._may_be_better(name, best[1]):
                    return name
                continue
            if track.rough is None and self._may_be_better(name, best[1]):
                return name
        if len(self.tracks) > LOOKED_AT:
            # A look at all of many candidates costs about as much as such a number of calls.
            self._search_from = self.calls + len(self.tracks) // LOOKED_AT
        return None

    def to_open(self) -> str | None:
        """The candidate that pays for being opened now, going by what earlier processes have measured."""
        if self.baseline is None or self.pinned is not None or self.trying:
            return None
        best = self._best_known()
        if best is None:
            return None
        for name in self._by_promise():
            memory, track = self.remembered.get(name), self.tracks.get(name)
            if memory is None or track is None or track.agreed or track.suspended or self.calls < track.due:
                continue
            if is_worth_opening(memory, best[1], self.once.get(name, 0.0), self.calls):
                return name
        return None

    def begin_trial(self, candidate: str) -> None:
        """Mark a candidate as being measured, and set its next turn.

        No other call measures it meanwhile.
        """
        track = self.tracks[candidate]
        track.trying = True
        self._file(candidate)
        self._later(track)

    @property
    def next_look(self) -> int:
        """The number of calls after which `to_try` may have a new answer; a caller need not ask before."""
        best = self._best_known()
        dues = [
            track.due
            for name, track in self.tracks.items()
            if name not in (self.current, self.baseline)
            and (track.suspended or (best is not None and self._may_be_better(name, best[1])))
        ]
        return max(self.calls + 1, min(dues, default=self.calls + LONGEST_INTERVAL))

    def estimate(self, candidate: str) -> float | None:
        """Seconds of the next call there: what was measured, else what was predicted."""
        track = self.tracks.get(candidate)
        if track is not None and track.estimate is not None:
            return track.estimate
        return self.expected.get(candidate)

    def may_run(self, candidate: str) -> bool:
        """Whether a call may go there although it was not chosen: it works, and was compared."""
        track = self.tracks.get(candidate)
        return track is not None and not track.suspended and self._is_trusted(candidate)

    # -- inside

    def _is_trusted(self, name: str) -> bool:
        """Whether it may have real calls. NumPy and the baseline need not agree with anything."""
        return not self.checked or name in (self.baseline, "numpy") or self.tracks[name].agreed

    def _is_due_for_a_sample(self, name: str) -> bool:
        """Whether the next call of this candidate is to be compared with NumPy's result.

        The calls between two such samples depend on both times and on what copying the arguments takes, so that
        comparing costs a bounded share of the calls' time.
        """
        # Only a call on NumPy gives something to compare with.
        if not self.checked or self.baseline != "numpy" or name == "numpy":
            return False
        track, baseline = self.tracks[name], self.tracks[self.baseline].estimate
        if baseline is None or not track.known:
            return False
        return track.unchecked >= calls_between_samples(
            baseline, track.estimate or 0.0, self.copying, samples=track.samples
        )

    def _may_be_better(self, name: str, best: float) -> bool:
        """Whether a candidate is worth a measurement beside one that takes `best` seconds.

        One that has won before always is. A time from earlier processes must be better by `LEAST_GAIN`; a mere
        prediction counts as such up to `DOUBT` times the best.
        """
        track = self.tracks[name]
        if track.won:
            return True
        memory = self.remembered.get(name)
        if memory is not None:
            return memory.seconds < best * LEAST_GAIN
        expected = self.expected.get(name)
        return expected is not None and expected < best * DOUBT

    def _settle(self, candidate: str) -> None:
        """A candidate was measured: decide which one has the work from now on."""
        best = self._best_known()
        if best is None:
            return
        name, seconds = best
        current = self.current
        mine = self.tracks[current].estimate if current is not None else None
        if mine is not None and current == self.baseline:
            mine = min(mine, self._bar)
        if name == current:
            if candidate != current:
                self._later(self.tracks[candidate])
            return
        if mine is None or seconds < mine * MARGIN:
            loser = self.tracks.get(current) if current is not None else None
            self.current = name
            self.tracks[name].won = True
            if loser is not None:
                # One that lost by little may have had a bad moment.
                loser.interval = SOON if mine is not None and mine < seconds * NEARLY else FIRST_INTERVAL
                loser.due = self.calls + loser.interval
        if candidate != self.current:
            self._later(self.tracks[candidate])

    def _later(self, track: CandidateHistory) -> None:
        """Set the next turn of a candidate; turns come half as often each time, within limits."""
        track.due = self.calls + track.interval
        longest = LONGEST_IN_DOUBT if track.disturbed else LONGEST_INTERVAL
        track.interval = min(track.interval * 2, LONGEST_FOR_A_WINNER if track.won else longest)

    def _current_or(self, best: tuple[str, float]) -> str:
        """The candidate that calls take now.

        It is the best known one where the current one has no recent times or is suspended.
        """
        current = self.current
        if current is None or not self.tracks[current].recent or self.tracks[current].suspended:
            return best[0]
        return current

    def _best_known(self, *, without: str | None = None) -> tuple[str, float] | None:
        """The fastest candidate that may run, and its seconds; `None` where none has been measured.

        A candidate that is not faster than the bar loses to the baseline.
        """
        for seconds, name in self._ranked:
            if name != without and (name == self.baseline or self.tracks[name].known) and self.may_run(name):
                return (name, seconds) if seconds <= self._bar or self.baseline is None else (self.baseline, self._bar)
        return None

    def _by_promise(self) -> Sequence[str]:
        """The candidates, the most promising first."""
        if self._promising is None or len(self._promising) != len(self.tracks):
            self._promising = sorted(self.tracks, key=self._promise)
        return self._promising

    def _waiting_for_trials(self) -> Sequence[str]:
        return sorted(self._on_trial, key=self._promise) if self._on_trial else ()

    def _promise(self, name: str) -> tuple[float, str]:
        return self.expected.get(name, float("inf")), name

    def _file(self, name: str) -> None:
        """Put a candidate that has changed where it belongs in the orders and sets."""
        track = self.tracks.get(name)
        seconds = track.estimate if track is not None else None
        old = self._ranks.get(name)
        if seconds != old:
            if old is not None:
                del self._ranked[bisect_left(self._ranked, (old, name))]
                del self._ranks[name]
            if seconds is not None:
                insort(self._ranked, (seconds, name))
                self._ranks[name] = seconds
        on_trial = track is not None and not (track.known or track.trying or track.rough is None)
        _keep(self._on_trial, name, on_trial and name != self.baseline)
        _keep(self._trying, name, track is not None and track.trying)


def _keep(names: set[str], name: str, wanted: bool) -> None:
    """Add the name to the set, or discard it."""
    if wanted:
        names.add(name)
    else:
        names.discard(name)
