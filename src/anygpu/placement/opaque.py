"""Opaque tasks: functions over a library's own arrays, which are never looked into. Their cost is known by history."""

from __future__ import annotations

import contextlib
import shlex
import threading
from typing import Any

import msgspec
import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.structure import flatten, require_plain, unflatten
from anygpu.base.interrupts import TryAcquire
from anygpu.errors import DeviceUnavailable, InvalidOption, OutOfMemory
from anygpu.hardware.device import Device
from anygpu.hardware.selection import select
from anygpu.placement.call import Call
from anygpu.placement.executing import Executing
from anygpu.placement.learnt_memory import Short, without_memory
from anygpu.placement.opaque_form import EVERY, FIRST
from anygpu.plan.candidate_history import DeviceChoice
from anygpu.plan.plan import Plan, Refused
from anygpu.receipts import Attempt, PhaseTimer, Receipt
from anygpu.workers.thread import ThreadWorker

_NOT_LOOKED_INTO = "the function is an opaque task, which is not inspected"

#: Calls on a device before one that was never tried gets a call.
_BEFORE_ANOTHER = 3


def explain_opaque(call: Call) -> Plan:
    """The plan of an opaque task, which only history speaks for."""
    _consider(call)
    choice, short = _choose(call)
    plan = call.site.plan(choice.sentence, choice.candidate)
    if not short:
        return plan
    return msgspec.structs.replace(
        plan, refused=(*plan.refused, *(Refused(each.device, each.sentence) for each in short))
    )


def place_opaque(call: Call, timer: PhaseTimer | None = None) -> tuple[Any, Receipt]:
    """Native arrays in and out, on the device of that engine that history speaks for."""
    site, planner, chooser = call.site, call.planner, call.site.chooser
    timer = PhaseTimer(planner.clock) if timer is None else timer
    with timer.phase("plan"):
        _consider(call)
        choice, short = _choose(call)
        if any(each.device == choice.candidate for each in short) and site.options.fallback == "raise":
            raise _no_memory(call, short[0])
    device = planner.machine().device(choice.candidate)
    worker = planner.worker(choice.candidate, site.options)
    if device is None or not isinstance(worker, ThreadWorker):
        raise InvalidOption(
            f'{site.task} is an opaque task, and code does not go into another process: use isolation="thread" for '
            f"{choice.candidate}."
        )
    predicted = chooser.estimate(choice.candidate) if chooser.tracks[choice.candidate].recent else None
    form, rows = call.form
    with timer.phase("plan"):
        form.recall(call, worker.engine)
        if form.program is not None:
            planner.recall.keep_opaque(site, call.function, form.program)
        predicted_bytes = form.predicted(choice.candidate, rows)
    there = back = 0
    with (
        planner.using((choice.candidate,), predicted or 0.0),
        _Measuring(worker, device, form.is_to_be_measured(choice.candidate, rows)) as memory,
    ):
        leaves, structure = flatten((call.arguments, call.keywords))
        with timer.phase("write"):
            given: list[Any] = []
            for leaf in leaves:
                if isinstance(leaf, np.ndarray | Array):
                    require_plain(leaf, f"{site.task}, a function of {site.options.engine}'s arrays,")
                    values = np.asarray(leaf)
                    there += values.nbytes
                    given.append(worker.native(worker.upload(values)))
                else:
                    given.append(leaf)
            arguments, keywords = unflatten(structure, given)
        with timer.phase("run"):
            try:
                calling = getattr(worker.engine, "calling", None)
                with calling(given) if calling is not None else contextlib.nullcontext(), Executing():
                    value = call.function(*arguments, **keywords)
                worker.engine.synchronize(device)
            except Exception as error:
                # A lack of memory, a lost device: ours. Everything else is the user's own, and stays as it is.
                translated = None
                with contextlib.suppress(Exception):  # a user's error may fail when it is looked at
                    translated = worker.engine.classify(error, device)
                if translated is None:
                    raise
                raise translated from error
        with timer.phase("read"):
            results, shape = flatten(value)
            fetched: list[Any] = []
            for result in results:
                if _is_native(result):
                    values = np.array(worker.download(worker.adopt(result)))
                    back += values.nbytes
                    fetched.append(values)
                else:
                    fetched.append(result)
            value = unflatten(shape, fetched)
        peak = memory.peak(kept=back if device.kind == "cpu" else 0)
    if peak is not None:
        form.measured(call, choice.candidate, rows, peak)
    phases = timer.finish()
    took = phases.total - phases.plan
    with planner.lock:
        chooser.measured(choice.candidate, took)
        planner.add_seconds(took)
        _offer_another(call)
    unknown = dict.fromkeys(("device_seconds", "kernels"), _NOT_LOOKED_INTO)
    if peak is None:
        unknown["peak_bytes"] = memory.why
    if predicted is None:
        unknown["predicted_seconds"] = (
            "it was the first such call there, and opaque tasks are predicted from history only"
        )
    receipt = Receipt(
        task=site.task,
        device=choice.candidate,
        kind=device.kind,
        reason=choice.sentence,
        phases=phases,
        attempts=(Attempt(device=choice.candidate, phases=phases),),
        bytes_to_device=there,
        bytes_to_host=back,
        peak_bytes=peak,
        predicted_bytes=predicted_bytes,
        predicted_seconds=predicted,
        unknown=unknown,
    )
    return value, receipt


