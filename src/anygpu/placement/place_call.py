"""A planned call, from its arguments to its receipt: trace it if that is worth it, choose, run, and learn.

Data goes one way: the arguments make a `Call`; its `CallSite` says where it runs; `strategies.execute` gives it to the
workers; what they return is told to the call site, and becomes the receipt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from anygpu.agreement.trust import (
    code_of,
)
from anygpu.base import events
from anygpu.base.interrupts import is_of_a_handler
from anygpu.calls.call_table import CallTable
from anygpu.calls.executing import Executing
from anygpu.calls.options import Options
from anygpu.errors import AnyGPUError, DeadlineExceeded, DeviceUnavailable, NotRecordable, Unsupported, text_of
from anygpu.hardware.device import CPU, DeviceKind, node_of
from anygpu.placement.call import Call, call_of
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import DeviceRun, RunElsewhere, run_on_device
from anygpu.placement.explore import explore, why_not_elsewhere
from anygpu.placement.plan.candidate_history import DeviceChoice, WaitingTimes
from anygpu.placement.planner import Planner, default, no_device
from anygpu.placement.values import anygpu_arrays_in
from anygpu.receipts.notes import publish, publish_failure
from anygpu.receipts.receipt import (
    Attempt,
    NetworkUse,
    Phases,
    PhaseTimer,
    Receipt,
    numpy_receipt,
    ran_on_host,
    warn_fallback,
)
from anygpu.workers.worker import Ran

if TYPE_CHECKING:
    from anygpu.placement.retry import LockedTask

#: Calls with anygpu's own arrays on the host before recording is tried for them, and what it may take.
_CALLS_BEFORE_RECORDING, _AT_FIRST = 2, 0.03


def place(
    function: Callable[..., Any],
    table: CallTable,
    find_planner: Callable[[], Planner] | None,
    key: Hashable,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    since: float | None = None,
) -> tuple[Any, Receipt]:
    """The value, and what happened. `key` is the signature; `since` is when the call began that had this loaded.

    Without `find_planner` it is the planner of the module's functions.
    """
    planner = (find_planner or default)()
    timer = PhaseTimer(planner.clock)
    if since is not None:
        loading = time.perf_counter() - since
        timer.waited(loading, loading)
    call = call_of(function, table, planner, key, arguments, keywords)
    began = time.perf_counter() if events.calls else 0.0
    # All in one function: calls may be nested, and each takes of the depth that Python allows.
    try:
        if table.options.engine is not None:
            from anygpu.placement.opaque import place_opaque

            outcome = place_opaque(call, timer)
        else:
            if call.site.trust.pending_warning is not None:
                call.site.trust.raise_pending_warning()
            with timer.phase("plan"):
                call.site.host.flush_timings(planner)
                trace_and_predict(call, timer)
                choice = choose(call)
                if choice.checks is not None:
                    call.site.chooser.begin_sample(choice.checks)
            outcome = run_with_retries(call, choice, timer)
            if outcome[1].device == "numpy":
                call.site.host.planned(outcome[1].phases.plan + outcome[1].phases.other)
    except BaseException as error:
        publish_failure(call.site.task, error, began, function, str(getattr(error, "device", None) or "numpy"))
        raise
    if call.site.chooser.baseline is None and table.options.engine is None:
        from anygpu.placement.direct import direct_calls  # for calls that name their device

        call.site.host.go_direct(direct_calls(call, outcome[1]))
    publish(outcome[1], (function, arguments, keywords, outcome[0]))
    return outcome


# -- before


def trace_and_predict(call: Call, timer: PhaseTimer) -> None:
    """Trace the function and predict its time on devices, as far as that is worth its time now.

    Where no baseline is allowed, it is done at once, and raises or falls back if no device can run the call.
    """
    planner, site, chooser = call.planner, call.site, call.site.chooser
    if site.candidates.fallback_reason is not None or (site.names_only_numpy and chooser.baseline == "numpy"):
        return
    changed = site.programs.current is not None and call.given() is None and not call.find_program()
    seconds = 0.0 if site.programs.is_tried else _seconds_for_recording(call)
    if changed or seconds is None or seconds >= site.programs.seconds:
        begin = planner.clock()
        with timer.phase("trace"):
            call.record(None if changed else seconds)
        site, chooser = call.site, call.site.chooser  # recording may have given the call one of its own
        if chooser.baseline is not None:
            chooser.spend(planner.clock() - begin)
    if site.candidates.evaluated:
        return
    if chooser.baseline is None:
        require_what_was_asked_for(call)
    if site.programs.current is None or site.candidates.fallback_reason is not None:
        return
    if chooser.baseline == "numpy" and not (planner.awake and chooser.affords(site.candidates.considering)):
        return
    begin = planner.clock()
    call.consider()
    if chooser.baseline is not None:
        chooser.spend(planner.clock() - begin)
    else:
        _require_that_it_can(call)


def _seconds_for_recording(call: Call) -> float | None:
    """The seconds that tracing may take now, at the caller's cost; `None` for no limit, 0 for not now."""
    chooser = call.site.chooser
    if chooser.baseline != "numpy":
        return None
    if not call.cacheable or not chooser.calls:
        return 0.0
    if call.site.has_anygpu_arrays:
        # Once it is recorded it can run on NumPy's arrays, which takes a part of what lazy ones take.
        return _AT_FIRST if chooser.calls >= _CALLS_BEFORE_RECORDING else 0.0
    ready = call.planner.ready_to_record
    return chooser.allowance if ready and (chooser.estimate(chooser.baseline) or 0.0) > call.planner.floor else 0.0


