"""`explain`: where the next call would run, what is predicted for each device, and why. Nothing is computed."""

from __future__ import annotations

import msgspec

from anygpu.base.units import readable_seconds
from anygpu.calls.native_site import NativeSite
from anygpu.engines.catalogue import why_cpu_is_numpy
from anygpu.hardware.device import CPU, Device
from anygpu.native.calls import NativeCalls
from anygpu.placement.call import Call
from anygpu.placement.place_call import choose, require_what_was_asked_for
from anygpu.placement.plan.plan import Candidate, Plan
from anygpu.placement.planner import default
from anygpu.workers.thread import ThreadWorker


def explain(call: Call, native: NativeSite | None = None) -> Plan:
    """The plan of the next such call; `native` is what is known of its native code. The function is traced, not run.

    Raises the function's own error if tracing meets one, and what placing the call would raise for its options.
    """
    site = call.site
    if not site.programs.is_tried:
        call.record(raises=True)
        site = call.site
    require_what_was_asked_for(call)
    if site.programs.current is not None:
        if not site.options.preference.on:
            # Whoever asks wants to know of every device, also of those that are used only when they are named.
            call.planner.machine()
        call.consider()
    choice = choose(call)
    with call.planner.lock:
        plan = site.candidates.plan(choice.sentence, choice.candidate)
    # Another planner has other machines to choose from, and its calls are never native code by themselves.
    may_be_native = site.options.allows_native and call.planner is default()
    if may_be_native and not site.has_anygpu_arrays and site.chooser.current == "numpy":
        plan = _with_native(call, plan, native)
    return msgspec.structs.replace(plan, nests=_listing(call, plan.chosen))


def _with_native(call: Call, plan: Plan, native: NativeSite | None) -> Plan:
    """The plan with native code among the candidates: measured where calls run as it, else predicted."""
    candidates = [each for each in plan.candidates if each.device != CPU]
    refused = tuple(each for each in plan.refused if each.device != CPU)
    chosen, reason = plan.chosen, plan.reason
    code = native.code if native is not None else None
    if isinstance(code, NativeCalls):
        note = code.note
        chosen, reason = CPU, note.reason
        candidates.append(Candidate(device=CPU, seconds=note.predicted, basis="measured", sentence=note.reason))
    elif (predicted := _predicted(call)) is not None:
        candidates.append(predicted)
        if native is not None and native.life.state == "numpy":
            reason = native.note.reason
        elif predicted.seconds < min((each.seconds for each in plan.candidates), default=0.0):
            reason = f"the first calls run on numpy; {predicted.sentence}"
    else:
        refused = plan.refused
    candidates.sort(key=lambda each: each.seconds)
    return msgspec.structs.replace(plan, chosen=chosen, reason=reason, candidates=tuple(candidates), refused=refused)


def _predicted(call: Call) -> Candidate | None:
    """The candidate for native code, with its predicted seconds; `None` where nothing compiles for the processor."""
    planner, traced = call.planner, call.site.programs.current
    if traced is None or why_cpu_is_numpy() is not None:
        return None
    found = [each for each in planner.places.of_engines((CPU,)) if isinstance(each, Device) and each.verified]
    if not found:
        return None
    device = found[0]
    plain, seconds = planner.expected(traced.program, device)
    measured = planner.calibration(device).source == "measured"
    return Candidate(
        device=CPU,
        seconds=seconds,
        basis="predicted" if measured else "assumed",
        phases=plain.phases,
        sentence=f"native code is predicted to take {readable_seconds(seconds)}, and is compiled beside the calls.",
    )


def _listing(call: Call, name: str) -> str | None:
    """The loop nests that the engine `cpu` makes of the program, as text; `None` for other devices."""
    traced, prediction = call.site.programs.current, call.site.candidates.predictions.get(name)
    if name != CPU or traced is None or (prediction is not None and prediction.chunks is not None):
        return None
    worker = call.planner.worker(name, call.site.options)
    return worker.listing(traced.program) if isinstance(worker, ThreadWorker) else None
