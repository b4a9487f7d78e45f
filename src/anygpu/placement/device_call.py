"""A call on a device: whether its result may stand for NumPy's, the run, and what is learnt from it.

What was chosen may not be used after all: `Instead` says why, and the call runs on its baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.trace.traced import CallInputs
from anygpu.errors import Unsupported
from anygpu.fallback_warnings import ran_on_host
from anygpu.hardware.device import DeviceKind, node_of
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.candidates import Prediction
from anygpu.placement.check import check_now, hear_numpy, judge_returned
from anygpu.placement.explore import explore
from anygpu.placement.machine import lacking
from anygpu.placement.strategies import SingleDevice, Strategy, as_arguments, execute
from anygpu.placement.trust import is_finite, is_shown, loud, modes_now, number_kinds, sample_of, warns
from anygpu.placement.values import to_anygpu
from anygpu.plan.candidate_history import DeviceChoice
from anygpu.program.graph import Program
from anygpu.receipts import Attempt, NetworkUse, Phases, PhaseTimer, Receipt
from anygpu.workers.worker import Ran, Worker


class Instead(NamedTuple):
    """Why a call runs on its baseline instead of the device that was chosen for it."""

    why: str
    #: The device that is compared with the result, because numbers among the arguments are of a new kind.
    checks: str | None = None
    #: Whether it has to be NumPy, whatever the baseline is.
    on_numpy: bool = False
    #: Called with NumPy's value, with which the device's is then compared in the background.
    judge: Callable[[Any], None] | None = None


def run_on_device(
    call: Call, choice: DeviceChoice, timer: PhaseTimer, attempts: tuple[Attempt, ...]
) -> tuple[Any, Receipt] | Instead:
    """Run the program as it was decided for that device. Raises what the device does."""
    site, planner, name = call.site, call.planner, choice.candidate
    values, prediction = call.given(), site.predictions.get(name)
    if values is None or prediction is None:  # another thread has traced it anew, or given that up
        return Instead(choice.sentence, on_numpy=True)
    traced, way = call.traced, prediction.way
    workers = [planner.worker(device, site.options) for device in way.devices]
    if site.options.fallback == "raise" and node_of(name) is not None:
        _require_that_it_can(name, workers[-1], traced.program)
    modes = modes_now()
    instead = _why_not_there(call, name, way, values, [worker.generation for worker in workers], modes)
    if instead is not None:
        return instead
    predicted = site.estimate(name)
    begin, disturbed = planner.clock(), planner.pace.exploring
    conditions = planner.watch.begin(begin)
    given, ran = _execute(call, name, way, values, workers, predicted)
    value = _value(call, name, way, values, given, ran, modes)
    if isinstance(value, Instead):
        return value
    end = planner.clock()
    took, busy = end - begin - ran.phases.compile, planner.watch.end(conditions, end)
    if ran.overlapped:
        # What it waited for another call is no part of what it takes.
        took, disturbed = took - ran.phases.queue, True
    if _stays_there(call, way) and site.chooser.baseline == "numpy":
        # The first use of the result pays for the way back, which results on NumPy do not need.
        took += planner.reading(name, sum(spec.nbytes for spec in traced.program.results))
    with timer.phase("plan"):
        _learn(call, name, prediction, ran, took, disturbed=disturbed, busy=busy)
    unknown = dict(ran.unknown)
    if predicted is None:
        unknown["predicted_seconds"] = "there was no history of such calls"
    return value, receipt_of(
        ran,
        _merge_phases(timer.finish(), ran.phases),
        task=site.task,
        device=name,
        kind=prediction.kind,
        reason=choice.sentence,
        attempts=attempts,
        predicted=predicted,
        how=way.how,
        program=traced.program.key,
        unknown=unknown,
    )


# -- before


def _require_that_it_can(name: str, worker: Worker, program: Program) -> None:
    """A device of another machine is asked only when a call goes there; `fallback="raise"` wants all of it there."""
    lack = lacking(lambda _: worker, name, program)
    if lack is not None:
        raise Unsupported("the whole program", name, instead=lack, message=f"{name} cannot run the whole program.")


def _why_not_there(
    call: Call, name: str, way: Strategy, values: Sequence[Any], generations: Sequence[int], modes: Mapping[str, str]
) -> Instead | None:
    """Why a call that was chosen for a device has to run on the baseline all the same."""
    site, trust, chooser = call.site, call.site.trust, call.site.chooser
    if chooser.baseline in (None, name):  # What runs where its arguments are, or was asked for, is not automatic.
        return None
    found = loud(modes)
    if found is not None and chooser.baseline == "numpy":
        return Instead(found)
    if chooser.checked and not trust.agreed(call.traced.program.key, name, way, generations):
        with call.planner.lock:
            site.distrust(name)
        return Instead(f"{name} has not been compared with NumPy since it was opened or the function was traced.")
    if site.has_anygpu_arrays or chooser.baseline != "numpy":
        return None
    if chooser.checked and not trust.knows_order(values):
        return Instead("arguments with this memory layout are new, and NumPy decides the layout of the result.")
    flags = trust.flags
    if flags and warns(modes) and is_shown(flags, _module_of(call), trust.heard):
        flag = min(flags)
        warning = f"{flag.kind} encountered in {flag.operation}"
        return Instead(f'NumPy warns of "{warning}" here, and the warning filters show it.')
    if chooser.checked and not _knows_numbers(call, name, values):
        return Instead(f"numbers of this kind are new, and {name} has not been compared with NumPy for them.", name)
    return None


def _module_of(call: Call) -> str:
    return str(getattr(call.function, "__module__", None) or "")


def _knows_numbers(call: Call, name: str, values: Sequence[Any]) -> bool:
    """Whether the device was compared with NumPy for numbers of the kinds that are among the arguments."""
    return call.site.trust.knows_numbers(call.traced.program.key, name, number_kinds(call.traced, values))


# -- the run


def _stays_there(call: Call, way: Strategy) -> bool:
    """Whether results stay on the device, as arrays of anygpu's own."""
    return call.site.has_anygpu_arrays and isinstance(way, SingleDevice) and call.site.options.check != "always"


