"""One call: record it if that is worth it, choose where it runs, run it there, write the receipt, and learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anygpu.errors import AnyGPUError, DeviceUnavailable, NotRecordable, Unsupported, text_of
from anygpu.fallback_warnings import warn_fallback
from anygpu.placement.call import Call
from anygpu.placement.call_site import LARGE, CallSite, no_device
from anygpu.placement.execute import run_at
from anygpu.placement.explore import why_not_elsewhere
from anygpu.placement.receipt_log import publish
from anygpu.placement.retry import LockedTask, handle_failure, next_choice, refusal, task_for
from anygpu.placement.trust import code_of
from anygpu.placement.values import largest_of
from anygpu.plan.choosing import Choice
from anygpu.plan.plan import Plan
from anygpu.receipts import Attempt, Phases, PhaseTimer, Receipt
from anygpu.tasks.machine import Requeue, Started

#: As `LARGE`, while nobody has looked at the machine yet, and recording may have to load its modules first.
_VERY_LARGE = 1 << 24
#: What recording may take then.
_AT_FIRST = 0.03
#: Calls with anygpu's own arrays on the host before that is done for them.
_CALLS_BEFORE_RECORDING = 2


def explain(call: Call) -> Plan:
    """The plan of the next such call."""
    state = call.state
    if not state.recorded:
        call.record(raises=True)
        state = call.state
    _require_what_was_asked_for(call)
    if state.traced is not None:
        call.consider()
    choice = choose(call)
    with call.planner.lock:
        return state.plan(choice.sentence, choice.candidate)


def place(call: Call) -> tuple[Any, Receipt]:
    """The value, and what happened."""
    timer = PhaseTimer(call.planner.clock)
    warning = call.state.take_warning()
    if warning is not None:
        raise warning
    with timer.phase("plan"):
        call.planner.add_seconds(call.state.flush_timings())
        trace_and_predict(call, timer)
        choice = choose(call)
        if choice.checks is not None:
            call.state.chooser.begin_sample(choice.checks)
    outcome = _run_with_retries(call, choice, timer)
    publish(outcome[1])
    return outcome


# -- before


def trace_and_predict(call: Call, timer: PhaseTimer) -> None:
    """Record and consider, as far as that is worth its time now."""
    planner, state, chooser = call.planner, call.state, call.state.chooser
    if state.fallback_reason is not None:
        return
    changed = state.traced is not None and call.given() is None and not call.find_program()
    seconds = 0.0 if state.recorded else _seconds_for_recording(call)
    if changed or seconds is None or seconds >= state.recording:
        begin = planner.clock()
        with timer.phase("trace"):
            call.record(None if changed else seconds)
        state, chooser = call.state, call.state.chooser  # recording may have given the call one of its own
        if chooser.baseline is not None:
            chooser.spend(planner.clock() - begin)
    if state.evaluated:
        return
    if chooser.baseline is None:
        _require_what_was_asked_for(call)
    if state.traced is None or state.fallback_reason is not None:
        return
    if planner.awake or chooser.baseline != "numpy":
        call.consider()
        if chooser.baseline is None:
            _require_that_it_can(call)


def _seconds_for_recording(call: Call) -> float | None:
    """How long recording may take now, at the caller's cost; `None` for as long as it likes."""
    chooser = call.state.chooser
    if chooser.baseline != "numpy":
        return None
    if not call.cacheable:
        return 0.0
    awake = call.planner.awake
    if not chooser.calls:
        size = largest_of(call.arguments, call.keywords)
        return _AT_FIRST if size >= (LARGE if awake else _VERY_LARGE) else 0.0
    if call.state.has_anygpu_arrays:
        # Once it is recorded it can run on NumPy's arrays, which takes a part of what lazy ones take.
        return _AT_FIRST if chooser.calls >= _CALLS_BEFORE_RECORDING else 0.0
    ready = call.planner.ready_to_record
    return chooser.allowance if ready and (chooser.estimate(chooser.baseline) or 0.0) > call.planner.floor else 0.0


