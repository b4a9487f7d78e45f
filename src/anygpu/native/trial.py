"""Native code in place of NumPy: a call is traced, compiled beside the calls that follow, compared, and then used.

In the order in which it happens to a call site:

- `NativeTrial` is its second or third call. The function is traced, runs on NumPy, and what went in and came out is
  copied for the background.
- `try_out` runs there: it compiles the program in a child, times it, and compares its results with NumPy's.
- `NativeCalls` are all calls from then on.
- The agreement is kept on disk with the code: in the next process a call needs to be traced, and nothing else.

Nothing of this needs a device to be opened or a call to be planned.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from anygpu.agreement.analysis import Flag
from anygpu.agreement.trust import (
    NumberKind,
    Sample,
    Trust,
    code_of,
    learn_flags,
    listening,
    modes_now,
    number_kinds,
    raising_modes,
    sample_of,
)
from anygpu.array.trace.traced import LIES_OTHERWISE, NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.units import readable_seconds
from anygpu.calls import executing, loading
from anygpu.calls.background import yielding
from anygpu.calls.call_table import CallTable
from anygpu.calls.hints import NATIVE, hints_path, mark_of
from anygpu.calls.native_site import NativeSite
from anygpu.calls.signature import signature
from anygpu.engines.cpu.engine import CpuExecutable, executable
from anygpu.engines.cpu.loader import keep_fact, kept_fact
from anygpu.engines.cpu.numpy_loops import rounding
from anygpu.errors import AnyGPUError, MissingExtra
from anygpu.native.calls import (
    OVERHEAD,
    CallArgs,
    NativeCalls,
    agrees,
    allowance,
    background,
    inputs_after,
    on_numpy,
    pinned,
    settle_because_slow,
    settle_on_numpy,
)
from anygpu.native.loading import mark_native, mark_tried, unmark_tried
from anygpu.program.graph import Program

#: Limits of a trace: seconds plus a quarter of the time of calls, up to a maximum; or this share of their time.
_TRACE_SECONDS, _MOST_AT_FIRST, _TRACE_SHARE = 0.02, 0.06, 0.05
#: Native code gets real calls if it takes at most this many times NumPy's time in the background. Real calls have the
#: processors to themselves, and decide.
WORTH_TRYING = 1.5
#: The most runs of native code in a trial, the best of which counts; and seconds that they may take in any case.
_MOST_RUNS, _SHORT_RUNS = 8, 2e-3

_clock, _work = time.perf_counter, time.thread_time

#: Seconds of tracing, compiling and comparing, by task. For benchmarks.
history: deque[tuple[str, dict[str, float]]] = deque(maxlen=256)


class NativeTrial:
    """The next call of a call site: it is traced, and runs on NumPy or, if an earlier process has compared it, not."""

    def __init__(self, site: NativeSite) -> None:
        self._site = site

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        """Run one call, on NumPy or as native code that is compared with it, and return its value."""
        site = self._site
        call = CallArgs(function, arguments, keywords, begin)
        allowance.earn(site.seconds - site.paid)
        site.paid = site.seconds
        if not site.known_faster and not allowance.affords_one():
            site.retry_after(1.5, "postponed")
            return on_numpy(site, call)
        if not site.tell("begun"):  # on another thread
            return on_numpy(site, call)
        seconds = None if site.known_faster else _trace_seconds(site.seconds)
        begun = _clock()
        traced, constant_flags = traced_for(site, call, seconds)
        allowance.spend(_clock() - begun)
        if traced is None:
            return on_numpy(site, call)
        recalled = kept_calls(site, function, traced) if site.known_faster and not constant_flags else None
        if recalled is None:
            return _run_and_try(site, call, traced, constant_flags, background.submit, begun)
        site.tell("kept", code=recalled)
        return recalled(*call)


def _trace_seconds(called: float) -> float:
    """Return how long a trace may take, when calls have taken `called` seconds."""
    return max(min(_TRACE_SECONDS + called / 4, _MOST_AT_FIRST), _TRACE_SHARE * called)


def traced_for(site: NativeSite, call: CallArgs, seconds: float | None) -> tuple[Traced | None, frozenset[Flag]]:
    """Return the program of a call, and the warnings of NumPy about what the call computes from constants.

    There is no program where it cannot be traced, or tracing takes too long for now.
    """
    table, why = site.table, pinned.get(code_of(call.function))
    if why is not None:
        site.tell("refused", reason=why)
        return None, frozenset()
    modes = raising_modes(modes_now())
    if modes is not None:
        # Changes of NumPy's modes by the function itself would not be seen.
        site.retry_after(1.0, reason=modes)
        return None, frozenset()
    heard: set[str] = set()
    with again_after_errors(site), executing.Executing():
        by_value = frozenset({float, int} - table.input_number_types)
        # The call then runs on NumPy, which gives the warnings of its constants.
        how: Any = {"by_value": by_value, "seconds": seconds, "exact": rounding() if table.options.exact else None}
        tracing = partial(trace, call.function, call.arguments, call.keywords, **how)
        traced = contextvars.copy_context().run(listening, heard, tracing)
    if isinstance(traced, NotTraceable):
        why = f"it cannot be traced: {traced.reason.rstrip('.')}."
        if traced.for_now or traced.error is not None:
            site.retry_after(2.0, reason=why)
        else:
            settle_on_numpy(site, why)
        return None, frozenset()
    why = traced.only_on_numpy(rounding())
    if why is not None:
        settle_on_numpy(site, why)
        return None, frozenset()
    if traced.by_value:
        _rekey_by_value(site, table, traced.by_value, call)
    return traced, frozenset(Flag(kind, "a constant", None) for kind in heard)


@contextlib.contextmanager
def again_after_errors(site: NativeSite) -> Iterator[None]:
    """Have the trial repeated in another call if it ends with an error of the user's, or with an interrupt."""
    try:
        yield
    except BaseException:
        site.retry_after(1.0, "interrupted")
        raise


