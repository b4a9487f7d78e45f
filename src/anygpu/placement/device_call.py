"""A call on a device, and whether its result may replace NumPy's: `Check` is asked before the run, and after.

The chosen device may turn out not to be usable: `RunElsewhere` says why, and the call runs on its baseline. A device
that was wrong is not used for that function again (`pin`). Times and receipts are left to `place_call`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anygpu.agreement.trust import (
    Filters,
    Sample,
    code_of,
    compared,
    is_finite,
    learn_flags,
    minded,
    modes_now,
    number_kinds,
    only_numpy_knows,
    raising_modes,
    sample_of,
    warns,
    why_not_replaceable,
)
from anygpu.array.core.array import Array
from anygpu.array.core.expression import Value
from anygpu.array.trace.traced import LIES_OTHERWISE
from anygpu.engines.codegen.kernel import BEYOND, UNKNOWN, WRAPPED
from anygpu.errors import Unsupported, name_of, text_of
from anygpu.hardware.device import CPU, node_of
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.candidates import Prediction
from anygpu.placement.machine import lacking
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import as_arguments, execute
from anygpu.placement.values import to_anygpu
from anygpu.program.graph import Program
from anygpu.workers.worker import Ran, Worker

if TYPE_CHECKING:
    from anygpu.agreement.comparison import Difference
    from anygpu.agreement.mismatches import Mismatch
    from anygpu.array.trace.traced import CallInputs
    from anygpu.placement.plan.chunking import Chunks


class RunElsewhere(NamedTuple):
    """Tells that a call runs on its baseline instead of the chosen device, and why."""

    why: str
    #: The device that is compared with the result, because numbers among the arguments are of a new kind.
    checks: str | None = None
    #: Whether it has to be NumPy, whatever the baseline is.
    on_numpy: bool = False
    #: Called with NumPy's value, with which the device's is then compared in the background.
    judge: Callable[[Any], None] | None = None


# -- the call


class DeviceRun(NamedTuple):
    """A call that ran on a device: its value, and facts to learn from."""

    value: Any
    #: The worker's report.
    ran: Ran
    #: The prediction for the device, and the seconds that the chooser expected.
    prediction: Prediction
    predicted: float | None
    program: Program
    #: The seconds that count for later calls.
    took: float
    #: Whether something of ours has disturbed it, or other processes have.
    disturbed: bool
    busy: bool


def run_on_device(
    call: Call, choice: DeviceChoice, values: CallInputs | None, predicted: float | None
) -> DeviceRun | RunElsewhere:
    """Run the call's program on the chosen device; `values` are its inputs. Raises the errors of the device.

    `predicted` is the expected time in seconds. Returns `RunElsewhere`, with the reason, if the call must run on its
    baseline after all: before the run, or after a result that may not replace NumPy's.
    """
    site, planner, name = call.site, call.planner, choice.candidate
    prediction = site.candidates.predictions.get(name)
    if values is None or prediction is None:  # another thread has traced it anew, or given that up
        return RunElsewhere(choice.sentence, on_numpy=True)
    program, chunks = call.traced.program, prediction.chunks
    worker = planner.worker(name, site.options)
    if site.options.fallback == "raise" and node_of(name) is not None:
        _require_that_it_can(name, worker, program)
    check = Check(call, name, chunks, values)
    instead = check.before(worker)
    if instead is not None:
        return instead
    begin, disturbed = planner.clock(), planner.pace.exploring
    conditions = planner.watch.begin(begin)
    given, ran = _execute(call, name, chunks, values, worker, predicted, keeps=check.keeps)
    value = check.after(ran.results, given, ran.noted)
    if isinstance(value, RunElsewhere):
        return value
    end = planner.clock()
    took, busy = end - begin - ran.phases.compile, planner.watch.end(conditions, end)
    if ran.overlapped:
        # The time that it waited for another call is no part of what it takes.
        took, disturbed = took - ran.phases.queue, True
    if check.keeps and site.chooser.baseline == "numpy":
        # The first use of the result pays for the way back, which results on NumPy do not need.
        took += planner.reading(name, sum(spec.nbytes for spec in program.results))
    return DeviceRun(value, ran, prediction, predicted, program, took, disturbed, busy)


def _require_that_it_can(name: str, worker: Worker, program: Program) -> None:
    """Raise `Unsupported` where a device of another machine cannot run all of the program.

    It is asked only when a call goes there; `fallback="raise"` wants all of it there.
    """
    lack = lacking(lambda _: worker, name, program)
    if lack is not None:
        raise Unsupported("the whole program", name, instead=lack, message=f"{name} cannot run the whole program.")


def _execute(
    call: Call,
    name: str,
    chunks: Chunks | None,
    values: Sequence[Any],
    worker: Worker,
    predicted: float | None,
    *,
    keeps: bool,
) -> tuple[list[Any], Ran]:
    """Run the program; return its arguments as the worker got them, and the outcome. `keeps` leaves results on the
    device.
    """
    program = call.traced.program
    with call.planner.using(name, predicted or 0.0):
        # A worker with another isolation does not know the arrays of this one.
        resident = name if keeps and call.site.options.isolation is None else None
        given = as_arguments(values, program, resident)
        ran = execute(
            program,
            given,
            worker,
            chunks=chunks,
            keep=keeps,
            timeout=call.timeout,
            between=call.between,
            starting=call.start if call.starting is not None else None,
        )
    return given, ran


# -- the check


class Check:
    """Decides whether the result of one call on a device may replace NumPy's, `before` and `after` the run.

    It is made for one call on the caller's thread. Comparisons that take long are left to the background.
    """

    __slots__ = ("_call", "_chunks", "_device", "_modes", "_traced", "_values", "keeps")

    def __init__(self, call: Call, device: str, chunks: Chunks | None, values: CallInputs) -> None:
        """Prepare for one call; `values` are the program's inputs, and `chunks` the pieces that it runs in."""
        self._call, self._device, self._chunks = call, device, chunks
        self._traced, self._values = call.traced, values
        self._modes = modes_now()
        #: Whether results stay on the device, as arrays of anygpu's own.
        site = call.site
        self.keeps = site.has_anygpu_arrays and chunks is None and site.options.check != "always"

    # -- before

    def before(self, worker: Worker) -> RunElsewhere | None:
        """Return why the call has to run on its baseline instead of the chosen device; `None` if it may run there."""
        call, name = self._call, self._device
        site, trust, chooser = call.site, call.site.trust, call.site.chooser
        is_numpys = chooser.baseline == "numpy" or name == CPU
        if is_numpys and not site.has_anygpu_arrays and self._traced.lies_otherwise(self._values):
            return RunElsewhere(LIES_OTHERWISE, on_numpy=True)
        if chooser.baseline in (None, name):  # what runs where its arguments are, or was asked for, is not automatic
            return None
        found = raising_modes(self._modes)
        if found is not None and chooser.baseline == "numpy":
            return RunElsewhere(found)
        if chooser.checked and not trust.agreed(self._traced.program.key, name, self._chunks, worker.generation):
            with call.planner.lock:
                chooser.distrust(name)
            return RunElsewhere(
                f"{name} has not been compared with NumPy since it was opened or the function was traced."
            )
        if site.has_anygpu_arrays or chooser.baseline != "numpy":
            return None
        if chooser.checked and not trust.knows_order(self._values):
            return RunElsewhere(
                "arguments with this memory layout are new, and NumPy decides the layout of the result."
            )
        flags = trust.flags
        if flags and warns(self._modes) and trust.is_shown(flags, _module_of(call)):
            flag = min(flags)
            warning = f"{flag.kind} encountered in {flag.operation}"
            return RunElsewhere(f'NumPy warns of "{warning}" here, and the warning filters show it.')
        if chooser.checked and not self._knows_numbers():
            return RunElsewhere(
                f"numbers of this kind are new, and {name} has not been compared with NumPy for them.", name
            )
        return None

    def _knows_numbers(self) -> bool:
        """Return whether the device was compared with NumPy for numbers of the kinds that are among the arguments."""
        kinds = number_kinds(self._traced, self._values)
        return self._call.site.trust.knows_numbers(self._traced.program.key, self._device, kinds)

    # -- after

    def after(self, results: Sequence[Any], given: Sequence[Any], noted: int = 0) -> Any:
        """Return the function's value, made of the device's `results`; `RunElsewhere` if NumPy's is returned.

        With `check="always"` the result is compared with NumPy's; else NumPy runs as well if it might warn about this
        result, or about something that native code has `noted`.
        """
        call, site, traced = self._call, self._call.site, self._traced
        if self.keeps:
            place = call.planner.places.find(self._device, isolation=site.options.isolation)
            buffers, specs = place.track(traced.program, given, results), traced.program.results
            arrays = [Array(Value.on(place, buffer, spec)) for buffer, spec in zip(buffers, specs, strict=True)]
            return traced.rebuild(arrays, self._values)
        if site.options.check == "always":
            wrong = self._compare_now(results, given)
            if wrong is not None:
                return RunElsewhere(wrong)
        elif self._may_run_numpy and (why := only_numpy_knows(traced, results)) is not None:
            return RunElsewhere(f"{why}; NumPy computes it again.", on_numpy=True)
        elif not site.has_anygpu_arrays and self._is_heard and self._needs_numpys_word(results, given, noted):
            # The result also shows how the function handles an error that NumPy raises.
            why = raising_modes(self._modes) if site.options.fallback != "raise" else None
            if why is not None:  # what a function returns where NumPy raises may be no result of its program
                return RunElsewhere(why, on_numpy=True)
            if site.chooser.baseline is not None:
                why = (
                    f"the result of {self._device} is not finite; NumPy computes it again, so that its warnings appear."
                )
                return RunElsewhere(why, on_numpy=True, judge=partial(self._judge, results, given))
            hear_numpy(call)
        value = traced.rebuild(results, self._values)
        return to_anygpu(value) if site.has_anygpu_arrays else site.trust.in_order(traced, self._values, value)

    @property
    def _may_run_numpy(self) -> bool:
        """Return whether NumPy's result may be returned: not if another device than `cpu` was named."""
        site = self._call.site
        return site.chooser.baseline is not None or (self._device == CPU and site.options.fallback != "raise")

    @property
    def _is_heard(self) -> bool:
        """Return whether NumPy would report errors under the modes of this call."""
        return warns(self._modes) or self._traced.warns_anyway

    def _needs_numpys_word(self, results: Sequence[Any], given: Sequence[Any], noted: int) -> bool:
        """Return whether NumPy might warn about this result, or raise, in a way that the user has not seen yet."""
        site, trust = self._call.site, self._call.site.trust
        if site.chooser.baseline is None and raising_modes(modes_now()) is not None:
            # An error that only NumPy reports may precede a finite result.
            return any(op.may_raise_flags for op, _ in self._traced.program.nodes)
        noted &= minded(self._traced) & ~UNKNOWN if noted else 0
        if noted & (WRAPPED | BEYOND):
            return True
        if not noted and (not site.programs.may_warn(self._traced) or is_finite(results)):
            return False
        return trust.may_be_shown(self._traced, given, _module_of(self._call))

    def _judge(self, results: Sequence[Any], given: Sequence[Any], value: Any) -> None:
        """Compare a result that was not returned with NumPy's value, which was, in the background."""
        call, sample = self._call, sample_of(self._traced, given, value, ours=False)
        call.planner.background.submit(
            partial(_judge_returned, call.planner, call.site, self._device, call.function, sample, list(results))
        )

    def _compare_now(self, results: Sequence[Any], given: Sequence[Any]) -> str | None:
        """Compare this very result with NumPy's, on the caller's time; return why NumPy's has to be returned, or
        `None`.

        A device that differs is pinned; with `fallback="raise"` and no baseline the mismatch is raised.
        """
        call, site = self._call, self._call.site
        arrays = [np.asarray(each) for each in given]
        ours = site.has_anygpu_arrays
        expected = None if ours else site.host.run_on_host(call.function, call.arguments, call.keywords)
        sample = Sample(self._traced, arrays, self._traced.without_arguments(expected), ours, Filters.now())
        judgement = compared(sample, results)
        if judgement.verdict == "agree":
            return None
        if judgement.difference is None:
            return f"{self._device} cannot be compared with NumPy here: {judgement.why}."
        found = pin(call.planner, site, self._device, call.function, sample, judgement.difference, before_use=True)
        if site.options.fallback == "raise" and site.chooser.baseline is None:
            raise found.warning()
        return found.reason