def _execute(
    call: Call, name: str, way: Strategy, values: Sequence[Any], workers: Sequence[Worker], predicted: float | None
) -> tuple[list[Any], Ran]:
    """The arguments as workers get them, and what came of them."""
    site, program, keep = call.site, call.traced.program, _stays_there(call, way)
    with call.planner.using(way.devices, predicted or 0.0):
        # A worker with another isolation does not know the arrays of this one.
        resident = name if keep and site.options.isolation is None else None
        given = as_arguments(values, program, resident)
        ran = execute(
            way,
            program,
            given,
            dict(zip(way.devices, workers, strict=True)).__getitem__,
            keep=keep,
            timeout=call.timeout,
            between=call.between,
            starting=call.start if call.starting is not None else None,
        )
    return given, ran


def _value(
    call: Call,
    name: str,
    way: Strategy,
    values: CallInputs,
    given: Sequence[Any],
    ran: Ran,
    modes: Mapping[str, str],
) -> Any:
    """What the function returns; `Instead` where NumPy's result has to be returned."""
    site, traced = call.site, call.traced
    if _stays_there(call, way):
        place = call.planner.places.find(name, isolation=site.options.isolation)
        buffers = place.track(traced.program, given, ran.results)
        specs = traced.program.results
        arrays = [Array(Value.on(place, buffer, spec)) for buffer, spec in zip(buffers, specs, strict=True)]
        return call.rebuild(traced, arrays, values)
    if site.options.check == "always":
        wrong = check_now(call, name, ran.results, given)
        if wrong is not None:
            return Instead(wrong)
    elif not site.has_anygpu_arrays and warns(modes) and _needs_numpys_word(call, ran.results, given):
        if site.chooser.baseline is not None:
            why = f"the result of {name} is not finite; NumPy computes it again, so that its warnings appear."
            return Instead(why, on_numpy=True, judge=partial(_judge, call, name, ran.results, given))
        hear_numpy(call)
    value = call.rebuild(traced, ran.results, values)
    return to_anygpu(value) if site.has_anygpu_arrays else site.trust.in_order(traced, values, value)


def _needs_numpys_word(call: Call, results: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether NumPy might warn of this result, or raise, and its user has not seen that yet."""
    site = call.site
    if site.chooser.baseline is None and loud(modes_now()) is not None:
        # What only NumPy honours may have happened on the way to a finite result.
        return any(op.may_raise_flags for op, _ in call.traced.program.nodes)
    if not site.may_warn(call.traced) or is_finite(results):
        return False
    trust = site.trust
    if trust.flags:
        # Known to warn. Where it would be shown again, an automatic call has not come here.
        return site.chooser.baseline is None and is_shown(trust.flags, _module_of(call), trust.heard)
    return not trust.is_usual(given)


def _judge(call: Call, name: str, results: Sequence[Any], given: Sequence[Any], value: Any) -> None:
    """Have a result that was not returned compared with NumPy's value, which was, in the background."""
    sample = sample_of(call.traced, given, value, ours=False)
    call.planner.background.submit(
        partial(judge_returned, call.planner, call.site, name, call.function, sample, list(results))
    )


# -- after


def _learn(
    call: Call, name: str, prediction: Prediction, ran: Ran, took: float, *, disturbed: bool, busy: bool
) -> None:
    """The call site and the planner learn how long it took, and what else is worth a trial."""
    site, planner, program = call.site, call.planner, call.traced.program
    with planner.lock:
        # The first call there fills caches, which predictions for later ones know nothing of.
        is_first = not site.has_run_at(name)
        site.measured(name, took, ran.peak_bytes, disturbed=disturbed, busy=busy)
        planner.add_seconds(took)
        if not is_first:
            planner.learn(name, program.key, prediction, took, is_rough=disturbed or busy)
        has_news = call.cacheable and site.has_something_to_explore()
    if has_news:
        explore(call)
    _tell_host_operations(site, ran)


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
    """The caller's phases, with the device's taken out of the caller's `other`."""
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


def _tell_host_operations(site: CallSite, ran: Ran) -> None:
    """Once for each operation and line; the receipt has them each time."""
    for operation in ran.host_operations:
        if site.first_time(operation) and site.options.fallback == "warn":
            ran_on_host(operation)