def _rekey_by_value(site: NativeSite, table: CallTable, types: frozenset[type], call: CallArgs) -> None:
    """Make the values of these numbers part of keys from now on: they decide what is computed."""
    table.on_value_dependence(types)
    table.forget_native(site.key)
    site.key = signature(call.arguments, call.keywords, table.input_number_types)
    table.remember_native(site.key, site)


# -- the first comparison


def _run_and_try(
    site: NativeSite,
    call: CallArgs,
    traced: Traced,
    constant_flags: frozenset[Flag],
    submit: Callable[[Callable[[], None]], None],
    begun: float,
) -> Any:
    """Run the call on NumPy, and have native code for it tried out with what went in and came out."""
    tracing = _clock() - begun
    with again_after_errors(site):
        value = on_numpy(site, call)
    since = _clock()
    trust = Trust()
    trust.constant_flags = constant_flags
    given = inputs_after(site, call, traced, trust, value)
    if given is not None and traced.lies_otherwise(given):
        site.retry_after(2.0, reason=LIES_OTHERWISE)
    elif given is not None:
        try:
            sample = sample_of(traced, given, value, ours=False)
        except MemoryError:
            site.retry_after(
                4.0, reason="there was no memory to copy its arguments, with which native code is compared."
            )
        else:
            site.tell("traced", reason="native code for it is being compiled and compared with numpy.")
            submit(partial(try_out, site, call.function, sample, trust, tracing))
    allowance.spend(_clock() - since)
    return value


def try_out(site: NativeSite, function: Callable[..., Any], sample: Sample, trust: Trust, tracing: float) -> None:
    """Compile the program, run it on the sample, and use it if it is right and faster; called in the background."""
    with reported(site), yielding():
        begin = _clock()
        traced = sample.traced
        mark_tried(site)  # until it is ready: the next process may be as short as this one
        try:
            native = executable(traced.program)
        except MissingExtra as error:
            _say_what_is_missing(site, function, traced, error)
            return
        compiled = _clock()
        with background.must_finish():
            seconds, results, noted = _timed(native, sample.inputs, site.least)
        # Not beside them: calls and the compiler keep two processors busy.
        if noted:
            learn_flags(trust, sample)
            trust.prepare_errors(traced)
        if seconds + OVERHEAD > site.least * WORTH_TRYING:
            settle_because_slow(site, seconds)
        elif agrees(site, function, sample, results, trust, before_use=True):
            kinds = number_kinds(traced, sample.inputs)
            trust.begin_with_numbers(traced.program.key, "cpu", kinds)
            if site.tell("agreed", code=NativeCalls(site, function, traced, native, trust, seconds)):
                _keep(site, function, traced, kinds, trust, seconds)
        spent = {"tracing": tracing, "compiling": compiled - begin, "comparing": _clock() - compiled}
        history.append((site.note.task, spent))


@contextlib.contextmanager
def reported(site: NativeSite) -> Iterator[None]:
    """Make errors in the background, where nothing may be raised, the reason to stay on NumPy."""
    try:
        yield
    except AnyGPUError as error:
        site.tell("refused", reason=f"native code for it could not be made: {error}")
    except Exception as error:
        import logging  # late: it takes 5 ms

        logging.getLogger(__name__).exception("native code could not be tried")
        site.tell("refused", reason=f"native code for it failed in a trial: {type(error).__name__}: {error}")


