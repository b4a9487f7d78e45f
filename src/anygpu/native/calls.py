"""Calls that run as native code in place of NumPy, and the reasons to run one on NumPy after all.

The code was compared with NumPy before (see `trial`). A call may use it if the program is still that of the call, and
arguments of this memory layout and numbers of this kind were compared. NumPy computes where it would warn or raise, and
now and then a result is compared again. All other calls go straight to the code: three microseconds for a hundred
numbers.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.comparison import Difference
from anygpu.agreement.trust import (
    USUAL_MODES,
    Sample,
    Trust,
    code_of,
    compared,
    is_finite,
    learn_flags,
    minded,
    mode_token,
    modes_now,
    number_kinds,
    only_numpy_knows,
    raising_modes,
    sample_of,
    warns,
    why_not_replaceable,
)
from anygpu.array.trace.traced import LIES_OTHERWISE, CallInputs, Traced
from anygpu.base import events
from anygpu.base.units import readable_seconds
from anygpu.calls import executing, loading
from anygpu.calls.background import Background, yielding
from anygpu.calls.lifecycle import Event
from anygpu.calls.native_site import NativeSite, Runner
from anygpu.calls.site import NEEDS_PLANNING
from anygpu.engines.codegen.kernel import BEYOND, HIDDEN, RESULT, UNKNOWN, WRAPPED
from anygpu.engines.cpu.engine import CpuExecutable
from anygpu.errors import Unsupported
from anygpu.hardware.gpu_presence import probes_by_itself
from anygpu.native.loading import mark_tried
from anygpu.placement.plan.candidate_history import calls_between_samples
from anygpu.receipts.notes import HostNote, NativeNote, Note, listeners, made, publish, publish_failure
from anygpu.receipts.notes import last as last_receipt

#: Seconds of a call beside the code itself.
OVERHEAD = 2e-6
#: Native code is used if it takes at most this share of NumPy's time.
LEAST_GAIN = 0.95
#: Native code that takes this many times as long as NumPy is not tried again.
_MUCH_SLOWER = 3.0
#: Calls after which the time of the code is known.
_TRIAL_CALLS = 3
#: The cost of a sample: handing it to the background, and copying.
_HANDING_OVER, _COPIED_PER_SECOND = 1e-4, 4e9
#: The share of the time of calls that planning may take, where there may be a GPU; and one in how many checked calls is
#: compared with NumPy.
_PLANNED_SHARE, _LOOKS_FOR_A_SAMPLE = 0.03, 3
#: The most programs that a function may need because its dependencies change.
_MOST_CHANGES = 12
#: Calls in a row that NumPy has to repeat, from which on native code costs more than it gains.
_MOST_REFUSED = 8

_NO_KEYWORDS: dict[str, Any] = {}
#: In place of a value: the call goes on as native code.
CONTINUE: Any = object()

_clock = time.perf_counter
_set_last = last_receipt.set
_listening = listeners.get

background = Background()
#: By the code of a function: why it stays on NumPy, because native code was wrong.
pinned: dict[Hashable, str] = {}


class CallArgs(NamedTuple):
    """One call: the function, its arguments, and when it began."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    begin: float


class Allowance:
    """What trials may take of the callers' time: a little at first, and a share of what calls have taken."""

    #: Seconds at first, the share, and what a trial takes before any was measured.
    AT_FIRST, SHARE, ONE = 0.06, 0.04, 5e-3

    def __init__(self) -> None:
        self._earned = self.AT_FIRST
        self._spent = 0.0
        self._usual = self.ONE

    def earn(self, seconds: float) -> None:
        """Note that calls have taken this long, or were spared it."""
        self._earned += self.SHARE * seconds

    def spend(self, seconds: float) -> None:
        """Note that a trial took this long of a caller's time."""
        self._spent += seconds
        self._usual += (seconds - self._usual) / 2

    def affords_one(self) -> bool:
        """Return whether calls have paid for another trial."""
        return self._spent + self._usual <= self._earned


allowance = Allowance()


