"""Running one call where it was decided to run, writing its receipt, and learning from it."""

from __future__ import annotations

from typing import Any

from anygpu.array.array import Array
from anygpu.array.expression import Value
from anygpu.hardware.device import Kind
from anygpu.notices import ran_on_host
from anygpu.plan.choosing import Choice
from anygpu.plan.chunking import corrected
from anygpu.receipts import Attempt, Phases, PhaseTimer, Receipt
from anygpu.runtime.call import Call
from anygpu.runtime.collecting import numpy_receipt
from anygpu.runtime.exploring import explore
from anygpu.runtime.state import Facts, State
from anygpu.runtime.values import as_arguments, as_ours, ours_among
from anygpu.runtime.ways import InPieces, Whole, carry_out
from anygpu.workers.worker import Ran


def as_it_is(call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()) -> tuple[Any, Receipt]:
    """The user's own function on the user's own arrays. What it raises is the user's business."""
    state, cell, planner = call.state, call.state.cell, call.planner
    predicted = cell.estimate("numpy")
    with timer.phase("run"):
        value = state.at_home(call.function)(*call.arguments, **call.keywords)
    if cell.home == "numpy":
        with timer.phase("plan"):
            took = timer.seconds("run")
            with planner.lock:
                cell.measured("numpy", took)
                planner.seconds += took
                # For the calls after this one, of which nothing is thought.
                state.reason = cell.choose().sentence
            if call.lasting:
                explore(call)
    return value, numpy_receipt(state.task, choice.sentence, timer.finish(), predicted, attempts)


def run_at(call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()) -> tuple[Any, Receipt]:
    """The value, and what happened; `attempts` are those that failed before."""
    name = choice.candidate
    if name == "numpy" and (call.state.traced is not None or not call.state.ours):
        return as_it_is(call, choice, timer, attempts)
    return on_device(call, name, choice, timer, attempts)


def on_device(
    call: Call, name: str, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    """The program, as it was decided for that device. Raises what the device does."""
    state, planner, cell = call.state, call.planner, call.state.cell
    traced = state.traced
    if traced is None:
        return _lazily(call, choice, timer, attempts)
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
        ran = carry_out(
            facts.way, state.program, given, worker_of, keep=keep, timeout=call.timeout, between=call.between
        )
    if keep:
        place = planner.places.find(name, isolation=state.options.isolation)
        buffers = place.keep(state.program, given, ran.results)
        results: list[Any] = [
            Array(Value.on(place, buffer, spec)) for buffer, spec in zip(buffers, state.program.results, strict=True)
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
    receipt = receipt_of(
        ran,
        phases,
        task=state.task,
        device=name,
        kind=_kind_of(call, facts.way.devices[-1]),
        reason=choice.sentence,
        attempts=attempts,
        predicted=predicted,
        how=facts.way.how,
        program=state.program.key,
        unknown=unknown,
    )
    return value, receipt


def receipt_of(
    ran: Ran,
    phases: Phases,
    *,
    task: str,
    device: str,
    kind: Kind,
    reason: str,
    attempts: tuple[Attempt, ...],
    predicted: float | None,
    how: str | None,
    program: str,
    unknown: dict[str, str],
) -> Receipt:
    """Of a program that ran on a worker; `attempts` are those that failed before."""
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
        predicted_seconds=predicted,
        how=how,
        program=program,
        unknown=unknown,
    )


def _lazily(call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...]) -> tuple[Any, Receipt]:
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
        attempts=(*attempts, Attempt(device=choice.candidate, phases=phases)),
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
        queue=mine.queue + theirs.queue,
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