def _say_what_is_missing(site: NativeSite, function: Callable[..., Any], traced: Traced, error: MissingExtra) -> None:
    """Tell that nothing compiles here: put the install command in the receipt, and the expected gain in one warning."""
    from anygpu.native.speed import warn_once  # which no usual installation needs

    site.tell("refused", reason=f"numpy runs it, because {error}")
    warn_once(site.note.task, function, traced.program, error)


def _timed(native: CpuExecutable, inputs: Sequence[Any], numpy: float) -> tuple[float, list[Any], int]:
    """Return the best time of some runs, and what the last gave and noted; `numpy` is what NumPy takes for one."""
    best, spent = math.inf, 0.0
    results: list[Any] = []
    noted = 0
    for number in range(_MOST_RUNS):
        since, worked = _clock(), _work()
        results, noted = native.checked(inputs)
        best = min(best, _clock() - since)
        spent += _work() - worked
        # The first runs of short code meet cold caches and threads that sleep; that of long code tells enough if it is
        # much slower. Only work counts here: beside calls on NumPy a run may wait 5 ms for Python's lock.
        if spent > max(4 * numpy, _SHORT_RUNS) and (number > 1 or spent > 3 * (number + 1) * numpy):
            break
        if number and best < 0.25 * numpy:
            break
    return best, results, noted


# -- between processes


def _keep(
    site: NativeSite,
    function: Callable[..., Any],
    traced: Traced,
    kinds: Sequence[frozenset[str]],
    trust: Trust,
    seconds: float,
) -> None:
    """Remember that native code agreed, so that the next process starts with it."""
    mark = mark_of(function)
    if hints_path(NATIVE) is not None and mark is not None and not trust.constant_flags:
        _keep_agreement(traced.program, mark, kinds, trust, numpy=site.least, native=seconds)
        mark_native(site)
    unmark_tried(site)


def kept_calls(site: NativeSite, function: Callable[..., Any], traced: Traced) -> NativeCalls | None:
    """Return native code that an earlier process has compared with NumPy on this processor; `None` if there is none."""
    mark = mark_of(function)
    with contextlib.suppress(AnyGPUError):
        kept = _kept_agreement(traced.program, mark) if mark is not None else None
        if kept is not None:
            site.least = min(site.least, kept.numpy)
            native = executable(traced.program)
            return NativeCalls(site, function, traced, native, kept.trust(traced.program.key), kept.native)
    return None


# -- at once


def prepare(
    site: NativeSite, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """Have native code ready before this call returns; return the value, which NumPy has computed."""
    call = CallArgs(function, arguments, keywords, _clock())
    loading.native.is_ready = True
    site.tell("prepare")
    with _progress(site.note.task):
        traced, constant_flags = traced_for(site, call, None)
        if traced is None:
            return on_numpy(site, call)
        recalled = kept_calls(site, function, traced) if not constant_flags else None
        if recalled is None:
            return _run_and_try(site, call, traced, constant_flags, lambda job: job(), call.begin)
        site.tell("kept", code=recalled)
        return recalled(*call)


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


# -- the agreement, kept for the next process beside the code itself

_AGREEMENT = "agreement"


class _Agreement(msgspec.Struct, array_like=True, frozen=True):
    """What the first comparison has shown.

    It holds for one program of one function, on this processor, as the code of this version compiles it, with this
    NumPy.
    """

    #: The seconds of a call.
    numpy: float
    native: float
    #: For each number among the inputs, its kind.
    kinds: tuple[frozenset[str], ...]
    #: `Trust.plain_orders`.
    orders: tuple[tuple[int, ...] | None, ...] | None

    def trust(self, program: str) -> Trust:
        """Return what was known then."""
        trust = Trust()
        trust.recall_order(self.orders)
        trust.begin_with_numbers(program, "cpu", self.kinds)
        return trust


def _keep_agreement(
    program: Program, function: bytes, kinds: Sequence[NumberKind], trust: Trust, *, numpy: float, native: float
) -> None:
    """Keep it for a function, which is known by its mark; not where the order of the result is special."""
    if trust.knows_plain_order:
        found = _Agreement(numpy, native, tuple(kinds), trust.plain_orders)
        keep_fact(_AGREEMENT, program, (function, np.__version__), found)


def _kept_agreement(program: Program, function: bytes) -> _Agreement | None:
    """Return the kept agreement, if everything that it depends on is the same."""
    return kept_fact(_AGREEMENT, program, (function, np.__version__), _Agreement)