def require_what_was_asked_for(call: Call) -> None:
    """Before any work: raise, or settle for NumPy, where no device fits the options or the function cannot be traced.

    Nothing is done for calls that have a baseline.
    """
    site, options = call.site, call.site.options
    if site.chooser.baseline is not None:
        return
    missing = no_device(call.planner, options)
    if missing is not None:
        # Refusals of devices come first; what comes after them is not there, with what to do about it.
        others = missing.refusals[len(call.planner.machine_for(options).devices) :]
        _settle_for_numpy(site, missing, missing=others[0] if others else "")
        call.planner.considered(site.candidates)
    elif site.programs.refusal is not None:
        error = NotRecordable(site.task, site.programs.refusal)
        _settle_for_numpy(site, error, error.sentence)


def _require_that_it_can(call: Call) -> None:
    """Before any work: raise, or settle for NumPy, where none of the devices asked for can run the program.

    With `fallback="raise"` one of them has to run all of it.
    """
    site = call.site
    if not site.candidates.predictions:
        refused = site.candidates.refused[0]
        error = DeviceUnavailable(str(site.options.preference), [refused.sentence])
        _settle_for_numpy(site, error, refused.sentence)
    elif site.options.fallback == "raise" and all(facts.lacks for facts in site.candidates.predictions.values()):
        name, facts = next(iter(site.candidates.predictions.items()))
        message = f"{name} cannot run the whole program."
        raise Unsupported("the whole program", name, instead=str(facts.lacks), message=message)


def _settle_for_numpy(
    site: CallSite, why: AnyGPUError, sentence: str | None = None, missing: str | None = None
) -> None:
    """Have calls run on NumPy, with a warning if the options want one; raise `why` if they allow no fallback.

    `missing` says what to do about a device that is not there.
    """
    if site.options.fallback == "raise":
        raise why
    # An error lists every device; in a warning and in a receipt the first line says enough, with what is missing.
    first, *more = [sentence] if sentence is not None else str(why).splitlines()
    if site.options.fallback == "warn":
        hint = f" {missing or 'Run `anygpu doctor` to see why.'}" if more else ""
        warn_fallback(f"{site.task} runs on NumPy instead: {first}{hint}", cause=(site.task, first))
    site.candidates.fall_back(first, misses_device=missing is not None)


def choose(call: Call, waiting: Mapping[str, float] | WaitingTimes | None = None) -> DeviceChoice:
    """Choose the candidate; `waiting` are the seconds until candidates are free, else the planner is asked."""
    site, planner = call.site, call.planner
    if site.candidates.fallback_reason is not None:
        return DeviceChoice("numpy", "only", f"nothing else can run it: {site.candidates.fallback_reason}")
    with planner.lock:
        pinned = planner.pinned.get(code_of(call.function)) if planner.pinned else None
        if pinned is not None and site.chooser.pinned is None:
            site.pin(pinned)
        if waiting is None:
            busy = planner.waiting()
            waiting = site.candidates.waiting_times(busy) if busy else busy
        choice = site.chooser.choose(waiting)
    if (
        choice.candidate == "numpy"
        and choice.kind == "baseline"
        and site.programs.current is None
        and site.chooser.calls
    ):
        return choice._replace(sentence=why_not_elsewhere(planner, site))
    if choice.candidate == "numpy" and (why := _why_cpu_is_numpy(planner, site.options)) is not None:
        return choice._replace(sentence=why)
    return choice


def _why_cpu_is_numpy(planner: Planner, options: Options) -> str | None:
    """Why `on="cpu"` means NumPy: nothing compiles for the processor here; `None` where that is not so."""
    if options.cpu_is_numpy is not None or not any(name.lower() == CPU for name in options.preference.on):
        return options.cpu_is_numpy
    lost = [each for each in planner.machine_for(options).unavailable if each.id == CPU]
    return f'on="cpu" is NumPy here: {lost[0].reason} {lost[0].fix}' if lost else None


