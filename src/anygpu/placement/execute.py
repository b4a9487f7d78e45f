"""Running one call where it was decided to run, writing its receipt, and learning from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.errors import AnyGPUError
from anygpu.fallback_warnings import ran_on_host
from anygpu.hardware.device import DeviceKind
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.check import compared, judge_returned, learn_flags, pin
from anygpu.placement.executing import Executing
from anygpu.placement.explore import explore
from anygpu.placement.floating_point import Filters, is_finite, is_shown, loud, modes_now, warns
from anygpu.placement.receipt_log import numpy_receipt
from anygpu.placement.strategies import SingleDevice, execute
from anygpu.placement.trust import Sample, sample_of
from anygpu.placement.values import anygpu_arrays_in, as_arguments, to_anygpu
from anygpu.plan.choosing import Choice
from anygpu.receipts import Attempt, Phases, PhaseTimer, Receipt
from anygpu.workers.worker import Ran, Worker


def run_untraced(
    call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()
) -> tuple[Any, Receipt]:
    """The user's own function on the user's own arrays. What it raises is the user's business."""
    state, chooser, planner = call.state, call.state.chooser, call.planner
    predicted = chooser.estimate("numpy")
    with timer.phase("run"):
        value = state.run_on_host(call.function, call.arguments, call.keywords)
    if chooser.baseline == "numpy":
        with timer.phase("plan"):
            took = timer.seconds("run")
            with planner.lock:
                chooser.measured("numpy", took)
                planner.add_seconds(took)
            state.trust.heard = Filters.now()
            if call.cacheable:
                explore(call, value, checks=choice.checks)
    return value, numpy_receipt(state.task, choice.sentence, timer.finish(), predicted, attempts)


def run_at(call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...] = ()) -> tuple[Any, Receipt]:
    """The value, and what happened; `attempts` are those that failed before."""
    name = choice.candidate
    if name == "numpy" and (call.state.traced is not None or not call.state.has_anygpu_arrays):
        return run_untraced(call, choice, timer, attempts)
    try:
        return on_device(call, name, choice, timer, attempts)
    except AnyGPUError:
        raise
    except Exception as error:
        # The program's own error, such as a position outside of its axis.
        if call.state.chooser.baseline != "numpy" or call.state.has_anygpu_arrays:
            raise
        kind = type(error).__name__
    return _at_home_instead(call, f"{name} met a {kind}, which NumPy raises with its own message.", timer, attempts)


