"""One call: record it if that is worth it, choose where it runs, run it there, write the receipt, and learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anygpu.array.array import Array
from anygpu.array.expression import Value
from anygpu.errors import AllocationError, AnyGPUError, DeviceUnavailable, NotRecordable, Unsupported
from anygpu.hardware.device import Kind
from anygpu.notices import fell_back, ran_on_host
from anygpu.plan.choosing import Choice
from anygpu.plan.chunking import Chunks, corrected
from anygpu.plan.plan import Plan
from anygpu.receipts import Attempt, Phases, PhaseTimer, Receipt
from anygpu.runtime.call import Call
from anygpu.runtime.collecting import numpy_receipt, publish
from anygpu.runtime.exploring import explore
from anygpu.runtime.signature import elements
from anygpu.runtime.state import LARGE, Facts, State, no_device
from anygpu.runtime.values import as_arguments, as_ours, ours_among
from anygpu.runtime.ways import InPieces, Whole, carry_out
from anygpu.workers.worker import Ran

#: As `LARGE`, while nobody has looked at the machine yet, and recording may have to load its modules first.
_VERY_LARGE = 1 << 24
#: What recording may take then.
_AT_FIRST = 0.03
#: Calls with anygpu's own arrays on the host before that is done for them.
_CALLS_BEFORE_RECORDING = 2
#: A first call that is predicted to take so long at home may wait for a look at the machine.
_WORTH_LOOKING = 1.0
#: How often the pieces of one call are made smaller, when the device still has no room.
_SMALLER = 3


def explain(call: Call) -> Plan:
    """The plan of the next such call."""
    state = call.state
    if not state.recorded:
        call.record()
    _require_what_was_asked_for(call)
    if state.traced is not None:
        call.consider()
    choice = _choose(call)
    with call.planner.lock:
        return state.plan(choice.sentence, choice.candidate)


def place(call: Call) -> tuple[Any, Receipt]:
    """The value, and what happened."""
    timer = PhaseTimer(call.planner.clock)
    with timer.phase("plan"):
        call.planner.seconds += call.state.hear()
        _learn(call, timer)
        choice = _choose(call)
    if choice.candidate == "numpy" and (call.state.traced is not None or not call.state.ours):
        outcome = _as_it_is(call, choice, timer)
    else:
        outcome = _on_devices(call, choice, timer)
    publish(outcome[1])
    return outcome


# -- before


def _learn(call: Call, timer: PhaseTimer) -> None:
    """Record and consider, as far as that is worth its time now."""
    planner, state, cell = call.planner, call.state, call.state.cell
    if state.settled_for_numpy is not None:
        return
    changed = state.traced is not None and not state.traced.unchanged()
    seconds = 0.0 if state.recorded else _seconds_for_recording(call)
    if changed or seconds is None or seconds >= state.recording:
        begin = planner.clock()
        with timer.phase("trace"):
            call.record(None if changed else seconds)
        if cell.home is not None:
            cell.spend(planner.clock() - begin)
    if state.considered:
        return
    if cell.home is None:
        _require_what_was_asked_for(call)
    if state.traced is None or state.settled_for_numpy is not None:
        return
    if planner.awake or cell.home != "numpy" or _is_hopeless_at_home(call):
        call.consider()
        if cell.home is None:
            _require_that_it_can(call)


def _seconds_for_recording(call: Call) -> float | None:
    """How long recording may take now, at the caller's cost; `None` for as long as it likes."""
    cell = call.state.cell
    if cell.home != "numpy":
        return None
    if not call.lasting:
        return 0.0
    awake = call.planner.awake
    if not cell.calls:
        size = elements(call.arguments, call.keywords)
        return _AT_FIRST if size >= (LARGE if awake else _VERY_LARGE) else 0.0
    if call.state.ours:
        # Once it is recorded it can run on NumPy's arrays, which takes a part of what lazy ones take.
        return _AT_FIRST if cell.calls >= _CALLS_BEFORE_RECORDING else 0.0
    return cell.allowance if awake and (cell.estimate(cell.home) or 0.0) > call.planner.floor else 0.0


def _is_hopeless_at_home(call: Call) -> bool:
    """Whether the first call would take so long at home that looking for devices is worth waiting for."""
    if call.state.cell.calls:
        return False
    return call.planner.expected(call.state.program, call.planner.numpy)[1] >= _WORTH_LOOKING


def _require_what_was_asked_for(call: Call) -> None:
    """Before any work: is there such a device, and can the function run on any?"""
    state, options = call.state, call.state.options
    if state.cell.home is not None:
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
    if not state.facts:
        refused = state.refused[0]
        error = DeviceUnavailable(str(state.options.preference), [refused.sentence])
        _settle_for_numpy(state, error, refused.sentence)
    elif state.options.fallback == "raise" and all(facts.lacks for facts in state.facts.values()):
        name, facts = next(iter(state.facts.items()))
        raise Unsupported("way to do all of it", name, instead=str(facts.lacks))