# -- during


def run_with_retries(
    call: Call, choice: DeviceChoice, timer: PhaseTimer, deadline: tuple[float, float] | None = None
) -> tuple[Any, Receipt]:
    """Run it, and when a device fails mend that or go on to the next, as long as the caller allows.

    `deadline` is the number of seconds that the caller gave it, and when they are over, by the monotonic clock: no
    worker runs longer than that. Raises `DeadlineExceeded` then.
    """
    planner = call.planner
    attempts: list[Attempt] = []
    life: LockedTask | None = None
    own = call.timeout
    while True:
        name = choice.candidate
        begin = planner.clock()
        if deadline is not None:
            left = max(1e-3, deadline[1] - time.monotonic())
            call.timeout = left if own is None else min(own, left)
        try:
            return run_at(call, choice, timer, tuple(attempts))
        except AnyGPUError as error:
            if name == "numpy":  # raised inside the user's own function
                raise
            # The frames of the failed attempt hold its arrays; they must go before anything else is tried.
            failure = error.with_traceback(None)
        from anygpu.placement.retry import LockedTask, handle_failure, next_choice, refusal, task_for
        from anygpu.workers.task_lifecycle import Fail, Requeue, Started

        spent = Phases(other=planner.clock() - begin)
        attempts.append(Attempt(device=name, phases=spent, error=type(failure).__name__, message=text_of(failure)))
        if life is None:
            life = LockedTask(task_for(call, name))
        life.tell(Started(name, 0))
        overdue = deadline is not None and time.monotonic() >= deadline[1]
        following = handle_failure(call, life, name, failure, overdue=overdue)
        if overdue and deadline is not None and isinstance(following, Fail) and following.why == "late":
            raise DeadlineExceeded(call.site.task, deadline[0])
        if not isinstance(following, Requeue):
            raise refusal(call, life.task, following, failure)
        choice = next_choice(call, life.task, following.device, name, failure)


def run_untraced(
    call: Call, choice: DeviceChoice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()
) -> tuple[Any, Receipt]:
    """Run the user's own function on NumPy; its value and receipt. Its time is learnt, and what it raises is raised."""
    site, planner = call.site, call.planner
    predicted = site.chooser.estimate("numpy")
    disturbed, conditions = planner.pace.exploring, planner.watch.begin(planner.clock())
    call.start()
    with timer.phase("run"):
        value = site.host.run_on_host(call.function, call.arguments, call.keywords)
    if site.chooser.baseline == "numpy":
        with timer.phase("plan"):
            took, busy = timer.seconds("run"), planner.watch.end(conditions, planner.clock())
            with planner.lock:
                site.chooser.measured("numpy", took, disturbed=disturbed or planner.pace.exploring, busy=busy)
                planner.add_seconds(took)
            site.trust.hear()
            if call.cacheable:
                explore(call, value, checks=choice.checks)
    return value, numpy_receipt(site.task, choice.sentence, timer.finish(), predicted, attempts)


def run_at(
    call: Call, choice: DeviceChoice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()
) -> tuple[Any, Receipt]:
    """Run a call on the chosen candidate; return its value and receipt. `attempts` are those that failed before.

    A device that may not run it after all leaves the call to the baseline; so does an error of the program itself, such
    as an index out of bounds, which NumPy raises with its own message, unless NumPy may not run it.
    """
    site, name = call.site, choice.candidate
    if name == "numpy" and site.host.uses_numpys_arrays:
        return run_untraced(call, choice, timer, attempts)
    if name == "numpy" or (site.programs.current is None and site.has_anygpu_arrays):
        return _run_on_lazy_arrays(call, choice, timer, attempts)
    try:
        outcome = run_on_device(call, choice, call.given(), site.chooser.estimate(name))
    except AnyGPUError:
        raise
    except Exception as error:
        # The program's own error, such as a position outside of its axis.
        allowed = site.chooser.baseline == "numpy" or site.options.fallback != "raise"
        if not allowed or call.is_heard or site.has_anygpu_arrays or is_of_a_handler(error):
            raise
        outcome = RunElsewhere(f"{name} met a {type(error).__name__}, which NumPy raises with its own message.")
    if isinstance(outcome, RunElsewhere):
        return _run_instead(call, outcome, timer, attempts)
    with timer.phase("plan"):
        _learn(call, name, outcome)
    unknown = dict(outcome.ran.unknown)
    if outcome.predicted is None:
        unknown["predicted_seconds"] = "there was no history of such calls"
    return outcome.value, receipt_of(
        outcome.ran,
        _merge_phases(timer.finish(), outcome.ran.phases),
        task=site.task,
        device=name,
        kind=outcome.prediction.kind,
        reason=choice.sentence,
        attempts=attempts,
        predicted=outcome.predicted,
        how=outcome.prediction.how,
        program=outcome.program.key,
        unknown=unknown,
    )