# -- memory

#: Calls that are predicted to take less are not compared with the free memory, which takes a third of a millisecond.
_MUCH = 64 << 20
_NOW_AND_THEN = f"memory is measured in the first {FIRST} calls with such arguments, and then in one of {EVERY}"
#: One call is measured at a time: the high-water mark is that of the process.
_measuring = threading.RLock()


class _Measuring:
    """Around one call: the most memory that it took at once, beyond what was taken before."""

    def __init__(self, worker: ThreadWorker, device: Device, wanted: bool) -> None:
        self._meter = _meter(worker, device) if wanted else None
        self._before: int | None = None
        self._acquired = TryAcquire(_measuring)
        #: Why there is no peak.
        self.why = _NOW_AND_THEN if not wanted else "the memory of such a device cannot be measured"

    def __enter__(self) -> _Measuring:
        if self._meter is None:
            return self
        try:
            if self._acquired.acquire():
                self._meter.begin()
                self._before = self._meter.now()
            else:
                self._meter, self.why = None, "another call was being measured"
        except BaseException:
            self.__exit__()
            raise
        return self

    def peak(self, kept: int) -> int | None:
        """The most beyond what was taken before, where the call itself has left `kept` bytes there.

        If less is taken now, others have freed the difference meanwhile, and the peak was reached above a lower level.
        """
        if self._meter is None or self._before is None:
            return None
        found: int | None = self._meter.peak()
        now: int | None = self._meter.now()
        if found is None or now is None:
            return None
        return max(0, found - min(self._before, now - kept))

    def __exit__(self, *_: object) -> None:
        self._acquired.release()


def _meter(worker: Any, device: Device) -> Any:
    find = getattr(worker.engine, "meter", None)
    return find(device) if find is not None else None


def free_bytes(call: Call, name: str) -> int | None:
    """The bytes that are free on a device now; `None` when that cannot be told."""
    device = call.planner.machine().device(name)
    worker = call.planner.worker(name, call.site.options)
    if device is None or not isinstance(worker, ThreadWorker):
        return None
    meter = _meter(worker, device)
    free: int | None = meter.free() if meter is not None else None
    return free if free is not None else device.memory_free


def _choose(call: Call) -> tuple[DeviceChoice, list[Short]]:
    """The device for a call; and those that do not have the memory that such calls took before."""
    planner, chooser = call.planner, call.site.chooser
    choice = chooser.choose(planner.waiting())
    form, rows = call.form
    needed = {name: form.predicted(name, rows) for name in chooser.tracks}
    needed = {name: peak for name, peak in needed.items() if peak is not None and peak >= _MUCH}
    if not needed:
        return choice, []
    short = without_memory(needed, {name: free_bytes(call, name) for name in needed})
    mine = next((each for each in short if each.device == choice.candidate), None)
    if mine is None:
        return choice, short
    without = {each.device for each in short}
    others = [name for name in chooser.tracks if name not in without and chooser.may_run(name)]
    if not others:
        sentence = f"{mine.sentence} No other device has more, so it is tried."
        return choice._replace(sentence=sentence), short
    best = min(others, key=lambda name: chooser.estimate(name) or chooser.expected.get(name, 0.0))
    return DeviceChoice(best, "known", mine.sentence), short


def _no_memory(call: Call, short: Short) -> OutOfMemory:
    return OutOfMemory(
        short.device,
        short.needed,
        short.free,
        message=f"{call.site.task} is not run: {short.sentence} Pass fewer rows, or close other programs that use it. "
        f"If that figure is wrong, `anygpu history clear {shlex.quote(call.site.task)}` forgets it.",
    )


def _consider(call: Call) -> None:
    site = call.site
    if site.evaluated:
        return
    engine = site.options.engine
    machine = call.planner.machine()
    selection = select(machine.devices, site.options.preference)
    able = [device for device in selection.chosen if device.engine == engine]
    refused = [Refused(each.device, each.sentence) for each in selection.refused]
    if not able:
        # The function takes that library's arrays, so there is nowhere to fall back to.
        reasons = [f"{each.reason} {each.fix or ''}".strip() for each in machine.unavailable if each.engine == engine]
        raise DeviceUnavailable(f'engine="{engine}"', reasons or [each.sentence for each in refused])
    site.consider_engine(able, refused)


def _offer_another(call: Call) -> None:
    """An opaque task cannot be tried in the background, so a device that was never tried gets a real call."""
    chooser = call.site.chooser
    name = chooser.to_try()
    if name is not None and chooser.calls >= _BEFORE_ANOTHER:
        best = min(track.estimate for track in chooser.tracks.values() if track.estimate is not None)
        chooser.begin_trial(name)
        chooser.tried(name, best)


def _is_native(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic)