def _require_what_was_asked_for(call: Call) -> None:
    """Before any work: is there such a device, and can the function run on any?"""
    state, options = call.state, call.state.options
    if state.chooser.baseline is not None:
        return
    missing = no_device(call.planner, options)
    if missing is not None:
        # Refusals of devices come first; what comes after them is not there, with what to do about it.
        others = missing.refusals[len(call.planner.machine().devices) :]
        _settle_for_numpy(state, missing, missing=others[0] if others else "")
    elif state.not_recorded is not None:
        _settle_for_numpy(state, NotRecordable(state.task, state.not_recorded))


def _require_that_it_can(call: Call) -> None:
    """Before any work: can one of the devices that were asked for do all of it?"""
    state = call.state
    if not state.predictions:
        refused = state.refused[0]
        error = DeviceUnavailable(str(state.options.preference), [refused.sentence])
        _settle_for_numpy(state, error, refused.sentence)
    elif state.options.fallback == "raise" and all(facts.lacks for facts in state.predictions.values()):
        name, facts = next(iter(state.predictions.items()))
        message = f"{name} cannot run the whole program."
        raise Unsupported("the whole program", name, instead=str(facts.lacks), message=message)


def _settle_for_numpy(state: CallSite, why: AnyGPUError, sentence: str | None = None, missing: str = "") -> None:
    if state.options.fallback == "raise":
        raise why
    # An error lists every device; in a warning and in a receipt the first line says enough, with what is missing.
    first, *more = [sentence] if sentence is not None else str(why).splitlines()
    if state.options.fallback == "warn":
        hint = f" {missing or 'Run `anygpu doctor` to see why.'}" if more else ""
        warn_fallback(f"{state.task} runs on NumPy instead: {first}{hint}", cause=(state.task, first))
    state.fall_back(first)


def choose(call: Call, waiting: Mapping[str, float] | None = None) -> Choice:
    """Where it should run now; `waiting` are the seconds that devices are busy, else it is as the planner knows."""
    state = call.state
    if state.fallback_reason is not None:
        return Choice("numpy", "only", f"nothing else can run it: {state.fallback_reason}")
    with call.planner.lock:
        pinned = call.planner.pinned.get(code_of(call.function)) if call.planner.pinned else None
        if pinned is not None and state.chooser.pinned is None:
            state.pin(pinned)
        choice = state.chooser.choose(state.waiting(call.planner.waiting()) if waiting is None else waiting)
    if choice.candidate == "numpy" and choice.kind == "baseline" and state.traced is None and state.chooser.calls:
        return choice._replace(sentence=why_not_elsewhere(call.planner, state))
    return choice


# -- during


def _run_with_retries(call: Call, choice: Choice, timer: PhaseTimer) -> tuple[Any, Receipt]:
    """Run it, and when a device fails mend that or go on to the next, as long as the caller allows."""
    planner = call.planner
    attempts: list[Attempt] = []
    life: LockedTask | None = None
    while True:
        name = choice.candidate
        begin = planner.clock()
        try:
            return run_at(call, choice, timer, tuple(attempts))
        except AnyGPUError as error:
            if name == "numpy":  # raised inside the user's own function
                raise
            # The frames of the failed attempt hold its arrays; they must go before anything else is tried.
            failure = error.with_traceback(None)
        spent = Phases(other=planner.clock() - begin)
        attempts.append(Attempt(device=name, phases=spent, error=type(failure).__name__, message=text_of(failure)))
        if life is None:
            life = LockedTask(task_for(call, name))
        life.tell(Started(name, 0))
        following = handle_failure(call, life, name, failure)
        if not isinstance(following, Requeue):
            raise refusal(call, life.task, following, failure)
        choice = next_choice(call, life.task, following.device, name, failure)
