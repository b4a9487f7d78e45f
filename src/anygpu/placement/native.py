"""Native code in place of NumPy: a call is traced, compiled beside the calls that follow, compared, and then used.

In the order in which it happens to a call site:

- `NativeTrial` is its second or third call. The function is traced, runs on NumPy, and what went in and came out is
  copied for the background.
- `_try_out` runs there: it compiles the program in a child, times it, and compares its results with NumPy's.
- `NativeCalls` are all calls from then on. Whatever is unusual about one of them runs on NumPy, and every so often a
  call does so to be compared again.
- The agreement is kept on disk with the code: in the next process a call needs to be traced, and nothing else.

Nothing of this needs a device to be opened or a call to be planned.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from anygpu.agreement.comparison import Difference
from anygpu.array.trace.traced import CallInputs, NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.cpu.executable import CpuExecutable, executable
from anygpu.errors import AnyGPUError, MissingExtra
from anygpu.hardware.gpu_presence import probes_by_itself
from anygpu.history.hints import NATIVE, change_marks, hints_path, mark_of
from anygpu.notes import Failure, HostNote, NativeNote, Note, listeners, made, observe, observers, publish
from anygpu.notes import last as last_receipt
from anygpu.placement import executing, loading
from anygpu.placement.background import Background
from anygpu.placement.comparing import compared, learn_flags, quiet_lines
from anygpu.placement.kept_agreements import keep_agreement, kept_agreement
from anygpu.placement.known import PLAN, Known, NativeSite
from anygpu.placement.trust import (
    USUAL_MODES,
    Filters,
    Sample,
    Trust,
    code_of,
    is_finite,
    is_shown,
    loud,
    may_warn,
    mode_token,
    modes_now,
    number_kinds,
    peculiarity,
    sample_of,
    warns,
)
from anygpu.plan.sampling import calls_between_samples
from anygpu.units import readable_seconds

#: A trace is given up after so long, or after such a share of what calls have taken.
_TRACE_SECONDS, _TRACE_SHARE = 0.02, 0.05
#: What trials may take of callers: so much at first, and a share of what calls have taken.
_AT_FIRST, _SHARE = 0.02, 0.04
#: Tracing and copying, before any was measured.
_TRIAL_SECONDS = 5e-3
#: Native code is used where it takes at most so much of NumPy's time.
LEAST_GAIN = 0.9
#: What a call takes beside the code itself.
_OVERHEAD = 2e-6
#: Calls after which its time is known.
_TRIAL_CALLS = 8
#: A sample costs a hand-over to the background, whatever its size.
_HANDING_OVER = 1e-4
_COPIED_PER_SECOND = 4e9
#: What planning calls may cost, as a share of what calls take, where there may be a GPU; and how many of the calls that
#: are looked at closely there is one that is compared with NumPy.
_PLANNED_SHARE, _LOOKS_FOR_A_SAMPLE = 0.03, 3
#: How often a function may need another program because something that it depends on has changed.
_MOST_CHANGES = 12
#: Programs of more operations are compiled when nobody else wants the processor.
_LARGE_PROGRAM = 1000

_clock = time.perf_counter
_set_last = last_receipt.set
_listening = listeners.get
_log = logging.getLogger(__name__)

_background = Background()
#: By the code of a function: why it stays on NumPy, because native code was wrong.
_pinned: dict[Hashable, str] = {}
#: What preparing took, by task: seconds of loading, tracing, compiling and comparing. For benchmarks.
history: deque[tuple[str, dict[str, float]]] = deque(maxlen=256)


class _Allowance:
    """What trials may take of the callers' time."""

    def __init__(self) -> None:
        self._earned = _AT_FIRST
        self._spent = 0.0
        self._usual = _TRIAL_SECONDS

    def earn(self, seconds: float) -> None:
        """Calls have taken so long, or been spared it."""
        self._earned += _SHARE * seconds

    def spend(self, seconds: float) -> None:
        """A trial has taken so long of a caller's time."""
        self._spent += seconds
        self._usual += (seconds - self._usual) / 2

    def affords_one(self) -> bool:
        return self._spent + self._usual <= self._earned