def _module_of(call: Call) -> str:
    """Return the name of the function's module, for warning filters."""
    return str(getattr(call.function, "__module__", None) or "")


def pin(
    planner: Planner,
    site: CallSite,
    device: str,
    function: Callable[..., Any],
    sample: Sample,
    difference: Difference,
    *,
    before_use: bool,
) -> Mismatch:
    """Keep the function on NumPy, because the device was wrong, and warn its user once; return the mismatch.

    It is kept in the history and as a file for `anygpu verify --report`. `before_use` says that no wrong result was
    returned.
    """
    from anygpu.agreement.mismatches import keep, mismatch, tell  # few processes ever need it

    found = mismatch(
        site.task,
        device,
        planner.device(device),
        sample.traced.program,
        sample.inputs,
        difference,
        before_use=before_use,
    )
    planner.recall.disagreed(site, device)
    with planner.lock:
        site.pin(found.reason)
        is_news = planner.disagreed(found, code_of(function))
    if is_news:
        keep(found)
        site.trust.warn_later(tell(found, function))
    return found


def _judge_returned(
    planner: Planner, site: CallSite, device: str, function: Callable[..., Any], sample: Sample, results: Sequence[Any]
) -> None:
    """Learn what NumPy warned about when it repeated a device's call, or that the device was wrong; called in the
    background.
    """
    with contextlib.suppress(Exception):  # whatever goes wrong here, the caller has its value
        learn_flags(site.trust, sample)
        site.trust.prepare_errors(sample.traced)
        judgement = compared(sample, results)
        if judgement.difference is not None:
            pin(planner, site, device, function, sample, judgement.difference, before_use=False)