def _settle_for_numpy(state: State, why: AnyGPUError, sentence: str | None = None, missing: str = "") -> None:
    if state.options.fallback == "raise":
        raise why
    # An error lists every device; in a warning and in a receipt the first line says enough, with what is missing.
    first, *more = [sentence] if sentence is not None else str(why).splitlines()
    if state.options.fallback == "warn":
        hint = f" {missing or 'Run `anygpu doctor` to see why.'}" if more else ""
        fell_back(f"{state.task} runs on NumPy instead: {first}{hint}", cause=(state.task, first))
    state.settled_for_numpy = first


def _choose(call: Call) -> Choice:
    state = call.state
    if state.settled_for_numpy is not None:
        return Choice("numpy", "only", f"nothing else can run it: {state.settled_for_numpy}")
    with call.planner.lock:
        choice = state.cell.choose(state.waiting(call.planner.waiting()))
    if state.not_recorded is not None and choice.candidate == "numpy":
        return choice._replace(sentence=f"it cannot be recorded as a program: {state.not_recorded.rstrip('.')}.")
    return choice


# -- during


def _as_it_is(call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()) -> tuple[Any, Receipt]:
    """The user's own function on the user's own arrays. What it raises is the user's business."""
    state, cell, planner = call.state, call.state.cell, call.planner
    predicted = cell.estimate("numpy")
    with timer.phase("run"):
        value = state.at_home(*call.arguments, **call.keywords)
    if cell.home == "numpy":
        with timer.phase("plan"):
            took = timer.seconds("run")
            with planner.lock:
                cell.measured("numpy", took)
                planner.seconds += took
            state.reason = choice.sentence
            if call.lasting:
                explore(call)
    return value, numpy_receipt(state.task, choice.sentence, timer.finish(), predicted, attempts)


def _on_devices(call: Call, choice: Choice, timer: PhaseTimer) -> tuple[Any, Receipt]:
    state, planner = call.state, call.planner
    attempts: list[Attempt] = []
    name = choice.candidate
    while True:
        begin = planner.clock()
        failure: AnyGPUError | None = None
        try:
            return _on_device(call, name, choice, timer, tuple(attempts))
        except AnyGPUError as error:
            # The frames of the failed attempt hold its arrays; they must go before anything else is tried.
            failure = error.with_traceback(None)
        spent = Phases(other=planner.clock() - begin)
        attempts.append(Attempt(device=name, phases=spent, error=type(failure).__name__, message=str(failure)))
        if _cut_smaller(call, name, failure, attempts):
            continue
        with planner.lock:
            state.cell.failed(name, f"{name} failed: {_one_line(str(failure))}")
        following = _next_best(state, {attempt.device for attempt in attempts})
        if state.options.fallback == "raise" or following is None:
            raise failure
        if state.options.fallback == "warn":
            sentence = f"{state.task} runs on {following} instead of {name}: {_one_line(str(failure))}"
            fell_back(sentence, cause=(state.task, name, type(failure).__name__))
        choice = Choice(following, "known", f"{name} failed ({type(failure).__name__}), and it was next.")
        name = following
        if name == "numpy":
            return _as_it_is(call, choice, timer, tuple(attempts))


def _cut_smaller(call: Call, name: str, failure: AnyGPUError, attempts: Sequence[Attempt]) -> bool:
    """After a lack of memory: the same in pieces, or in smaller ones; whether that can be tried."""
    state = call.state
    facts = state.facts.get(name)
    tried = sum(attempt.device == name for attempt in attempts)
    if not isinstance(failure, AllocationError) or facts is None or tried > _SMALLER:
        return False
    if isinstance(facts.way, InPieces):
        room = facts.way.chunks.peak_bytes // 2
    elif isinstance(facts.way, Whole) and facts.plain is not None:
        room = min(failure.limit or facts.plain.peak_bytes, facts.plain.peak_bytes) // 2
    else:
        return False
    chunks = state.chunks(name, room)
    if not isinstance(chunks, Chunks):
        return False
    state.facts[name] = facts._replace(way=InPieces(name, chunks))
    return True


def _next_best(state: State, tried: set[str]) -> str | None:
    left = [name for name in state.facts if name not in tried and not state.cell.tracks[name].suspended]
    if left:
        return min(left, key=lambda name: state.cell.estimate(name) or float("inf"))
    return "numpy" if "numpy" not in tried else None