def _run_instead(
    call: Call, instead: RunElsewhere, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    """The call on the baseline, or on NumPy, because a device that was chosen for it may not run it."""
    baseline = call.site.chooser.baseline or "numpy"
    if not instead.on_numpy:
        return run_at(call, DeviceChoice(baseline, "baseline", instead.why, instead.checks), timer, attempts)
    value, receipt = run_untraced(call, DeviceChoice("numpy", "baseline", instead.why), timer, attempts)
    if instead.judge is not None:
        call.site.trust.hear()
        instead.judge(value)
    return value, receipt


def _run_on_lazy_arrays(
    call: Call, choice: DeviceChoice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    """Call a function that is not traced with anygpu's own arrays, and compute its results; its value and receipt."""
    site = call.site
    call.start()
    with timer.phase("run"):
        with Executing():
            value = call.function(*call.arguments, **call.keywords)
        for array in anygpu_arrays_in((value,), {}):
            array.compute()
    phases = timer.finish()
    why = "not measured: the function ran eagerly on device arrays"
    with call.planner.lock:
        site.chooser.measured(choice.candidate, phases.run)
        call.planner.add_seconds(phases.run)
    if call.cacheable and site.programs.refusal is None:
        explore(call)
    reason = choice.sentence
    if site.programs.refusal is not None:
        reason = f"its arguments are on that device, and it cannot be traced: {site.programs.refusal}"
    return value, Receipt(
        task=site.task,
        device=choice.candidate,
        kind=_kind_of(call, choice.candidate),
        reason=reason,
        phases=phases,
        attempts=(*attempts, Attempt(device=choice.candidate, phases=phases)),
        unknown=dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), why),
    )


def _kind_of(call: Call, device: str) -> DeviceKind:
    """The kind of a device that has just been used, so it is known; the machine may never have been looked at."""
    return call.planner.places.find(device).facts.kind if device != "numpy" else "cpu"


# -- after


def _learn(call: Call, name: str, run: DeviceRun) -> None:
    """Tell the call site and the planner how long a call took on a device, and look for what is worth a trial."""
    site, planner = call.site, call.planner
    with planner.lock:
        # The first call there fills caches, which predictions for later ones know nothing of.
        is_first = not site.has_run_at(name)
        site.chooser.measured(name, run.took, disturbed=run.disturbed, busy=run.busy)
        if run.ran.peak_bytes is not None:
            site.candidates.learn_chunk_memory(name, run.ran.peak_bytes)
        planner.add_seconds(run.took)
        if not is_first:
            is_rough = run.disturbed or run.busy
            planner.learn(name, run.program.key, run.prediction, run.took, is_rough=is_rough)
        has_news = call.cacheable and site.has_something_to_explore(planner)
    if has_news:
        explore(call)
    # Once for each operation and line; the receipt has them each time.
    for operation in run.ran.host_operations:
        if site.first_time(operation) and site.options.fallback == "warn":
            ran_on_host(operation)


def receipt_of(
    ran: Ran,
    phases: Phases,
    *,
    task: str,
    device: str,
    kind: DeviceKind,
    reason: str,
    attempts: tuple[Attempt, ...],
    predicted: float | None,
    how: str | None,
    program: str,
    unknown: dict[str, str],
) -> Receipt:
    """The receipt of a program that ran on a worker; `attempts` are those that failed before."""
    network = ran.network or NetworkUse()
    return Receipt(
        task=task,
        device=device,
        kind=kind,
        reason=reason,
        phases=phases,
        attempts=(*attempts, Attempt(device=device, phases=phases)),
        device_seconds=ran.device_seconds,
        bytes_to_device=ran.bytes_to_device,
        bytes_to_host=ran.bytes_to_host,
        bytes_skipped=ran.bytes_skipped,
        peak_bytes=ran.peak_bytes,
        kernels=ran.kernels,
        driver=ran.driver,
        host_operations=ran.host_operations,
        node=node_of(device),
        network_bytes=network.bytes_sent + network.bytes_received,
        asks=network.asks,
        predicted_seconds=predicted,
        how=how,
        program=program,
        unknown=unknown,
    )


def _merge_phases(mine: Phases, theirs: Phases) -> Phases:
    """The phases of the whole call: those of the device, and the caller's with the device's taken out of `other`."""
    named = theirs.compile + theirs.queue + theirs.write + theirs.run + theirs.read
    return Phases(
        trace=mine.trace,
        plan=mine.plan,
        compile=theirs.compile,
        queue=mine.queue + theirs.queue,
        write=theirs.write,
        run=theirs.run,
        read=theirs.read,
        other=max(0.0, mine.other - named),
    )