# -- NumPy beside a device


def hear_numpy(call: Call) -> None:
    """Run the call on NumPy as well, so that it warns or raises; the device's result is still the one returned."""
    call.is_heard = True
    value = call.site.host.run_on_host(call.function, call.arguments, call.keywords)
    call.site.trust.hear()
    learn_from(call, value)


def learn_from(call: Call, value: Any) -> None:
    """Have the background find out what NumPy warned about in a call that has just run there."""
    sample = sample_now(call, value, ours=False)
    if sample is not None:
        call.planner.background.submit(partial(learn_flags, call.site.trust, sample))
        call.planner.background.submit(partial(call.site.trust.prepare_errors, sample.traced))


def sample_now(call: Call, value: Any, *, ours: bool | None = None) -> Sample | None:
    """Return the program's inputs as they are now, and what NumPy returned for them; `None` if there is no such
    program.

    With `ours` the program on NumPy is the reference instead of `value`: for anygpu's own arrays, and without a value.
    """
    given = call.given()
    if given is None:
        return None
    traced = call.traced
    if traced.lies_otherwise(given) and not call.site.has_anygpu_arrays:
        return None
    if ours is None:
        ours = call.site.has_anygpu_arrays or value is None
    return sample_of(traced, as_arguments(given, traced.program, None), value, ours=ours)