def _on_device(
    call: Call, name: str, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    state, planner, cell = call.state, call.planner, call.state.cell
    traced = state.traced
    if traced is None:
        return _lazily(call, choice, timer)
    facts = state.facts[name]
    predicted = cell.estimate(name)
    keep = state.ours and isinstance(facts.way, Whole)
    values = traced.inputs(call.arguments, call.keywords)
    worker_of = planner.worker_of(state.options)
    begin = planner.clock()
    with planner.using(facts.way.devices, predicted or 0.0):
        # A worker of another home does not know the arrays of this one.
        resident = name if keep and state.options.isolation is None else None
        given = as_arguments(values, state.program, resident)
        ran = carry_out(facts.way, state.program, given, worker_of, keep=keep, timeout=state.options.timeout)
    if keep:
        place = planner.places.find(name, isolation=state.options.isolation)
        results: list[Any] = [
            Array(Value.on(place, buffer, spec))
            for buffer, spec in zip(ran.results, state.program.results, strict=True)
        ]
    else:
        results = ran.results
    value = traced.rebuild(results)
    if state.ours and not keep:
        value = as_ours(value)
    took = planner.clock() - begin - ran.phases.compile
    if keep and cell.home == "numpy":
        # Whoever looks at the result pays for the way back; at home nobody does.
        took += planner.reading(name, sum(spec.nbytes for spec in state.program.results))
    with timer.phase("plan"):
        with planner.lock:
            cell.measured(name, took)
            planner.seconds += took
            if facts.plain is not None:
                planner.corrections.learn(name, state.kind, facts.plain.seconds, took)
            _learn_pieces(state, name, facts, ran)
        if call.lasting:
            explore(call)
        _tell_host_operations(state, ran)
    unknown = dict(ran.unknown)
    if predicted is None:
        unknown["predicted_seconds"] = "nothing was known of such a call"
    phases = _whole(timer.finish(), ran.phases)
    receipt = Receipt(
        task=state.task,
        device=name,
        kind=_kind_of(call, facts.way.devices[-1]),
        reason=choice.sentence,
        phases=phases,
        attempts=(*attempts, Attempt(device=name, phases=phases)),
        device_seconds=ran.device_seconds,
        bytes_to_device=ran.bytes_to_device,
        bytes_to_host=ran.bytes_to_host,
        bytes_skipped=ran.bytes_skipped,
        peak_bytes=ran.peak_bytes,
        kernels=ran.kernels,
        driver=ran.driver,
        host_operations=ran.host_operations,
        predicted_seconds=predicted,
        how=facts.way.how,
        program=state.program.key,
        unknown=unknown,
    )
    return value, receipt


def _lazily(call: Call, choice: Choice, timer: PhaseTimer) -> tuple[Any, Receipt]:
    """anygpu's own arrays, and a function that is not recorded: it is called with them, and they compute as ever."""
    state = call.state
    with timer.phase("run"):
        value = call.function(*call.arguments, **call.keywords)
        for array in ours_among((value,), {}):
            array.compute()
    phases = timer.finish()
    why = "the function was called with arrays on the device, which does not count"
    with call.planner.lock:
        state.cell.measured(choice.candidate, phases.run)
        call.planner.seconds += phases.run
    if call.lasting and state.not_recorded is None:
        explore(call)
    reason = choice.sentence
    if state.not_recorded is not None:
        reason = f"its arguments are there, and it cannot be recorded: {state.not_recorded}"
    return value, Receipt(
        task=state.task,
        device=choice.candidate,
        kind=_kind_of(call, choice.candidate),
        reason=reason,
        phases=phases,
        attempts=(Attempt(device=choice.candidate, phases=phases),),
        unknown=dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), why),
    )


def _kind_of(call: Call, device: str) -> Kind:
    """Of a device that has just been used, so that looking for it is no news."""
    found = call.planner.machine().device(device) if device != "numpy" else None
    return found.kind if found is not None else "cpu"


def _whole(mine: Phases, theirs: Phases) -> Phases:
    """What the caller measured, with the device's phases taken out of what it could not name."""
    named = theirs.compile + theirs.queue + theirs.write + theirs.run + theirs.read
    return Phases(
        trace=mine.trace,
        plan=mine.plan,
        compile=theirs.compile,
        queue=theirs.queue,
        write=theirs.write,
        run=theirs.run,
        read=theirs.read,
        other=max(0.0, mine.other - named),
    )


def _learn_pieces(state: State, name: str, facts: Facts, ran: Ran) -> None:
    if isinstance(facts.way, InPieces) and ran.peak_bytes is not None:
        old = state.chunk_corrections.get(name, 1.0)
        new = corrected(old, facts.way.chunks.peak_bytes, ran.peak_bytes)
        state.chunk_corrections[name] = new
        if new > old * 1.1:
            state.considered = False


def _tell_host_operations(state: State, ran: Ran) -> None:
    """Once for each operation and line; the receipt has them each time."""
    for operation in ran.host_operations:
        if operation not in state.told:
            state.told.add(operation)
            if state.options.fallback == "warn":
                ran_on_host(operation)


def _one_line(text: str) -> str:
    return " ".join(part.strip(" -") for part in text.splitlines())
