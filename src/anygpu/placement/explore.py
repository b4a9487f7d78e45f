"""Finding out whether a call would be faster elsewhere, in the background, while calls go on where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anygpu.errors import AnyGPUError, name_of, text_of
from anygpu.placement.call import Call
from anygpu.placement.call_site import COPIED_PER_SECOND, LOOK, MOST_SKIPPED, CallSite
from anygpu.placement.check import compared, learn_flags, pin
from anygpu.placement.planner import Planner, lacking
from anygpu.placement.strategies import as_arguments, execute
from anygpu.placement.trust import Sample, peculiarity, sample_of
from anygpu.plan.choosing import DOUBT
from anygpu.units import readable_seconds
from anygpu.workers.open import default_budget

#: Runs of a trial: the first compiles and fills caches, the best of the others counts.
_RUNS = 3
#: A trial that takes longer than this is not repeated.
_LONG = 0.5
#: Calls without planning of a function that is shorter than any device answers.
_MANY = 1024
#: Calibrating keeps so much on the device. Under a smaller budget it would take the room of the calls that go on.
_CALIBRATION_BYTES = 256 << 20


def explore(call: Call, value: Any = None, *, checks: str | None = None) -> None:
    """After a call: start a trial if there is something to try and it may cost what it costs.

    `value` is what the function returned on NumPy, if it ran there; `checks` the device that it is to be compared with.
    """
    planner, site, chooser = call.planner, call.site, call.site.chooser
    if site.traced is None or not site.evaluated:
        planner.wake()
        _skip_planning(call)
        return
    if value is not None and not _is_ordinary(call, value):
        _skip_planning(call)
        return
    if checks is not None and value is not None:
        sample = _sample(call, value)
        planner.background.submit(partial(_check_again, planner, site, call.function, checks, sample))
        return
    if not site.calibrated:
        if site.begin_calibrating():
            planner.background.submit(partial(_calibrate, planner, site))
        if chooser.baseline == "numpy":
            site.skip_planning_for(site.calls_in(LOOK), "other devices are being evaluated in the background.")
        return
    with planner.lock:
        name = site.next_trial()
    if name is None:
        return
    _start_trial(call, name, value)


def _is_ordinary(call: Call, value: Any) -> bool:
    """Whether a device could return the like of it. If not, the function is none that can be traced."""
    site = call.site
    if site.has_anygpu_arrays:
        return True
    inputs, traced = call.given(), site.traced
    if inputs is None or traced is None:
        why: str | None = "it modifies state that it depends on"
    else:
        why = peculiarity(traced, value, inputs)
        if why is None:
            site.trust.see(traced, inputs, value)
            return True
    assert why is not None
    with call.planner.lock:
        site.refuse(why)
    return False


def _start_trial(call: Call, name: str, value: Any) -> None:
    planner, site, chooser = call.planner, call.site, call.site.chooser
    devices = site.predictions[name].way.devices
    machine = planner.machine()
    if not all(planner.opening_is_worth_it(found) for each in devices if (found := machine.device(each))):
        with planner.lock:
            site.rest(MOST_SKIPPED // 4)
        return
    bytes_in = sum(spec.nbytes for spec in site.program.inputs)
    bytes_out = sum(spec.nbytes for spec in site.program.results)
    cost = (bytes_in + bytes_out) / COPIED_PER_SECOND
    if site.has_anygpu_arrays and chooser.baseline is not None:
        cost += planner.reading(chooser.baseline, bytes_in)
    if chooser.baseline is not None and not chooser.affords(cost):
        with planner.lock:
            site.rest(chooser.calls_until_affordable(cost))
        return
    begin = planner.clock()
    sample = _sample(call, value)
    with planner.lock:
        chooser.spend(planner.clock() - begin)
        chooser.begin_trial(name)
    planner.background.submit(partial(_try_out, planner, site, call.function, name, sample))


def _sample(call: Call, value: Any) -> Sample:
    """The program's inputs as they are now, and what NumPy returned for them."""
    traced, given = call.site.traced, call.given()
    assert traced is not None
    assert given is not None
    inputs = as_arguments(given, traced.program, None)
    return sample_of(traced, inputs, value, ours=call.site.has_anygpu_arrays or value is None)


def _skip_planning(call: Call) -> None:
    """How many calls may go by before recording could be affordable, or devices be known; and why they stay."""
    site, chooser, planner = call.site, call.site.chooser, call.planner
    if chooser.baseline != "numpy" or (site.has_anygpu_arrays and site.traced is None):
        # Before it is recorded, a function of anygpu's own arrays may write to them.
        return
    why = chooser.pinned or why_not_elsewhere(planner, site)
    if (
        chooser.pinned is not None
        or site.not_recorded is not None
        or (chooser.estimate("numpy") or 0.0) <= planner.floor
    ):
        site.skip_planning_for(_MANY, why)
    elif not planner.awake and (site.traced is not None or not planner.ready_to_record):
        site.skip_planning_for(site.calls_in(max(LOOK, planner.until_worth_looking)), why)
    elif site.traced is None and not chooser.affords(site.recording):
        site.skip_planning_for(min(MOST_SKIPPED, chooser.calls_until_affordable(site.recording)), why)


