"""Finding out whether a call would be faster elsewhere, in the background, while calls go on where they are.

`explore` is called after a call, on the caller's thread, and decides what to start: a trial (`_try_out`), a
calibration, or nothing for so many calls. Calls pay for it: see `background.Pace`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.trust import Sample, learn_flags, number_kinds
from anygpu.base.units import readable_seconds
from anygpu.engines.protocol import tuning_limited_to
from anygpu.errors import AnyGPUError, name_of, text_of
from anygpu.hardware.device import Device
from anygpu.placement.call import Call
from anygpu.placement.call_site import MOST_SHORT, MOST_SKIPPED, CallSite
from anygpu.placement.candidates import COPIED_PER_SECOND, Prediction
from anygpu.placement.device_call import agrees, check_sample, is_ordinary, sample_now
from anygpu.placement.machine import lacking
from anygpu.placement.plan.choosing import DOUBT
from anygpu.placement.planner import CALIBRATION_SECONDS, NO_GPU, Planner
from anygpu.placement.strategies import execute
from anygpu.workers.worker import default_budget

#: Runs of a trial: the first compiles and fills caches, the best of the others counts.
_RUNS = 3
#: A trial that takes longer than this is not repeated.
_LONG = 0.5
#: Seconds of calls after which the history is asked for the first time.
_WORTH_ASKING = 0.05
#: Calibrating keeps so much on the device. Under a smaller budget it would take the room of the calls that go on.
_CALIBRATION_BYTES = 256 << 20


def explore(call: Call, value: Any = None, *, checks: str | None = None) -> None:
    """After a call: start a trial or a calibration if there is something to find out and calls have paid for it.

    `value` is what the function returned on NumPy, if it ran there; `checks` names the device that it is to be compared
    with. It must not be called with the planner's lock.
    """
    planner, site, chooser = call.planner, call.site, call.site.chooser
    if site.names_only_numpy:
        _skip_planning(call)
        return
    if site.programs.current is None or not site.candidates.evaluated:
        planner.wake(pays=_foreseen(call))
        _skip_planning(call)
        return
    if value is not None and not is_ordinary(call, value):
        _skip_planning(call)
        return
    if checks is not None and value is not None:
        check_sample(call, value, checks)
        return
    planner.recall.begin(site, call.function, call.key)
    planner.pace.earlier = planner.recall.earlier_seconds
    if site.candidates.corrected != planner.corrections.version:
        # Other programs took much more or less than was predicted for them.
        site.candidates.consider(planner)
    with planner.lock:
        remembered = chooser.to_open()
    if remembered is not None:
        _start_trial(call, remembered, value)
        return
    if site.candidates.calibrating:
        _skip_while_calibrating(site)
        return
    with planner.lock:
        name = site.next_trial()
    if name is not None:
        _start_trial(call, name, value)
    elif not site.candidates.calibrated and not chooser.trying and _affords_calibration(planner, site):
        # After trials, which take less, and tell more of these calls.
        if site.candidates.begin_calibrating():
            planner.background.submit(partial(_calibrate, planner, site))
        _skip_while_calibrating(site)


def _skip_while_calibrating(site: CallSite) -> None:
    """Let calls on NumPy skip planning, for as long as one is worth."""
    if site.chooser.baseline == "numpy":
        site.host.skip_planning_for(
            site.host.calls_for_planning, "other devices are being calibrated in the background."
        )


def _foreseen(call: Call) -> bool:
    """Whether earlier processes have found a device that will pay. Asking takes milliseconds the first time."""
    planner = call.planner
    if planner.awake or planner.seconds < _WORTH_ASKING:
        return False
    return planner.recall.pays(call.site, call.function, call.key)


def _start_trial(call: Call, name: str, value: Any) -> None:
    """Start a trial of a candidate in the background if calls have paid for it; else let calls skip planning until
    then.

    The arguments and the value are copied here, on the caller's time, as the caller may write to them afterwards.
    """
    planner, site, chooser = call.planner, call.site, call.site.chooser
    traced, facts = site.programs.current, site.candidates.predictions.get(name)
    if traced is None or facts is None:  # another thread has given it up
        return
    if name not in chooser.remembered and chooser.baseline is not None:
        exploring = facts.once + _RUNS * facts.seconds
        if missing := planner.pace.missing(exploring, planner.seconds):
            with planner.lock:
                site.host.rest(site.host.calls_in(missing) + 1)
            return
    bytes_in = sum(spec.nbytes for spec in traced.program.inputs)
    bytes_out = sum(spec.nbytes for spec in traced.program.results)
    cost = (bytes_in + bytes_out) / COPIED_PER_SECOND
    if site.has_anygpu_arrays and chooser.baseline is not None:
        cost += planner.reading(chooser.baseline, bytes_in)
    if chooser.baseline is not None and not chooser.affords(cost):
        with planner.lock:
            site.host.rest(chooser.calls_until_affordable(cost))
        return
    begin = planner.clock()
    sample = sample_now(call, value)
    if sample is None:
        return
    with planner.lock:
        chooser.spend(planner.clock() - begin)
        chooser.begin_trial(name)
    planner.background.submit(partial(_try_out, planner, site, call.function, name, sample))


def _skip_planning(call: Call) -> None:
    """Let calls skip planning until tracing could be affordable or devices may be known; receipts say why they stay."""
    site, chooser, planner = call.site, call.site.chooser, call.planner
    if chooser.baseline != "numpy" or (site.has_anygpu_arrays and site.programs.current is None):
        # Before it is recorded, a function of anygpu's own arrays may write to them.
        return
    why = chooser.pinned or why_not_elsewhere(planner, site)
    if (
        chooser.pinned is not None
        or site.names_only_numpy
        or site.programs.refusal is not None
        or (chooser.estimate("numpy") or 0.0) <= planner.floor
        or (not planner.awake and planner.has_nowhere_to_look)
    ):
        site.host.skip_planning_for(MOST_SHORT, why)
    elif not planner.awake and (site.programs.current is not None or not planner.ready_to_record):
        site.host.skip_planning_for(
            max(site.host.calls_for_planning, site.host.calls_in(planner.until_worth_looking)), why
        )
    else:
        seconds = site.programs.seconds if site.programs.current is None else site.candidates.considering
        if not chooser.affords(seconds):
            calls = min(MOST_SKIPPED, chooser.calls_until_affordable(seconds))
            site.host.skip_planning_for(max(calls, site.host.calls_for_planning), why)


def why_not_elsewhere(planner: Planner, site: CallSite) -> str:
    """Why calls stay on NumPy before there is a program that could run elsewhere."""
    seconds = site.chooser.estimate("numpy") or 0.0
    takes = readable_seconds(seconds)
    if site.names_only_numpy:
        return site.options.cpu_is_numpy or "numpy is the only device allowed."
    if site.programs.refusal is not None:
        return site.programs.why_none
    if seconds <= planner.floor:
        return f"numpy takes {takes} per call, and no device responds in less than {readable_seconds(planner.floor)}."
    if planner.awake:
        return f"numpy takes {takes} per call; tracing does not pay yet."
    if planner.is_looking:
        return f"numpy takes {takes} per call; still probing other devices."
    if planner.has_nowhere_to_look:
        return f"numpy takes {takes} per call; {NO_GPU}"
    after = readable_seconds(planner.look_after)
    return f"numpy takes {takes} per call; other devices are probed after {after} of calls."


def _to_calibrate(planner: Planner, site: CallSite) -> list[Device]:
    """The devices of a call site that have not been calibrated, the most promising first."""
    if (budget := default_budget()) is not None and budget < _CALIBRATION_BYTES:
        return []
    if set(site.candidates.predictions) <= {site.chooser.baseline}:  # there is nothing to compare it with
        return []
    machine = planner.machine_for(site.options, site.chooser.baseline)
    # NumPy last: calls measure it anyway, and it can only be calibrated in this process.
    order = sorted(
        site.candidates.predictions, key=lambda each: (each == "numpy", site.candidates.predictions[each].seconds)
    )
    found = [machine.device(name) for name in order]
    return [
        each
        for each in found
        if each is not None and each.id not in site.chooser.remembered and planner.should_calibrate(each)
    ]


def _affords_calibration(planner: Planner, site: CallSite) -> bool:
    """Whether calls have taken long enough to pay for the next calibration, or there is none to pay for."""
    missing = [_missing_seconds(planner, device) for device in _to_calibrate(planner, site)[:1]]
    site.candidates.wait_for_calibration(planner.seconds + sum(missing))
    return not any(missing)


def _missing_seconds(planner: Planner, device: Device) -> float:
    """The seconds that calls still have to take until they have paid for calibrating a device."""
    return planner.pace.missing(CALIBRATION_SECONDS + planner.calibration(device).open, planner.seconds)


def _calibrate(planner: Planner, site: CallSite) -> None:
    """Calibrate the devices that calls have paid for, and predict anew; called in the background."""
    try:
        for device in _to_calibrate(planner, site):
            if planner.background.closed:
                return
            if not _missing_seconds(planner, device):
                with planner.pace:
                    planner.calibrate(device)
        site.candidates.consider(planner)
    except AnyGPUError:
        # A device that cannot be calibrated is found out by its trial.
        pass
    finally:
        site.candidates.end_calibrating()


class _Tried(NamedTuple):
    """A trial that looked right: the seconds of its best run, whether other processes disturbed it, and its results.

    There are no results where an earlier process has measured the candidate, so that it was not run on explorers.
    """

    seconds: float
    busy: bool
    runs: list[list[Any]]


def _try_out(
    planner: Planner,
    site: CallSite,
    function: Callable[..., Any],
    name: str,
    sample: Sample,
) -> None:
    """In the background: run a sample on a candidate, and let real calls go there if it is right and fast enough.

    Explorers run it first, with a low priority; then the workers that serve callers, if that looked good. Never raises:
    a candidate that fails is excluded with the reason, and the caller's calls go on where they are.
    """
    chooser = site.chooser
    facts = site.candidates.predictions.get(name)
    if facts is None:
        return
    try:
        memory = chooser.remembered.get(name)
        if memory is not None:
            tried: _Tried | None = _Tried(memory.seconds, False, [])
        else:
            tried = _try_on_explorers(planner, site, function, name, facts, sample)
        if tried is None:
            return
        learn_flags(site.trust, sample)
        if not chooser.looks_good(tried.seconds):
            with planner.lock:
                chooser.tried(name, tried.seconds, busy=tried.busy)
            return
        generation = _try_on_worker(planner, site, function, name, facts, sample, tried.runs)
        if generation is None:
            return
        with planner.lock:
            kinds = number_kinds(sample.traced, sample.inputs)
            site.trust.agree(sample.traced.program.key, name, facts.chunks, generation, kinds)
            chooser.tried(name, tried.seconds, busy=tried.busy)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the caller's calls go on
        with planner.lock:
            chooser.failed(name, f"{name} failed in a trial: {name_of(error)}: {text_of(error)}")


def _try_on_explorers(
    planner: Planner, site: CallSite, function: Callable[..., Any], name: str, facts: Prediction, sample: Sample
) -> _Tried | None:
    """Time a sample on explorers, and compare each result with NumPy's, unless checks are off.

    Returns `None` where the candidate lacks an operation or is wrong, of which the chooser is told here, and where
    Python ends meanwhile.
    """
    chooser, program = site.chooser, sample.traced.program
    conditions = planner.watch.begin(planner.clock())
    with planner.pace:
        lack = lacking(planner.explorer, name, program) if name != "numpy" else None
        if lack is not None:
            with planner.lock:
                chooser.failed(name, lack)
            return None
        timed = _run_trial(planner, site, name, facts, sample)
    if timed is None:
        return None
    best, runs = timed
    busy = planner.watch.end(conditions, planner.clock())
    planner.learn(name, program.key, facts, best, is_rough=True)
    if chooser.checked and not agrees(planner, site, function, name, sample, *runs):
        return None
    return _Tried(best, busy, runs)


def _try_on_worker(
    planner: Planner,
    site: CallSite,
    function: Callable[..., Any],
    name: str,
    facts: Prediction,
    sample: Sample,
    runs: Sequence[list[Any]],
) -> int | None:
    """Run a sample once on the worker that serves callers, which opens and compiles now, not in a call.

    A result with the bits of one of `runs`, which were compared, is not compared again. Return the generation of the
    worker, for which the result holds; `None` if it is wrong, which the chooser is told.
    """
    program = sample.traced.program
    # The explorer has tuned what there was time for, and saved it.
    with planner.pace, planner.trying((name,)), tuning_limited_to(0.0):
        worker = planner.worker(name, site.options)
        if facts.chunks is None:  # what is cut is compiled when it runs
            worker.prepare(program)
        ran = execute(program, sample.inputs, worker, chunks=facts.chunks, timeout=site.options.timeout)
    is_known = any(_same_bits(each, ran.results) for each in runs)
    if site.chooser.checked and not is_known and not agrees(planner, site, function, name, sample, ran.results):
        return None
    return worker.generation


def _run_trial(
    planner: Planner,
    site: CallSite,
    name: str,
    facts: Prediction,
    sample: Sample,
) -> tuple[float, list[list[Any]]] | None:
    """The best seconds of `_RUNS` runs on explorers, and their results; `None` if Python ends meanwhile.

    The first run compiles and does not count. Results are those of the first and the last run, or one if they are the
    same bits.
    """
    chooser, worker = site.chooser, planner.explorer(name)
    # A short process is over before sizes of kernels are found.
    has_time = planner.pace.allowance(planner.seconds) > facts.once + 2 * facts.tuning
    program = sample.traced.program
    if facts.chunks is None:
        with tuning_limited_to(None if has_time else 0.0):
            worker.prepare(program)
    best = float("inf")
    first: list[Any] = []
    for number in range(_RUNS):
        if planner.background.closed:
            return None
        begin = planner.clock()
        ran = execute(program, sample.inputs, worker, chunks=facts.chunks, timeout=site.options.timeout)
        seconds = planner.clock() - begin
        first = first or ran.results
        if number:
            best = min(best, seconds)
            if seconds > _LONG or seconds > DOUBT * 2 * (chooser.estimate(chooser.baseline or name) or seconds):
                break
    # What compiling gave, and what runs later: the same bits need no second look.
    return best, [ran.results] if _same_bits(first, ran.results) else [first, ran.results]


def _same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists of results are the same, bit by bit."""
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))