def is_ordinary(call: Call, value: Any) -> bool:
    """Return whether a device could return such a value; if not, the call site refuses to be traced.

    The memory order of an ordinary value is noted, so that a device's results can be given the same.
    """
    site = call.site
    if site.has_anygpu_arrays:
        return True
    inputs = call.given()
    if inputs is None:
        why: str | None = "it modifies state that it depends on"
    else:
        why = why_not_replaceable(call.traced, value, inputs)
        if why is None:
            site.trust.see(call.traced, inputs, value)
            return True
    assert why is not None
    with call.planner.lock:
        site.refuse(why)
    return False


def check_sample(call: Call, value: Any, name: str) -> None:
    """Have the background compare what NumPy returned with what the device computes.

    Nothing is done while numbers of these kinds are being compared for the device already.
    """
    planner, site, given = call.planner, call.site, call.given()
    if given is None:
        return
    program, kinds = call.traced.program.key, number_kinds(call.traced, given)
    if not site.trust.begin_comparing(program, name, kinds):
        return
    sample = sample_now(call, value)
    if sample is None:
        site.trust.end_comparing(program, name, kinds, agreed=False)
        return

    def check() -> None:
        agreed = False
        try:
            agreed = _check_again(planner, site, call.function, name, sample)
        finally:
            site.trust.end_comparing(program, name, kinds, agreed=agreed)

    planner.background.submit(check)


def _check_again(planner: Planner, site: CallSite, function: Callable[..., Any], name: str, sample: Sample) -> bool:
    """Run a sample on the device; return whether it gives what NumPy has just given."""
    facts = site.candidates.predictions.get(name)
    if facts is None or planner.background.closed:
        return False
    try:
        with planner.trying(()):
            worker = planner.worker(name, site.options)
            program, timeout = sample.traced.program, site.options.timeout
            ran = execute(program, sample.inputs, worker, chunks=facts.chunks, timeout=timeout)
        return agrees(planner, site, function, name, sample, ran.results, before_use=False)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the caller's calls go on
        with planner.lock:
            site.chooser.failed(name, f"{name} failed in a sample: {name_of(error)}: {text_of(error)}")
    return False


def agrees(
    planner: Planner,
    site: CallSite,
    function: Callable[..., Any],
    name: str,
    sample: Sample,
    *runs: list[Any],
    before_use: bool = True,
) -> bool:
    """Return whether all of the device's results are right; a device that is wrong is not used for this function again.

    Before the first use a result that cannot be judged counts as wrong, and the differences of right ones are noted as
    usual.
    """
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