def why_not_elsewhere(planner: Planner, site: CallSite) -> str:
    """Why calls stay on NumPy before there is a program that could run elsewhere."""
    seconds = site.chooser.estimate("numpy") or 0.0
    takes = readable_seconds(seconds)
    if site.not_recorded is not None:
        return site.why_not_recorded
    if seconds <= planner.floor:
        return f"calls take {takes} there, and no device responds in less than {readable_seconds(planner.floor)}."
    if not planner.awake:
        return f"calls take {takes} there, and no other devices are known yet."
    return f"calls take {takes} there, too little yet to be worth tracing."


def _calibrate(planner: Planner, site: CallSite) -> None:
    """Calibrate what may take part, and look at two devices together."""
    try:
        machine = planner.machine()
        for name in list(site.predictions):
            device = machine.device(name)
            if device is None or planner.calibration(device).source == "measured":
                continue
            if (budget := default_budget()) is not None and budget < _CALIBRATION_BYTES:
                continue
            if planner.background.closed:
                return
            if planner.opening_is_worth_it(device):
                with planner.trying((name,)):
                    planner.calibrate(device)
        with planner.lock:
            site.consider(planner)
        site.consider_parts(planner)
    except AnyGPUError:
        # A device that cannot be calibrated is found out by its trial.
        pass
    finally:
        site.end_calibrating()


def _try_out(planner: Planner, site: CallSite, function: Callable[..., Any], name: str, sample: Sample) -> None:
    """Run it there, compare what comes out with NumPy's, and only then let real calls go there."""
    chooser = site.chooser
    facts = site.predictions.get(name)
    if facts is None:
        return
    program, devices = sample.traced.program, facts.way.devices
    try:
        with planner.trying(devices):
            for device in devices:
                lack = lacking(planner, device, program, site.options) if device != "numpy" else None
                if lack is not None:
                    with planner.lock:
                        chooser.failed(name, lack)
                    return
            workers = [planner.worker(device, site.options) for device in devices]
            find = dict(zip(devices, workers, strict=True)).__getitem__
            best = float("inf")
            first: list[Any] = []
            for number in range(_RUNS):
                if planner.background.closed:
                    return
                begin = planner.clock()
                ran = execute(facts.way, program, sample.inputs, find, timeout=site.options.timeout)
                seconds = planner.clock() - begin
                first = first or ran.results
                if number:
                    best = min(best, seconds)
                    if seconds > _LONG or seconds > DOUBT * 2 * (chooser.estimate(chooser.baseline or name) or seconds):
                        break
        # What compiling gave, and what runs later: the same bits need no second look.
        runs = [ran.results] if _same_bits(first, ran.results) else [first, ran.results]
        if chooser.checked and not _agrees(planner, site, function, name, sample, *runs):
            return
        learn_flags(site, sample)
        with planner.lock:
            site.trust.agree(program.key, name, facts.way, [worker.generation for worker in workers])
            chooser.tried(name, best)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the caller's calls go on
        with planner.lock:
            chooser.failed(name, f"{name} failed in a trial: {name_of(error)}: {text_of(error)}")


def _same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))


def _agrees(
    planner: Planner,
    site: CallSite,
    function: Callable[..., Any],
    name: str,
    sample: Sample,
    *runs: list[Any],
    before_use: bool = True,
) -> bool:
    """Whether what the device gave is what NumPy gave; one that is wrong is not used for this function again."""
    program = sample.traced.program.key
    for results in runs:
        judgement = compared(sample, results, site.trust.usual.get(program, ()) if not before_use else ())
        if judgement.difference is not None:
            with planner.lock:
                site.chooser.failed(name, f"{name} differed from NumPy: {judgement.difference.sentence}.")
            pin(planner, site, name, function, sample, judgement.difference, before_use=before_use)
            return False
        if judgement.verdict == "undecided" and before_use:
            with planner.lock:
                site.chooser.failed(name, f"{name} cannot be compared with NumPy: {judgement.why}.")
            return False
        if judgement.usual and before_use:
            if len(site.trust.usual) > 64:
                site.trust.usual.clear()
            before = site.trust.usual.get(program, judgement.usual)
            site.trust.usual[program] = tuple(map(max, before, judgement.usual))
    return True


def _check_again(planner: Planner, site: CallSite, function: Callable[..., Any], name: str, sample: Sample) -> None:
    """A sample: the device computes what a call has just computed on NumPy."""
    facts = site.predictions.get(name)
    if facts is None or planner.background.closed:
        return
    try:
        with planner.trying(()):
            find = planner.worker_of(site.options)
            ran = execute(facts.way, sample.traced.program, sample.inputs, find, timeout=site.options.timeout)
        _agrees(planner, site, function, name, sample, ran.results, before_use=False)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the caller's calls go on
        with planner.lock:
            site.chooser.failed(name, f"{name} failed in a sample: {name_of(error)}: {text_of(error)}")