class NativeCalls:
    """The calls of a call site, as native code, as long as nothing is unusual about them."""

    __slots__ = (
        "_calls",
        "_copying",
        "_inputs",
        "_left",
        "_looks",
        "_minds",
        "_module",
        "_native",
        "_note",
        "_proved",
        "_refused",
        "_samples",
        "_seconds",
        "_site",
        "_traced",
        "_trust",
        "_usual_modes",
    )

    def __init__(
        self,
        site: NativeSite,
        function: Callable[..., Any],
        traced: Traced,
        native: CpuExecutable,
        trust: Trust,
        seconds: float,
    ) -> None:
        """`seconds` is what the code took in the background."""
        program = traced.program
        self._site, self._traced, self._native, self._trust = site, traced, native, trust
        self._seconds = seconds
        self._note = self._noted()
        #: The noted bits about which NumPy may warn.
        self._minds = minded(traced)
        self._module = str(getattr(function, "__module__", None) or "")
        moved = sum(spec.nbytes for spec in (*program.inputs, *program.results))
        self._copying = _HANDING_OVER + moved / _COPIED_PER_SECOND
        #: Calls until one is looked at closely, and as many when they began.
        self._left = self._calls = _TRIAL_CALLS
        #: Whether real calls have shown that the code is faster.
        self._proved = False
        self._samples = self._looks = 0
        #: Calls in a row whose values native code could not use, and `_left` at the last of them.
        self._refused = (0, 0)
        #: NumPy's modes when they were last seen to be the usual ones.
        self._usual_modes: object = None
        self._inputs = traced.inputs_reader() or _nothing

    @property
    def note(self) -> NativeNote:
        """The note from which receipts of such calls are made."""
        return self._note

    @property
    def is_silent(self) -> bool:
        """Return whether NumPy gives no warnings for what the function computes from constants."""
        return not self._trust.constant_flags

    def _noted(self) -> NativeNote:
        """Return a note that says how much faster native code is."""
        seconds, numpy = self._seconds, self._site.least
        took = f"it takes {readable_seconds(seconds)}, and numpy {readable_seconds(numpy)}"
        reason = f"native code is {numpy / max(seconds, 1e-9):.1f} × faster: {took}."
        return NativeNote(self._site.note.task, reason, seconds, self._traced.program.key)

    # -- usual calls

    def quick(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the function's value; `NEEDS_PLANNING` for a call that needs a closer look."""
        begin = _clock()
        if self._left <= 0 or mode_token() is not self._usual_modes:
            return NEEDS_PLANNING
        given = self._inputs(arguments, _NO_KEYWORDS, function)
        if given is None:
            return NEEDS_PLANNING
        ready = _clock()
        try:
            results = self._native.call(*given)
        except Exception:  # noqa: BLE001 - the closer look meets it too, and goes on to NumPy
            return NEEDS_PLANNING
        if results is NotImplemented or results.pop() & self._minds:
            return NEEDS_PLANNING
        value = results[0]
        self._left -= 1
        note = (self._note, begin, ready, _clock())
        _set_last(note)
        if events.calls or _listening():
            publish(made(note), (function, arguments, _NO_KEYWORDS, value))
        return value

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Return the value of a call that began at `begin`; `NEEDS_PLANNING` if the call is to be planned."""
        call = CallArgs(function, arguments, keywords, begin)
        if self._left <= 0 and (value := self._end_interval(call)) is not CONTINUE:
            return value
        traced, trust = self._traced, self._trust
        found = traced.arrays(function, arguments, keywords)
        if found is None:
            return self._with_another_program(call)
        given, read = found
        if traced.lies_otherwise(given):
            return on_numpy(self._site, call, LIES_OTHERWISE)
        is_heard = True
        token = mode_token()
        if token is not self._usual_modes:
            modes = modes_now()
            if (why := raising_modes(modes)) is not None:
                return on_numpy(self._site, call, why)
            is_heard = warns(modes) or traced.warns_anyway
            if modes == USUAL_MODES:
                self._usual_modes = token
        # Also of what is no part of the result: a NaN that is masked, or cast to a whole number.
        if is_heard and trust.constant_flags and trust.is_shown(trust.constant_flags, self._module):
            flag = min(trust.constant_flags)
            why = f'NumPy warns of "{flag.kind} encountered in {flag.operation}" here, and the warning filters show it.'
            return on_numpy(self._site, call, why)
        if traced.numbers.stop > traced.numbers.start and any(map(_may_have_overflowed, given[traced.numbers])):
            return on_numpy(self._site, call, "a number is infinite in a narrow type, about which NumPy may warn.")
        new = self._what_is_new(given)
        if new is not None:
            return self._compare(call, new)
        ready = _clock()
        try:
            results, noted = self._native.checked(given)
        except Unsupported as error:
            return self._without_these_values(call, error)
        except Exception as error:  # noqa: BLE001 - NumPy raises it with its own message
            why = f"native code met a {type(error).__name__}, which NumPy raises with its own message."
            return on_numpy(self._site, call, why)
        if noted and (why := self._needs_numpy(noted, given, results, is_heard=is_heard)) is not None:
            return self._again_on_numpy(call, why)
        value = trust.in_order(traced, given, traced.rebuild(results, CallInputs(given, read)))
        end = _clock()
        self._seconds = min(self._seconds, end - ready)
        self._left -= 1
        published((self._note, begin, ready, end), call, value)
        return value

    # -- others

    def _what_is_new(self, given: Sequence[Any]) -> str | None:
        """Return in which way native code was not compared for such arguments; `None` if it was."""
        traced, trust = self._traced, self._trust
        if not trust.knows_order(given):
            return "arguments with this memory layout are new, and NumPy decides the layout of the result."
        if traced.numbers.stop > traced.numbers.start:
            kinds = number_kinds(traced, given)
            if not trust.knows_numbers(traced.program.key, "cpu", kinds):
                return "numbers of this kind are new, and native code was not compared for them."
        return None

    def _needs_numpy(self, noted: int, given: Sequence[Any], results: Sequence[Any], *, is_heard: bool) -> str | None:
        """Return why NumPy must compute a call again after native code noted these bits; `None` if it need not.

        If its warnings are heard (`is_heard`), it must unless it is proved that it gives none.
        """
        if noted & BEYOND:
            return "a NaN or a number out of range is cast to an integer"
        noted &= self._minds
        if noted & (RESULT | UNKNOWN) and (why := only_numpy_knows(self._traced, results)) is not None:
            return why
        if not noted or not is_heard:
            return None
        if noted & WRAPPED:
            return "an integer does not fit into its type"
        if not noted & (RESULT | HIDDEN) and is_finite(results):
            return None
        # From now on, calls skip the quick path.
        self._site.table.quick = None
        if not self._trust.may_be_shown(self._traced, given, self._module):
            return None
        return "it met a NaN or an infinity, about which NumPy may warn"

    def _again_on_numpy(self, call: CallArgs, why: str) -> Any:
        """Have NumPy compute a call again, so that it warns; after several in a row, have all calls run there."""
        if self._in_a_row():
            return self._compare(call, f"{why}; NumPy computes it again.")
        settle_on_numpy(self._site, f"{why}, in most of its calls.", retries=self._site.life.tries < 3)
        return on_numpy(self._site, call)

    def _in_a_row(self) -> bool:
        """Count a call that NumPy has to repeat; return whether there were few in a row."""
        count, left = self._refused
        self._refused = (count + 1 if left == self._left else 1, self._left)
        return self._refused[0] < _MOST_REFUSED

    def _end_interval(self, call: CallArgs) -> Any:
        """After some calls, check whether they were faster, compare one with NumPy, or have one planned."""
        site = self._site
        if not self._proved:
            if self._seconds + OVERHEAD > site.least * LEAST_GAIN:
                settle_because_slow(site, self._seconds)
                return on_numpy(site, call)
            self._proved = True
            site.tell("proved")
            self._note = self._noted()
            self._be_quick(call.function)
            self._begin_interval()
            return CONTINUE
        if self._seconds + OVERHEAD > site.least:
            settle_because_slow(site, self._seconds)  # calls that were compared have shown that NumPy takes less
            return on_numpy(site, call)
        allowance.earn(self._calls * (site.least - self._seconds))
        self._begin_interval()
        self._looks += 1
        if self._looks % _LOOKS_FOR_A_SAMPLE and probes_by_itself():
            return self._plan()
        if self._traced.read(call.function, call.arguments, call.keywords) is None:
            return CONTINUE  # which finds that out again
        self._samples += 1
        return self._compare(call, "some calls run on numpy, to be compared with native code.")

    def _be_quick(self, function: Callable[..., Any]) -> None:
        """Let the next calls come here without their key, if all that they need is the code."""
        traced, trust = self._traced, self._trust
        plain = trust.knows_plain_order and trust.plain_orders is None and not trust.constant_flags
        if plain and traced.returns_result and self._inputs is not _nothing and isinstance(function, FunctionType):
            self._site.table.quick = self

    def _begin_interval(self) -> None:
        """Set the number of calls until a sample is compared with NumPy again."""
        site, seconds = self._site, max(self._seconds, 1e-7)
        calls = calls_between_samples(site.least, seconds, self._copying, samples=self._samples)
        if probes_by_itself():
            # A planned call runs on NumPy.
            calls = min(calls, math.ceil(site.least / (_PLANNED_SHARE * seconds)))
        self._left = self._calls = calls

    def _plan(self) -> Any:
        """Have a call planned, because a GPU may be faster; return `CONTINUE` if planning has to be loaded first."""
        site, table = self._site, self._site.table
        planned = table.sites.get(site.key)
        if planned is not None:
            planned.chooser.beat(self._seconds)
            if planned.chooser.current not in (None, "numpy"):
                table.plan_from_now_on(site.key)
        if loading.is_loaded():
            return NEEDS_PLANNING
        loading.begin()
        return CONTINUE

    def _without_these_values(self, call: CallArgs, error: Unsupported) -> Any:
        """Run a call on NumPy whose values native code cannot handle; give up after several, as it finds out late."""
        site = self._site
        if self._in_a_row():
            return on_numpy(site, call, f"native code cannot use these values: {error}")
        settle_on_numpy(site, f"native code cannot use the values of its calls: {error}", retries=site.life.tries < 3)
        return on_numpy(site, call)

    def _with_another_program(self, call: CallArgs) -> Any:
        """Run a call on NumPy because the program depends on something that changed; trace another one later."""
        site = self._site
        site.table.quick = None
        changes = site.life.changes + 1
        if changes > _MOST_CHANGES:
            changed = self._traced.changed(call.function, call.arguments, call.keywords)
            site.tell(
                "refused",
                reason=f"it cannot be traced: {changed} changes from call to call, and decides what it computes.",
            )
        else:
            site.retry_after(1.0 + 0.1 * changes, "changed")
        return on_numpy(site, call, "something that it depends on has changed since it was traced.")

    def _compare(self, call: CallArgs, why: str) -> Any:
        """Run the call on NumPy, and compare native code with it in the background."""
        site, traced, trust = self._site, self._traced, self._trust
        value = on_numpy(site, call, why)
        given = inputs_after(site, call, traced, trust, value)
        if given is None or traced.lies_otherwise(given):
            return value
        kinds = number_kinds(traced, given)
        with contextlib.suppress(MemoryError):  # of copies: then it is not compared
            sample = sample_of(traced, given, value, ours=False)
            if trust.begin_comparing(traced.program.key, "cpu", kinds):
                background.submit(partial(self._compare_again, call.function, sample, kinds))
        return value

    def _compare_again(self, function: Callable[..., Any], sample: Sample, kinds: tuple[Any, ...]) -> None:
        """Compare native code with NumPy for a sample with new kinds of numbers; called in the background."""
        agreed = False
        try:
            with contextlib.suppress(Exception), yielding(), background.must_finish():
                results, noted = self._native.checked(sample.inputs)
                if noted & self._minds:
                    learn_flags(self._trust, sample)
                    self._trust.prepare_errors(sample.traced)
                agreed = agrees(self._site, function, sample, results, self._trust, before_use=False)
        finally:
            self._trust.end_comparing(sample.traced.program.key, "cpu", kinds, agreed=agreed)


def _may_have_overflowed(number: Any) -> bool:
    """Return whether a number among the inputs is infinite, and may have been finite before it was narrowed."""
    return number.dtype.char in "efF" and bool(np.isinf(number))


def _nothing(*_: Any) -> list[Any] | None:
    """Read nothing: such inputs need a closer look."""
    return None


# -- on NumPy


def on_numpy(site: NativeSite, call: CallArgs, why: str | None = None) -> Any:
    """Call the user's own function, leave a note for the receipt, and return the value."""
    note = site.note if why is None else HostNote(site.note.task, why, None)
    ready = _clock()
    try:
        with executing.Executing():
            value = call.function(*call.arguments, **call.keywords)
    except BaseException as error:
        publish_failure(note.task, error, call.begin, call.function)
        raise
    end = _clock()
    site.add(end - ready)
    published((note, call.begin, ready, end), call, value)
    return value


def published(note: Note, call: CallArgs, value: Any) -> None:
    """Keep the note of a call, or publish its receipt if there are listeners."""
    if events.calls or _listening():
        publish(made(note), (call.function, call.arguments, call.keywords, value))
    else:
        _set_last(note)


def inputs_after(site: NativeSite, call: CallArgs, traced: Traced, trust: Trust, value: Any) -> CallInputs | None:
    """Return what the program takes for a call that has just run on NumPy; `None` where native code could not do the
    same.

    Then the call site stays on NumPy. Otherwise it is known how NumPy's results lie in memory.
    """
    trust.hear()
    given = traced.inputs(call.function, call.arguments, call.keywords)
    why = "it modifies state that it depends on" if given is None else why_not_replaceable(traced, value, given)
    if given is None or why is not None:
        settle_on_numpy(site, f"{why}.")
        return None
    trust.see(traced, given, value)
    return given


def settle_because_slow(site: NativeSite, seconds: float) -> None:
    """Stay on NumPy because native code was slower; try again later if it nearly was not: the machine may have been
    busy.
    """
    took = f"it takes {readable_seconds(seconds + OVERHEAD)}, and numpy {readable_seconds(site.least)}"
    reason = f"native code is not faster: {took}."
    if site.life.tries < 3 and seconds < _MUCH_SLOWER * site.least:
        settle_on_numpy(site, reason, "slower for now", retries=True)
    elif probes_by_itself():
        settle_on_numpy(site, reason, "plan", instead=partial(_plan_instead, site))
    else:
        settle_on_numpy(site, reason, "slower")


def _plan_instead(site: NativeSite, *call: Any) -> Any:
    """Return a GPU may still be faster than NumPy: calls are planned from now on, once what plans them is loaded."""
    if loading.is_loaded():
        site.table.plan_from_now_on(site.key)
        return NEEDS_PLANNING
    loading.begin()
    return on_numpy(site, CallArgs(*call))


def settle_on_numpy(
    site: NativeSite, reason: str, event: Event = "refused", *, retries: bool = False, instead: Runner | None = None
) -> None:
    """Run calls on NumPy from now on, or for a while if it `retries`. A new process tries native code again."""
    site.table.quick = None
    if retries:
        site.retry_after(4.0, "refused for now" if event == "refused" else event, reason)
    else:
        site.tell(event, code=instead, reason=reason)
    background.submit(partial(mark_tried, site))


# -- agreement


def agrees(
    site: NativeSite,
    function: Callable[..., Any],
    sample: Sample,
    results: Sequence[Any],
    trust: Trust,
    *,
    before_use: bool,
) -> bool:
    """Return whether native code gave what NumPy did. A function for which it did not stays on NumPy, and its user is
    told.
    """
    program = sample.traced.program.key
    judgement = compared(sample, results, () if before_use else trust.usual.get(program, ()))
    if judgement.difference is not None:
        _pin(site, function, sample, judgement.difference, before_use=before_use)
        return False
    if judgement.verdict == "undecided" and before_use:
        settle_on_numpy(site, f"native code cannot be compared with numpy: {judgement.why}.")
        return False
    if judgement.usual and before_use:
        trust.usual[program] = judgement.usual
    return True


def _pin(
    site: NativeSite, function: Callable[..., Any], sample: Sample, difference: Difference, *, before_use: bool
) -> None:
    """Keep such calls on NumPy, because native code was wrong, and warn the user."""
    from anygpu.agreement.mismatches import keep, mismatch, tell  # which only a wrong result needs

    program = sample.traced.program
    found = mismatch(site.note.task, "cpu", None, program, sample.inputs, difference, before_use=before_use)
    settle_on_numpy(site, found.reason, "mismatch")
    code = code_of(function)
    if code not in pinned:
        pinned[code] = found.reason
        keep(found)
        warning = tell(found, function)
        if warning is not None:
            # A filter has made an error of it, which the next call raises.
            site.run_by(partial(_raise_once, site, warning))


def _raise_once(site: NativeSite, warning: Warning, *_: Any) -> Any:
    """Raise the warning in place of a call, and run the next ones on NumPy."""
    site.run_by(None)
    raise warning
