"""Deferred calls: the function itself runs, and its arrays wait.

At each call the user's own function is called, with arrays that stand for those among its arguments. What it does with
them is recorded, and computed when it needs a value or returns (see `anygpu.array.deferred`). What comes back is
NumPy's. A function for which that is no gain, or whose arrays would outlive the call, goes back to plain calls.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from anygpu.array.deferred.conversions import are_held, converting
from anygpu.array.deferred.layouts import can_stand_for
from anygpu.array.deferred.recorder import Recorder
from anygpu.array.deferred.standing_in import StandIn
from anygpu.base import events
from anygpu.base.units import readable_seconds
from anygpu.errors import InvalidOption
from anygpu.placement import executing, loading
from anygpu.placement.known import NEW, has_own_array
from anygpu.placement.native_site import NativeSite
from anygpu.placement.offload import Offloaded, Result
from anygpu.placement.options import DEVICE, Options
from anygpu.placement.own_code import Reach, why_not_deferred
from anygpu.placement.segments import Segments
from anygpu.placement.signature import BUILTIN, OwnArray, signature
from anygpu.placement.unwrapping import replace_everywhere, replace_in_frames, unwrapped
from anygpu.receipts.notes import HostNote, Note, listeners, publish, publish_failure
from anygpu.receipts.notes import last as last_receipt
from anygpu.receipts.receipt import Phases, Receipt, deferred_receipt

if TYPE_CHECKING:
    from anygpu.placement.call import Call
    from anygpu.placement.closed_code import ClosedCode
    from anygpu.placement.plan.plan import Plan
    from anygpu.placement.planner import Planner

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds of NumPy for each recorded operation, below which recording does not pay.
LEAST_PER_OPERATION = 2e-6
#: Deferred calls may take at most this much of a plain call's time.
LEAST_GAIN = 0.97
#: Calls after which it is judged whether native code could gain anything at all; and whether it has.
CALLS_BEFORE_JUDGING, CALLS_BEFORE_COMPARING = 3, 6
#: Seconds that deferred calls may take more than plain ones until it is known whether native code runs their segments;
#: and while native code for one of them is being compiled.
MOST_LOST, MOST_LOST_IN_TRIALS = 0.2, 1.0
#: After so many plain calls of a function that has gone back, it is looked whether its arguments are of a new kind.
_LOOK_EVERY = 64
#: The same in seconds of calls, as long as native code may still be tried.
_LOOK_AFTER = 0.02
#: Calls of which the quickest counts, where they were faster before.
_RECENT = 24
#: One call of so many is a plain one, to know what these take; at first more of them: the first meets cold caches.
PLAIN_EVERY, PLAIN_AT_FIRST = 24, 3
#: Plain calls that tell what native code for the whole function has to beat: in a row, where they are short.
_PLAIN_BEFORE_NATIVE, _LONG = 10, 5e-3
#: Whether functions are traced as well: native code for the whole of one is faster than for its segments.
TRACES_TOO = True
#: Functions that take less and have gone back are called without a look at the clock.
_SHORT = 100e-6
#: Errors of one function: after each it is looked for arrays that somebody holds, which takes a while.
_MOST_ERRORS = 3
#: Kinds of arguments that are remembered for one function.
_MOST_SITES = 256
#: Before the reason why calls have gone back.
_TRIED = "Deferred calls were tried:"

_clock = time.perf_counter
_last = last_receipt.get
_listening = listeners.get
_active: ContextVar[Recorder | None] = ContextVar("the deferred call that runs", default=None)


def _describe(value: Any, parts: list[Any], lifted: frozenset[type]) -> None:
    """In the key of a call inside of a deferred one: it runs as it is."""
    parts += (OwnArray, "abstract")


BUILTIN[StandIn] = _describe


class DeferredSite:
    """Calls of one function with one kind of arguments: what plain and what deferred calls take."""

    def __init__(self, plain: float | None = None, most_lost: float | None = None) -> None:
        """What a plain call takes, if that is known, and what deferred ones may take more than these together."""
        self.calls = 0
        self.plain_calls, self.plain = (0, math.inf) if plain is None else (1, plain)
        self._at_first = PLAIN_AT_FIRST if plain is None else 1
        self._most_lost = most_lost
        #: What deferred calls took more than plain ones.
        self.lost = 0.0
        #: Of the last deferred calls; and the least that one took beside its segments.
        self.recent: list[float] = []
        self.beside = math.inf
        #: How many of them count: more once it was faster, when a slow one says more about the machine.
        self.kept = 4
        #: Operations in a call.
        self.operations = 0

    def is_next_plain(self) -> bool:
        """Whether the next call is to be a plain one, to know what it takes."""
        if self.plain_calls < self._at_first:
            return self.calls >= 2 * self.plain_calls
        return self.calls >= PLAIN_EVERY * (self.plain_calls - self._at_first + 1)

    @property
    def is_faster(self) -> bool:
        """Whether a deferred call was faster than plain ones, once it was known what runs its segments."""
        return self.kept == _RECENT

    @property
    def is_little_known(self) -> bool:
        """Whether plain calls may take less than was seen."""
        return self.plain_calls < _PLAIN_BEFORE_NATIVE and self.plain < _LONG

    def ran_plain(self, seconds: float) -> None:
        """Count a plain call of the function, which took so long."""
        self.plain_calls += 1
        self.plain = min(self.plain, seconds)

    def ran(self, seconds: float, run: DeferredRun, segments: Segments, *, is_tried: bool) -> str | None:
        """A deferred call took so long. Returns why calls go back to plain ones, if they do.

        `is_tried` is whether something else may make them faster soon.
        """
        self.calls += 1
        self.operations = max(self.operations, run.operations)
        self.recent = recent = [*self.recent[-self.kept :], seconds]
        self.lost += min(recent[-4:]) - self.plain  # a slow one among them is the machine's
        self.beside = min(self.beside, seconds - run.computing)
        if self.calls >= 2 and self.plain < LEAST_PER_OPERATION * self.operations:
            each = readable_seconds(self.plain / max(self.operations, 1))
            return f"its {self.operations} operations take numpy {each} each, which is too little to record them"
        most = LEAST_GAIN * self.plain
        is_tight = self._most_lost is not None
        if self.calls >= CALLS_BEFORE_JUDGING - is_tight and self.beside > most:
            took = f"{readable_seconds(self.beside)}, and a plain call {readable_seconds(self.plain)}"
            return f"what a deferred call does beside the operations that wait takes {took}"
        # What it takes to trace segments, at first, is allowed for elsewhere: the quickest calls tell what is lost.
        steady = self.calls * (min(self.recent) - self.plain)
        if self._most_lost is not None and self.calls > 2 and steady > self._most_lost and min(self.recent) > most:
            took = f"{readable_seconds(min(self.recent))}, and plain ones {readable_seconds(self.plain)}"
            return f"deferred calls are not faster so far: they take {took}"
        # What native code might gain later is not worth more than that.
        is_settled = segments.are_settled
        most_lost = MOST_LOST_IN_TRIALS if is_tried or segments.are_tried else MOST_LOST
        is_known = (is_settled and not is_tried) or self.lost > most_lost
        is_enough = self.calls >= CALLS_BEFORE_COMPARING and len(recent) > CALLS_BEFORE_JUDGING
        if is_enough and is_known and min(recent) > most:
            took = f"{readable_seconds(min(recent))}, and plain ones {readable_seconds(self.plain)}"
            return f"deferred calls are not faster: they take {took}"
        if is_settled and seconds <= most:
            self.kept = _RECENT
        return None


class Deferred(Offloaded[P, R]):
    """A function whose calls are deferred. Made by `offload(deferred=True)`."""

    __slots__ = (
        "_back",
        "_bare",
        "_closed",
        "_errors",
        "_last",
        "_left",
        "_names_conversions",
        "_reach",
        "_segments",
        "_short",
        "_sites",
    )

    def __init__(
        self,
        function: Callable[P, R],
        options: Options,
        planner: Callable[[], Planner] | None = None,
        closed: ClosedCode | None = None,
    ) -> None:
        super().__init__(function, options, planner)
        #: That nothing else leads to the memory of arguments, where it was found out.
        self._closed = closed
        self._names_conversions = closed is None or closed.names_conversions
        self._sites: dict[Hashable, DeferredSite] = {}
        #: Why calls are plain ones; by kind of arguments, and for all of them.
        self._back: dict[Hashable, str] = {}
        self._segments = Segments(self._task, function, options, at_once=closed is not None)
        self._last: Receipt | None = None
        #: Plain calls that are made without a look at their arguments; and deferred ones that raised an error.
        self._left = self._errors = 0
        #: What the receipts of those say for which there is nothing to do but to call the function.
        self._bare: HostNote | None = None
        #: The same for short ones, with what one took before: they are not timed.
        self._short: Note | None = None
        why = _why_options_rule_it_out(options) or why_not_deferred(function)
        if why is not None:
            self._go_back(None, why)
        #: Looked at when the first call comes: until then names may mean nothing yet.
        self._reach: Reach | None = None

    def __call__(self, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        # What is done for calls that have gone back is done for the shortest functions too: so it is written out.
        left = self._left
        if left > 0:
            self._left = left - 1
            if events.calls or executing.asked or _listening():
                return super().__call__(*arguments, **keywords)
            short = self._short
            if short is not None:
                # An empty dict of keywords takes as long to pass as all that is looked at here.
                value: R = self._function(*arguments, **keywords) if keywords else self._function(*arguments)
                if _last() is not short:
                    last_receipt.set(short)
                return value
            bare = self._bare
            if bare is None:
                return super().__call__(*arguments, **keywords)
            begin = _clock()
            value = self._function(*arguments, **keywords)
            last_receipt.set((bare, begin, begin, _clock()))
            return value
        if _active.get() is not None:
            plain: R = self._function(*arguments, **keywords)
            return plain
        key = signature(arguments, keywords, self._known.lifted)
        if None in self._back or key in self._back:
            if len(self._back) >= len(self._sites) or None in self._back:
                self._settle(key)
            return super().__call__(*arguments, **keywords)
        if self._is_whole(key):
            return super().__call__(*arguments, **keywords)
        value = self._deferred(key, arguments, keywords)[0]
        return value

    def _settle(self, key: Hashable) -> None:
        """Make the next calls without a look at their arguments; where nothing but NumPy runs them yet, bare ones."""
        self._left, self._bare, self._short = _LOOK_EVERY, None, None
        site = self._known.native.get(key)
        if site is None:
            return
        why = self._back.get(None) or self._back.get(key) or ""
        if site.note.reason == NEW:
            site.say(self._note_of_new.reason)
        elif why not in site.note.reason:
            site.say(f"{site.note.reason} {_TRIED} {why}")
        if site.direct is not None or not site.least < math.inf:
            return
        if not site.is_settled:
            # Native code may be tried later: what it is told now is what these calls will have taken.
            self._left = min(_LOOK_EVERY, int(_LOOK_AFTER / site.least))
            site.ran_elsewhere(self._left * site.least, self._left)
        if site.direct is None:
            self._bare = site.note
            if site.least < _SHORT:
                self._short = (site.note, 0.0, 0.0, site.least)
                if site.is_settled:  # nothing is left to be found out but another kind of arguments
                    self._left = max(_LOOK_EVERY, int(_LOOK_AFTER / site.least))

    # -- the function as a whole

    def _whole(self, key: tuple[Hashable, ...]) -> NativeSite | None:
        """Where native code for the whole function is tried, beside deferred calls."""
        if not (TRACES_TOO and self._may_be_native and self._closed is None):
            return None
        known = self._known
        whole = known.native.get(key)
        if whole is None and key not in known.planned and not has_own_array(key):
            whole = self._native_site(key)
        return whole

    def _is_whole(self, key: tuple[Hashable, ...]) -> bool:
        """Whether native code for the whole function, or a trial of it, runs the next call of a kind."""
        site = self._sites.get(key)
        whole = None if site is None else self._whole(key)
        if site is None or whole is None or whole.direct is None or site.is_little_known:
            return False
        note = getattr(whole.direct, "note", None)
        recent = site.recent  # read once: another thread may replace it
        if note is not None and recent and note.predicted > min(recent):
            whole.stay("deferred calls are faster than native code for the whole function.")
            return False
        return True

    def call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """The call as a task: it runs on the processor."""
        call = super().call(arguments, keywords)
        call.deferred = self
        return call

    def run(self, /, *arguments: Any, **keywords: Any) -> Result:
        """Call the function, and return the value with its receipt."""
        key = signature(arguments, keywords, self._known.lifted)
        if None in self._back or key in self._back:
            return super().run(*arguments, **keywords)
        if self._is_whole(key):
            return super().run(*arguments, **keywords)
        value, receipt = self._deferred(key, arguments, keywords)
        return Result(value, receipt)

    def explain(self, /, *arguments: Any, **keywords: Any) -> Plan:
        """Where the next call with such arguments would run, and why; for deferred calls, their segments."""
        key = signature(arguments, keywords, self._known.lifted)
        if None in self._back or key in self._back:
            from anygpu.placement.explaining import with_sentence

            why = self._back.get(None) or self._back[key]
            return with_sentence(super().explain(*arguments, **keywords), f"{_TRIED} {why}")
        return self.plan_of(key)

    def plan_of(self, key: Hashable) -> Plan:
        """What the next deferred call of a kind is expected to take, and its segments."""
        from anygpu.placement.explaining import explain_deferred

        return explain_deferred(self._task, self._sites.get(key), self._segments, self._last)

    def is_faster(self, key: Hashable) -> bool:
        """Whether deferred calls of a kind were seen to be faster, with all segments settled."""
        site = self._sites.get(key)
        return site is not None and site.is_faster

    def run_deferred(self, key: tuple[Hashable, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the function returns, where its code is closed; inside of a deferred call it runs as it is."""
        if _active.get() is not None:
            return self._function(*arguments, **keywords)
        if key in self._back:
            return super().__call__(*arguments, **keywords)
        return self._deferred(key, arguments, keywords)[0]

    def begin(self, key: Hashable, plain: float, most_lost: float) -> None:
        """Plain calls of this kind take so long, and deferred ones may take so much more until they are faster."""
        self._sites[key] = DeferredSite(plain, most_lost)

    @property
    def is_compiling(self) -> bool:
        """Whether native code for a segment is being compiled and compared."""
        return self._segments.are_tried

    @property
    def why_plain(self) -> str | None:
        """Why calls are plain ones, if there are such."""
        return next(iter(self._back.values()), None)

    def _go_back(self, key: Hashable, why: str) -> None:
        """Calls of a kind are plain ones from now on, or all calls, and their receipts say why."""
        self._back[key] = why
        self._note_of_new = self._note_of_new._replace(reason=f"its calls are plain ones: {why}")

    def _site(self, key: Hashable) -> DeferredSite:
        """The site of calls with such arguments, which is made for the first."""
        found = self._sites.get(key)
        if found is None:
            if len(self._sites) >= _MOST_SITES:
                self._sites.clear()
            found = self._sites[key] = DeferredSite()
        return found

    def _deferred(
        self, key: tuple[Hashable, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Any, Receipt]:
        site = self._site(key)
        begin = _clock()
        whole = self._whole(key)
        is_next_whole = whole is not None and whole.direct is not None
        is_next_plain = site.is_next_plain() or (is_next_whole and site.is_little_known)
        if is_next_plain or (loading.native.is_under_way() and not are_held()):
            value, receipt = self._plain(site, arguments, keywords, begin)
            if whole is not None:
                whole.ran_on_host(_clock() - begin)
            return value, receipt
        trusts = self._trusts(arguments, keywords)
        names = self._names_conversions
        run = DeferredRun(self._segments, self._function, trusts=trusts, names_conversions=names)
        try:
            value = run(arguments, keywords)
        except BaseException as error:
            publish_failure(self._task, error, begin, self._function)
            self._errors += 1
            is_ours = _may_be_ours(error, self._function)
            if self._closed is not None:
                name_numpys_class(error)
            elif isinstance(error, TypeError) and "StandIn" in str(error):
                error.add_note("anygpu: this function cannot run with deferred=True; leave the option out.")
            if is_ours:
                self._go_back(None, f"a deferred call raised a {type(error).__name__} in a library.")
            elif self._errors >= _MOST_ERRORS:
                self._go_back(None, f"{self._errors} of them have raised.")
            raise
        end = _clock()
        if whole is not None:
            whole.ran_elsewhere(end - begin)
        is_tried = whole is not None and whole.is_tried
        why = run.escaped or site.ran(end - begin, run, self._segments, is_tried=is_tried)
        if why is not None:
            self._go_back(None if run.escaped else key, f"{why}.")
        receipt = self._last = deferred_receipt(
            self._task,
            run.reason(why, by_itself=self._closed is not None),
            Phases(run=end - begin),
            run.seconds,
            run.how(),
            any_native=run.native > 0,
        )
        self._publish(receipt, arguments, keywords, value)
        return value, receipt

    def _trusts(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Whether nobody but the function can write to the memory of arguments while it runs."""
        if self._closed is not None:
            return True  # who has it has looked whether it holds
        if self._reach is None:
            self._reach = Reach(self._function)
        return _are_plain(arguments, keywords) and self._reach.holds()

    def _plain(
        self, site: DeferredSite, arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> tuple[Any, Receipt]:
        """A plain call of the function, to know what it takes."""
        with executing.Executing():
            value = self._function(*arguments, **keywords)
        end = _clock()
        site.ran_plain(end - begin)
        from anygpu.receipts.receipt import numpy_receipt

        reason = "some calls are plain ones, to know what deferred ones have to beat."
        receipt = numpy_receipt(self._task, reason, Phases(run=end - begin), None)
        self._publish(receipt, arguments, keywords, value)
        return value, receipt

    def _publish(self, receipt: Receipt, arguments: Any, keywords: Any, value: Any) -> None:
        """Leave the receipt of a call, and tell those who listen."""
        if events.calls or listeners.get():
            publish(receipt, (self._function, arguments, keywords, value))
        else:
            last_receipt.set(receipt)


def _why_options_rule_it_out(options: Options) -> str | None:
    """Why calls are plain ones, where the environment names a device. Raises `InvalidOption` where the caller does."""
    asked = options.preference.on or options.engine or options.precision or options.isolation or options.timeout
    if options.preference.on and os.environ.get(DEVICE):
        return f"{DEVICE} names a device, and deferred calls choose between NumPy and native code."
    if asked or options.warm:
        raise InvalidOption(
            "deferred=True runs on NumPy and as native code: leave out on=, engine=, precision=, isolation=, timeout= "
            "and warm=."
        )
    return None


def _are_plain(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether all arguments are arrays that stand-ins are made for, or plain values: no object leads to others."""
    return all(
        can_stand_for(each) or each is None or isinstance(each, bool | int | float | complex | str | np.generic)
        for each in (*arguments, *keywords.values())
    )


def _may_be_ours(error: BaseException, function: Callable[..., Any]) -> bool:
    """Whether a library may have refused an array because it is not NumPy's: then no other call shall meet that."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    is_own = last is not None and code is not None and last.tb_frame.f_code.co_filename == code.co_filename
    kinds = TypeError | ValueError | AttributeError | SystemError  # the last of code in C that got no buffer
    return isinstance(error, kinds) and not (is_own and "StandIn" not in str(error))


def name_numpys_class(error: BaseException) -> None:
    """Python names the class of what cannot be called or joined: as NumPy's, where nobody has asked for ours."""
    error.args = tuple(
        [each.replace("StandIn", "numpy.ndarray") if isinstance(each, str) else each for each in error.args]
    )


class DeferredRun:
    """One deferred call."""

    def __init__(
        self, segments: Segments, function: Callable[..., Any], *, trusts: bool, names_conversions: bool = True
    ) -> None:
        self._function, self._names_conversions = function, names_conversions
        self._segments = segments
        self._recorder = Recorder(self._computed, trusts_arguments=trusts, structures=segments.structures)
        #: Seconds of computing, and the whole; how many segments were native code; why arrays outlive the call.
        self.computing = self.whole = 0.0
        self.native = 0
        self.escaped: str | None = None

    def _computed(self, script: Any) -> list[Any]:
        """Run a segment, and add what it took; its results."""
        begin = _clock()
        try:
            results, is_native = self._segments.run(script)
        finally:
            self.computing += _clock() - begin
        self.native += is_native
        return results

    def __call__(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """What the function returns, as NumPy has it."""
        recorder = self._recorder
        begin = _clock()
        made: dict[int, Any] = {}
        given = tuple([_standing_in(recorder, each, made) for each in arguments])
        named = {name: _standing_in(recorder, each, made) for name, each in keywords.items()}
        del made
        token = _active.set(recorder)
        try:
            with executing.Executing(), converting(recorder, names_them=self._names_conversions):
                value = self._function(*given, **named)
                del given, named
                recorder.compute("the function returned", 1)
                value = unwrapped(value)
        except BaseException as error:
            self._after_error(error)
            raise
        finally:
            _active.reset(token)
            self.whole = _clock() - begin
        self._look_for_escapes()
        return value

    def _after_error(self, error: BaseException) -> None:
        """Compute what waits, so that NumPy's warnings appear and whoever holds an array can read it."""
        with contextlib.suppress(Exception):
            self._recorder.compute("the function raised", 1)
        alive = self._recorder.close()
        if alive:
            replace_everywhere(alive)  # those that are held by more than the frames of the traceback
        error.args = tuple(map(unwrapped, error.args))
        replace_in_frames(error)

    def _look_for_escapes(self) -> None:
        """Find arrays that are still held after the call, and note why the call may not be deferred."""
        alive = self._recorder.close()
        if not alive:
            return
        del alive
        gc.collect()  # those in circles are nobody's
        alive = self._recorder.close()
        if alive:
            kept = replace_everywhere(alive)
            more = f"; {kept} of them cannot be replaced by NumPy's" if kept else ""
            self.escaped = f"it keeps {len(alive)} of its arrays beyond the call{more}"

    # -- for receipts

    @property
    def operations(self) -> int:
        """Operations that waited, and those that ran at once."""
        return self._recorder.recorded + self._recorder.at_once

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of segments and of Python between them."""
        return {"segments": self.computing, "python": max(0.0, self.whole - self.computing)}

    def reason(self, back: str | None, *, by_itself: bool) -> str:
        segments = len(self._recorder.ended)
        how = " automatically" if by_itself else ""
        text = f"deferred{how}: {segments} segment{'s' * (segments != 1)}, {self.native} of them native code"
        if by_itself:
            text += "; it cannot be traced, and its code has no side effects beyond its arguments"
        return f"{text}; the next calls are plain, because {back}." if back else f"{text}."

    def how(self) -> str | None:
        """Why each segment ended."""
        counts: dict[str, int] = {}
        for why, place, calls in self._recorder.ended:
            at = "" if place is None or why.startswith("the function") else f" at {place}"
            text = f"{calls} operation{'s' * (calls != 1)} until {why}{at}"
            counts[text] = counts.get(text, 0) + 1
        shown = [f"{count} × {text}" if count > 1 else text for text, count in list(counts.items())[:20]]
        return "; ".join(shown) or None


def _standing_in(recorder: Recorder, value: Any, made: dict[int, Any]) -> Any:
    """What the function gets for an argument; for one array one array."""
    if not can_stand_for(value):
        return value
    if id(value) not in made:
        made[id(value)] = recorder.stand_in(value, is_argument=True)
    return made[id(value)]