def on_device(
    call: Call, name: str, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    """The program, as it was decided for that device. Raises what the device does."""
    state, planner, chooser = call.state, call.planner, call.state.chooser
    traced = state.traced
    if traced is None:
        return _run_on_lazy_arrays(call, choice, timer, attempts)
    facts = state.predictions[name]
    predicted = chooser.estimate(name)
    keep = state.has_anygpu_arrays and isinstance(facts.way, SingleDevice) and state.options.check != "always"
    values = call.given()
    if values is None:  # another thread has recorded it anew for a call of its own
        return run_untraced(call, choice, timer, attempts)
    workers = [planner.worker(device, state.options) for device in facts.way.devices]
    modes = modes_now()
    why = _why_not_there(call, name, values, workers, modes)
    if why is not None:
        return _at_home_instead(call, why, timer, attempts)
    begin = planner.clock()
    with planner.using(facts.way.devices, predicted or 0.0):
        # A worker of another home does not know the arrays of this one.
        resident = name if keep and state.options.isolation is None else None
        given = as_arguments(values, state.program, resident)
        ran = execute(
            facts.way,
            state.program,
            given,
            dict(zip(facts.way.devices, workers, strict=True)).__getitem__,
            keep=keep,
            timeout=call.timeout,
            between=call.between,
        )
    if keep:
        place = planner.places.find(name, isolation=state.options.isolation)
        buffers = place.track(state.program, given, ran.results)
        results: list[Any] = [
            Array(Value.on(place, buffer, spec)) for buffer, spec in zip(buffers, state.program.results, strict=True)
        ]
    else:
        results = ran.results
        if state.options.check == "always":
            wrong = _always_checked(call, name, results, given)
            if wrong is not None:
                return _at_home_instead(call, wrong, timer, attempts)
        elif not state.has_anygpu_arrays and warns(modes) and _needs_numpys_word(call, results, given):
            if chooser.baseline is not None:
                return _after_numpy(call, name, results, given, timer, attempts)
            hear_numpy(call)
    value = traced.rebuild(results, values)
    if state.has_anygpu_arrays and not keep:
        value = to_anygpu(value)
    elif not state.has_anygpu_arrays:
        value = state.trust.in_order(traced, values, value)
    took = planner.clock() - begin - ran.phases.compile
    if keep and chooser.baseline == "numpy":
        # Whoever looks at the result pays for the way back; at home nobody does.
        took += planner.reading(name, sum(spec.nbytes for spec in state.program.results))
    with timer.phase("plan"):
        with planner.lock:
            chooser.measured(name, took)
            planner.add_seconds(took)
            if facts.plain is not None:
                planner.corrections.learn(name, state.kind, facts.plain.seconds, took)
            state.learn_chunk_memory(name, ran.peak_bytes)
        if call.cacheable:
            explore(call)
        _tell_host_operations(state, ran)
    unknown = dict(ran.unknown)
    if predicted is None:
        unknown["predicted_seconds"] = "there was no history of such calls"
    phases = _merge_phases(timer.finish(), ran.phases)
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


def _is_automatic(call: Call, name: str) -> bool:
    """Whether the caller has left it to anygpu where it runs. What runs where its arguments are was asked for."""
    return call.state.chooser.baseline not in (None, name)


def _why_not_there(
    call: Call, name: str, values: Sequence[Any], workers: Sequence[Worker], modes: Mapping[str, str]
) -> str | None:
    """Why a call that was chosen for a device has to run at home all the same."""
    state, chooser = call.state, call.state.chooser
    if not _is_automatic(call, name):
        return None
    found = loud(modes)
    if found is not None and chooser.baseline == "numpy":
        return found
    if chooser.checked and not state.trust.agreed(state.program.key, state.predictions[name].way, workers):
        with call.planner.lock:
            chooser.distrust(name)
        return f"{name} has not been compared with NumPy since it was opened or the function was traced."
    if state.has_anygpu_arrays or chooser.baseline != "numpy":
        return None
    if chooser.checked and not state.trust.knows_order(values):
        return "arguments with this memory layout are new, and NumPy decides the layout of the result."
    flags = state.trust.flags
    if flags and warns(modes) and is_shown(flags, _module_of(call), state.trust.heard):
        flag = min(flags)
        return f'NumPy warns of "{flag.kind} encountered in {flag.operation}" here, and the warning filters show it.'
    return None


def _module_of(call: Call) -> str:
    return str(getattr(call.function, "__module__", None) or "")


def _at_home_instead(call: Call, why: str, timer: PhaseTimer, attempts: tuple[Attempt, ...]) -> tuple[Any, Receipt]:
    home = call.state.chooser.baseline or "numpy"
    return run_at(call, Choice(home, "baseline", why), timer, attempts)


def _needs_numpys_word(call: Call, results: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether NumPy might warn of this result, or raise, and its user has not seen that yet."""
    state = call.state
    if not state.may_warn or is_finite(results):
        return False
    trust = state.trust
    if call.state.chooser.baseline is None and loud(modes_now()) is not None:
        return True
    if trust.flags:
        # Known to warn. Where it would be shown again, an automatic call has not come here.
        return state.chooser.baseline is None and is_shown(trust.flags, _module_of(call), trust.heard)
    return not trust.is_usual(given)


def _after_numpy(
    call: Call,
    name: str,
    results: Sequence[Any],
    given: Sequence[Any],
    timer: PhaseTimer,
    attempts: tuple[Attempt, ...],
) -> tuple[Any, Receipt]:
    """A result with NaN or infinity, computed again on NumPy, which warns or raises at the user's own line."""
    state = call.state
    assert state.traced is not None
    why = f"the result of {name} is not finite; NumPy computes it again, so that its warnings appear."
    value, receipt = run_untraced(call, Choice("numpy", "baseline", why), timer, attempts)
    state.trust.heard = Filters.now()
    sample = sample_of(state.traced, given, value, ours=False)
    call.planner.background.submit(
        partial(judge_returned, call.planner, state, name, call.function, sample, list(results))
    )
    return value, receipt


def hear_numpy(call: Call) -> None:
    """For a device that was asked for: NumPy warns or raises as it always does, and the device's result stays."""
    value = call.state.run_on_host(call.function, call.arguments, call.keywords)
    call.state.trust.heard = Filters.now()
    learn_from(call, value)


def learn_from(call: Call, value: Any) -> None:
    """What NumPy warned of in a call that has just run there, found out in the background."""
    state = call.state
    given = call.given()
    if state.traced is None or given is None:
        return
    sample = sample_of(state.traced, as_arguments(given, state.traced.program, None), value, ours=False)
    call.planner.background.submit(partial(learn_flags, state, sample))


def _always_checked(call: Call, name: str, results: Sequence[Any], given: Sequence[Any]) -> str | None:
    """Compare this very result with NumPy's. Why NumPy's has to be returned, or `None`."""
    state = call.state
    assert state.traced is not None
    arrays = [np.asarray(each) for each in given]
    expected = None if state.has_anygpu_arrays else state.run_on_host(call.function, call.arguments, call.keywords)
    sample = Sample(state.traced, arrays, state.traced.without_arguments(expected), state.has_anygpu_arrays)
    judgement = compared(sample, results)
    if judgement.verdict == "agree":
        return None
    if judgement.difference is None:
        return f"{name} cannot be compared with NumPy here: {judgement.why}."
    found = pin(call.planner, state, name, call.function, sample, judgement.difference, before_use=True)
    if state.options.fallback == "raise" and state.chooser.baseline is None:
        raise found.warning()
    return found.reason


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


def _run_on_lazy_arrays(
    call: Call, choice: Choice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt]:
    """anygpu's own arrays, and a function that is not traced: it is called with them, and they compute as ever."""
    state = call.state
    with timer.phase("run"):
        with Executing():
            value = call.function(*call.arguments, **call.keywords)
        for array in anygpu_arrays_in((value,), {}):
            array.compute()
    phases = timer.finish()
    why = "not measured: the function ran eagerly on device arrays"
    with call.planner.lock:
        state.chooser.measured(choice.candidate, phases.run)
        call.planner.add_seconds(phases.run)
    if call.cacheable and state.not_recorded is None:
        explore(call)
    reason = choice.sentence
    if state.not_recorded is not None:
        reason = f"its arguments are there, and it cannot be traced: {state.not_recorded}"
    return value, Receipt(
        task=state.task,
        device=choice.candidate,
        kind=_kind_of(call, choice.candidate),
        reason=reason,
        phases=phases,
        attempts=(*attempts, Attempt(device=choice.candidate, phases=phases)),
        unknown=dict.fromkeys(("device_seconds", "peak_bytes", "kernels", "predicted_seconds"), why),
    )


def _kind_of(call: Call, device: str) -> DeviceKind:
    """Of a device that has just been used, so that looking for it is no news."""
    found = call.planner.machine().device(device) if device != "numpy" else None
    return found.kind if found is not None else "cpu"


def _merge_phases(mine: Phases, theirs: Phases) -> Phases:
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


def _tell_host_operations(state: CallSite, ran: Ran) -> None:
    """Once for each operation and line; the receipt has them each time."""
    for operation in ran.host_operations:
        if state.first_time(operation) and state.options.fallback == "warn":
            ran_on_host(operation)