_allowance = _Allowance()


class NativeTrial:
    """The next call of a call site: it is traced, and runs on NumPy or, if an earlier process has compared it, not."""

    def __init__(self, site: NativeSite) -> None:
        self._site = site

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        site, known = self._site, self._site.known
        _allowance.earn(site.seconds - site.paid)
        site.paid = site.seconds
        if not known.is_marked and not _allowance.affords_one():
            site.look_again(1.5)
        else:
            # Until the trial has ended, other calls run as they are.
            site.look_again(math.inf)
            traced = self._trace(function, arguments, keywords)
            if traced is not None:
                direct = _recalled(site, function, traced) if known.is_marked else None
                if direct is not None:
                    site.use(direct)
                    return direct(function, arguments, keywords, begin)
                return _run_and_try(site, function, arguments, keywords, begin, traced, _background.submit)
        return _on_numpy(site, function, arguments, keywords, begin)

    def _trace(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Traced | None:
        """The program of the call; `None` where there is none, or tracing takes too long for now."""
        site = self._site
        site.tries += 1
        begin = _clock()
        seconds = None if site.known.is_marked else max(_TRACE_SECONDS, _TRACE_SHARE * site.seconds)
        found = traced_call(site, function, arguments, keywords, seconds)
        _allowance.spend(_clock() - begin)
        if isinstance(found, Traced):
            return found
        if found.for_now:
            site.look_again(2.0)
        else:
            site.stay(found.reason)
        return None


def traced_call(
    site: NativeSite,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    seconds: float | None,
) -> Traced | NotTraceable:
    """The program of a call, or a sentence that says why there is none. The call site moves to its right key."""
    known = site.known
    pinned = _pinned.get(code_of(function))
    if pinned is not None:
        return NotTraceable(pinned)
    with executing.Executing():
        traced = trace(function, arguments, keywords, by_value=frozenset({float, int} - known.lifted), seconds=seconds)
    if isinstance(traced, NotTraceable):
        return traced._replace(reason=f"it cannot be traced: {traced.reason.rstrip('.')}.")
    if traced.by_value:
        _move(site, known, traced.by_value, arguments, keywords)
    return traced


def _move(
    site: NativeSite, known: Known, types: frozenset[type], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    """The values of some numbers decide what is computed: from now on they are a part of keys."""
    from anygpu.placement.signature import signature  # which every process has loaded

    known.on_value_dependence(types)
    known.native.pop(site.key, None)
    site.key = signature(arguments, keywords, known.lifted)
    known.remember_native(site.key, site)


# -- the first comparison


def _run_and_try(
    site: NativeSite,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    begin: float,
    traced: Traced,
    submit: Callable[[Callable[[], None]], None],
) -> Any:
    """Run the call on NumPy, and have native code for it tried out with what went in and came out."""
    value = _on_numpy(site, function, arguments, keywords, begin)
    since = _clock()
    trust = Trust()
    trust.heard = Filters.now()
    given = traced.inputs(function, arguments, keywords)
    if given is None:
        site.stay("it modifies state that it depends on.")
        return value
    why = peculiarity(traced, value, given)
    if why is not None:
        site.stay(f"{why}.")
        return value
    trust.see(traced, given, value)
    with contextlib.suppress(MemoryError):
        sample = sample_of(traced, given, value, ours=False)
        site.note = site.note._replace(reason="native code for it is being compiled and compared with numpy.")
        submit(partial(_try_out, site, function, sample, trust))
    _allowance.spend(_clock() - since)
    return value


def _try_out(site: NativeSite, function: Callable[..., Any], sample: Sample, trust: Trust) -> None:
    """In the background: compile the program, run it on the sample, and use it if it is right and faster."""
    with contextlib.suppress(_Stopped), loading.yielding(), _reported(site):
        begin = _clock()
        native = _compiled(sample.traced)
        compiled = _clock()
        with _background.must_finish():
            seconds, results = _timed(native, sample.inputs, site.least)
            if seconds + _OVERHEAD > site.least * LEAST_GAIN:
                _stay_because_slow(site, seconds)
            elif _agrees(site, function, sample, results, trust, before_use=True):
                learn_flags(trust, sample)
                kinds = number_kinds(sample.traced, sample.inputs)
                trust.begin_with_numbers(sample.traced.program.key, "cpu", kinds)
                site.use(NativeCalls(site, function, sample.traced, native, trust, seconds))
                _keep(site, function, sample, kinds, trust, seconds)
        history.append((site.note.task, {"compiling": compiled - begin, "comparing": _clock() - compiled}))


class _Stopped(Exception):
    """Native code is not used, and the call site knows why."""


@contextlib.contextmanager
def _reported(site: NativeSite) -> Iterator[None]:
    """In the background, where nothing may be raised: what goes wrong becomes the reason to stay on NumPy."""
    try:
        yield
    except _Stopped:
        raise
    except MissingExtra as error:
        site.stay(f"numpy is all there is to run it: {error}")
    except AnyGPUError as error:
        site.stay(f"native code for it could not be made: {error}")
    except Exception as error:  # noqa: BLE001
        _log.exception("native code could not be tried")
        site.stay(f"native code for it failed in a trial: {type(error).__name__}: {error}")


def _compiled(traced: Traced) -> CpuExecutable:
    return executable(traced.program, idle=len(traced.program.nodes) > _LARGE_PROGRAM)


def _timed(native: CpuExecutable, inputs: Sequence[Any], enough: float) -> tuple[float, list[Any]]:
    """The best time of some runs, and the results of the last. The first run fills caches, and is one of them only
    where it is fast enough already."""
    best, begin = math.inf, _clock()
    results: list[Any] = []
    for number in range(6):
        since = _clock()
        results = native(inputs)
        now = _clock()
        best = min(best, now - since)
        if number and (now - begin > 4 * enough or best < 0.25 * enough):
            break
    return best, results


def _stay_because_slow(site: NativeSite, seconds: float) -> None:
    """Native code was not faster. It is tried again later: the machine may have been busy."""
    if site.tries > 2:
        site.stay(_not_faster(site, seconds))
    else:
        site.look_again(4.0)
        site.note = site.note._replace(reason=_not_faster(site, seconds))


def _not_faster(site: NativeSite, seconds: float) -> str:
    took = readable_seconds(seconds + _OVERHEAD)
    return f"native code is not faster: it takes {took}, and numpy {readable_seconds(site.least)}."


def _agrees(
    site: NativeSite,
    function: Callable[..., Any],
    sample: Sample,
    results: Sequence[Any],
    trust: Trust,
    *,
    before_use: bool,
) -> bool:
    """Whether native code gave what NumPy did. A function for which it did not stays on NumPy, and its user is told."""
    program = sample.traced.program.key
    judgement = compared(sample, results, () if before_use else trust.usual.get(program, ()))
    if judgement.difference is not None:
        _pin(site, function, sample, judgement.difference, before_use=before_use)
        return False
    if judgement.verdict == "undecided" and before_use:
        site.stay(f"native code cannot be compared with numpy: {judgement.why}.")
        return False
    if judgement.usual and before_use:
        trust.usual[program] = judgement.usual
    return True


def _pin(
    site: NativeSite, function: Callable[..., Any], sample: Sample, difference: Difference, *, before_use: bool
) -> None:
    from anygpu.placement.mismatches import keep, mismatch, tell  # which only a wrong result needs

    program = sample.traced.program
    found = mismatch(site.note.task, "cpu", None, program, sample.inputs, difference, before_use=before_use)
    site.stay(found.reason)
    site.known.quick = None
    code = code_of(function)
    if code not in _pinned:
        _pinned[code] = found.reason
        keep(found)
        warning = tell(found, function)
        if warning is not None:
            # A filter has made an error of it, which the next call raises.
            site.direct = partial(_raise_once, site, warning)


def _raise_once(site: NativeSite, warning: Warning, *_: Any) -> Any:
    site.look_again(math.inf)
    raise warning


# -- calls


class NativeCalls:
    """The calls of a call site, as native code, as long as nothing is unusual about them."""

    __slots__ = (
        "_calls",
        "_copying",
        "_inputs",
        "_left",
        "_looks",
        "_may_warn",
        "_module",
        "_native",
        "_note",
        "_proved",
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
        self._note = self._noted(seconds)
        self._may_warn = may_warn(program, quiet_lines(traced))
        self._module = str(getattr(function, "__module__", None) or "")
        moved = sum(spec.nbytes for spec in (*program.inputs, *program.results))
        self._copying = _HANDING_OVER + moved / _COPIED_PER_SECOND
        #: Calls until the next one that is more than a call, and calls so far.
        self._left = self._calls = _TRIAL_CALLS
        self._proved = False
        self._samples = self._looks = 0
        #: NumPy's modes when they were last seen to be the usual ones.
        self._usual_modes: object = None
        self._inputs = traced.inputs_reader() or _nothing

    def _noted(self, seconds: float) -> NativeNote:
        site = self._site
        times = site.least / max(seconds, 1e-9)
        numpy = readable_seconds(site.least)
        reason = f"native code is {times:.1f} × faster: it takes {readable_seconds(seconds)}, and numpy {numpy}."
        return NativeNote(site.note.task, reason, seconds, self._traced.program.key)

    @property
    def reason(self) -> str:
        return self._note.reason

    def quick(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """What the function returns; `PLAN` where such a call takes a closer look. For the shortest functions."""
        begin = _clock()
        if self._left <= 0 or mode_token() is not self._usual_modes:
            return PLAN
        given = self._inputs(arguments, _NO_KEYWORDS, function)
        if given is None:
            return PLAN
        ready = _clock()
        try:
            results = self._native.call(*given)
        except Exception:  # noqa: BLE001 - the closer look meets it too, and goes on to NumPy
            return PLAN
        if results is NotImplemented or not (results.pop() or not self._may_warn):
            return PLAN
        value = results[0]
        self._left -= 1
        note = (self._note, begin, ready, _clock())
        _set_last(note)
        if observers or _listening():
            publish(made(note), (function, arguments, _NO_KEYWORDS, value))
        return value

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """What the function returns; `PLAN` for a call that is to be planned. It began at `begin`."""
        if self._left <= 0 and (value := self._look(function, arguments, keywords, begin)) is not _GO_ON:
            return value
        traced, trust = self._traced, self._trust
        found = traced.arrays(function, arguments, keywords)
        if found is None:
            return self._with_another_program(function, arguments, keywords, begin)
        given, read = found
        why, is_watched = self._why_numpy(given)
        if why is not None:
            return self._compare(function, arguments, keywords, begin, why)
        ready = _clock()
        try:
            results, finite = self._native.checked(given)
        except Exception as error:  # noqa: BLE001 - NumPy raises it with its own message, or does better
            name = type(error).__name__
            why = f"native code met a {name}, which NumPy raises with its own message."
            return _on_numpy(self._site, function, arguments, keywords, begin, why)
        is_odd = is_watched and not trust.flags and not (is_finite(results) if finite is None else finite)
        if is_odd and not trust.is_usual(given):
            why = "the result of native code is not finite; NumPy computes it again, so that its warnings appear."
            return self._compare(function, arguments, keywords, begin, why)
        value = trust.in_order(traced, given, traced.rebuild(results, CallInputs(given, read)))
        end = _clock()
        if not self._proved:
            self._seconds = min(self._seconds, end - ready)
        self._left -= 1
        _published((self._note, begin, ready, end), function, arguments, keywords, value)
        return value

    def _why_numpy(self, given: Sequence[Any]) -> tuple[str | None, bool]:
        """Why this call has to run on NumPy; and whether NumPy would warn of a result that is not finite."""
        trust, is_watched = self._trust, self._may_warn
        token = mode_token()
        if token is not self._usual_modes:
            modes = modes_now()
            if (found := loud(modes)) is not None:
                return found, True
            is_watched = is_watched and warns(modes)
            if modes == USUAL_MODES:
                self._usual_modes = token
        if not trust.knows_order(given):
            return "arguments with this memory layout are new, and NumPy decides the layout of the result.", is_watched
        flags = trust.flags
        if flags and is_watched and is_shown(flags, self._module, trust.heard):
            flag = min(flags)
            said = f'NumPy warns of "{flag.kind} encountered in {flag.operation}" here'
            return f"{said}, and the warning filters show it.", is_watched
        traced = self._traced
        if traced.numbers.stop > traced.numbers.start:
            kinds = number_kinds(traced, given)
            if not trust.knows_numbers(traced.program.key, "cpu", kinds):
                return "numbers of this kind are new, and native code was not compared for them.", is_watched
        return None, is_watched

    def _look(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """After some calls: see whether they were faster, or compare one with NumPy, or have one planned."""
        site = self._site
        if not self._proved:
            if self._seconds + _OVERHEAD > site.least:
                site.known.quick = None
                _stay_because_slow(site, self._seconds)
                return _on_numpy(site, function, arguments, keywords, begin)
            self._proved = True
            self._note = self._noted(self._seconds)
            self._be_quick(function)
            self._begin_interval()
            return _GO_ON
        _allowance.earn(self._calls * (site.least - self._seconds))
        self._begin_interval()
        self._looks += 1
        if self._looks % _LOOKS_FOR_A_SAMPLE and probes_by_itself():
            return self._plan()
        self._samples += 1
        return self._compare(function, arguments, keywords, begin, "some calls run on numpy, to be compared.")

    def _plan(self) -> Any:
        """Have a call planned: a GPU may be faster than native code. `_GO_ON` if that has to be loaded first."""
        site, known = self._site, self._site.known
        planned = known.sites.get(site.key)
        if planned is not None:
            planned.chooser.beat(self._seconds)
            if planned.chooser.current not in (None, "numpy"):
                known.plan_from_now_on(site.key)
        if loading.is_loaded():
            return PLAN
        loading.begin()
        return _GO_ON

    def _begin_interval(self) -> None:
        site, seconds = self._site, max(self._seconds, 1e-7)
        calls = calls_between_samples(site.least, seconds, self._copying, samples=self._samples)
        if probes_by_itself():
            # A planned call runs on NumPy.
            calls = min(calls, math.ceil(site.least / (_PLANNED_SHARE * seconds)))
        self._left = self._calls = calls

    def _be_quick(self, function: Callable[..., Any]) -> None:
        """Let the next calls come here without their key, if all that they need is the code."""
        traced, trust = self._traced, self._trust
        plain = trust.knows_plain_order and trust.plain_orders is None and not trust.flags
        if plain and traced.returns_result and self._inputs is not _nothing and isinstance(function, FunctionType):
            self._site.known.quick = self

    def _with_another_program(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Something that the program depends on has changed: the call runs on NumPy, and another is traced later."""
        site = self._site
        site.known.quick = None
        site.changes += 1
        if site.changes > _MOST_CHANGES:
            changed = self._traced.changed(function, arguments, keywords)
            site.stay(f"it cannot be traced: {changed} changes from call to call, and decides what it computes.")
        else:
            site.look_again(1.0 + 0.1 * site.changes)
        why = "something that it depends on has changed since it was traced."
        return _on_numpy(site, function, arguments, keywords, begin, why)

    def _compare(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float, why: str
    ) -> Any:
        """Run the call on NumPy, and compare native code with it in the background."""
        site, traced, trust = self._site, self._traced, self._trust
        value = _on_numpy(site, function, arguments, keywords, begin, why)
        trust.heard = Filters.now()
        given = traced.inputs(function, arguments, keywords)
        if given is None or (odd := peculiarity(traced, value, given)) is not None:
            site.known.quick = None
            site.stay("it modifies state that it depends on." if given is None else f"{odd}.")
            return value
        trust.see(traced, given, value)
        kinds = number_kinds(traced, given)
        if trust.begin_comparing(traced.program.key, "cpu", kinds):
            sample = sample_of(traced, given, value, ours=False)
            _background.submit(partial(self._compare_again, function, sample, kinds))
        return value

    def _compare_again(self, function: Callable[..., Any], sample: Sample, kinds: tuple[Any, ...]) -> None:
        agreed = False
        try:
            with contextlib.suppress(Exception), loading.yielding(), _background.must_finish():
                learn_flags(self._trust, sample)
                results = self._native(sample.inputs)
                agreed = _agrees(self._site, function, sample, results, self._trust, before_use=False)
        finally:
            self._trust.end_comparing(sample.traced.program.key, "cpu", kinds, agreed=agreed)


_NO_KEYWORDS: dict[str, Any] = {}
#: In place of a value: the call goes on as native code.
_GO_ON: Any = object()


def _nothing(*_: Any) -> list[Any] | None:
    """Reads nothing: such inputs take a closer look."""
    return None


def _on_numpy(
    site: NativeSite,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    begin: float,
    why: str | None = None,
) -> Any:
    """Call the user's own function, and leave a note for the receipt."""
    note = site.note if why is None else HostNote(site.note.task, why, None)
    ready = _clock()
    try:
        with executing.Executing():
            value = function(*arguments, **keywords)
    except BaseException as error:
        if observers:
            observe(Failure(note.task, "numpy", type(error).__name__, begin, _clock()))
        raise
    end = _clock()
    site.add(end - ready)
    _published((note, begin, ready, end), function, arguments, keywords, value)
    return value


def _published(
    note: Note, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], value: Any
) -> None:
    if observers or _listening():
        publish(made(note), (function, arguments, keywords, value))
    else:
        _set_last(note)


# -- between processes


def _keep(
    site: NativeSite,
    function: Callable[..., Any],
    sample: Sample,
    kinds: Sequence[frozenset[str]],
    trust: Trust,
    seconds: float,
) -> None:
    """For the next process, which then begins with native code. What NumPy warns of is found out anew each time."""
    path, mark = hints_path(NATIVE), mark_of(function)
    if path is not None and mark is not None and not trust.flags:
        keep_agreement(sample.traced.program, mark, kinds, trust, numpy=site.least, native=seconds)
        change_marks(path, [mark], [])


def _recalled(site: NativeSite, function: Callable[..., Any], traced: Traced) -> NativeCalls | None:
    """Native code that an earlier process has compared with NumPy, on this processor."""
    mark = mark_of(function)
    with contextlib.suppress(AnyGPUError):
        kept = kept_agreement(traced.program, mark) if mark is not None else None
        if kept is not None:
            site.least = min(site.least, kept.numpy)
            native = _compiled(traced)
            return NativeCalls(site, function, traced, native, kept.trust(traced.program.key), kept.native)
    return None


# -- at once


def prepare(
    site: NativeSite, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Have native code ready before this call returns; its value, which NumPy has computed."""
    begin = _clock()
    loading.native.is_ready = True
    site.look_again(math.inf)
    with _progress(site.note.task):
        found = traced_call(site, function, arguments, keywords, None)
        if isinstance(found, NotTraceable):
            site.stay(found.reason)
            return _on_numpy(site, function, arguments, keywords, begin)
        direct = _recalled(site, function, found)
        if direct is not None:
            site.use(direct)
            return direct(function, arguments, keywords, begin)
        return _run_and_try(site, function, arguments, keywords, begin, found, lambda job: job())


@contextlib.contextmanager
def _progress(task: str) -> Iterator[None]:
    """Say on a terminal what takes longer than a second."""
    said = threading.Event()

    def say() -> None:
        said.set()
        sys.stderr.write(f"anygpu compiles {task} … ")
        sys.stderr.flush()

    timer = threading.Timer(1.0, say)
    begin = _clock()
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set():
            sys.stderr.write(f"done in {readable_seconds(_clock() - begin)}.\n")
